//! The load that a shard has to know before it places a cipher.

use std::sync::Arc;

use blockyard_engine::bio::{Bio, Sector};
use blockyard_engine::dm::crypt::pipeline::Load;

use super::turn::Turn;
use super::{Driver, Parts};
use crate::stages::now;
use crate::workers::{Busy, Workers};

/// The load of a volume whose placement of ciphers depends on it.
pub(super) struct Watch {
    workers: Arc<Workers>,
    /// Length of a long bio: the load is checked before its placement. Shorter bios skip the check.
    long_from: Sector,
    /// Whether the submitter waits for the last bio, if the bio was long.
    long: Option<bool>,
    /// `None` if short requests never go to workers.
    turn: Option<Turn>,
    /// Number of looks at the load since the CPUs were counted.
    looks: u32,
}

/// Looks at the load after which a submitter that does not sleep counts the CPUs again. Ours: a
/// fraction of a second for one that is busy.
const LOOKS: u32 = 256;

impl Watch {
    pub(super) fn new(parts: &Parts) -> Option<Self> {
        let workers = Arc::clone(parts.workers.as_ref()?);
        let turn = parts.batches_from_bytes.map(|bytes| Turn::new(&workers, bytes));
        Some(Self { workers, long_from: parts.asks_load_from?, long: None, turn, looks: 0 })
    }

    /// Notes a new bio; returns whether it is long.
    #[inline]
    pub(super) fn note(&mut self, bio: &Bio, is_awaited: bool, at_workers: usize) -> bool {
        let is_long = bio.len >= self.long_from;
        self.long = is_long.then_some(is_awaited);
        if !is_long && let Some(turn) = &mut self.turn {
            turn.count(bio.len.bytes(), at_workers);
        }
        is_long
    }

    /// The load now.
    fn now(&mut self) -> Load {
        let now = now();
        self.looks += 1;
        if self.looks == LOOKS {
            self.looks = 0;
            self.workers.count_cpus(now);
        }
        let together_bytes = self.turn.as_ref().map_or(0, Turn::together_bytes);
        let together_bytes = if self.workers.is_crowded(now) { 0 } else { together_bytes };
        Load { together_bytes, ..self.workers.load(now) }
    }
}

impl Driver {
    /// Marks this thread as busy until the value is dropped; `None` after a short bio, or if its
    /// steady load has marked it already.
    pub(super) fn busy(&self) -> Option<Busy> {
        let watch = self.watch.as_ref()?;
        let is_marked = watch.turn.as_ref().is_some_and(Turn::is_steady);
        (watch.long.is_some() && !is_marked).then(|| watch.workers.busy())
    }

    /// Whether the last bio was long.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.long.is_some())
    }

    /// The next bio of this driver is short, and of no turn.
    pub(super) fn forget_long(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.long = None;
        }
    }

    /// Reports the load to the shard while this thread is busy; `at_once_bytes` go to the cipher
    /// now. Does nothing after a short bio.
    pub(super) fn look(&mut self, at_once_bytes: u64) {
        if let Some(watch) = &mut self.watch
            && let Some(is_awaited) = watch.long
        {
            self.shard.set_load(Load { at_once_bytes, is_awaited, ..watch.now() });
        }
    }

    /// Ends the turn of the submitter, which now looks for completions.
    #[inline]
    pub(super) fn end_turn(&mut self) {
        if self.turn().is_some_and(Turn::end) {
            self.look_at_turn();
        }
    }

    /// The submitter is about to sleep.
    pub(crate) fn on_sleep(&mut self) {
        if self.turn().is_some_and(Turn::sleep) {
            self.look_at_turn();
        }
        self.executor.count_cpus();
    }

    fn turn(&mut self) -> Option<&mut Turn> {
        self.watch.as_mut()?.turn.as_mut()
    }

    #[inline(never)]
    pub(super) fn look_at_turn(&mut self) {
        if let Some(watch) = &mut self.watch {
            self.shard.set_load(watch.now());
        }
    }

    /// Bios of this driver always run inline, regardless of length.
    pub(crate) fn stay_inline(&mut self) {
        self.watch = None;
        self.shard.set_load(Load { idle_cpus: 0, ..Load::default() });
    }

    /// Does the work of a worker, or waits for one a moment, instead of a sleep; returns whether
    /// that has brought something. Requires an empty plug.
    pub(crate) fn help(&mut self) -> bool {
        if self.run_waiting() {
            return true;
        }
        let has_come = self.is_steady() && self.executor.spin();
        if has_come {
            self.poll();
        }
        has_come
    }

    /// Continues all that can continue without a wait, for a front end that looks again and again.
    /// It may sleep after that: nothing is left that only this thread would do.
    pub(crate) fn advance(&mut self) {
        loop {
            self.poll();
            self.unplug();
            if !self.run_waiting() {
                break;
            }
        }
    }

    /// Does the work of a worker, because a small batch wakes none; returns whether there was some.
    /// The bios that continue by it stay plugged.
    fn run_waiting(&mut self) -> bool {
        let is_counted = self.is_steady();
        let has_run = self.executor.help(is_counted);
        if has_run {
            self.poll();
        }
        has_run
    }

    fn is_steady(&mut self) -> bool {
        self.turn().is_some_and(|turn| turn.is_steady())
    }
}
