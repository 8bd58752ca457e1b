//! `blockyard load`: copies plaintext into a volume, from a file or a pipe.
//!
//! The volume keeps its header; input that is shorter than the volume replaces its beginning. Zeros
//! are written like other data: behind a cipher, a hole would read as noise.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use blockyard::output::is_same_file;
use blockyard::{Settings, Volume};
use clap::{Args, ValueHint};

use crate::args::{HelpArgs, VolumeArgs};
use crate::failure::Failure;
use crate::key::StdinUse;
use crate::progress::Progress;
use crate::size::human_size;

/// Fill a volume with plaintext from a file or a pipe
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct LoadArgs {
    /// File to read; the default, or `-`, is standard input
    #[arg(short = 'i', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    input: Option<PathBuf>,

    /// Accept input shorter than the volume; the rest of the volume is kept
    #[arg(long)]
    allow_short: bool,

    #[command(flatten)]
    volume: VolumeArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Input of the command.
struct Input {
    file: File,
    /// Name for messages.
    place: String,
    /// The rest of its length, if known.
    len_bytes: Option<u64>,
}

/// Copies the whole input.
pub(crate) fn run(args: &LoadArgs) -> Result<(), Failure> {
    let path = args.input.as_deref().filter(|path| path.as_os_str() != "-");
    let spec = args.volume.spec()?;
    if let Some(path) = path
        && is_same_file(path, &spec.path)
    {
        return Err(Failure::failed(format!(
            "{} is the volume itself; load from another file",
            path.display()
        )));
    }
    let mut input = Input::open(path)?;
    let stdin_use = if path.is_some() { StdinUse::Free } else { StdinUse::Data };
    let unlocked = spec.prepare(Settings::default(), stdin_use)?.unlock()?;
    input.check_protected(unlocked.protected())?;
    let volume = unlocked.start()?;
    input.check_fits(&volume, args.allow_short)?;
    let progress = Progress::new(input.len_bytes);
    let copied = volume.copy_in(&mut input.file, &mut |done| progress.at(done));
    drop(progress);
    let loaded_bytes = copied.map_err(Failure::from)?;
    if loaded_bytes < volume.len() && !args.allow_short {
        Err(input.is_short(
            loaded_bytes,
            &volume,
            "the input was written, and the rest of the volume is unchanged",
        ))
    } else {
        Ok(())
    }
}

impl Input {
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let (file, place) = match path {
            Some(path) => (File::open(path), path.display().to_string()),
            None => {
                let stdin = rustix::stdio::stdin();
                if rustix::termios::isatty(stdin) {
                    return Err(Failure::failed(
                        "standard input is a terminal; use -i FILE or a pipe",
                    ));
                }
                (stdin.try_clone_to_owned().map(File::from), "standard input".into())
            }
        };
        let failed = |error: io::Error| Failure::failed(format!("cannot read {place}: {error}"));
        let mut file = file.map_err(failed)?;
        if file.metadata().map_err(failed)?.is_dir() {
            return Err(Failure::failed(format!("cannot read {place}: it is a folder")));
        }
        let len_bytes = left_in(&mut file);
        Ok(Self { file, place, len_bytes })
    }

    fn check_fits(&self, volume: &Volume, allow_short: bool) -> Result<(), Failure> {
        let volume_bytes = volume.len();
        match self.len_bytes {
            Some(len_bytes) if len_bytes > volume_bytes => Err(Failure::failed(format!(
                "{} has {len_bytes} bytes ({}), but the volume holds {volume_bytes} ({}); nothing \
                 was written; format a larger volume or shorten the input",
                self.place,
                human_size(len_bytes),
                human_size(volume_bytes)
            ))),
            Some(len_bytes) if len_bytes < volume_bytes && !allow_short => {
                Err(self.is_short(len_bytes, volume, "nothing was written"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses an input that is known to reach protected sectors.
    fn check_protected(&self, protected: &[Range<u64>]) -> Result<(), Failure> {
        let first_bytes = protected.iter().map(|range| range.start * 512).min();
        match (self.len_bytes, first_bytes) {
            (Some(len_bytes), Some(first_bytes)) if len_bytes > first_bytes => {
                Err(Failure::failed(format!(
                    "{} has {len_bytes} bytes ({}), and the hidden volume starts at byte \
                     {first_bytes}; nothing was written; shorten the input, and use --allow-short",
                    self.place,
                    human_size(len_bytes)
                )))
            }
            _ => Ok(()),
        }
    }

    fn is_short(&self, len_bytes: u64, volume: &Volume, outcome: &str) -> Failure {
        let volume_bytes = volume.len();
        Failure::failed(format!(
            "{} has {len_bytes} bytes ({}), and the volume holds {volume_bytes} ({}): {outcome}; \
             use --allow-short to keep the rest of the volume",
            self.place,
            human_size(len_bytes),
            human_size(volume_bytes)
        ))
    }
}

/// The number of bytes from the position to the end of a file or disk; `None` for a pipe.
fn left_in(file: &mut File) -> Option<u64> {
    let here = file.stream_position().ok()?;
    let end = file.seek(SeekFrom::End(0)).ok()?;
    file.seek(SeekFrom::Start(here)).ok()?;
    // Character devices such as /dev/zero can be sought, but have no length.
    (end > 0 || file.metadata().ok()?.is_file()).then(|| end.saturating_sub(here))
}
