//! Handles to bytes. The engine never sees bytes; a world owns them and resolves the handle.

/// A range of bytes in a buffer that a world owns (`struct bio_vec`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufRef {
    /// Which of the world's buffers. Bounce slots of a shard count from zero, its lists of pages
    /// from [`BufRef::FIRST_LIST_SLOT`] on; the world numbers the others from
    /// [`BufRef::FIRST_WORLD_SLOT`] on.
    pub slot: u32,
    /// First byte in it.
    pub offset_bytes: u32,
    /// Length.
    pub len_bytes: u32,
}

impl BufRef {
    /// Slots below this are the shard's bounce slots.
    pub const FIRST_WORLD_SLOT: u32 = 1 << 16;
    /// Slots from here on are lists of pages: see [`crate::shard::Shard::segments`].
    pub const FIRST_LIST_SLOT: u32 = 1 << 31;
    /// "The place that the other half of a linked pair names": see [`crate::sq::Sqe::linked`].
    pub const LINKED_SLOT: u32 = u32::MAX;
    /// Bytes that read as zero and are never written; every offset is valid.
    pub const ZEROS_SLOT: u32 = u32::MAX - 1;

    /// No bytes: flushes, discards.
    pub const NONE: Self = Self { slot: Self::ZEROS_SLOT, offset_bytes: 0, len_bytes: 0 };

    /// The middle of a linked pair, `len_bytes` long.
    #[must_use]
    pub fn linked(len_bytes: u32) -> Self {
        Self { slot: Self::LINKED_SLOT, offset_bytes: 0, len_bytes }
    }

    /// Whether it is a list of pages.
    #[must_use]
    pub fn is_list(self) -> bool {
        (Self::FIRST_LIST_SLOT..Self::ZEROS_SLOT).contains(&self.slot)
    }

    /// Whether it is one of the world's own buffers.
    #[must_use]
    pub fn is_world(self) -> bool {
        (Self::FIRST_WORLD_SLOT..Self::FIRST_LIST_SLOT).contains(&self.slot)
    }

    /// `len_bytes` of zeros.
    #[must_use]
    pub fn zeros(len_bytes: u32) -> Self {
        Self { slot: Self::ZEROS_SLOT, offset_bytes: 0, len_bytes }
    }

    /// The part that starts `skip_bytes` in and is `len_bytes` long.
    ///
    /// # Panics
    /// When the part is not inside.
    #[must_use]
    pub fn part(self, skip_bytes: u32, len_bytes: u32) -> Self {
        assert!(skip_bytes <= self.len_bytes && len_bytes <= self.len_bytes - skip_bytes);
        Self { slot: self.slot, offset_bytes: self.offset_bytes + skip_bytes, len_bytes }
    }
}
