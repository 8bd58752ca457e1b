//! Causes of I/O time, as rows for claims. Every world has the load of the CPUs. Encrypted I/O has
//! counts of the pipeline, of the queue's requests and of page allocation. A null device has the
//! threads that issued and ended requests, and their context switches.

use blockyard_engine::time::Nanos;
use blockyard_sim::cpu::Switches;
use blockyard_sim::world::{
    Causes, Config, CryptCauses, DeviceConfig, ElevatorCounters, MemoryCauses, NullCauses, Outcome,
};

use super::execute::Measured;
use super::spec::job::Yield;

/// Row of all CPUs.
pub(crate) const MACHINE: &str = "machine";
const MACHINE_METRICS: &[&str] = &["cpu_busy"];
const PIPELINE: &str = "pipeline";
const QUEUE: &str = "queue";
const PAGES: &str = "pages";

const PIPELINE_METRICS: &[&str] = &[
    "part_bytes",
    "workers_per_write",
    "contexts_per_write",
    "out_of_order",
    "submitting_threads",
    "write_contexts",
    "cpus_of_writer",
    "batch_writes",
    "unsorted_batches",
    "cpu_per_write",
];
const QUEUE_METRICS: &[&str] =
    &["write_request_bytes", "write_bios_merged", "mixed_requests", "mixed_share"];
const PAGES_METRICS: &[&str] = &[
    "time_per_write",
    "time_share",
    "calls_per_write",
    "segments_per_write",
    "reserve_per_1000",
    "waits_per_1000",
    "zone_locks_per_write",
    "compactions_per_1000",
];

const MEMORY: &str = "memory";
const MEMORY_METRICS: &[&str] = &["rate", "time_share"];

const ELEVATOR: &str = "elevator";
const ELEVATOR_METRICS: &[&str] = &["time_share", "lock_wait_share"];

const NULL: &str = "null";
const NULL_METRICS: &[&str] = &[
    "issued_by_workers",
    "crossed",
    "ended_elsewhere",
    "worker_calls_per_1000",
    "worker_ctx_per_1000",
    "softirqs_per_1000",
    "softirq_ctx_per_1000",
    "no_tag_per_1000",
    "lock_wait",
];

/// Rows that a world yields.
pub(crate) fn yields(config: &Config) -> Vec<Yield> {
    let row = |row: &str, metrics| Yield { row: row.into(), metrics };
    let mut rows = vec![row(MACHINE, MACHINE_METRICS)];
    rows.extend(config.bandwidth.map(|_| row(MEMORY, MEMORY_METRICS)));
    rows.extend(has_elevator_costs(config).then(|| row(ELEVATOR, ELEVATOR_METRICS)));
    if matches!(config.device, DeviceConfig::Null(_)) {
        rows.push(row(NULL, NULL_METRICS));
    } else if let Some(mapped) = &config.mapped {
        rows.extend([row(PIPELINE, PIPELINE_METRICS), row(QUEUE, QUEUE_METRICS)]);
        rows.extend(mapped.pages.as_ref().map(|_| row(PAGES, PAGES_METRICS)));
    }
    rows
}

fn has_elevator_costs(config: &Config) -> bool {
    config.elevator_costs.step > Nanos(0)
}

/// Shares of the CPU time: an elevator's work, and the waits for its lock.
fn of_elevator(elevator: &ElevatorCounters, outcome: &Outcome) -> [Measured; 2] {
    [
        ("time_share", mean(elevator.busy.0, outcome.cpu_busy.0)),
        ("lock_wait_share", mean(elevator.lock_waits.0, outcome.cpu_busy.0)),
    ]
    .map(|(metric, value)| Measured { row: ELEVATOR.into(), metric, value })
}

/// Rows of a run.
pub(crate) fn rows(config: &Config, outcome: &Outcome) -> Vec<Measured> {
    let causes = &outcome.causes;
    let value = mean(outcome.cpu_busy.0, outcome.ended.0 * u64::from(outcome.cpus));
    let mut rows = vec![Measured { row: MACHINE.into(), metric: "cpu_busy", value }];
    if has_elevator_costs(config) {
        rows.extend(of_elevator(&causes.elevator, outcome));
    }
    rows.extend(causes.memory.iter().flat_map(|memory| of_memory(memory, outcome)));
    if let Some(causes) = &causes.null {
        rows.extend(null(causes));
    } else if let Some(crypt) = &causes.crypt {
        rows.extend(pipeline(crypt, outcome));
        rows.extend(queue(crypt, causes));
        rows.extend(pages(crypt, outcome));
    }
    rows
}

