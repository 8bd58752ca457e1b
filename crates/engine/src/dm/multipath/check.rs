//! When a failed path is tried again, and when I/O comes back to its group (RFD 5, 6).
//!
//! The kernel leaves both to multipathd. Here whoever drives a [`Multipath`] asks when the next
//! check is due, tries what [`Multipath::take_check`] says, and tells how it went. One that does
//! not ask has the kernel's behaviour.
//!
//! ```text
//! fails ── 1 s ── check ─ bad ── 2 s ── check ─ bad ── 4 s ... at most 60 s
//!                   └─ good: reinstated; if its group should take over: ── 1 s ── check
//!                                                    good: the group takes over ──┘
//! ```
//! The numbers are ours. A path that the operator failed is not tried: it stays failed until the
//! operator reinstates it. The group that should take over is the preferred one (the line's initial
//! group, or where the operator switched to), then the first of the line, unless it is disabled.

use super::{FailedBy, Multipath, PathId, is_path_error};
use crate::bio::BlkStatus;
use crate::time::Nanos;

/// Ours.
pub const CHECK_AFTER: Nanos = Nanos::from_ms(1_000);
/// Ours.
pub const CHECK_AFTER_MAX: Nanos = Nanos::from_ms(60_000);

/// What is planned for one path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Check {
    /// When the next one starts.
    at: Option<Nanos>,
    /// How long it was waited for.
    delay: Nanos,
    /// One has started and not ended; then none is planned.
    is_running: bool,
}

impl Check {
    pub(super) fn plan_first(&mut self, now: Nanos) {
        self.plan(now, CHECK_AFTER);
    }

    pub(super) fn cancel(&mut self) {
        self.at = None;
    }

    fn plan(&mut self, now: Nanos, delay: Nanos) {
        self.delay = delay;
        if !self.is_running {
            self.at = Some(now + delay);
        }
    }

    fn plan_next(&mut self, now: Nanos) {
        let doubled = Nanos(self.delay.0.saturating_mul(2));
        self.plan(now, doubled.clamp(CHECK_AFTER, CHECK_AFTER_MAX));
    }
}

impl Multipath {
    /// When [`Multipath::take_check`] has something.
    #[must_use]
    pub fn next_check(&self) -> Option<Nanos> {
        self.paths.iter().filter_map(|path| path.check.at).min()
    }

    /// A path to be tried now: connect to it, and read a sector. [`Multipath::checked`] is told how
    /// it went.
    pub fn take_check(&mut self, now: Nanos) -> Option<PathId> {
        let is_due = |id: &PathId| self.paths[id.index()].check.at.is_some_and(|at| at <= now);
        let path = self.paths().find(is_due)?;
        let check = &mut self.paths[path.index()].check;
        check.at = None;
        check.is_running = true;
        Some(path)
    }

    /// How a check went.
    pub fn checked(&mut self, now: Nanos, path: PathId, status: BlkStatus) {
        let checked = &mut self.paths[path.index()];
        assert!(checked.check.is_running, "what ends was started");
        checked.check.is_running = false;
        let group = checked.group;
        match (checked.failed, is_path_error(status)) {
            (Some(FailedBy::Operator), _) => {}
            (Some(FailedBy::Error), true) => checked.check.plan_next(now),
            (Some(FailedBy::Error), false) => self.reinstate_path(now, path),
            (None, true) => self.fail_path(now, path, FailedBy::Error),
            (None, false) if self.is_better(group) => self.switch_to(group),
            (None, false) => {}
        }
    }
}
