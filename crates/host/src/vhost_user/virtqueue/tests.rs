//! A ring in a file in memory, filled by a guest that may be hostile.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use blockyard_protocol::vhost_user::{Addresses, MemoryRegion};
use blockyard_protocol::virtio_queue::CHAIN_MAX;
use rustix::fs::{MemfdFlags, memfd_create};
use virtio_queue::{Queue as OtherQueue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

use super::*;

const RING_LEN: u16 = 16;
/// Two adjacent regions of the guest, in the file in reverse order.
const REGION_BYTES: u64 = 64 << 10;
const AVAILABLE_AT: u64 = 4096;
const USED_AT: u64 = 8192;
/// Addresses in the front end.
const FRONT_END: u64 = 1 << 40;

struct Guest {
    file: File,
    memory: GuestMemory,
    available: u16,
}

impl Guest {
    fn new() -> Self {
        let file: OwnedFd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 2 * REGION_BYTES).unwrap();
        let region = |guest_addr, file_offset_bytes| MemoryRegion {
            guest_addr,
            len_bytes: REGION_BYTES,
            front_end_addr: FRONT_END + guest_addr,
            file_offset_bytes,
        };
        let memory = GuestMemory::default().with(region(REGION_BYTES, 0), &file).unwrap();
        let memory = memory.with(region(0, REGION_BYTES), &file).unwrap();
        Self { file: File::from(file), memory, available: 0 }
    }

    fn queue(features: u64) -> (Queue, u64) {
        let addresses = Addresses {
            descriptors: FRONT_END,
            available: FRONT_END + AVAILABLE_AT,
            used: FRONT_END + USED_AT,
        };
        let mut queue = Queue::default();
        queue.ring_len = RING_LEN;
        queue.addresses = Some(addresses);
        (queue, features)
    }

    fn virtqueue(&self, features: u64) -> Virtqueue {
        let (queue, features) = Self::queue(features);
        Virtqueue::new(&self.memory, &queue, features, self.available, None).unwrap()
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        for (addr, byte) in (addr..).zip(bytes) {
            self.file.write_all_at(&[*byte], addr ^ REGION_BYTES).unwrap();
        }
    }

    fn read_u16(&self, addr: u64) -> u16 {
        let mut bytes = [0; 2];
        self.file.read_exact_at(&mut bytes, addr ^ REGION_BYTES).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn descriptor(&self, at: u64, (addr, len, flags, next): (u64, u32, u16, u16)) {
        let word = u128::from(addr)
            | u128::from(len) << 64
            | u128::from(flags) << 96
            | u128::from(next) << 112;
        self.write(at, &word.to_le_bytes());
    }

    /// The memory of the guest, as a mapping of rust-vmm's crates.
    fn other_memory(&self) -> GuestMemoryMmap {
        let region = |guest_addr, file_offset_bytes| {
            let file = FileOffset::new(self.file.try_clone().unwrap(), file_offset_bytes);
            (GuestAddress(guest_addr), REGION_BYTES as usize, Some(file))
        };
        let regions = [region(0, REGION_BYTES), region(REGION_BYTES, 0)];
        GuestMemoryMmap::from_ranges_with_files(regions).unwrap()
    }

    /// The next chain, as the crate `virtio-queue` walks it: the address and length of each buffer,
    /// and whether the device writes it. `None` for a chain that it breaks off.
    fn other_chain(&self, memory: &GuestMemoryMmap) -> Option<Vec<(u64, u32, bool)>> {
        let mut queue = OtherQueue::new(RING_LEN).unwrap();
        queue.set_size(RING_LEN);
        queue.set_desc_table_address(Some(0), Some(0));
        queue.set_avail_ring_address(Some(AVAILABLE_AT as u32), Some(0));
        queue.set_used_ring_address(Some(USED_AT as u32), Some(0));
        queue.set_ready(true);
        queue.set_next_avail(self.available.wrapping_sub(1));
        let mut is_whole = false;
        let chain = queue.pop_descriptor_chain(memory)?.map(|descriptor| {
            is_whole = !descriptor.has_next();
            (descriptor.addr().0, descriptor.len(), descriptor.is_write_only())
        });
        let chain = chain.collect();
        is_whole.then_some(chain)
    }

    /// Fills the ring's table, and the same table at another place for an indirect descriptor.
    fn fill_tables(&self, dice: &mut Dice) {
        let mut table = [0; 16 * RING_LEN as usize];
        for bytes in table.chunks_mut(16) {
            let (addr, len, flags, next) = random_descriptor(dice);
            bytes[..8].copy_from_slice(&addr.to_le_bytes());
            bytes[8..12].copy_from_slice(&len.to_le_bytes());
            bytes[12..14].copy_from_slice(&flags.to_le_bytes());
            bytes[14..].copy_from_slice(&next.to_le_bytes());
        }
        self.file.write_all_at(&table, REGION_BYTES).unwrap();
        self.file.write_all_at(&table, dice.roll(REGION_BYTES / 16 - 16) * 16).unwrap();
    }

    fn make_available(&mut self, head: u16) {
        let entry = u64::from(self.available % RING_LEN);
        self.write(AVAILABLE_AT + 4 + 2 * entry, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.write(AVAILABLE_AT + 2, &self.available.to_le_bytes());
    }
}

/// xorshift
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % below
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len() as u64) as usize]
    }
}

