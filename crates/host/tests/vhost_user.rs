//! A disk of a virtual machine: data of every kind of volume, and guests that do what they must
//! not.

mod client;
mod guest;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::server::{DeviceOptions, ServedExport, ServerOptions};
use blockyard_host::volume::{Scheduling, Volume, VolumeOptions};

use client::Serving;
use guest::*;

const MIB: u64 = 1 << 20;
const SIZE_BYTES: u64 = 8 * MIB;
const BLOCK: u32 = 4096;

/// Access to the file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Memory,
    Cached,
    Direct,
    MqDeadline,
}

const WAYS: [Way; 4] = [Way::Memory, Way::Cached, Way::Direct, Way::MqDeadline];

/// A served volume, and its folder.
struct Served {
    serving: Serving,
    volume: Arc<Volume>,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Served {
    fn start(way: Way) -> Self {
        let place = if way == Way::Memory { "/dev/shm" } else { env!("CARGO_TARGET_TMPDIR") };
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
        let elevator =
            (way == Way::MqDeadline).then(|| ElevatorSpec::parse("mq-deadline").unwrap());
        let options = VolumeOptions {
            direct: matches!(way, Way::Direct | Way::MqDeadline),
            scheduling: Scheduling { elevator, ..Scheduling::default() },
            allow_discards: true,
            controlled: true,
            ..VolumeOptions::default()
        };
        let key = SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>());
        let params =
            CryptParams { sector_size_bytes: BLOCK, ..CryptParams::new("aes-xts-plain64", key) };
        let file = DeviceFile::open(&path, Access::ReadWrite, options.direct).unwrap();
        let volume = Arc::new(Volume::from_crypt(file, &params, &options).unwrap());
        let export = ServedExport::new("", Arc::clone(&volume));
        let socket = dir.path().join("vhost");
        let at = socket.clone();
        let options = DeviceOptions { name: "the disk".into(), ..DeviceOptions::default() };
        let nbd = dir.path().join("nbd");
        let serving =
            Serving::start_with(&nbd, vec![export], ServerOptions::default(), move |server| {
                server.listen_vhost_user(&at, 0, &options).unwrap();
            });
        Self { serving, volume, socket, _dir: dir }
    }

    fn guest(&self) -> Guest {
        Guest::connect(&self.socket, 1, F_FLUSH | F_INDIRECT | F_EVENT_INDEX)
    }

