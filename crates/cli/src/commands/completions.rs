//! `blockyard completions SHELL`: the completion script.
//!
//! The scripts for bash, zsh and fish ask the program at each Tab (`super::complete`). Those for
//! other shells are generated from the definition of the command line.

use clap::Args;
use clap_complete::Shell;

use crate::args::{ShortHelpArgs, definition};
use crate::failure::Failure;
use crate::output::print;

/// Print a shell completion script
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete for
    shell: Shell,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    match args.shell {
        Shell::Bash => print(include_str!("completions/blockyard.bash")),
        Shell::Zsh => print(include_str!("completions/blockyard.zsh")),
        Shell::Fish => print(include_str!("completions/blockyard.fish")),
        shell => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut definition(), "blockyard", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
    }
}
