//! `historical-service-time`: chooses the path with the earliest estimated end, from past service
//! times (`dm-ps-historical-service-time.c`).
//!
//! The selector keeps each path's time for one I/O, as an exponential moving average with ten
//! binary places. The estimate is (I/Os in flight + 1) times that average.
//!
//! * *Service time*: a path is assumed to serve I/Os one after the other. So an I/O's time counts
//!   from its start or the end of the one before, whichever is later.
//! * *Average*: the longer the measured time, the lower the weight of the past. Times are put in 64
//!   buckets of 2^24 ns (16.8 ms). In bucket b the past has the weight w^(b+1), in the last bucket
//!   none. w is the base weight, 972/1024 unless the line says otherwise.
//! * *Stale*: a path is stale if it has ended no I/O for as long as all live paths together would
//!   take. A stale idle path is probed with one I/O, so that an improvement can show. A stale busy
//!   winner gets no more I/Os than the other path has, because it may have become slower.
//! * *Threshold*: with a multiplier m, times within a factor of m are equal, and the number in
//!   flight decides.
//!
//! So no path starves: a path that is never chosen becomes stale after its I/Os in flight have
//! ended.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt::Write as _;

use super::selector::{Ask, LivePaths, PathSelector, Served};
use crate::dm::words::number;
use crate::time::Nanos;

/// Words in a status line: average (fixed point), I/Os in flight, time of staleness.
pub(super) const INFO_ARGS: usize = 3;

/// Binary places of the average and the weights; all values are the kernel's.
const FIXED_SHIFT: u32 = 10;
const FIXED_1: u64 = 1 << FIXED_SHIFT;
const FIXED_MAX: u64 = u64::MAX >> FIXED_SHIFT;
const BASE_WEIGHT: u32 = 972;
const BUCKET_SHIFT: u32 = 24;
const BUCKETS: usize = 64;

/// The selector's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args {
    /// Weight of the past in the shortest bucket, in 1024ths, below 1024.
    pub base_weight: u32,
    /// Factor within which times are equal; 0 and 1 have no effect.
    pub threshold_multiplier: u32,
}

