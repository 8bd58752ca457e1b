//! The rule that names the limit of a volume's rate.
//!
//! ```text
//! a connection is idle for half of the time ───────────────────> the client
//! no queue of a device, and no stage has a request for half of the time:
//! the connection's thread has a CPU, or waits for one ───────> receiving and replying
//! otherwise ─────────────────────────────────────────────────> the client, in bursts
//! otherwise: the stage with the longest time
//! throttle ──────────────────────────────────────────────────> the export's rate limit
//! queue        of a device; ignored without one ─────────────> queue, tags and elevator
//!     cipher-wait  workers are busy: one, or several ────────────> the workers
//! idle, or more workers than CPUs for ciphers ───> the hand-over
//!     cipher ────────────────────────────────────────────────────> the cipher
//!     submit-wait ───────────────────────────────────────────────> submission
//!     device ────────────────────────────────────────────────────> the device
//! completion   workers are busy: waiting threads help them ──> the workers
//! idle ─────────────────────────────────────────> completion
//! ```
//! Without a queue of a device, the time in `queue` is spent in the connection's inbox, behind
//! other requests of the connection: its thread is busy, and the other stages name its work.
//!
//! Times are those of requests. The number in flight follows from them (Little's law: rate times
//! mean time). The kernel reports whether a thread is busy: it has a CPU, or waits for one.

use blockyard_host::stages::Stage;
use serde::{Deserialize, Serialize};

use crate::size::human_time;

/// A connection with a smaller mean of requests in flight is idle. Ours.
const BUSY_IN_FLIGHT: f64 = 0.5;
/// Threads that are busy for a smaller share of the time are not the limit. Ours.
const BUSY_THREADS: f64 = 0.5;
/// A faster cipher is not worth a hand-over to a worker: half of the estimated round trip
/// (docs/pipelines.md).
const CIPHER_FOR_WORKERS_NS: f64 = 20_000.0;
/// From this share of a request's time on, the wait behind other requests of the connection is
/// mentioned. Ours.
const MENTIONED_QUEUE: f64 = 0.1;

/// Measurements of a volume over some time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Mean times of a request, in the order of [`Stage::ALL`].
    pub(crate) stages_ns: [f64; Stage::ALL.len()],
    /// Mean of requests in flight per connection.
    pub(crate) in_flight: f64,
    /// Share of time in which a connection's thread has a CPU or waits for one.
    pub(crate) connections_run: f64,
    /// Number of worker threads.
    pub(crate) workers: u64,
    /// Share of time in which a worker has a CPU or waits for one.
    pub(crate) workers_run: f64,
    /// Requests pass the queue of a device.
    pub(crate) has_device_queue: bool,
}

/// The limit of a volume's rate, the evidence, and a change that would raise it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The stage or resource that bounds the rate.
    pub party: Party,
    /// Evidence: one sentence.
    pub saw: String,
    /// Change of a setting that would raise the rate.
    pub change: String,
}

/// Stages and resources that can bound a volume's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Party {
    /// The volume waits for requests.
    Client,
    /// System calls on the socket of a connection.
    Receiving,
    /// The rate limit of the export.
    Throttle,
    /// The queue of a device, its tags and its elevator.
    Queue,
    /// The thread that submits.
    Submission,
    /// The cipher, on the threads of connections.
    Cipher,
    /// The cipher, on one worker.
    OneWorker,
    /// The cipher, on several workers.
    AllWorkers,
    /// The hand-over to a worker and back.
    HandOver,
    /// The device.
    Device,
    /// The thread that takes completions.
    Completion,
}

impl Party {
    const ALL: [Self; 11] = [
        Self::Client,
        Self::Receiving,
        Self::Throttle,
        Self::Queue,
        Self::Submission,
        Self::Cipher,
        Self::OneWorker,
        Self::AllWorkers,
        Self::HandOver,
        Self::Device,
        Self::Completion,
    ];

