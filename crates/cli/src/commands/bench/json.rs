//! Results as JSON, with the names of fio's own output (`--output-format=json`), for the same
//! readers. Figures that a volume does not have are left out.

use blockyard::Volume;
use blockyard::status::Activity;
use blockyard_workload::fio::{
    Fio, Histogram, Job, JobResult, Percentiles, Rw, Spread, Steady, Transfers,
};
use serde::Serialize;

use crate::json::{Members, pretty};

/// Results of all jobs.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    #[serde(rename = "fio version")]
    fio_version: &'static str,
    volume: &'a str,
    jobs: Vec<JobReport>,
    #[serde(skip_serializing_if = "Members::is_empty")]
    conditions: Members<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stages: Option<Activity>,
}

// 18 fields: each is a key, or a group of keys, of a job in fio's JSON.
#[derive(Serialize)]
struct JobReport {
    jobname: String,
    groupid: u32,
    numjobs: u32,
    error: i32,
    #[serde(rename = "job options")]
    job_options: Members<&'static str, String>,
    job_runtime: u64,
    read: TransfersReport,
    write: TransfersReport,
    trim: TransfersReport,
    sync: SyncReport,
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
    #[serde(flatten)]
    search: SearchReport,
    #[serde(flatten)]
    queueing: QueueingReport,
    #[serde(flatten)]
    bounds: BoundsReport,
    /// With `continue_on_error`.
    #[serde(flatten)]
    counted: Option<CountedErrors>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steadystate: Option<SteadyReport>,
}

#[derive(Serialize)]
struct SyncReport {
    total_ios: u64,
    lat_ns: LatencyReport,
}

/// The search for the depth of a `latency_target`.
#[derive(Serialize)]
struct SearchReport {
    latency_depth: u32,
    latency_target: u64,
    latency_percentile: f64,
    latency_window: u64,
}

/// Percentage of requests by depth, and of calls by number of requests.
#[derive(Serialize)]
struct QueueingReport {
    iodepth_level: Members<&'static str, f64>,
    iodepth_submit: Members<&'static str, f64>,
    iodepth_complete: Members<&'static str, f64>,
}

/// Percentage of requests between each bound of a unit and the one before.
#[derive(Serialize)]
struct BoundsReport {
    latency_ns: Members<String, f64>,
    latency_us: Members<String, f64>,
    latency_ms: Members<String, f64>,
}

#[derive(Serialize)]
struct CountedErrors {
    total_err: u64,
    first_error: i32,
}

/// Whether the rates reached a steady state.
#[derive(Serialize)]
struct SteadyReport {
    ss: String,
    duration: u64,
    attained: u8,
    criterion: String,
    max_deviation: f64,
    slope: f64,
    data: SteadyData,
}

#[derive(Serialize)]
struct SteadyData {
    bw_mean: u64,
    iops_mean: u64,
    iops: Vec<u64>,
    bw: Vec<u64>,
}

// 14 fields: each is a key of one direction in fio's JSON.
#[derive(Serialize)]
struct TransfersReport {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: LatencyReport,
    clat_ns: LatencyReport,
    lat_ns: LatencyReport,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prios: Vec<PriorityReport>,
    #[serde(flatten)]
    rates: RatesReport,
}

/// Latencies of one priority: from submission if the job lists those, else from the device.
#[derive(Serialize)]
struct PriorityReport {
    prioclass: u8,
    prio: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    clat_ns: Option<LatencyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lat_ns: Option<LatencyReport>,
}

/// Spread of the rates of half seconds.
#[derive(Serialize)]
struct RatesReport {
    bw_min: u64,
    bw_max: u64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: usize,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: usize,
}

#[derive(Serialize)]
struct LatencyReport {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<Members<String, u64>>,
}

impl<'a> Report<'a> {
    pub(super) fn of(fio: &Fio, description: &'a str) -> Self {
        Self {
            fio_version: concat!("blockyard-", env!("CARGO_PKG_VERSION")),
            volume: description,
            jobs: fio.listed().iter().map(|result| JobReport::of(fio, result)).collect(),
            conditions: Members::default(),
            stages: None,
        }
    }
}

/// Results as text.
pub(super) fn text(
    fio: &Fio,
    description: &str,
    on: Option<&Volume>,
    conditions: &[(&str, String)],
) -> String {
    let conditions = conditions.iter().map(|(name, text)| (*name, text.as_str()));
    pretty(&Report {
        conditions: conditions.collect(),
        stages: on.map(Volume::activity),
        ..Report::of(fio, description)
    })
}

impl JobReport {
    fn of(fio: &Fio, result: &JobResult) -> Self {
        let (user, system) = result.cpu();
        let job = fio.jobs().iter().find(|job| job.name == result.name);
        let runtimes_ns: u64 = result.clones.iter().map(|clone| clone.runtime.0).sum();
        Self {
            jobname: result.name.clone(),
            groupid: result.group,
            numjobs: result.numjobs,
            error: result.reported_error().unwrap_or(0),
            job_options: job.map(options).unwrap_or_default(),
            job_runtime: runtimes_ns / 1_000_000,
            read: TransfersReport::of(result, &result.read),
            write: TransfersReport::of(result, &result.write),
            trim: TransfersReport::of(result, &result.trim),
            sync: SyncReport {
                total_ios: result.sync.count(),
                lat_ns: LatencyReport::of(&result.sync, Some(&result.percentiles)),
            },
            usr_cpu: user * 100.0,
            sys_cpu: system * 100.0,
            ctx: result.usage.switches,
            search: SearchReport {
                latency_depth: result.iodepth,
                latency_target: result.latency.target.0,
                latency_percentile: result.latency.percentile(),
                latency_window: result.latency.window.0 / 1000,
            },
            queueing: QueueingReport {
                iodepth_level: result.queueing.depths.shares().into_iter().collect(),
                iodepth_submit: result.queueing.submits.shares().into_iter().collect(),
                iodepth_complete: result.queueing.completes.shares().into_iter().collect(),
            },
            bounds: BoundsReport {
                latency_ns: below_bounds(result, "nsec"),
                latency_us: below_bounds(result, "usec"),
                latency_ms: below_bounds(result, "msec"),
            },
            counted: result.goes_on.then(|| CountedErrors {
                total_err: result.errors.counted,
                first_error: result.errors.first_counted.unwrap_or(0),
            }),
            steadystate: result.steady.as_ref().map(SteadyReport::of),
        }
    }
}

