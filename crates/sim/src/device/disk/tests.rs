//! Expectations from physics and manuals.

use blockyard_engine::bio::Sector;
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::geometry::{Geometry, SeekTimes};
use super::{Disk, DiskConfig, Policy};
use crate::device::{Command, CommandOp, Device};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A desktop drive of 7200 rpm; times close to manuals of about 2008.
fn config(policy: Policy, write_cache_sectors: u32) -> DiskConfig {
    let seek = SeekTimes {
        track_to_track: Nanos(800 * US),
        average: Nanos(8_500 * US),
        full_stroke: Nanos(17 * MS),
        head_switch: Nanos(700 * US),
        write_settle: Nanos(500 * US),
    };
    let revolution = Nanos(60_000 * MS / 7_200);
    DiskConfig {
        geometry: Geometry::even(revolution, 4, 488_000_000, (1_260, 630), seek),
        overhead: Nanos(100 * US),
        overlaps_overhead: false,
        bus_sector: Nanos(1_700),
        queue_depth: 32,
        policy,
        write_cache_sectors,
        destage_after: Nanos(20 * MS),
        read_ahead_sectors: 4_096,
    }
}

fn disk(policy: Policy) -> Disk {
    Disk::new(config(policy, 0))
}

const SHORTEST: Policy = Policy::ShortestPositioning { age_max: Nanos(2_400 * MS) };

fn command(tag: u32, op: CommandOp, sector: u64, sectors: u32) -> Command {
    Command { tag, op, sector: Sector(sector), sectors }
}

/// Runs commands, `depth` at a time; returns the end of the last one.
fn run(disk: &mut Disk, depth: usize, commands: impl Iterator<Item = Command>) -> Nanos {
    let mut commands = commands.peekable();
    let mut now = Nanos(0);
    let mut in_flight = 0;
    let mut ended = Vec::new();
    while commands.peek().is_some() || in_flight > 0 {
        while in_flight < depth
            && let Some(command) = commands.next()
        {
            disk.start(now, command);
            in_flight += 1;
        }
        now = disk.next_event().expect("something is in flight");
        disk.advance(now, &mut ended);
        in_flight -= ended.drain(..).count();
    }
    now
}

fn random_reads(count: u32, sectors: u64, seed: u64) -> impl Iterator<Item = Command> {
    let mut rng = Random::new(seed, 0);
    (0..count).map(move |tag| command(tag, CommandOp::Read, rng.below(sectors - 8), 8))
}

fn per_second(count: u32, time: Nanos) -> u64 {
    u64::from(count) * 1_000 * MS / time.0
}

#[test]
fn random_reads_one_at_a_time_cost_overhead_seek_and_half_a_turn() {
    let mut disk = disk(SHORTEST);
    let sectors = disk.sectors();
    let time = run(&mut disk, 1, random_reads(5_000, sectors, 1));
    let rotating = disk.counters().rotating.0 / 5_000;
    let seeking = disk.counters().seeking.0 / 5_000;
    // Half a revolution of 8.33 ms, within the error of 5000 samples.
    assert!((4_050 * US..4_280 * US).contains(&rotating), "{rotating}");
    // The mean over random pairs is near the time for a third of the disk.
    assert!((7_000 * US..8_700 * US).contains(&seeking), "{seeking}");
    assert!((70..85).contains(&per_second(5_000, time)), "{}", per_second(5_000, time));
}

#[test]
fn sequential_reads_run_at_the_rate_of_their_zone_even_one_at_a_time() {
    for (start, per_track) in [(0, 1_260), (487_000_000, 630)] {
        let mut disk = disk(SHORTEST);
        let commands =
            (0..2_000).map(|n| command(n, CommandOp::Read, start + u64::from(n) * 256, 256));
        let time = run(&mut disk, 1, commands);
        let rate = 2_000 * 256 * 512 * 1_000 / (time.0 / US) / 1_000;
        // A track takes one revolution and the skew to the next.
        let track_us = 8_333 + 800;
        let expected = per_track * 512 / track_us;
        assert!(rate.abs_diff(expected) <= 1 + expected / 20, "{rate} MB/s, {expected} expected");
    }
}