    /// Its name in JSON and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "the client",
            Self::Receiving => "receiving and replying",
            Self::Throttle => "the export's rate limit",
            Self::Queue => "queue, tags and elevator",
            Self::Submission => "submission",
            Self::Cipher => "the cipher",
            Self::OneWorker => "the cipher, on a single worker",
            Self::AllWorkers => "the cipher, on all workers",
            Self::HandOver => "the hand-over to workers",
            Self::Device => "the device",
            Self::Completion => "completion",
        }
    }
}

impl From<Party> for &'static str {
    fn from(party: Party) -> Self {
        party.name()
    }
}

impl TryFrom<String> for Party {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|party| party.name() == name);
        found.ok_or_else(|| format!("{name:?} is no known limit of a volume"))
    }
}

fn of_client(saw: String) -> Limit {
    let change = "more requests at a time, or more connections: the volume waits for work";
    Limit { party: Party::Client, saw, change: change.to_owned() }
}

/// The resource behind a stage, and the change that would shorten it.
fn of_stage(stage: Stage) -> (Party, &'static str) {
    match stage {
        Stage::Throttle => (Party::Throttle, "a higher limit of the export's rate"),
        Stage::Queue => (
            Party::Queue,
            "a greater queue depth, the elevator none, or fewer requests at a time: more do not \
             make it faster",
        ),
        Stage::CipherWait => (
            Party::Submission,
            "more connections: one thread polls the device and runs the ciphers",
        ),
        Stage::Cipher => (
            Party::Cipher,
            "more connections, each has a thread; 4096-byte encryption sectors if they are \
             shorter; cipher threads for long requests",
        ),
        Stage::SubmitWait => (
            Party::Submission,
            "a pipeline without a writing thread (the pipelines adaptive, E and inline)",
        ),
        Stage::Device => (
            Party::Device,
            "a faster device, or more requests at a time as long as its time does not grow",
        ),
        Stage::Completion => (
            Party::Completion,
            "more connections: the thread that replies is busy with other requests",
        ),
    }
}

impl Load {
    /// The limit; `None` without requests.
    pub(crate) fn limit(&self) -> Option<Limit> {
        if self.total_ns() <= 0.0 {
            return None;
        }
        let Self { in_flight, workers, .. } = *self;
        if in_flight < BUSY_IN_FLIGHT {
            let saw = format!("a connection has {in_flight:.2} requests in flight on average");
            return Some(of_client(saw));
        }
        if !self.has_device_queue && self.worked_at() < BUSY_IN_FLIGHT {
            return Some(self.beside_the_stages());
        }
        let stage = self.longest();
        let mut saw = self.share_of(stage);
        let (party, change) = match stage {
            Stage::CipherWait | Stage::Completion if workers > 0 => {
                let percent = self.workers_run * 100.0;
                saw.push_str(&format!("; {workers} worker(s), busy {percent:.0} % of the time"));
                self.waits_for_workers(stage)
            }
            _ => of_stage(stage),
        };
        Some(Limit { party, saw, change: change.to_owned() })
    }

    /// Requests wait in the inbox, and for half of the time no other stage has one.
    fn beside_the_stages(&self) -> Limit {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let worked = percent(self.worked_at());
        let runs = percent(self.connections_run);
        if self.connections_run < BUSY_THREADS {
            let saw = format!(
                "requests come in bursts: the connection's thread has something to do {runs} of \
                 the time"
            );
            return of_client(saw);
        }
        let saw = format!(
            "the connection's thread is busy {runs} of the time, and with a request's stages \
             {worked}"
        );
        let change = "longer requests, or more connections: each has a thread";
        Limit { party: Party::Receiving, saw, change: change.to_owned() }
    }

