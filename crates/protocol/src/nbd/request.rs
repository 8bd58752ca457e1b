//! A client's request, after all checks: [`Request`].

use core::fmt;

use super::wire::*;

/// Commands that reach a world. DISC becomes [`super::Event::Closed`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Send data to the client.
    Read,
    /// Write data from the client; [`super::Event::Payload`] follows.
    Write,
    /// All acknowledged writes must be on stable storage.
    Flush,
    /// The range is not needed any more.
    Trim,
    /// The range will be needed soon.
    Cache,
    /// The range must read as zeroes.
    WriteZeroes,
    /// Report which parts of the range are holes or zeroes.
    BlockStatus,
}

impl Command {
    /// Number on the wire.
    pub(super) const fn code(self) -> u16 {
        match self {
            Self::Read => CMD_READ,
            Self::Write => CMD_WRITE,
            Self::Flush => CMD_FLUSH,
            Self::Trim => CMD_TRIM,
            Self::Cache => CMD_CACHE,
            Self::WriteZeroes => CMD_WRITE_ZEROES,
            Self::BlockStatus => CMD_BLOCK_STATUS,
        }
    }
}

/// Metadata contexts: those that a client has selected for its export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contexts {
    /// `base:allocation`.
    pub allocation: bool,
    /// `qemu:dirty-bitmap:NAME`, with the name of the export's bitmap.
    pub dirty: bool,
}

impl Contexts {
    /// Neither.
    pub const NONE: Self = Self { allocation: false, dirty: false };
}

/// A valid request within the export. `len_bytes` is 0 only for FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's name for the request, copied into its reply. Not necessarily unique.
    pub cookie: u64,
    /// Command.
    pub command: Command,
    /// First byte.
    pub offset_bytes: u64,
    /// Length: at most the export's payload limit for READ and WRITE, otherwise up to its size.
    pub len_bytes: u64,
    /// The written data must be on stable storage before the reply. Clients may set it on commands
    /// that write nothing.
    pub fua: bool,
    /// WRITE_ZEROES: the range must stay allocated.
    pub no_hole: bool,
    /// WRITE_ZEROES: fail with ENOTSUP at once rather than write zeroes slowly.
    pub fast_zero: bool,
    /// READ: one content chunk only ([`super::Pieces::Ordered`]).
    pub dont_fragment: bool,
    /// BLOCK_STATUS: one extent only ([`super::Session::block_status`] enforces it).
    pub req_one: bool,
    /// BLOCK_STATUS: the contexts to report, at least one.
    pub contexts: Contexts,
}

/// Error numbers of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// Operation not permitted: a write on a read-only export.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// Cannot allocate memory. A server should not return it if at all possible.
    NoMem = 12,
    /// Invalid argument.
    Inval = 22,
    /// No space left on device; also EDQUOT and EFBIG.
    NoSpc = 28,
    /// Value too large.
    Overflow = 75,
    /// Operation not supported. Only for WRITE_ZEROES with FAST_ZERO.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl Errno {
    /// Number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The error of a number on the wire. An unknown number counts as EINVAL, by the specification.
    pub(super) const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Perm,
            5 => Self::Io,
            12 => Self::NoMem,
            28 => Self::NoSpc,
            75 => Self::Overflow,
            95 => Self::NotSup,
            108 => Self::Shutdown,
            _ => Self::Inval,
        }
    }

    /// Message for users in an error chunk.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Perm => "operation not permitted",
            Self::Io => "input/output error",
            Self::NoMem => "out of memory",
            Self::Inval => "invalid request",
            Self::NoSpc => "no space left",
            Self::Overflow => "request too large",
            Self::NotSup => "not supported",
            Self::Shutdown => "server is shutting down",
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn error_is_understood_by_its_number_and_a_strange_one_is_invalid() {
        use Errno::{Inval, Io, NoMem, NoSpc, NotSup, Overflow, Perm, Shutdown};
        for errno in [Perm, Io, NoMem, Inval, NoSpc, Overflow, NotSup, Shutdown] {
            assert_eq!(Errno::from_code(errno.code()), errno);
        }
        assert_eq!([2, 107, u32::MAX].map(Errno::from_code), [Inval; 3]);
    }

    #[test]
    fn error_is_shown_in_words() {
        assert_eq!(Errno::NoSpc.to_string(), "no space left");
    }
}
