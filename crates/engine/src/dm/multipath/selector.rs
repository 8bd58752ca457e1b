//! A path selector: chooses the path of the next I/O within a group
//! (`drivers/md/dm-path-selector.h`).
//!
//! A selector knows its paths by their places in the group, and only the data that its rule needs.
//! It never proposes a failed path, and proposes none only when all have failed. Each rule is one
//! file:
//!
//! | selector | the next I/O goes |
//! |---|---|
//! | [`round_robin`] | to each path in turn |
//! | [`queue_length`] | where the fewest I/Os are in flight |
//! | [`service_time`] | where its estimated end is earliest, by the line's throughputs |
//! | [`historical_service_time`] | where its estimated end is earliest, by past service times |
//! | [`io_affinity`] | to the path of the submitting CPU |

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use core::fmt;

use super::historical_service_time::{self, HistoricalServiceTime};
use super::io_affinity::{self, CpuNodes, IoAffinity};
use super::line::{GroupSpec, PathSpec};
use super::queue_length::{self, QueueLength};
use super::round_robin::{self, RoundRobin};
use super::service_time::{self, ServiceTime};
use crate::dm::words::{number, shown};
use crate::time::Nanos;

/// An I/O that needs a path.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Current time.
    pub now: Nanos,
    /// CPU of the submission.
    pub cpu: u16,
    /// Length; zero for a flush.
    pub len_bytes: u64,
}

/// An ended I/O of a path.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Length.
    pub len_bytes: u64,
    /// Time of the start.
    pub started_at: Nanos,
    /// Time of the end.
    pub ended_at: Nanos,
}

/// The rule of a group (`struct path_selector_type`). Paths are places in the group, from zero.
pub trait PathSelector: fmt::Debug + Send {
    /// The path for an I/O; `None` only if all have failed (`select_path`).
    fn choose(&mut self, ask: &Ask) -> Option<usize>;

    /// Notes the start of an I/O (`start_io`).
    fn start(&mut self, path: usize, len_bytes: u64);

    /// Notes the end of an I/O, successful or not; the path may have failed in the meantime
    /// (`end_io`).
    fn end(&mut self, path: usize, served: &Served);

    /// Notes the failure of a live path (`fail_path`).
    fn fail(&mut self, path: usize);

    /// Notes the reinstatement of a failed path (`reinstate_path`).
    fn reinstate(&mut self, path: usize);

    /// Writes the path's words of the status line: `SelectorSpec::info_args` words, each followed
    /// by a space.
    fn info(&self, path: usize, out: &mut String);
}

/// The selector of a group, as in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectorSpec {
    /// `round-robin`.
    RoundRobin,
    /// `queue-length`.
    QueueLength,
    /// `service-time`.
    ServiceTime,
    /// `historical-service-time`.
    HistoricalServiceTime(historical_service_time::Args),
    /// `io-affinity`.
    IoAffinity,
}

impl SelectorSpec {
    /// Parses name and arguments.
    pub(super) fn parse(name: &str, args: &[&str]) -> Result<Self, String> {
        let spec = match name {
            "round-robin" => Self::RoundRobin,
            "queue-length" => Self::QueueLength,
            "service-time" => Self::ServiceTime,
            "historical-service-time" => {
                let args = historical_service_time::parse_args(args)?;
                return Ok(Self::HistoricalServiceTime(args));
            }
            "io-affinity" => Self::IoAffinity,
            other => {
                return Err(format!(
                    "path selector `{}` is unknown; there are round-robin, queue-length, \
                     service-time, historical-service-time and io-affinity",
                    shown(other)
                ));
            }
        };
        match args {
            [] => Ok(spec),
            _ => Err(format!("selector {name} takes no arguments, but {} follow", args.len())),
        }
    }

