//! Who is to stop because another one has ended (`exitall`, `exit_what`, `exitall_on_error`), or
//! because somebody says so.
//!
//! Clones look before each request; what is in flight is waited for, as at the end of a runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::job::Job;

/// Whom the end of a job's clone ends (`exit_what`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitWhat {
    /// `group`: those of its group.
    #[default]
    Group,
    /// `stonewall`: all that run.
    Running,
    /// `all`: those that come behind, too.
    All,
}

/// For each group, whether it is to stop.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    /// Shared by all clones.
    stopped: Arc<[AtomicBool]>,
    group: usize,
    exitall: Option<ExitWhat>,
    on_error: bool,
}

/// Ends all jobs of a program early, those that have not begun too.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<[AtomicBool]>);

impl Stopper {
    /// Nothing more is started; what is in flight is waited for.
    pub fn stop(&self) {
        self.0.iter().for_each(|group| group.store(true, Ordering::Relaxed));
    }
}

impl Ends {
    /// One for each job, and what stops them all.
    pub(super) fn of_jobs(jobs: &[Job], groups: &[u32]) -> (Vec<Self>, Stopper) {
        let stopped: Arc<[AtomicBool]> = groups.iter().map(|_| AtomicBool::new(false)).collect();
        let of = |(job, group): (&Job, &u32)| Self {
            stopped: Arc::clone(&stopped),
            group: *group as usize,
            exitall: job.exitall.then_some(job.exit_what),
            on_error: job.exitall_on_error,
        };
        (jobs.iter().zip(groups).map(of).collect(), Stopper(Arc::clone(&stopped)))
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped[self.group].load(Ordering::Relaxed)
    }

    /// A clone of this job has ended; those of the phase that runs are of these groups.
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
