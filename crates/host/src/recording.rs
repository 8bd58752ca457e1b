//! Records the submissions and ends of a volume's bios for traces.
//!
//! ```text
//!   driver ── Tracepoint ──> ring (its own) ─┐
//!   driver ── Tracepoint ──> ring (its own) ─┴─ Recording::drain ──> a thread that writes
//! ```
//! A driver has a ring from its first bio during a recording. It writes into the ring without
//! locks, allocations or waits; dropped events are counted. Without a recording a bio costs one
//! read of a word that is never written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op};
use blockyard_engine::priority::{Priority, PriorityClass};
use blockyard_engine::time::Nanos;

/// Length of a ring: 1 MiB. A connection with a million bios a second fills it in 16 ms; the reader
/// drains more often.
const RING_EVENTS: u64 = 32 << 10;
/// 64-bit words per event.
const WORDS: u64 = 4;

/// An event of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Submission.
    Came {
        /// Time since the start of the recording.
        at: Nanos,
        /// The front end's number of the bio, unique among the submitter's bios in flight.
        user: u64,
        /// Operation.
        op: Op,
        /// FUA.
        fua: bool,
        /// Preflush.
        preflush: bool,
        /// The submitter waits.
        sync: bool,
        /// First sector.
        sector: u64,
        /// Number of sectors.
        sectors: u32,
        /// Priority.
        priority: Priority,
    },
    /// End.
    Ended {
        /// Time since the start of the recording.
        at: Nanos,
        /// Number from the submission.
        user: u64,
        /// Status.
        status: BlkStatus,
    },
}

/// Switch of a volume's recording. Every request reads it, so it shares no cache line with what
/// other threads write.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Switch {
    /// Number of the recording; zero means none.
    epoch: AtomicU64,
    /// Number of recordings so far, and the running one.
    state: Mutex<(u64, Option<Arc<Session>>)>,
}

impl Switch {
    fn state(&self) -> MutexGuard<'_, (u64, Option<Arc<Session>>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A recording from the drivers' side.
struct Session {
    epoch: u64,
    began: Instant,
    /// New rings, which the reader takes over.
    rings: Mutex<Vec<Arc<Ring>>>,
}

/// A ring with one writing driver and one reading thread.
struct Ring {
    words: Box<[AtomicU64]>,
    /// Events written; changed by the driver.
    head: AtomicU64,
    /// Events read; changed by the reader.
    tail: AtomicU64,
    /// Events dropped; changed by the driver.
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

    /// Adds an event; the driver's side.
    fn push(&self, event: [u64; WORDS as usize]) {
        let head = self.head.load(Ordering::Relaxed);
        if head - self.tail.load(Ordering::Acquire) == RING_EVENTS {
            self.lost.store(self.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return;
        }
        self.at(head).iter().zip(event).for_each(|(word, new)| word.store(new, Ordering::Relaxed));
        self.head.store(head + 1, Ordering::Release);
    }

    /// Takes an event; the reader's side.
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

/// The tracepoint of a driver for submissions and ends of its bios.
pub(crate) struct Tracepoint {
    switch: Arc<Switch>,
    /// Number of the ring's recording; zero without a ring.
    epoch: u64,
    ring: Option<(Arc<Ring>, Instant)>,
}

impl Tracepoint {
    pub(crate) fn new(switch: &Arc<Switch>) -> Self {
        Self { switch: Arc::clone(switch), epoch: 0, ring: None }
    }

    /// Whether there is neither a recording nor a ring to release.
    #[inline]
    fn is_off(&self) -> bool {
        self.switch.epoch.load(Ordering::Relaxed) | self.epoch == 0
    }

    /// Records a submission.
    #[inline]
    pub(crate) fn came(&mut self, bio: &Bio) {
        if !self.is_off() {
            self.note(words_of_bio(bio));
        }
    }

    /// Records ends.
    #[inline]
    pub(crate) fn ended(&mut self, done: &[Done]) {
        if !self.is_off() {
            for Done { user, status } in done {
                self.note([0, *user, 0, ENDED | (*status as u64) << OP_SHIFT]);
            }
        }
    }

    /// Adds the time to an event's first word and stores the event.
    fn note(&mut self, mut event: [u64; WORDS as usize]) {
        if self.switch.epoch.load(Ordering::Relaxed) != self.epoch {
            self.join();
        }
        if let Some((ring, began)) = &self.ring {
            event[0] = began.elapsed().as_nanos() as u64;
            ring.push(event);
        }
    }

    /// Joins the running recording, if any.
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

/// A running recording; the drop stops it.
pub struct Recording {
    switch: Arc<Switch>,
    session: Arc<Session>,
    /// Rings by submitter; `None` for ended submitters.
    rings: Vec<Option<Arc<Ring>>>,
    /// Dropped events of ended submitters.
    lost: u64,
}

impl Recording {
    /// Starts a recording of the tracepoints of this switch; `None` if one is running.
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

    /// Duration so far.
    #[must_use]
    pub fn elapsed(&self) -> Nanos {
        Nanos(self.session.began.elapsed().as_nanos() as u64)
    }

    /// Stops the recording. Events in the rings can still be drained.
    pub fn stop(&mut self) {
        let mut state = self.switch.state();
        if state.1.as_ref().is_some_and(|session| session.epoch == self.session.epoch) {
            state.1 = None;
            self.switch.epoch.store(0, Ordering::Relaxed);
        }
    }

    /// Takes the recorded events: by submitter, and in order for each.
    pub fn drain(&mut self, mut take: impl FnMut(u32, Event)) {
        let mut new = self.session.rings.lock().unwrap_or_else(PoisonError::into_inner);
        self.rings.extend(new.drain(..).map(Some));
        drop(new);
        for (submitter, place) in (0..).zip(&mut self.rings) {
            let Some(ring) = place else { continue };
            // Before the ring is read, so that the last events of an ended driver are included.
            let is_last = Arc::strong_count(ring) == 1;
            std::sync::atomic::fence(Ordering::Acquire);
            // Bounded, so that a fast submitter does not delay the others.
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

    /// Number of dropped events: submissions or ends that are missing.
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
    // The lengths of all front ends have 32 bits in bytes.
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

/// In the order of declaration, which gives the numbers.
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
