//! What a client asks for, after every check: [`Request`].

use core::fmt;

use super::wire::*;

/// The commands that reach a world. DISC does not: it is [`super::Event::Closed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Data to the client.
    Read,
    /// Data from the client; [`super::Event::Payload`] follows.
    Write,
    /// Everything that was answered before must be on stable storage.
    Flush,
    /// The range is not needed any more.
    Trim,
    /// The range will be needed soon.
    Cache,
    /// The range must read as zeroes.
    WriteZeroes,
    /// Which parts of the range are holes or zeroes.
    BlockStatus,
}

impl Command {
    /// The number on the wire.
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

/// One request, within the export and allowed there. `len_bytes` is 0 only for FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's name for the request, copied into its reply. Not necessarily unique.
    pub cookie: u64,
    /// What to do.
    pub command: Command,
    /// Where.
    pub offset_bytes: u64,
    /// How much: at most the export's payload limit for READ and WRITE, else up to its size.
    pub len_bytes: u64,
    /// What the command writes must be on stable storage before the reply. Clients may set it on
    /// commands that write nothing.
    pub fua: bool,
    /// WRITE_ZEROES: the range must stay allocated.
    pub no_hole: bool,
    /// WRITE_ZEROES: answer ENOTSUP at once rather than writing zeroes slowly.
    pub fast_zero: bool,
    /// READ: one content chunk only ([`super::Pieces::Ordered`]).
    pub dont_fragment: bool,
    /// BLOCK_STATUS: one extent only ([`super::Session::block_status`] sees to it).
    pub req_one: bool,
}

/// The error numbers that may cross the wire.
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
    /// The number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The error of a number on the wire. An unexpected one counts as EINVAL, as the specification
    /// wants it.
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

    /// The message for people in an error chunk.
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
    use super::*;

    #[test]
    fn error_is_understood_by_its_number_and_a_strange_one_is_invalid() {
        use Errno::{Inval, Io, NoMem, NoSpc, NotSup, Overflow, Perm, Shutdown};
        for errno in [Perm, Io, NoMem, Inval, NoSpc, Overflow, NotSup, Shutdown] {
            assert_eq!(Errno::from_code(errno.code()), errno);
        }
        assert_eq!([2, 107, u32::MAX].map(Errno::from_code), [Inval; 3]);
    }
}
