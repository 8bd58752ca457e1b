//! `adaptive` in a simulated machine: who encrypts, what it gains, what it costs.

use blockyard_engine::dm::crypt::pipeline::Adaptive;

use super::*;

const MEMORY: Below = Below::Memory { ns_per_kib: 0 };

/// A device in memory under `adaptive`, with a hand-over of 16 us. A KiB takes 100 ns to encrypt.
fn adaptive(cpus: u16, below: Below) -> Config {
    let mut config = config("inline", "none", below);
    config.topology = Topology::of(1, cpus);
    config.queue.cpus = cpus;
    config.bio_sectors = 2048;
    config.costs.syscall = Nanos(0);
    config.costs.submit = Nanos(100);
    config.costs.idle = Idle::Fixed(Nanos(4_000));
    let mapped = config.mapped.as_mut().unwrap();
    mapped.bio_sectors = None;
    let cipher = Nanos(100);
    (mapped.costs.encrypt_kib, mapped.costs.decrypt_kib) = (cipher, cipher);
    (mapped.costs.part, mapped.costs.queue_work) = (Nanos(200), Nanos(100));
    mapped.hand_over = Nanos(16_000);
    let workers = (cpus > 1).then_some(160 << 10);
    mapped.pipeline = Choice::Adaptive(Adaptive {
        fan_out_min_bytes: workers,
        seeks: false,
        queues: below == Below::Queue,
    });
    config
}

fn inline(config: &Config) -> Config {
    let mut config = config.clone();
    let inline = pipeline::find("inline").unwrap().pipeline;
    config.mapped.as_mut().unwrap().pipeline = Choice::Fixed(inline);
    config
}

const SHORT: Load = Load { jobs: 1, each: 4_000, depth: 32, kib: 4, reads_percent: 100 };
const LONE_MIB: Load = Load { jobs: 1, each: 40, depth: 1, kib: 1024, reads_percent: 100 };

/// Time and CPU time of `adaptive` as parts of those of `inline`.
fn beside_inline(config: &Config, load: Load) -> (f64, f64) {
    let [ours, inline] = [config.clone(), inline(config)].map(|config| outcome(&config, load));
    let part = |ours: Nanos, inline: Nanos| ours.0 as f64 / inline.0 as f64;
    (part(ours.ended, inline.ended), part(ours.cpu_busy, inline.cpu_busy))
}

#[test]
fn every_byte_is_encrypted_once_and_twice_the_same() {
    for below in [Below::Queue, MEMORY] {
        for kib in [4, 32, 1024] {
            for depth in [1, 32] {
                let config = adaptive(4, below);
                let load = Load { jobs: 3, each: 200, depth, kib, reads_percent: 50 };
                let first = outcome(&config, load);
                let bytes = load.jobs * u64::from(load.each) * kib * KIB;
                assert_eq!(crypt(&first).cipher_bytes, bytes, "{below:?} {kib} {depth}");
                assert_eq!(outcome(&config, load), first, "{below:?} {kib} {depth}");
            }
        }
    }
}

#[test]
fn short_requests_of_a_steady_submitter_share_the_cpus_and_cost_little_more() {
    let (time, cpu) = beside_inline(&adaptive(2, MEMORY), SHORT);
    assert!(time < 0.75 && cpu < 1.25, "{time} {cpu}");
    let (on_many, _) = beside_inline(&adaptive(8, MEMORY), SHORT);
    assert!(on_many < time, "{on_many} {time}");
}

#[test]
fn few_short_requests_and_those_of_as_many_submitters_as_cpus_stay_inline() {
    for load in [Load { depth: 1, ..SHORT }, Load { depth: 8, ..SHORT }, Load { jobs: 4, ..SHORT }]
    {
        let outcome = outcome(&adaptive(4, MEMORY), load);
        // The first to be steady sees that the others are awake.
        let parts = crypt(&outcome).parts;
        assert!(crypt(&outcome).hand_overs * 50 <= parts, "{:?}", crypt(&outcome));
    }
    let alone = outcome(&adaptive(1, MEMORY), SHORT);
    assert_eq!(crypt(&alone).hand_overs, 0, "there is no other CPU");
}

#[test]
fn lone_mib_is_shared_and_not_where_a_hand_over_takes_longer_than_its_cipher() {
    let config = adaptive(4, MEMORY);
    let (time, cpu) = beside_inline(&config, LONE_MIB);
    assert!(time < 0.7 && cpu < 1.2, "{time} {cpu}");
    let mut slow = config;
    slow.mapped.as_mut().unwrap().pipeline = Choice::Adaptive(Adaptive {
        fan_out_min_bytes: Some(1 << 20),
        seeks: false,
        queues: false,
    });
    assert_eq!(crypt(&outcome(&slow, LONE_MIB)).hand_overs, 0);
}

/// A batch is one job: one look at the queue, and one at its completions.
#[test]
fn batch_takes_the_lock_of_the_queue_once() {
    let time = |queue_work: u64| {
        let mut config = adaptive(2, MEMORY);
        config.mapped.as_mut().unwrap().costs.queue_work = Nanos(queue_work);
        let outcome = outcome(&config, SHORT);
        (outcome.cpu_busy, crypt(&outcome).hand_overs)
    };
    let (cheap, handed_over) = time(0);
    let (dear, _) = time(1_000);
    let each = (dear - cheap).0 as f64 / handed_over as f64;
    assert!(each < 1_000.0 / 4.0, "{each} ns of 1000 for each of {handed_over}");
}

/// A job in the background ends with its phase. Then no submitter runs its waiting batches.
#[test]
fn workers_run_the_batches_of_a_submitter_that_has_ended() {
    let mut config = adaptive(4, MEMORY);
    // No worker looks for a batch.
    config.mapped.as_mut().unwrap().hand_over = Nanos(0);
    for foreground in 1..200 {
        let job = |left, depth, number| Job {
            random: Random::new(7, number),
            left,
            depth,
            in_flight: 0,
            len_bytes: 4 * KIB,
            reads_percent: 100,
            socket: None,
            failed: 0,
        };
        let tasks = vec![job(foreground, 1, 0)];
        let background = vec![job(1_000_000, 32, 1)];
        let mut jobs = Jobs(Some(Phase { tasks, background }), 0);
        run(&config, &mut jobs, ()).expect("all requests end");
    }
}
