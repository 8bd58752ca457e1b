//! Results of a replay as text and as JSON: submitted and completed bios, and their times.

use std::fmt::Write as _;

use blockyard_workload::fio::Histogram;
use blockyard_workload::replay::{Failed, Replay, op_name};
use blockyard_workload::trace::{Summary, Trace};
use serde::Serialize;

use crate::size::human_size;

/// Mean latency of an operation as it was recorded.
fn recorded(summary: &Summary, name: &str) -> Option<f64> {
    let op = summary.ops.iter().find(|op| op_name(op.op) == name)?;
    (op.latency.count() > 0).then(|| op.latency.mean_ns())
}

/// Results as text, with the place at the start, unless it is empty.
#[must_use]
pub fn lines(trace: &Trace, replay: &Replay, place: &str) -> String {
    let summary = Summary::of(trace);
    let (submitters, tasks) = replay.submitters();
    let mut text = if place.is_empty() { String::new() } else { format!("{place}\n") };
    let _ = writeln!(
        text,
        "{} bios of {submitters} submitters in {:.3} s, recorded in {:.3} s",
        summary.count(),
        replay.took().0 as f64 / 1e9,
        summary.length.0 as f64 / 1e9
    );
    if tasks < submitters {
        let _ = writeln!(text, "They shared {tasks} tasks.");
    }
    text += "\n            bios in   bios out      in bytes     out bytes  errors   avg, ms   \
             p99, ms   max, ms  recorded avg, ms\n";
    for (name, one) in replay.counted() {
        let ms = |ns: f64| ns / 1e6;
        let was = recorded(&summary, name).map_or("-".into(), |ns| format!("{:.3}", ms(ns)));
        let latency = &one.latency;
        let _ = writeln!(
            text,
            "{name:<8}{:>11}{:>11}{:>14}{:>14}{:>8}{:>10.3}{:>10.3}{:>10.3}{was:>18}",
            one.in_bios,
            one.out_bios,
            one.in_bytes,
            one.out_bytes,
            one.errors,
            ms(latency.mean_ns()),
            ms(latency.permille_within(990).0 as f64),
            ms(latency.max().0 as f64)
        );
    }
    let bytes = replay.counted().values().map(|one| one.out_bytes).sum::<u64>();
    let verdict = if replay.is_complete() {
        "requests in = requests out, bytes too"
    } else {
        "requests in and requests out DIFFER"
    };
    let _ = writeln!(text, "\n{verdict}: {}", human_size(bytes));
    if replay.late().count() > 0 {
        let ms = |permille| replay.late().permille_within(permille).0 as f64 / 1e6;
        let max = replay.late().max().0 as f64 / 1e6;
        let p50 = ms(500);
        let p99 = ms(990);
        let _ =
            writeln!(text, "submitted late by {p50:.3} ms (p50), {p99:.3} (p99), {max:.3} (max)");
    }
    text
}

/// The number of failed bios and the first of them; `None` without failures.
#[must_use]
pub fn failed(replay: &Replay) -> Option<String> {
    let Failed { op, offset_bytes, len_bytes, error, .. } = replay.first_failed()?;
    let reason = std::io::Error::from_raw_os_error(error);
    let errors = replay.errors();
    let all = replay.counted().values().map(|one| one.out_bios).sum::<u64>();
    Some(format!(
        "{errors} of {all} bios failed; the first: {op} of {len_bytes} bytes at byte \
         {offset_bytes}: {reason}"
    ))
}

/// The outcome of a replay, for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// The place.
    pub target: String,
    /// Bios of the trace.
    pub bios: u64,
    /// Submitters of the trace.
    pub submitters: usize,
    /// Tasks that played them.
    pub tasks: usize,
    /// Length of the trace.
    pub recorded_ns: u64,
    /// Length of the replay.
    pub took_ns: u64,
    /// All bios that came in went out, and their bytes.
    pub is_complete: bool,
    /// Failed bios.
    pub errors: u64,
    /// The first failed bio, in words.
    pub first_failed: Option<String>,
    /// Figures by operation.
    pub ops: Vec<OpReport>,
    /// Delays of the submissions behind their times in the trace.
    pub late_ns: Times,
}

/// The bios of one operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpReport {
    /// Name of the operation.
    pub op: String,
    /// Bios that were submitted.
    pub in_bios: u64,
    /// Bios that ended.
    pub out_bios: u64,
    /// Bytes that were submitted.
    pub in_bytes: u64,
    /// Bytes that ended.
    pub out_bytes: u64,
    /// Failed bios.
    pub errors: u64,
    /// Latencies.
    pub latency_ns: Times,
    /// Mean latency in the trace, if the trace has latencies.
    pub recorded_mean_ns: Option<f64>,
}

/// A distribution of times, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// The bound of 99 of 100.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
}

impl ReplayReport {
    /// The report of a replay that has ended.
    #[must_use]
    pub fn new(trace: &Trace, replay: &Replay, place: &str) -> Self {
        let summary = Summary::of(trace);
        let ops = replay.counted().iter().map(|(name, one)| OpReport {
            op: (*name).to_owned(),
            in_bios: one.in_bios,
            out_bios: one.out_bios,
            in_bytes: one.in_bytes,
            out_bytes: one.out_bytes,
            errors: one.errors,
            latency_ns: Times::of(&one.latency),
            recorded_mean_ns: recorded(&summary, name),
        });
        let (submitters, tasks) = replay.submitters();
        Self {
            target: place.to_owned(),
            bios: summary.count(),
            submitters,
            tasks,
            recorded_ns: summary.length.0,
            took_ns: replay.took().0,
            is_complete: replay.is_complete(),
            errors: replay.errors(),
            first_failed: failed(replay),
            ops: ops.collect(),
            late_ns: Times::of(replay.late()),
        }
    }
}

impl Times {
    /// The times in a histogram.
    #[must_use]
    pub fn of(histogram: &Histogram) -> Self {
        Self {
            mean: histogram.mean_ns(),
            p50: histogram.permille_within(500).0,
            p99: histogram.permille_within(990).0,
            max: histogram.max().0,
        }
    }
}
