//! Recording: which bios come into a volume, and how they end, told to whoever wants a trace.
//!
//! ```text
//!   driver ── Tracepoint ──> ring (its own) ─┐
//!   driver ── Tracepoint ──> ring (its own) ─┴─ Recording::drain ──> a thread that writes
//! ```
//! A driver has a ring from its first bio after the recording has begun; it writes into it without
//! a lock and without allocating, and nobody waits: what finds no room is counted. While nothing is
//! recorded a bio costs one look at a word that nobody writes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op};
use blockyard_engine::priority::{Priority, PriorityClass};
use blockyard_engine::time::Nanos;

/// Of a ring: 1 MiB. A connection that does a million bios a second fills it in 16 ms, and whoever
/// drains comes more often.
const RING_EVENTS: u64 = 32 << 10;
/// 64-bit words of an event.
const WORDS: u64 = 4;

/// What happened to a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It came.
    Came {
        /// When, since the recording began.
        at: Nanos,
        /// The front end's word for it: no other bio of the submitter in flight has the same.
        user: u64,
        /// What it asks for.
        op: Op,
        /// On stable storage before it ends.
        fua: bool,
        /// After a flush.
        preflush: bool,
        /// Somebody waits for it.
        sync: bool,
        /// Its first sector.
        sector: u64,
        /// How many.
        sectors: u32,
        /// How urgent.
        priority: Priority,
    },
    /// It has ended.
    Ended {
        /// When.
        at: Nanos,
        /// As it came.
        user: u64,
        /// How.
        status: BlkStatus,
    },
}

/// Of a volume: whether it is being recorded.
#[derive(Default)]
pub(crate) struct Switch {
    /// The number of the recording; zero is none.
    epoch: AtomicU64,
    /// Recordings so far, and the one that goes on.
    state: Mutex<(u64, Option<Arc<Session>>)>,
}

impl Switch {
    fn state(&self) -> MutexGuard<'_, (u64, Option<Arc<Session>>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A recording, as drivers see it.
struct Session {
    epoch: u64,
    began: Instant,
    /// New ones, which the reader takes over.
    rings: Mutex<Vec<Arc<Ring>>>,
}

/// What one driver writes and one thread reads.
struct Ring {
    words: Box<[AtomicU64]>,
    /// Events written; the driver's.
    head: AtomicU64,
    /// Events read; the reader's.
    tail: AtomicU64,
    /// Events that found no room; the driver's.
    lost: AtomicU64,
}

impl Ring {
    fn new() -> Self {
        let words = (0..RING_EVENTS * WORDS).map(|_| AtomicU64::new(0)).collect();
        let [head, tail, lost] = [0; 3].map(AtomicU64::new);
        Self { words, head, tail, lost }
    }

    fn at(&self, event: u64) -> &[AtomicU64] {
        let first = (event % RING_EVENTS * WORDS) as usize;
        &self.words[first..first + WORDS as usize]
    }

    /// The driver's side.
    fn push(&self, event: [u64; WORDS as usize]) {
        let head = self.head.load(Ordering::Relaxed);
        if head - self.tail.load(Ordering::Acquire) == RING_EVENTS {
            self.lost.store(self.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return;
        }
        self.at(head).iter().zip(event).for_each(|(word, new)| word.store(new, Ordering::Relaxed));
        self.head.store(head + 1, Ordering::Release);
    }

    /// The reader's side.
    fn pop(&self) -> Option<[u64; WORDS as usize]> {
        let tail = self.tail.load(Ordering::Relaxed);
        if self.head.load(Ordering::Acquire) == tail {
            return None;
        }
        let words = self.at(tail);
        let event = std::array::from_fn(|word| words[word].load(Ordering::Relaxed));
        self.tail.store(tail + 1, Ordering::Release);
        Some(event)
    }
}

/// The tracepoint of a driver: the place where its bios come and end.
pub(crate) struct Tracepoint {
    switch: Arc<Switch>,
    /// Of the recording that the ring is of; zero without one.
    epoch: u64,
    ring: Option<(Arc<Ring>, Instant)>,
}

impl Tracepoint {
    pub(crate) fn new(switch: &Arc<Switch>) -> Self {
        Self { switch: Arc::clone(switch), epoch: 0, ring: None }
    }

    /// Nothing is recorded, and nothing was that has to be given back.
    #[inline]
    fn is_off(&self) -> bool {
        self.switch.epoch.load(Ordering::Relaxed) | self.epoch == 0
    }

    /// A bio comes.
    #[inline]
    pub(crate) fn came(&mut self, bio: &Bio) {
        if !self.is_off() {
            self.note(words_of_bio(bio));
        }
    }

    /// Bios have ended.
    #[inline]
    pub(crate) fn ended(&mut self, done: &[Done]) {
        if !self.is_off() {
            for Done { user, status } in done {
                self.note([0, *user, 0, ENDED | (*status as u64) << OP_SHIFT]);
            }
        }
    }

    /// Writes an event down, with the time in its first word.
    fn note(&mut self, mut event: [u64; WORDS as usize]) {
        if self.switch.epoch.load(Ordering::Relaxed) != self.epoch {
            self.join();
        }
        if let Some((ring, began)) = &self.ring {
            event[0] = began.elapsed().as_nanos() as u64;
            ring.push(event);
        }
    }

