//! A path selector: which path of a group the next I/O takes (`drivers/md/dm-path-selector.h`).
//!
//! A selector knows its paths by their places in the group, and of each only what it needs for its
//! rule. It never proposes a failed path; it has none to propose only when all have failed. Its
//! rule is one file:
//!
//! | selector | the next I/O goes |
//! |---|---|
//! | [`round_robin`] | to each path in turn |
//! | [`queue_length`] | where the fewest I/Os are in flight |
//! | [`service_time`] | where it will be done first, by what the line says of speed |
//! | [`historical_service_time`] | where it will be done first, by what I/Os took so far |
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
use crate::dm::line::{number, shown};
use crate::time::Nanos;

/// An I/O that looks for a path.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The time.
    pub now: Nanos,
    /// The CPU that submits it.
    pub cpu: u16,
    /// How much it moves; zero for a flush.
    pub len_bytes: u64,
}

/// An I/O that a path had.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// How much it moved.
    pub len_bytes: u64,
    /// When it went to the path.
    pub started_at: Nanos,
    /// When the path answered.
    pub ended_at: Nanos,
}

/// The rule of a group (`struct path_selector_type`). Paths are places in the group, from zero.
pub trait PathSelector: fmt::Debug + Send {
    /// The path for an I/O; none only when all have failed (`select_path`).
    fn choose(&mut self, ask: &Ask) -> Option<usize>;

    /// An I/O goes to a path (`start_io`).
    fn start(&mut self, path: usize, len_bytes: u64);

    /// A path has answered an I/O, which it may have failed, and may have failed itself since
    /// (`end_io`).
    fn end(&mut self, path: usize, served: &Served);

    /// A path that has not failed has now (`fail_path`).
    fn fail(&mut self, path: usize);

    /// A failed path takes part again (`reinstate_path`).
    fn reinstate(&mut self, path: usize);

    /// What the status line says of a path: as many words as [`SelectorSpec::info_args`], each with
    /// a space behind it.
    fn info(&self, path: usize, out: &mut String);
}

/// The selector of a group, as its line names it.
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
    /// From its name and its arguments.
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

    /// Its word in a table.
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

    /// Its arguments: how many, and each with a space behind it, in tables and status lines.
    pub(super) fn args(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        match self {
            Self::HistoricalServiceTime(args) => {
                let historical_service_time::Args { base_weight, threshold_multiplier } = args;
                write!(out, "2 {base_weight} {threshold_multiplier} ")
            }
            _ => out.write_str("0 "),
        }
    }

    /// A path from its arguments.
    pub(super) fn parse_path(&self, device: &str, args: &[&str]) -> Result<PathSpec, String> {
        let mut path = PathSpec::new(device);
        match (self, args) {
            (Self::ServiceTime, args) => service_time::parse_path(args, &mut path)?,
            (Self::IoAffinity, args) => io_affinity::parse_path(args, &mut path)?,
            // What it says is never used, nor shown.
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

    /// How many words a table has for each path.
    pub(super) fn table_args(&self) -> usize {
        match self {
            Self::ServiceTime => 2,
            _ => 1,
        }
    }

    /// These words, each with a space behind it.
    pub(super) fn path_args(&self, path: &PathSpec, out: &mut dyn fmt::Write) -> fmt::Result {
        let PathSpec { repeat_count, relative_throughput, cpus, .. } = path;
        match self {
            Self::RoundRobin | Self::QueueLength => write!(out, "{repeat_count} "),
            Self::ServiceTime => write!(out, "{repeat_count} {relative_throughput} "),
            Self::HistoricalServiceTime(_) => out.write_str("0 "),
            Self::IoAffinity => write!(out, "{cpus} "),
        }
    }

    /// How many words a status line has for each path.
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

/// The selector of a group, none of whose paths has failed.
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

/// How many I/Os in a row a path gets: a word that has lost its meaning. More than one is one, as
/// in the kernel.
pub(super) fn repeat_count(text: &str) -> Result<u32, String> {
    let count = number(text, "repeat count")?;
    match u32::try_from(count) {
        Ok(count) => Ok(count.min(1)),
        Err(_) => Err(format!("repeat count {count} is more than {}", u32::MAX)),
    }
}

/// The paths of a group that have not failed, in an order that the selector keeps.
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

    /// The first one becomes the last one.
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
