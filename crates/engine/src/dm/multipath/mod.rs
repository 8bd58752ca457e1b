//! `multipath`: several paths to one disk; I/O goes on when one dies (`drivers/md/dm-mpath.c`).
//!
//! [`Multipath`] is policy, and does no I/O. Its owner asks for a path, reports the start and the
//! end of each I/O, and follows the answers: [`target`] for the parts of bios, [`requests`] for the
//! requests of a queue over the queues of the paths ([`stacked`]). [`mod@line`] is the table line,
//! [`selector`] the distribution of I/O within a group, [`message`] the operator's messages,
//! [`status`] the status, [`check`] the checks of failed paths.
//!
//! ```text
//! choose ─> Path ─> started ... ended ─ good, or an error of the device ──> it goes up
//!   │                             └── an error of the path: the path fails ──> choose again
//!   ├─> Queue: no path is left, and the line says queue_if_no_path
//!   └─> Fail:  no path is left
//! ```
//! Paths are in groups of one priority. The group of the last I/O is kept while it has a live path.
//! Otherwise the first group with a live path takes over, disabled groups last. A failed path is
//! not chosen until it is reinstated.

pub mod check;
pub mod historical_service_time;
pub mod io_affinity;
pub mod line;
pub mod message;
pub mod queue_length;
pub mod requests;
pub mod round_robin;
pub mod selector;
pub mod service_time;
pub mod stacked;
pub mod status;
pub mod target;
#[cfg(test)]
mod testing;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use self::check::Check;
use self::io_affinity::CpuNodes;
use self::line::MultipathSpec;
use self::selector::{Ask, PathSelector, Served};
use crate::bio::BlkStatus;
use crate::dm::control::Suspend;
use crate::time::Nanos;

/// Number of a path among those of all groups, in the order of the line, from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathId(pub u16);

impl PathId {
    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Result of [`Multipath::choose`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The I/O goes to this path.
    Path(PathId),
    /// The I/O waits until [`Multipath::has_path`], or until I/O no longer waits
    /// ([`Multipath::queues`]).
    Queue,
    /// The I/O fails.
    Fail,
}

/// An I/O at a path.
#[derive(Clone, Copy, Debug)]
pub struct PathIo {
    /// The path.
    pub path: PathId,
    /// Length.
    pub len_bytes: u64,
    /// Time of the start.
    pub started_at: Nanos,
}

/// Result of [`Multipath::ended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The I/O ends with the path's status.
    Up,
    /// The I/O needs another path.
    Again,
}

/// Cause of a path's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedBy {
    /// An I/O or a check: the path is checked again.
    Error,
    /// The operator: the path stays failed until reinstated.
    Operator,
}

/// Whether a status is an error of the path, so that another path may succeed (`blk_path_error`).
/// Other errors are the disk's, the same on every path. `Invalid` is no path error here, because an
/// invalid bio would fail all paths.
#[must_use]
pub fn is_path_error(status: BlkStatus) -> bool {
    match status {
        BlkStatus::Transport | BlkStatus::IoError => true,
        BlkStatus::Ok
        | BlkStatus::NotSupported
        | BlkStatus::NoSpace
        | BlkStatus::Medium
        | BlkStatus::Invalid => false,
    }
}

#[derive(Debug)]
struct Path {
    group: usize,
    /// Place in the group.
    place: usize,
    failed: Option<FailedBy>,
    /// Number of failures.
    fail_count: u32,
    /// Number of I/Os in flight.
    in_flight: u32,
    check: Check,
}

#[derive(Debug)]
struct Group {
    /// Paths of the group.
    paths: Range<usize>,
    selector: Box<dyn PathSelector>,
    /// Whether the group is disabled: used only if no other group has a live path.
    bypassed: bool,
}

