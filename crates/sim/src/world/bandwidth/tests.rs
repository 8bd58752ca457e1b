use blockyard_workload::random::Random;

use super::*;

const GIB: u64 = 1 << 30;
const TWO_SOCKETS: Topology = Topology::of(2, 4);

fn memory(link_bytes_per_s: Option<u64>) -> Bandwidth {
    let config = BandwidthConfig {
        memory_bytes_per_s: 10 * GIB,
        link_bytes_per_s,
        cipher_percent: 200,
        copy_percent: 200,
        dma_percent: 100,
        device_socket: 0,
    };
    Bandwidth::new(config, TWO_SOCKETS)
}

fn on(home: u16, bytes: u64) -> Traffic {
    Traffic { bytes, home }
}

/// Rates in MiB a second.
fn rates(memory: &Bandwidth) -> Vec<u64> {
    memory.flows.values().map(|flow| flow.rate >> 20).collect()
}

#[test]
fn users_share_evenly_and_a_modest_one_has_what_it_demands() {
    let mut memory = memory(None);
    let long = memory.begin(Nanos(0), on(0, 3 * GIB), 0, Nanos(0));
    let short = memory.begin(Nanos(0), on(0, GIB), 0, Nanos(0));
    assert_eq!(rates(&memory), [5 * 1024, 5 * 1024], "of any length");
    // 200 MiB a second.
    memory.begin(Nanos(0), on(0, 200 << 20), 0, Nanos(1_000_000_000));
    assert_eq!(rates(&memory), [5 * 1024 - 100, 5 * 1024 - 100, 200]);
    let first = memory.end_of(short).unwrap();
    memory.advance(first);
    assert_eq!(memory.end_of(short), None);
    assert_eq!(rates(&memory), [10 * 1024 - 200, 200], "the rest goes to those who want it");
    assert!(memory.end_of(long).unwrap() < Nanos(450_000_000));
}

#[test]
fn link_limits_remote_users_and_the_memory_behind_it_serves_the_others() {
    let mut memory = memory(Some(2 * GIB));
    for from in [1, 1, 0] {
        memory.begin(Nanos(0), on(0, GIB), from, Nanos(0));
    }
    assert_eq!(rates(&memory), [1024, 1024, 8 * 1024]);
    let mut without = self::memory(None);
    for from in [1, 1] {
        without.begin(Nanos(0), on(0, GIB), from, Nanos(0));
    }
    assert_eq!(rates(&without), [5 * 1024, 5 * 1024], "the control: a link without a limit");
}

#[test]
fn burst_ends_with_its_work_unless_the_memory_is_too_slow_for_it() {
    let burst = |cpu, ms| Burst {
        cpu: CpuId(cpu),
        thread: ThreadId(cpu.into()),
        works_until: Nanos::from_ms(ms),
    };
    let mut memory = memory(None);
    // 10 GiB/s for 100 ms are 1 GiB.
    memory.begin_burst(Nanos(0), on(0, GIB / 2), 0, burst(0, 100));
    assert_eq!(memory.take_moved(), []);
    memory.begin_burst(Nanos(0), on(0, GIB), 0, burst(1, 100));
    let ends = |moved: &[Moved]| -> Vec<_> {
        moved.iter().map(|moved| (moved.burst.cpu.0, moved.to.0 / 1_000_000)).collect()
    };
    assert_eq!(ends(&memory.take_moved()), [(1, 200)], "the first one has half of the rate");
    memory.advance(Nanos::from_ms(100));
    assert_eq!(ends(&memory.take_moved()), [(1, 150)], "it has all of the rate then");
    memory.advance(Nanos::from_ms(151));
    assert_eq!(memory.next_event(), None);
    assert!(memory.waited() >= Nanos::from_ms(50) && memory.waited() < Nanos::from_ms(52));
}

/// The utilisation law: the rate is the limit while users demand it, and never above.
#[test]
fn rate_is_the_limit_while_users_want_more_and_never_above() {
    for demands_percent in [50, 300] {
        let mut random = Random::new(7, 0);
        let mut memory = memory(Some(GIB));
        let mut now = Nanos(0);
        let mut moved = 0;
        // A hundred users of each memory, each of which begins again at its end.
        let begin = |memory: &mut Bandwidth, random: &mut Random, now, home| {
            let bytes = (1 + random.below(64)) * 4096;
            let least = bytes * PARTS * 100 * 100 / (10 * GIB * demands_percent);
            memory.begin(now, on(home, bytes), home, Nanos(least));
            bytes
        };
        for user in 0..200 {
            moved += begin(&mut memory, &mut random, now, user % 2);
        }
        while now < Nanos::from_ms(20) {
            now = memory.next_event().unwrap();
            let before: Vec<_> = memory.flows.iter().map(|(id, flow)| (*id, flow.memory)).collect();
            memory.advance(now);
            for (id, home) in before {
                if memory.end_of(id).is_none() {
                    let home = u16::try_from(home).unwrap();
                    moved += begin(&mut memory, &mut random, now, home);
                }
            }
        }
        let left: u64 = memory.flows.values().map(|flow| flow.left.div_ceil(PARTS)).sum();
        let limit = u128::from(20 * GIB) * u128::from(now.0) / u128::from(PARTS);
        let percent = u128::from(moved - left) * 100_000 / limit;
        let expected = if demands_percent == 50 { 49_000..50_500 } else { 99_900..100_001 };
        assert!(expected.contains(&percent), "{percent} of 100000");
    }
}
