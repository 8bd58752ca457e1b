//! `blockyard man [COMMAND|DIR]`: man pages, generated from the definition of the command line.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use crate::args::{ShortHelpArgs, definition};
use crate::failure::Failure;
use crate::manual::page;
use crate::output::print;

/// Print the man page of a command, or write all pages into a folder
///
/// The default is the main page. `blockyard man blockyard.toml` prints the page about the
/// configuration of `serve`. If the folder is named man1, that page goes into man5 beside it.
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
        (Some(named), _) => show(page::of_command(&named)),
        (None, [word]) if word.as_os_str() == page::CONFIG_PAGE => show(page::of_config()),
        (None, [folder])
            if folder.is_dir() || folder.as_os_str().as_encoded_bytes().contains(&b'/') =>
        {
            write_all(&command, folder).map_err(|error| {
                let folder = folder.display();
                Failure::failed(format!("cannot write man pages into {folder}: {error}"))
            })
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

fn write_all(command: &clap::Command, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    write_below(command, folder)?;
    // man(1) searches each section in a folder of its own.
    let is_section = folder.file_name().is_some_and(|name| name == "man1");
    let folder = if is_section { folder.with_file_name("man5") } else { folder.to_owned() };
    std::fs::create_dir_all(&folder)?;
    let (name, page) = page::of_config()?;
    std::fs::write(folder.join(name), page)
}

/// Writes the pages of a command and of all below it.
fn write_below(command: &clap::Command, folder: &Path) -> io::Result<()> {
    let (name, page) = page::of_command(command)?;
    std::fs::write(folder.join(name), page)?;
    let mut below = command.get_subcommands().filter(|below| !below.is_hide_set());
    below.try_for_each(|below| write_below(below, folder))
}

fn show(page: io::Result<(String, Vec<u8>)>) -> Result<(), Failure> {
    let (_, page) =
        page.map_err(|error| Failure::failed(format!("cannot make the man page: {error}")))?;
    print(&String::from_utf8_lossy(&page))
}