/// Descriptors that are right, nearly right, or wrong.
fn random_descriptor(dice: &mut Dice) -> (u64, u32, u16, u16) {
    let near = REGION_BYTES + dice.roll(64) - 32;
    let addr = match dice.roll(8) {
        0 => dice.roll(u64::MAX),
        1 => 2 * REGION_BYTES - dice.roll(64),
        2 => u64::MAX - dice.roll(64),
        3 => near,
        _ => dice.roll(2 * REGION_BYTES),
    };
    let len = dice.of(&[0, 1, 16, 32, 48, 512, 4096, 65536, u32::MAX, 16 * 40]);
    let flags = dice.of(&[0, 1, 1, 1, 2, 3, 3, 3, 4, 5, 0xffff]);
    (addr, len, flags, dice.roll(20) as u16)
}

/// The number of rounds; `BLOCKYARD_SOAK=1` makes a million.
fn rounds() -> u64 {
    if std::env::var_os("BLOCKYARD_SOAK").is_some() { 1_000_000 } else { 3_000 }
}

#[test]
fn random_tables_are_fetched_or_refused_and_no_buffer_is_outside_of_memory() {
    let mut guest = Guest::new();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut fetched = 0;
    let mut refused = 0;
    for _ in 0..rounds() {
        guest.fill_tables(&mut dice);
        let features = FEATURE_EVENT_INDEX | dice.of(&[0, FEATURE_INDIRECT]);
        let ring = guest.virtqueue(features);
        guest.make_available(dice.roll(18) as u16);
        let mut chain = Chain::default();
        match ring.fetch(&guest.memory, &mut chain) {
            Ok(Some(head)) => {
                assert!(head < RING_LEN);
                let spans = chain.readable.iter().chain(&chain.writable);
                let count = spans.clone().count();
                assert!(count <= (CHAIN_MAX + u32::from(RING_LEN)) as usize);
                for span in spans.filter(|span| span.len_bytes > 0) {
                    assert!(span.addr + u64::from(span.len_bytes) <= 2 * REGION_BYTES);
                }
                fetched += 1;
            }
            Ok(None) => panic!("a request is available"),
            Err(_) => refused += 1,
        }
    }
    assert!(fetched > rounds() / 50 && refused > rounds() / 50, "{fetched} and {refused}");
}

/// Descriptors that both queues often accept: in the table, and in order.
fn likely_descriptor(dice: &mut Dice, index: u16, is_written: bool) -> (u64, u32, u16, u16) {
    let len = dice.of(&[0, 1, 16, 512, 4096]);
    let addr = dice.roll(2 * REGION_BYTES - 4096);
    let more = u16::from(dice.roll(5) > 0);
    (addr, len, more | u16::from(is_written) << 1, dice.of(&[index + 1, index + 1, index + 2]))
}

#[test]
fn chains_are_those_of_rust_vmm_where_both_queues_accept_them() {
    let mut guest = Guest::new();
    let memory = guest.other_memory();
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut accepted = 0;
    let mut indirect = 0;
    for round in 0..rounds() {
        guest.fill_tables(&mut dice);
        let turn = dice.roll(u64::from(RING_LEN)) as u16;
        // In the ring, or in a table behind the rings that its first descriptor names.
        let is_indirect = round % 4 == 0;
        let table = if is_indirect { USED_AT + 4096 + dice.roll(4096) } else { 0 };
        if round % 4 < 3 {
            for index in 0..RING_LEN {
                let descriptor = likely_descriptor(&mut dice, index, index >= turn);
                guest.descriptor(table + 16 * u64::from(index), descriptor);
            }
        }
        if is_indirect {
            guest.descriptor(0, (table, dice.of(&[16, 64, 256]), 4, 0));
        }
        let ring = guest.virtqueue(FEATURE_INDIRECT);
        guest.make_available(if is_indirect { 0 } else { dice.roll(18) as u16 });
        let theirs = guest.other_chain(&memory);
        let mut chain = Chain::default();
        if ring.fetch(&guest.memory, &mut chain).is_err() {
            continue;
        }
        let span = |is_written| move |span: &Span| (span.addr, span.len_bytes, is_written);
        let readable = chain.readable.iter().map(span(false));
        let ours: Vec<_> = readable.chain(chain.writable.iter().map(span(true))).collect();
        // Longer chains than 4 GiB are the only ones that they refuse and we do not.
        let is_long = chain.readable_bytes() + chain.writable_bytes() > u64::from(u32::MAX);
        assert!(theirs.is_some() || is_long, "round {round}: they refuse {ours:?}");
        if let Some(theirs) = theirs {
            assert_eq!(ours, theirs, "round {round}");
            accepted += 1;
            indirect += u64::from(is_indirect);
        }
    }
    assert!(accepted > rounds() / 5 && indirect > rounds() / 20, "{accepted} and {indirect}");
}

