//! A trace as lines and as JSON.

use std::fmt::Write as _;

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::time::Nanos;
use blockyard_workload::fio::Histogram;
use blockyard_workload::replay::op_name;
use blockyard_workload::trace::{OpSummary, Summary, Trace, TracedBio};
use serde_json::{Value, json};

use crate::failure::printable;
use crate::size::human_size;

/// The heading of [`bio`]'s lines.
pub(super) const HEAD: &str =
    "      time, s  submitter  prio  what              sector  sectors   took, ms\n";

/// One line.
pub(super) fn bio(bio: &TracedBio) -> String {
    let mut what = op_name(bio.op).to_owned();
    let waited = bio.sync && matches!(bio.op, Op::Write | Op::Discard | Op::WriteZeroes);
    for (word, is_set) in [(" preflush", bio.preflush), (" fua", bio.fua), (" sync", waited)] {
        if is_set {
            what += word;
        }
    }
    let took = match bio.completion {
        None => "-".into(),
        Some(end) if end.status == BlkStatus::Ok => format!("{:.3}", end.latency.0 as f64 / 1e6),
        Some(end) => format!("{:.3}  {}", end.latency.0 as f64 / 1e6, end.status),
    };
    format!(
        "{:>13.6}  {:>9}  {:>4}  {what:<11}  {:>11}  {:>7}  {took:>9}\n",
        bio.start.0 as f64 / 1e9,
        bio.submitter,
        bio.priority.to_string(),
        bio.sector,
        bio.sectors
    )
}

/// One bio as JSON.
pub(super) fn bio_json(bio: &TracedBio) -> Value {
    json!({
        "start_ns": bio.start.0,
        "op": op_name(bio.op),
        "fua": bio.fua,
        "preflush": bio.preflush,
        "sync": bio.sync,
        "sector": bio.sector,
        "sectors": bio.sectors,
        "submitter": bio.submitter,
        "priority": bio.priority.to_string(),
        "latency_ns": bio.completion.map(|end| end.latency.0),
        "status": bio.completion.map(|end| end.status.to_string()),
    })
}

/// Statistics as text.
pub(super) fn summary(trace: &Trace, summary: &Summary) -> String {
    let header = &trace.header;
    let (count, seconds) = (summary.count(), summary.length.0 as f64 / 1e9);
    let mut text = format!(
        "{count} bios, {}, in {seconds:.3} s by {} submitters",
        human_size(summary.bytes()),
        summary.submitters.len()
    );
    if header.volume_bytes > 0 {
        let _ = write!(text, ", on a volume of {}", human_size(header.volume_bytes));
    }
    if !header.export.is_empty() {
        let _ = write!(text, " ({})", printable(&header.export));
    }
    if seconds > 0.0 {
        let rate = summary.bytes() as f64 / seconds / f64::from(1 << 20);
        let _ = write!(text, "\n{:.0} bios/s, {rate:.1} MiB/s", count as f64 / seconds);
        let _ = write!(text, ", at most {} in flight", summary.depth_max);
    }
    text += "\n\n          bios      bytes  sequential  waited for   FUA  errors  not ended   \
             avg, ms   p50, ms   p99, ms   max, ms\n";
    for op in &summary.ops {
        text += &op_line(op);
    }
    text += "\nSizes of reads and writes\n";
    for op in summary.ops.iter().filter(|op| !op.sizes.is_empty()) {
        let mut sizes: Vec<_> = op.sizes.iter().collect();
        sizes.sort_by_key(|(size, count)| (std::cmp::Reverse(**count), **size));
        let most = sizes
            .iter()
            .take(SIZES)
            .map(|(size, count)| format!("{} {}", human_size(**size), percent(**count, op.count)));
        let most: Vec<String> = most.collect();
        let more = sizes.len().saturating_sub(SIZES);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let _ = writeln!(text, "{:<6}  {}{more}", op_name(op.op), most.join(", "));
    }
    text += "\n time, s   bios/s     MiB/s   in flight\n";
    let width = summary.slices.get(1).map_or(summary.length, |slice| slice.start).0 as f64 / 1e9;
    for slice in &summary.slices {
        let _ = writeln!(
            text,
            "{:>8.3}  {:>7.0}  {:>8.1}  {:>10.1}",
            slice.start.0 as f64 / 1e9,
            slice.bios as f64 / width,
            slice.bytes as f64 / width / f64::from(1 << 20),
            slice.depth
        );
    }
    text
}

/// Number of listed lengths.
const SIZES: usize = 8;

fn op_line(op: &OpSummary) -> String {
    let sequential = match op.op {
        Op::Read | Op::Write => percent(op.sequential, op.count),
        Op::Flush | Op::Discard | Op::WriteZeroes => "-".into(),
    };
    let ms = |time: Nanos| time.0 as f64 / 1e6;
    let latency = &op.latency;
    format!(
        "{:<7}{:>7}{:>11}{sequential:>12}{:>12}{:>6}{:>8}{:>11}{:>10.3}{:>10.3}{:>10.3}{:>10.3}\n",
        op_name(op.op),
        op.count,
        human_size(op.bytes),
        percent(op.sync, op.count),
        op.fua,
        op.errors,
        op.not_ended,
        latency.mean_ns() / 1e6,
        ms(latency.permille_within(500)),
        ms(latency.permille_within(990)),
        ms(latency.max())
    )
}

fn percent(part: u64, of: u64) -> String {
    format!("{:.0} %", part as f64 * 100.0 / of.max(1) as f64)
}

/// Statistics as JSON.
pub(super) fn summary_json(trace: &Trace, summary: &Summary) -> Value {
    let ops: Vec<Value> = summary.ops.iter().map(op_json).collect();
    let slices = summary.slices.iter().map(|slice| {
        json!({
            "start_ns": slice.start.0,
            "bios": slice.bios,
            "bytes": slice.bytes,
            "depth": slice.depth,
        })
    });
    let slices: Vec<Value> = slices.collect();
    let submitters = summary.submitters.iter().map(|((number, priority), of)| {
        json!({
            "submitter": number,
            "priority": priority.to_string(),
            "bios": of.count,
            "bytes": of.bytes,
        })
    });
    let submitters: Vec<Value> = submitters.collect();
    json!({
        "export": trace.header.export,
        "volume_bytes": trace.header.volume_bytes,
        "sector_bytes": trace.header.sector_bytes,
        "began_unix_ns": trace.header.began_unix_ns,
        "length_ns": summary.length.0,
        "lost": trace.end.lost,
        "cut_off_at_bytes": trace.end.cut_off_at_bytes,
        "bios": summary.count(),
        "bytes": summary.bytes(),
        "sequential_to_any": summary.sequential_to_any,
        "depth_max": summary.depth_max,
        "ops": ops,
        "submitters": submitters,
        "over_time": slices,
    })
}

fn op_json(op: &OpSummary) -> Value {
    let sizes: Vec<Value> =
        op.sizes.iter().map(|(size, count)| json!({ "bytes": size, "bios": count })).collect();
    json!({
        "op": op_name(op.op),
        "bios": op.count,
        "bytes": op.bytes,
        "sequential": op.sequential,
        "sync": op.sync,
        "fua": op.fua,
        "errors": op.errors,
        "not_ended": op.not_ended,
        "sizes": sizes,
        "latency_ns": latency_json(&op.latency),
    })
}

fn latency_json(latency: &Histogram) -> Value {
    json!({
        "mean": latency.mean_ns(),
        "p50": latency.permille_within(500).0,
        "p99": latency.permille_within(990).0,
        "max": latency.max().0,
    })
}
