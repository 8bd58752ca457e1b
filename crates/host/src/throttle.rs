//! Limits of an export's rate, shared by its connections or by a group of exports.
//!
//! The rule is the engine's ([`blockyard_engine::throttle`]). A driver holds bios in front of its
//! ranges and its gate: a held write excludes nobody from its blocks, and a suspend does not wait
//! for tokens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use blockyard_engine::bio::Bio;
use blockyard_engine::throttle::{Cost, Held, Limits, Throttle, Waiting};
use blockyard_engine::time::Nanos;

use crate::stages::now;

/// Interval in which held bios look for changes. Ours: it costs nothing beside the wait for tokens.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Token buckets that several connections share.
#[derive(Debug)]
pub struct SharedThrottle {
    buckets: Mutex<Throttle>,
    /// Number of changes of the limits.
    changes: AtomicU64,
    /// Without limits, bios take no lock.
    has_limits: AtomicBool,
    /// The server ends: bios wait no longer.
    is_lifted: AtomicBool,
}

impl SharedThrottle {
    /// Full buckets.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            buckets: Mutex::new(Throttle::new(limits)),
            changes: AtomicU64::new(0),
            has_limits: AtomicBool::new(limits.is_some()),
            is_lifted: AtomicBool::new(false),
        }
    }

    /// Lets all bios start, from now on.
    pub(crate) fn lift(&self) {
        self.is_lifted.store(true, Ordering::SeqCst);
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.buckets().limits()
    }

    /// Changes the limits for bios that have not started. Drivers see it at their next poll.
    pub fn set(&self, limits: Limits) {
        self.buckets().set(now(), limits);
        self.has_limits.store(limits.is_some(), Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    fn reserve(&self, now: Nanos, cost: Cost) -> Nanos {
        self.buckets().reserve(now, cost)
    }

    fn buckets(&self) -> MutexGuard<'_, Throttle> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bios of one driver that wait for tokens.
pub(crate) struct DriverThrottle {
    shared: Arc<SharedThrottle>,
    /// Changes of the limits that the first held bio knows.
    changes: u64,
    waiting: Waiting,
}

impl DriverThrottle {
    pub(crate) fn new(shared: &Arc<SharedThrottle>) -> Self {
        let changes = shared.changes.load(Ordering::SeqCst);
        Self { shared: Arc::clone(shared), changes, waiting: Waiting::new() }
    }

    /// A request has begun that moves or discards data.
    pub(crate) fn begin_request(&mut self) {
        self.waiting.begin_request();
    }

    /// Whether a bio may start now; otherwise it is held.
    pub(crate) fn admit(&mut self, bio: &Bio) -> bool {
        if self.waiting.is_empty() {
            self.changes = self.shared.changes.load(Ordering::SeqCst);
        }
        let is_free = !self.is_limited() || self.is_lifted();
        if self.waiting.is_empty() && is_free {
            self.waiting.forget_requests();
            return true;
        }
        let now = now();
        self.waiting.admit(now, bio, |cost| self.shared.reserve(now, cost))
    }

    /// The first held bio, if it may start, or `is_open` regardless of tokens.
    pub(crate) fn next(&mut self, is_open: bool) -> Option<Held> {
        if self.waiting.is_empty() {
            return None;
        }
        let now = now();
        let changes = self.shared.changes.load(Ordering::SeqCst);
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.waiting.reserve_again(|cost| self.shared.reserve(now, cost));
        }
        let reserve = |cost| self.shared.reserve(now, cost);
        if is_open || self.is_lifted() {
            self.waiting.release(reserve)
        } else {
            self.waiting.next(now, reserve)
        }
    }

    /// Time until [`DriverThrottle::next`] may have a bio. New limits, a suspend and the end of the
    /// server are seen within [`LOOK_AGAIN`], also without an event.
    pub(crate) fn wake_after(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.waiting.wake_at()?.since(now()).0).min(LOOK_AGAIN))
    }

    /// Whether there are limits now.
    pub(crate) fn is_limited(&self) -> bool {
        self.shared.has_limits.load(Ordering::Relaxed)
    }

    /// Gives the tokens of the first held bio back, which others may use.
    pub(crate) fn give_back(&mut self) {
        if let Some(cost) = self.waiting.take_reservation() {
            self.shared.buckets().give_back(cost);
        }
    }

    /// Whether the server ends.
    pub(crate) fn is_lifted(&self) -> bool {
        self.shared.is_lifted.load(Ordering::SeqCst)
    }

    /// Whether a bio would wait now.
    pub(crate) fn would_wait(&self) -> bool {
        !self.waiting.is_empty() || self.is_limited() && self.shared.buckets().is_in_debt(now())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn has_writes(&self) -> bool {
        self.waiting.has_writes()
    }
}