/// Traffic of the memory, and the share of CPU time in which bursts waited for it.
fn of_memory(memory: &MemoryCauses, outcome: &Outcome) -> [Measured; 2] {
    [
        ("rate", memory.bytes as f64 * 1e9 / outcome.ended.0.max(1) as f64),
        ("time_share", mean(memory.waited.0, outcome.cpu_busy.0)),
    ]
    .map(|(metric, value)| Measured { row: MEMORY.into(), metric, value })
}

fn queue(crypt: &CryptCauses, causes: &Causes) -> Vec<Measured> {
    let requests = causes.write_requests;
    [
        ("write_request_bytes", mean(causes.write_sectors * 512, requests)),
        // A queue that splits bios has more requests.
        ("write_bios_merged", mean(crypt.write_bios.saturating_sub(requests), crypt.write_bios)),
        ("mixed_requests", causes.mixed_write_requests as f64),
        ("mixed_share", mean(causes.mixed_write_requests, requests)),
    ]
    .map(|(metric, value)| Measured { row: QUEUE.into(), metric, value })
    .into()
}

fn mean(sum: u64, count: u64) -> f64 {
    sum as f64 / count.max(1) as f64
}

fn null(causes: &NullCauses) -> Vec<Measured> {
    let switches = |Switches { voluntary, involuntary }| voluntary + involuntary;
    let per_1000 = |count: u64| mean(count * 1000, causes.issued);
    [
        ("issued_by_workers", mean(causes.issued_by_workers, causes.issued)),
        ("crossed", mean(causes.crossed, causes.issued)),
        ("ended_elsewhere", mean(causes.ended_elsewhere, causes.issued)),
        ("worker_calls_per_1000", per_1000(causes.calls)),
        ("worker_ctx_per_1000", per_1000(switches(causes.workers))),
        ("softirqs_per_1000", per_1000(causes.softirqs)),
        ("softirq_ctx_per_1000", per_1000(switches(causes.softirq_threads))),
        ("no_tag_per_1000", per_1000(causes.no_tag)),
        ("lock_wait", mean(causes.lock_waits_ns, causes.issued) / 1e9),
    ]
    .map(|(metric, value)| Measured { row: NULL.into(), metric, value })
    .into()
}

fn pipeline(crypt: &CryptCauses, outcome: &Outcome) -> Vec<Measured> {
    let cpu_per_write = match crypt.write_bios {
        0 => 0.0,
        writes => mean(outcome.cpu_busy.0, writes),
    };
    [
        ("part_bytes", mean(crypt.cipher_bytes, crypt.parts)),
        ("workers_per_write", crypt.workers_per_write.median() as f64),
        ("contexts_per_write", crypt.contexts_per_write.median() as f64),
        ("out_of_order", mean(crypt.out_of_order, crypt.neighbours)),
        ("submitting_threads", crypt.submitting_threads.len() as f64),
        ("write_contexts", crypt.write_contexts.len() as f64),
        ("cpus_of_writer", crypt.cpus_of_writer_max() as f64),
        ("batch_writes", mean(crypt.batched_writes, crypt.batches)),
        ("unsorted_batches", crypt.unsorted_batches as f64),
        ("cpu_per_write", cpu_per_write / 1e9),
    ]
    .map(|(metric, value)| Measured { row: PIPELINE.into(), metric, value })
    .into()
}

fn pages(crypt: &CryptCauses, outcome: &Outcome) -> Vec<Measured> {
    let Some((pages, memory)) = crypt.pages.as_ref().zip(crypt.memory.as_ref()) else {
        return Vec::new();
    };
    let calls = pages.calls();
    [
        ("time_per_write", mean(crypt.allocation_busy.0, pages.bios) / 1e9),
        ("time_share", mean(crypt.allocation_busy.0, outcome.ended.0)),
        ("calls_per_write", mean(calls, pages.bios)),
        ("segments_per_write", mean(pages.segments, pages.bios)),
        ("reserve_per_1000", mean(pages.reserve_pages * 1000, pages.bios)),
        ("waits_per_1000", mean(pages.by_step.wait * 1000, pages.bios)),
        ("zone_locks_per_write", mean(memory.zone_locks, pages.bios)),
        ("compactions_per_1000", mean(memory.compactions * 1000, pages.bios)),
    ]
    .map(|(metric, value)| Measured { row: PAGES.into(), metric, value })
    .into()
}
