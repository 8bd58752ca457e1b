//! The hidden command `blockyard fat-driver`: the process that serves a FAT file system for
//! `blockyard mount`.

use std::path::PathBuf;

use blockyard::StopSignal;
use blockyard::mount::{FatOptions, drive_fat};
use clap::Args;

use crate::failure::Failure;

/// Serve the FAT file system in a file; `blockyard mount` starts this
#[derive(Args, Debug)]
pub(crate) struct FatDriverArgs {
    /// Mount options: ro, uid=N, gid=N, umask=MODE
    #[arg(short = 'o', value_delimiter = ',')]
    options: Vec<String>,

    /// File of the plaintext
    file: PathBuf,

    /// Mount point
    directory: PathBuf,
}

/// Serves until the mount ends.
pub(crate) fn run(args: &FatDriverArgs) -> Result<(), Failure> {
    let mut options = FatOptions {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        umask: 0o077,
        read_only: false,
    };
    for option in &args.options {
        let unknown = || Failure::failed(format!("-o {option}: this option is unknown"));
        let number = |text: &str, radix| u32::from_str_radix(text, radix).map_err(|_| unknown());
        match option.split_once('=') {
            None if option == "ro" => options.read_only = true,
            Some(("uid", uid)) => options.uid = number(uid, 10)?,
            Some(("gid", gid)) => options.gid = number(gid, 10)?,
            Some(("umask", umask)) => options.umask = number(umask, 8)?,
            _ => return Err(unknown()),
        }
    }
    let stop = StopSignal::install()
        .map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))?;
    Ok(drive_fat(&args.file, &args.directory, &options, &stop)?)
}
