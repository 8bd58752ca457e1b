//! Counts by power of two: queue depths, requests per call, and latencies by the bounds of fio's
//! table.

use blockyard_engine::time::Nanos;

/// Histogram of the depth at submission: 1, 2 to 3, 4 to 7, … 64 and more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Depths([u64; 7]);

impl Depths {
    /// Names of the table's columns.
    const NAMES: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];

    /// Counts a block that was submitted as number `depth` of those in flight.
    pub(crate) fn count(&mut self, depth: usize) {
        self.0[(depth.max(1).ilog2() as usize).min(6)] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Share of each column in percent.
    #[must_use]
    pub fn shares(&self) -> [(&'static str, f64); 7] {
        shares(Self::NAMES, self.0)
    }

    pub(super) fn line(&self) -> String {
        line(self.shares())
    }
}

/// Histogram of the blocks per submit or reap call: 0, 1 to 4, 5 to 8, … more than 64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batches([u64; 7]);

impl Batches {
    const NAMES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

    /// Counts a call with this many blocks.
    pub(crate) fn count(&mut self, blocks: usize) {
        let at = match blocks {
            0 => 0,
            1..=4 => 1,
            5..=8 => 2,
            9..=16 => 3,
            17..=32 => 4,
            33..=64 => 5,
            _ => 6,
        };
        self.0[at] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Share of each column in percent.
    #[must_use]
    pub fn shares(&self) -> [(&'static str, f64); 7] {
        shares(Self::NAMES, self.0)
    }

    pub(super) fn line(&self) -> String {
        line(self.shares())
    }
}

/// Numbers of requests in flight, and per call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queueing {
    /// Number of requests in flight at each submission.
    pub depths: Depths,
    /// Number of requests per submit call.
    pub submits: Batches,
    /// Number of ended requests per reap call.
    pub completes: Batches,
}

impl Queueing {
    pub(crate) fn add(&mut self, other: &Self) {
        self.depths.add(&other.depths);
        self.submits.add(&other.submits);
        self.completes.add(&other.completes);
    }
}

/// Shares in percent; a non-zero share is at least a tenth of a percent.
fn shares(names: [&'static str; 7], counts: [u64; 7]) -> [(&'static str, f64); 7] {
    let all: u64 = counts.iter().sum();
    std::array::from_fn(|at| {
        let percent = counts[at] as f64 * 100.0 / all.max(1) as f64;
        (names[at], if counts[at] > 0 { percent.max(0.1) } else { 0.0 })
    })
}

fn line(shares: [(&str, f64); 7]) -> String {
    shares.map(|(name, percent)| format!("{name}={percent:.1}%")).join(", ")
}

/// Upper bounds of the latency table's columns in each unit.
const BOUNDS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
/// Names of the units, and their lengths in nanoseconds.
const UNITS: [(&str, u64); 3] = [("nsec", 1), ("usec", 1_000), ("msec", 1_000_000)];
/// Number of columns; milliseconds have two more, up to 2 s and above.
const COLUMNS: usize = 3 * BOUNDS.len() + 2;

/// Upper bound of each column but the last.
const ENDS_NS: [u64; COLUMNS - 1] = {
    let mut ends_ns = [2_000_000_000; COLUMNS - 1];
    let mut at = 0;
    while at < COLUMNS - 2 {
        ends_ns[at] = UNITS[at / BOUNDS.len()].1 * BOUNDS[at % BOUNDS.len()];
        at += 1;
    }
    ends_ns
};

/// Histogram of latencies by the bounds of fio's table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds([u64; COLUMNS]);

impl Bounds {
    /// Adds a sample.
    pub(crate) fn record(&mut self, latency: Nanos) {
        self.0[ENDS_NS.partition_point(|end_ns| latency.0 >= *end_ns)] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Unit, bound and share of each column, in the table's order.
    pub fn shares(&self) -> impl Iterator<Item = (&'static str, String, f64)> {
        let all: u64 = self.0.iter().sum();
        let name = |at: usize| match at {
            _ if at == COLUMNS - 1 => ("msec", ">=2000".into()),
            _ if at == COLUMNS - 2 => ("msec", "2000".into()),
            _ => (UNITS[at / BOUNDS.len()].0, BOUNDS[at % BOUNDS.len()].to_string()),
        };
        self.0.iter().enumerate().map(move |(at, count)| {
            let (unit, bound) = name(at);
            (unit, bound, *count as f64 / all.max(1) as f64)
        })
    }

    /// The table with five columns a line; a non-zero share is at least 0.01 %.
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        for (unit, _) in UNITS {
            let of_unit = self.shares().filter(|share| share.0 == unit && share.2 > 0.0);
            let cells: Vec<String> = of_unit
                .map(|(_, bound, share)| format!("{bound}={:.2}%", (share * 100.0).max(0.01)))
                .collect();
            for line in cells.chunks(5) {
                text += &format!("  lat ({unit})   : {}\n", line.join(", "));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_and_batches_fall_into_the_tools_columns() {
        let mut depths = Depths::default();
        let mut batches = Batches::default();
        (1..=256).for_each(|depth| depths.count(depth));
        (0..9).for_each(|blocks| batches.count(blocks));
        assert_eq!(depths.line(), "1=0.4%, 2=0.8%, 4=1.6%, 8=3.1%, 16=6.2%, 32=12.5%, >=64=75.4%");
        assert_eq!(
            batches.line(),
            "0=11.1%, 4=44.4%, 8=44.4%, 16=0.0%, 32=0.0%, 64=0.0%, >=64=0.0%"
        );
    }

    #[test]
    fn bounds_are_exclusive_and_what_is_rare_is_shown() {
        let mut bounds = Bounds::default();
        for (ns, count) in [(4_000, 1), (999_999, 1), (1_000_000, 3), (49_999_999, 100_000)] {
            (0..count).for_each(|_| bounds.record(Nanos(ns)));
        }
        bounds.record(Nanos(1_999_999_999));
        bounds.record(Nanos(u64::MAX));
        assert_eq!(
            bounds.lines(),
            "  lat (usec)   : 10=0.01%, 1000=0.01%\n  \
             lat (msec)   : 2=0.01%, 50=99.99%, 2000=0.01%, >=2000=0.01%\n"
        );
    }
}
