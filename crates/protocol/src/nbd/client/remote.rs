//! The remote export: its properties according to the server, and the requests that it accepts.

use super::failure::{Failure, Violation};
use super::request::{Refusal, Request};
use crate::nbd::reply::ReplyMode;
use crate::nbd::request::Command;
use crate::nbd::wire::*;

/// Greatest minimum block of a valid export, from the specification.
const BLOCK_MIN_MAX_BYTES: u32 = 1 << 16;
/// The specification's default for servers without block size information.
const DEFAULT_BLOCK_PREFERRED_BYTES: u32 = 4096;
/// A READ may have to fit one chunk, whose 32-bit length includes 8 bytes for the offset.
const READ_MAX_BYTES: u64 = u32::MAX as u64 - 8;

/// An export according to its server.
// 16 fields: each is one fact of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Size of the disk; a multiple of `block_min_bytes`.
    pub size_bytes: u64,
    /// Whether writes, trims and zeroes are refused.
    pub read_only: bool,
    /// Whether FLUSH is offered. Otherwise the server is expected to write through.
    pub can_flush: bool,
    /// Whether FUA is offered.
    pub can_fua: bool,
    /// Whether TRIM is offered.
    pub can_trim: bool,
    /// Whether WRITE_ZEROES is offered, and NO_HOLE with it.
    pub can_write_zeroes: bool,
    /// Whether FAST_ZERO is offered; the answer may always be ENOTSUP.
    pub can_fast_zero: bool,
    /// Whether CACHE is offered.
    pub can_cache: bool,
    /// Whether a flush on one connection covers the writes of all: then several may be opened.
    pub multi_conn: bool,
    /// Hint for the I/O scheduler.
    pub rotational: bool,
    /// Whether `base:allocation` was selected, so that BLOCK_STATUS is available.
    pub allocation: bool,
    /// The negotiated form of replies.
    pub mode: ReplyMode,
    /// Whether the server gave its block sizes. Otherwise they are the specification's defaults,
    /// and a careful caller uses multiples of 512 bytes.
    pub block_sizes_known: bool,
    /// Granularity of requests: a power of two up to 64 KiB.
    pub block_min_bytes: u32,
    /// Granularity of efficient requests.
    pub block_preferred_bytes: u32,
    /// Longest payload of a READ or WRITE; `u32::MAX` without a limit.
    pub payload_max_bytes: u32,
}

/// The reason why a server's description of an export is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// A size beyond signed 64-bit offsets.
    #[error("its size, {0} bytes, is above 2^63")]
    Size(u64),
    /// A size that is not a multiple of the minimum block, so that the end is out of reach.
    #[error("its size, {size_bytes} bytes, is not a multiple of its minimum block, {block} bytes")]
    PartialBlock {
        /// The server's size.
        size_bytes: u64,
        /// The server's minimum block.
        block: u32,
    },
    /// Block sizes that the specification does not allow.
    #[error("its block sizes are invalid: minimum {min}, preferred {preferred}, maximum {max}")]
    BlockSizes {
        /// The server's minimum.
        min: u32,
        /// The server's preferred size.
        preferred: u32,
        /// The server's maximum.
        max: u32,
    },
}

/// Information about an export from the handshake.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Infos {
    /// Size and transmission flags.
    pub(super) export: Option<(u64, u16)>,
    /// Minimum, preferred and maximum.
    pub(super) block_sizes: Option<[u32; 3]>,
}

