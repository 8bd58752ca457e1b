//! The gate of a controlled volume (`dm_suspend`, `dm_resume`): while it is closed, bios wait
//! before their shards, and none is in flight behind it.
//!
//! ```text
//! bio ─> open? ──yes──> shard ─> done            suspend: close, wait until no shard is busy
//!          └─no─> held ── resume ──> shard       resume:  open, wake all shards
//!                   └──── stop ────> I/O error   stop:    the server ends, no resume comes
//! ```
//! A shard marks itself as busy *before* it checks whether the gate is open; a closer checks for
//! busy shards *after* closing. So one of them sees the other. Both accesses hit this thread's
//! cache line, once per change from idle to busy; an uncontrolled volume has no gate. Only the
//! shard's thread writes its counts; a reader adds them up.
//!
//! A request of a front end may become several bios. One that has begun goes on to its end, also
//! after the gate was closed: the closer waits for it. So a front end that leaves requests with its
//! client holds none that is half done.
//!
//! *Orders* are sent to all shards: messages for targets, and suspends, which end waiting
//! operations in targets. A shard follows them before its next bio, and immediately while busy; a
//! later shard follows the earlier messages.

mod counts;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blockyard_engine::bio::{Bio, BlkStatus, Failures, Op};
use rustix::event::{EventfdFlags, eventfd};

pub use counts::{Counts, Errors};

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
/// Closed at the end of the server.
const STOPPED: u8 = 2;
/// Open at the end of the server.
const OPEN_FOR_EVER: u8 = 3;

/// An order to shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// A message for the line with this number.
    Message(u16, String),
    /// Waiting operations in targets end.
    Suspend,
    /// Operations may wait again.
    Resume,
}

/// The state that a shard and the control thread share.
struct ShardState {
    /// Pending orders.
    orders: Mutex<Vec<Order>>,
    /// `wake` was written to, and orders may be pending.
    is_woken: AtomicBool,
    /// Status texts of its targets, by number of the line.
    info: Mutex<Vec<(u16, String)>>,
    /// The shard has bios in flight.
    is_busy: AtomicBool,
    /// Wakes the shard's thread if it holds bios.
    wake: OwnedFd,
    counts: [AtomicU64; Counts::WORDS],
    /// Written after a failure only.
    errors: Mutex<Errors>,
}

impl ShardState {
    fn counts(&self) -> Counts {
        Counts::of_words(std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed)))
    }

    fn errors(&self) -> MutexGuard<'_, Errors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        // Last, so that a thread that sees it finds `wake` readable.
        self.is_woken.store(true, Ordering::SeqCst);
    }

    fn tell(&self, order: &Order) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order.clone());
    }
}

#[derive(Default)]
struct Shards {
    open: Vec<Arc<ShardState>>,
    /// Messages in the order of their last occurrence: each sets a state, so the first of two equal
    /// ones can be dropped.
    messages: Vec<Order>,
    /// Counts of ended shards.
    ended: Counts,
    /// Errors of ended shards.
    errors: Errors,
}

/// The gate of a volume.
#[derive(Default)]
pub(crate) struct Gate {
    state: AtomicU8,
    shards: Mutex<Shards>,
    went_idle: Condvar,
    /// The volume can be suspended and its lines are shown. Otherwise the gate only serves the end
    /// of the server.
    is_controlled: bool,
}

impl Gate {
    pub(crate) fn new(is_controlled: bool) -> Self {
        Self { is_controlled, ..Self::default() }
    }

    /// Whether the volume can be suspended and resumed.
    pub(crate) fn is_controlled(&self) -> bool {
        self.is_controlled
    }

