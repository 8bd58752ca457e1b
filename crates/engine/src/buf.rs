//! Handles to buffers. The engine never sees bytes; a world owns them and resolves the handle.

/// A range of bytes in a buffer of the world (`struct bio_vec`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufRef {
    /// Number of the buffer. Bounce slots of a shard count from zero, its page lists from
    /// [`BufRef::FIRST_LIST_SLOT`] on, the world's other buffers from [`BufRef::FIRST_WORLD_SLOT`]
    /// on.
    pub slot: u32,
    /// First byte in the buffer.
    pub offset_bytes: u32,
    /// Length.
    pub len_bytes: u32,
}

impl BufRef {
    /// Slots below this are the shard's bounce slots.
    pub const FIRST_WORLD_SLOT: u32 = 1 << 16;
    /// Slots from here on are page lists: see [`crate::shard::Shard::segments`].
    pub const FIRST_LIST_SLOT: u32 = 1 << 31;
    /// The place named by the other half of a linked pair: see [`crate::sq::Sqe::linked`].
    pub const LINKED_SLOT: u32 = u32::MAX;
    /// A read-only buffer of zeroes; every offset is valid.
    pub const ZEROS_SLOT: u32 = u32::MAX - 1;

    /// No buffer: flushes, discards.
    pub const NONE: Self = Self { slot: Self::ZEROS_SLOT, offset_bytes: 0, len_bytes: 0 };

    /// The intermediate buffer of a linked pair, `len_bytes` long.
    #[must_use]
    pub fn linked(len_bytes: u32) -> Self {
        Self { slot: Self::LINKED_SLOT, offset_bytes: 0, len_bytes }
    }

    /// Whether the buffer is a page list.
    #[must_use]
    pub fn is_list(self) -> bool {
        (Self::FIRST_LIST_SLOT..Self::ZEROS_SLOT).contains(&self.slot)
    }

    /// Whether the buffer is the world's own.
    #[must_use]
    pub fn is_world(self) -> bool {
        (Self::FIRST_WORLD_SLOT..Self::FIRST_LIST_SLOT).contains(&self.slot)
    }

    /// `len_bytes` of zeroes.
    #[must_use]
    pub fn zeros(len_bytes: u32) -> Self {
        Self { slot: Self::ZEROS_SLOT, offset_bytes: 0, len_bytes }
    }

    /// The part from `skip_bytes` on, `len_bytes` long.
    ///
    /// # Panics
    /// When the part is not inside.
    #[must_use]
    pub fn part(self, skip_bytes: u32, len_bytes: u32) -> Self {
        assert!(skip_bytes <= self.len_bytes && len_bytes <= self.len_bytes - skip_bytes);
        Self { slot: self.slot, offset_bytes: self.offset_bytes + skip_bytes, len_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_of_one_kind() {
        let slot = |slot| BufRef { slot, ..BufRef::zeros(512) };
        let kinds = |buf: BufRef| (buf.is_world(), buf.is_list());
        let bounce = [slot(0), slot(BufRef::FIRST_WORLD_SLOT - 1)];
        let world = [slot(BufRef::FIRST_WORLD_SLOT), slot(BufRef::FIRST_LIST_SLOT - 1)];
        let lists = [slot(BufRef::FIRST_LIST_SLOT), slot(BufRef::ZEROS_SLOT - 1)];
        let of_nobody = [BufRef::NONE, BufRef::zeros(512), BufRef::linked(512)];
        assert_eq!(bounce.map(kinds), [(false, false); 2]);
        assert_eq!(world.map(kinds), [(true, false); 2]);
        assert_eq!(lists.map(kinds), [(false, true); 2]);
        assert_eq!(of_nobody.map(kinds), [(false, false); 3]);
        assert_ne!(BufRef::zeros(512), BufRef::linked(512));
    }

    #[test]
    fn part_of_a_part_is_counted_from_the_start_of_the_slot() {
        let buf = BufRef { slot: 7, offset_bytes: 1024, len_bytes: 4096 };
        let part = BufRef { slot: 7, offset_bytes: 1024 + 512 + 1536, len_bytes: 512 };
        assert_eq!(buf.part(512, 2048).part(1536, 512), part);
        assert_eq!(buf.part(0, 4096), buf);
    }

    #[test]
    #[should_panic(expected = "skip_bytes")]
    fn part_that_is_not_inside_is_a_programmer_error() {
        let _ = BufRef::zeros(512).part(256, 257);
    }
}