impl Remote {
    /// Checks the information, after the server has opened the export.
    pub(super) fn new(infos: &Infos, mode: ReplyMode, allocation: bool) -> Result<Self, Failure> {
        let (size_bytes, flags) = infos.export.ok_or(Violation::NoExportInfo)?;
        let defaults = [1, DEFAULT_BLOCK_PREFERRED_BYTES, DEFAULT_PAYLOAD_MAX_BYTES];
        let [min, preferred, max] = infos.block_sizes.unwrap_or(defaults);
        if !min.is_power_of_two()
            || min > BLOCK_MIN_MAX_BYTES
            || !preferred.is_power_of_two()
            || preferred < min
            || max < preferred
        {
            return Err(RemoteError::BlockSizes { min, preferred, max }.into());
        }
        if size_bytes > i64::MAX as u64 {
            return Err(RemoteError::Size(size_bytes).into());
        }
        if !size_bytes.is_multiple_of(u64::from(min)) {
            return Err(RemoteError::PartialBlock { size_bytes, block: min }.into());
        }
        // Without HAS_FLAGS the other flags have no meaning.
        let has = |flag: u16| flags & (FLAG_HAS_FLAGS | flag) == FLAG_HAS_FLAGS | flag;
        Ok(Self {
            size_bytes,
            read_only: has(FLAG_READ_ONLY),
            can_flush: has(FLAG_SEND_FLUSH),
            can_fua: has(FLAG_SEND_FUA),
            can_trim: has(FLAG_SEND_TRIM),
            can_write_zeroes: has(FLAG_SEND_WRITE_ZEROES),
            can_fast_zero: has(FLAG_SEND_WRITE_ZEROES) && has(FLAG_SEND_FAST_ZERO),
            can_cache: has(FLAG_SEND_CACHE),
            multi_conn: has(FLAG_CAN_MULTI_CONN),
            rotational: has(FLAG_ROTATIONAL),
            allocation,
            mode,
            block_sizes_known: infos.block_sizes.is_some(),
            block_min_bytes: min,
            block_preferred_bytes: preferred,
            payload_max_bytes: max,
        })
    }

    /// The longest request of a command, a multiple of the minimum block; 0 for FLUSH, which has no
    /// range. Longer requests must be split.
    pub fn len_max_bytes(&self, command: Command) -> u64 {
        let payload_max_bytes = u64::from(self.payload_max_bytes);
        let max_bytes = match command {
            Command::Read => payload_max_bytes.min(READ_MAX_BYTES),
            Command::Write => payload_max_bytes,
            Command::Flush => 0,
            _ if self.mode == ReplyMode::Extended => self.size_bytes,
            _ => u64::from(u32::MAX),
        };
        max_bytes & !(u64::from(self.block_min_bytes) - 1)
    }

    /// Refuses requests that are invalid for this export.
    pub(super) fn admit(&self, request: &Request) -> Result<(), Refusal> {
        self.admit_command(request.command)?;
        self.admit_flags(request)?;
        let Request { command, offset_bytes, len_bytes, .. } = *request;
        if command == Command::Flush {
            return if offset_bytes | len_bytes == 0 { Ok(()) } else { Err(Refusal::Range) };
        }
        if len_bytes == 0 {
            return Err(Refusal::Empty);
        }
        if offset_bytes > self.size_bytes || len_bytes > self.size_bytes - offset_bytes {
            return Err(Refusal::Range);
        }
        if (offset_bytes | len_bytes) & (u64::from(self.block_min_bytes) - 1) != 0 {
            return Err(Refusal::Unaligned(self.block_min_bytes));
        }
        match self.len_max_bytes(command) {
            max if len_bytes > max => Err(Refusal::TooLong(max)),
            _ => Ok(()),
        }
    }

    fn admit_command(&self, command: Command) -> Result<(), Refusal> {
        let (offered, name) = match command {
            Command::Read => return Ok(()),
            Command::Write | Command::Trim | Command::WriteZeroes if self.read_only => {
                return Err(Refusal::ReadOnly);
            }
            Command::Write => return Ok(()),
            Command::Flush => (self.can_flush, "flush"),
            Command::Trim => (self.can_trim, "trim"),
            Command::Cache => (self.can_cache, "cache"),
            Command::WriteZeroes => (self.can_write_zeroes, "write zeroes"),
            Command::BlockStatus => (self.allocation, "block status"),
        };
        if offered { Ok(()) } else { Err(Refusal::NotOffered(name)) }
    }