    /// Takes part in the recording that goes on now, if there is one.
    #[cold]
    fn join(&mut self) {
        let session = self.switch.state().1.clone();
        self.epoch = session.as_ref().map_or(0, |session| session.epoch);
        self.ring = session.map(|session| {
            let ring = Arc::new(Ring::new());
            let mut rings = session.rings.lock().unwrap_or_else(PoisonError::into_inner);
            rings.push(Arc::clone(&ring));
            (ring, session.began)
        });
    }
}

/// A recording that goes on, until it is dropped.
pub struct Recording {
    switch: Arc<Switch>,
    session: Arc<Session>,
    /// By submitter; nothing for those that are gone.
    rings: Vec<Option<Arc<Ring>>>,
    /// Of those.
    lost: u64,
}

impl Recording {
    /// Begins to record what passes the tracepoints of this switch; nothing if one goes on.
    pub(crate) fn begin(switch: &Arc<Switch>) -> Option<Self> {
        let switch = Arc::clone(switch);
        let mut state = switch.state();
        if state.1.is_some() {
            return None;
        }
        let epoch = state.0 + 1;
        let session = Session { epoch, began: Instant::now(), rings: Mutex::default() };
        let session = Arc::new(session);
        *state = (epoch, Some(Arc::clone(&session)));
        switch.epoch.store(epoch, Ordering::Relaxed);
        drop(state);
        Some(Self { switch, session, rings: Vec::new(), lost: 0 })
    }

    /// How long it has gone on.
    #[must_use]
    pub fn elapsed(&self) -> Nanos {
        Nanos(self.session.began.elapsed().as_nanos() as u64)
    }

    /// Nothing more is recorded. What drivers have written is still there to be drained.
    pub fn stop(&mut self) {
        let mut state = self.switch.state();
        if state.1.as_ref().is_some_and(|session| session.epoch == self.session.epoch) {
            state.1 = None;
            self.switch.epoch.store(0, Ordering::Relaxed);
        }
    }

    /// Takes what has happened: by submitter, and for each in the order in which it happened.
    pub fn drain(&mut self, mut take: impl FnMut(u32, Event)) {
        let mut new = self.session.rings.lock().unwrap_or_else(PoisonError::into_inner);
        self.rings.extend(new.drain(..).map(Some));
        drop(new);
        for (submitter, place) in (0..).zip(&mut self.rings) {
            let Some(ring) = place else { continue };
            // Before the ring is looked at: what a driver writes last is there when it is gone.
            let is_last = Arc::strong_count(ring) == 1;
            std::sync::atomic::fence(Ordering::Acquire);
            // Not for ever: a submitter that is fast must not keep the others waiting.
            for _ in 0..RING_EVENTS {
                let Some(event) = ring.pop() else { break };
                take(submitter, event_of(event));
            }
            if is_last {
                self.lost += ring.lost.load(Ordering::Relaxed);
                *place = None;
            }
        }
    }

    /// Events that found no room: how bios came that nobody will hear of, or how they ended.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.rings.iter().flatten().map(|ring| ring.lost.load(Ordering::Relaxed)).sum::<u64>()
            + self.lost
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.stop();
    }
}

const ENDED: u64 = 1;
const OP_SHIFT: u32 = 1;
const FUA: u64 = 1 << 4;
const PREFLUSH: u64 = 1 << 5;
const SYNC: u64 = 1 << 6;
const LEVEL_SHIFT: u32 = 8;
const CLASS_SHIFT: u32 = 11;
const SECTORS_SHIFT: u32 = 32;

fn words_of_bio(bio: &Bio) -> [u64; WORDS as usize] {
    let Priority { class, level } = bio.origin.priority;
    // No front end has longer ones: their lengths in bytes have 32 bits.
    let sectors = bio.len.0.min(u32::MAX.into());
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    let word = (bio.op as u64) << OP_SHIFT
        | flag(FUA, bio.fua)
        | flag(PREFLUSH, bio.preflush)
        | flag(SYNC, bio.is_sync())
        | u64::from(level) << LEVEL_SHIFT
        | (class as u64) << CLASS_SHIFT
        | sectors << SECTORS_SHIFT;
    [0, bio.user, bio.sector.0, word]
}

fn event_of([at, user, sector, word]: [u64; WORDS as usize]) -> Event {
    let at = Nanos(at);
    let number = (word >> OP_SHIFT & 7) as usize;
    if word & ENDED > 0 {
        return Event::Ended { at, user, status: STATUSES[number] };
    }
    let class = CLASSES[(word >> CLASS_SHIFT & 3) as usize];
    Event::Came {
        at,
        user,
        op: OPS[number],
        fua: word & FUA > 0,
        preflush: word & PREFLUSH > 0,
        sync: word & SYNC > 0,
        sector,
        sectors: (word >> SECTORS_SHIFT) as u32,
        priority: Priority { class, level: (word >> LEVEL_SHIFT & 7) as u8 },
    }
}

/// In the order in which they are declared, which their numbers are.
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
const CLASSES: [PriorityClass; 3] =
    [PriorityClass::RealTime, PriorityClass::BestEffort, PriorityClass::Idle];
const STATUSES: [BlkStatus; 7] = [
    BlkStatus::Ok,
    BlkStatus::NotSupported,
    BlkStatus::NoSpace,
    BlkStatus::Invalid,
    BlkStatus::Transport,
    BlkStatus::Medium,
    BlkStatus::IoError,
];

#[cfg(test)]
mod tests;
