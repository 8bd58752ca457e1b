//! `blockyard dump`: the plaintext of a volume out to a file or a pipe.
//!
//! A regular file is written with holes where the plaintext is zeros: a dump of a mostly empty disk
//! is mostly hole. A pipe gets every byte.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_host::Error as HostError;
use blockyard_host::copy;
use blockyard_host::volume::{Volume, VolumeOptions};
use clap::{Args, ValueHint};
use rustix::fs::FileType;

use crate::args::{ForceArgs, HelpArgs, VolumeArgs};
use crate::failure::Failure;
use crate::key::StdinUse;
use crate::output::{InUse, Output};
use crate::progress::Progress;

/// Smallest run of zeros that becomes a hole: a page, the block of nearly every file system.
const HOLE_MIN_BYTES: usize = 4096;

/// Write the plaintext of a volume to a file or a pipe
#[derive(Args, Debug)]
#[command(disable_help_flag = true, mut_arg("offset", |offset| offset.short(None)))]
pub(crate) struct DumpArgs {
    /// File to write, readable by its owner only; without it, or with `-`, standard output
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    #[command(flatten)]
    volume: VolumeArgs,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Copies everything out.
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
    let settings = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let volume = spec.prepare(settings, StdinUse::Free)?.unlock()?.start()?;
    in_use.add_volume(&volume);
    let volume = Arc::clone(volume.host());
    match output {
        Some(output) => dump_to_file(&volume, &output.create(&in_use)?, output.path()),
        None => dump_to_stdout(&volume),
    }
}

fn dump_to_file(volume: &Arc<Volume>, file: &File, path: &Path) -> Result<(), Failure> {
    let failed = |what: &str, error: io::Error| {
        Failure::failed(format!("cannot {what} {}: {error}", path.display()))
    };
    let is_regular = file.metadata().map_err(|error| failed("write", error))?.is_file();
    if is_regular {
        let mut sparse = SparseFile { file, at_bytes: 0 };
        copy_out(volume, &mut sparse, &|error| failed("write", error))?;
        file.set_len(sparse.at_bytes).map_err(|error| failed("extend", error))?;
    } else {
        copy_out(volume, &mut &*file, &|error| failed("write", error))?;
    }
    match file.sync_data() {
        // A pipe or a character device has nothing to synchronise.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result.map_err(|error| failed("synchronise", error)),
    }
}

fn dump_to_stdout(volume: &Arc<Volume>) -> Result<(), Failure> {
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
    volume: &Arc<Volume>,
    to: &mut dyn Write,
    failed: &dyn Fn(io::Error) -> Failure,
) -> Result<(), Failure> {
    let progress = Progress::new(Some(volume.size_bytes()));
    let copied = copy::dump(volume, to, &mut |done_bytes| progress.at(done_bytes));
    drop(progress);
    match copied {
        Err(HostError::Output(error)) => Err(failed(error)),
        result => result.map(|_| ()).map_err(Failure::from),
    }
}

/// A new, empty file in which zeros become holes.
struct SparseFile<'a> {
    file: &'a File,
    at_bytes: u64,
}

impl Write for SparseFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut left = bytes;
        while !left.is_empty() {
            let zeros = run_len(left, true);
            self.at_bytes += zeros as u64;
            left = &left[zeros..];
            let (data, rest) = left.split_at(run_len(left, false));
            self.file.write_all_at(data, self.at_bytes)?;
            self.at_bytes += data.len() as u64;
            left = rest;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Length of the run of blocks at the start that are all zeros, or all not.
fn run_len(bytes: &[u8], zeros: bool) -> usize {
    let blocks = bytes.chunks(HOLE_MIN_BYTES);
    blocks.take_while(|block| is_zero(block) == zeros).map(<[u8]>::len).sum()
}

pub(crate) fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn sparse_file_reads_back_what_was_written_and_keeps_the_holes() {
        let mut bytes = vec![0u8; 1 << 20];
        bytes[300_000..300_010].fill(7);
        bytes[0] = 1;
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sparse = SparseFile { file: file.as_file(), at_bytes: 0 };
        // Pieces that are no whole blocks: block borders are those of the piece.
        for piece in bytes.chunks(100_001) {
            sparse.write_all(piece).unwrap();
        }
        file.as_file().set_len(sparse.at_bytes).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), bytes);
        let allocated_bytes = file.as_file().metadata().unwrap().blocks() * 512;
        assert!(allocated_bytes < 128 << 10, "{allocated_bytes} bytes are allocated");
    }

    #[test]
    fn run_lengths_end_where_the_other_kind_begins() {
        let mut bytes = vec![0u8; 3 * HOLE_MIN_BYTES + 5];
        assert_eq!(run_len(&bytes, true), bytes.len());
        bytes[HOLE_MIN_BYTES] = 1;
        assert_eq!(run_len(&bytes, true), HOLE_MIN_BYTES);
        assert_eq!(run_len(&bytes[HOLE_MIN_BYTES..], false), HOLE_MIN_BYTES);
        bytes[3 * HOLE_MIN_BYTES + 4] = 1;
        assert_eq!(run_len(&bytes[2 * HOLE_MIN_BYTES..], true), HOLE_MIN_BYTES);
    }
}
