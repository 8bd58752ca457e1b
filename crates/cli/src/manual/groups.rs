//! The commands in groups: the list in `blockyard -h` and `--help`, and SEE ALSO of the man pages.

use clap::Command;

use super::WIDTH_COLUMNS;
use super::examples;
use crate::failure::EXIT_CODES;

/// Commands that are used together. `-h` describes those of the first group.
const GROUPS: &[(&str, &[&str])] = &[
    ("Volumes", &["format", "info", "serve", "mount", "umount", "ls", "cp", "dump", "load"]),
    ("Keys", &["key", "token", "header", "tls", "table", "resize", "repair", "erase"]),
    ("Servers", &["status", "suspend", "resume", "message", "limit", "backup", "reload", "forget"]),
    ("Speed", &["top", "doctor", "bench", "tune", "trace", "replay", "report", "elevators", "lab"]),
    ("This program", &["man", "completions"]),
];

/// The other commands of a command's group.
pub(super) fn beside(name: &str) -> impl Iterator<Item = &'static str> {
    let group = GROUPS.iter().find(|(_, names)| names.contains(&name));
    let names = group.map_or(&[][..], |(_, names)| names).iter().copied();
    let name = name.to_owned();
    names.filter(move |other| *other != name)
}

/// Replaces the list of commands by the groups.
pub(super) fn with_overview(definition: Command) -> Command {
    let brief = brief(&definition);
    let complete = complete(&definition);
    definition
        .help_template(
            "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\nOptions:\n{options}",
        )
        .after_help(brief)
        .after_long_help(complete)
}

fn brief(definition: &Command) -> String {
    let (first, others) = GROUPS.split_first().expect("there are groups");
    let names = |names: &[&str]| {
        let known = names.iter().filter(|name| definition.find_subcommand(name).is_some());
        known.copied().collect::<Vec<_>>().join(", ")
    };
    let others: Vec<_> = others.iter().map(|(title, group)| (*title, names(group))).collect();
    format!(
        "{}\nMore commands; `blockyard COMMAND -h` explains one:\n{}",
        described(definition, first),
        rows(&others)
    )
}

fn complete(definition: &Command) -> String {
    let groups = GROUPS.iter().map(|group| described(definition, group) + "\n");
    let examples = examples::of("").unwrap_or_default();
    format!("{}Examples:\n{examples}\n\n{EXIT_CODES}", groups.collect::<String>())
}

/// A group with a line for each command.
fn described(definition: &Command, (title, names): &(&str, &[&str])) -> String {
    let found = names.iter().filter_map(|name| definition.find_subcommand(name));
    let abouts = found.map(|command| {
        let about = command.get_about().map(ToString::to_string);
        (command.get_name(), about.unwrap_or_default())
    });
    format!("{title}:\n{}", rows(&abouts.collect::<Vec<_>>()))
}

/// Two columns, of which the second is broken into lines.
fn rows(rows: &[(&str, String)]) -> String {
    let indent = 4 + rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, words) in rows {
        let mut line = format!("  {name:width$}", width = indent - 2);
        for word in words.split(' ') {
            if line.len() + word.len() > WIDTH_COLUMNS {
                text += line.trim_end();
                text.push('\n');
                line = " ".repeat(indent);
            }
            line += word;
            line.push(' ');
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::definition;

    #[test]
    fn every_command_is_in_one_group() {
        let definition = definition();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        if cfg!(not(feature = "lab")) {
            grouped.retain(|name| !["tune", "report", "lab"].contains(name));
        }
        let visible = definition.get_subcommands().filter(|command| !command.is_hide_set());
        let mut visible: Vec<_> = visible.map(Command::get_name).collect();
        grouped.sort_unstable();
        visible.sort_unstable();
        assert_eq!(grouped, visible);
    }
}
