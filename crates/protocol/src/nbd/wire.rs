//! Numbers of the protocol, under the specification's names (without the prefix `NBD_`), and
//! functions to read and write them. All numbers are big-endian.

use alloc::vec::Vec;

/// `INIT_PASSWD`, "NBDMAGIC": the first eight bytes of every server.
pub(super) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": the server speaks newstyle; also the client's magic before every option.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// `cliserv_magic`: the server speaks oldstyle, which has no options.
pub(super) const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Magic before every reply to an option.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub(super) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

// Handshake flags (server) and client flags have the same two bits.
pub(super) const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub(super) const FLAG_NO_ZEROES: u16 = 1 << 1;

// Transmission flags. Bit 9 (RESIZE) is experimental and not supported.
pub(super) const FLAG_HAS_FLAGS: u16 = 1 << 0;
pub(super) const FLAG_READ_ONLY: u16 = 1 << 1;
pub(super) const FLAG_SEND_FLUSH: u16 = 1 << 2;
pub(super) const FLAG_SEND_FUA: u16 = 1 << 3;
pub(super) const FLAG_ROTATIONAL: u16 = 1 << 4;
pub(super) const FLAG_SEND_TRIM: u16 = 1 << 5;
pub(super) const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(super) const FLAG_SEND_DF: u16 = 1 << 7;
pub(super) const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
pub(super) const FLAG_SEND_CACHE: u16 = 1 << 10;
pub(super) const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;
pub(super) const FLAG_BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;

pub(super) const OPT_EXPORT_NAME: u32 = 1;
pub(super) const OPT_ABORT: u32 = 2;
pub(super) const OPT_LIST: u32 = 3;
pub(super) const OPT_STARTTLS: u32 = 5;
pub(super) const OPT_INFO: u32 = 6;
pub(super) const OPT_GO: u32 = 7;
pub(super) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(super) const OPT_LIST_META_CONTEXT: u32 = 9;
pub(super) const OPT_SET_META_CONTEXT: u32 = 10;
pub(super) const OPT_EXTENDED_HEADERS: u32 = 11;

pub(super) const REP_ACK: u32 = 1;
pub(super) const REP_SERVER: u32 = 2;
pub(super) const REP_INFO: u32 = 3;
pub(super) const REP_META_CONTEXT: u32 = 4;
/// Set in every reply type that is an error.
pub(super) const REP_ERROR: u32 = 1 << 31;
pub(super) const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
pub(super) const REP_ERR_POLICY: u32 = (1 << 31) + 2;
pub(super) const REP_ERR_INVALID: u32 = (1 << 31) + 3;
pub(super) const REP_ERR_PLATFORM: u32 = (1 << 31) + 4;
pub(super) const REP_ERR_TLS_REQD: u32 = (1 << 31) + 5;
pub(super) const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
pub(super) const REP_ERR_SHUTDOWN: u32 = (1 << 31) + 7;
pub(super) const REP_ERR_BLOCK_SIZE_REQD: u32 = (1 << 31) + 8;
pub(super) const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;
pub(super) const REP_ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;

pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_NAME: u16 = 1;
pub(super) const INFO_DESCRIPTION: u16 = 2;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

pub(super) const CMD_READ: u16 = 0;
pub(super) const CMD_WRITE: u16 = 1;
pub(super) const CMD_DISC: u16 = 2;
pub(super) const CMD_FLUSH: u16 = 3;
pub(super) const CMD_TRIM: u16 = 4;
pub(super) const CMD_CACHE: u16 = 5;
pub(super) const CMD_WRITE_ZEROES: u16 = 6;
pub(super) const CMD_BLOCK_STATUS: u16 = 7;

pub(super) const CMD_FLAG_FUA: u16 = 1 << 0;
pub(super) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub(super) const CMD_FLAG_DF: u16 = 1 << 2;
pub(super) const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub(super) const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;
pub(super) const CMD_FLAG_PAYLOAD_LEN: u16 = 1 << 5;

pub(super) const REPLY_FLAG_DONE: u16 = 1 << 0;
pub(super) const REPLY_TYPE_NONE: u16 = 0;
pub(super) const REPLY_TYPE_OFFSET_DATA: u16 = 1;
pub(super) const REPLY_TYPE_OFFSET_HOLE: u16 = 2;
pub(super) const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
pub(super) const REPLY_TYPE_BLOCK_STATUS_EXT: u16 = 6;
/// Set in every chunk type that is an error.
pub(super) const REPLY_TYPE_IS_ERROR: u16 = 1 << 15;
pub(super) const REPLY_TYPE_ERROR: u16 = (1 << 15) + 1;
pub(super) const REPLY_TYPE_ERROR_OFFSET: u16 = (1 << 15) + 2;

pub(super) const STATE_HOLE: u32 = 1 << 0;
pub(super) const STATE_ZERO: u32 = 1 << 1;
/// Of QEMU's contexts (`docs/interop/nbd.rst`).
pub(super) const STATE_DIRTY: u32 = 1 << 0;

/// Length of the protocol's longest string: export names, queries, messages.
pub(super) const STRING_MAX_BYTES: usize = 4096;
/// Payload that a server without advertised block sizes should accept.
pub(super) const DEFAULT_PAYLOAD_MAX_BYTES: u32 = 1 << 25;

/// The big-endian number at `at`. Callers pass arrays, so the bound is checked at compile time.
#[inline(always)]
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// See [`be16`].
#[inline(always)]
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// See [`be16`].
#[inline(always)]
pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    (u64::from(be32(bytes, at)) << 32) | u64::from(be32(bytes, at + 4))
}

/// Appends numbers in wire order.
pub(super) trait Put {
    fn put16(&mut self, value: u16);
    fn put32(&mut self, value: u32);
    fn put64(&mut self, value: u64);
}

impl Put for Vec<u8> {
    #[inline]
    fn put16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    #[inline]
    fn put32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    #[inline]
    fn put64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }
}
