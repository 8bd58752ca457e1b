//! A trace as lines of text.

use std::fmt::Write as _;

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::time::Nanos;
use blockyard_workload::replay::op_name;
use blockyard_workload::trace::{OpSummary, Summary, Trace, TracedBio};

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

/// Statistics as text.
pub(super) fn summary(trace: &Trace, summary: &Summary) -> String {
    let header = &trace.header;
    let count = summary.count();
    let seconds = summary.length.0 as f64 / 1e9;
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
