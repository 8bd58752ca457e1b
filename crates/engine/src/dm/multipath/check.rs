//! Checks of failed paths, and failback of I/O to its group (RFD 5, 6).
//!
//! The kernel leaves both to multipathd. Here the owner of a [`Multipath`] asks for the time of the
//! next check, does the check that [`Multipath::take_check`] returns, and reports the result. An
//! owner that never asks has the kernel's behaviour.
//!
//! ```text
//! fails ── 1 s ── check ─ bad ── 2 s ── check ─ bad ── 4 s ... at most 60 s
//!                   └─ good: reinstated; if its group should take over: ── 1 s ── check
//!                                                    good: the group takes over ──┘
//! ```
//! The numbers are our choice. A path that the operator failed is not checked: it stays failed
//! until the operator reinstates it. Failback goes to the preferred group (the line's initial
//! group, or the operator's), then to the first of the line, unless it is disabled.

use super::{FailedBy, Multipath, PathId, is_path_error};
use crate::bio::BlkStatus;
use crate::time::Nanos;

/// Delay of the first check. Our choice.
pub const CHECK_AFTER: Nanos = Nanos::from_ms(1_000);
/// Greatest delay between checks. Our choice.
pub const CHECK_AFTER_MAX: Nanos = Nanos::from_ms(60_000);

/// Plan of a path's checks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Check {
    /// Start of the next check.
    at: Option<Nanos>,
    /// Delay before the next check.
    delay: Nanos,
    /// Whether a check is running; then none is planned.
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
    /// Time at which [`Multipath::take_check`] returns a path.
    #[must_use]
    pub fn next_check(&self) -> Option<Nanos> {
        self.paths.iter().filter_map(|path| path.check.at).min()
    }

    /// A path to check now: connect to it, and read a sector. Report the result with
    /// [`Multipath::checked`].
    pub fn take_check(&mut self, now: Nanos) -> Option<PathId> {
        let is_due = |id: &PathId| self.paths[id.index()].check.at.is_some_and(|at| at <= now);
        let path = self.paths().find(is_due)?;
        let check = &mut self.paths[path.index()].check;
        check.at = None;
        check.is_running = true;
        Some(path)
    }

    /// Handles the result of a check.
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