    /// Data as a client of NBD reads it.
    fn read(&self, sector: u64, len: u32) -> Vec<u8> {
        let mut client = self.serving.connect("");
        client.ask(client::READ, 0, 9, (sector * 512, len), 0);
        assert_eq!(client.reply(), 9);
        client.data(len)
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn what_a_guest_writes_is_what_it_and_others_read_on_every_kind_of_file() {
    for way in WAYS {
        let served = Served::start(way);
        for features in [F_FLUSH | F_INDIRECT | F_EVENT_INDEX, F_FLUSH, 0] {
            let mut guest = Guest::connect(&served.socket, 1, features);
            let mut mirror = pattern(features, SIZE_BYTES as usize);
            for (at, bytes) in (0..).zip(mirror.chunks(SLOT_BYTES as usize)) {
                assert_eq!(guest.write_data(at * SLOT_BYTES / 512, bytes), 0);
            }
            for round in 0..30u64 {
                let sector = round * 8 * 37 % 16_000 / 8 * 8;
                let bytes = pattern(round, (1 + round as usize % 17) * 4096);
                assert_eq!(guest.write_data(sector, &bytes), 0);
                mirror[sector as usize * 512..][..bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(guest.run_segment(WRITE_ZEROES, 8, 5001, 1), 1, "no whole block");
            assert_eq!(guest.run_segment(WRITE_ZEROES, 8, 5008, 1), 0);
            mirror[4096..][..5008 * 512].fill(0);
            assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
            for at in 0..SIZE_BYTES / SLOT_BYTES {
                let sector = at * SLOT_BYTES / 512;
                let expected = &mirror[(at * SLOT_BYTES) as usize..][..SLOT_BYTES as usize];
                assert!(guest.read_data(sector, SLOT_BYTES as u32) == expected, "{way:?} {at}");
                assert!(served.read(sector, SLOT_BYTES as u32) == expected, "{way:?} {at}");
            }
        }
        served.serving.stop();
    }
}

#[test]
fn many_requests_in_flight_end_each_with_its_own_data() {
    for way in WAYS {
        let served = Served::start(way);
        let mut guest = served.guest();
        for (kind, round) in [(WRITE, 0), (READ, 1), (WRITE, 2), (READ, 3)] {
            for slot in 0..SLOTS {
                let bytes = if kind == WRITE {
                    pattern(round + u64::from(slot), SLOT_BYTES as usize)
                } else {
                    vec![0; SLOT_BYTES as usize]
                };
                guest.write(Guest::data_at(0, slot), &bytes);
                let sector = u64::from(slot) * SLOT_BYTES / 512;
                guest.push(0, slot, kind, sector, SLOT_BYTES as u32);
            }
            guest.kick(0);
            let mut ended: Vec<_> = (0..SLOTS).map(|_| guest.ended(0)).collect();
            ended.sort_unstable();
            let written = if kind == READ { SLOT_BYTES as u32 + 1 } else { 1 };
            assert!(ended == (0..SLOTS).map(|slot| (3 * slot, written)).collect::<Vec<_>>());
            for slot in 0..SLOTS {
                assert_eq!(guest.status(0, slot), 0, "{way:?}");
                let expected = pattern(round / 2 * 2 + u64::from(slot), SLOT_BYTES as usize);
                let data = guest.read(Guest::data_at(0, slot), SLOT_BYTES as usize);
                assert!(data == expected, "{way:?} {slot}");
            }
        }
    }
}

#[test]
fn header_data_and_status_may_be_cut_in_any_way() {
    let served = Served::start(Way::Memory);
    let mut guest = served.guest();
    let bytes = pattern(1, 8192);
    assert_eq!(guest.write_data(8, &bytes), 0);
    // The header in 16 pieces; data in odd pieces, the last of which ends in the status.
    guest.put_header(0, 0, READ, 8);
    for at in 0..16 {
        let addr = Guest::header_at(0, 0) + u64::from(at);
        guest.descriptor(0, 100 + at, (addr, 1, NEXT, 101 + at));
    }
    let data = Guest::data_at(0, 1);
    guest.descriptor(0, 116, (data, 1, NEXT | WRITABLE, 117));
    guest.descriptor(0, 117, (data + 1, 0, NEXT | WRITABLE, 118));
    guest.descriptor(0, 118, (data + 1, 8192, WRITABLE, 0));
    guest.make_available(0, 100);
    guest.kick(0);
    assert_eq!(guest.ended(0), (100, 8193));
    assert!(guest.read(data, 8193) == [bytes.clone(), vec![0]].concat());
    // A write whose header ends where its data begins, in an indirect table.
    guest.put_header(0, 0, WRITE, 64);
    let header = guest.read(Guest::header_at(0, 0), 16);
    guest.write(data, &[header, bytes.clone()].concat());
    let table = Guest::data_at(0, 2);
    guest.descriptor(0, 7, (data, 10, NEXT, 8));
    guest.descriptor(0, 8, (table, 32, INDIRECT, 0));
    guest.descriptor_at(table, (data + 10, 16 + 8192 - 10, NEXT, 1));
    guest.descriptor_at(table + 16, (Guest::status_at(0, 0), 1, WRITABLE, 0));
    guest.make_available(0, 7);
    guest.kick(0);
    assert_eq!(guest.ended(0), (7, 1));
    assert_eq!(guest.status(0, 0), 0);
    assert!(served.read(64, 8192) == bytes);
}

#[test]
fn requests_that_the_disk_cannot_do_end_with_an_error_and_change_nothing() {
    let served = Served::start(Way::Memory);
    let mut guest = served.guest();
    let last = SIZE_BYTES / 512;
    let bytes = pattern(1, 4096);
    assert_eq!(guest.write_data(last - 8, &bytes), 0);
    for sector in [last, last - 7, u64::MAX, 1 << 55, 1] {
        assert_eq!(guest.run(0, WRITE, sector, 4096), 1, "{sector}");
        assert_eq!(guest.run(0, READ, sector, 4096), 1, "{sector}");
    }
    assert_eq!(guest.run(0, WRITE, 0, 512), 1, "a part of a block");
    assert_eq!(guest.run(0, WRITE, 0, 0), 1, "no data");
    assert_eq!(guest.run(0, 99, 0, 4096), 2);
    assert_eq!(guest.run_segment(DISCARD, 0, 8, 1), 2, "a flag");
    assert_eq!(guest.run_segment(DISCARD, last, 8, 0), 1);
    assert_eq!(guest.run_segment(DISCARD, 0, 8, 0), 0);
    assert!(served.read(last - 8, 4096) == bytes);
    assert_eq!(guest.run(0, GET_ID, 0, 20), 0);
    assert_eq!(guest.read(Guest::data_at(0, 0), 20), b"the disk\0\0\0\0\0\0\0\0\0\0\0\0");
    let config = guest.config();
    assert_eq!(config[..8], last.to_le_bytes());
    assert_eq!(config[20..24], BLOCK.to_le_bytes());
    assert!(guest.lives(0));
}

#[test]
fn bad_chain_stops_its_queue_and_no_other() {
    let served = Served::start(Way::Memory);
    let bad: [&[(u64, u32, u16, u16)]; 8] = [
        &[(0, 16, NEXT, 10)],
        &[(0, 16, NEXT, 300)],
        &[(memory_bytes(), 16, NEXT, 12), (0, 0, 0, 0), (0, 1, WRITABLE, 0)],
        &[(memory_bytes() - 8, 16, NEXT, 12), (0, 0, 0, 0), (0, 1, WRITABLE, 0)],
        &[(0, 1, WRITABLE | NEXT, 11), (0, 16, 0, 0)],
        &[(0, 16, 0, 0)],
        &[(0, 15, NEXT, 11), (0, 1, WRITABLE, 0)],
        &[(memory_bytes(), 32, INDIRECT, 0)],
    ];
    for chain in bad {
        let features = F_FLUSH | F_INDIRECT | F_EVENT_INDEX;
        let mut guest = Guest::connect(&served.socket, 2, features);
        assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
        assert_eq!(guest.run(1, FLUSH, 0, 0), 0);
        for (index, descriptor) in (10..).zip(chain) {
            guest.descriptor(0, index, *descriptor);
        }
        // One that was fetched before is finished.
        guest.push(0, 20, FLUSH, 0, 0);
        guest.make_available(0, 10);
        guest.kick(0);
        assert!(guest.is_stopped(0), "{chain:?}");
        assert_eq!(guest.ended(0).0, 60, "{chain:?}");
        assert!(!guest.has_ended(0) && guest.lives(1));
        assert_eq!(guest.run(1, FLUSH, 0, 0), 0);
        assert_eq!(guest.stop(0), 2, "the bad one is the next one");
    }
}

#[test]
fn front_end_that_dies_with_requests_in_flight_loses_nothing_that_was_acknowledged() {
    for way in WAYS {
        let served = Served::start(way);
        for round in 1..20u64 {
            let mut guest = served.guest();
            let bytes = pattern(round, 4096);
            assert_eq!(guest.write_data(8 * round, &bytes), 0);
            for slot in 1..SLOTS {
                guest.push(0, slot, WRITE, 4096 + u64::from(slot) * 512, SLOT_BYTES as u32);
            }
            guest.kick(0);
            drop(guest);
            // The next one waits until the first has left.
            let mut guest = served.guest();
            for before in 1..=round {
                assert!(guest.read_data(8 * before, 4096) == pattern(before, 4096), "{way:?}");
            }
        }
        served.serving.stop();
    }
}

#[test]
fn memory_that_a_front_end_takes_away_stops_its_queue_and_not_the_server() {
    let served = Served::start(Way::Memory);
    let mut guest = served.guest();
    let bytes = pattern(1, 4096);
    assert_eq!(guest.write_data(8, &bytes), 0);
    guest.push(0, 1, WRITE, 8, 4096);
    // The rings stay, the data does not.
    guest.memory.set_len(Guest::data_at(0, 0)).unwrap();
    guest.kick(0);
    assert!(guest.is_stopped(0));
    assert!(!guest.has_ended(0));
    drop(guest);
    assert!(served.guest().read_data(8, 4096) == bytes, "zeroes of nobody are not written");
}

#[test]
fn front_end_that_replaces_memory_that_it_took_away_goes_on_without_a_reconnection() {
    let served = Served::start(Way::Memory);
    let whole = region(0, memory_bytes(), 0);
    for is_added in [false, true] {
        let mut guest = served.guest();
        assert_eq!(guest.write_data(8, &pattern(1, 4096)), 0);
        // The rings stay, the data does not.
        guest.push(0, 1, WRITE, 8, 4096);
        guest.memory.set_len(Guest::data_at(0, 0)).unwrap();
        guest.kick(0);
        assert!(guest.is_stopped(0));
        guest.memory.set_len(memory_bytes()).unwrap();
        let file = guest.memory.try_clone().unwrap();
        if is_added {
            let one: Vec<u8> =
                [0].iter().chain(&whole).flat_map(|word| word.to_le_bytes()).collect();
            assert!(guest.try_command(REM_MEM_REG, &one, &[]));
            assert!(guest.try_command(ADD_MEM_REG, &one, &[file.as_fd()]));
        } else {
            assert!(guest.try_command(SET_MEM_TABLE, &table(&[whole]), &[file.as_fd()]));
        }
        let base = guest.stop(0);
        assert_eq!(base, 1, "the write is the next request");
        guest.write(Guest::data_at(0, 1), &pattern(2, 4096));
        guest.start_again(0, base);
        guest.kick(0);
        assert_eq!((guest.ended(0).0, guest.status(0, 1)), (3, 0));
        assert!(guest.read_data(8, 4096) == pattern(2, 4096));
    }
}

#[test]
fn memory_may_change_between_requests() {
    let served = Served::start(Way::Cached);
    let mut guest = served.guest();
    let bytes = pattern(1, 4096);
    assert_eq!(guest.write_data(8, &bytes), 0);
    let half = memory_bytes() / 2;
    let regions = table(&[region(0, half, 0), region(half, memory_bytes() - half, half)]);
    for _ in 0..10 {
        let file = guest.memory.try_clone().unwrap();
        (1..SLOTS).for_each(|slot| guest.push(0, slot, READ, 8, 4096));
        guest.kick(0);
        assert!(guest.try_command(SET_MEM_TABLE, &regions, &[file.as_fd(), file.as_fd()]));
        for _ in 1..SLOTS {
            guest.ended(0);
        }
        for slot in 1..SLOTS {
            assert!(guest.read(Guest::data_at(0, slot), 4096) == bytes);
        }
    }
    let too_long = table(&[region(0, memory_bytes() + 4096, 0)]);
    let file = guest.memory.try_clone().unwrap();
    assert!(!guest.try_command(SET_MEM_TABLE, &too_long, &[file.as_fd()]));
}

#[test]
fn stopped_queue_has_nothing_in_flight_and_goes_on_where_it_stopped() {
    for way in WAYS {
        let served = Served::start(way);
        let mut guest = served.guest();
        assert_eq!(guest.stop(0), 0, "it was never kicked");
        guest.start_again(0, 0);
        let mut base = 0;
        for round in 0..5u32 {
            for slot in 0..SLOTS {
                guest.write(Guest::data_at(0, slot), &pattern(round.into(), 4096));
                guest.push(0, slot, WRITE, 8 * u64::from(slot), 4096);
            }
            guest.kick(0);
            let next = guest.stop(0);
            assert!((base..=base + u32::from(SLOTS)).contains(&next), "{base} {next}");
            for _ in base..next {
                guest.ended(0);
            }
            assert!(!guest.has_ended(0), "{way:?}: the base counts what has ended");
            guest.start_again(0, next);
            guest.kick(0);
            base += u32::from(SLOTS);
            for _ in next..base {
                guest.ended(0);
            }
        }
    }
}

#[test]
fn descriptors_that_are_full_or_no_events_harm_nobody() {
    let served = Served::start(Way::Memory);
    let mut guest = served.guest();
    let number = 0u64.to_le_bytes();
    for path in ["/dev/zero", "/", "/proc/self/exe"] {
        let file = File::open(path).unwrap();
        assert!(!guest.try_command(SET_VRING_KICK, &number, &[file.as_fd()]), "{path}");
        assert!(!guest.try_command(SET_VRING_CALL, &number, &[file.as_fd()]), "{path}");
    }
    // At its maximum: a write would block.
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    let _ = rustix::io::read(guest.call(0), &mut [0; 8]);
    let _ = rustix::io::write(guest.call(0), &(u64::MAX - 1).to_ne_bytes());
    for slot in 0..SLOTS {
        guest.push(0, slot, FLUSH, 0, 0);
        guest.kick(0);
        guest.ended(0);
        let _ = rustix::io::write(guest.call(0), &(u64::MAX - 1).to_ne_bytes());
    }
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    drop(reader);
    assert!(guest.try_command(SET_VRING_CALL, &number, &[writer.as_fd()]));
    guest.push(0, 0, FLUSH, 0, 0);
    guest.kick(0);
    // The queue calls once when it gets a new call descriptor.
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    assert!(guest.try_command(SET_VRING_CALL, &number, &[writer.as_fd()]));
    while !guest.has_ended(0) {
        rustix::io::read(&reader, &mut [0; 8]).unwrap();
    }
    assert_eq!(guest.status(0, 0), 0, "a pipe without a reader is no reason to die");
    served.serving.stop();
}

#[test]
fn front_end_that_breaks_the_protocol_is_disconnected_and_the_next_one_is_served() {
    let served = Served::start(Way::Memory);
    let messages: [(u32, u32, &[u8]); 4] =
        [(1, 2, &[]), (2, 0, &[1, 2, 3]), (99, 0, &[]), (8, 0, &[0xff; 8])];
    for (request, flags, body) in messages {
        let mut guest = served.guest();
        guest.message(request, flags, body, &[]);
        assert!(guest.is_disconnected(), "{request}");
    }
    assert_eq!(served.guest().run(0, FLUSH, 0, 0), 0);
}

#[test]
fn suspended_volume_leaves_requests_with_the_guest() {
    let served = Served::start(Way::Memory);
    let mut guest = served.guest();
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    served.volume.suspend().unwrap();
    guest.push(0, 0, FLUSH, 0, 0);
    guest.kick(0);
    let base = guest.stop(0);
    assert_eq!((base, guest.has_ended(0)), (1, false));
    guest.start_again(0, base);
    served.volume.resume(false).unwrap();
    guest.kick(0);
    assert_eq!(guest.ended(0).0, 0);
}
