//! `blockyard man [COMMAND|DIR]`: man pages, generated from the definition of the command line.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use crate::args::{ShortHelpArgs, definition};
use crate::failure::Failure;
use crate::output::print;

/// Print the man page of a command, or write all pages into a folder
///
/// The default is the main page. To read a page: blockyard man serve | man -l -
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ManArgs {
    /// A command, for example `serve` or `trace record`; or a folder for the pages of all commands:
    /// an existing one, or a path with a slash, for example `man1/`
    #[arg(value_name = "COMMAND|DIR", value_hint = ValueHint::DirPath)]
    of: Vec<PathBuf>,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Writes or prints the pages.
pub(crate) fn run(args: &ManArgs) -> Result<(), Failure> {
    let mut command = definition().disable_help_subcommand(true);
    command.build();
    let below =
        |command: clap::Command, word: &PathBuf| command.find_subcommand(word.to_str()?).cloned();
    match (args.of.iter().try_fold(command.clone(), below), &args.of[..]) {
        (Some(named), _) => page(named),
        (None, [folder])
            if folder.is_dir() || folder.as_os_str().as_encoded_bytes().contains(&b'/') =>
        {
            pages(command, folder)
        }
        (None, words) => {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            Err(Failure::failed(format!(
                "{:?} is no command and no folder; `blockyard --help` lists the commands, and a \
                 new folder has a slash, as in man1/",
                words.join(" ")
            )))
        }
    }
}

fn pages(command: clap::Command, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .map_err(|error| {
            Failure::failed(format!("cannot write man pages into {}: {error}", folder.display()))
        })
}

fn page(command: clap::Command) -> Result<(), Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|error| Failure::failed(format!("cannot make the man page: {error}")))?;
    print(&String::from_utf8_lossy(&page))
}
