//! The options that `-h` shows, for the commands with more options than a screen has lines. In the
//! complete help these are the first.

use clap::Command;

/// Options of every command.
const ALWAYS: &[&str] = &["help"];
/// Options that open a volume.
const VOLUME: &[&str] = &["type", "partition", "header", "key-file"];
/// Options for the place of a header.
const HEADER: &[&str] = &["header", "key-file", "key-slot"];

/// A command, and lists of options.
type Row = (&'static str, &'static [&'static [&'static str]]);

const BRIEF: &[Row] = &[
    (
        "serve",
        &[
            &["socket", "listen", "config", "vhost-user", "control", "read-only", "run"],
            &["type", "key-file"],
        ],
    ),
    (
        "format",
        &[
            &["size", "batch-mode", "cipher", "key-size", "partition", "iter-time"],
            &["header", "key-file", "label"],
        ],
    ),
    ("dump", &[&["output", "force"], VOLUME]),
    ("load", &[&["input", "allow-short"], VOLUME]),
    ("mount", &[&["as-file", "read-only"], VOLUME]),
    ("ls", &[&["long", "json"], VOLUME]),
    ("cp", &[&["recursive", "force"], VOLUME]),
    ("table", &[&["show-keys"], VOLUME]),
    ("bench", &[&["job", "destroy", "raw", "null", "json"], &["key-file"]]),
    ("replay", &[&["destroy", "raw", "null", "fast", "speed", "json"], &["key-file"]]),
    ("tune", &[&["workload", "goal", "time", "destroy", "output"], &["key-file"]]),
    ("key add", &[&["new-keyfile", "pbkdf"], HEADER]),
    ("key change", &[&["new-keyfile", "pbkdf", "iter-time"], HEADER]),
    ("key convert", &[&["pbkdf", "iter-time"], HEADER]),
    ("key remove", &[HEADER]),
    ("key kill", &[&["batch-mode", "header", "key-file"]]),
    ("lab run", &[&["set", "variant", "seed", "full", "json", "real"]]),
];

/// Hides the other options from `-h`, which then names `--help`.
pub(super) fn shortened(command: Command, name: &str) -> Command {
    let command = match BRIEF.iter().find(|(command, _)| *command == name) {
        Some((_, shown)) => {
            let is_shown = |long: &str| {
                ALWAYS.contains(&long) || shown.iter().any(|list| list.contains(&long))
            };
            command
                .after_help(format!("`blockyard {name} --help` has more options, and examples."))
                .mut_args(|option| match option.get_long() {
                    Some(long) if is_shown(long) => option.help_heading(None::<&str>),
                    Some(_) => option.hide_short_help(true),
                    None => option,
                })
        }
        None => command,
    };
    command.mut_subcommands(|below| {
        let name = super::joined(name, below.get_name());
        shortened(below, &name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::definition;

    #[test]
    fn options_of_the_table_exist() {
        let definition = definition();
        for (name, lists) in BRIEF {
            if cfg!(not(feature = "lab")) && ["tune", "lab run"].contains(name) {
                continue;
            }
            let found = name.split(' ').try_fold(&definition, |at, word| at.find_subcommand(word));
            let command = found.unwrap_or_else(|| panic!("{name}"));
            let mut longs: Vec<_> = lists.iter().flat_map(|list| *list).collect();
            longs.retain(|long| !command.get_arguments().any(|a| a.get_long() == Some(**long)));
            assert!(longs.is_empty(), "{name}: {longs:?}");
        }
    }
}
