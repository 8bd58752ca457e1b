//! fio's report of a job (its "normal" output, version 3): rates, latencies, percentiles, the
//! distribution tables, and one line for each group.
//!
//! Figures that only a kernel has are left out: date, process numbers, page faults.

use blockyard_engine::histogram::Histogram;

use super::samples::Spread;
use super::{JobResult, Percentiles, Steady, Transfers};

const KIB: f64 = 1024.0;

/// The report of all results and then of all groups, in fio's format.
#[must_use]
pub fn all(results: &[JobResult]) -> String {
    let mut text: String = results.iter().map(|result| job(result, results)).collect();
    let last = results.iter().map(|result| result.group).max().unwrap_or(0);
    for number in 0..=last {
        let group: Vec<&JobResult> = results.iter().filter(|one| one.group == number).collect();
        text += &group_lines(number, &group);
    }
    text
}

fn job(result: &JobResult, results: &[JobResult]) -> String {
    let JobResult { name, group, numjobs, .. } = result;
    let error = result.reported_error().unwrap_or(0);
    let mut text = format!("{name}: (groupid={group}, jobs={numjobs}): err={error:2}\n");
    let of_group: Vec<&JobResult> = results.iter().filter(|one| one.group == *group).collect();
    for direction in DIRECTIONS {
        let transfers = (direction.of)(result);
        if transfers.bytes > 0 {
            let all = Total::of(&of_group, direction);
            text += &transfers_lines(result, direction, transfers, all.bandwidth());
        }
    }
    if result.sync.count() > 0 {
        text += "  fsync:\n";
        text += &latency_line("sync", &result.sync);
        text += &percentile_lines("sync", &result.sync, &result.percentiles);
    }
    text + &result.bounds.lines() + &tables(result) + &steady_line(result)
}

/// The line about errors that did not end a clone.
fn errors_line(result: &JobResult) -> String {
    if !result.goes_on {
        return String::new();
    }
    let first = result.errors.first_counted.unwrap_or(0);
    let reason = std::io::Error::from_raw_os_error(first).to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default();
    format!("     errors    : total={}, first_error={first}/<{reason}>\n", result.errors.counted)
}

/// The line about the steady state.
fn steady_line(result: &JobResult) -> String {
    let Some(steady) = &result.steady else { return String::new() };
    let rate = Steady::mean(&steady.bandwidth) as f64;
    format!(
        "  steadystate  : attained={}, bw={}/s ({}/s), iops={}, {}{}={:.3}{}\n",
        if steady.is_attained { "yes" } else { "no" },
        short(rate, KIB, BINARY),
        short(rate, 1000.0, DECIMAL),
        short(Steady::mean(&steady.iops) as f64, 1000.0, ["", "k", "M", "G", "T"]),
        steady.rule.name().trim_end_matches("_slope"),
        if steady.rule.is_slope { " slope" } else { " mean dev" },
        steady.criterion,
        if steady.rule.is_percent { "%" } else { "" },
    )
}

/// Reads or writes of a result.
#[derive(Clone, Copy)]
struct Direction {
    verb: &'static str,
    /// Name in a group's line.
    name: &'static str,
    of: fn(&JobResult) -> &Transfers,
}

const DIRECTIONS: [Direction; 3] = [
    Direction { verb: "read", name: "   READ", of: |result| &result.read },
    Direction { verb: "write", name: "  WRITE", of: |result| &result.write },
    Direction { verb: "trim", name: "   TRIM", of: |result| &result.trim },
];

fn transfers_lines(
    result: &JobResult,
    direction: Direction,
    transfers: &Transfers,
    of_group: f64,
) -> String {
    let rate = result.bandwidth(transfers);
    let more = match direction.verb {
        "write" => format!("; {} zone resets", result.zone_resets),
        _ => String::new(),
    };
    let mut text = format!(
        "  {}: IOPS={}, BW={}/s ({}/s)({}/{}msec){}\n",
        direction.verb,
        short(result.iops(transfers).floor(), 1000.0, ["", "k", "M", "G", "T"]),
        short(rate, KIB, BINARY),
        short(rate, 1000.0, DECIMAL),
        short(transfers.bytes as f64, KIB, BINARY),
        result.runtime.0 / 1_000_000,
        more,
    );
    if transfers.slat.count() > 0 {
        text += &latency_line("slat", &transfers.slat);
    }
    if transfers.clat.count() > 0 {
        text += &latency_line("clat", &transfers.clat);
    }
    if transfers.lat.count() > 0 {
        text += &latency_line("lat", &transfers.lat);
    }
    let of = &result.percentiles;
    let kind = if of.lat { "lat" } else { "clat" };
    for (class, level, latencies) in transfers.by_priority.listed() {
        text += &latency_line(&format!("{kind} prio {class}/{level}"), latencies);
    }
    let shown = [
        (of.slat, "slat", &transfers.slat),
        (of.clat, "clat", &transfers.clat),
        (of.lat, "lat", &transfers.lat),
    ];
    for (_, name, latencies) in shown.into_iter().filter(|(is_wanted, ..)| *is_wanted) {
        if latencies.count() > 0 {
            text += &percentile_lines(name, latencies, of);
        }
    }
    for (class, level, latencies) in transfers.by_priority.listed() {
        let share = latencies.count() as f64 * 100.0 / transfers.ios as f64;
        let name = format!("{kind} prio {class}/{level} ({share:.2}% of IOs)");
        text += &percentile_lines(&name, latencies, of);
    }
    if let Some((bandwidth, iops)) = transfers.samples.bandwidth().zip(transfers.samples.iops()) {
        // Rates above 1 GiB/s are in MiB.
        let is_large = bandwidth.mean > KIB * KIB * KIB;
        let (unit, bytes) = if is_large { ("MiB", KIB * KIB) } else { ("KiB", KIB) };
        let share = (bandwidth.mean * 100.0 / of_group).min(100.0);
        text += &format!("   bw ({unit:>5}/s): ");
        text += &spread_line(bandwidth, bytes, &format!("per={share:.2}%, "));
        text += "   iops        : ";
        text += &spread_line(iops, 1.0, "");
    }
    text
}

