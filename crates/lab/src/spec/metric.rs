//! Metrics, their units, and names of cells: `variant/row/metric`, for example
//! `hdd-cfq/Random Read/latency_max`.

use std::collections::BTreeMap;
use std::fmt;

use super::job::Yield;
use super::section::{listed, mistake};
use super::tree::Node;
use crate::Error;

/// Base unit of a metric; the report chooses the printed unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    Seconds,
    BytesPerSecond,
    PerSecond,
    /// A fraction of the whole, 0 to 1.
    Fraction,
    Bytes,
    Count,
}

/// A metric that a job yields.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) base: Base,
    /// An artefact of the measuring tool: printed, neither judged nor modelled.
    pub(crate) artefact: bool,
}

const fn metric(name: &'static str, base: Base) -> Metric {
    Metric { name, base, artefact: false }
}

const fn artefact(name: &'static str) -> Metric {
    Metric { name, base: Base::Fraction, artefact: true }
}

/// All metrics, in the order of tables.
pub(crate) const METRICS: &[Metric] = &[
    metric("phase_time", Base::Seconds),
    metric("shortest_time", Base::Seconds),
    metric("rate", Base::BytesPerSecond),
    metric("rate_sum", Base::BytesPerSecond),
    metric("iops", Base::PerSecond),
    metric("iops_sum", Base::PerSecond),
    metric("files_per_s", Base::PerSecond),
    metric("slat_avg", Base::Seconds),
    metric("clat_avg", Base::Seconds),
    metric("clat_max", Base::Seconds),
    metric("latency_avg", Base::Seconds),
    metric("latency_stdev", Base::Seconds),
    metric("latency_p50", Base::Seconds),
    metric("latency_p99", Base::Seconds),
    metric("latency_max", Base::Seconds),
    metric("ops_over_2s", Base::Fraction),
    metric("ops_over_10s", Base::Fraction),
    metric("fsync_min", Base::Seconds),
    metric("fsync_median", Base::Seconds),
    metric("fsync_max", Base::Seconds),
    metric("fsync_over_1s", Base::Fraction),
    metric("cpu_busy", Base::Fraction),
    metric("switches_per_1000", Base::Count),
    metric("usr", Base::Fraction),
    metric("sys", Base::Fraction),
    metric("ctx", Base::Count),
    metric("ctx_per_1000", Base::Count),
    metric("voluntary_per_1000", Base::Count),
    metric("involuntary_per_1000", Base::Count),
    metric("errors", Base::Count),
    metric("issued_by_workers", Base::Fraction),
    metric("crossed", Base::Fraction),
    metric("ended_elsewhere", Base::Fraction),
    metric("worker_calls_per_1000", Base::Count),
    metric("worker_ctx_per_1000", Base::Count),
    metric("softirqs_per_1000", Base::Count),
    metric("softirq_ctx_per_1000", Base::Count),
    metric("no_tag_per_1000", Base::Count),
    metric("lock_wait", Base::Seconds),
    metric("lock_wait_share", Base::Fraction),
    metric("part_bytes", Base::Count),
    metric("workers_per_write", Base::Count),
    metric("contexts_per_write", Base::Count),
    metric("out_of_order", Base::Fraction),
    metric("submitting_threads", Base::Count),
    metric("write_contexts", Base::Count),
    metric("cpus_of_writer", Base::Count),
    metric("batch_writes", Base::Count),
    metric("unsorted_batches", Base::Count),
    metric("cpu_per_write", Base::Seconds),
    metric("write_request_bytes", Base::Count),
    metric("write_bios_merged", Base::Fraction),
    metric("mixed_requests", Base::Count),
    metric("mixed_share", Base::Fraction),
    metric("time_per_write", Base::Seconds),
    metric("time_share", Base::Fraction),
    metric("calls_per_write", Base::Count),
    metric("segments_per_write", Base::Count),
    metric("reserve_per_1000", Base::Count),
    metric("waits_per_1000", Base::Count),
    metric("zone_locks_per_write", Base::Count),
    metric("compactions_per_1000", Base::Count),
    metric("bytes", Base::Bytes),
    metric("ios", Base::Count),
    metric("slat_min", Base::Seconds),
    metric("slat_max", Base::Seconds),
    metric("slat_stdev", Base::Seconds),
    metric("clat_min", Base::Seconds),
    metric("clat_stdev", Base::Seconds),
    metric("latency_min", Base::Seconds),
    metric("depth_latency_error", Base::Fraction),
    metric("clat_p1", Base::Seconds),
    metric("clat_p5", Base::Seconds),
    metric("clat_p10", Base::Seconds),
    metric("clat_p20", Base::Seconds),
    metric("clat_p30", Base::Seconds),
    metric("clat_p40", Base::Seconds),
    metric("clat_p50", Base::Seconds),
    metric("clat_p60", Base::Seconds),
    metric("clat_p70", Base::Seconds),
    metric("clat_p80", Base::Seconds),
    metric("clat_p90", Base::Seconds),
    metric("clat_p95", Base::Seconds),
    metric("clat_p99", Base::Seconds),
    metric("clat_p99_50", Base::Seconds),
    metric("clat_p99_90", Base::Seconds),
    metric("clat_p99_95", Base::Seconds),
    metric("clat_p99_99", Base::Seconds),
    metric("samples", Base::Count),
    metric("rate_sample_min", Base::BytesPerSecond),
    metric("rate_sample_max", Base::BytesPerSecond),
    metric("rate_sample_avg", Base::BytesPerSecond),
    metric("rate_sample_stdev", Base::BytesPerSecond),
    metric("rate_sample_share", Base::Fraction),
    metric("iops_sample_min", Base::PerSecond),
    metric("iops_sample_max", Base::PerSecond),
    metric("iops_sample_avg", Base::PerSecond),
    metric("iops_sample_stdev", Base::PerSecond),
    metric("reads", Base::Count),
    metric("trims", Base::Count),
    metric("syncs", Base::Count),
    metric("zone_resets", Base::Count),
    metric("first_error", Base::Count),
    metric("below_10us", Base::Fraction),
    metric("below_750us", Base::Fraction),
    metric("below_1000us", Base::Fraction),
    metric("below_2ms", Base::Fraction),
    metric("below_4ms", Base::Fraction),
    metric("below_10ms", Base::Fraction),
    metric("below_20ms", Base::Fraction),
    metric("below_50ms", Base::Fraction),
    metric("below_100ms", Base::Fraction),
    metric("below_250ms", Base::Fraction),
    metric("depth_1", Base::Fraction),
    metric("depth_2", Base::Fraction),
    metric("depth_4", Base::Fraction),
    metric("depth_8", Base::Fraction),
    metric("depth_16", Base::Fraction),
    metric("depth_32", Base::Fraction),
    metric("depth_64", Base::Fraction),
    metric("submit_0", Base::Fraction),
    metric("submit_4", Base::Fraction),
    metric("submit_8", Base::Fraction),
    metric("submit_16", Base::Fraction),
    metric("submit_32", Base::Fraction),
    metric("submit_64", Base::Fraction),
    metric("submit_more", Base::Fraction),
    metric("reap_0", Base::Fraction),
    metric("reap_4", Base::Fraction),
    metric("reap_8", Base::Fraction),
    metric("reap_16", Base::Fraction),
    metric("reap_32", Base::Fraction),
    metric("reap_64", Base::Fraction),
    metric("reap_more", Base::Fraction),
    artefact("cpu_usr"),
    artefact("cpu_sys"),
];

