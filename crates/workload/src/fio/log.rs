//! fio's logs: a line for each request, or for each span of time.
//!
//! ```text
//! time, value, direction, length, [offset,] real-time
//!  ms     │     0, 1, 2    bytes   log_offset   0, 1
//!         └ KiB/s (bw), requests a second (iops), nanoseconds (slat, clat, lat)
//! ```
//! Sources: fio's documentation ("Log File Formats"), and the output of fio 3.33. Without
//! `log_avg_msec` a line is a request: `bw` is its length over its completion latency, in units of
//! 1000 bytes, and `iops` is 1. With `log_avg_msec` a line is all requests of a direction that
//! ended in a span, without length and offset. In fio a helper thread ends a span of `bw` and
//! `iops` by the clock. Here the first request after the span's end does, as in fio for latencies.
//! Requests after the last span are in the latencies only.

use std::fmt::Write;

use blockyard_engine::priority::PriorityClass;
use blockyard_engine::time::Nanos;

use super::histogram_log::{HistogramLog, HistogramLogs};
use super::job::Job;
use super::lens::Direction;

/// Greatest number of lines per log and clone: 128 MiB. Our choice.
const LINES_MAX: usize = 4 << 20;

/// `write_bw_log` and its like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logs {
    /// `write_bw_log`: prefix of the file's name; empty: the job's name.
    pub bandwidth: Option<String>,
    /// `write_iops_log`.
    pub iops: Option<String>,
    /// `write_lat_log`: three files.
    pub latency: Option<String>,
    /// `log_avg_msec`: time of a line; zero: a line per request.
    pub span: Nanos,
    /// `log_max_value`: a span's greatest value instead of its mean.
    pub largest: bool,
    /// `log_offset`.
    pub offset: bool,
    /// `per_job_logs=0`: clones and jobs of one name append to one file.
    pub shared: bool,
    /// `write_hist_log` and its options.
    pub histograms: HistogramLogs,
}

impl Logs {
    /// Prefixes of the files' names, where given.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        let all = [&self.bandwidth, &self.iops, &self.latency, &self.histograms.name];
        all.into_iter().filter_map(|prefix| prefix.as_deref())
    }
}

/// The logged figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Bandwidth,
    Iops,
    Submission,
    Completion,
    Latency,
}

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bw",
            Self::Iops => "iops",
            Self::Submission => "slat",
            Self::Completion => "clat",
            Self::Latency => "lat",
        }
    }

    fn is_rate(self) -> bool {
        matches!(self, Self::Bandwidth | Self::Iops)
    }
}

/// An ended request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) direction: Direction,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    /// `None` for buffered I/O.
    pub(super) slat: Option<Nanos>,
    pub(super) clat: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    ms: u32,
    len_bytes: u32,
    value: u64,
    offset_bytes: u64,
    direction: u8,
}

/// Sums of a direction in an open span.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    since_ms: u64,
    count: u64,
    sum: u64,
    max: u64,
}

/// One log of a clone.
#[derive(Clone, Debug)]
struct Log {
    kind: Figure,
    /// Prefix of the file's name.
    prefix: String,
    spans: [Span; 3],
    lines: Vec<Line>,
    /// Number of dropped lines.
    lost: u64,
}

/// The logs of a clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct CloneLogs {
    logs: Vec<Log>,
    histograms: Option<Box<HistogramLog>>,
    /// Whether the job has logs.
    is_used: bool,
    span_ms: u64,
    largest: bool,
    offset: bool,
    shared: bool,
    is_real_time: bool,
}

/// A log as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Name in fio's form.
    pub name: String,
    /// Whether the text is appended to the file.
    pub appends: bool,
    /// Lines of the log.
    pub text: String,
    /// Number of dropped lines.
    pub lost: u64,
}

impl CloneLogs {
    pub(super) fn of(job: &Job) -> Self {
        let logs = &job.logs;
        let mut all = Vec::new();
        let mut add = |prefix: &Option<String>, kinds: &[Figure]| {
            let Some(prefix) = prefix else { return };
            let prefix = if prefix.is_empty() { &job.name } else { prefix };
            let log = |kind: &Figure| Log {
                kind: *kind,
                prefix: prefix.clone(),
                spans: [Span::default(); 3],
                lines: Vec::new(),
                lost: 0,
            };
            all.extend(kinds.iter().map(log));
        };
        add(&logs.bandwidth, &[Figure::Bandwidth]);
        add(&logs.iops, &[Figure::Iops]);
        add(&logs.latency, &[Figure::Submission, Figure::Completion, Figure::Latency]);
        let Logs { span, largest, offset, shared, .. } = *logs;
        let is_real_time =
            job.submission.priority.is_some_and(|one| one.class == PriorityClass::RealTime);
        let histograms = HistogramLog::of(job);
        let is_used = !all.is_empty() || histograms.is_some();
        let span_ms = span.0 / 1_000_000;
        Self { logs: all, histograms, is_used, span_ms, largest, offset, shared, is_real_time }
    }