#[test]
fn table_and_buffer_may_cross_adjacent_regions() {
    let mut guest = Guest::new();
    let table = REGION_BYTES - 16;
    guest.descriptor(0, (table, 32, 4, 0));
    guest.descriptor(table, (REGION_BYTES - 8, 16, 1, 1));
    guest.descriptor(table + 16, (2 * REGION_BYTES - 1, 1, 2, 0));
    let ring = guest.virtqueue(FEATURE_INDIRECT);
    guest.make_available(0);
    let mut chain = Chain::default();
    assert_eq!(ring.fetch(&guest.memory, &mut chain), Ok(Some(0)));
    assert_eq!((chain.readable.len(), chain.writable.len()), (1, 1));
    let mut bytes = [0; 17];
    guest.write(REGION_BYTES - 8, b"across the border");
    guest.memory.load(REGION_BYTES - 8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"across the border");
    assert!(guest.memory.load(2 * REGION_BYTES - 16, &mut bytes).is_none());
}

#[test]
fn index_that_runs_ahead_and_rings_outside_of_memory_are_faults() {
    let guest = Guest::new();
    let ring = guest.virtqueue(0);
    guest.write(AVAILABLE_AT + 2, &(RING_LEN + 1).to_le_bytes());
    let fault = RingFault::Index { came: RING_LEN + 1, ring_len: RING_LEN };
    assert_eq!(ring.fetch(&guest.memory, &mut Chain::default()), Err(fault));
    let (mut queue, features) = Guest::queue(0);
    let addresses = queue.addresses.as_mut().unwrap();
    // The event index behind the entries does not fit.
    addresses.used = FRONT_END + 2 * REGION_BYTES - 4 - 8 * u64::from(RING_LEN);
    let made = Virtqueue::new(&guest.memory, &queue, features, 0, None);
    assert_eq!(made.unwrap_err(), RingFault::Ring);
}

#[test]
fn ring_that_is_aligned_for_the_front_end_and_not_in_its_file_is_a_fault() {
    let guest = Guest::new();
    let region = MemoryRegion {
        guest_addr: 0,
        len_bytes: REGION_BYTES,
        front_end_addr: FRONT_END,
        file_offset_bytes: 1,
    };
    let memory = GuestMemory::default().with(region, &guest.file.into()).unwrap();
    let (queue, features) = Guest::queue(0);
    let made = Virtqueue::new(&memory, &queue, features, 0, None);
    assert_eq!(made.unwrap_err(), RingFault::Ring);
}

#[test]
fn guest_is_called_when_its_event_index_is_passed_and_not_otherwise() {
    let guest = Guest::new();
    let event_at = AVAILABLE_AT + 4 + 2 * u64::from(RING_LEN);
    let mut ring = guest.virtqueue(FEATURE_EVENT_INDEX);
    // The guest waits for the third completion.
    guest.write(event_at, &2u16.to_le_bytes());
    let mut calls = Vec::new();
    for head in 0..5 {
        ring.complete(head, 1);
        calls.push(ring.publish());
    }
    assert_eq!(calls, [false, false, true, false, false]);
    assert_eq!(guest.read_u16(USED_AT + 2), 5);
    assert!(!ring.publish(), "nothing is new");
    let mut ring = guest.virtqueue(0);
    ring.complete(7, 1);
    assert!(ring.publish());
    guest.write(AVAILABLE_AT, &NO_CALLS.to_le_bytes());
    ring.complete(7, 1);
    assert!(!ring.publish());
}

#[test]
fn sleeping_queue_asks_for_kicks_and_sees_what_came_before_it_slept() {
    let mut guest = Guest::new();
    let mut ring = guest.virtqueue(FEATURE_EVENT_INDEX);
    assert!(!ring.arm());
    guest.make_available(0);
    guest.descriptor(0, (0, 1, 0, 0));
    assert!(ring.arm());
    ring.fetch(&guest.memory, &mut Chain::default()).unwrap().unwrap();
    ring.advance(0);
    assert!(!ring.arm());
    assert_eq!(guest.read_u16(USED_AT + 4 + 8 * u64::from(RING_LEN)), 1);
    let mut ring = guest.virtqueue(0);
    ring.disarm();
    assert_eq!(guest.read_u16(USED_AT), NO_KICKS);
    ring.arm();
    assert_eq!(guest.read_u16(USED_AT), 0);
}

#[test]
fn memory_that_is_taken_away_reads_as_zeroes_and_is_noticed() {
    let mut guest = Guest::new();
    let ring = guest.virtqueue(0);
    guest.descriptor(0, (2 * REGION_BYTES - 512, 512, 0, 0));
    guest.make_available(0);
    // The second region lies at the start of the file.
    guest.file.set_len(0).unwrap();
    let fault = ring.fetch(&guest.memory, &mut Chain::default());
    assert_eq!(fault, Ok(None), "the index reads as zero");
    assert!(guest.memory.is_broken());
}
