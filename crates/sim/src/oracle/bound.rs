//! How long a request may be passed by others: each elevator's bound, watched from outside.
//!
//! The pages of the elevators state their guarantees in requests or batches that go before a late
//! one (`docs/elevators`), cfq in time. Here they are loose by a factor of `SLACK`: what counts
//! is that nobody is forgotten, and the exact bounds are tested at the elevators themselves. A
//! request is found wanting when more others than its bound were given to the device *and* more
//! time passed than its bound; a bound in one of the two has zero for the other.
//!
//! Where an elevator promises nothing there is no bound: between priority classes, and with
//! `writes_starved=0` or `starved_after=0`.

use blockyard_engine::bio::{Bio, Op};
use blockyard_engine::elevator::{ElevatorType, Generation};
use blockyard_engine::mq::QueueConfig;
use blockyard_engine::time::Nanos;

use super::{Finding, must};

/// How loose the bounds are.
const SLACK: u64 = 4;

/// An elevator and the values of its tunables.
#[derive(Clone)]
pub struct Settings {
    /// Which one.
    pub elevator: &'static ElevatorType,
    /// The tunables that were set.
    pub values: Vec<(&'static str, u64)>,
}

impl Settings {
    /// The value of a tunable.
    ///
    /// # Panics
    /// When the elevator has no such tunable.
    #[must_use]
    pub fn value(&self, name: &str) -> u64 {
        let set = self.values.iter().find(|(set, _)| *set == name).map(|(_, value)| *value);
        let default = || {
            let tunable = self.elevator.tunables.iter().find(|tunable| tunable.name == name);
            tunable.expect("only its own tunables are asked for").default
        };
        set.unwrap_or_else(default)
    }

    fn time(&self, name: &str) -> Nanos {
        Nanos::from_ms(self.value(name))
    }
}

/// What a request waits for at most, once it is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    passed: u64,
    time: Nanos,
}

/// A bio of which something has not been given to the device.
#[derive(Debug)]
struct Waiting {
    bio: Bio,
    /// Not while it is parked or in the plug of its submitter.
    since: Option<Nanos>,
    sectors_left: u64,
    /// Once it is late: requests given to the device by then, when, its bound.
    late: Option<(u64, Nanos, Bound)>,
}

/// Whether an elevator has chosen a request. Flushes, and data after a flush, go past it.
fn is_chosen(pieces: &[Bio]) -> bool {
    pieces.first().is_some_and(|piece| !piece.preflush)
}

fn is_plain(bio: &Bio) -> bool {
    bio.op != Op::Flush && !bio.fua && !bio.preflush
}

/// Watches who waits.
pub struct Waits {
    settings: Settings,
    config: QueueConfig,
    /// Whether there is a bound at all.
    watches: bool,
    contexts: u64,
    waiting: Vec<Waiting>,
    /// Requests chosen and given to the device, refused ones not counted.
    issued: u64,
    /// The longest that the device took for a request.
    service_max: Nanos,
}

impl Waits {
    /// Watches a queue with this many io-contexts. With several classes of priority there is no
    /// bound.
    #[must_use]
    pub fn new(settings: Settings, config: QueueConfig, contexts: u64, one_class: bool) -> Self {
        let watches = match settings.elevator.name {
            "mq-deadline" => one_class && settings.value("writes_starved") > 0,
            "deadline-prio" => one_class,
            "cfq" => one_class && settings.value("starved_after") > 0,
            // The software queues of several CPUs are served in their order.
            "none" => config.cpus == 1 || config.generation == Generation::Multi,
            _ => true,
        };
        Self {
            settings,
            config,
            watches,
            contexts,
            waiting: Vec::new(),
            issued: 0,
            service_max: Nanos(0),
        }
    }

    /// Watches nobody.
    #[must_use]
    pub fn nothing(settings: Settings, config: QueueConfig) -> Self {
        Self { watches: false, ..Self::new(settings, config, 1, false) }
    }

    /// A bio is about to be submitted.
    pub fn submitted(&mut self, bio: &Bio) {
        if self.watches {
            let sectors_left = bio.len.0;
            self.waiting.push(Waiting { bio: *bio, since: None, sectors_left, late: None });
        }
    }

    /// It waits from now on: it is not parked, and in no plug of its submitter. What belongs to a
    /// flush waits for other things, too.
    pub fn waits(&mut self, now: Nanos, user: u64) {
        let waiting = self.waiting.iter_mut().find(|waiting| waiting.bio.user == user);
        if let Some(waiting) = waiting.filter(|waiting| is_plain(&waiting.bio)) {
            waiting.since = Some(now);
        }
    }

    /// It has ended, perhaps without having been at the device.
    pub fn ended(&mut self, user: u64) {
        self.waiting.retain(|waiting| waiting.bio.user != user);
    }

