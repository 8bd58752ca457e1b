use std::collections::BTreeMap;

use blockyard_engine::elevator::Generation;
use blockyard_engine::mq::{PlugRule, QueueConfig};
use blockyard_workload::fio::{Fio, Job};

use super::*;
use crate::fs::FsConfig;
use crate::fs::ext3::Ext3Config;
use crate::world::tests::config;
use crate::world::{Config, DeviceConfig, Event, Observer, run};

const CHUNK_SECTORS: u32 = 128;

fn raid(members: u16, copies: u16) -> Option<RaidConfig> {
    Some(RaidConfig { members, copies, chunk_sectors: CHUNK_SECTORS })
}

/// Disks without a file system, which take one command at a time.
fn world(raid: Option<RaidConfig>) -> Config {
    let mut config = config("mq-deadline");
    config.fs = None;
    config.raid = raid;
    let plug = PlugRule::PerContext;
    let queue = QueueConfig::of(Generation::Multi);
    config.queue = QueueConfig { plug, queue_depth: 1, rotational: true, ..queue };
    let DeviceConfig::Disk(disk) = &mut config.device else { unreachable!("it is a disk") };
    disk.queue_depth = 1;
    config
}

/// Direct I/O with these options of fio.
fn fio(config: &Config, options: &[(&str, &str)]) -> (f64, f64) {
    let mut job = Job::new("a");
    let usual = [("direct", "1"), ("size", "8g"), ("bs", "4k")];
    for (key, value) in usual.iter().chain(options) {
        job.set(key, value).unwrap();
    }
    let mut program = Fio::new(vec![job]).unwrap();
    run(config, &mut program, ()).unwrap();
    let result = &program.results()[0];
    let both = [&result.read, &result.write];
    let mean_ns: f64 = both.iter().map(|one| one.lat.mean_ns()).sum();
    let ios: u64 = both.iter().map(|one| one.ios).sum();
    (ios as f64 / (result.runtime.0 as f64 / 1e9), mean_ns / 1e6)
}

#[test]
fn random_reads_are_as_many_times_faster_as_there_are_members() {
    let options = [("rw", "randread"), ("iodepth", "64"), ("number_ios", "4000")];
    let one = fio(&world(None), &options).0;
    for (members, copies) in [(4, 1), (4, 2), (4, 4)] {
        let rate = fio(&world(raid(members, copies)), &options).0;
        let times = rate / one;
        // Each sorts fewer requests than one disk with all of them.
        assert!((2.4..4.2).contains(&times), "{members}, {copies}: {times}");
    }
    // Each member has as much of it as the one disk.
    let alone =
        |size| [("rw", "randread"), ("iodepth", "1"), ("number_ios", "1000"), ("size", size)];
    let times = fio(&world(raid(4, 1)), &alone("32g")).0 / fio(&world(None), &alone("8g")).0;
    assert!((0.95..1.1).contains(&times), "one read at a time has one disk: {times}");
}

/// The larger of two independent rotations takes two thirds of a turn on average, one a half.
#[test]
fn write_of_a_mirror_waits_for_the_later_of_its_copies() {
    let options = [("rw", "randwrite"), ("iodepth", "1"), ("number_ios", "3000")];
    let mut turns = 0.0;
    let (_, one_ms) = fio(&world(None), &options);
    for seed in 1..=6 {
        let config = Config { seed, ..world(raid(2, 2)) };
        turns += (fio(&config, &options).1 - one_ms) / 8.333 / 6.0;
    }
    assert!((0.10..0.24).contains(&turns), "{turns} of a turn more");
}

/// Bytes of requests by member, and members of flushes in order.
#[derive(Default)]
struct Issued {
    member_sectors: u64,
    sectors: BTreeMap<u64, u64>,
    largest: u32,
    /// Events in order: the member of a flush, and `None` for a write.
    order: Vec<Option<u64>>,
}

impl Observer for Issued {
    fn event(&mut self, _: Nanos, event: &Event) {
        let Event::Issue { op, sector, sectors, .. } = *event else { return };
        let member = sector / self.member_sectors;
        self.order.push((op == Op::Flush).then_some(member));
        if op != Op::Flush {
            *self.sectors.entry(member).or_default() += u64::from(sectors);
            self.largest = self.largest.max(sectors);
        }
    }
}

fn issued(config: &Config, options: &[(&str, &str)]) -> Issued {
    let mut job = Job::new("a");
    options.iter().for_each(|(key, value)| job.set(key, value).unwrap());
    let issued = Issued { member_sectors: config.device.sectors(), ..Issued::default() };
    run(config, &mut Fio::new(vec![job]).unwrap(), issued).unwrap().1
}