    fn shards(&self) -> MutexGuard<'_, Shards> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lets_pass(&self) -> bool {
        matches!(self.state.load(Ordering::SeqCst), OPEN | OPEN_FOR_EVER)
    }

    /// Whether bios wait.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == CLOSED
    }

    /// Closes the gate and waits until no bio is in flight behind it. After `limit` it opens the
    /// gate again and returns false.
    pub(crate) fn close(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        if self.state.compare_exchange(OPEN, CLOSED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return self.is_closed();
        }
        let mut shards = self.shards();
        shards.open.iter().for_each(|shard| shard.tell(&Order::Suspend));
        shards.open.iter().for_each(|shard| shard.wake());
        while shards.open.iter().any(|shard| shard.is_busy.load(Ordering::SeqCst)) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(shards);
                self.open();
                return false;
            }
            let waited = self.went_idle.wait_timeout(shards, left);
            shards = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Opens the gate: held bios continue.
    pub(crate) fn open(&self) {
        self.open_from(CLOSED);
    }

    fn open_from(&self, before: u8) {
        let shards = self.shards();
        if self.state.load(Ordering::SeqCst) != before {
            return;
        }
        // First, because bios through the open gate may wait in a target.
        shards.open.iter().for_each(|shard| shard.tell(&Order::Resume));
        self.state.store(OPEN, Ordering::SeqCst);
        shards.open.iter().for_each(|shard| shard.wake());
    }

    /// Keeps an open gate open from now on, for the end of the volume. Returns false for a gate
    /// that is closed: a suspend was first.
    pub(crate) fn stay_open(&self) -> bool {
        let exchange =
            self.state.compare_exchange(OPEN, OPEN_FOR_EVER, Ordering::SeqCst, Ordering::SeqCst);
        exchange.is_ok()
    }

    /// Takes [`Gate::stay_open`] back.
    pub(crate) fn may_close(&self) {
        self.open_from(OPEN_FOR_EVER);
    }

    /// Whether the gate moves no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::SeqCst) >= STOPPED
    }

    /// Sends a message to all current and future shards.
    pub(crate) fn tell(&self, message: &Order) {
        assert!(matches!(message, Order::Message(..)));
        let mut shards = self.shards();
        shards.messages.retain(|earlier| earlier != message);
        shards.messages.push(message.clone());
        shards.open.iter().for_each(|shard| shard.tell(message));
        shards.open.iter().for_each(|shard| shard.wake());
    }

    /// Wakes all shards that hold bios.
    pub(crate) fn wake_all(&self) {
        self.shards().open.iter().for_each(|shard| shard.wake());
    }

    /// Messages for a new shard.
    pub(crate) fn messages(&self) -> Vec<Order> {
        self.shards().messages.clone()
    }

    /// The status texts of a line, from each shard that has published one.
    pub(crate) fn info(&self, number: u16) -> Vec<String> {
        let mut all = Vec::new();
        for shard in &self.shards().open {
            let info = shard.info.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(info.iter().find(|(of, _)| *of == number).map(|(_, info)| info.clone()));
        }
        all
    }

    /// Stops the gate at the end of the server. If it is closed, held and new bios fail.
    pub(crate) fn stop(&self) {
        let exchange = |from, to| {
            self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        // Under the lock, so that a resume of before is not followed after it. In a loop, because
        // the gate may be closed or opened in between.
        let shards = self.shards();
        while !exchange(OPEN, OPEN_FOR_EVER) && !exchange(CLOSED, STOPPED) {
            if self.state.load(Ordering::SeqCst) >= STOPPED {
                break;
            }
        }
        shards.open.iter().for_each(|shard| shard.tell(&Order::Suspend));
        shards.open.iter().for_each(|shard| shard.wake());
    }

    /// The total counts, and the number of shards.
    pub(crate) fn counts(&self) -> (Counts, usize) {
        let shards = self.shards();
        let mut all = shards.ended;
        shards.open.iter().for_each(|shard| all.add(shard.counts()));
        (all, shards.open.len())
    }

    /// The errors of all shards.
    pub(crate) fn errors(&self) -> Errors {
        let shards = self.shards();
        let mut all = shards.errors;
        shards.open.iter().for_each(|shard| all.add(&shard.errors()));
        all
    }
}

/// Fate of a held bio.
#[derive(Debug)]
pub(crate) enum Next {
    Passes(Bio),
    /// The server ends while the gate is closed.
    Fails(Bio),
}

/// One shard's side of the gate.
pub(crate) struct ShardGate {
    gate: Arc<Gate>,
    shard: Arc<ShardState>,
    /// Copy of the shard's state.
    is_busy: bool,
    /// Requests have begun, whose bios pass a closed gate too.
    has_requests: bool,
    held: VecDeque<Bio>,
    /// Bios that failed before the shard.
    refused: Failures,
    /// The number of errors that the shard's state has.
    errors_shown: u64,
    counts: Counts,
}