/// The options that decide about a job's requests. A job of several lengths has no `bs` here.
fn options(job: &Job) -> Members<&'static str, String> {
    let shape = &job.shape;
    let has_one_length = shape.lens.iter().all(Option::is_none);
    let depth = if job.submission.direct { job.submission.iodepth } else { 1 };
    let is_mixed = matches!(shape.rw, Rw::ReadWrite | Rw::RandReadWrite);
    [
        Some(("rw", shape.rw.name().to_owned())),
        is_mixed.then(|| ("rwmixread", shape.read_percent.to_string())),
        has_one_length.then(|| ("bs", shape.block_bytes.to_string())),
        Some(("iodepth", depth.to_string())),
        Some(("numjobs", job.clones.numjobs.to_string())),
        Some(("size", job.region.size_bytes.to_string())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn below_bounds(result: &JobResult, unit: &str) -> Members<String, f64> {
    let of_unit = result.bounds.shares().filter(|share| share.0 == unit);
    of_unit.map(|(_, bound, share)| (bound, share * 100.0)).collect()
}

impl SteadyReport {
    fn of(steady: &Steady) -> Self {
        let rule = &steady.rule;
        let percent = if rule.is_percent { "%" } else { "" };
        let limit = rule.limit_millionths as f64 / 1e6;
        Self {
            ss: format!("{}:{limit:.6}{percent}", rule.name()),
            duration: rule.window.0 / 1_000_000_000,
            attained: u8::from(steady.is_attained),
            criterion: format!("{:.6}{percent}", steady.criterion),
            max_deviation: steady.deviation,
            slope: steady.slope,
            data: SteadyData {
                bw_mean: Steady::mean(&steady.bandwidth),
                iops_mean: Steady::mean(&steady.iops),
                iops: steady.iops.clone(),
                bw: steady.bandwidth.clone(),
            },
        }
    }
}

impl TransfersReport {
    fn of(result: &JobResult, transfers: &Transfers) -> Self {
        let bytes_s = result.bandwidth(transfers);
        let of = &result.percentiles;
        let prios = transfers
            .by_priority
            .listed()
            .map(|(class, level, latencies)| PriorityReport::of(class, level, latencies, of));
        Self {
            io_bytes: transfers.bytes,
            io_kbytes: transfers.bytes / 1024,
            bw_bytes: bytes_s as u64,
            bw: bytes_s as u64 / 1024,
            iops: result.iops(transfers),
            runtime: if transfers.bytes > 0 { result.runtime.0 / 1_000_000 } else { 0 },
            total_ios: transfers.ios,
            // A short transfer is an error, and no request is lost.
            short_ios: 0,
            drop_ios: 0,
            slat_ns: LatencyReport::of(&transfers.slat, of.slat.then_some(of)),
            clat_ns: LatencyReport::of(&transfers.clat, of.clat.then_some(of)),
            lat_ns: LatencyReport::of(&transfers.lat, of.lat.then_some(of)),
            prios: prios.collect(),
            rates: RatesReport::of(transfers),
        }
    }
}

impl PriorityReport {
    fn of(class: u8, level: u8, latencies: &Histogram, of: &Percentiles) -> Self {
        let report = LatencyReport::of(latencies, (of.clat || of.lat).then_some(of));
        let (clat_ns, lat_ns) = if of.lat { (None, Some(report)) } else { (Some(report), None) };
        Self { prioclass: class, prio: level, clat_ns, lat_ns }
    }
}

impl RatesReport {
    /// Without samples zeros, like fio.
    fn of(transfers: &Transfers) -> Self {
        let none = Spread { min: 0.0, max: 0.0, mean: 0.0, stdev: 0.0, count: 0 };
        let bandwidth = transfers.samples.bandwidth().unwrap_or(none);
        let iops = transfers.samples.iops().unwrap_or(none);
        Self {
            bw_min: bandwidth.min as u64 / 1024,
            bw_max: bandwidth.max as u64 / 1024,
            bw_mean: bandwidth.mean / 1024.0,
            bw_dev: bandwidth.stdev / 1024.0,
            bw_samples: bandwidth.count,
            iops_min: iops.min as u64,
            iops_max: iops.max as u64,
            iops_mean: iops.mean,
            iops_stddev: iops.stdev,
            iops_samples: iops.count,
        }
    }
}

impl LatencyReport {
    fn of(histogram: &Histogram, percentiles: Option<&Percentiles>) -> Self {
        let percentiles = percentiles.filter(|_| histogram.count() > 0);
        Self {
            min: histogram.min().0,
            max: histogram.max().0,
            mean: histogram.mean_ns(),
            stddev: histogram.stdev_ns(),
            count: histogram.count(),
            percentile: percentiles.map(|percentiles| percentiles.of(histogram).collect()),
        }
    }
}
