//! The measured jobs as JSON, with the names that fio's own output has (`--output-format=json`), so
//! that what reads one reads the other. What a volume has no figure for is left out.

use blockyard_host::volume::Volume;
use blockyard_load::fio::{Fio, Histogram, JobResult, Transfers};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::stages;

/// fio's percentiles, in hundredths of a percent.
const PERCENTILES: [u32; 17] = [
    100, 500, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 9500, 9900, 9950, 9990, 9995,
    9999,
];

/// All jobs.
pub(super) fn value(fio: &Fio, description: &str) -> Value {
    let jobs: Vec<Value> = fio.results().iter().map(job).collect();
    json!({
        "fio version": format!("blockyard-{}", env!("CARGO_PKG_VERSION")),
        "volume": description,
        "jobs": jobs,
    })
}

/// The same as text.
pub(super) fn report(fio: &Fio, description: &str, on: Option<&Volume>) -> Result<String, Failure> {
    let mut report = value(fio, description);
    if let Some(volume) = on {
        report["stages"] = stages::report_json(volume);
    }
    let text = serde_json::to_string_pretty(&report);
    let text = text.map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
    Ok(text + "\n")
}

fn job(result: &JobResult) -> Value {
    let (user, system) = result.cpu();
    json!({
        "jobname": result.name,
        "groupid": result.group,
        "numjobs": result.numjobs,
        "error": result.error.unwrap_or(0),
        "job_runtime": result.runtime.0 / 1_000_000,
        "read": transfers(result, &result.read),
        "write": transfers(result, &result.write),
        "sync": { "total_ios": result.sync.count(), "lat_ns": latency(&result.sync) },
        "usr_cpu": user * 100.0,
        "sys_cpu": system * 100.0,
        "ctx": result.usage.switches,
    })
}

fn transfers(result: &JobResult, transfers: &Transfers) -> Value {
    let bytes_s = result.bandwidth(transfers);
    json!({
        "io_bytes": transfers.bytes,
        "io_kbytes": transfers.bytes / 1024,
        "bw_bytes": bytes_s as u64,
        "bw": bytes_s as u64 / 1024,
        "iops": result.iops(transfers),
        "runtime": if transfers.ios > 0 { result.runtime.0 / 1_000_000 } else { 0 },
        "total_ios": transfers.ios,
        "slat_ns": latency(&transfers.slat),
        "clat_ns": latency(&transfers.clat),
        "lat_ns": latency(&transfers.lat),
    })
}

fn latency(histogram: &Histogram) -> Value {
    let mut value = json!({
        "min": histogram.min().0,
        "max": histogram.max().0,
        "mean": histogram.mean_ns(),
        "stddev": histogram.stdev_ns(),
        "N": histogram.count(),
    });
    if histogram.count() > 0 {
        let percentiles: Map<String, Value> = PERCENTILES
            .iter()
            .map(|share| (format!("{:.6}", f64::from(*share) / 100.0), *share))
            .map(|(name, share)| (name, histogram.per_ten_thousand(share).0.into()))
            .collect();
        value["percentile"] = percentiles.into();
    }
    value
}