    /// The device has got these parts of bios as one request.
    ///
    /// # Errors
    /// When another one has been passed for too long.
    pub fn issued(&mut self, now: Nanos, pieces: &[Bio]) -> Result<(), Finding> {
        if !self.watches {
            return Ok(());
        }
        self.issued += u64::from(is_chosen(pieces));
        for piece in pieces {
            let place = self.waiting.iter().position(|waiting| waiting.bio.user == piece.user);
            let Some(place) = place else { continue };
            let waiting = &mut self.waiting[place];
            waiting.sectors_left = waiting.sectors_left.saturating_sub(piece.len.0);
            if waiting.sectors_left == 0 {
                self.waiting.remove(place);
            }
        }
        self.look(now)
    }

    /// The device has refused these: they will be issued again.
    pub fn refused(&mut self, pieces: &[Bio]) {
        self.issued -= u64::from(self.watches && is_chosen(pieces));
    }

    /// The device has had a request for so long.
    pub fn served(&mut self, time: Nanos) {
        self.service_max = self.service_max.max(time);
    }

    /// The device is gone, and everybody with it.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }

    fn look(&mut self, now: Nanos) -> Result<(), Finding> {
        let piece_sectors = u64::from(self.config.limits.max_sectors);
        let mut before = 0;
        for place in 0..self.waiting.len() {
            let waiting = &self.waiting[place];
            before += waiting.sectors_left.div_ceil(piece_sectors);
            let Some(since) = waiting.since else { continue };
            match waiting.late {
                None if now >= since + self.patience(&waiting.bio) => {
                    let all = self.waiting.iter();
                    let all = all.map(|other| other.sectors_left.div_ceil(piece_sectors)).sum();
                    let bound = self.bound(before.max(1), all);
                    self.waiting[place].late = Some((self.issued, now, bound));
                }
                Some((issued, then, bound)) => {
                    let passed = self.issued.saturating_sub(issued);
                    let time = now.since(then);
                    must!(
                        Wait,
                        passed <= bound.passed || time <= bound.time,
                        "{} lets {passed} pass in {} ms since it was late, {bound:?}: {:?}",
                        self.settings.elevator.name,
                        time.0 / 1_000_000,
                        waiting.bio
                    );
                }
                None => {}
            }
        }
        Ok(())
    }

    /// When a bio is late.
    fn patience(&self, bio: &Bio) -> Nanos {
        let settings = &self.settings;
        let expire = match (settings.elevator.name, bio.op) {
            ("deadline" | "mq-deadline", Op::Read) => settings.time("read_expire"),
            ("deadline" | "mq-deadline", _) => settings.time("write_expire"),
            ("deadline-prio", _) => settings.time("sync_expire").max(settings.time("async_expire")),
            ("cfq", _) => settings.time("fifo_expire_sync").max(settings.time("fifo_expire_async")),
            _ => Nanos(0),
        };
        // A plug of the whole queue, a tick, and the retry after a refusal.
        expire + self.config.tick + Nanos::from_ms(6)
    }

    /// With so many requests before it, itself included, of so many.
    fn bound(&self, before: u64, all: u64) -> Bound {
        let settings = &self.settings;
        let tags = u64::from(self.config.queue_depth) * u64::from(self.config.hw_queues);
        let requests = |passed: u64| Bound {
            passed: passed.saturating_add(all + tags).saturating_mul(SLACK),
            time: Nanos(0),
        };
        match settings.elevator.name {
            "deadline" | "mq-deadline" => {
                let (starved, batch) =
                    (settings.value("writes_starved"), settings.value("fifo_batch"));
                requests((before + 1).saturating_mul(starved + 2).saturating_mul(batch))
            }
            "deadline-prio" => {
                let batches = (before + 1) * (settings.value("async_starved") + 2);
                let time = settings.time("quantum") + self.service_max;
                let time = Nanos(time.0.saturating_mul(batches * SLACK));
                Bound { time, ..requests(batches.saturating_mul(settings.value("fifo_batch"))) }
            }
            "cfq" => {
                let slice = settings.value("slice_sync").max(settings.value("slice_async")) * 9 / 5;
                let idle = settings.value("slice_idle");
                let turn = slice + idle + 3 * self.service_max.0.div_ceil(1_000_000);
                let workload = settings.value("target_latency").max(2 * idle);
                let queues = self.contexts + 8;
                let round = (queues + 1) * (turn + workload)
                    + queues * 7 / 5 * settings.value("slice_sync")
                    + slice
                    + settings.value("starved_after");
                let time = Nanos::from_ms((before + 1).saturating_mul(round).saturating_mul(SLACK));
                Bound { passed: 0, time }
            }
            // In the order of arrival; a merge may move a request behind others.
            _ => requests(all),
        }
    }
}

#[cfg(test)]
mod tests;