    /// Name in a table.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::QueueLength => "queue-length",
            Self::ServiceTime => "service-time",
            Self::HistoricalServiceTime(_) => "historical-service-time",
            Self::IoAffinity => "io-affinity",
        }
    }

    /// Writes the number of arguments and the arguments, each followed by a space, for tables and
    /// status lines.
    pub(super) fn args(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        match self {
            Self::HistoricalServiceTime(args) => {
                let historical_service_time::Args { base_weight, threshold_multiplier } = args;
                write!(out, "2 {base_weight} {threshold_multiplier} ")
            }
            _ => out.write_str("0 "),
        }
    }

    /// Parses the arguments of a path.
    pub(super) fn parse_path(&self, device: &str, args: &[&str]) -> Result<PathSpec, String> {
        let mut path = PathSpec::new(device);
        match (self, args) {
            (Self::ServiceTime, args) => service_time::parse_path(args, &mut path)?,
            (Self::IoAffinity, args) => io_affinity::parse_path(args, &mut path)?,
            // The value is neither used nor shown.
            (Self::HistoricalServiceTime(_), [count]) => {
                repeat_count(count)?;
            }
            (Self::RoundRobin | Self::QueueLength, [count]) => {
                path.repeat_count = repeat_count(count)?;
            }
            (_, []) => {}
            (_, args) => {
                return Err(format!(
                    "a path of {} takes `[<repeat count>]`, but {} arguments follow",
                    self.name(),
                    args.len()
                ));
            }
        }
        Ok(path)
    }

    /// Number of a path's words in a table.
    pub(super) fn table_args(&self) -> usize {
        match self {
            Self::ServiceTime => 2,
            _ => 1,
        }
    }

    /// Writes these words, each followed by a space.
    pub(super) fn path_args(&self, path: &PathSpec, out: &mut dyn fmt::Write) -> fmt::Result {
        let PathSpec { repeat_count, relative_throughput, cpus, .. } = path;
        match self {
            Self::RoundRobin | Self::QueueLength => write!(out, "{repeat_count} "),
            Self::ServiceTime => write!(out, "{repeat_count} {relative_throughput} "),
            Self::HistoricalServiceTime(_) => out.write_str("0 "),
            Self::IoAffinity => write!(out, "{cpus} "),
        }
    }

    /// Number of a path's words in a status line.
    pub(super) fn info_args(&self) -> usize {
        match self {
            Self::RoundRobin => round_robin::INFO_ARGS,
            Self::QueueLength => queue_length::INFO_ARGS,
            Self::ServiceTime => service_time::INFO_ARGS,
            Self::HistoricalServiceTime(_) => historical_service_time::INFO_ARGS,
            Self::IoAffinity => io_affinity::INFO_ARGS,
        }
    }
}

/// Creates the selector of a group with all paths live.
pub(super) fn build(group: &GroupSpec, nodes: &CpuNodes) -> Box<dyn PathSelector> {
    let count = group.paths.len();
    match group.selector {
        SelectorSpec::RoundRobin => Box::new(RoundRobin::new(count)),
        SelectorSpec::QueueLength => Box::new(QueueLength::new(count)),
        SelectorSpec::ServiceTime => Box::new(ServiceTime::new(&group.paths)),
        SelectorSpec::HistoricalServiceTime(args) => {
            Box::new(HistoricalServiceTime::new(args, count))
        }
        SelectorSpec::IoAffinity => Box::new(IoAffinity::new(&group.paths, nodes.clone())),
    }
}

/// Parses the number of successive I/Os per path, an obsolete argument. As in the kernel, more than
/// one means one.
pub(super) fn repeat_count(text: &str) -> Result<u32, String> {
    let count = number(text, "repeat count")?;
    match u32::try_from(count) {
        Ok(count) => Ok(count.min(1)),
        Err(_) => Err(format!("repeat count {count} is more than {}", u32::MAX)),
    }
}

/// The live paths of a group, in the selector's order.
#[derive(Debug)]
pub(super) struct LivePaths {
    order: VecDeque<usize>,
}

impl LivePaths {
    pub(super) fn new(count: usize) -> Self {
        Self { order: (0..count).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.order.iter().copied()
    }

    /// Moves the first path to the end.
    pub(super) fn rotate(&mut self) -> Option<usize> {
        let first = self.order.pop_front()?;
        self.order.push_back(first);
        Some(first)
    }

    pub(super) fn move_to_tail(&mut self, path: usize) {
        self.remove(path);
        self.order.push_back(path);
    }

    pub(super) fn remove(&mut self, path: usize) {
        let at = self.order.iter().position(|live| *live == path);
        self.order.remove(at.expect("the path has not failed"));
    }

    pub(super) fn push_front(&mut self, path: usize) {
        assert!(!self.order.contains(&path), "the path had failed");
        self.order.push_front(path);
    }

    pub(super) fn push_back(&mut self, path: usize) {
        assert!(!self.order.contains(&path), "the path had failed");
        self.order.push_back(path);
    }
}