    /// Before or after a worker. A mount's thread helps the workers meanwhile.
    fn waits_for_workers(&self, stage: Stage) -> (Party, &'static str) {
        let pays = self.of(Stage::Cipher) >= CIPHER_FOR_WORKERS_NS;
        match (pays && self.workers_run >= BUSY_THREADS, self.workers) {
            (false, _) if stage == Stage::Completion => of_stage(stage),
            (false, _) => (
                Party::HandOver,
                "the pipeline adaptive or inline: a hand-over takes longer than the cipher",
            ),
            (true, 1) => (Party::OneWorker, "more cipher threads, or the pipeline inline"),
            (true, _) => (Party::AllWorkers, "more cipher threads if there are idle CPUs"),
        }
    }

    fn total_ns(&self) -> f64 {
        self.stages_ns.iter().sum()
    }

    fn of(&self, stage: Stage) -> f64 {
        self.stages_ns[stage as usize]
    }

    /// Time in the inbox, behind other requests of the connection.
    fn inbox_ns(&self) -> f64 {
        if self.has_device_queue { 0.0 } else { self.of(Stage::Queue) }
    }

    /// Mean number of a connection's requests outside its inbox.
    fn worked_at(&self) -> f64 {
        self.in_flight * (1.0 - self.inbox_ns() / self.total_ns())
    }

    fn longest(&self) -> Stage {
        let counts = |stage: &Stage| *stage != Stage::Queue || self.has_device_queue;
        let longest = Stage::ALL
            .into_iter()
            .filter(counts)
            .max_by(|one, other| self.of(*one).total_cmp(&self.of(*other)));
        longest.expect("there are stages")
    }

    /// The share of a stage as a sentence, with the wait in the inbox.
    fn share_of(&self, stage: Stage) -> String {
        let total_ns = self.total_ns();
        let inbox_ns = self.inbox_ns();
        let rest_ns = total_ns - inbox_ns;
        let percent = self.of(stage) / rest_ns * 100.0;
        let name = stage.name();
        let rest = human_time(rest_ns);
        let mut saw = format!("{percent:.0} % of a request's {rest} is {name}");
        if inbox_ns > MENTIONED_QUEUE * total_ns {
            let inbox = human_time(inbox_ns);
            saw.push_str(&format!("; before, it waits {inbox} behind others of its connection"));
        }
        saw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume with a queue and one connection; all threads are busy.
    fn load(stages_us: [f64; 6], in_flight: f64, workers: u64) -> Load {
        let [queue, cipher_wait, cipher, submit_wait, device, completion] = stages_us;
        let stages_us = [0.0, queue, cipher_wait, cipher, submit_wait, device, completion];
        Load {
            stages_ns: stages_us.map(|us| us * 1e3),
            in_flight,
            connections_run: 0.9,
            workers,
            workers_run: 0.9,
            has_device_queue: true,
        }
    }

    fn party(load: &Load) -> &'static str {
        load.limit().map_or("nobody", |limit| limit.party.name())
    }

    #[test]
    fn every_party_is_named_by_what_is_longest_before_it() {
        for (stages_us, in_flight, workers, is) in [
            ([0.0; 6], 0.0, 0, "nobody"),
            ([0.0, 0.0, 1.0, 0.0, 9.0, 0.0], 0.2, 0, "the client"),
            ([90.0, 0.0, 1.0, 0.0, 9.0, 0.0], 8.0, 0, "queue, tags and elevator"),
            ([0.0, 60.0, 30.0, 0.0, 9.0, 0.0], 4.0, 1, "the cipher, on a single worker"),
            ([0.0, 60.0, 30.0, 0.0, 9.0, 0.0], 8.0, 2, "the cipher, on all workers"),
            ([0.0, 60.0, 10.0, 0.0, 9.0, 9.0], 1.0, 1, "the hand-over to workers"),
            ([0.0, 60.0, 10.0, 0.0, 9.0, 9.0], 1.0, 0, "submission"),
            ([1.0, 0.0, 9.0, 0.0, 0.0, 1.0], 1.0, 0, "the cipher"),
            ([1.0, 0.0, 2.0, 8.0, 3.0, 1.0], 1.0, 0, "submission"),
            ([1.0, 0.0, 1.0, 0.0, 8.0, 1.0], 1.0, 0, "the device"),
            ([1.0, 0.0, 1.0, 0.0, 1.0, 8.0], 1.0, 0, "completion"),
            ([0.0, 10.0, 40.0, 0.0, 0.0, 50.0], 4.0, 1, "the cipher, on a single worker"),
            ([0.0, 1.0, 4.0, 0.0, 0.0, 50.0], 4.0, 1, "completion"),
        ] {
            assert_eq!(party(&load(stages_us, in_flight, workers)), is, "{stages_us:?}");
        }
    }

