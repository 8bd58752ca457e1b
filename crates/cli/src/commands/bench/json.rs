//! Results as JSON, with the names of fio's own output (`--output-format=json`), for the same
//! readers. Figures that a volume does not have are left out.

use blockyard::Volume;
use blockyard_workload::fio::{Fio, Histogram, JobResult, Percentiles, Spread, Steady, Transfers};
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// All jobs.
pub(super) fn value(fio: &Fio, description: &str) -> Value {
    let jobs: Vec<Value> = fio.listed().iter().map(job).collect();
    json!({
        "fio version": format!("blockyard-{}", env!("CARGO_PKG_VERSION")),
        "volume": description,
        "jobs": jobs,
    })
}

/// Results as text.
pub(super) fn report(
    fio: &Fio,
    description: &str,
    on: Option<&Volume>,
    conditions: &[(&str, String)],
) -> Result<String, Failure> {
    let mut report = value(fio, description);
    for (name, text) in conditions {
        report["conditions"][*name] = text.clone().into();
    }
    if let Some(volume) = on {
        report["stages"] = json!(volume.activity());
    }
    let text = serde_json::to_string_pretty(&report);
    let text = text.map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
    Ok(text + "\n")
}

fn job(result: &JobResult) -> Value {
    let (user, system) = result.cpu();
    let of = Some(&result.percentiles);
    let runtimes_ns: u64 = result.clones.iter().map(|clone| clone.runtime.0).sum();
    let mut value = json!({
        "jobname": result.name,
        "groupid": result.group,
        "numjobs": result.numjobs,
        "error": result.reported_error().unwrap_or(0),
        "job_runtime": runtimes_ns / 1_000_000,
        "read": transfers(result, &result.read),
        "write": transfers(result, &result.write),
        "trim": transfers(result, &result.trim),
        "sync": { "total_ios": result.sync.count(), "lat_ns": latency(&result.sync, of) },
        "usr_cpu": user * 100.0,
        "sys_cpu": system * 100.0,
        "ctx": result.usage.switches,
        "latency_depth": result.iodepth,
        "latency_target": result.latency.target.0,
        "latency_percentile": result.latency.percentile(),
        "latency_window": result.latency.window.0 / 1000,
    });
    for (name, shares) in [
        ("iodepth_level", result.queueing.depths.shares()),
        ("iodepth_submit", result.queueing.submits.shares()),
        ("iodepth_complete", result.queueing.completes.shares()),
    ] {
        value[name] = shares
            .into_iter()
            .map(|(at, share)| (at.into(), share.into()))
            .collect::<Map<_, Value>>()
            .into();
    }
    for (unit, name) in [("nsec", "latency_ns"), ("usec", "latency_us"), ("msec", "latency_ms")] {
        value[name] = below_bounds(result, unit);
    }
    if result.goes_on {
        value["total_err"] = result.errors.counted.into();
        value["first_error"] = result.errors.first_counted.unwrap_or(0).into();
    }
    if let Some(steady) = &result.steady {
        value["steadystate"] = steady_state(steady);
    }
    value
}

/// Percentage of requests between each bound of a unit and the one before.
fn below_bounds(result: &JobResult, unit: &str) -> Value {
    let of_unit = result.bounds.shares().filter(|share| share.0 == unit);
    let percent = |(_, bound, share): (&str, String, f64)| (bound, (share * 100.0).into());
    of_unit.map(percent).collect::<Map<_, Value>>().into()
}

/// Whether the rates reached a steady state.
fn steady_state(steady: &Steady) -> Value {
    let rule = &steady.rule;
    let percent = if rule.is_percent { "%" } else { "" };
    let limit = rule.limit_millionths as f64 / 1e6;
    json!({
        "ss": format!("{}:{limit:.6}{percent}", rule.name()),
        "duration": rule.window.0 / 1_000_000_000,
        "attained": u8::from(steady.is_attained),
        "criterion": format!("{:.6}{percent}", steady.criterion),
        "max_deviation": steady.deviation,
        "slope": steady.slope,
        "data": {
            "bw_mean": Steady::mean(&steady.bandwidth),
            "iops_mean": Steady::mean(&steady.iops),
            "iops": steady.iops,
            "bw": steady.bandwidth,
        },
    })
}

fn transfers(result: &JobResult, transfers: &Transfers) -> Value {
    let bytes_s = result.bandwidth(transfers);
    let of = &result.percentiles;
    let shown = |is_wanted: bool| is_wanted.then_some(of);
    let mut value = json!({
        "io_bytes": transfers.bytes,
        "io_kbytes": transfers.bytes / 1024,
        "bw_bytes": bytes_s as u64,
        "bw": bytes_s as u64 / 1024,
        "iops": result.iops(transfers),
        "runtime": if transfers.bytes > 0 { result.runtime.0 / 1_000_000 } else { 0 },
        "total_ios": transfers.ios,
        // A short transfer is an error, and no request is lost.
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": latency(&transfers.slat, shown(of.slat)),
        "clat_ns": latency(&transfers.clat, shown(of.clat)),
        "lat_ns": latency(&transfers.lat, shown(of.lat)),
    });
    let prios: Vec<Value> = transfers
        .by_priority
        .listed()
        .map(|(class, level, latencies)| {
            let name = if of.lat { "lat_ns" } else { "clat_ns" };
            let listed = latency(latencies, shown(of.clat || of.lat));
            json!({ "prioclass": class, "prio": level, name: listed })
        })
        .collect();
    if !prios.is_empty() {
        value["prios"] = prios.into();
    }
    rates(&mut value, transfers);
    value
}

/// Spread of the rates of half seconds; without samples zeros, like fio.
fn rates(value: &mut Value, transfers: &Transfers) {
    let none = Spread { min: 0.0, max: 0.0, mean: 0.0, stdev: 0.0, count: 0 };
    let bandwidth = transfers.samples.bandwidth().unwrap_or(none);
    let iops = transfers.samples.iops().unwrap_or(none);
    for (name, figure) in [
        ("bw_min", json!(bandwidth.min as u64 / 1024)),
        ("bw_max", json!(bandwidth.max as u64 / 1024)),
        ("bw_mean", json!(bandwidth.mean / 1024.0)),
        ("bw_dev", json!(bandwidth.stdev / 1024.0)),
        ("bw_samples", json!(bandwidth.count)),
        ("iops_min", json!(iops.min as u64)),
        ("iops_max", json!(iops.max as u64)),
        ("iops_mean", json!(iops.mean)),
        ("iops_stddev", json!(iops.stdev)),
        ("iops_samples", json!(iops.count)),
    ] {
        value[name] = figure;
    }
}

fn latency(histogram: &Histogram, percentiles: Option<&Percentiles>) -> Value {
    let mut value = json!({
        "min": histogram.min().0,
        "max": histogram.max().0,
        "mean": histogram.mean_ns(),
        "stddev": histogram.stdev_ns(),
        "N": histogram.count(),
    });
    if let Some(percentiles) = percentiles.filter(|_| histogram.count() > 0) {
        let of = percentiles.of(histogram).map(|(name, ns)| (name, ns.into()));
        value["percentile"] = of.collect::<Map<String, Value>>().into();
    }
    value
}