/// Sequential writes without a cache. A drive that prepares a command only when the mechanism is
/// free misses the next sector: with one command it loses a turn each, with eight it takes a later
/// one first.
#[test]
fn prepared_commands_stream_and_others_lose_turns() {
    let time = |overlaps_overhead, depth| {
        let config = DiskConfig { overlaps_overhead, ..config(SHORTEST, 0) };
        let write = CommandOp::Write { fua: false };
        let commands = (0..150).map(|n| command(n, write, u64::from(n) * 8, 8));
        run(&mut Disk::new(config), depth, commands).0 / MS
    };
    // 1200 sectors of a track of 1260: at most a revolution of 8.33 ms to the first, and one over
    // all; or a revolution for each of 150 writes.
    let prepared = time(true, 8);
    assert!((8..17).contains(&prepared), "{prepared} ms");
    let alone = time(false, 1);
    assert!(alone >= 149 * 8, "{alone} ms");
    let eight = time(false, 8);
    assert!((prepared * 8..alone / 3).contains(&eight), "{eight} ms");
}

/// Writes of 4 KiB by streams that take turns, each sequential. A command that is not prepared when
/// its sector comes by costs a turn, so the drive prefers a prepared one further ahead.
#[test]
fn streams_of_prepared_commands_are_not_slower_in_a_deeper_queue() {
    let time = |depth: u32, streams: u64| {
        let overlaps_overhead = true;
        let queue_depth = depth;
        let config = DiskConfig { overlaps_overhead, queue_depth, ..config(SHORTEST, 0) };
        let write = CommandOp::Write { fua: false };
        let sector = |n: u64| (n % streams) * 160 + n / streams * 8;
        let commands = (0..600).map(|n| command(n, write, sector(u64::from(n)), 8));
        run(&mut Disk::new(config), depth as usize, commands).0 / (100 * US)
    };
    for streams in [1, 2, 4, 8] {
        let times = [4, 8, 16, 32].map(|depth| time(depth, streams));
        // The last command may miss its sector once: a revolution, in units of 100 us.
        let turn = 84;
        assert!(times.windows(2).all(|two| two[1] <= two[0] + turn), "{streams}: {times:?}");
    }
}

/// Random reads of 4 KiB per second at each depth.
fn rates(policy: Policy, depths: &[usize]) -> Vec<u64> {
    let rate = |depth: &usize| {
        let mut disk = disk(policy);
        let sectors = disk.sectors();
        per_second(4_000, run(&mut disk, *depth, random_reads(4_000, sectors, 2)))
    };
    depths.iter().map(rate).collect()
}

/// Data sheets of drives of 7200 rpm promise about 80 random reads of 4 KiB a second one at a time
/// and 170 at depth 16 (Seagate Exos X16); reviews of drives with NCQ report 1.8 to 2.6 times the
/// rate of depth 1 at depth 32. Each band, in percent of depth 1, surrounds these values.
#[test]
fn random_reads_over_depth_gain_what_data_sheets_and_reviews_say() {
    let rates = rates(SHORTEST, &[1, 2, 4, 8, 16, 32]);
    let bands = [100..101, 98..121, 115..161, 135..201, 160..241, 180..281];
    for (rate, band) in rates.iter().zip(bands) {
        assert!(band.contains(&(rate * 100 / rates[0])), "{rates:?}, {band:?} %");
    }
    assert!(rates[1..].is_sorted(), "a deeper queue is never slower: {rates:?}");
    let in_order = self::rates(Policy::InOrder, &[32])[0];
    assert!(in_order.abs_diff(rates[0]) <= 3, "in order of arrival it gains nothing: {in_order}");
}

