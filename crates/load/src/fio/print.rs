//! fio's own words for a job (its "normal" output, version 3): rates, latencies, percentiles.

use super::histogram::Histogram;
use super::{JobResult, Transfers};

/// In thousandths.
const PERCENTILES: [u32; 3] = [500, 990, 999];

/// A job.
pub(super) fn job(result: &JobResult) -> String {
    let JobResult { name, group, numjobs, .. } = result;
    let error = result.error.unwrap_or(0);
    let mut text = format!("{name}: (groupid={group}, jobs={numjobs}): err={error:2}\n");
    for (verb, transfers) in [("read", &result.read), ("write", &result.write)] {
        if transfers.ios > 0 {
            text += &transfers_lines(result, verb, transfers);
        }
    }
    if result.sync.count() > 0 {
        text += "  fsync:\n";
        text += &latency_line("sync", &result.sync);
        text += &percentile_lines("sync", &result.sync);
    }
    text
}

fn transfers_lines(result: &JobResult, verb: &str, transfers: &Transfers) -> String {
    let rate = result.bandwidth(transfers);
    let mut text = format!(
        "  {verb}: IOPS={}, BW={}/s ({}/s)({}/{}msec)\n",
        short(result.iops(transfers), 1000.0, ["", "k", "M", "G", "T"]),
        short(rate, 1024.0, BINARY),
        short(rate, 1000.0, ["B", "kB", "MB", "GB", "TB"]),
        short(transfers.bytes as f64, 1024.0, BINARY),
        result.runtime.0 / 1_000_000
    );
    if transfers.slat.count() > 0 {
        text += &latency_line("slat", &transfers.slat);
    }
    text += &latency_line("clat", &transfers.clat);
    text += &latency_line("lat", &transfers.lat);
    text + &percentile_lines("clat", &transfers.clat)
}

const BINARY: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// Three digits at least, in the largest unit that leaves one before the point.
fn short(amount: f64, step: f64, units: [&str; 5]) -> String {
    let (mut amount, mut unit) = (amount, 0);
    while amount >= step && unit + 1 < units.len() {
        (amount, unit) = (amount / step, unit + 1);
    }
    let digits = match amount {
        _ if unit == 0 => 0,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{amount:.digits$}{}", units[unit])
}

/// The unit in which fio shows latencies that begin at `min_ns` and reach `max_ns`: the larger one
/// only if the numbers stay legible in it.
fn unit(min_ns: u64, max_ns: u64) -> (&'static str, f64) {
    match (min_ns, max_ns) {
        (2_000_000.., 100_000_000..) => ("msec", 1e6),
        (2_000.., 100_000..) => ("usec", 1e3),
        _ => ("nsec", 1.0),
    }
}

fn latency_line(name: &str, latencies: &Histogram) -> String {
    let (min_ns, max_ns) = (latencies.min().0, latencies.max().0);
    let (unit, unit_ns) = unit(min_ns, max_ns);
    format!(
        "    {name:>4} ({unit}): min={:.0}, max={:.0}, avg={:.2}, stdev={:.2}\n",
        (min_ns as f64 / unit_ns).floor(),
        (max_ns as f64 / unit_ns).floor(),
        latencies.mean_ns() / unit_ns,
        latencies.stdev_ns() / unit_ns
    )
}

fn percentile_lines(name: &str, latencies: &Histogram) -> String {
    let shown = PERCENTILES.map(|permille| (permille, latencies.permille(permille).0));
    let (unit, unit_ns) = unit(shown[0].1, shown[2].1);
    let value = |(permille, ns): (u32, u64)| {
        let percent = f64::from(permille) / 10.0;
        format!("{percent:5.2}th=[{:>5}]", ns.div_ceil(unit_ns as u64))
    };
    format!("    {name} percentiles ({unit}):\n     | {}\n", shown.map(value).join(", "))
}
