//! Layout of messages.

use alloc::vec::Vec;

/// Length of a message's header.
pub const HEADER_BYTES: usize = 12;
/// Limit of a body: the memory table, and the whole configuration, are shorter.
pub const BODY_MAX_BYTES: usize = 512;
/// Regions of one memory table; a message carries a descriptor for each.
pub const MEMORY_REGIONS_MAX: usize = 8;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// Numbers of messages.
pub(super) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_LOG_BASE: u32 = 6;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
    pub(crate) const SET_STATUS: u32 = 39;
    pub(crate) const GET_STATUS: u32 = 40;
}

/// Number of this side's message: the configuration has changed.
const CONFIG_CHANGE_MSG: u32 = 2;

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub(super) request: u32,
    pub(super) flags: u32,
    pub(super) len_bytes: u32,
}

impl Header {
    pub(super) fn of(bytes: [u8; HEADER_BYTES]) -> Self {
        let mut body = Body(&bytes);
        let mut word = || body.u32().expect("a header has three words");
        Self { request: word(), flags: word(), len_bytes: word() }
    }

    /// Length of the body.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.len_bytes as usize
    }

    pub(super) fn is_request(&self) -> bool {
        self.flags & VERSION_MASK == VERSION && self.flags & FLAG_REPLY == 0
    }

    pub(super) fn needs_reply(&self) -> bool {
        self.flags & FLAG_NEED_REPLY != 0
    }

    /// Appends a reply with this body.
    pub(super) fn reply(&self, body: &[u8], out: &mut Vec<u8>) {
        let len = u32::try_from(body.len()).expect("a reply is short");
        for word in [self.request, VERSION | FLAG_REPLY, len] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(body);
    }
}

/// This side's message that the configuration has changed. It asks for no reply, so that a front
/// end that sends none holds nothing up.
#[must_use]
pub fn config_change() -> [u8; HEADER_BYTES] {
    let word = u128::from(CONFIG_CHANGE_MSG) | u128::from(VERSION) << 32;
    *word.to_le_bytes().first_chunk().expect("a header is shorter")
}

/// The rest of a body.
#[derive(Clone, Copy)]
pub(super) struct Body<'a>(pub(super) &'a [u8]);

impl Body<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn region(&mut self) -> Option<MemoryRegion> {
        Some(MemoryRegion {
            guest_addr: self.u64()?,
            len_bytes: self.u64()?,
            front_end_addr: self.u64()?,
            file_offset_bytes: self.u64()?,
        })
    }
}

/// A region of guest memory, in a file whose descriptor came with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Address in the guest, which descriptors use.
    pub guest_addr: u64,
    /// Length, never zero. No address or offset of the region wraps.
    pub len_bytes: u64,
    /// Address in the front end, which rings use.
    pub front_end_addr: u64,
    /// Offset of the region in its file.
    pub file_offset_bytes: u64,
}

impl MemoryRegion {
    /// Whether it has bytes and no end of it wraps. An offset in a file is signed.
    pub(super) fn is_sound(&self) -> bool {
        let ends =
            |start: u64, max: u64| start.checked_add(self.len_bytes).is_some_and(|end| end <= max);
        self.len_bytes > 0
            && ends(self.guest_addr, u64::MAX)
            && ends(self.front_end_addr, u64::MAX)
            && ends(self.file_offset_bytes, i64::MAX as u64)
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let meet =
            |own: u64, others: u64| own < others + other.len_bytes && others < own + self.len_bytes;
        meet(self.guest_addr, other.guest_addr) || meet(self.front_end_addr, other.front_end_addr)
    }

    /// Whether both are the same memory of the guest and the front end.
    pub(super) fn is(&self, other: &Self) -> bool {
        let key = |region: &Self| (region.guest_addr, region.front_end_addr, region.len_bytes);
        key(self) == key(other)
    }
}
