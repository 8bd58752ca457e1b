//! Limits of an export's rate, shared by its connections or by a group of exports.
//!
//! The rule is the engine's ([`blockyard_engine::throttle`]). A driver holds bios in front of its
//! gate and its ranges: a held write excludes nobody from its blocks, and a suspend does not wait
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

/// Token buckets that several exports may share, which are a group then.
#[derive(Debug)]
pub struct Buckets {
    /// Name of the group.
    group: Option<String>,
    throttle: Mutex<Throttle>,
    /// Number of changes of the limits.
    changes: AtomicU64,
    /// Without limits, bios take no lock.
    has_limits: AtomicBool,
}

impl Buckets {
    /// Full buckets.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            group: None,
            throttle: Mutex::new(Throttle::new(limits)),
            changes: AtomicU64::new(0),
            has_limits: AtomicBool::new(limits.is_some()),
        }
    }

    /// Names the group of the exports that share the buckets.
    #[must_use]
    pub fn of_group(self, group: Option<String>) -> Self {
        Self { group, ..self }
    }

    fn reserve(&self, now: Nanos, cost: Cost) -> Nanos {
        self.throttle().reserve(now, cost)
    }

    fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limits of an export, shared by its connections.
#[derive(Debug)]
pub struct SharedThrottle {
    buckets: Mutex<Arc<Buckets>>,
    /// Number of changes of `buckets`.
    moves: AtomicU64,
    /// The export or the server ends: bios wait no longer.
    is_lifted: AtomicBool,
}

impl SharedThrottle {
    /// Limits by these buckets.
    #[must_use]
    pub fn new(buckets: Arc<Buckets>) -> Self {
        Self {
            buckets: Mutex::new(buckets),
            moves: AtomicU64::new(0),
            is_lifted: AtomicBool::new(false),
        }
    }

    /// Takes tokens out of other buckets from now on. Drivers see it at their next poll.
    pub fn use_buckets(&self, buckets: Arc<Buckets>) {
        *self.buckets.lock().unwrap_or_else(PoisonError::into_inner) = buckets;
        self.moves.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether both take their tokens out of the same buckets.
    #[must_use]
    pub fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.buckets(), &other.buckets())
    }

    /// Lets all bios start, from now on.
    pub(crate) fn lift(&self) {
        self.is_lifted.store(true, Ordering::SeqCst);
    }

    /// Name of the group of exports with the same buckets.
    #[must_use]
    pub fn group(&self) -> Option<String> {
        self.buckets().group.clone()
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.buckets().throttle().limits()
    }

    /// Changes the limits for bios that have not started, also of exports that share the buckets.
    /// Drivers see it at their next poll.
    pub fn set(&self, limits: Limits) {
        let buckets = self.buckets();
        buckets.throttle().set(now(), limits);
        buckets.has_limits.store(limits.is_some(), Ordering::SeqCst);
        buckets.changes.fetch_add(1, Ordering::SeqCst);
    }

    fn buckets(&self) -> Arc<Buckets> {
        Arc::clone(&self.buckets.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Bios of one driver that wait for tokens.
pub(crate) struct DriverThrottle {
    shared: Arc<SharedThrottle>,
    /// The buckets of `shared` after this number of moves.
    buckets: Arc<Buckets>,
    moves: u64,
    /// Changes of the limits that the first held bio knows.
    changes: u64,
    waiting: Waiting,
}

impl DriverThrottle {
    pub(crate) fn new(shared: &Arc<SharedThrottle>) -> Self {
        let moves = shared.moves.load(Ordering::SeqCst);
        let buckets = shared.buckets();
        let changes = buckets.changes.load(Ordering::SeqCst);
        Self { shared: Arc::clone(shared), buckets, moves, changes, waiting: Waiting::new() }
    }

    /// Follows new limits and new buckets; returns whether there were any.
    fn follow(&mut self) -> bool {
        let moves = self.shared.moves.load(Ordering::SeqCst);
        let has_moved = std::mem::replace(&mut self.moves, moves) != moves;
        if has_moved {
            self.buckets = self.shared.buckets();
        }
        let changes = self.buckets.changes.load(Ordering::SeqCst);
        (std::mem::replace(&mut self.changes, changes) != changes) || has_moved
    }

    /// A request has begun that moves or discards data.
    pub(crate) fn begin_request(&mut self) {
        self.waiting.begin_request();
    }

    /// Whether a bio may start now; otherwise it is held.
    pub(crate) fn admit(&mut self, bio: &Bio) -> bool {
        if self.waiting.is_empty() {
            self.follow();
        }
        let is_free = !self.is_limited() || self.is_lifted();
        if self.waiting.is_empty() && is_free {
            self.waiting.forget_requests();
            return true;
        }
        let now = now();
        self.waiting.admit(now, bio, |cost| self.buckets.reserve(now, cost))
    }

    /// The first held bio, if it may start, or `is_open` regardless of tokens.
    pub(crate) fn next(&mut self, is_open: bool) -> Option<Held> {
        if self.waiting.is_empty() {
            return None;
        }
        let now = now();
        if self.follow() {
            self.waiting.reserve_again(|cost| self.buckets.reserve(now, cost));
        }
        let reserve = |cost| self.buckets.reserve(now, cost);
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
        self.buckets.has_limits.load(Ordering::Relaxed)
    }

    /// Gives the tokens of the first held bio back, which others may use.
    pub(crate) fn give_back(&mut self) {
        if let Some(cost) = self.waiting.take_reservation() {
            self.buckets.throttle().give_back(cost);
        }
    }

    /// Whether the server ends.
    pub(crate) fn is_lifted(&self) -> bool {
        self.shared.is_lifted.load(Ordering::SeqCst)
    }

    /// Whether a bio would wait now.
    pub(crate) fn would_wait(&self) -> bool {
        !self.waiting.is_empty() || self.is_limited() && self.buckets.throttle().is_in_debt(now())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn has_writes(&self) -> bool {
        self.waiting.has_writes()
    }
}
