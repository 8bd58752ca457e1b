//! Summary of a trace: operations, sizes, sequentiality, latency, depth.

use std::collections::BTreeMap;

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::writer::OPS;
use super::{Trace, TracedBio};
use crate::fio::Histogram;

/// Number of slices of a trace's time.
const SLICES: usize = 20;

/// Summary of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct OpSummary {
    /// The operation.
    pub op: Op,
    /// Number of bios.
    pub count: u64,
    /// Sum of the lengths.
    pub bytes: u64,
    /// Number of reads or writes of each length.
    pub sizes: BTreeMap<u64, u64>,
    /// Number of bios that began where the submitter's last read or write ended.
    pub sequential: u64,
    /// Number of synchronous bios.
    pub sync: u64,
    /// Number of bios with `REQ_FUA`.
    pub fua: u64,
    /// Number of failed bios.
    pub errors: u64,
    /// Number of bios without a recorded end.
    pub not_ended: u64,
    /// Latency of the ended bios.
    pub latency: Histogram,
}

/// A slice of the trace's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slice {
    /// Start of the slice.
    pub start: Nanos,
    /// Number of bios that came.
    pub bios: u64,
    /// Sum of their lengths.
    pub bytes: u64,
    /// Mean number of bios in flight.
    pub depth: f64,
}

/// Summary of a submitter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SubmitterSummary {
    /// Number of bios.
    pub count: u64,
    /// Sum of the lengths.
    pub bytes: u64,
}

/// Summary of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The operations that occur, in the order read, write, flush, discard, write zeroes.
    pub ops: Vec<OpSummary>,
    /// Length of the recording.
    pub length: Nanos,
    /// Number of reads and writes that began where the last one ended, of any submitter.
    pub sequential_to_any: u64,
    /// Greatest number of bios in flight, counting those with a known end.
    pub depth_max: u64,
    /// Slices of equal length.
    pub slices: Vec<Slice>,
    /// Summaries by submitter and priority.
    pub submitters: BTreeMap<(u32, Priority), SubmitterSummary>,
}

impl Summary {
    /// Summarises a trace.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let last = trace.bios.iter().map(ended).max().unwrap_or_default();
        let length = trace.end.length.max(last);
        let mut ops = Vec::new();
        for op in OPS {
            let mut summary = OpSummary::new(op);
            trace.bios.iter().filter(|bio| bio.op == op).for_each(|bio| summary.add(bio));
            if summary.count > 0 {
                ops.push(summary);
            }
        }
        let mut submitters: BTreeMap<_, SubmitterSummary> = BTreeMap::new();
        let mut ends: BTreeMap<(u32, bool), u64> = BTreeMap::new();
        let mut before = None;
        let mut sequential_to_any = 0;
        for bio in &trace.bios {
            let submitter = submitters.entry((bio.submitter, bio.priority)).or_default();
            submitter.count += 1;
            submitter.bytes += bio.len_bytes();
            if !matches!(bio.op, Op::Read | Op::Write) {
                continue;
            }
            let end = ends.insert((bio.submitter, bio.op == Op::Read), bio.end_sector());
            if end == Some(bio.sector) {
                let summary = ops.iter_mut().find(|summary| summary.op == bio.op);
                summary.expect("it was counted").sequential += 1;
            }
            sequential_to_any += u64::from(before == Some(bio.sector));
            before = Some(bio.end_sector());
        }
        let depth_max = depth_max(&trace.bios);
        let slices = slices(&trace.bios, length);
        Self { ops, length, sequential_to_any, depth_max, slices, submitters }
    }

    /// Summary of an operation, if the trace has one.
    #[must_use]
    pub fn op(&self, op: Op) -> Option<&OpSummary> {
        self.ops.iter().find(|summary| summary.op == op)
    }

    /// Number of all bios.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ops.iter().map(|op| op.count).sum()
    }

    /// Sum of all lengths.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ops.iter().map(|op| op.bytes).sum()
    }
}

impl OpSummary {
    fn new(op: Op) -> Self {
        Self {
            op,
            count: 0,
            bytes: 0,
            sizes: BTreeMap::new(),
            sequential: 0,
            sync: 0,
            fua: 0,
            errors: 0,
            not_ended: 0,
            latency: Histogram::default(),
        }
    }

    fn add(&mut self, bio: &TracedBio) {
        self.count += 1;
        self.bytes += bio.len_bytes();
        self.sync += u64::from(bio.sync);
        self.fua += u64::from(bio.fua);
        if matches!(bio.op, Op::Read | Op::Write) {
            *self.sizes.entry(bio.len_bytes()).or_default() += 1;
        }
        match bio.completion {
            Some(completion) => {
                self.latency.record(completion.latency);
                self.errors += u64::from(completion.status != BlkStatus::Ok);
            }
            None => self.not_ended += 1,
        }
    }
}

