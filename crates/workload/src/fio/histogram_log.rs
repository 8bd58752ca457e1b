//! `write_hist_log`: distribution of completion latencies, span by span.
//!
//! ```text
//! time, direction, length, count, count, …
//!  ms    0, 1, 2    bytes  └ per bucket of fio, or per 2^coarseness buckets
//! ```
//! Each direction has its own spans. The first begins with the first request. As in fio 3.33, a
//! span ends with the first request after its time, and the line has that request's length.
//! Requests after the last span are not logged. The buckets are those of [`Histogram`].

use std::fmt::Write;

use blockyard_engine::histogram::Histogram;
use blockyard_engine::time::Nanos;

use super::job::Job;
use super::log::{Ended, LogFile};

/// Number of fio's buckets.
const BUCKETS: usize = 29 * 64;
/// Greatest number of lines per clone: 100 MiB. Our choice.
const LINES_MAX: usize = 1 << 14;

/// `write_hist_log` and its options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramLogs {
    /// `write_hist_log`: prefix of the file's name; empty: the job's name.
    pub name: Option<String>,
    /// `log_hist_msec`: time of a line; zero: no lines.
    pub span: Nanos,
    /// `log_hist_coarseness`: two to the power of this many buckets are merged.
    pub coarseness: u32,
}

impl HistogramLogs {
    /// Greatest coarseness; more leaves no buckets.
    pub(super) const COARSENESS_MAX: u64 = 6;
}

#[derive(Clone, Debug)]
struct Line {
    ms: u64,
    direction: u8,
    len_bytes: u64,
    /// Non-empty buckets with their counts.
    counts: Vec<(u32, u64)>,
}

/// The open span of a direction.
#[derive(Clone, Debug, Default)]
struct Span {
    since_ms: Option<u64>,
    counts: Vec<u64>,
}

/// The log of a clone.
#[derive(Clone, Debug)]
pub(super) struct HistogramLog {
    prefix: String,
    span_ms: u64,
    coarseness: u32,
    spans: [Span; 3],
    lines: Vec<Line>,
    /// Number of dropped lines.
    lost: u64,
}

impl HistogramLog {
    /// `None` for a job without this log.
    pub(super) fn of(job: &Job) -> Option<Box<Self>> {
        let HistogramLogs { name, span, coarseness } = &job.logs.histograms;
        let name = name.as_ref()?;
        Some(Box::new(Self {
            prefix: if name.is_empty() { job.name.clone() } else { name.clone() },
            span_ms: span.0 / 1_000_000,
            coarseness: *coarseness,
            spans: Default::default(),
            lines: Vec::new(),
            lost: 0,
        }))
    }

    /// Empties the log.
    pub(super) fn empty(&mut self) {
        (self.spans, self.lines, self.lost) = (Default::default(), Vec::new(), 0);
    }

    /// Counts a request that ended `ms` after the clone's start.
    pub(super) fn ended(&mut self, ms: u64, ended: &Ended) {
        if self.span_ms == 0 {
            return;
        }
        let span = &mut self.spans[ended.direction.index()];
        let bucket = Histogram::<6>::bucket_of(ended.clat).min(BUCKETS - 1) >> self.coarseness;
        span.counts.resize(span.counts.len().max(bucket + 1), 0);
        span.counts[bucket] += 1;
        let since_ms = *span.since_ms.get_or_insert(ms);
        if ms - since_ms < self.span_ms {
            return;
        }
        span.since_ms = Some(since_ms + self.span_ms);
        let counts = std::mem::take(&mut span.counts);
        if self.lines.len() == LINES_MAX {
            self.lost += 1;
            return;
        }
        let counts = (0u32..).zip(counts).filter(|(_, count)| *count > 0).collect();
        let direction = ended.direction as u8;
        let len_bytes = ended.len_bytes;
        self.lines.push(Line { ms, direction, len_bytes, counts });
    }

    /// The log as a file; `number` counts all clones.
    pub(super) fn file(&self, number: u64, is_shared: bool) -> LogFile {
        let prefix = &self.prefix;
        let name = if is_shared {
            format!("{prefix}_clat_hist.log")
        } else {
            format!("{prefix}_clat_hist.{}.log", number + 1)
        };
        let mut text = String::new();
        for Line { ms, direction, len_bytes, counts } in &self.lines {
            write!(text, "{ms}, {direction}, {len_bytes}").expect("a string never fails");
            let mut counts = counts.iter().peekable();
            for bucket in 0..(BUCKETS >> self.coarseness) as u32 {
                let count = counts.next_if(|(at, _)| *at == bucket).map_or(0, |(_, count)| *count);
                write!(text, ", {count}").expect("a string never fails");
            }
            text.push('\n');
        }
        LogFile { name, appends: is_shared, text, lost: self.lost }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lens::Direction;
    use super::*;

    fn log(coarseness: u32) -> Box<HistogramLog> {
        let mut job = Job::new("job");
        job.set("write_hist_log", "x").unwrap();
        job.set("log_hist_msec", "100").unwrap();
        job.set("log_hist_coarseness", &coarseness.to_string()).unwrap();
        HistogramLog::of(&job).unwrap()
    }

    fn ended(direction: Direction, clat_ns: u64) -> Ended {
        let clat = Nanos(clat_ns);
        Ended { direction, offset_bytes: 0, len_bytes: 4096, slat: None, clat }
    }

    #[test]
    fn a_line_is_a_span_of_a_direction_with_a_count_for_each_bucket() {
        let mut log = log(0);
        for ms in [3, 50, 103] {
            log.ended(ms, &ended(Direction::Read, 2));
        }
        log.ended(120, &ended(Direction::Write, 5));
        log.ended(210, &ended(Direction::Read, u64::MAX));
        log.ended(250, &ended(Direction::Read, 9));
        let file = log.file(0, false);
        assert_eq!(file.name, "x_clat_hist.1.log");
        let lines: Vec<Vec<u64>> = file
            .text
            .lines()
            .map(|line| line.split(", ").map(|number| number.parse().unwrap()).collect())
            .collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.len() == 3 + BUCKETS));
        assert_eq!((&lines[0][..3], lines[0][3 + 2]), (&[103, 0, 4096][..], 3));
        assert_eq!((&lines[1][..3], lines[1][3 + BUCKETS - 1]), (&[210, 0, 4096][..], 1));
        assert_eq!(
            lines.iter().map(|line| line[3..].iter().sum::<u64>()).collect::<Vec<_>>(),
            [3, 1]
        );
    }

    /// fio's tools expect 116 buckets with a coarseness of 4.
    #[test]
    fn coarse_logs_have_fewer_buckets_and_as_many_requests() {
        let mut log = log(4);
        (0..=100).for_each(|ms| log.ended(ms, &ended(Direction::Write, ms * 1000)));
        let text = log.file(0, true).text;
        let numbers: Vec<u64> = text.trim().split(", ").map(|n| n.parse().unwrap()).collect();
        assert_eq!((numbers.len(), numbers[3..].iter().sum::<u64>()), (119, 101));
    }
}
