//! `latency_target`: search for the largest queue depth that meets a latency.
//!
//! As in fio 3.33, the depth starts at 1 and doubles after each window in which enough requests
//! were fast enough. After the first window that fails, the depth is bisected between the last good
//! and the first bad one. When the depth is stable, all measurements are discarded, and one more
//! window at this depth is the result; with `latency_run` the search goes on. With a percentile of
//! 100 each late request lowers the depth at once, and at a depth of 1 it ends the clone. When the
//! depth is lowered, the requests in flight complete first and do not count.

use blockyard_engine::time::Nanos;

use super::Step;
use crate::fio::percentiles::WHOLE;

/// Number of good windows in a row just below a failed depth after which that depth is tried again.
const STABLE_WINDOWS: u32 = 3;

/// A job's latency target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyTarget {
    /// `latency_target`: greatest latency of a request; zero: no target.
    pub target: Nanos,
    /// `latency_window`: duration of a window.
    pub window: Nanos,
    /// `latency_percentile`: share of requests that must meet the target, in millionths of a
    /// percent.
    pub share: u64,
    /// `latency_run`: the search goes on until the job's own end.
    pub runs_on: bool,
}

impl Default for LatencyTarget {
    fn default() -> Self {
        Self { target: Nanos(0), window: Nanos(0), share: WHOLE, runs_on: false }
    }
}

impl LatencyTarget {
    /// The share as a percentile.
    #[must_use]
    pub fn percentile(&self) -> f64 {
        self.share as f64 * 100.0 / WHOLE as f64
    }
}

/// The depth search of a clone.
#[derive(Debug)]
pub(super) struct DepthSearch {
    rule: LatencyTarget,
    iodepth: u32,
    depth: u32,
    /// The deepest good depth, and the failed one.
    low: u32,
    high: u32,
    stable_windows: u32,
    /// Start of the window, and its numbers of requests.
    since: Nanos,
    requests: u64,
    late: u64,
    /// Whether the clone waits for its requests in flight.
    is_draining: bool,
    /// Whether the measurements restart after that.
    is_to_restart: bool,
    is_last: bool,
}