impl ShardGate {
    pub(crate) fn new(gate: &Arc<Gate>) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        let mut shards = gate.shards();
        let mut orders = shards.messages.clone();
        if gate.state.load(Ordering::SeqCst) != OPEN {
            orders.push(Order::Suspend);
        }
        let shard = Arc::new(ShardState {
            is_woken: AtomicBool::new(!orders.is_empty()),
            orders: Mutex::new(orders),
            info: Mutex::default(),
            is_busy: AtomicBool::new(false),
            wake,
            counts,
            errors: Mutex::default(),
        });
        shards.open.push(Arc::clone(&shard));
        drop(shards);
        let gate = Arc::clone(gate);
        let held = VecDeque::new();
        Ok(Self {
            gate,
            shard,
            is_busy: false,
            has_requests: false,
            held,
            refused: Failures::default(),
            errors_shown: 0,
            counts: Counts::default(),
        })
    }

    /// Counts a bio that has passed.
    #[inline]
    pub(crate) fn count(&mut self, bio: &Bio) {
        self.counts.count(bio);
    }

    /// Whether a bio may pass. Otherwise it is held here.
    pub(crate) fn admit(&mut self, bio: &Bio) -> bool {
        let may_pass = self.has_requests || self.held.is_empty() && self.enter();
        if !may_pass {
            self.held.push_back(*bio);
        }
        may_pass
    }

    /// Whether another request may begin. Then its bios pass until [`ShardGate::end_requests`].
    pub(crate) fn begin_request(&mut self) -> bool {
        if self.has_requests {
            return self.gate.lets_pass();
        }
        self.has_requests = self.held.is_empty() && self.enter();
        self.has_requests
    }

    /// No request is left, and no bio.
    pub(crate) fn end_requests(&mut self) {
        if std::mem::replace(&mut self.has_requests, false) {
            self.left();
        }
    }

    /// Whether a bio may pass; marks the shard as busy first.
    fn enter(&mut self) -> bool {
        if self.is_busy {
            return self.gate.lets_pass();
        }
        self.is_busy = true;
        self.shard.is_busy.store(true, Ordering::SeqCst);
        let may_pass = self.gate.lets_pass();
        if !may_pass {
            self.left();
        }
        may_pass
    }

    /// Marks the shard as idle, unless requests have begun.
    pub(crate) fn left(&mut self) {
        if self.has_requests || !std::mem::replace(&mut self.is_busy, false) {
            return;
        }
        self.shard.is_busy.store(false, Ordering::SeqCst);
        if !self.gate.lets_pass() {
            // A closer checks the shards under this lock: it checked before, or checks after.
            drop(self.gate.shards());
            self.gate.went_idle.notify_all();
        }
    }

    /// Whether [`ShardGate::take_orders`] may return orders.
    #[inline]
    pub(crate) fn is_woken(&self) -> bool {
        self.shard.is_woken.load(Ordering::Relaxed)
    }

    /// Pending orders of the shard.
    pub(crate) fn take_orders(&self) -> Vec<Order> {
        if self.shard.is_woken.swap(false, Ordering::SeqCst) {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.shard.wake, &mut count);
        }
        std::mem::take(&mut *self.shard.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Publishes the status texts of targets.
    pub(crate) fn show(&self, info: Vec<(u16, String)>) {
        *self.shard.info.lock().unwrap_or_else(PoisonError::into_inner) = info;
    }

    /// The oldest held bio, if it holds one that does not wait any more.
    pub(crate) fn next(&mut self) -> Option<Next> {
        let first = *self.held.front()?;
        let next = if self.is_stopped() {
            self.refused(first.op, BlkStatus::IoError);
            Next::Fails(first)
        } else if self.enter() {
            Next::Passes(first)
        } else {
            return None;
        };
        self.held.pop_front();
        Some(next)
    }

    /// Whether bios are held.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Descriptor that becomes readable when the gate has moved, or orders are pending.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        (self.is_busy || self.holds()).then(|| self.shard.wake.as_fd())
    }

    /// Descriptor that becomes readable when the gate has moved.
    pub(crate) fn moved(&self) -> BorrowedFd<'_> {
        self.shard.wake.as_fd()
    }

    /// Whether the server ends while the gate is closed.
    pub(crate) fn is_stopped(&self) -> bool {
        self.gate.state.load(Ordering::SeqCst) == STOPPED
    }

    /// Whether bios that have not passed must not wait: the server ends, or a suspend waits for
    /// begun requests of this shard.
    pub(crate) fn is_draining(&self) -> bool {
        match self.gate.state.load(Ordering::SeqCst) {
            OPEN => false,
            CLOSED => self.has_requests,
            _ => true,
        }
    }

    /// Whether the gate is closed and none of the shard's bios belongs to a begun request.
    pub(crate) fn may_hold(&self) -> bool {
        self.gate.is_closed() && !self.has_requests
    }

    /// Holds bios that had passed, before all others.
    pub(crate) fn hold_first(&mut self, bios: Vec<Bio>) {
        bios.into_iter().rev().for_each(|bio| self.held.push_front(bio));
    }

    /// Whether a bio would pass now.
    pub(crate) fn lets_pass(&self) -> bool {
        self.gate.lets_pass()
    }

    /// Counts a bio that failed before the shard.
    pub(crate) fn refused(&mut self, op: Op, status: BlkStatus) {
        self.refused.count(op, status);
    }

    /// Publishes the counts: its own, and those of the shard.
    pub(crate) fn publish(&mut self, of_shard: Counts, failures: &Failures) {
        let errors = failures.total() + self.refused.total();
        if errors != self.errors_shown {
            self.errors_shown = errors;
            *self.shard.errors() = Errors { executed: *failures, refused: self.refused };
        }
        let Counts { decisions, parked, in_flight, .. } = of_shard;
        let held = self.held.len() as u64;
        self.counts = Counts { decisions, held, parked, in_flight, ..self.counts };
        for (shown, word) in self.shard.counts.iter().zip(self.counts.words()) {
            shown.store(word, Ordering::Relaxed);
        }
    }
}