    #[test]
    fn wait_for_tokens_names_the_rate_limit_with_and_without_a_queue_of_a_device() {
        for has_device_queue in [true, false] {
            let mut load =
                Load { has_device_queue, ..load([5.0, 0.0, 9.0, 0.0, 9.0, 1.0], 8.0, 0) };
            load.stages_ns[Stage::Throttle as usize] = 90e3;
            assert_eq!(party(&load), "the export's rate limit");
        }
    }

    #[test]
    fn party_is_its_name_in_json() {
        for party in Party::ALL {
            let json = serde_json::to_string(&party).unwrap();
            assert_eq!(json, format!("{:?}", party.name()));
            assert_eq!(serde_json::from_str::<Party>(&json).unwrap(), party);
        }
        assert!(serde_json::from_str::<Party>("\"the weather\"").is_err());
    }

    #[test]
    fn workers_that_are_idle_are_not_what_is_waited_for() {
        for (stages_us, is) in [
            ([0.0, 60.0, 30.0, 0.0, 9.0, 0.0], "the hand-over to workers"),
            ([0.0, 10.0, 40.0, 0.0, 0.0, 50.0], "completion"),
        ] {
            let idle = Load { workers_run: 0.2, ..load(stages_us, 4.0, 2) };
            assert_eq!(party(&idle), is, "{stages_us:?}");
        }
    }

    #[test]
    fn without_a_queue_of_a_device_what_waits_is_in_front_of_its_own_connection() {
        let of = |stages_us, in_flight| {
            let load = Load { has_device_queue: false, ..load(stages_us, in_flight, 0) };
            load.limit().unwrap()
        };
        let busy = of([90.0, 0.0, 6.0, 0.0, 3.0, 1.0], 10.0);
        assert_eq!(busy.party, Party::Cipher);
        let saw = "60 % of a request's 10.0 us is cipher; before, it waits 90.0 us behind others \
                   of its connection";
        assert_eq!(busy.saw, saw);
        assert_eq!(of([5.0, 0.0, 3.0, 0.0, 60.0, 37.0], 1.0).party, Party::Device);
        assert!(!of([5.0, 0.0, 3.0, 0.0, 60.0, 37.0], 1.0).saw.contains("connection"));
    }

    #[test]
    fn thread_that_is_in_no_stage_is_at_its_socket_or_waits_for_the_next_burst() {
        let stages_us = [95.0, 0.0, 4.0, 0.0, 1.0, 0.0];
        let busy = Load { has_device_queue: false, ..load(stages_us, 6.0, 0) };
        let saw = busy.limit().unwrap();
        assert_eq!(saw.party, Party::Receiving);
        assert!(saw.saw.contains("busy 90 % of the time") && saw.saw.ends_with("30 %"), "{saw:?}");
        assert_eq!(party(&Load { connections_run: 0.2, ..busy }), "the client");
    }

    #[test]
    fn limits_have_the_share_the_time_and_the_workers() {
        let limit = load([0.0, 60.0, 30.0, 0.0, 10.0, 0.0], 3.0, 1).limit().unwrap();
        let saw = "60 % of a request's 100 us is cipher-wait; 1 worker(s), busy 90 % of the time";
        assert_eq!(limit.saw, saw);
    }
}