impl DepthSearch {
    pub(super) fn new(rule: &LatencyTarget, iodepth: u32) -> Self {
        Self {
            rule: *rule,
            iodepth,
            depth: 1,
            low: 1,
            high: iodepth,
            stable_windows: 0,
            since: Nanos(0),
            requests: 0,
            late: 0,
            is_draining: false,
            is_to_restart: false,
            is_last: false,
        }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn started(&mut self, now: Nanos) {
        if !self.is_last {
            *self = Self::new(&self.rule, self.iodepth);
        }
        self.begin_window(now);
    }

    fn begin_window(&mut self, now: Nanos) {
        (self.since, self.requests, self.late) = (now, 0, 0);
    }

    /// Counts a request. Returns false if it was too late and the depth cannot be lowered.
    pub(super) fn ended(&mut self, lat: Nanos) -> bool {
        if self.is_draining {
            return true;
        }
        self.requests += 1;
        if lat <= self.rule.target {
            return true;
        }
        if self.rule.share < WHOLE {
            self.late += 1;
            return true;
        }
        self.lower()
    }

    pub(super) fn step(&mut self, now: Nanos, in_flight: u32, in_ramp: bool) -> Step {
        let is_over = now.since(self.since) >= self.rule.window;
        if !in_ramp && !self.is_draining && is_over {
            if !self.was_good() {
                // At a depth of 1 there is nothing to lower, and the window goes on.
                self.lower();
            } else if self.raise() {
                return Step::End;
            } else if !self.is_draining {
                self.begin_window(now);
            }
        }
        if self.is_draining {
            if in_flight > 0 {
                return Step::Reap(in_flight);
            }
            self.is_draining = false;
            self.begin_window(now);
            if std::mem::replace(&mut self.is_to_restart, false) {
                return Step::Restart;
            }
        }
        if in_flight >= self.depth { Step::Reap(1) } else { Step::Start }
    }

    fn was_good(&self) -> bool {
        let good = u128::from(self.requests - self.late) * u128::from(WHOLE);
        self.requests > 0 && good >= u128::from(self.rule.share) * u128::from(self.requests)
    }

    /// Lowers the depth; false at a depth of 1.
    fn lower(&mut self) -> bool {
        if self.depth == 1 {
            return false;
        }
        self.high = self.depth;
        if self.depth == self.low {
            self.low -= 1;
        }
        self.depth = u32::midpoint(self.depth, self.low);
        self.stable_windows = 0;
        self.is_draining = true;
        true
    }

    /// Raises the depth; true if the search is over.
    fn raise(&mut self) -> bool {
        let before = self.depth;
        self.low = self.depth;
        if self.depth + 1 == self.high {
            self.stable_windows += 1;
            if self.stable_windows >= STABLE_WINDOWS {
                (self.high, self.stable_windows) = (self.high + 1, 0);
            }
        }
        self.depth = if self.high == self.iodepth {
            self.depth * 2
        } else {
            u32::midpoint(self.depth, self.high)
        };
        self.depth = self.depth.min(self.iodepth);
        if self.rule.runs_on || self.depth != before {
            return false;
        }
        if self.is_last {
            return true;
        }
        (self.is_last, self.is_to_restart, self.is_draining) = (true, true, true);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Nanos = Nanos(1_000_000);

    fn rule(share: u64) -> LatencyTarget {
        LatencyTarget { target: Nanos(100_000), window: WINDOW, share, runs_on: false }
    }

    /// Depths of each window on a device whose latency grows by 10 µs per request in flight.
    fn search(rule: LatencyTarget, iodepth: u32) -> Vec<u32> {
        let mut search = DepthSearch::new(&rule, iodepth);
        let mut now = Nanos(0);
        let mut in_flight = 0;
        let mut depths = Vec::new();
        for _ in 0..10_000 {
            match search.step(now, in_flight, false) {
                Step::Start => in_flight += 1,
                Step::Reap(requests) => {
                    let lat = Nanos(10_000 * u64::from(in_flight));
                    now = now + Nanos(10_000);
                    for _ in 0..requests {
                        assert!(search.ended(lat), "at a depth of 1 all is well");
                    }
                    in_flight -= requests;
                }
                Step::Restart => search.started(now),
                Step::End => return depths,
                Step::Pause(_) => unreachable!("it never pauses"),
            }
            if depths.last() != Some(&search.depth()) {
                depths.push(search.depth());
            }
        }
        panic!("it found nothing: {depths:?}");
    }

    #[test]
    fn depth_doubles_until_it_fails_and_is_halved_until_it_stays() {
        assert_eq!(search(rule(WHOLE / 100 * 99), 64), [1, 2, 4, 8, 16, 12, 10, 11, 10]);
        // A burst of late requests lowers the depth once, not once per request.
        assert_eq!(search(rule(WHOLE), 64), [1, 2, 4, 8, 16, 12, 10, 11, 10]);
        assert_eq!(search(rule(WHOLE), 4), [1, 2, 4], "no deeper than iodepth");
    }

    #[test]
    fn a_late_request_at_a_depth_of_one_is_too_late() {
        assert!(!DepthSearch::new(&rule(WHOLE), 8).ended(Nanos(100_001)));
        assert!(DepthSearch::new(&rule(WHOLE), 8).ended(Nanos(100_000)));
        assert!(DepthSearch::new(&rule(WHOLE / 2), 8).ended(Nanos(100_001)));
    }

    #[test]
    fn a_search_that_runs_on_does_not_end() {
        let mut search = DepthSearch::new(&LatencyTarget { runs_on: true, ..rule(WHOLE) }, 2);
        for window in 1..20 {
            search.ended(Nanos(1));
            let step = search.step(Nanos(WINDOW.0 * window), 0, false);
            assert_eq!(step, Step::Start);
        }
        assert_eq!(search.depth(), 2);
    }
}
