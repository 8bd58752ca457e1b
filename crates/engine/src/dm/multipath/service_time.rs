//! `service-time`: chooses the path with the earliest estimated end, from the line's relative
//! throughputs (`dm-ps-service-time.c`).
//!
//! A path of relative throughput t with b bytes in flight serves an I/O of n bytes in (b + n) / t.
//! Two paths are compared without division:
//!
//! | case | better |
//! |---|---|
//! | equally fast | fewer bytes in flight |
//! | one has throughput 0 | the other: a reserve, used when all others have failed |
//! | equally many bytes | the faster |
//! | else | (b1 + n) * t2 < (b2 + n) * t1, then the faster |
//!
//! The list is rotated before each choice, and the first of equal paths wins. Under constant load
//! the bytes in flight of each path are in proportion to its throughput. No path starves except
//! those with throughput 0.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt::Write as _;

use super::line::PathSpec;
use super::selector::{Ask, LivePaths, PathSelector, Served, repeat_count};
use crate::dm::words::number;

/// Words in a status line: bytes in flight and throughput.
pub(super) const INFO_ARGS: usize = 2;

/// Kernel limit.
const THROUGHPUT_MAX: u64 = 100;

#[derive(Clone, Copy, Debug)]
struct Load {
    in_flight_bytes: u64,
    throughput: u32,
}

impl Load {
    /// Compares two paths; less is better.
    fn compare(&self, other: &Self, len_bytes: u64) -> Ordering {
        let faster = other.throughput.cmp(&self.throughput);
        if faster == Ordering::Equal {
            return self.in_flight_bytes.cmp(&other.in_flight_bytes);
        }
        let has_reserve = self.throughput == 0 || other.throughput == 0;
        if has_reserve || self.in_flight_bytes == other.in_flight_bytes {
            return faster;
        }
        let work = |load: &Self, by: &Self| {
            (u128::from(load.in_flight_bytes) + u128::from(len_bytes)) * u128::from(by.throughput)
        };
        work(self, other).cmp(&work(other, self)).then(faster)
    }
}

/// The service-time selector.
#[derive(Debug)]
pub struct ServiceTime {
    /// Live paths; of equal ones the first is preferred.
    live: LivePaths,
    loads: Vec<Load>,
}

impl ServiceTime {
    /// Creates a selector of these paths.
    #[must_use]
    pub fn new(paths: &[PathSpec]) -> Self {
        let load =
            |path: &PathSpec| Load { in_flight_bytes: 0, throughput: path.relative_throughput };
        Self { live: LivePaths::new(paths.len()), loads: paths.iter().map(load).collect() }
    }
}

impl PathSelector for ServiceTime {
    fn choose(&mut self, ask: &Ask) -> Option<usize> {
        self.live.rotate();
        let loads = &self.loads;
        self.live.iter().min_by(|a, b| loads[*a].compare(&loads[*b], ask.len_bytes))
    }

    fn start(&mut self, path: usize, len_bytes: u64) {
        self.loads[path].in_flight_bytes += len_bytes;
    }

    fn end(&mut self, path: usize, served: &Served) {
        let load = &mut self.loads[path];
        let left = load.in_flight_bytes.checked_sub(served.len_bytes);
        load.in_flight_bytes = left.expect("what ends was started");
    }

    fn fail(&mut self, path: usize) {
        self.live.remove(path);
    }

    fn reinstate(&mut self, path: usize) {
        self.live.push_back(path);
    }

    fn info(&self, path: usize, out: &mut String) {
        let Load { in_flight_bytes, throughput } = self.loads[path];
        write!(out, "{in_flight_bytes} {throughput} ").expect("a string never fails");
    }
}

