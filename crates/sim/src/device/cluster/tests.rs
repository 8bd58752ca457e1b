use blockyard_engine::bio::Sector;
use blockyard_workload::random::Random;

use super::*;

const US: u64 = 1_000;

/// Hosts with four OSDs on flash, 8 CPUs and a link of 3 GB/s.
fn config(hosts: u32) -> ClusterConfig {
    ClusterConfig {
        sectors: 1 << 32,
        image_sectors: 1 << 22,
        object_sectors: 8_192,
        layout: Layout { hosts, osds_per_host: 4, copies: 3, lost_osds: 0 },
        cpu: OsdCpu {
            cpus_per_host: 8,
            read: Nanos(100 * US),
            write: Nanos(200 * US),
            copy: Nanos(150 * US),
            read_sector: Nanos(100),
            write_sector: Nanos(200),
        },
        network: Network {
            latency: Nanos(20 * US),
            clients: 10,
            client_sector: Nanos(170),
            host_sector: Nanos(170),
        },
        store: Store {
            channels: 32,
            read: Nanos(80 * US),
            write: Nanos(30 * US),
            sector: Nanos(1_000),
            commit: Nanos(50 * US),
            journal_sector: Nanos(200),
            journal_max_sectors: 64,
        },
        recovery: Recovery { active: 3, pause: Nanos(0) },
        queue_depth: 65_536,
    }
}

fn read(tag: u32, sector: u64) -> Command {
    Command { tag, op: CommandOp::Read, sector: Sector(sector), sectors: 8 }
}

fn write(tag: u32, sector: u64) -> Command {
    Command { op: CommandOp::Write { fua: false }, ..read(tag, sector) }
}

/// Ends of these commands, which start at once.
fn ends(cluster: &mut Cluster, commands: &[Command]) -> Vec<(u64, u32)> {
    commands.iter().for_each(|command| cluster.start(Nanos(0), *command));
    let mut ended = Vec::new();
    while ended.len() < commands.len() {
        let next = cluster.next_event().expect("commands are in flight");
        cluster.advance(next, &mut ended);
    }
    ended.into_iter().map(|(at, tag)| (at.0, tag)).collect()
}

/// Commands per second, `depth` at a time.
fn rate(config: ClusterConfig, depth: u32, command: fn(u32, u64) -> Command) -> u64 {
    const COUNT: u32 = 30_000;
    let mut cluster = Cluster::new(config);
    let mut random = Random::new(1, 0);
    let mut ended = Vec::new();
    let mut now = Nanos(0);
    let mut started = 0;
    while (ended.len() as u32) < COUNT {
        while started < COUNT && started - (ended.len() as u32) < depth {
            cluster.start(now, command(started, random.below(1 << 29) * 8));
            started += 1;
        }
        now = cluster.next_event().expect("something is in flight");
        cluster.advance(now, &mut ended);
    }
    u64::from(COUNT) * 1_000_000_000 / now.0
}

#[test]
fn read_takes_the_times_of_its_way() {
    let mut cluster = Cluster::new(config(4));
    let link = 2 * 8 * 170;
    let expected = 20 * US + (100 * US + 8 * 100) + (80 * US + 8 * 1_000) + link + 20 * US;
    assert_eq!(ends(&mut cluster, &[read(7, 800)]), [(expected, 7)]);
}

/// The copy on another host is later than that of the primary.
#[test]
fn write_ends_with_its_last_copy() {
    let link = 8 * 170;
    let commit = 50 * US + 8 * 200;
    let primary = link + 20 * US + link + (200 * US + 8 * 200);
    let one = Layout { copies: 1, ..config(4).layout };
    let mut cluster = Cluster::new(ClusterConfig { layout: one, ..config(4) });
    assert_eq!(ends(&mut cluster, &[write(0, 0)]), [(primary + commit + 20 * US, 0)]);
    // The primary's link carries the second copy after the first.
    let copies = primary + 2 * link + 20 * US + link + (150 * US + 8 * 200) + commit + 20 * US;
    assert_eq!(ends(&mut Cluster::new(config(4)), &[write(0, 0)]), [(copies + 20 * US, 0)]);
}

