//! Why a volume could not be opened or served.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::format::FormatError;

/// Why a volume could not be opened or served. Reads and writes fail with [`std::io::Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The header, the key or an option of the volume.
    #[error("{path}: {source}", path = .path.display())]
    Crypt {
        /// The volume, or its detached header.
        path: PathBuf,
        /// The cause.
        source: blockyard_crypt::Error,
    },
    /// A file, a device, a remote server, a table, a cipher or a socket.
    #[error(transparent)]
    Host(#[from] blockyard_host::Error),
    /// A device-mapper table, or a device of it.
    #[error("{path}: {source}", path = .path.display())]
    Table {
        /// The file with the table.
        path: PathBuf,
        /// The cause.
        source: blockyard_host::Error,
    },
    /// The volume is of another kind than the options ask for, or they exclude each other.
    #[error("{path}: {problem}", path = .path.display())]
    Options {
        /// The volume.
        path: PathBuf,
        /// In plain words.
        problem: String,
    },
    /// A file cannot be written, or would harm what it holds.
    #[error(transparent)]
    Output(#[from] crate::output::OutputError),
    /// The volume is being recorded already.
    #[error("the volume is being recorded already; end that with `stop_recording`")]
    Recorded,
    /// A trace ends early.
    #[error("{path}: cannot write: {source}; the trace ends there", path = .path.display())]
    Trace {
        /// The trace.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
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
    /// A volume on an NBD server cannot be examined from this machine.
    #[error(
        "{path}: an NBD server shows neither its file nor its disk; run doctor where they are",
        path = .path.display()
    )]
    Remote {
        /// The URI of the export.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The place of a workload is too small, of another kind, or cannot be opened.
    #[error("{place}: {problem}")]
    Place {
        /// A path, or memory.
        place: String,
        /// In plain words.
        problem: String,
    },
    /// A workload would overwrite data, and [`Target::may_destroy`](crate::bench::Target) is
    /// false.
    #[error("{path}: has data that the workload would overwrite; `may_destroy` is false",
            path = .path.display())]
    WouldOverwrite {
        /// The file or block device.
        path: PathBuf,
    },
    /// A block device is in use.
    #[error("{path}: is in use: mounted, swap, or part of another device; stop that first",
            path = .path.display())]
    Busy {
        /// The block device.
        path: PathBuf,
    },
    /// The writer of [`Volume::copy_out`](crate::Volume::copy_out) has failed.
    #[error("cannot write the plaintext: {0}")]
    Writer(std::io::Error),
    /// A defect of the library, or a panic in a callback of the program.
    #[error("a defect in blockyard; the message is on stderr")]
    Defect,
    /// A workload cannot run, or a call of it has failed.
    #[error("{0}")]
    Workload(String),
}

impl Error {
    /// Whether another passphrase may open the volume.
    #[must_use]
    pub fn is_wrong_key(&self) -> bool {
        matches!(self, Self::Crypt { source: blockyard_crypt::Error::WrongPassphrase { .. }, .. })
    }

    /// Whether something is in use, or would be overwritten.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        use blockyard_host::Error as Host;
        match self {
            Self::Recorded | Self::WouldOverwrite { .. } | Self::Busy { .. } => true,
            Self::Output(error) => error.is_busy(),
            Self::Format(error) => matches!(error, FormatError::WouldDestroy { .. }),
            Self::Host(error) => matches!(error, Host::InUse { .. } | Host::HeaderLocked { .. }),
            _ => false,
        }
    }

    pub(crate) fn crypt(path: &Path, source: blockyard_crypt::Error) -> Self {
        Self::Crypt { path: path.to_owned(), source }
    }

    pub(crate) fn options(path: &Path, problem: impl Into<String>) -> Self {
        Self::Options { path: path.to_owned(), problem: problem.into() }
    }

    pub(crate) fn place(place: &impl ToString, problem: impl Into<String>) -> Self {
        Self::Place { place: place.to_string(), problem: problem.into() }
    }

    pub(crate) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}

/// Turns a panic into an error, so that none unwinds into the program.
pub(crate) fn contained<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Error::Defect))
}
