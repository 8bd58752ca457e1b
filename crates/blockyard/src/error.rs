//! Errors of opening and serving volumes.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::Volume;
use crate::format::FormatError;
use crate::output::{OutputError, OutputProblem};
use crate::part::name_of;

/// Error of opening or serving a volume. Reads and writes fail with [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The header, the key or an option of the volume is invalid.
    #[error("{path}: {source}", path = .path.display())]
    Crypt {
        /// Volume, or its detached header.
        path: PathBuf,
        /// Cause.
        source: blockyard_crypt::Error,
    },
    /// A file, a device, a remote server, a table, a cipher or a socket failed.
    #[error(transparent)]
    Host(#[from] blockyard_host::Error),
    /// A device-mapper table is invalid, or a device of it failed.
    #[error("{path}: {source}", path = .path.display())]
    Table {
        /// File with the table.
        path: PathBuf,
        /// Cause.
        source: blockyard_host::Error,
    },
    /// The volume is of another kind than the options require, or options exclude each other.
    #[error("{path}: {problem}", path = .path.display())]
    Options {
        /// Volume.
        path: PathBuf,
        /// Problem.
        problem: String,
    },
    /// A file cannot be written, or its content would be destroyed.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The sandbox of this process does not permit to write the file.
    #[error(
        "{path}: the sandbox of the server does not permit this place; start the server with \
         --sandbox-allow and the file's folder, or name the folder in `sandbox_allow` of its \
         configuration",
        path = .path.display()
    )]
    Sandboxed {
        /// File.
        path: PathBuf,
    },
    /// The volume is being recorded already.
    #[error("a recording of the volume is running; end it with `stop_recording`")]
    Recorded,
    /// A trace ends early.
    #[error("{path}: cannot write: {source}; the trace ends there", path = .path.display())]
    Trace {
        /// Trace.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A text is not the JSON of a status.
    #[error("this is no status: {0}")]
    Json(#[from] serde_json::Error),
    /// A key file or a table file cannot be read.
    #[error(transparent)]
    Key(#[from] crate::keys::KeyError),
    /// A volume cannot be made.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The best settings cannot be found.
    #[error(transparent)]
    Tune(#[from] crate::tune::TuneError),
    /// A server that runs does not answer, or refuses.
    #[error(transparent)]
    Control(#[from] crate::ControlError),
    /// A volume on a server or a cluster cannot be examined from this machine.
    #[error(
        "{path}: the disks of a server or cluster are unknown here; run doctor on an NBD server \
         itself",
        path = .path.display()
    )]
    Remote {
        /// The name of the export or image.
        path: PathBuf,
    },
    /// The plaintext of a volume is no file system that can be read or mounted.
    #[error("{volume}: {problem}", volume = .volume.display())]
    Contents {
        /// First file or device of the volume.
        volume: PathBuf,
        /// Problem.
        problem: String,
    },
    /// A file in a volume cannot be read.
    #[error("{volume}:{path}: {problem}", volume = .volume.display(), path = .path.display())]
    InVolume {
        /// First file or device of the volume.
        volume: PathBuf,
        /// File in the volume.
        path: PathBuf,
        /// Problem.
        problem: String,
    },
    /// A volume cannot be mounted there, or a mount has failed.
    #[error("{path}: {problem}", path = .path.display())]
    Mount {
        /// Mount point.
        path: PathBuf,
        /// Problem.
        problem: String,
    },
    /// Programs use a mount that is to end.
    #[error("{path}: programs use the mount", path = .path.display())]
    MountBusy {
        /// Mount point.
        path: PathBuf,
        /// The answer of the system.
        problem: String,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The place of a workload is too small, of another kind, or cannot be opened.
    #[error("{place}: {problem}")]
    Place {
        /// Path, or memory.
        place: String,
        /// Problem.
        problem: String,
    },
    /// A workload would overwrite data, and `may_destroy` of the
    /// [`Target`](crate::bench::Target::may_destroy) or the
    /// [`Source`](crate::tune::Source::may_destroy) is false.
    #[error("{path}: has data that the workload would overwrite; `may_destroy` is false",
            path = .path.display())]
    WouldOverwrite {
        /// File, block device or volume.
        path: PathBuf,
    },
    /// The writer of [`Volume::copy_out`](crate::Volume::copy_out) has failed.
    #[error("cannot write the plaintext: {0}")]
    Writer(io::Error),
    /// A defect of the library, or a panic in a callback or target of the program.
    #[error("{}", defect(.targets))]
    Defect {
        /// The program's own targets that the volume may use.
        targets: Vec<&'static str>,
    },
    /// A workload cannot run, or one of its calls failed.
    #[error("{0}")]
    Workload(String),
}

impl Error {
    /// Whether the system has refused a file for lack of permission.
    pub(crate) fn is_permission(&self) -> bool {
        let is = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        match self {
            Self::Host(blockyard_host::Error::Io { source, .. })
            | Self::File { source, .. }
            | Self::Trace { source, .. } => is(source),
            Self::Output(OutputError { problem: OutputProblem::Io(error), .. }) => is(error),
            _ => false,
        }
    }

    /// Whether another passphrase may open the volume.
    #[must_use]
    pub fn is_wrong_key(&self) -> bool {
        use blockyard_crypt::Error as Crypt;
        let Self::Crypt { source, .. } = self else { return false };
        matches!(
            source,
            Crypt::WrongPassphrase { .. }
                | Crypt::NoTcrypt { .. }
                | Crypt::NoHidden { .. }
                | Crypt::NoBitlk { .. }
        )
    }

    /// Whether the start of a volume is that of BitLocker, and not of LUKS.
    #[must_use]
    pub fn is_bitlocker(&self) -> bool {
        use blockyard_crypt::Error as Crypt;
        let Self::Crypt { source, .. } = self else { return false };
        matches!(source, Crypt::OtherFormat(found) if found.is_bitlocker())
    }

    /// Whether the start of a volume is not LUKS, although it could be read.
    #[must_use]
    pub fn is_other_format(&self) -> bool {
        use blockyard_crypt::Error as Crypt;
        let Self::Crypt { source, .. } = self else { return false };
        matches!(source, Crypt::NotLuks | Crypt::OtherFormat(_) | Crypt::InPartition { .. })
    }

    /// Whether something is in use, or would be overwritten.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Recorded | Self::WouldOverwrite { .. } | Self::MountBusy { .. } => true,
            Self::Output(error) => error.is_busy(),
            Self::Format(FormatError::WouldDestroy { .. } | FormatError::Changed(_)) => true,
            // Another program has made it meanwhile.
            Self::Format(FormatError::Create { source, .. }) => {
                source.kind() == io::ErrorKind::AlreadyExists
            }
            Self::Host(error) => error.is_busy(),
            _ => false,
        }
    }

    pub(crate) fn crypt(path: &Path, source: blockyard_crypt::Error) -> Self {
        Self::Crypt { path: path.to_owned(), source }
    }

    pub(crate) fn contents(volume: &Volume, problem: impl Into<String>) -> Self {
        Self::Contents { volume: name_of(volume), problem: problem.into() }
    }

    pub(crate) fn mount(path: &Path, problem: impl Into<String>) -> Self {
        Self::Mount { path: path.to_owned(), problem: problem.into() }
    }

    pub(crate) fn options(path: &Path, problem: impl Into<String>) -> Self {
        Self::Options { path: path.to_owned(), problem: problem.into() }
    }

    pub(crate) fn place(place: &impl ToString, problem: impl Into<String>) -> Self {
        Self::Place { place: place.to_string(), problem: problem.into() }
    }

    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}

/// Turns a panic into an error, so that none unwinds into the program.
pub(crate) fn contained<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    contained_with(&[], call)
}

/// Like [`contained`], for a call that may enter these targets of the program.
pub(crate) fn contained_with<T>(
    targets: &[&'static str],
    call: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let defect = |_| Err(Error::Defect { targets: targets.to_vec() });
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(defect)
}

/// The text of a panic.
pub(crate) fn defect(targets: &[&'static str]) -> String {
    let names: Vec<String> = targets.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() {
        "a defect in blockyard; the message is on stderr".into()
    } else {
        format!(
            "a panic in the program's own target {}, or a defect in blockyard; the message is on \
             stderr",
            names.join(" or ")
        )
    }
}