/// Parses a path's arguments: `[<repeat count> [<relative throughput>]]`.
pub(super) fn parse_path(args: &[&str], path: &mut PathSpec) -> Result<(), String> {
    let (count, throughput) = match args {
        [] => return Ok(()),
        [count] => (count, None),
        [count, throughput] => (count, Some(throughput)),
        _ => {
            return Err(format!(
                "a path of service-time takes `[<repeat count> [<relative throughput>]]`, but {} \
                 arguments follow",
                args.len()
            ));
        }
    };
    path.repeat_count = repeat_count(count)?;
    if let Some(throughput) = throughput {
        match number(throughput, "relative throughput")? {
            value @ 0..=THROUGHPUT_MAX => path.relative_throughput = value as u32,
            value => {
                return Err(format!(
                    "relative throughput {value} is not one of 0 to {THROUGHPUT_MAX}"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::super::testing::{ask, choices, served};
    use super::*;

    fn selector(throughputs: &[u32]) -> ServiceTime {
        let path =
            |throughput: &u32| PathSpec { relative_throughput: *throughput, ..PathSpec::new("/a") };
        ServiceTime::new(&throughputs.iter().map(path).collect::<Vec<_>>())
    }

    /// Keeps `depth` I/Os of 4 KiB in flight; in a step each path serves as many I/Os as its
    /// throughput says. Returns the number of I/Os that each path has served.
    fn closed_loop(selector: &mut ServiceTime, depth: usize, steps: usize) -> Vec<u64> {
        let mut queues = vec![0_u64; selector.loads.len()];
        let mut done = vec![0; selector.loads.len()];
        for _ in 0..depth {
            let path = selector.choose(&ask(4096)).unwrap();
            selector.start(path, 4096);
            queues[path] += 1;
        }
        for _ in 0..steps {
            for path in 0..queues.len() {
                for _ in 0..queues[path].min(u64::from(selector.loads[path].throughput)) {
                    selector.end(path, &served(4096, 0, 0));
                    queues[path] -= 1;
                    done[path] += 1;
                    let next = selector.choose(&ask(4096)).unwrap();
                    selector.start(next, 4096);
                    queues[next] += 1;
                }
            }
        }
        done
    }

    #[test]
    fn bytes_in_flight_and_work_done_are_in_proportion_to_throughput() {
        let mut selector = selector(&[1, 3, 6]);
        let done = closed_loop(&mut selector, 100, 300);
        let in_flight = |path: usize| selector.loads[path].in_flight_bytes / 4096;
        assert!((9..=11).contains(&in_flight(0)), "{}", in_flight(0));
        assert!((29..=31).contains(&in_flight(1)), "{}", in_flight(1));
        assert!((59..=61).contains(&in_flight(2)), "{}", in_flight(2));
        assert_eq!(done, [300, 900, 1800]);
    }

    #[test]
    fn equally_fast_paths_take_turns_until_one_has_more_bytes() {
        let mut selector = selector(&[1, 1]);
        assert_eq!(choices(&mut selector, 4), [1, 0, 1, 0]);
        selector.start(1, 512);
        assert_eq!(choices(&mut selector, 4), [0, 0, 0, 0]);
        selector.start(0, 1024);
        assert_eq!(choices(&mut selector, 4), [1, 1, 1, 1]);
    }

    #[test]
    fn path_of_throughput_zero_is_used_only_when_all_others_failed() {
        let mut selector = selector(&[0, 1]);
        selector.start(1, 1 << 40);
        assert_eq!(choices(&mut selector, 3), [1, 1, 1]);
        selector.fail(1);
        assert_eq!(choices(&mut selector, 2), [0, 0]);
        selector.reinstate(1);
        assert_eq!(choices(&mut selector, 2), [1, 1]);
    }

    #[test]
    fn large_io_goes_where_it_will_be_done_first() {
        let mut selector = selector(&[1, 10]);
        selector.start(1, 40_960);
        let one = |selector: &mut ServiceTime, len| selector.choose(&ask(len)).unwrap();
        assert_eq!(one(&mut selector, 512), 0, "512 / 1 is before (40960 + 512) / 10");
        assert_eq!(one(&mut selector, 8192), 1, "(40960 + 8192) / 10 is before 8192 / 1");
        selector.start(0, u64::MAX / 2);
        assert_eq!(one(&mut selector, u64::MAX), 1, "no overflow");
    }
}