/// The metric of this name.
pub(crate) fn metric_named(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// The metric of this name, or an error that lists all.
pub(super) fn known_metric(node: &Node, path: &str, name: &str) -> Result<&'static Metric, Error> {
    metric_named(name).ok_or_else(|| {
        let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        let what = format!("has the unknown metric {name:?}; metrics are {}", names.join(", "));
        mistake(node, path, &what)
    })
}

/// Rows that the jobs of each variant yield.
pub(crate) struct Yields(pub(super) BTreeMap<String, Vec<Yield>>);

impl Yields {
    /// The rows of a variant, or the error text for an unknown name.
    pub(super) fn check_variant(&self, name: &str) -> Result<&[Yield], String> {
        let all =
            || format!("has the unknown variant {name:?}; variants are {}", listed(self.0.keys()));
        self.0.get(name).map(Vec::as_slice).ok_or_else(all)
    }

    /// Checks that a variant has a row; otherwise returns the error text.
    pub(super) fn check_row(&self, variant: &str, row: &str) -> Result<(), String> {
        let rows = self.check_variant(variant)?;
        if rows.iter().all(|one| one.row != row) {
            let rows = listed(rows.iter().map(|one| &one.row));
            return Err(format!("has the row {row:?}, but {variant} measures only {rows}"));
        }
        Ok(())
    }

    /// Checks that a cell is measured; otherwise returns the error text.
    fn check(&self, cell: &Cell) -> Result<(), String> {
        let Cell { variant, row, metric } = cell;
        self.check_row(variant, row)?;
        let rows = self.check_variant(variant)?;
        let of_row = || rows.iter().filter(|one| one.row == *row);
        if of_row().all(|one| !one.metrics.contains(metric)) {
            let metrics = listed(of_row().flat_map(|one| one.metrics));
            return Err(format!(
                "has the metric {metric}, but in the row {row:?} {variant} measures only {metrics}"
            ));
        }
        Ok(())
    }
}

/// Name of one measured value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) variant: String,
    pub(crate) row: String,
    pub(crate) metric: &'static str,
}

impl Cell {
    /// Parses `variant/row/metric`; the cell must be measured.
    pub(super) fn parse(
        node: &Node,
        path: &str,
        text: &str,
        yields: &Yields,
    ) -> Result<Self, Error> {
        let parts: Vec<&str> = text.split('/').collect();
        let [variant, row, metric] = parts[..] else {
            let what = format!("is {text:?}, but takes \"variant/row/metric\"");
            return Err(mistake(node, path, &what));
        };
        let metric = known_metric(node, path, metric)?.name;
        let cell = Self { variant: variant.into(), row: row.into(), metric };
        yields.check(&cell).map_err(|what| mistake(node, path, &what))?;
        Ok(cell)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.variant, self.row, self.metric)
    }
}