/// Conservation: what is written is on the members once for each copy, evenly.
#[test]
fn written_bytes_are_on_the_members_once_for_each_copy() {
    let options = [("rw", "write"), ("direct", "1"), ("bs", "1m"), ("size", "64m")];
    let sectors = (64 << 20) / 512;
    for (members, copies) in [(4, 1), (4, 2), (2, 2), (3, 2)] {
        let issued = issued(&world(raid(members, copies)), &options);
        assert_eq!(issued.sectors.len(), usize::from(members));
        assert_eq!(issued.sectors.values().sum::<u64>(), sectors * u64::from(copies));
        let even = sectors * u64::from(copies) / u64::from(members);
        let is_even = |sum: &u64| sum.abs_diff(even) <= 4 * u64::from(CHUNK_SECTORS);
        assert!(issued.sectors.values().all(is_even), "{:?}", issued.sectors);
        // Chunks of a bio that are neighbours on a member are merged there.
        assert!(issued.largest >= 2 * CHUNK_SECTORS, "{}", issued.largest);
    }
}

#[test]
fn flush_goes_to_every_member_and_nothing_of_its_write_before_all_have_ended() {
    let options = [("rw", "write"), ("bs", "4k"), ("size", "4k"), ("end_fsync", "1")];
    let mut config = world(raid(3, 1));
    config.queue.write_cache = true;
    let order = issued(&config, &options).order;
    let mut flushed: Vec<u64> = order.iter().filter_map(|member| *member).collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [0, 1, 2], "{order:?}");
    config.raid = None;
    assert_eq!(issued(&config, &options).order, [None, Some(0)]);
}

/// Commits flush all members before their records, while writers wait for one of few requests.
#[test]
fn journal_with_barriers_flushes_all_members_while_writers_wait_for_requests() {
    let mut config = world(raid(3, 1));
    let fs = crate::world::tests::config("mq-deadline").fs;
    let Some(FsConfig::Ext3(ext3)) = fs else { unreachable!("it is ext3") };
    config.fs = Some(FsConfig::Ext3(Ext3Config { barriers: true, ..ext3 }));
    config.queue.write_cache = true;
    config.queue.nr_requests = 2;
    let words = [("rw", "write"), ("size", "2m"), ("numjobs", "6"), ("number_ios", "40")];
    let issued = issued(&config, &[&words[..], &[("fsync", "3")]].concat());
    let flushes = |of: u64| issued.order.iter().filter(|one| **one == Some(of)).count();
    // A member with a record has another flush behind it: the device has no FUA.
    assert!((0..3).all(|member| flushes(member) > 0), "{:?}", issued.order);
}

const USER: u64 = 7;

/// Enters a bio; returns its number and its parts.
fn enter(raid: &mut Raid, op: Op, sector: u64) -> (u32, Vec<(MemberId, Bio)>) {
    let bio = Bio::new(op, Sector(sector), Sector(8), BufRef::zeros(4096), USER);
    let thread = ThreadId(0);
    let status = BlkStatus::Ok;
    let whole = Whole { bio, thread, left: 0, parked: 0, status, flushes: false };
    let number = raid.wholes.insert(whole);
    (number, raid.parts_of(number))
}

#[test]
fn bio_waits_until_each_of_its_parts_has_a_request() {
    let mut raid = Raid::new(raid(2, 2).unwrap(), true);
    let (number, parts) = enter(&mut raid, Op::Write, 0);
    raid.wholes.at(number).parked = 2;
    let [(_, first), (_, second)] = &parts[..] else { panic!("each copy is a part") };
    let mut unpark = |part: &Bio| {
        let mut unparked = vec![part.user];
        raid.unpark(&mut unparked);
        unparked
    };
    assert!(unpark(first).is_empty());
    assert_eq!(unpark(second), [USER]);
}

#[test]
fn read_goes_to_an_idle_mirror_then_to_the_nearest_head_or_to_the_least_busy() {
    let config = raid(2, 2).unwrap();
    for rotational in [true, false] {
        let mut raid = Raid::new(config, rotational);
        (raid.loads[0].head, raid.loads[1].head) = (5_000, 1_000);
        let members: Vec<u16> = [1_000, 0, 1_008, 1_016, 4_000, 1_024]
            .iter()
            .map(|sector| enter(&mut raid, Op::Read, *sector).1[0].0.0)
            .collect();
        // The first of two idle ones, then the other one; then both are busy.
        assert_eq!(members[..2], [0, 1]);
        let expected = if rotational { [1, 1, 0, 1] } else { [0, 1, 0, 1] };
        assert_eq!(members[2..], expected, "{rotational}");
    }
}