impl Default for Args {
    fn default() -> Self {
        Self { base_weight: BASE_WEIGHT, threshold_multiplier: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
struct History {
    /// Time of one I/O in nanoseconds, fixed point.
    service_time: u64,
    in_flight: u64,
    last_end: Nanos,
    stale_after: Nanos,
}

impl History {
    fn is_stale(&self, now: Nanos) -> bool {
        self.stale_after < now
    }

    fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    fn estimate(&self) -> u128 {
        (1 + u128::from(self.in_flight)) * u128::from(self.service_time)
    }
}

/// The historical-service-time selector.
#[derive(Debug)]
pub struct HistoricalServiceTime {
    args: Args,
    /// Weight of the past, by bucket.
    weights: [u64; BUCKETS],
    /// Live paths, the last chosen one at the end.
    live: LivePaths,
    paths: Vec<History>,
}

impl HistoricalServiceTime {
    /// Creates a selector of `count` paths.
    #[must_use]
    pub fn new(args: Args, count: usize) -> Self {
        assert!(u64::from(args.base_weight) < FIXED_1);
        let mut weights = [0; BUCKETS];
        for (weight, exponent) in weights[..BUCKETS - 1].iter_mut().zip(1..) {
            *weight = power(u64::from(args.base_weight), exponent);
        }
        // An unrealistically short start value, which the first measurements replace quickly.
        let service_time = FIXED_1;
        let start = Nanos(0);
        let path = History { service_time, in_flight: 0, last_end: start, stale_after: start };
        Self { args, weights, live: LivePaths::new(count), paths: vec![path; count] }
    }

    /// Compares two paths; less is better.
    fn compare(&self, a: &History, b: &History, now: Nanos) -> Ordering {
        let by_count = a.in_flight.cmp(&b.in_flight);
        let low = a.service_time.min(b.service_time);
        let high = a.service_time.max(b.service_time);
        let factor = u128::from(self.args.threshold_multiplier);
        if u128::from(high) <= factor * u128::from(low) {
            return by_count;
        }
        let is_probed = |path: &History| path.is_idle() && path.is_stale(now);
        if is_probed(a) || is_probed(b) || (a.is_idle() && b.is_idle()) {
            return match (a.is_idle(), b.is_idle()) {
                (true, true) => a.stale_after.cmp(&b.stale_after),
                (true, false) => Ordering::Less,
                (false, _) => Ordering::Greater,
            };
        }
        let order = if a.estimate() > b.estimate() { Ordering::Greater } else { Ordering::Less };
        let winner = if order == Ordering::Greater { b } else { a };
        if winner.is_stale(now) { by_count } else { order }
    }
}

impl PathSelector for HistoricalServiceTime {
    fn choose(&mut self, ask: &Ask) -> Option<usize> {
        let mut best = self.live.iter().next()?;
        for path in self.live.iter().skip(1) {
            if self.compare(&self.paths[path], &self.paths[best], ask.now) == Ordering::Less {
                best = path;
            }
        }
        self.live.move_to_tail(best);
        Some(best)
    }

    fn start(&mut self, path: usize, _: u64) {
        self.paths[path].in_flight += 1;
    }

    fn end(&mut self, path: usize, served: &Served) {
        let history = &mut self.paths[path];
        let took = served.ended_at.since(served.started_at.max(history.last_end)).0;
        history.last_end = served.ended_at;
        history.in_flight = history.in_flight.checked_sub(1).expect("what ends was started");
        let bucket = usize::try_from(took >> BUCKET_SHIFT).unwrap_or(usize::MAX);
        let weight = self.weights[bucket.min(BUCKETS - 1)];
        let measured = took.saturating_mul(FIXED_1).min(FIXED_MAX);
        history.service_time = average(history.service_time, measured, weight);
        let patience = (history.service_time >> FIXED_SHIFT).saturating_mul(self.live.len() as u64);
        history.stale_after = history.last_end + Nanos(patience);
    }

    fn fail(&mut self, path: usize) {
        self.live.remove(path);
    }

    fn reinstate(&mut self, path: usize) {
        self.live.push_back(path);
    }

    fn info(&self, path: usize, out: &mut String) {
        let History { service_time, in_flight, stale_after, .. } = self.paths[path];
        let written = write!(out, "{service_time} {in_flight} {} ", stale_after.0);
        written.expect("a string never fails");
    }
}

/// Weighted average of the past and the measured value with `weight` 1024ths for the past, rounded
/// to the nearest.
fn average(past: u64, measured: u64, weight: u64) -> u64 {
    assert!(past <= FIXED_MAX && measured <= FIXED_MAX && weight <= FIXED_1);
    (past * weight + measured * (FIXED_1 - weight) + FIXED_1 / 2) >> FIXED_SHIFT
}

/// A power of a fixed-point number below one, by squaring; each product is rounded to the nearest.
fn power(base: u64, exponent: u32) -> u64 {
    let times = |a: u64, b: u64| (a * b + FIXED_1 / 2) >> FIXED_SHIFT;
    let mut result = FIXED_1;
    let mut square = base;
    let mut left = exponent;
    while left > 0 {
        if left & 1 == 1 {
            result = times(result, square);
        }
        square = times(square, square);
        left >>= 1;
    }
    result
}

/// Parses `[<base weight> [<threshold multiplier>]]`.
pub(super) fn parse_args(args: &[&str]) -> Result<Args, String> {
    let mut parsed = Args::default();
    if args.len() > 2 {
        return Err(format!(
            "selector historical-service-time takes `[<base weight> [<threshold multiplier>]]`, \
             but {} arguments follow",
            args.len()
        ));
    }
    if let [weight, ..] = args {
        let value = number(weight, "base weight")?;
        let in_range = u32::try_from(value).ok().filter(|weight| u64::from(*weight) < FIXED_1);
        parsed.base_weight =
            in_range.ok_or(format!("base weight {value} is not one of 0 to {}", FIXED_1 - 1))?;
    }
    if let [_, multiplier] = args {
        let value = number(multiplier, "threshold multiplier")?;
        parsed.threshold_multiplier = u32::try_from(value)
            .map_err(|_| format!("threshold multiplier {value} is more than {}", u32::MAX))?;
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ask_at, served};
    use super::*;

    const MS: u64 = 1_000_000;

    fn of(count: usize) -> HistoricalServiceTime {
        HistoricalServiceTime::new(Args::default(), count)
    }

    /// Runs one I/O from choice to end on a machine where path p takes `took_ns[p]`.
    fn serve(selector: &mut HistoricalServiceTime, now: u64, took_ns: &[u64]) -> (usize, u64) {
        let path = selector.choose(&ask_at(now)).unwrap();
        selector.start(path, 4096);
        let end = now + took_ns[path];
        selector.end(path, &served(4096, now, end));
        (path, end)
    }

    #[test]
    fn weights_are_powers_of_the_base_and_the_last_forgets_everything() {
        let weights = of(1).weights;
        assert_eq!((weights[0], weights[1], weights[3]), (972, 923, 832));
        assert!(weights.is_sorted_by(|a, b| a > b || *a == *b) && weights[62] > 0);
        assert_eq!(weights[63], 0);
        let none = HistoricalServiceTime::new(Args { base_weight: 0, ..Args::default() }, 1);
        assert_eq!(none.weights, [0; 64]);
    }

    #[test]
    fn average_follows_service_times_and_long_times_count_more() {
        let mut selector = of(1);
        selector.start(0, 0);
        selector.end(0, &served(0, 0, MS));
        let first = selector.paths[0].service_time >> FIXED_SHIFT;
        assert!((50_000..52_000).contains(&first), "52/1024 of a millisecond: {first}");
        selector.start(0, 0);
        selector.end(0, &served(0, MS, MS + (63 << 24)));
        assert_eq!(selector.paths[0].service_time >> FIXED_SHIFT, 63 << 24);
        selector.start(0, 0);
        selector.end(0, &served(0, 0, u64::MAX));
        assert_eq!(selector.paths[0].service_time, FIXED_MAX, "no overflow");
        assert_eq!(selector.paths[0].stale_after, Nanos(u64::MAX));
    }

    #[test]
    fn time_of_an_io_counts_from_the_end_of_the_one_before_it() {
        let zero = Args { base_weight: 0, ..Args::default() };
        let mut selector = HistoricalServiceTime::new(zero, 1);
        selector.start(0, 0);
        selector.start(0, 0);
        selector.end(0, &served(0, 0, 5 * MS));
        selector.end(0, &served(0, 0, 7 * MS));
        assert_eq!(selector.paths[0].service_time >> FIXED_SHIFT, 2 * MS);
    }

    #[test]
    fn fast_path_gets_most_and_the_slow_one_is_probed_now_and_then() {
        let mut selector = of(2);
        let mut now = 0;
        let mut chosen = [0_u32; 2];
        for _ in 0..2000 {
            let (path, end) = serve(&mut selector, now, &[100_000, 10_000_000]);
            chosen[path] += 1;
            now = end;
        }
        assert!(chosen[1] >= 5, "it does not starve: {chosen:?}");
        assert!(chosen[0] > chosen[1] * 10, "{chosen:?}");
    }

    #[test]
    fn slow_path_that_gets_better_is_found_out() {
        let mut selector = of(2);
        let mut now = 0;
        for _ in 0..500 {
            now = serve(&mut selector, now, &[MS, 20 * MS]).1;
        }
        let mut chosen = [0_u32; 2];
        for _ in 0..3000 {
            let (path, end) = serve(&mut selector, now, &[MS, MS / 10]);
            chosen[path] += 1;
            now = end;
        }
        assert!(chosen[1] > chosen[0], "{chosen:?}");
    }

    #[test]
    fn idle_path_that_is_stale_is_probed_with_one_io_while_the_other_is_busy() {
        let mut selector = of(2);
        for (path, service_time_ns) in [(0, MS), (1, 10 * MS)] {
            selector.paths[path].service_time = service_time_ns << FIXED_SHIFT;
            selector.paths[path].stale_after = Nanos(5 * MS);
        }
        selector.paths[0].stale_after = Nanos(u64::MAX);
        selector.start(0, 0);
        assert_eq!(selector.choose(&ask_at(5 * MS)), Some(0), "2 ms are less than 10 ms");
        assert_eq!(selector.choose(&ask_at(5 * MS + 1)), Some(1));
        selector.start(1, 0);
        assert_eq!(selector.choose(&ask_at(5 * MS + 1)), Some(0), "one is enough");
    }

    #[test]
    fn busy_paths_are_compared_by_their_expected_time() {
        let mut selector = of(2);
        for (path, took) in [(0, MS), (1, 3 * MS)] {
            for _ in 0..400 {
                selector.start(path, 0);
                let last = selector.paths[path].last_end.0;
                selector.end(path, &served(0, last, last + took));
            }
        }
        let now = selector.paths[0].last_end.0.min(selector.paths[1].last_end.0);
        selector.paths[0].stale_after = Nanos(u64::MAX);
        selector.paths[1].stale_after = Nanos(u64::MAX);
        let mut counts = [0_u64; 2];
        selector.start(0, 0);
        selector.start(1, 0);
        for _ in 0..80 {
            let path = selector.choose(&ask_at(now)).unwrap();
            selector.start(path, 0);
            counts[path] += 1;
        }
        assert!((58..=62).contains(&counts[0]), "3 to 1: {counts:?}");
        // A stale winner gets no more I/Os than the other path has.
        selector.paths[0].stale_after = Nanos(0);
        for _ in 0..100 {
            let path = selector.choose(&ask_at(now)).unwrap();
            selector.start(path, 0);
        }
        let in_flight = [selector.paths[0].in_flight, selector.paths[1].in_flight];
        assert!(in_flight[0].abs_diff(in_flight[1]) <= 1, "{in_flight:?}");
    }

    #[test]
    fn times_within_the_threshold_are_equal() {
        let args = Args { threshold_multiplier: 4, ..Args::default() };
        let mut selector = HistoricalServiceTime::new(args, 2);
        selector.paths[0].service_time = 3000;
        selector.paths[1].service_time = 1000;
        selector.paths.iter_mut().for_each(|path| path.stale_after = Nanos(u64::MAX));
        selector.start(1, 0);
        assert_eq!(selector.choose(&ask_at(1)), Some(0));
        selector.paths[0].service_time = 5000;
        selector.start(0, 0);
        assert_eq!(selector.choose(&ask_at(1)), Some(1));
    }
}
