//! The manual: what `-h`, `--help` and the man pages say beyond the definition of the options.

mod brief;
mod examples;
mod groups;
mod markdown;
pub(crate) mod page;

use clap::Command;

/// Width of all help. Terminals have at least 80 columns.
const WIDTH_COLUMNS: usize = 80;

/// The definition with examples, and with the parts of it that `-h` shows.
pub(crate) fn completed(definition: Command) -> Command {
    let definition = with_examples(brief::shortened(definition, ""), "");
    groups::with_overview(definition).max_term_width(WIDTH_COLUMNS)
}

/// Adds examples to the command of this name below `blockyard`, and to its subcommands.
fn with_examples(command: Command, name: &str) -> Command {
    let command = match examples::of(name) {
        Some(examples) => command.after_long_help(format!("Examples:\n{examples}")),
        None => command,
    };
    command.mut_subcommands(|below| {
        let name = joined(name, below.get_name());
        with_examples(below, &name)
    })
}

/// The name of a subcommand below `blockyard`, as in `trace record`.
fn joined(name: &str, below: &str) -> String {
    if name.is_empty() { below.to_owned() } else { format!("{name} {below}") }
}
