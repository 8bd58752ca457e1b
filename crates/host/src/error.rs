//! Errors of the real world: the problem, the place, the remedy.

use std::fmt::Display;
use std::io;
use std::path::Path;

use blockyard_crypt::cipher::CipherError;
use blockyard_engine::dm::line::TableError;

use crate::durability::Loss;

/// Error of opening, serving or copying a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on a file or socket failed.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// File or socket.
        path: String,
        /// Failed system call or step.
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another program has the volume open in a way that excludes ours, or the kernel uses it.
    #[error(
        "{path}: the file or device is in use: another program or another export has it open, or \
         it is mounted or part of another device; end that use first (programs that only read it \
         may use it together)"
    )]
    InUse {
        /// File.
        path: String,
    },
    /// Another program writes the LUKS header.
    #[error(
        "{path}: another program, perhaps cryptsetup, holds the lock of the LUKS header; try again \
         when it has ended"
    )]
    HeaderLocked {
        /// The file or device.
        path: String,
    },
    /// Another server listens on the socket, or is about to.
    #[error("{path}: {problem}")]
    SocketInUse {
        /// Socket.
        path: String,
        /// Problem and remedy.
        problem: &'static str,
    },
    /// The file does not fit the header or table.
    #[error("{path}: {problem}")]
    Volume {
        /// File.
        path: String,
        /// Problem.
        problem: String,
    },
    /// An invalid parameter, regardless of the volume.
    #[error("{of}: {problem}")]
    Parameter {
        /// Subject of the option: the cipher workers, or the path of a socket.
        of: String,
        /// Problem.
        problem: String,
    },
    /// The URI of a remote disk is invalid; the text has the right form.
    #[error("{0}")]
    Uri(String),
    /// The cipher is not supported or its key does not fit.
    #[error(transparent)]
    Cipher(#[from] CipherError),
    /// The dm table is wrong.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A flush or FUA write has failed: what was acknowledged before may be lost.
    #[error("{0}; acknowledged writes may be lost")]
    Lost(Loss),
    /// The plaintext of a volume cannot be written to its destination.
    #[error("cannot write the plaintext: {0}")]
    Output(io::Error),
    /// A copy ended early.
    #[error("{0}")]
    Copy(String),
}

impl Error {
    /// An [`Error::Io`].
    #[must_use]
    pub fn io(path: &Path, action: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.display().to_string(), action, source: source.into() }
    }

    /// Whether another program has the file, its header or the socket.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::InUse { .. } | Self::HeaderLocked { .. } | Self::SocketInUse { .. })
    }

    /// An [`Error::SocketInUse`].
    pub(crate) fn socket_in_use(path: &Path, problem: &'static str) -> Self {
        Self::SocketInUse { path: path.display().to_string(), problem }
    }

    /// An [`Error::Volume`].
    #[must_use]
    pub fn volume(path: &Path, problem: impl Into<String>) -> Self {
        Self::Volume { path: path.display().to_string(), problem: problem.into() }
    }

    /// An [`Error::Parameter`].
    #[must_use]
    pub fn parameter(of: impl Display, problem: impl Into<String>) -> Self {
        Self::Parameter { of: of.to_string(), problem: problem.into() }
    }
}