fn spread_line(spread: Spread, unit: f64, share: &str) -> String {
    let Spread { min, max, mean, stdev, count } = spread;
    let [min, max, mean, stdev] = [min, max, mean, stdev].map(|value| value / unit);
    let min = min.floor();
    let max = max.floor();
    format!(
        "min={min:>5}, max={max:>5}, {share}avg={mean:5.2}, stdev={stdev:5.2}, samples={count}\n"
    )
}

/// The tables of CPU and queue.
fn tables(result: &JobResult) -> String {
    let (user, system) = result.cpu();
    let read = result.read.ios;
    let written = result.write.ios;
    let trimmed = result.trim.ios;
    let synced = result.sync.count();
    format!(
        "  cpu          : usr={:.2}%, sys={:.2}%, ctx={}\n  IO depths    : {}\n     \
         submit    : {}\n     complete  : {}\n     \
         issued rwts: total={read},{written},{trimmed},{synced} short=0,0,0,0 \
         dropped=0,0,0,0\n{}     \
         latency   : target={}, window={}, percentile={:.2}%, depth={}\n",
        user * 100.0,
        system * 100.0,
        result.usage.switches,
        result.queueing.depths.line(),
        result.queueing.submits.line(),
        result.queueing.completes.line(),
        errors_line(result),
        result.latency.target.0,
        result.latency.window.0 / 1000,
        result.latency.percentile(),
        result.iodepth,
    )
}

/// Sums of a group's jobs in one direction.
struct Total {
    bytes: u64,
    ns_min: u64,
    ns_max: u64,
    slowest: f64,
    fastest: f64,
}

impl Total {
    fn of(group: &[&JobResult], direction: Direction) -> Self {
        let mut total =
            Self { bytes: 0, ns_min: u64::MAX, ns_max: 0, slowest: f64::MAX, fastest: 0.0 };
        for result in group {
            let transfers = (direction.of)(result);
            if transfers.bytes > 0 {
                let rate = result.bandwidth(transfers);
                total.bytes += transfers.bytes;
                total.ns_min = total.ns_min.min(result.runtime.0);
                total.ns_max = total.ns_max.max(result.runtime.0);
                (total.slowest, total.fastest) = (total.slowest.min(rate), total.fastest.max(rate));
            }
        }
        total
    }

    fn bandwidth(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.ns_max.max(1) as f64
    }
}

fn group_lines(number: u32, group: &[&JobResult]) -> String {
    let mut text = format!("\nRun status group {number} (all jobs):\n");
    for direction in DIRECTIONS {
        let total = Total::of(group, direction);
        if total.bytes == 0 {
            continue;
        }
        let binary = |amount: f64| short(amount, KIB, BINARY);
        let decimal = |amount: f64| short(amount, 1000.0, DECIMAL);
        let rate = total.bandwidth();
        let bytes = total.bytes as f64;
        text += &format!(
            "{}: bw={}/s ({}/s), {}/s-{}/s ({}/s-{}/s), io={} ({}), run={}-{}msec\n",
            direction.name,
            binary(rate),
            decimal(rate),
            binary(total.slowest),
            binary(total.fastest),
            decimal(total.slowest),
            decimal(total.fastest),
            binary(bytes),
            decimal(bytes),
            total.ns_min / 1_000_000,
            total.ns_max / 1_000_000,
        );
    }
    text
}

const BINARY: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
const DECIMAL: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];

/// Four digits, or three with a point, in the smallest unit that suffices.
fn short(amount: f64, step: f64, units: [&str; 5]) -> String {
    let mut amount = amount;
    let mut unit = 0;
    while amount.floor() >= 10_000.0 && unit + 1 < units.len() {
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

/// fio's unit for latencies from `min_ns` to `max_ns`: the larger one only if the numbers stay
/// legible in it.
fn unit(min_ns: u64, max_ns: u64) -> (&'static str, f64) {
    match (min_ns, max_ns) {
        (2_000_000.., 100_000_000..) => ("msec", 1e6),
        (2_000.., 100_000..) => ("usec", 1e3),
        _ => ("nsec", 1.0),
    }
}

fn latency_line(name: &str, latencies: &Histogram) -> String {
    let min_ns = latencies.min().0;
    let max_ns = latencies.max().0;
    let (unit, unit_ns) = unit(min_ns, max_ns);
    format!(
        "    {name:>4} ({unit}): min={:.0}, max={:.0}, avg={:.2}, stdev={:.2}\n",
        (min_ns as f64 / unit_ns).floor(),
        (max_ns as f64 / unit_ns).floor(),
        latencies.mean_ns() / unit_ns,
        latencies.stdev_ns() / unit_ns
    )
}

fn percentile_lines(name: &str, latencies: &Histogram, percentiles: &Percentiles) -> String {
    let (unit, lines) = percentiles.lines(latencies, unit);
    format!("    {name} percentiles ({unit}):\n     | {lines}\n")
}