    /// A copy without lines.
    pub(super) fn emptied(&self) -> Self {
        let mut emptied = self.clone();
        if let Some(histograms) = &mut emptied.histograms {
            histograms.empty();
        }
        for log in &mut emptied.logs {
            (log.spans, log.lines, log.lost) = ([Span::default(); 3], Vec::new(), 0);
        }
        emptied
    }

    /// Logs a request that ended `elapsed` after the clone's start.
    #[inline]
    pub(super) fn ended(&mut self, elapsed: Nanos, ended: &Ended) {
        if self.is_used {
            self.add(elapsed.0 / 1_000_000, ended);
        }
    }

    fn add(&mut self, ms: u64, ended: &Ended) {
        if let Some(histograms) = &mut self.histograms {
            histograms.ended(ms, ended);
        }
        for log in &mut self.logs {
            let value = match log.kind {
                Figure::Bandwidth if self.span_ms == 0 => {
                    ended.len_bytes.saturating_mul(1_000_000) / ended.clat.0.max(1)
                }
                Figure::Bandwidth => ended.len_bytes,
                Figure::Iops => 1,
                Figure::Submission => match ended.slat {
                    Some(slat) => slat.0,
                    None => continue,
                },
                Figure::Completion => ended.clat.0,
                Figure::Latency => ended.clat.0 + ended.slat.map_or(0, |slat| slat.0),
            };
            let direction = ended.direction as u8;
            if self.span_ms == 0 {
                let len_bytes = u32::try_from(ended.len_bytes).unwrap_or(u32::MAX);
                let offset_bytes = ended.offset_bytes;
                log.push(ms, Line { ms: 0, len_bytes, value, offset_bytes, direction });
            } else {
                log.count(ended.direction, value);
                log.end_spans(ms, self.span_ms, self.largest);
            }
        }
    }

    /// Closes the logs at the clone's end.
    pub(super) fn end(&mut self, elapsed: Nanos) {
        for log in self.logs.iter_mut().filter(|log| !log.kind.is_rate()) {
            for direction in Direction::ALL {
                log.end_span(elapsed.0 / 1_000_000, direction, self.largest);
            }
        }
    }

    /// The logs as files; `number` counts all clones.
    pub(super) fn files(&self, number: u64) -> impl Iterator<Item = LogFile> {
        let histograms = self.histograms.iter().map(move |log| log.file(number, self.shared));
        let logs = self.logs.iter().map(move |log| {
            let prefix = &log.prefix;
            let kind = log.kind.name();
            let name = if self.shared {
                format!("{prefix}_{kind}.log")
            } else {
                format!("{prefix}_{kind}.{}.log", number + 1)
            };
            let mut text = String::new();
            for Line { ms, len_bytes, value, offset_bytes, direction } in &log.lines {
                let offset = if self.offset { format!("{offset_bytes}, ") } else { String::new() };
                let real_time = u8::from(self.is_real_time);
                writeln!(text, "{ms}, {value}, {direction}, {len_bytes}, {offset}{real_time}")
                    .expect("a string never fails");
            }
            LogFile { name, appends: self.shared, text, lost: log.lost }
        });
        logs.chain(histograms)
    }
}

impl Log {
    fn push(&mut self, ms: u64, line: Line) {
        if self.lines.len() == LINES_MAX {
            self.lost += 1;
        } else {
            self.lines.push(Line { ms: u32::try_from(ms).unwrap_or(u32::MAX), ..line });
        }
    }

    fn count(&mut self, direction: Direction, value: u64) {
        let span = &mut self.spans[direction.index()];
        span.count += 1;
        span.sum = span.sum.saturating_add(value);
        span.max = span.max.max(value);
    }

    /// Ends the spans that are long enough.
    fn end_spans(&mut self, ms: u64, span_ms: u64, largest: bool) {
        for direction in Direction::ALL {
            let index = direction.index();
            if ms.saturating_sub(self.spans[index].since_ms) >= span_ms {
                self.end_span(ms, direction, largest);
                self.spans[index].since_ms = ms - ms % span_ms;
            }
        }
    }

