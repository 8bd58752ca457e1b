//! Early end of clones: by the end of another one (`exitall`, `exit_what`, `exitall_on_error`), or
//! by a call from outside.
//!
//! A clone checks before each request; requests in flight complete, as at the end of a runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blockyard_engine::time::Nanos;

use super::job::Job;

/// Clones that end with a job's clone (`exit_what`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitWhat {
    /// `group`: the clones of its group.
    #[default]
    Group,
    /// `stonewall`: all running clones.
    Running,
    /// `all`: running and later clones.
    All,
}

/// Errors after which a clone goes on (`continue_on_error`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoesOn {
    /// Read errors.
    pub read: bool,
    /// Write and trim errors.
    pub write: bool,
}

/// End of a clone: by its amount, by time, or by another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndRule {
    /// `loops`: number of passes; `number_ios` applies to each.
    pub loops: u32,
    /// `number_ios`: greatest number of reads and writes of each clone.
    pub number_ios: Option<u64>,
    /// `runtime`: no request starts later than this.
    pub runtime: Option<Nanos>,
    /// `time_based`: repeat passes until `runtime` is over.
    pub time_based: bool,
    /// `exitall`: the end of a clone ends others.
    pub exitall: bool,
    /// `exit_what`: the others that end.
    pub exit_what: ExitWhat,
    /// `exitall_on_error`: the failure of a clone ends all.
    pub exitall_on_error: bool,
    /// `continue_on_error`: errors that are counted and do not end the clone.
    pub goes_on: GoesOn,
}

impl Default for EndRule {
    fn default() -> Self {
        Self {
            loops: 1,
            number_ios: None,
            runtime: None,
            time_based: false,
            exitall: false,
            exit_what: ExitWhat::default(),
            exitall_on_error: false,
            goes_on: GoesOn::default(),
        }
    }
}

/// A job's `exitall` rules, and the stop flag of each group.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    /// Stop flags by group, shared by all clones.
    stopped: Arc<[AtomicBool]>,
    group: usize,
    exitall: Option<ExitWhat>,
    on_error: bool,
}

/// Handle that ends all jobs of a program early, including those that have not started.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<[AtomicBool]>);

impl Stopper {
    /// Stops all jobs. Requests in flight complete.
    pub fn stop(&self) {
        self.0.iter().for_each(|group| group.store(true, Ordering::Relaxed));
    }
}

impl Ends {
    /// The rules of each job, and the handle that stops them all.
    pub(super) fn of_jobs(jobs: &[Job], groups: &[u32]) -> (Vec<Self>, Stopper) {
        let stopped: Arc<[AtomicBool]> = groups.iter().map(|_| AtomicBool::new(false)).collect();
        let of = |(job, group): (&Job, &u32)| Self {
            stopped: Arc::clone(&stopped),
            group: *group as usize,
            exitall: job.end.exitall.then_some(job.end.exit_what),
            on_error: job.end.exitall_on_error,
        };
        (jobs.iter().zip(groups).map(of).collect(), Stopper(Arc::clone(&stopped)))
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped[self.group].load(Ordering::Relaxed)
    }

    /// Applies the rules at the end of a clone; `running` are the groups of the current phase.
    pub(super) fn ended(&self, has_failed: bool, running: &[u32]) {
        let what = match (has_failed && self.on_error, self.exitall) {
            (true, _) => Some(ExitWhat::All),
            (false, what) => what,
        };
        let stop = |group: usize| self.stopped[group].store(true, Ordering::Relaxed);
        match what {
            None => {}
            Some(ExitWhat::Group) => stop(self.group),
            Some(ExitWhat::Running) => running.iter().for_each(|group| stop(*group as usize)),
            Some(ExitWhat::All) => (0..self.stopped.len()).for_each(stop),
        }
    }
}