/// From shortest positioning alone to order of arrival: the shorter the limit, the more the age
/// weighs. No limit makes a queue with longer waits lose all of its gain.
#[test]
fn gain_of_a_deep_queue_falls_bit_by_bit_with_the_age_limit() {
    let rate =
        |ms: u64| rates(Policy::ShortestPositioning { age_max: Nanos::from_ms(ms) }, &[32])[0];
    let rates = [1, 30, 100, 300, 1_000, 10_000, 1_000_000].map(rate);
    // Not exactly sorted: the age limit changes the order of all later reads, and the shortest way
    // to the next read is not the shortest way to all of them. 4000 random reads measure a rate to
    // about one percent.
    assert!(rates.windows(2).all(|two| two[1] * 101 >= two[0] * 100), "{rates:?}");
    let steps = rates.windows(2).map(|two| two[1] * 100 / two[0]);
    assert!(steps.clone().all(|step| step < 145), "{rates:?}");
}

/// The bound: no command is passed by one that came later by the limit or more.
#[test]
fn no_command_is_passed_by_one_that_came_so_much_later() {
    let age_max = Nanos::from_ms(400);
    let policy = Policy::ShortestPositioning { age_max };
    let mut disk = Disk::new(DiskConfig { read_ahead_sectors: 0, ..config(policy, 0) });
    let far = disk.sectors() - 8;
    let mut rng = Random::new(3, 0);
    let mut now = Nanos(0);
    let mut arrived = Vec::new();
    let mut ended = Vec::new();
    while ended.len() < 2_000 {
        while arrived.len() < ended.len() + 8 {
            // Nearly all commands are near the arm.
            let tag = arrived.len() as u32;
            let sector = if tag % 64 == 3 { far } else { rng.below(100_000) };
            disk.start(now, command(tag, CommandOp::Read, sector, 8));
            arrived.push(now);
        }
        now = disk.next_event().unwrap();
        disk.advance(now, &mut ended);
    }
    let order: Vec<Nanos> = ended.iter().map(|(_, tag)| arrived[*tag as usize]).collect();
    let mut latest = Nanos(0);
    let mut most = Nanos(0);
    for arrived in order {
        latest = latest.max(arrived);
        most = most.max(latest.since(arrived));
    }
    assert!(most < age_max, "{most:?}");
    assert!(most > age_max.since(Nanos::from_ms(250)), "far ones are passed for long: {most:?}");
}

#[test]
fn flush_ends_although_reads_near_the_arm_keep_coming() {
    let age_max = Nanos::from_ms(400);
    let policy = Policy::ShortestPositioning { age_max };
    let mut disk = Disk::new(DiskConfig { read_ahead_sectors: 0, ..config(policy, 16_384) });
    let far = disk.sectors() - 8;
    let mut rng = Random::new(3, 0);
    for tag in 2..10 {
        disk.start(Nanos(0), command(tag, CommandOp::Read, rng.below(100_000), 8));
    }
    disk.start(Nanos(0), command(0, CommandOp::Write { fua: false }, far, 8));
    disk.start(Nanos(0), command(1, CommandOp::Flush, 0, 0));
    let mut ended = Vec::new();
    let mut tag = 10;
    while !ended.iter().any(|(_, ended)| *ended == 1) {
        let now = disk.next_event().unwrap();
        let before = ended.len();
        disk.advance(now, &mut ended);
        for _ in ended[before..].iter().filter(|(_, ended)| *ended > 1) {
            disk.start(now, command(tag, CommandOp::Read, rng.below(100_000), 8));
            tag += 1;
        }
    }
    let took = ended.last().unwrap().0;
    assert!(took < age_max + Nanos::from_ms(100), "{took:?}");
}

