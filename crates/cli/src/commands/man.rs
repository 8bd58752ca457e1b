//! `blockyard man [COMMAND|DIR]`: the man pages, made from the definition of the command line.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::args::{ShortHelpArgs, definition};
use crate::failure::Failure;
use crate::output::print;

/// Print the man page of a command, or write all pages into a folder
///
/// Without an argument it prints the main page. To read a page: blockyard man serve | man -l -
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ManArgs {
    /// A command, as in `serve`; or the folder for blockyard.1 and a page for each command, which
    /// has a slash in it if a command has that name
    #[arg(value_name = "COMMAND|DIR", value_hint = ValueHint::DirPath)]
    of: Option<PathBuf>,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Writes or prints.
pub(crate) fn run(args: &ManArgs) -> Result<(), Failure> {
    let command = definition().disable_help_subcommand(true);
    let Some(folder) = &args.of else { return page(command) };
    if let Some(named) = folder.to_str().and_then(|name| command.find_subcommand(name)) {
        return page(named.clone().bin_name(format!("blockyard {}", named.get_name())));
    }
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
