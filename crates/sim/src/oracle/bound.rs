//! Bounds on how long a request may be passed by others, per elevator, checked from outside.
//!
//! The elevators' pages state their guarantees as requests or batches before a late request
//! (`docs/elevators`), cfq's as time. Here the bounds are loose by a factor of `SLACK`: the check
//! finds forgotten requests, and the elevators' own tests check the exact bounds. A request
//! violates its bound when more other requests than the bound were issued *and* more time than the
//! bound has passed; a bound in one of the two has zero for the other.
//!
//! Without a guarantee there is no bound: between priority classes, with `writes_starved=0` or
//! `starved_after=0`, and with weight raising. bfq's bound needs a `max_budget`.

use blockyard_engine::bio::{Bio, Op};
use blockyard_engine::elevator::{ElevatorType, Generation};
use blockyard_engine::mq::QueueConfig;
use blockyard_engine::time::Nanos;

use super::{Finding, must};

/// Looseness of the bounds.
const SLACK: u64 = 4;

/// Requests of all batches of kyber.
const KYBER_ROUND: u64 = 26;

/// An elevator and the values of its tunables.
#[derive(Clone)]
pub struct Settings {
    /// Elevator.
    pub elevator: &'static ElevatorType,
    /// Tunables with explicit values.
    pub values: Vec<(&'static str, u64)>,
}

impl Settings {
    /// The value of a tunable.
    ///
    /// # Panics
    /// The elevator has no such tunable.
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

/// Bound of the wait of a late request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    passed: u64,
    time: Nanos,
}

/// A bio that was not completely issued.
#[derive(Debug)]
struct Waiting {
    bio: Bio,
    /// Start of the wait; `None` while it is parked or in its submitter's plug.
    since: Option<Nanos>,
    sectors_left: u64,
    /// Once it is late: number of issued requests at that time, the time, and its bound.
    late: Option<(u64, Nanos, Bound)>,
}

/// Whether an elevator has chosen a request. Flushes, and data after a flush, bypass it.
fn is_chosen(pieces: &[Bio]) -> bool {
    pieces.first().is_some_and(|piece| !piece.preflush)
}

fn is_plain(bio: &Bio) -> bool {
    bio.op != Op::Flush && !bio.fua && !bio.preflush
}

/// Watches waiting bios.
pub struct Waits {
    settings: Settings,
    config: QueueConfig,
    /// Whether there is a bound.
    watches: bool,
    contexts: u64,
    waiting: Vec<Waiting>,
    /// Number of requests that were chosen and issued, without refused ones.
    issued: u64,
    /// Longest service time of the device.
    service_max: Nanos,
    /// Sectors of the largest request.
    largest: u64,
}

impl Waits {
    /// Watches a queue with this many io-contexts. With several priority classes there is no bound.
    #[must_use]
    pub fn new(settings: Settings, config: QueueConfig, contexts: u64, one_class: bool) -> Self {
        let watches = match settings.elevator.name {
            "mq-deadline" => one_class && settings.value("writes_starved") > 0,
            "deadline-prio" => one_class,
            "cfq" => one_class && settings.value("starved_after") > 0,
            "bfq" => {
                let is_steady = settings.value("low_latency") == 0;
                one_class && is_steady && settings.value("max_budget") > 0
            }
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
            largest: 0,
        }
    }

    /// Watches nothing.
    #[must_use]
    pub fn nothing(settings: Settings, config: QueueConfig) -> Self {
        Self { watches: false, ..Self::new(settings, config, 1, false) }
    }

    /// Notes a bio before its submission.
    pub fn submitted(&mut self, bio: &Bio) {
        if self.watches {
            let sectors_left = bio.len.0;
            self.waiting.push(Waiting { bio: *bio, since: None, sectors_left, late: None });
        }
    }

    /// Starts the wait of a bio: it is neither parked nor in its submitter's plug. Bios of a flush
    /// sequence also wait for other events.
    pub fn waits(&mut self, now: Nanos, user: u64) {
        let waiting = self.waiting.iter_mut().find(|waiting| waiting.bio.user == user);
        if let Some(waiting) = waiting.filter(|waiting| is_plain(&waiting.bio)) {
            waiting.since = Some(now);
        }
    }