/// State of groups and paths (`struct multipath`).
#[derive(Debug)]
pub struct Multipath {
    spec: MultipathSpec,
    groups: Vec<Group>,
    paths: Vec<Path>,
    /// Number of live paths.
    live: usize,
    /// Group of the last I/O.
    current: Option<usize>,
    /// Group that the next I/O tries first.
    next: Option<usize>,
    /// Failback target: the line's initial group, or the operator's.
    preferred: usize,
    queue_if_no_path: bool,
    suspended: Option<Suspended>,
    /// Number of failures, reinstatements and switches (`dm_table_event`).
    events: u32,
}

/// State that a suspended target restores on resume.
#[derive(Clone, Copy, Debug)]
struct Suspended {
    queue_if_no_path: bool,
    how: Suspend,
}

impl Multipath {
    /// Initial state: all paths live, no group chosen.
    #[must_use]
    pub fn new(spec: MultipathSpec) -> Self {
        Self::with_nodes(spec, &CpuNodes::default())
    }

    /// Initial state with known CPU nodes.
    #[must_use]
    pub fn with_nodes(spec: MultipathSpec, nodes: &CpuNodes) -> Self {
        assert!(usize::from(spec.init_group) <= spec.groups.len());
        let mut groups = Vec::new();
        let mut paths = Vec::new();
        for (number, group) in spec.groups.iter().enumerate() {
            let first = paths.len();
            paths.extend((0..group.paths.len()).map(|place| Path {
                group: number,
                place,
                failed: None,
                fail_count: 0,
                in_flight: 0,
                check: Check::default(),
            }));
            let selector = selector::build(group, nodes);
            groups.push(Group { paths: first..paths.len(), selector, bypassed: false });
        }
        assert!(paths.len() <= line::PATHS_MAX);
        let init = usize::from(spec.init_group).checked_sub(1);
        Self {
            queue_if_no_path: spec.queue_if_no_path,
            live: paths.len(),
            current: None,
            next: init,
            preferred: init.unwrap_or(0),
            suspended: None,
            events: 0,
            spec,
            groups,
            paths,
        }
    }

    /// The paths.
    pub fn paths(&self) -> impl Iterator<Item = PathId> + use<> {
        let count = u16::try_from(self.paths.len()).expect("checked when it was made");
        (0..count).map(PathId)
    }

    /// Whether a path is live.
    #[must_use]
    pub fn has_path(&self) -> bool {
        self.live > 0
    }

    /// Whether this path has failed.
    #[must_use]
    pub fn is_failed(&self, path: PathId) -> bool {
        self.paths[path.index()].failed.is_some()
    }

    /// Whether I/O waits while no path is live.
    #[must_use]
    pub fn queues(&self) -> bool {
        let is_pushed_back =
            |suspended: &Suspended| suspended.how == Suspend::NoFlush && suspended.queue_if_no_path;
        self.queue_if_no_path || self.suspended.as_ref().is_some_and(is_pushed_back)
    }

    /// Number of failures, reinstatements and switches.
    #[must_use]
    pub fn events(&self) -> u32 {
        self.events
    }

    /// Chooses a path for an I/O (`choose_pgpath`).
    pub fn choose(&mut self, now: Nanos, cpu: u16, len_bytes: u64) -> Choice {
        if self.live == 0 {
            self.current = None;
            return if self.queues() { Choice::Queue } else { Choice::Fail };
        }
        let ask = Ask { now, cpu, len_bytes };
        let kept = [self.next.take(), self.current].into_iter().flatten();
        let path = kept.into_iter().find_map(|group| self.choose_in(group, &ask));
        let path = path.or_else(|| self.choose_anywhere(&ask));
        Choice::Path(path.expect("a live path is in some group"))
    }

    /// A path of the first group with a live one; disabled groups last.
    fn choose_anywhere(&mut self, ask: &Ask) -> Option<PathId> {
        for bypassed in [false, true] {
            for group in 0..self.groups.len() {
                if self.groups[group].bypassed == bypassed
                    && let Some(path) = self.choose_in(group, ask)
                {
                    return Some(path);
                }
            }
        }
        None
    }

