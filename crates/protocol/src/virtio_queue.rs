//! Descriptor chains of a split virtqueue, as a sans-IO walk: descriptors in, buffers out.
//!
//! ```text
//! ring:  header ─> data ─> status          or one descriptor that names a table of its own
//!        └ place ─ descriptor ─> buffer, next place ─ descriptor ─> …
//! ```
//! A world reads each descriptor once, at the place that the walk names, and passes the copy. The
//! guest may change the ring meanwhile: the walk sees only copies.

use alloc::vec::Vec;

/// Length of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 16;
/// Limit of the descriptors of a chain. An indirect table may be longer than its ring: QEMU's ring
/// has 128 entries and its longest request 256.
pub const CHAIN_MAX: u32 = 1024;

const FLAG_NEXT: u16 = 1;
const FLAG_WRITE: u16 = 2;
const FLAG_INDIRECT: u16 = 4;

/// A copy of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    addr: u64,
    len_bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    /// Decodes a descriptor.
    #[must_use]
    pub fn of(bytes: [u8; DESCRIPTOR_BYTES as usize]) -> Self {
        let word = u128::from_le_bytes(bytes);
        Self {
            addr: word as u64,
            len_bytes: (word >> 64) as u32,
            flags: (word >> 96) as u16,
            next: (word >> 112) as u16,
        }
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The place of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the ring's table, at an index below its size.
    Ring(u16),
    /// In guest memory, at this address.
    Guest(u64),
}

/// A range of guest memory. It was not compared with the memory that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Guest address of its first byte.
    pub addr: u64,
    /// Length; `addr + len_bytes` does not wrap.
    pub len_bytes: u32,
}

/// A chain that breaks the rules. Its queue must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainFault {
    /// An index outside of the table.
    #[error("descriptor {index} of a table of {len} does not exist")]
    Index {
        /// The index.
        index: u32,
        /// Length of the table.
        len: u32,
    },
    /// More descriptors than a table has, so a loop; or more than the limit.
    #[error("a chain has more than {0} descriptors")]
    TooLong(u32),
    /// An indirect descriptor in an indirect table.
    #[error("an indirect table names another one")]
    Nested,
    /// An indirect descriptor without the feature.
    #[error("an indirect table was not negotiated")]
    NotNegotiated,
    /// An indirect descriptor with a successor.
    #[error("a descriptor follows an indirect table")]
    NextAndIndirect,
    /// An indirect table of no or of broken descriptors.
    #[error("an indirect table has {0} bytes, which is no positive multiple of 16")]
    TableLength(u32),
    /// A range that wraps around.
    #[error("a buffer at {0:#x} wraps around the end of the address space")]
    Wraps(u64),
    /// A readable buffer behind a writable one.
    #[error("a readable buffer follows a writable one")]
    Order,
    /// Fewer readable bytes than a header.
    #[error("a chain has no room for a header")]
    NoHeader,
    /// No writable byte.
    #[error("a chain has no room for a status")]
    NoStatus,
}

/// The buffers of a chain.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    /// Buffers that the device reads.
    pub readable: Vec<Span>,
    /// Buffers that the device writes.
    pub writable: Vec<Span>,
}

impl Chain {
    /// Removes all buffers, and keeps the memory.
    pub fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
    }

    /// Length of all readable buffers.
    #[must_use]
    pub fn readable_bytes(&self) -> u64 {
        total(&self.readable)
    }

    /// Length of all writable buffers.
    #[must_use]
    pub fn writable_bytes(&self) -> u64 {
        total(&self.writable)
    }
}

fn total(spans: &[Span]) -> u64 {
    spans.iter().map(|span| u64::from(span.len_bytes)).sum()
}

/// An indirect table.
#[derive(Clone, Copy, Debug)]
struct Table {
    addr: u64,
    len: u32,
}

impl Table {
    fn place(self, index: u32) -> Result<Place, ChainFault> {
        if index >= self.len {
            return Err(ChainFault::Index { index, len: self.len });
        }
        // It does not wrap: the table's range was checked.
        Ok(Place::Guest(self.addr + u64::from(index) * DESCRIPTOR_BYTES))
    }
}

