//! A trace as JSON.

use blockyard::bench::replay_report::Times;
use blockyard_workload::replay::op_name;
use blockyard_workload::trace::{OpSummary, Summary, Trace, TracedBio};
use serde::Serialize;

/// A bio.
#[derive(Serialize)]
pub(super) struct BioReport {
    start_ns: u64,
    op: &'static str,
    fua: bool,
    preflush: bool,
    sync: bool,
    sector: u64,
    sectors: u32,
    submitter: u32,
    priority: String,
    latency_ns: Option<u64>,
    status: Option<String>,
}

/// Statistics of a trace.
// 14 fields: each is a key of the command's JSON.
#[derive(Serialize)]
pub(super) struct SummaryReport<'a> {
    export: &'a str,
    volume_bytes: u64,
    sector_bytes: u32,
    began_unix_ns: u64,
    length_ns: u64,
    lost: u64,
    cut_off_at_bytes: Option<u64>,
    bios: u64,
    bytes: u64,
    sequential_to_any: u64,
    depth_max: u64,
    ops: Vec<OpReport>,
    submitters: Vec<SubmitterReport>,
    over_time: Vec<SliceReport>,
}

#[derive(Serialize)]
struct OpReport {
    op: &'static str,
    bios: u64,
    bytes: u64,
    sequential: u64,
    sync: u64,
    fua: u64,
    errors: u64,
    not_ended: u64,
    sizes: Vec<SizeReport>,
    latency_ns: Times,
}

/// Number of reads or writes of one length.
#[derive(Serialize)]
struct SizeReport {
    bytes: u64,
    bios: u64,
}

#[derive(Serialize)]
struct SubmitterReport {
    submitter: u32,
    priority: String,
    bios: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct SliceReport {
    start_ns: u64,
    bios: u64,
    bytes: u64,
    depth: f64,
}

impl BioReport {
    pub(super) fn of(bio: &TracedBio) -> Self {
        Self {
            start_ns: bio.start.0,
            op: op_name(bio.op),
            fua: bio.fua,
            preflush: bio.preflush,
            sync: bio.sync,
            sector: bio.sector,
            sectors: bio.sectors,
            submitter: bio.submitter,
            priority: bio.priority.to_string(),
            latency_ns: bio.completion.map(|end| end.latency.0),
            status: bio.completion.map(|end| end.status.to_string()),
        }
    }
}

impl<'a> SummaryReport<'a> {
    pub(super) fn of(trace: &'a Trace, summary: &Summary) -> Self {
        let slices = summary.slices.iter().map(|slice| SliceReport {
            start_ns: slice.start.0,
            bios: slice.bios,
            bytes: slice.bytes,
            depth: slice.depth,
        });
        let submitters = summary.submitters.iter().map(|((number, priority), of)| {
            let priority = priority.to_string();
            SubmitterReport { submitter: *number, priority, bios: of.count, bytes: of.bytes }
        });
        Self {
            export: &trace.header.export,
            volume_bytes: trace.header.volume_bytes,
            sector_bytes: trace.header.sector_bytes,
            began_unix_ns: trace.header.began_unix_ns,
            length_ns: summary.length.0,
            lost: trace.end.lost,
            cut_off_at_bytes: trace.end.cut_off_at_bytes,
            bios: summary.count(),
            bytes: summary.bytes(),
            sequential_to_any: summary.sequential_to_any,
            depth_max: summary.depth_max,
            ops: summary.ops.iter().map(OpReport::of).collect(),
            submitters: submitters.collect(),
            over_time: slices.collect(),
        }
    }
}

impl OpReport {
    fn of(op: &OpSummary) -> Self {
        let sizes = op.sizes.iter().map(|(bytes, bios)| SizeReport { bytes: *bytes, bios: *bios });
        Self {
            op: op_name(op.op),
            bios: op.count,
            bytes: op.bytes,
            sequential: op.sequential,
            sync: op.sync,
            fua: op.fua,
            errors: op.errors,
            not_ended: op.not_ended,
            sizes: sizes.collect(),
            latency_ns: Times::of(&op.latency),
        }
    }
}
