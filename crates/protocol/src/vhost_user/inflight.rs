//! Memory that records the requests in flight, so that the next server can take them up.

/// Length of what precedes the entries of a queue.
const HEADER_BYTES: u64 = 16;
/// Length of the entry of a descriptor.
const ENTRY_BYTES: u64 = 16;
/// Queues begin at multiples of it.
const ALIGN_BYTES: u64 = 64;

/// The memory of a front end: a queue of this size after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightArea {
    /// Length in its file.
    pub len_bytes: u64,
    /// Offset in its file.
    pub file_offset_bytes: u64,
    /// Number of queues.
    pub queues: u16,
    /// Size of their rings.
    pub ring_len: u16,
}

impl InflightArea {
    /// The area of queues of this size, at the start of a file.
    #[must_use]
    pub fn new(queues: u16, ring_len: u16) -> Self {
        let len_bytes = u64::from(queues) * queue_bytes(ring_len);
        Self { len_bytes, file_offset_bytes: 0, queues, ring_len }
    }

    /// Length of the part of one queue.
    #[must_use]
    pub fn queue_bytes(&self) -> u64 {
        queue_bytes(self.ring_len)
    }

    /// Whether its queues fit, and no end wraps.
    pub(super) fn is_sound(&self) -> bool {
        let end = self.file_offset_bytes.checked_add(self.len_bytes);
        let fits = u64::from(self.queues) * self.queue_bytes() <= self.len_bytes;
        fits && self.len_bytes > 0 && end.is_some_and(|end| end <= i64::MAX as u64)
    }
}

fn queue_bytes(ring_len: u16) -> u64 {
    (HEADER_BYTES + u64::from(ring_len) * ENTRY_BYTES).next_multiple_of(ALIGN_BYTES)
}
