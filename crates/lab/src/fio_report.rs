//! Further lines of fio's report as rows, for a job with `report = true`: minima and deviations,
//! all percentiles, the half-second samples, and the tables of latencies, depths and batches.

use blockyard_workload::fio::{Histogram, JobResult, Transfers};

use super::execute::Measured;
use super::spec::job::{REPORT_JOB_METRICS, REPORT_METRICS};

/// fio's name of each percentile, and its metric.
const PERCENTILES: [(u64, &str); 17] = [
    (100, "clat_p1"),
    (500, "clat_p5"),
    (1_000, "clat_p10"),
    (2_000, "clat_p20"),
    (3_000, "clat_p30"),
    (4_000, "clat_p40"),
    (5_000, "clat_p50"),
    (6_000, "clat_p60"),
    (7_000, "clat_p70"),
    (8_000, "clat_p80"),
    (9_000, "clat_p90"),
    (9_500, "clat_p95"),
    (9_900, "clat_p99"),
    (9_950, "clat_p99_50"),
    (9_990, "clat_p99_90"),
    (9_995, "clat_p99_95"),
    (9_999, "clat_p99_99"),
];

/// Columns of fio's table of latencies that have a metric: unit, bound, metric.
const BOUNDS: [(&str, &str, &str); 10] = [
    ("usec", "10", "below_10us"),
    ("usec", "750", "below_750us"),
    ("usec", "1000", "below_1000us"),
    ("msec", "2", "below_2ms"),
    ("msec", "4", "below_4ms"),
    ("msec", "10", "below_10ms"),
    ("msec", "20", "below_20ms"),
    ("msec", "50", "below_50ms"),
    ("msec", "100", "below_100ms"),
    ("msec", "250", "below_250ms"),
];

const DEPTHS: [&str; 7] =
    ["depth_1", "depth_2", "depth_4", "depth_8", "depth_16", "depth_32", "depth_64"];
const SUBMITS: [&str; 7] =
    ["submit_0", "submit_4", "submit_8", "submit_16", "submit_32", "submit_64", "submit_more"];
const REAPS: [&str; 7] =
    ["reap_0", "reap_4", "reap_8", "reap_16", "reap_32", "reap_64", "reap_more"];

/// The rows of a job, with the lines of each direction that transferred bytes.
pub(crate) fn rows(job: &JobResult) -> Vec<Measured> {
    let mut rows = Vec::new();
    for (kind, transfers) in [("read", &job.read), ("write", &job.write)] {
        if transfers.bytes > 0 {
            let row = format!("{} {kind}", job.name);
            let of = transfer_metrics(job, transfers).into_iter();
            rows.extend(of.map(|(metric, value)| Measured { row: row.clone(), metric, value }));
        }
    }
    let of = job_metrics(job).into_iter();
    rows.extend(of.map(|(metric, value)| Measured { row: job.name.clone(), metric, value }));
    debug_assert!(rows.iter().all(|row| {
        REPORT_METRICS.contains(&row.metric) || REPORT_JOB_METRICS.contains(&row.metric)
    }));
    rows
}

fn transfer_metrics(job: &JobResult, transfers: &Transfers) -> Vec<(&'static str, f64)> {
    let Transfers { slat, clat, lat, samples, .. } = transfers;
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut metrics = vec![
        ("bytes", transfers.bytes as f64),
        ("ios", transfers.ios as f64),
        ("slat_min", seconds(slat.min().0)),
        ("slat_max", seconds(slat.max().0)),
        ("slat_stdev", slat.stdev_ns() / 1e9),
        ("clat_min", seconds(clat.min().0)),
        ("clat_stdev", clat.stdev_ns() / 1e9),
        ("latency_min", seconds(lat.min().0)),
        ("depth_latency_error", depth_latency_error(job, transfers)),
    ];
    metrics.extend(percentiles(clat));
    if let Some((bytes, iops)) = samples.bandwidth().zip(samples.iops()) {
        metrics.extend([
            ("samples", bytes.count as f64),
            ("rate_sample_min", bytes.min),
            ("rate_sample_max", bytes.max),
            ("rate_sample_avg", bytes.mean),
            ("rate_sample_stdev", bytes.stdev),
            ("rate_sample_share", (bytes.mean / job.bandwidth(transfers)).min(1.0)),
            ("iops_sample_min", iops.min),
            ("iops_sample_max", iops.max),
            ("iops_sample_avg", iops.mean),
            ("iops_sample_stdev", iops.stdev),
        ]);
    }
    metrics
}

/// How far the average latency is from depth divided by IOPS, that of a full queue (Little's law).
fn depth_latency_error(job: &JobResult, transfers: &Transfers) -> f64 {
    let expected = f64::from(job.iodepth) / job.iops(transfers);
    (transfers.lat.mean_ns() / 1e9 / expected - 1.0).abs()
}

fn percentiles(clat: &Histogram) -> impl Iterator<Item = (&'static str, f64)> {
    let of = |(hundredths, metric)| (metric, clat.share(hundredths, 10_000).0 as f64 / 1e9);
    PERCENTILES.into_iter().map(of)
}

fn job_metrics(job: &JobResult) -> Vec<(&'static str, f64)> {
    let mut metrics = vec![
        ("reads", job.read.ios as f64),
        ("trims", job.trim.ios as f64),
        ("syncs", job.sync.count() as f64),
        ("zone_resets", job.zone_resets as f64),
        ("first_error", f64::from(job.reported_error().unwrap_or(0))),
    ];
    for (unit, bound, metric) in BOUNDS {
        let share = job.bounds.shares().find(|share| share.0 == unit && share.1 == bound);
        metrics.push((metric, share.map_or(0.0, |share| share.2)));
    }
    for (names, shares) in [
        (DEPTHS, job.queueing.depths.shares()),
        (SUBMITS, job.queueing.submits.shares()),
        (REAPS, job.queueing.completes.shares()),
    ] {
        metrics.extend(names.into_iter().zip(shares.map(|(_, percent)| percent / 100.0)));
    }
    metrics
}

#[cfg(test)]
mod tests {
    use blockyard_engine::time::Nanos;

    use super::*;

    #[test]
    fn percentile_of_a_metric_is_the_one_in_its_name() {
        let mut clat = Histogram::default();
        (1..=100_u64).for_each(|us| clat.record(Nanos(us * 1_000_000)));
        let of = |name: &str| percentiles(&clat).find(|(metric, _)| *metric == name).unwrap().1;
        assert!((of("clat_p20") - 0.02).abs() < 0.001, "{}", of("clat_p20"));
        assert!((of("clat_p95") - 0.095).abs() < 0.003, "{}", of("clat_p95"));
        assert!(of("clat_p99_99") > 0.098);
    }
}
