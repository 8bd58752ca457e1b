//! `blockyard dump`: copies the plaintext of a volume to a file or a pipe.
//!
//! In a regular file, zeros become holes: a dump of a mostly empty disk is mostly hole. A pipe gets
//! every byte.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use blockyard::{Error, Settings, SparseFile, Volume};
use clap::{Args, ValueHint};
use rustix::fs::FileType;

use crate::args::{ForceArgs, HelpArgs, VolumeArgs};
use crate::failure::Failure;
use crate::key::StdinUse;
use crate::output::{InUse, Output};
use crate::progress::Progress;

/// Write the plaintext of a volume to a file or a pipe
#[derive(Args, Debug)]
#[command(disable_help_flag = true, mut_arg("offset", |offset| offset.short(None)))]
pub(crate) struct DumpArgs {
    /// File to write, readable by its owner only; the default, or `-`, is standard output
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    #[command(flatten)]
    volume: VolumeArgs,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Copies the whole volume.
pub(crate) fn run(args: &DumpArgs) -> Result<(), Failure> {
    let output = args.output.as_deref().filter(|path| path.as_os_str() != "-");
    if output.is_none() && rustix::termios::isatty(rustix::stdio::stdout()) {
        return Err(Failure::failed(
            "standard output is a terminal, which a disk's bytes would garble; use -o FILE or a \
             pipe",
        ));
    }
    let spec = args.volume.spec()?;
    let mut in_use = InUse::of_paths(spec.paths());
    // The output is plaintext: only its owner may read the new file.
    let output = output.map(|path| Output::private(path, args.force.force));
    if let Some(output) = &output {
        output.check(&in_use)?;
    }
    let settings = Settings { read_only: true, ..Settings::default() };
    let volume = spec.prepare(settings, StdinUse::Free)?.unlock()?.start()?;
    in_use.add_volume(&volume);
    match output {
        Some(output) => dump_to_file(&volume, output.create(&in_use)?.file(), output.path()),
        None => dump_to_stdout(&volume),
    }
}

fn dump_to_file(volume: &Volume, file: &File, path: &Path) -> Result<(), Failure> {
    let failed = |what: &str, error: io::Error| {
        Failure::failed(format!("cannot {what} {}: {error}", path.display()))
    };
    let is_regular = file.metadata().map_err(|error| failed("write", error))?.is_file();
    if is_regular {
        let mut sparse = SparseFile::new(file);
        copy_out(volume, &mut sparse, &|error| failed("write", error))?;
        sparse.end().map_err(|error| failed("extend", error))?;
    } else {
        copy_out(volume, &mut &*file, &|error| failed("write", error))?;
    }
    match file.sync_data() {
        // A pipe or a character device has nothing to synchronise.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result.map_err(|error| failed("synchronise", error)),
    }
}

fn dump_to_stdout(volume: &Volume) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::failed(format!("cannot write to standard output: {error}"));
    let stdout = rustix::stdio::stdout().try_clone_to_owned().map_err(failed)?;
    let mut file = File::from(stdout);
    copy_out(volume, &mut file, &failed)?;
    let status = rustix::fs::fstat(file.as_fd()).map_err(|errno| failed(errno.into()))?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile | FileType::BlockDevice => file.sync_data().map_err(failed),
        _ => Ok(()),
    }
}

fn copy_out(
    volume: &Volume,
    to: &mut dyn Write,
    failed: &dyn Fn(io::Error) -> Failure,
) -> Result<(), Failure> {
    let progress = Progress::new(Some(volume.len()));
    let copied = volume.copy_out(to, &mut |done_bytes| progress.at(done_bytes));
    drop(progress);
    match copied {
        Err(Error::Writer(error)) => Err(failed(error)),
        result => result.map(|_| ()).map_err(Failure::from),
    }
}