#[test]
fn cached_writes_end_at_once_and_a_flush_waits_for_the_medium() {
    let mut disk = Disk::new(config(SHORTEST, 16_384));
    let mut rng = Random::new(4, 0);
    for tag in 0..20 {
        let sector = rng.below(400_000_000);
        disk.start(Nanos(0), command(tag, CommandOp::Write { fua: false }, sector, 8));
    }
    disk.start(Nanos(0), command(20, CommandOp::Flush, 0, 0));
    let mut ended = Vec::new();
    disk.advance(Nanos(2 * MS), &mut ended);
    assert_eq!(ended.len(), 20, "all writes, and not the flush");
    while ended.len() < 21 {
        let now = disk.next_event().unwrap();
        disk.advance(now, &mut ended);
    }
    let (at, tag) = ended[20];
    assert_eq!(tag, 20);
    assert!((60 * MS..250 * MS).contains(&at.0), "20 positionings, sorted: {at:?}");
}

/// A sequential reader with pauses, beside a cache with dirty data far away.
#[test]
fn short_pauses_of_a_reader_belong_to_its_read_ahead_and_long_ones_to_the_cache() {
    let jobs = |pause_ms: u64, destage_after_ms: u64| {
        let destage_after = Nanos(destage_after_ms * MS);
        let mut disk = Disk::new(DiskConfig { destage_after, ..config(SHORTEST, 16_384) });
        for tag in 0..20 {
            let sector = 200_000_000 + u64::from(tag) * 10_000_000;
            disk.start(Nanos(0), command(tag, CommandOp::Write { fua: false }, sector, 8));
        }
        let mut now = Nanos(2 * MS);
        let mut ended = Vec::new();
        disk.advance(now, &mut ended);
        for tag in 0..20 {
            disk.start(now, command(20 + tag, CommandOp::Read, u64::from(tag) * 8, 8));
            while ended.len() < 21 + tag as usize {
                now = disk.next_event().unwrap();
                disk.advance(now, &mut ended);
            }
            now = now + Nanos(pause_ms * MS);
            disk.advance(now, &mut ended);
        }
        (disk.counters().jobs, disk.counters().buffer_hits)
    };
    assert_eq!(jobs(8, 20), (1, 19), "one read of the medium; all others from the read-ahead");
    let (destaged, hits) = jobs(100, 20);
    assert_eq!(destaged + hits, 20 + 20, "all writes, and each read once");
    assert!((14..19).contains(&hits), "three pauses are enough for the cache: {hits}");
    let (destaged, hits) = jobs(8, 0);
    assert!(destaged > 20 && hits < 19, "without the wait it loses its place: {destaged} {hits}");
}

#[test]
fn flush_does_not_wait_for_what_was_written_after_it() {
    let mut disk = Disk::new(config(SHORTEST, 16_384));
    disk.start(Nanos(0), command(0, CommandOp::Write { fua: false }, 1_000, 8));
    disk.start(Nanos(0), command(1, CommandOp::Flush, 0, 0));
    for tag in 2..30 {
        let sector = u64::from(tag) * 10_000_000;
        disk.start(Nanos(0), command(tag, CommandOp::Write { fua: false }, sector, 8));
    }
    let mut ended = Vec::new();
    while !ended.iter().any(|(_, tag)| *tag == 1) {
        disk.advance(disk.next_event().unwrap(), &mut ended);
    }
    assert!(ended.last().unwrap().0.0 < 60 * MS, "{:?}", ended.last());
}