    fn admit_flags(&self, request: &Request) -> Result<(), Refusal> {
        let writes =
            matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
        let zeroes = request.command == Command::WriteZeroes;
        let status = request.command == Command::BlockStatus;
        for (set, belongs, offered, name) in [
            (request.fua, writes, self.can_fua, "FUA"),
            (request.no_hole, zeroes, true, "NO_HOLE"),
            (request.fast_zero, zeroes, self.can_fast_zero, "FAST_ZERO"),
            (request.req_one, status, true, "REQ_ONE"),
        ] {
            if set && !belongs {
                return Err(Refusal::Flag(name));
            }
            if set && !offered {
                return Err(Refusal::NotOffered(name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: u16 = 0x1fff & !FLAG_READ_ONLY;

    fn infos(size_bytes: u64, flags: u16, block_sizes: [u32; 3]) -> Infos {
        Infos { export: Some((size_bytes, flags)), block_sizes: Some(block_sizes) }
    }

    fn remote(mode: ReplyMode, flags: u16) -> Remote {
        Remote::new(&infos(8 << 30, flags, [512, 4096, 1 << 20]), mode, true).unwrap()
    }

    #[test]
    fn remote_of_senseless_block_sizes_is_refused() {
        let sizes_ok = |sizes: [u32; 3]| match Remote::new(
            &infos(1 << 20, 1, sizes),
            ReplyMode::Simple,
            false,
        ) {
            Ok(remote) => {
                let known = (remote.block_min_bytes, remote.block_preferred_bytes);
                assert_eq!((known.0, known.1, remote.payload_max_bytes), sizes.into());
                true
            }
            Err(failure) => {
                let [min, preferred, max] = sizes;
                let error = RemoteError::BlockSizes { min, preferred, max };
                assert_eq!(failure, Failure::Remote(error));
                false
            }
        };
        assert!(sizes_ok([1, 1, 1]) && sizes_ok([65536, 65536, 65536]));
        assert!(sizes_ok([512, 4096, u32::MAX]) && sizes_ok([512, 1 << 31, u32::MAX]));
        for sizes in [
            [0, 4096, 65536],
            [3, 4096, 65536],
            [1 << 17, 1 << 17, 1 << 20],
            [1, 0, 65536],
            [1, 5000, 65536],
            [4096, 512, 65536],
            [1, 4096, 4095],
            [0, 0, 0],
            [u32::MAX, u32::MAX, u32::MAX],
        ] {
            assert!(!sizes_ok(sizes), "{sizes:?}");
        }
    }

    #[test]
    fn remote_of_a_size_that_cannot_be_addressed_is_refused() {
        let of = |size_bytes, block| {
            Remote::new(&infos(size_bytes, 1, [block, 4096, 1 << 20]), ReplyMode::Simple, false)
                .map(|remote| remote.size_bytes)
        };
        assert_eq!(of(i64::MAX as u64, 1), Ok(i64::MAX as u64));
        assert_eq!(of(0, 512), Ok(0));
        assert_eq!(of(1 << 63, 1), Err(RemoteError::Size(1 << 63).into()));
        let partial = RemoteError::PartialBlock { size_bytes: 1000, block: 512 };
        assert_eq!(of(1000, 512), Err(partial.into()));
    }

    #[test]
    fn remote_without_has_flags_can_nothing_optional() {
        let nothing = remote(ReplyMode::Simple, EVERYTHING & !FLAG_HAS_FLAGS);
        let flags = [nothing.can_flush, nothing.can_trim, nothing.multi_conn, nothing.can_fua];
        assert_eq!(flags, [false; 4]);
        let fast = remote(ReplyMode::Simple, FLAG_HAS_FLAGS | FLAG_SEND_FAST_ZERO);
        assert!(!fast.can_fast_zero, "there are no zeroes that it could write");
    }

    #[test]
    fn limit_depends_on_command_form_and_block() {
        let simple = remote(ReplyMode::Simple, EVERYTHING);
        assert_eq!(simple.len_max_bytes(Command::Read), 1 << 20);
        assert_eq!(simple.len_max_bytes(Command::Trim), (1 << 32) - 512);
        assert_eq!(simple.len_max_bytes(Command::Flush), 0);
        let extended = remote(ReplyMode::Extended, EVERYTHING);
        assert_eq!(extended.len_max_bytes(Command::WriteZeroes), 8 << 30);
        for (block, read_max_bytes) in [(4096, (1 << 32) - 4096), (1, (1 << 32) - 9)] {
            let boundless = infos(8 << 30, 1, [block, 4096, u32::MAX]);
            let boundless = Remote::new(&boundless, ReplyMode::Extended, false).unwrap();
            assert_eq!(boundless.len_max_bytes(Command::Read), read_max_bytes);
        }
    }

    #[test]
    fn request_that_the_export_cannot_do_is_refused() {
        let can = remote(ReplyMode::Structured, EVERYTHING);
        let cannot = remote(ReplyMode::Structured, FLAG_HAS_FLAGS);
        let ro = remote(ReplyMode::Structured, EVERYTHING | FLAG_READ_ONLY);
        for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
            let request = Request::new(command, 512..1024);
            assert_eq!(can.admit(&request), Ok(()));
            assert_eq!(ro.admit(&request), Err(Refusal::ReadOnly));
            let fua = Request { fua: true, ..request };
            assert_eq!(can.admit(&fua), Ok(()));
            assert!(matches!(cannot.admit(&fua), Err(Refusal::NotOffered(_))));
        }
        for request in [
            Request::FLUSH,
            Request::new(Command::Trim, 0..512),
            Request::new(Command::Cache, 0..512),
            Request { fast_zero: true, ..Request::new(Command::WriteZeroes, 0..512) },
        ] {
            assert_eq!(can.admit(&request), Ok(()));
            assert!(matches!(cannot.admit(&request), Err(Refusal::NotOffered(_))));
        }
        let status = Request::new(Command::BlockStatus, 0..512);
        let blind = Remote { allocation: false, ..can.clone() };
        assert_eq!(blind.admit(&status), Err(Refusal::NotOffered("block status")));
        for (request, name) in [
            (Request { fua: true, ..Request::new(Command::Read, 0..512) }, "FUA"),
            (Request { no_hole: true, ..Request::new(Command::Write, 0..512) }, "NO_HOLE"),
            (Request { fast_zero: true, ..Request::new(Command::Trim, 0..512) }, "FAST_ZERO"),
            (Request { req_one: true, ..Request::FLUSH }, "REQ_ONE"),
        ] {
            assert_eq!(can.admit(&request), Err(Refusal::Flag(name)));
        }
    }

    #[test]
    fn request_outside_the_limits_is_refused() {
        let export = remote(ReplyMode::Structured, EVERYTHING);
        let size = export.size_bytes;
        let ask = |range| export.admit(&Request::new(Command::Read, range));
        assert_eq!(ask(size - 512..size), Ok(()));
        assert_eq!(ask(size - 512..size + 512), Err(Refusal::Range));
        assert_eq!(ask(u64::MAX - 511..u64::MAX), Err(Refusal::Range));
        assert_eq!(ask(0..u64::MAX), Err(Refusal::Range));
        assert_eq!(ask(512..512), Err(Refusal::Empty));
        assert_eq!(ask(1..513), Err(Refusal::Unaligned(512)));
        assert_eq!(ask(1..2), Err(Refusal::Unaligned(512)));
        assert_eq!(ask(0..100), Err(Refusal::Unaligned(512)));
        assert_eq!(ask(0..1 << 20), Ok(()));
        assert_eq!(ask(0..(1 << 20) + 512), Err(Refusal::TooLong(1 << 20)));
        for offset_bytes in [0, 512] {
            let flush = Request { offset_bytes, len_bytes: 512, ..Request::FLUSH };
            assert_eq!(export.admit(&flush), Err(Refusal::Range));
        }
    }
}
