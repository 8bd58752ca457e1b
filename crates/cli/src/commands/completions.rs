//! `blockyard completions SHELL`: the completion script, generated from the definition of the
//! command line.

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
    print(&script(args.shell))
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition(), "blockyard", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        // A bare ? is a pattern for fish before version 4, which then reports "No matches" at each
        // Tab.
        Shell::Fish => script.replace(" -s ? ", " -s '?' ").replace(" ?/help", " '?/help'"),
        _ => script,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_for_fish_has_no_pattern_outside_of_quotes() {
        let script = script(Shell::Fish);
        assert!(script.contains(" -s '?' -l help"));
        for line in script.lines() {
            // Help texts are quoted; a quote in them is \\'.
            let text = line.replace("\\'", "");
            let bare: String = text.split('\'').step_by(2).collect();
            let outside: String = bare.split('"').step_by(2).collect();
            assert!(line.trim_start().starts_with('#') || !outside.contains('?'), "{line}");
        }
    }
}
