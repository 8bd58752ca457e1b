//! Contexts that complete clones and run queues.
//!
//! ```text
//!   device ends ──> softirq, on some CPU ──> original ends ──> "run" ──> worker ──> dispatch
//!        └──────── at once, in the same context ───────┴────────────────────┘
//! ```
//! In some worlds softirqs run later and in no order. In some worlds only submitters, timers, path
//! checks and called workers dispatch: progress then depends on the return value of
//! [`StackedQueue::complete`][complete].
//!
//! [complete]: blockyard_engine::dm::multipath::stacked::StackedQueue::complete

use blockyard_engine::mq::Issue;
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::paths::Fate;
use super::plan::one_of;
use super::sabotage::Sabotage;

const US: u64 = 1_000;

/// Time for which a saboteur holds a clone back, beyond every elevator's bound.
const HELD: Nanos = Nanos(10_000_000_000);

/// The contexts of a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contexts {
    /// Originals end in softirqs, each with this maximum delay; zero: together with their clones.
    pub(super) softirq_max: Nanos,
    /// A worker must be called to run the queue, and starts with this maximum delay; `None`: the
    /// completing context runs it.
    pub(super) worker_max: Option<Nanos>,
}

impl Contexts {
    /// Everything in one context.
    pub(super) const ONE: Self = Self { softirq_max: Nanos(0), worker_max: None };

    pub(super) fn draw(random: &mut Random, sabotage: Option<Sabotage>) -> Self {
        let softirq_us = one_of(random, &[0, 0, 5, 300]);
        let worker_us = one_of(random, &[None, None, Some(5), Some(300)]);
        let softirq_us = match sabotage {
            Some(Sabotage::LostSoftirq) => 5,
            _ => softirq_us,
        };
        let worker_us = match sabotage {
            Some(Sabotage::LostRun) => Some(5),
            _ => worker_us,
        };
        let softirq_max = Nanos(softirq_us * US);
        Self { softirq_max, worker_max: worker_us.map(|us| Nanos(us * US)) }
    }
}

/// A softirq that ends the original of a clone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raised {
    pub(super) due: Nanos,
    /// Number of the command.
    pub(super) number: u32,
    pub(super) path: u16,
    pub(super) tag: Tag,
    pub(super) fate: Fate,
}

/// Pending work.
pub(super) struct Later {
    contexts: Contexts,
    random: Random,
    raised: Vec<Raised>,
    worker_at: Option<Nanos>,
    /// A clone held back by a saboteur: until when, its number, path and request.
    held: Option<(Nanos, u32, u16, Issue)>,
}

impl Later {
    pub(super) fn new(contexts: Contexts, random: Random) -> Self {
        Self { contexts, random, raised: Vec::new(), worker_at: None, held: None }
    }

    fn soon(&mut self, now: Nanos, max: Nanos) -> Nanos {
        now + Nanos(self.random.below(max.0 + 1))
    }

    pub(super) fn has_softirqs(&self) -> bool {
        self.contexts.softirq_max > Nanos(0)
    }

    /// Raises a softirq.
    pub(super) fn raise(&mut self, raised: Raised) {
        let due = self.soon(raised.due, self.contexts.softirq_max);
        self.raised.push(Raised { due, ..raised });
    }

    /// The softirqs that run now, in random order.
    pub(super) fn take_raised(&mut self, now: Nanos) -> Vec<Raised> {
        self.raised.extract_if(.., |raised| raised.due <= now).collect()
    }

    /// Calls a worker; an earlier call keeps its time.
    pub(super) fn call_worker(&mut self, now: Nanos) {
        let Some(max) = self.contexts.worker_max else { return };
        let at = self.soon(now, max);
        self.worker_at = Some(self.worker_at.map_or(at, |before| before.min(at)));
    }

    /// Whether the queue runs after a completion.
    pub(super) fn runs(&mut self, now: Nanos) -> bool {
        let comes = self.worker_at.take_if(|at| *at <= now).is_some();
        comes || self.contexts.worker_max.is_none()
    }

    pub(super) fn holds_one(&self) -> bool {
        self.held.is_some()
    }

    pub(super) fn hold(&mut self, now: Nanos, number: u32, path: u16, issue: Issue) {
        self.held = Some((now + HELD, number, path, issue));
    }

    /// Whether a held clone is due.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.held.as_ref().is_some_and(|(until, ..)| *until <= now)
    }

    /// Takes a held clone that is due.
    pub(super) fn take_held(&mut self, now: Nanos) -> Option<(u16, Issue)> {
        let held = self.held.take_if(|(until, ..)| *until <= now);
        held.map(|(_, _, path, issue)| (path, issue))
    }

    /// Whether the queue waits for a command that no device has.
    pub(super) fn contains(&self, number: u32) -> bool {
        let is_held = self.held.as_ref().is_some_and(|(_, held, ..)| *held == number);
        is_held || self.raised.iter().any(|raised| raised.number == number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.raised.is_empty() && self.held.is_none()
    }

    /// Time of the next pending work.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        let raised = self.raised.iter().map(|raised| raised.due).min();
        let held = self.held.as_ref().map(|(until, ..)| *until);
        raised.into_iter().chain(self.worker_at).chain(held).min()
    }

    /// Drops all work at a power cut.
    pub(super) fn forget(&mut self) {
        self.raised.clear();
        (self.worker_at, self.held) = (None, None);
    }
}