    fn choose_in(&mut self, number: usize, ask: &Ask) -> Option<PathId> {
        let group = &mut self.groups[number];
        let place = group.selector.choose(ask)?;
        let index = group.paths.start + place;
        assert!(self.paths[index].failed.is_none(), "a selector proposes live paths");
        self.current = Some(number);
        Some(PathId(u16::try_from(index).expect("checked when it was made")))
    }

    /// Notes the start of an I/O at its chosen path. An I/O that a busy path refused never started.
    pub fn started(&mut self, now: Nanos, path: PathId, len_bytes: u64) -> PathIo {
        let Path { group, place, in_flight, .. } = &mut self.paths[path.index()];
        *in_flight += 1;
        self.groups[*group].selector.start(*place, len_bytes);
        PathIo { path, len_bytes, started_at: now }
    }

    /// Notes the end of an I/O at its path (`multipath_end_io`).
    pub fn ended(&mut self, now: Nanos, io: PathIo, status: BlkStatus) -> Ended {
        let is_path_error = is_path_error(status);
        if is_path_error {
            self.fail_path(now, io.path, FailedBy::Error);
        }
        let Path { group, place, in_flight, .. } = &mut self.paths[io.path.index()];
        *in_flight = in_flight.checked_sub(1).expect("what ends was started");
        let served = Served { len_bytes: io.len_bytes, started_at: io.started_at, ended_at: now };
        self.groups[*group].selector.end(*place, &served);
        let is_served = self.live > 0 || self.queues();
        if is_path_error && is_served { Ended::Again } else { Ended::Up }
    }

    /// Marks a path as failed (`fail_path`).
    pub fn fail_path(&mut self, now: Nanos, path: PathId, by: FailedBy) {
        let Path { group, place, failed, fail_count, check, .. } = &mut self.paths[path.index()];
        if failed.is_none() {
            self.groups[*group].selector.fail(*place);
            *fail_count += 1;
            self.live -= 1;
            self.events += 1;
        }
        match by {
            FailedBy::Operator => {
                *failed = Some(by);
                check.cancel();
            }
            FailedBy::Error if failed.is_none() => {
                *failed = Some(by);
                check.plan_first(now);
            }
            FailedBy::Error => {}
        }
    }

    /// Marks a failed path as live (`reinstate_path`).
    pub fn reinstate_path(&mut self, now: Nanos, path: PathId) {
        let Path { group, place, failed, check, .. } = &mut self.paths[path.index()];
        let group = *group;
        if failed.take().is_none() {
            return;
        }
        self.groups[group].selector.reinstate(*place);
        check.cancel();
        self.live += 1;
        self.events += 1;
        if self.is_better(group) {
            self.paths[path.index()].check.plan_first(now);
        }
    }

    /// Whether a group should take over from the group in use.
    fn is_better(&self, group: usize) -> bool {
        let rank = |group: usize| (group != self.preferred, group);
        let used = self.next.or(self.current);
        !self.groups[group].bypassed && used.is_some_and(|used| rank(group) < rank(used))
    }

    /// Makes the next I/O try this group first.
    fn switch_to(&mut self, group: usize) {
        self.current = None;
        self.next = Some(group);
        self.events += 1;
    }

    /// Prepares for suspension: I/O without a path no longer waits, or is kept for later without a
    /// flush (`multipath_presuspend`).
    pub fn suspend(&mut self, how: Suspend) {
        if self.suspended.is_none() {
            let queue_if_no_path = self.queue_if_no_path;
            self.suspended = Some(Suspended { queue_if_no_path, how });
            self.queue_if_no_path = false;
        }
    }

    /// Restores the state before the suspension.
    pub fn resume(&mut self) {
        if let Some(suspended) = self.suspended.take() {
            self.queue_if_no_path = suspended.queue_if_no_path;
        }
    }
}

#[cfg(test)]
mod tests;
