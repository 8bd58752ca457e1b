//! Chains that break the rules stop their queue only.

use super::Case;
use crate::guest::*;

type Descriptor = (u64, u32, u16, u16);

/// Descriptors of the ring from index 10 on, where the chain begins, and of a table.
fn stops(guest: &mut Guest, ring: &[Descriptor], table: &[Descriptor]) {
    for (index, descriptor) in (10..).zip(ring) {
        guest.descriptor(0, index, *descriptor);
    }
    for (index, descriptor) in (0..).zip(table) {
        guest.descriptor_at(table_at() + 16 * index, *descriptor);
    }
    stops_at(guest, 10);
}

fn stops_at(guest: &mut Guest, head: u16) {
    // A request that came before ends.
    guest.push(0, 20, FLUSH, 0, 0);
    guest.make_available(0, head);
    guest.kick(0);
    assert!(guest.is_stopped(0));
    assert_eq!(guest.ended(0).0, 60);
    assert!(!guest.has_ended(0) && guest.lives(1));
    assert_eq!(guest.run(1, FLUSH, 0, 0), 0);
    assert_eq!(guest.stop(0), 2, "the bad one is the next one");
}

fn table_at() -> u64 {
    Guest::data_at(0, 1)
}

fn indirect(len: u32) -> Descriptor {
    (table_at(), len, INDIRECT, 0)
}

const HEADER: Descriptor = (0, 16, NEXT, 11);
const STATUS: Descriptor = (0, 1, WRITABLE, 0);
const OUTSIDE: &str = "is outside of the guest's memory";

pub(crate) const CASES: &[Case] = &[
    ("loop of one", "more than 256 descriptors", |guest| stops(guest, &[(0, 16, NEXT, 10)], &[])),
    ("loop of two", "more than 256 descriptors", |guest| {
        stops(guest, &[HEADER, (0, 16, NEXT, 10)], &[]);
    }),
    ("next one out of range", "descriptor 256 of a table of 256", |guest| {
        stops(guest, &[(0, 16, NEXT, 256)], &[]);
    }),
    ("head out of range", "descriptor 256 of a table of 256", |guest| stops_at(guest, 256)),
    ("head of 65535", "descriptor 65535 of a table of 256", |guest| stops_at(guest, u16::MAX)),
    ("nested table", "names another one", |guest| {
        stops(guest, &[indirect(16)], &[(0, 16, INDIRECT, 0)]);
    }),
    ("table that is its own entry", "names another one", |guest| {
        stops(guest, &[indirect(16)], &[indirect(16)]);
    }),
    ("empty table", "0 bytes", |guest| stops(guest, &[indirect(0)], &[])),
    ("table of a part of a descriptor", "24 bytes", |guest| stops(guest, &[indirect(24)], &[])),
    ("table of 4 GiB", "4294967295 bytes", |guest| stops(guest, &[indirect(u32::MAX)], &[])),
    ("loop in a table of 4 GiB", "more than 1024 descriptors", |guest| {
        stops(guest, &[indirect(u32::MAX - 15)], &[(0, 16, NEXT, 0)]);
    }),
    ("loop in a table", "more than 2 descriptors", |guest| {
        stops(guest, &[indirect(32)], &[(0, 16, NEXT, 1), (0, 16, NEXT, 0)]);
    }),
    ("next one outside of its table", "descriptor 2 of a table of 2", |guest| {
        stops(guest, &[indirect(32)], &[(0, 16, NEXT, 2)]);
    }),
    ("table with a successor", "follows an indirect table", |guest| {
        stops(guest, &[(table_at(), 16, INDIRECT | NEXT, 11), STATUS], &[STATUS]);
    }),
    ("table outside", OUTSIDE, |guest| {
        stops(guest, &[(memory_bytes(), 32, INDIRECT, 0)], &[]);
    }),
    ("table that leaves the memory", OUTSIDE, |guest| {
        guest.descriptor_at(memory_bytes() - 16, (0, 16, NEXT, 1));
        stops(guest, &[(memory_bytes() - 16, 32, INDIRECT, 0)], &[]);
    }),
    ("header outside", OUTSIDE, |guest| {
        stops(guest, &[(memory_bytes(), 16, NEXT, 11), STATUS], &[]);
    }),
    ("header that leaves the memory", OUTSIDE, |guest| {
        stops(guest, &[(memory_bytes() - 15, 16, NEXT, 11), STATUS], &[]);
    }),
    ("status outside", OUTSIDE, |guest| {
        stops(guest, &[HEADER, (memory_bytes(), 1, WRITABLE, 0)], &[]);
    }),
    ("data of 4 GiB", OUTSIDE, |guest| {
        stops(guest, &[HEADER, (0, u32::MAX, NEXT | WRITABLE, 12), STATUS], &[]);
    }),
    ("data that wraps", "wraps around the end", |guest| {
        stops(guest, &[HEADER, (u64::MAX - 4095, 8192, NEXT | WRITABLE, 12), STATUS], &[]);
    }),
    ("readable behind writable", "readable buffer follows", |guest| {
        stops(guest, &[(0, 1, WRITABLE | NEXT, 11), (0, 16, 0, 0)], &[]);
    }),
    ("no status", "no room for a status", |guest| stops(guest, &[(0, 16, 0, 0)], &[])),
    ("status of no bytes", "no room for a status", |guest| {
        stops(guest, &[HEADER, (0, 0, WRITABLE, 0)], &[]);
    }),
    ("no header", "no room for a header", |guest| stops(guest, &[STATUS], &[])),
    ("15 bytes of a header", "no room for a header", |guest| {
        stops(guest, &[(0, 15, NEXT, 11), STATUS], &[]);
    }),
    ("4 TiB of the same memory", "", |guest| {
        // Each buffer is in memory; the disk does not have the range.
        guest.put_header(0, 0, READ, 0);
        guest.descriptor_at(table_at(), (Guest::header_at(0, 0), 16, NEXT, 1));
        let len = (memory_bytes() - 4096) as u32;
        for index in 1..1023 {
            let next = index + 1;
            let at = table_at() + 16 * u64::from(index);
            guest.descriptor_at(at, (4096, len, NEXT | WRITABLE, next));
        }
        let at = table_at() + 16 * 1023;
        guest.descriptor_at(at, (Guest::status_at(0, 0), 1, WRITABLE, 0));
        guest.descriptor(0, 10, indirect(16 * 1024));
        guest.make_available(0, 10);
        guest.kick(0);
        assert_eq!((guest.ended(0), guest.status(0, 0)), ((10, 1), 1));
    }),
    ("chain that is made available twice", "", |guest| {
        guest.push(0, 0, WRITE, 0, 4096);
        guest.make_available(0, 0);
        guest.kick(0);
        assert_eq!([guest.ended(0).0, guest.ended(0).0], [0, 0]);
    }),
    ("chain that lies in its own buffers", "", |guest| {
        // The read overwrites its descriptors, its header and its ring.
        guest.put_header(0, 0, READ, 0);
        guest.descriptor(0, 10, (Guest::header_at(0, 0), 16, NEXT, 11));
        guest.descriptor(0, 11, (0, 0x1000, NEXT | WRITABLE, 12));
        guest.descriptor(0, 12, STATUS);
        guest.make_available(0, 10);
        guest.kick(0);
        assert_eq!(guest.ended(0), (10, 0x1001));
    }),
];
