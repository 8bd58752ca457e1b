//! `blockyard completions SHELL`: the completion script, made from the definition of the command
//! line.

use clap::Args;
use clap_complete::Shell;

use crate::args::{ShortHelpArgs, definition};
use crate::failure::Failure;
use crate::output::print;

/// Print a shell completion script
///
/// For bash: blockyard completions bash >~/.local/share/bash-completion/completions/blockyard
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    shell: Shell,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "blockyard", &mut script);
    print(&String::from_utf8_lossy(&script))
}