/// A walk along one chain.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    ring_len: u16,
    may_be_indirect: bool,
    table: Option<Table>,
    /// Descriptors of the present table that may follow.
    left: u32,
    place: Place,
}

impl Walk {
    /// A walk that starts at `head` of a ring.
    ///
    /// # Errors
    /// The head does not exist.
    pub fn new(head: u16, ring_len: u16, may_be_indirect: bool) -> Result<Self, ChainFault> {
        if head >= ring_len {
            return Err(ChainFault::Index { index: head.into(), len: ring_len.into() });
        }
        let left = u32::from(ring_len).min(CHAIN_MAX);
        Ok(Self { ring_len, may_be_indirect, table: None, left, place: Place::Ring(head) })
    }

    /// The place of the next descriptor.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Takes the descriptor of [`Walk::place`], and adds its buffer to `chain`. Returns whether
    /// another one follows.
    ///
    /// # Errors
    /// The chain breaks a rule.
    #[inline]
    pub fn on_descriptor(
        &mut self,
        descriptor: Descriptor,
        chain: &mut Chain,
    ) -> Result<bool, ChainFault> {
        let Descriptor { addr, len_bytes, next, .. } = descriptor;
        if addr.checked_add(len_bytes.into()).is_none() {
            return Err(ChainFault::Wraps(addr));
        }
        if descriptor.has(FLAG_INDIRECT) {
            return self.enter(descriptor).map(|()| true);
        }
        let span = Span { addr, len_bytes };
        if descriptor.has(FLAG_WRITE) {
            chain.writable.push(span);
        } else if chain.writable.is_empty() {
            chain.readable.push(span);
        } else {
            return Err(ChainFault::Order);
        }
        if !descriptor.has(FLAG_NEXT) {
            return Ok(false);
        }
        self.left -= 1;
        if self.left == 0 {
            let len = self.table.map_or(u32::from(self.ring_len), |table| table.len);
            return Err(ChainFault::TooLong(len.min(CHAIN_MAX)));
        }
        self.place = match self.table {
            Some(table) => table.place(next.into())?,
            None if next < self.ring_len => Place::Ring(next),
            None => {
                return Err(ChainFault::Index { index: next.into(), len: self.ring_len.into() });
            }
        };
        Ok(true)
    }

    /// Goes on in an indirect table.
    fn enter(&mut self, descriptor: Descriptor) -> Result<(), ChainFault> {
        let Descriptor { addr, len_bytes, .. } = descriptor;
        if !self.may_be_indirect {
            return Err(ChainFault::NotNegotiated);
        }
        if self.table.is_some() {
            return Err(ChainFault::Nested);
        }
        if descriptor.has(FLAG_NEXT) {
            return Err(ChainFault::NextAndIndirect);
        }
        let len = len_bytes / DESCRIPTOR_BYTES as u32;
        if len == 0 || !u64::from(len_bytes).is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(ChainFault::TableLength(len_bytes));
        }
        let table = Table { addr, len };
        // Descriptors before the table need no count: the ring limits them.
        self.left = len.min(CHAIN_MAX);
        self.place = table.place(0)?;
        self.table = Some(table);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    const W: u16 = FLAG_WRITE;
    const N: u16 = FLAG_NEXT;

    fn descriptor(addr: u64, len_bytes: u32, flags: u16, next: u16) -> Descriptor {
        Descriptor { addr, len_bytes, flags, next }
    }

    /// Walks a ring, and a table at address 0 if the ring names it.
    fn walk(ring: &[Descriptor], table: &[Descriptor]) -> Result<Chain, ChainFault> {
        let mut walk = Walk::new(0, ring.len() as u16, true)?;
        let mut chain = Chain::default();
        loop {
            let at = match walk.place() {
                Place::Ring(index) => ring[usize::from(index)],
                Place::Guest(addr) => table[(addr / DESCRIPTOR_BYTES) as usize],
            };
            if !walk.on_descriptor(at, &mut chain)? {
                return Ok(chain);
            }
        }
    }

