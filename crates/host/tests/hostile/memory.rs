//! Memory tables, and memory that changes under requests.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::Case;
use super::messages::goes_on;
use crate::guest::*;

const REGION_BYTES: u64 = 2 << 20;
/// An address that is not used.
const FREE: u64 = 1 << 40;

/// A message of one region.
fn one(region: [u64; 4]) -> Vec<u8> {
    let words = [vec![0], region.to_vec()].concat();
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn file(flags: MemfdFlags) -> OwnedFd {
    let file = memfd_create("region", MemfdFlags::CLOEXEC | flags).unwrap();
    rustix::fs::ftruncate(&file, REGION_BYTES).unwrap();
    file
}

/// A region that is refused, after which the guest goes on.
fn refused(guest: &mut Guest, region: [u64; 4], fd: &impl AsFd) {
    assert!(!guest.try_command(ADD_MEM_REG, &one(region), &[fd.as_fd()]), "{region:?}");
    goes_on(guest);
}

/// A table that is refused before anything changes.
fn refused_table(guest: &mut Guest, regions: &[[u64; 4]]) {
    let fd = file(MemfdFlags::empty());
    let fds = vec![fd.as_fd(); regions.len()];
    assert!(!guest.try_command(SET_MEM_TABLE, &table(regions), &fds), "{regions:?}");
    goes_on(guest);
}

fn open(path: &str, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Reads into a region that was added.
fn read_into(guest: &mut Guest, addr: u64) {
    guest.put_header(0, 0, READ, 0);
    guest.descriptor(0, 0, (Guest::header_at(0, 0), 16, NEXT, 1));
    guest.descriptor(0, 1, (addr, 4096, NEXT | WRITABLE, 2));
    guest.descriptor(0, 2, (Guest::status_at(0, 0), 1, WRITABLE, 0));
    guest.make_available(0, 0);
    guest.kick(0);
}

/// Puts requests of two queues in flight, and calls `change` meanwhile.
fn busy(guest: &mut Guest, change: fn(&mut Guest)) {
    busy_queue(guest, 0);
    busy_queue(guest, 1);
    change(guest);
}

fn busy_queue(guest: &mut Guest, queue: u32) {
    for slot in 1..SLOTS {
        guest.push(queue, slot, READ, 0, SLOT_BYTES as u32);
    }
    guest.kick(queue);
}

fn whole() -> [u64; 4] {
    region(0, memory_bytes(), 0)
}

pub(crate) const CASES: &[Case] = &[
    ("regions overlap in the guest", "", |guest| {
        let other = [4096, 8192, FREE, 0];
        refused_table(guest, &[region(0, 8192, 0), other]);
    }),
    ("regions overlap in the front end", "", |guest| {
        refused_table(guest, &[region(0, 8192, 0), [FREE, 8192, FRONT_END + 4096, 0]]);
    }),
    ("region is empty", "", |guest| refused_table(guest, &[region(0, 0, 0)])),
    ("region wraps in the guest", "", |guest| {
        refused_table(guest, &[[u64::MAX - 4095, 8192, FREE, 0]]);
    }),
    ("region wraps in the front end", "", |guest| {
        refused_table(guest, &[[0, 8192, u64::MAX - 4095, 0]]);
    }),
    ("region wraps in its file", "", |guest| {
        refused_table(guest, &[[0, 8192, FREE, u64::MAX - 4095]]);
    }),
    ("region of 2^64 - 1 bytes", "", |guest| refused_table(guest, &[[0, u64::MAX, 0, 0]])),
    ("table with too few descriptors", "", |guest| {
        let fd = file(MemfdFlags::empty());
        let regions = table(&[region(0, 4096, 0), region(4096, 4096, 4096)]);
        assert!(!guest.try_command(SET_MEM_TABLE, &regions, &[fd.as_fd()]));
        goes_on(guest);
    }),
    ("added region overlaps", "", |guest| {
        refused(guest, [4096, 4096, FREE, 0], &file(MemfdFlags::empty()));
    }),
    ("region is longer than its file", "", |guest| {
        refused(guest, [FREE, REGION_BYTES + 1, FREE, 0], &file(MemfdFlags::empty()));
    }),
    ("region is longer than any address space", "", |guest| {
        let file = file(MemfdFlags::empty());
        rustix::fs::ftruncate(&file, i64::MAX as u64).unwrap();
        refused(guest, [FREE, 1 << 62, FREE, 0], &file);
    }),
    ("memory is /dev/zero", "", |guest| {
        refused(guest, [FREE, 4096, FREE, 0], &open("/dev/zero", OFlags::RDWR));
    }),
    ("memory is a directory", "", |guest| {
        refused(guest, [FREE, 1, FREE, 0], &open("/", OFlags::RDONLY));
    }),
    ("memory is a path", "", |guest| {
        refused(guest, [FREE, 4096, FREE, 0], &open("/proc/self/exe", OFlags::PATH));
    }),
    ("memory cannot be written", "", |guest| {
        refused(guest, [FREE, 4096, FREE, 0], &open("/proc/self/exe", OFlags::RDONLY));
    }),
    ("memory is sealed", "", |guest| {
        let file = file(MemfdFlags::ALLOW_SEALING);
        fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
        refused(guest, [FREE, 4096, FREE, 0], &file);
    }),
    ("memory is an event, a pipe or a socket", "", |guest| {
        let pipe = rustix::pipe::pipe().unwrap();
        let socket = std::os::unix::net::UnixStream::pair().unwrap();
        refused(guest, [FREE, 4096, FREE, 0], &guest.call(0).try_clone_to_owned().unwrap());
        refused(guest, [FREE, 4096, FREE, 0], &pipe.0);
        refused(guest, [FREE, 4096, FREE, 0], &socket.0);
    }),
    ("memory that was not added is removed", "", |guest| {
        let fd = file(MemfdFlags::empty());
        assert!(!guest.try_command(REM_MEM_REG, &one([FREE, 4096, FREE, 0]), &[fd.as_fd()]));
        goes_on(guest);
    }),
    ("region behind the last slot", "", |guest| {
        let fd = file(MemfdFlags::empty());
        // One slot has the guest's memory.
        for at in 1..128 {
            let region = [FREE + at * 4096, 4096, FREE + at * 4096, 0];
            assert!(guest.try_command(ADD_MEM_REG, &one(region), &[fd.as_fd()]), "{at}");
        }
        refused(guest, [2 * FREE, 4096, 2 * FREE, 0], &fd);
    }),
    ("memory is replaced by a part of it with requests in flight", "", |guest| {
        let fd = guest.memory.try_clone().unwrap();
        busy_queue(guest, 0);
        // Without the buffers of the idle queue: a request that is fetched after the change finds
        // those of its own.
        let part = table(&[region(0, Guest::data_at(1, 0), 0)]);
        assert!(guest.try_command(SET_MEM_TABLE, &part, &[fd.as_fd()]));
        let all = table(&[whole()]);
        assert!(guest.try_command(SET_MEM_TABLE, &all, &[fd.as_fd()]));
    }),
    ("memory is removed with requests in flight, and added again", "", |guest| {
        busy(guest, |guest| {
            // The rings go with it: both queues stop until they are set up again.
            let fd = guest.memory.try_clone().unwrap();
            guest.stop(0);
            guest.stop(1);
            assert!(guest.try_command(REM_MEM_REG, &one(whole()), &[fd.as_fd()]));
            assert!(guest.try_command(ADD_MEM_REG, &one(whole()), &[fd.as_fd()]));
        });
    }),
    ("rings go with the memory while the queue runs", "its ring is outside", |guest| {
        let fd = guest.memory.try_clone().unwrap();
        guest.stop(1);
        assert!(guest.try_command(REM_MEM_REG, &one(whole()), &[fd.as_fd()]));
        assert!(guest.is_stopped(0));
    }),
    ("buffers shrink away", "memory of the guest was taken away", |guest| {
        guest.stop(1);
        guest.memory.set_len(Guest::data_at(0, 0)).unwrap();
        guest.push(0, 1, WRITE, 0, 4096);
        guest.kick(0);
        assert!(guest.is_stopped(0) && !guest.has_ended(0));
    }),
    ("buffers of a read shrink away", "memory of the guest was taken away", |guest| {
        guest.stop(1);
        guest.memory.set_len(Guest::data_at(0, 0)).unwrap();
        guest.push(0, 1, READ, 0, 4096);
        guest.kick(0);
        assert!(guest.is_stopped(0) && !guest.has_ended(0));
    }),
    ("memory of huge pages shrinks away", "memory of the guest was taken away", |guest| {
        guest.stop(1);
        // Its pages are larger: the place of the fault is not at the start of one.
        let file = file(MemfdFlags::HUGETLB);
        assert!(guest.try_command(
            ADD_MEM_REG,
            &one([FREE, REGION_BYTES, FREE, 0]),
            &[file.as_fd()]
        ));
        rustix::fs::ftruncate(&file, 0).unwrap();
        read_into(guest, FREE + 0x3000);
        assert!(guest.is_stopped(0));
    }),
    ("file of a region is on a disk", "", |guest| {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        File::from(file.try_clone().unwrap()).set_len(4096).unwrap();
        assert!(guest.try_command(ADD_MEM_REG, &one([FREE, 4096, FREE, 0]), &[file.as_fd()]));
        read_into(guest, FREE);
        assert_eq!((guest.ended(0), guest.status(0, 0)), ((0, 4097), 0));
    }),
];