    /// Notes the end of a bio, possibly without an issue.
    pub fn ended(&mut self, user: u64) {
        self.waiting.retain(|waiting| waiting.bio.user != user);
    }

    /// Notes the issue of these parts of bios as one request.
    ///
    /// # Errors
    /// Another bio has been passed for too long.
    pub fn issued(&mut self, now: Nanos, pieces: &[Bio]) -> Result<(), Finding> {
        if !self.watches {
            return Ok(());
        }
        self.issued += u64::from(is_chosen(pieces));
        self.largest = self.largest.max(pieces.iter().map(|piece| piece.len.0).sum());
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

    /// Notes a refusal: these will be issued again.
    pub fn refused(&mut self, pieces: &[Bio]) {
        self.issued -= u64::from(self.watches && is_chosen(pieces));
    }

    /// Notes the service time of a request.
    pub fn served(&mut self, time: Nanos) {
        self.service_max = self.service_max.max(time);
    }

    /// Removes all bios: the device is gone.
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
                        "{} let {passed} pass in {} ms since it was late, {bound:?}: {:?}",
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

    /// Time after which a bio is late.
    fn patience(&self, bio: &Bio) -> Nanos {
        let settings = &self.settings;
        let expire = match (settings.elevator.name, bio.op) {
            ("deadline" | "mq-deadline", Op::Read) => settings.time("read_expire"),
            ("deadline" | "mq-deadline", _) => settings.time("write_expire"),
            ("deadline-prio", _) => settings.time("sync_expire").max(settings.time("async_expire")),
            ("cfq" | "bfq", _) => {
                settings.time("fifo_expire_sync").max(settings.time("fifo_expire_async"))
            }
            // The predicted time of 256 KiB is at most a service time for each 4 KiB.
            ("adios", op) => {
                let target = match op {
                    Op::Read => "lat_target_read",
                    Op::Write => "lat_target_write",
                    _ => "lat_target_discard",
                };
                Nanos(settings.value(target)) + Nanos(self.service_max.0.saturating_mul(64))
            }
            _ => Nanos(0),
        };
        // A plug of the whole queue, a tick, and the retry after a refusal.
        expire + self.config.tick + Nanos::from_ms(6)
    }

    /// The bound with `before` requests up to this one, of `all`.
    fn bound(&self, before: u64, all: u64) -> Bound {
        let settings = &self.settings;
        let tags = u64::from(self.config.queue_depth) * u64::from(self.config.hw_queues);
        let requests = |passed: u64| Bound {
            passed: passed.saturating_add(all + tags).saturating_mul(SLACK),
            time: Nanos(0),
        };
        match settings.elevator.name {
            "deadline" | "mq-deadline" => {
                let starved = settings.value("writes_starved");
                let batch = settings.value("fifo_batch");
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
            // A domain waits for one of its own requests, or for a batch of each other one. Bios of
            // other CPUs get ahead until the domain's requests become ready. No slack is needed.
            "kyber" => {
                let queue = u64::from(self.config.nr_requests) * u64::from(self.config.hw_queues);
                let passed = (before + queue).saturating_mul(KYBER_ROUND);
                let time = Nanos(self.service_max.0.saturating_mul(passed));
                Bound { passed: passed + all + tags, time }
            }
            // The policy's bound in sectors, with levels from 0 to 7; a request has one at least.
            "bfq" => {
                let queues = self.contexts + 8;
                let turn = settings.value("max_budget").saturating_add(3 * self.largest);
                let sectors = (before * (2 * 8 + 1) * queues).saturating_mul(turn);
                Bound { passed: sectors.saturating_add(all + tags), time: Nanos(0) }
            }
            "adios" => {
                let limits = ["read", "write", "discard"];
                let limits = limits.map(|kind| format!("batch_size_limit_{kind}"));
                requests(all + limits.iter().map(|name| settings.value(name)).sum::<u64>())
            }
            // In the order of arrival; a merge may move a request behind others.
            _ => requests(all),
        }
    }
}

#[cfg(test)]
mod tests;
