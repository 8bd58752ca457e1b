//! `multipath`: several paths to one disk; I/O goes on when one dies (`drivers/md/dm-mpath.c`).
//!
//! [`Multipath`] is policy, and does no I/O. Whoever has I/O asks it for a path, tells it when the
//! I/O starts and how it ended, and does with it what it says: [`target`] with the parts of bios,
//! [`requests`] with those of a queue over the queues of the paths ([`stacked`]). [`line`] is its
//! table line, [`selector`] how a group spreads its I/O, [`message`] what an operator may tell it,
//! [`status`] what it tells him, [`check`] when a failed path is tried again.
//!
//! ```text
//! choose ─> Path ─> started ... ended ─ good, or an error of the device ──> it goes up
//!   │                             └── an error of the path: the path fails ──> choose again
//!   ├─> Queue: no path is left, and the line says queue_if_no_path
//!   └─> Fail:  no path is left
//! ```
//! Paths are in groups of one priority. The group of the last I/O is kept while it has a live path;
//! else the first one that has takes over, those that the operator disabled last. A path that
//! fails is not chosen until it is reinstated.

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

/// A path: its number among those of all groups, in the order of the line, from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathId(pub u16);

impl PathId {
    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Where an I/O goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// To this path.
    Path(PathId),
    /// Nowhere yet: it waits until [`Multipath::has_path`], or until waiting is over
    /// ([`Multipath::queues`]).
    Queue,
    /// Nowhere: it ends with an error.
    Fail,
}

/// An I/O that a path has.
#[derive(Clone, Copy, Debug)]
pub struct PathIo {
    /// The path.
    pub path: PathId,
    /// How much it moves.
    pub len_bytes: u64,
    /// When it went there.
    pub started_at: Nanos,
}

/// What becomes of an I/O that a path has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It ends with the status that the path gave it.
    Up,
    /// It asks for a path again.
    Again,
}

/// Who failed a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedBy {
    /// An I/O or a check: it is tried again.
    Error,
    /// The operator: it stays failed until reinstated.
    Operator,
}

/// Whether a status is about the path, so that another one may do better (`blk_path_error`); if
/// not, it is about the disk, the same on every path. `Invalid` is no error of a path here: a bio
/// that asks for the wrong thing would fail them all.
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
    /// Its place in the group.
    place: usize,
    failed: Option<FailedBy>,
    /// How often it has failed.
    fail_count: u32,
    /// I/Os that it has.
    in_flight: u32,
    check: Check,
}

#[derive(Debug)]
struct Group {
    /// Its paths.
    paths: Range<usize>,
    selector: Box<dyn PathSelector>,
    /// Used only if no other group has a path.
    bypassed: bool,
}

/// Groups, paths and what is known of them (`struct multipath`).
#[derive(Debug)]
pub struct Multipath {
    spec: MultipathSpec,
    groups: Vec<Group>,
    paths: Vec<Path>,
    /// How many paths have not failed.
    live: usize,
    /// The group of the last I/O.
    current: Option<usize>,
    /// The group that the next I/O tries first.
    next: Option<usize>,
    /// The group to come back to: the line's initial one, or the operator's.
    preferred: usize,
    queue_if_no_path: bool,
    suspended: Option<Suspended>,
    /// Paths and groups that came and went (`dm_table_event`).
    events: u32,
}

/// What a suspended target comes back to.
#[derive(Clone, Copy, Debug)]
struct Suspended {
    queue_if_no_path: bool,
    how: Suspend,
}

impl Multipath {
    /// All paths live, nothing chosen.
    #[must_use]
    pub fn new(spec: MultipathSpec) -> Self {
        Self::with_nodes(spec, &CpuNodes::default())
    }

    /// The same on a machine whose nodes are known.
    #[must_use]
    pub fn with_nodes(spec: MultipathSpec, nodes: &CpuNodes) -> Self {
        assert!(usize::from(spec.init_group) <= spec.groups.len());
        let (mut groups, mut paths) = (Vec::new(), Vec::new());
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

    /// Whether a path has not failed.
    #[must_use]
    pub fn has_path(&self) -> bool {
        self.live > 0
    }

    /// Whether this path has failed.
    #[must_use]
    pub fn is_failed(&self, path: PathId) -> bool {
        self.paths[path.index()].failed.is_some()
    }

    /// Whether I/O waits while no path is left.
    #[must_use]
    pub fn queues(&self) -> bool {
        let is_pushed_back =
            |suspended: &Suspended| suspended.how == Suspend::NoFlush && suspended.queue_if_no_path;
        self.queue_if_no_path || self.suspended.as_ref().is_some_and(is_pushed_back)
    }

    /// How often a path or a group came or went.
    #[must_use]
    pub fn events(&self) -> u32 {
        self.events
    }

    /// Where an I/O goes (`choose_pgpath`).
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

    /// A path of the first group that has one, of those that are not disabled if possible.
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

    /// An I/O goes to the path that was chosen for it. One that the path does not take, because it
    /// is busy, never started.
    pub fn started(&mut self, now: Nanos, path: PathId, len_bytes: u64) -> PathIo {
        let Path { group, place, in_flight, .. } = &mut self.paths[path.index()];
        *in_flight += 1;
        self.groups[*group].selector.start(*place, len_bytes);
        PathIo { path, len_bytes, started_at: now }
    }

    /// A path has answered (`multipath_end_io`).
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

    /// Takes a path out of use (`fail_path`).
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

    /// A failed path takes part again (`reinstate_path`).
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

    /// Whether a group should take over from that of the last I/O.
    fn is_better(&self, group: usize) -> bool {
        let rank = |group: usize| (group != self.preferred, group);
        let used = self.next.or(self.current);
        !self.groups[group].bypassed && used.is_some_and(|used| rank(group) < rank(used))
    }

    /// The next I/O tries this group first.
    fn switch_to(&mut self, group: usize) {
        self.current = None;
        self.next = Some(group);
        self.events += 1;
    }

    /// I/O is to end: what finds no path does not wait any more, or, without a flush, is kept for
    /// afterwards (`multipath_presuspend`).
    pub fn suspend(&mut self, how: Suspend) {
        if self.suspended.is_none() {
            let queue_if_no_path = self.queue_if_no_path;
            self.suspended = Some(Suspended { queue_if_no_path, how });
            self.queue_if_no_path = false;
        }
    }

    /// As it was before it was suspended.
    pub fn resume(&mut self) {
        if let Some(suspended) = self.suspended.take() {
            self.queue_if_no_path = suspended.queue_if_no_path;
        }
    }
}

#[cfg(test)]
mod tests;