    fn spans(spans: &[Span]) -> Vec<(u64, u32)> {
        spans.iter().map(|span| (span.addr, span.len_bytes)).collect()
    }

    #[test]
    fn descriptor_is_decoded_as_the_standard_lays_it_out() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 3, 0, 7, 1];
        let expected = descriptor(0x0807_0605_0403_0201, 0x0c0b_0a09, 3, 0x107);
        assert_eq!(Descriptor::of(bytes), expected);
    }

    #[test]
    fn direct_descriptors_may_be_followed_by_a_table() {
        let ring = [descriptor(100, 16, N, 1), descriptor(0, 32, FLAG_INDIRECT, 0)];
        let table = [descriptor(200, 8, N, 1), descriptor(300, 513, W, 0)];
        let chain = walk(&ring, &table).unwrap();
        assert_eq!(spans(&chain.readable), [(100, 16), (200, 8)]);
        assert_eq!(spans(&chain.writable), [(300, 513)]);
        assert_eq!((chain.readable_bytes(), chain.writable_bytes()), (24, 513));
    }

    #[test]
    fn table_may_be_longer_than_its_ring_and_not_than_the_limit() {
        let ring = [descriptor(0, 16 * 1024, FLAG_INDIRECT, 0)];
        let mut table: Vec<_> = (1..=1024)
            .map(|next| descriptor(0, 1, if next < 1024 { N } else { 0 }, next))
            .collect();
        assert_eq!(walk(&ring, &table).unwrap().readable.len(), 1024);
        table[1023] = descriptor(0, 1, N, 1024);
        table.push(descriptor(0, 1, 0, 0));
        let ring = [descriptor(0, 16 * 1025, FLAG_INDIRECT, 0)];
        assert_eq!(walk(&ring, &table).unwrap_err(), ChainFault::TooLong(1024));
    }

    #[test]
    fn chains_that_break_the_rules_are_refused() {
        let indirect = |len_bytes| vec![descriptor(0, len_bytes, FLAG_INDIRECT, 0)];
        let cases = [
            (vec![descriptor(0, 1, N, 0)], vec![], ChainFault::TooLong(1)),
            (vec![descriptor(0, 1, N, 1), descriptor(0, 1, N, 0)], vec![], ChainFault::TooLong(2)),
            (vec![descriptor(0, 1, N, 1)], vec![], ChainFault::TooLong(1)),
            (
                vec![descriptor(0, 1, N, 2), descriptor(0, 1, 0, 0)],
                vec![],
                ChainFault::Index { index: 2, len: 2 },
            ),
            (vec![descriptor(0, 1, W | N, 1), descriptor(0, 1, 0, 0)], vec![], ChainFault::Order),
            (vec![descriptor(u64::MAX, 1, 0, 0)], vec![], ChainFault::Wraps(u64::MAX)),
            (indirect(0), vec![], ChainFault::TableLength(0)),
            (indirect(17), vec![], ChainFault::TableLength(17)),
            (indirect(16), indirect(16), ChainFault::Nested),
            (indirect(16), vec![descriptor(0, 1, N, 1)], ChainFault::TooLong(1)),
            (
                indirect(32),
                vec![descriptor(0, 1, N, 2), descriptor(0, 1, 0, 0)],
                ChainFault::Index { index: 2, len: 2 },
            ),
            (vec![descriptor(0, 16, FLAG_INDIRECT | N, 0)], vec![], ChainFault::NextAndIndirect),
        ];
        for (ring, table, fault) in cases {
            assert_eq!(walk(&ring, &table).unwrap_err(), fault);
        }
        assert_eq!(Walk::new(4, 4, true).unwrap_err(), ChainFault::Index { index: 4, len: 4 });
        let mut walk = Walk::new(0, 4, false).unwrap();
        let fault = walk.on_descriptor(indirect(16)[0], &mut Chain::default());
        assert_eq!(fault, Err(ChainFault::NotNegotiated));
    }
}
