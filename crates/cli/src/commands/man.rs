//! `blockyard man [DIR]`: the man pages, made from the definition of the command line.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::args::{ShortHelpArgs, definition};
use crate::failure::Failure;
use crate::output::print;

/// Write the man pages into a folder, or print the main page
///
/// To read one: blockyard man | man -l -
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ManArgs {
    /// Folder for blockyard.1 and a page for each command
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: Option<PathBuf>,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Writes or prints.
pub(crate) fn run(args: &ManArgs) -> Result<(), Failure> {
    let command = definition().disable_help_subcommand(true);
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .map_err(|error| Failure::failed(format!("cannot make the man page: {error}")))?;
        return print(&String::from_utf8_lossy(&page));
    };
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .map_err(|error| {
            Failure::failed(format!("cannot write man pages into {}: {error}", folder.display()))
        })
}