    fn end_span(&mut self, ms: u64, direction: Direction, largest: bool) {
        let index = direction.index();
        let Span { since_ms, count, sum, max } = std::mem::take(&mut self.spans[index]);
        self.spans[index].since_ms = since_ms;
        if count == 0 {
            return;
        }
        let span_ms = ms.saturating_sub(since_ms).max(1);
        let value = match self.kind {
            Figure::Bandwidth => sum.saturating_mul(1000) / span_ms / 1024,
            Figure::Iops => sum.saturating_mul(1000) / span_ms,
            _ if largest => max,
            _ => (sum + count / 2) / count,
        };
        let direction = direction as u8;
        self.push(ms, Line { ms: 0, len_bytes: 0, value, offset_bytes: 0, direction });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(direction: Direction, clat_ns: u64) -> Ended {
        let offset_bytes = 8192;
        let len_bytes = 4096;
        Ended { direction, offset_bytes, len_bytes, slat: Some(Nanos(1000)), clat: Nanos(clat_ns) }
    }

    fn logs() -> Logs {
        let name = |name: &str| Some(String::from(name));
        Logs { bandwidth: name("x"), iops: name(""), latency: name("y"), ..Logs::default() }
    }

    fn of(logs: Logs) -> CloneLogs {
        CloneLogs::of(&Job::new("job").with(|job| job.logs = logs))
    }

    fn texts(logs: &CloneLogs) -> Vec<(String, String)> {
        logs.files(1).map(|file| (file.name, file.text)).collect()
    }

    /// The numbers are those of a line that fio 3.33 wrote.
    #[test]
    fn each_request_is_a_line_with_its_length_and_its_offset_if_that_is_wanted() {
        let mut without = of(logs());
        without.ended(Nanos::from_ms(3), &ended(Direction::Read, 67_886));
        let expected = [
            ("x_bw.2.log", "3, 60336, 0, 4096, 0\n"),
            ("job_iops.2.log", "3, 1, 0, 4096, 0\n"),
            ("y_slat.2.log", "3, 1000, 0, 4096, 0\n"),
            ("y_clat.2.log", "3, 67886, 0, 4096, 0\n"),
            ("y_lat.2.log", "3, 68886, 0, 4096, 0\n"),
        ];
        assert_eq!(texts(&without), expected.map(|(name, text)| (name.into(), text.into())));
        let mut with = of(Logs { offset: true, shared: true, ..logs() });
        with.ended(Nanos(0), &ended(Direction::Write, 100_077));
        assert_eq!(texts(&with)[3], ("y_clat.log".into(), "0, 100077, 1, 4096, 8192, 0\n".into()));
    }

    #[test]
    fn a_span_is_a_line_of_each_direction_and_the_last_is_of_latencies_only() {
        let mut spans = of(Logs { span: Nanos::from_ms(500), ..logs() });
        for ms in (5..=1100).step_by(5) {
            spans.ended(Nanos::from_ms(ms), &ended(Direction::Read, ms * 1000));
            if ms % 10 == 0 {
                spans.ended(Nanos::from_ms(ms), &ended(Direction::Write, 7000));
            }
        }
        spans.end(Nanos::from_ms(1100));
        let texts = texts(&spans);
        let of = |at: usize| texts[at].1.as_str();
        assert_eq!(
            of(1),
            "500, 200, 0, 0, 0\n500, 98, 1, 0, 0\n1000, 200, 0, 0, 0\n1000, 100, 1, 0, 0\n"
        );
        assert!(of(0).starts_with("500, 800, 0, 0, 0\n"), "{}", of(0));
        assert!(of(3).starts_with("500, 252500, 0, 0, 0\n500, 7000, 1, 0, 0\n"), "{}", of(3));
        assert!(of(3).contains("\n1100, "), "{}", of(3));
    }

    #[test]
    fn requests_of_one_millisecond_end_a_span_once() {
        let mut spans = of(Logs { span: Nanos::from_ms(10), ..logs() });
        for ms in (0..=20).flat_map(|ms| [ms; 4]) {
            spans.ended(Nanos::from_ms(ms), &ended(Direction::Read, 7));
        }
        assert_eq!(texts(&spans)[1].1, "10, 4100, 0, 0, 0\n20, 4000, 0, 0, 0\n");
        assert_eq!(texts(&spans)[3].1, "10, 7, 0, 0, 0\n20, 7, 0, 0, 0\n");
    }

    #[test]
    fn the_largest_of_a_span_is_told_if_that_is_wanted() {
        let logs = Logs { span: Nanos::from_ms(10), largest: true, ..logs() };
        let mut logs = of(logs);
        [5, 90, 7].into_iter().for_each(|ns| logs.ended(Nanos(0), &ended(Direction::Read, ns)));
        logs.end(Nanos::from_ms(4));
        assert_eq!(texts(&logs)[3].1, "4, 90, 0, 0, 0\n");
    }
}