#[test]
fn long_write_goes_to_the_disk_before_its_record() {
    let one = Layout { hosts: 1, osds_per_host: 1, copies: 1, lost_osds: 0 };
    let mut cluster = Cluster::new(ClusterConfig { layout: one, ..config(1) });
    let long = Command { sectors: 2_048, ..write(0, 0) };
    let links = 2 * 2_048 * 170 + 2 * 20 * US;
    let cpu = 200 * US + 2_048 * 200;
    let disk = 30 * US + 2_048 * 1_000;
    assert_eq!(ends(&mut cluster, &[long]), [(links + cpu + disk + 50 * US, 0)]);
}

#[test]
fn writes_that_wait_for_the_journal_are_committed_together() {
    let one = Layout { hosts: 1, osds_per_host: 1, copies: 1, lost_osds: 0 };
    let commit = Nanos(10_000 * US);
    let store = Store { commit, journal_sector: Nanos(0), ..config(1).store };
    let mut cluster = Cluster::new(ClusterConfig { layout: one, store, ..config(1) });
    let writes: Vec<Command> = (0..100).map(|tag| write(tag, u64::from(tag) * 8)).collect();
    let ends = ends(&mut cluster, &writes);
    // The first alone; those that came during its commit; none is left for a third.
    assert!(ends[0].0 < 11_000 * US && ends[99].0 < 21_000 * US, "{ends:?}");
}

/// The utilisation law: 100.8 us of 8 CPUs for a read, and 201.6 + 2 * 151.6 for a write.
#[test]
fn rate_of_deep_queues_is_that_of_the_cpus_of_all_hosts() {
    for (hosts, depth) in [(4, 2_000), (20, 10_000)] {
        let cpus = f64::from(hosts) * 8.0;
        let reads = rate(config(hosts), depth, read) as f64;
        let of_reads = cpus * 1e6 / 100.8;
        assert!(reads < of_reads && reads > 0.75 * of_reads, "{reads} of {of_reads}");
        let writes = rate(config(hosts), depth, write) as f64;
        let of_writes = cpus * 1e6 / 504.8;
        assert!(writes < of_writes && writes > 0.75 * of_writes, "{writes} of {of_writes}");
    }
}

#[test]
fn images_of_one_client_share_its_link() {
    let network = Network { client_sector: Nanos(10 * US), clients: 2, ..config(4).network };
    let mut cluster = Cluster::new(ClusterConfig { network, ..config(4) });
    let image = config(4).image_sectors;
    let ends = ends(&mut cluster, &[read(0, 0), read(1, image), read(2, 2 * image)]);
    let at = |tag| ends.iter().find(|(_, ended)| *ended == tag).unwrap().0;
    assert!(at(2) >= at(0) + 80 * US && at(1) < at(0) + 80 * US, "{ends:?}");
}

#[test]
fn command_that_touches_two_objects_ends_once() {
    let mut cluster = Cluster::new(config(4));
    let across = Command { sectors: 64, ..write(5, 8_192 - 32) };
    let ends = ends(&mut cluster, &[across]);
    assert_eq!(ends.len(), 1);
    let one = Command { sectors: 64, ..write(5, 0) };
    let whole = self::ends(&mut Cluster::new(config(4)), &[one]);
    assert!(ends[0].0 < whole[0].0, "two shorter writes at once: {ends:?}, {whole:?}");
    assert_eq!(cluster.next_event(), None);
}

#[test]
fn flush_ends_when_writes_before_it_have_ended_and_waits_for_no_later_one() {
    let mut cluster = Cluster::new(config(4));
    let flush = Command { op: CommandOp::Flush, sectors: 0, ..read(99, 0) };
    let later = Command { sectors: 2_048, ..write(1, 1 << 20) };
    let ends = ends(&mut cluster, &[write(0, 0), flush, later]);
    let tags: Vec<u32> = ends.iter().map(|(_, tag)| *tag).collect();
    assert_eq!(tags, [0, 99, 1]);
    assert_eq!(ends[0].0, ends[1].0);
}

/// The recovery takes part of the CPUs and links. Few objects at a time, with pauses, leave most of
/// them to clients.
#[test]
fn recovery_costs_clients_until_it_pauses() {
    let rate = |lost_osds: u32, active: u32, pause_us: u64| {
        let layout = Layout { lost_osds, ..config(4).layout };
        let recovery = Recovery { active, pause: Nanos(pause_us * US) };
        rate(ClusterConfig { layout, recovery, ..config(4) }, 2_000, read)
    };
    let whole = rate(0, 10, 0);
    let during = rate(1, 10, 0);
    let gently = rate(1, 1, 100_000);
    assert!(during * 10 < whole * 9 && gently * 100 > whole * 93, "{whole}, {during}, {gently}");
}
