//! Measurements from a trace: it is cut into parts of equal time, and each is a measurement.

use std::collections::BTreeMap;

use blockyard_engine::time::Nanos;
use blockyard_workload::fio::Histogram;
use blockyard_workload::replay::op_name;
use blockyard_workload::trace::{End, Trace, TracedBio};

use super::{Facts, Measurement};
use crate::Error;
use crate::spec::traced::Traces;

/// Parts of a trace.
const PARTS: u64 = 8;
/// Bios of a part that are simulated.
const BIOS_MAX: usize = 4_000;
/// Bios of a part and direction without which its slowest hundredth is a matter of chance.
const BIOS_MIN: u64 = 100;

/// The measurements of a trace. Their parts go into `traces`.
pub(super) fn read(file: &str, trace: &Trace, traces: &Traces) -> Result<Vec<Measurement>, Error> {
    let wrong = |what: String| Error::new(format!("{file}: {what}"));
    if trace.bios.iter().all(|bio| bio.completion.is_none()) {
        return Err(wrong(
            "its bios have no completions, so no latencies: record it with blktrace or `blockyard \
             trace record`"
                .into(),
        ));
    }
    let first = trace.bios.first().map_or(Nanos(0), |bio| bio.start);
    let last = trace.bios.last().map_or(Nanos(0), |bio| bio.start);
    let length = last.since(first).0 / PARTS + 1;
    let mut measurements = Vec::new();
    for part in 0..PARTS {
        let starts = first.0 + part * length;
        let is_of_part = |bio: &&TracedBio| (starts..starts + length).contains(&bio.start.0);
        let bios: Vec<TracedBio> =
            trace.bios.iter().filter(is_of_part).take(BIOS_MAX).copied().collect();
        let rows = rows(&bios);
        if rows.is_empty() {
            return Err(wrong(format!(
                "part {} of {PARTS} has fewer than {BIOS_MIN} ended reads and as few writes: \
                 record longer, or under more load",
                part + 1
            )));
        }
        let name = format!("{file}#{part}");
        measurements.push(Measurement {
            label: format!("{file}: part {} of {PARTS}", part + 1),
            job: format!("program = \"trace\"\nfile = {name:?}"),
            facts: facts(&bios, &rows),
            rows,
        });
        traces.add(&name, shifted(trace, bios, starts));
    }
    Ok(measurements)
}

/// The latencies of reads and of writes, if there are enough of them.
fn rows(bios: &[TracedBio]) -> Vec<(String, Vec<(&'static str, f64)>)> {
    let mut latencies: BTreeMap<&str, Histogram> = BTreeMap::new();
    for bio in bios {
        if let Some(completion) = bio.completion {
            latencies.entry(op_name(bio.op)).or_default().record(completion.latency);
        }
    }
    let of = |direction: &str| {
        let latency = latencies.get(direction).filter(|latency| latency.count() >= BIOS_MIN)?;
        let seconds = |permille| latency.permille(permille).0 as f64 / 1e9;
        let metrics = vec![("latency_p50", seconds(500)), ("latency_p99", seconds(990))];
        Some((direction.to_owned(), metrics))
    };
    ["read", "write"].into_iter().filter_map(of).collect()
}

fn facts(bios: &[TracedBio], rows: &[(String, Vec<(&'static str, f64)>)]) -> Facts {
    let median = |direction: &str| {
        rows.iter().find(|(row, _)| row == direction).map(|(_, metrics)| metrics[0].1)
    };
    let sectors = bios.iter().map(TracedBio::end_sector).max().unwrap_or(0);
    Facts {
        depth: deepest(bios),
        read_s: median("read"),
        write_s: median("write"),
        end_bytes: sectors.saturating_mul(512),
    }
}

/// The largest number of bios in flight at a time.
fn deepest(bios: &[TracedBio]) -> u32 {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for bio in bios {
        if let Some(completion) = bio.completion {
            changes.push((bio.start.0, 1));
            changes.push((bio.start.0.saturating_add(completion.latency.0), -1));
        }
    }
    changes.sort_unstable();
    let mut depth = 0;
    let depths = changes.into_iter().map(|(_, change)| {
        depth += change;
        depth
    });
    depths.max().unwrap_or(1).clamp(1, 1024) as u32
}

/// A trace of these bios, which starts at zero.
fn shifted(trace: &Trace, mut bios: Vec<TracedBio>, starts: u64) -> Trace {
    for bio in &mut bios {
        bio.start = Nanos(bio.start.0 - starts);
    }
    let length = bios.last().map_or(Nanos(0), |bio| bio.start);
    Trace { header: trace.header.clone(), bios, end: End { length, ..End::default() } }
}