impl Drop for ShardGate {
    fn drop(&mut self) {
        let mut shards = self.gate.shards();
        shards.open.retain(|shard| !Arc::ptr_eq(shard, &self.shard));
        let ended = Counts { held: 0, parked: 0, in_flight: 0, ..self.counts };
        shards.ended.add(ended);
        shards.errors.add(&self.shard.errors());
        self.gate.went_idle.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::Sector;
    use blockyard_engine::buf::BufRef;
    use blockyard_engine::dm::crypt::pipeline::{Decisions, Tally};

    use super::*;

    fn bio(user: u64) -> Bio {
        Bio::new(Op::Write, Sector(0), Sector(8), BufRef::NONE, user)
    }

    /// The `user` word of the next held bio, if it passes.
    fn passed(pass: &mut ShardGate) -> Option<u64> {
        match pass.next()? {
            Next::Passes(bio) => Some(bio.user),
            Next::Fails(_) => None,
        }
    }

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn gate_that_stays_open_is_not_closed_and_a_closed_one_does_not_stay_open() {
        let gate = Arc::new(Gate::default());
        assert!(gate.stay_open() && !gate.close(SOON) && gate.lets_pass());
        gate.may_close();
        assert!(gate.close(SOON));
        assert!(!gate.stay_open() && gate.is_closed(), "the suspend was first");
    }

    #[test]
    fn closed_gate_holds_bios_in_order_until_it_is_opened() {
        let gate = Arc::new(Gate::default());
        let mut pass = ShardGate::new(&gate).unwrap();
        assert!(gate.close(SOON) && gate.close(SOON));
        assert!(!pass.admit(&bio(1)) && !pass.admit(&bio(2)));
        assert!(pass.next().is_none());
        gate.open();
        // This bio arrives before the held one has passed.
        assert!(!pass.admit(&bio(3)));
        let order: Vec<u64> = std::iter::from_fn(|| passed(&mut pass)).collect();
        assert_eq!((order, pass.holds()), (vec![1, 2, 3], false));
        assert!(pass.admit(&bio(4)));
    }

    #[test]
    fn request_that_has_begun_goes_on_to_its_end_through_a_closed_gate() {
        let gate = Arc::new(Gate::default());
        let mut pass = ShardGate::new(&gate).unwrap();
        assert!(pass.begin_request() && pass.begin_request());
        assert!(pass.admit(&bio(1)));
        // No bio is in flight, and the request has not ended.
        pass.left();
        let closer = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || gate.close(LONG))
        };
        while !gate.is_closed() {
            std::thread::yield_now();
        }
        assert!(!pass.begin_request(), "another one stays with its client");
        assert!(pass.admit(&bio(2)) && !pass.holds());
        pass.left();
        assert!(!closer.is_finished());
        pass.end_requests();
        assert!(closer.join().unwrap());
        assert!(!pass.begin_request() && !pass.admit(&bio(3)));
        pass.end_requests();
        gate.open();
        assert!(!pass.begin_request(), "a held bio is first");
        assert_eq!(passed(&mut pass), Some(3));
        assert!(pass.begin_request());
    }

    #[test]
    fn gate_closes_when_the_last_bio_has_left_and_not_before() {
        let gate = Arc::new(Gate::default());
        let mut pass = ShardGate::new(&gate).unwrap();
        assert!(pass.admit(&bio(1)));
        assert!(!gate.close(SOON), "a bio is in flight");
        assert!(!gate.is_closed(), "the close timed out");
        pass.take_orders();
        let start = Instant::now();
        let closer = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || gate.close(LONG))
        };
        while pass.take_orders().is_empty() {
            std::thread::yield_now();
        }
        // The closer gives up the lock only to wait.
        drop(gate.shards());
        assert!(gate.is_closed());
        assert!(!closer.is_finished());
        assert!(!pass.admit(&bio(2)), "a busy shard gets no more bios");
        pass.left();
        assert!(closer.join().unwrap());
        assert!(start.elapsed() < LONG, "it was woken");
        assert!(pass.next().is_none());
    }

    #[test]
    fn shard_that_goes_away_is_not_waited_for_and_stays_counted() {
        let gate = Arc::new(Gate::default());
        let mut pass = ShardGate::new(&gate).unwrap();
        assert!(pass.admit(&bio(1)));
        pass.count(&bio(1));
        let counts = Counts { parked: 3, in_flight: 1, ..Counts::default() };
        pass.publish(counts, &Failures::default());
        assert_eq!(gate.counts().0.in_flight, 1);
        assert_eq!((gate.counts().0.parked, gate.counts().1), (3, 1));
        drop(pass);
        assert!(gate.close(SOON));
        let (counts, shards) = gate.counts();
        assert_eq!((counts.writes, shards), (Tally { parts: 1, bytes: 4096 }, 0));
        assert_eq!((counts.parked, counts.in_flight), (0, 0));
    }

    #[test]
    fn stopped_gate_fails_what_it_holds() {
        let gate = Arc::new(Gate::default());
        let mut pass = ShardGate::new(&gate).unwrap();
        assert!(gate.close(SOON));
        assert!(!pass.admit(&bio(1)));
        gate.stop();
        gate.stop();
        assert!(matches!(pass.next(), Some(Next::Fails(bio)) if bio.user == 1));
        assert!(pass.next().is_none());
        pass.take_orders();
        gate.open();
        assert!(!pass.admit(&bio(2)), "it stays stopped");
        assert!(pass.take_orders().is_empty(), "operations in targets end");
        let open = Gate::default();
        open.stop();
        open.stop();
        assert!(!open.close(SOON), "it stays open");
    }

    #[test]
    fn counts_of_shards_add_up() {
        let counts = Counts::of_words(std::array::from_fn(|at| at as u64 + 3));
        let mut both = counts;
        both.add(counts);
        assert_eq!(both.words(), counts.words().map(|word| 2 * word));
    }

    #[test]
    fn bios_are_counted_by_what_they_ask_for() {
        let gate = Arc::new(Gate::default());
        let mut pass = ShardGate::new(&gate).unwrap();
        for op in [Op::Read, Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush] {
            pass.count(&Bio { op, ..bio(1) });
        }
        pass.publish(Counts::default(), &Failures::default());
        let tally = |parts| Tally { parts, bytes: parts * 4096 };
        let reads = tally(2);
        let writes = tally(1);
        let others = tally(2);
        let expected = Counts { reads, writes, flushes: 1, others, ..Counts::default() };
        assert_eq!(gate.counts(), (expected, 1));
    }

    #[test]
    fn shard_is_counted_with_what_it_holds_until_it_goes_away() {
        let gate = Arc::new(Gate::default());
        let mut pass = ShardGate::new(&gate).unwrap();
        assert!(gate.close(SOON));
        assert!(!pass.admit(&bio(1)));
        pass.count(&bio(2));
        pass.refused(Op::Read, BlkStatus::NoSpace);
        let tally = |n| Tally { parts: n, bytes: n };
        let decisions = Decisions { inline: tally(5), ..Decisions::default() };
        let shard = Counts { decisions, in_flight: 3, parked: 4, ..Counts::default() };
        let mut executed = Failures::default();
        executed.count(Op::Write, BlkStatus::Medium);
        pass.publish(shard, &executed);
        let writes = Tally { parts: 1, bytes: 4096 };
        let now = Counts { writes, held: 1, ..shard };
        assert_eq!(gate.counts(), (now, 1));
        let mut refused = Failures::default();
        refused.count(Op::Read, BlkStatus::NoSpace);
        assert_eq!(gate.errors(), Errors { executed, refused });
        executed.count(Op::Write, BlkStatus::Medium);
        pass.publish(shard, &executed);
        assert_eq!(gate.errors(), Errors { executed, refused });
        drop(pass);
        let ended = Counts { held: 0, in_flight: 0, parked: 0, ..now };
        assert_eq!(gate.counts(), (ended, 0));
        assert_eq!(gate.errors(), Errors { executed, refused });
    }

    #[test]
    fn messages_are_kept_once_in_the_order_of_their_last_occurrence() {
        let gate = Arc::new(Gate::default());
        let pass = ShardGate::new(&gate).unwrap();
        let [a, b] = ["a", "b"].map(|text| Order::Message(0, text.to_owned()));
        for message in [&a, &b, &a] {
            gate.tell(message);
        }
        assert_eq!(pass.take_orders(), [a.clone(), b.clone(), a.clone()]);
        assert!(pass.take_orders().is_empty());
        assert_eq!(gate.messages(), [b.clone(), a.clone()]);
        assert_eq!(ShardGate::new(&gate).unwrap().take_orders(), [b, a]);
    }

    #[test]
    fn shard_is_told_of_a_suspend_and_a_resume_before_and_after_it_came() {
        let gate = Arc::new(Gate::default());
        let early = ShardGate::new(&gate).unwrap();
        assert!(!early.is_woken());
        assert!(gate.close(SOON));
        let late = ShardGate::new(&gate).unwrap();
        for pass in [&early, &late] {
            assert!(pass.is_woken());
            assert_eq!(pass.take_orders(), [Order::Suspend]);
            assert!(!pass.is_woken());
        }
        gate.open();
        for pass in [&early, &late] {
            assert_eq!(pass.take_orders(), [Order::Resume]);
        }
        assert!(!ShardGate::new(&gate).unwrap().is_woken());
    }

    #[test]
    fn shard_is_woken_while_it_is_busy_or_holds_bios() {
        let gate = Arc::new(Gate::default());
        let mut pass = ShardGate::new(&gate).unwrap();
        assert!(pass.wake().is_none());
        assert!(pass.admit(&bio(1)));
        assert!(pass.wake().is_some(), "it is busy");
        pass.left();
        assert!(pass.wake().is_none());
        assert!(gate.close(SOON));
        assert!(!pass.admit(&bio(2)));
        assert!(pass.wake().is_some(), "it holds one");
    }

    #[test]
    fn gate_that_is_there_for_the_end_of_the_server_controls_nothing() {
        assert!(Gate::new(true).is_controlled());
        assert!(!Gate::new(false).is_controlled());
    }

    #[test]
    fn info_of_a_line_is_that_of_each_shard_that_has_said_it() {
        let gate = Arc::new(Gate::default());
        let [one, two, _silent] = [(); 3].map(|()| ShardGate::new(&gate).unwrap());
        one.show(vec![(0, "a".to_owned()), (1, "b".to_owned())]);
        two.show(vec![(1, "c".to_owned())]);
        assert_eq!((gate.info(0), gate.info(1)), (vec!["a".into()], vec!["b".into(), "c".into()]));
        assert!(gate.info(2).is_empty());
    }

    #[test]
    fn counts_survive_being_shown() {
        let tally = |n| Tally { parts: n, bytes: n + 1 };
        let decisions = Decisions { inline: tally(5), fanned_out: tally(7), sorted: tally(9) };
        let counts = Counts {
            reads: tally(1),
            writes: tally(3),
            flushes: 11,
            others: tally(12),
            in_flight: 15,
            decisions,
            held: 13,
            parked: 14,
        };
        assert_eq!(Counts::of_words(counts.words()), counts);
    }
}