fn ended(bio: &TracedBio) -> Nanos {
    bio.start + bio.completion.map_or(Nanos(0), |completion| completion.latency)
}

/// Greatest number of bios in flight. A bio that ends at the time of another's arrival is not
/// counted.
fn depth_max(bios: &[TracedBio]) -> u64 {
    let known = bios.iter().filter(|bio| bio.completion.is_some());
    let mut changes: Vec<(Nanos, bool)> =
        known.flat_map(|bio| [(bio.start, true), (ended(bio), false)]).collect();
    changes.sort_unstable();
    let mut depth = 0i64;
    let mut most = 0;
    for (_, came) in changes {
        depth += if came { 1 } else { -1 };
        most = most.max(depth);
    }
    most.max(0).unsigned_abs()
}

fn slices(bios: &[TracedBio], length: Nanos) -> Vec<Slice> {
    let width = length.0.div_ceil(SLICES as u64).max(1);
    let mut slices: Vec<Slice> = (0..SLICES as u64)
        .map(|number| Slice { start: Nanos(number * width), ..Slice::default() })
        .take_while(|slice| slice.start.0 < length.0)
        .collect();
    for bio in bios {
        let first = (bio.start.0 / width) as usize;
        let Some(slice) = slices.get_mut(first) else { continue };
        slice.bios += 1;
        slice.bytes += bio.len_bytes();
        let end = ended(bio).0;
        for slice in slices[first..].iter_mut().take_while(|slice| slice.start.0 < end) {
            let from = slice.start.0.max(bio.start.0);
            let until = (slice.start.0 + width).min(end);
            slice.depth += (until - from) as f64 / width as f64;
        }
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Completion, End, Header};

    fn bio(start: u64, op: Op, sector: u64, sectors: u32, latency: u64) -> TracedBio {
        TracedBio {
            start: Nanos(start),
            op,
            fua: false,
            preflush: false,
            sync: op == Op::Read,
            sector,
            sectors,
            submitter: 0,
            priority: Priority::default(),
            completion: Some(Completion { latency: Nanos(latency), status: BlkStatus::Ok }),
        }
    }

    #[test]
    fn numbers_are_those_that_a_hand_counts() {
        let other = |bio| TracedBio { submitter: 1, ..bio };
        let failed = Completion { latency: Nanos(5), status: BlkStatus::IoError };
        let bios = vec![
            bio(0, Op::Read, 0, 8, 100),
            other(bio(10, Op::Read, 8, 8, 50)),
            bio(20, Op::Read, 8, 8, 80),
            bio(30, Op::Write, 100, 16, 10),
            TracedBio { completion: Some(failed), ..bio(120, Op::Write, 116, 16, 0) },
            TracedBio { completion: None, ..bio(150, Op::Flush, 0, 0, 0) },
        ];
        let end = End { length: Nanos(200), ..End::default() };
        let summary = Summary::of(&Trace::of(Header::default(), bios, end));
        assert_eq!((summary.count(), summary.bytes()), (6, (3 * 8 + 2 * 16) * 512));
        let read = summary.op(Op::Read).unwrap();
        // The second bio is sequential to the one before, but not within its submitter.
        assert_eq!((read.count, read.sequential, read.sync), (3, 1, 3));
        assert_eq!(read.sizes, BTreeMap::from([(4096, 3)]));
        let write = summary.op(Op::Write).unwrap();
        assert_eq!((write.count, write.sequential, write.errors), (2, 1, 1));
        assert_eq!(summary.op(Op::Flush).unwrap().not_ended, 1);
        assert_eq!(summary.op(Op::Discard), None);
        assert_eq!(summary.sequential_to_any, 2);
        assert_eq!(summary.depth_max, 4);
        assert_eq!(summary.submitters.len(), 2);
        assert_eq!(summary.slices.len(), SLICES);
        assert_eq!(summary.slices[0].bios, 1);
        assert!((summary.slices[3].depth - 4.0).abs() < 1e-9, "{:?}", summary.slices[3]);
        let in_flight: f64 = summary.slices.iter().map(|slice| slice.depth * 10.0).sum();
        assert!((in_flight - 245.0).abs() < 1e-6, "all latencies together: {in_flight}");
    }

    #[test]
    fn trace_without_bios_has_a_summary() {
        let summary = Summary::of(&Trace::default());
        assert_eq!((summary.count(), summary.depth_max, summary.slices.len()), (0, 0, 0));
    }
}