#[test]
fn flush_ends_when_what_it_waits_for_is_written_again_and_not_before_that_is_on_the_medium() {
    for fua in [false, true] {
        let mut disk = Disk::new(config(Policy::InOrder, 16_384));
        // The arm is far away and busy, so nothing leaves the cache meanwhile.
        disk.start(Nanos(0), command(0, CommandOp::Read, 400_000_000, 8));
        disk.start(Nanos(0), command(1, CommandOp::Write { fua: false }, 1_000, 8));
        disk.start(Nanos(0), command(2, CommandOp::Flush, 0, 0));
        disk.start(Nanos(0), command(3, CommandOp::Write { fua }, 1_000, 8));
        let mut ended = Vec::new();
        while ended.len() < 4 {
            disk.advance(disk.next_event().expect("not all have ended"), &mut ended);
        }
        let end = |tag| ended.iter().position(|(_, ended)| *ended == tag).unwrap();
        assert!(end(0) < end(2), "{ended:?}");
        assert_eq!(disk.counters().jobs, 2, "a read and one write");
    }
}

#[test]
fn write_that_must_be_stable_waits_for_the_medium() {
    let mut disk = Disk::new(config(SHORTEST, 16_384));
    disk.start(Nanos(0), command(0, CommandOp::Write { fua: true }, 300_000_000, 8));
    let mut ended = Vec::new();
    disk.advance(Nanos(5 * MS), &mut ended);
    assert!(ended.is_empty());
    disk.advance(Nanos(40 * MS), &mut ended);
    assert_eq!(ended.len(), 1);
}

#[test]
fn adjacent_writes_in_one_command_cost_one_turn_and_apart_one_each() {
    let mut disk = disk(Policy::InOrder);
    let whole =
        run(&mut disk, 1, std::iter::once(command(0, CommandOp::Write { fua: true }, 0, 512)));
    let mut disk = Disk::new(config(Policy::InOrder, 0));
    let apart = (0..64).map(|n| command(n, CommandOp::Write { fua: true }, u64::from(n) * 8, 8));
    let apart = run(&mut disk, 1, apart);
    // Each command waits for a revolution, because the sector after the last has just passed.
    assert!(apart.0 > whole.0 + 62 * 8 * MS, "{whole:?} and {apart:?}");
}

/// Hitachi 5K320 (5400 rpm), from its OEM specification: average seek 12 ms, single track 1.0 ms,
/// full stroke 20 ms, 11.1 ms per revolution. The specification defines the average as the mean
/// over all pairs of tracks, weighted by the number of pairs at each distance.
#[test]
fn seek_curve_has_the_average_that_a_published_specification_defines() {
    let seek = SeekTimes {
        track_to_track: Nanos(MS),
        average: Nanos(12 * MS),
        full_stroke: Nanos(20 * MS),
        head_switch: Nanos(MS),
        write_settle: Nanos(100 * US),
    };
    let revolution = Nanos(60_000 * MS / 5_400);
    let geometry = Geometry::even(revolution, 4, 312_500_000, (1_100, 550), seek);
    let last = u64::from(geometry.cylinders() - 1);
    let mut sum = 0u128;
    let mut pairs = 0u128;
    for distance in 1..=last {
        let weight = u128::from(last + 1 - distance);
        let time = geometry.seek_time((0, 0), (distance as u32, 0), false);
        sum += weight * u128::from(time.0);
        pairs += weight;
    }
    let average_us = (sum / pairs) as u64 / US;
    assert!(average_us.abs_diff(12_000) < 12_000 / 10, "{average_us} us");
    assert_eq!(geometry.seek_time((0, 0), (1, 0), false), Nanos(MS));
    assert_eq!(geometry.seek_time((0, 0), (last as u32, 0), false), Nanos(20 * MS));
}

#[test]
fn every_sector_has_a_place_of_its_own_and_cylinders_start_where_they_say() {
    let geometry = config(SHORTEST, 0).geometry;
    for cylinder in (0..geometry.cylinders()).step_by(997) {
        let first = geometry.first_sector(cylinder);
        let place = geometry.place(first);
        assert_eq!((place.cylinder, place.head), (cylinder, 0));
        let tracks = u64::from(place.left_in_track) * u64::from(geometry.heads);
        let last = geometry.place(first + tracks - 1);
        assert_eq!((last.cylinder, last.head, last.left_in_track), (cylinder, 3, 1));
    }
}
