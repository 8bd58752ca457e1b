//! Who limits a volume: the rule behind the last lines of `bench`, `status` and `top`.
//!
//! ```text
//!   a connection has nothing to do half of the time ─────────────> the client
//!   no queue of a device, and nobody works at a request then:
//!     the connection's thread has a CPU, or waits for one ───────> receiving and replying
//!     it has not ────────────────────────────────────────────────> the client, in bursts
//!   else: the stage in which requests are longest
//!     queue        of a device; else it is passed over ──────────> queue, tags and elevator
//!     cipher-wait  workers are busy: one, or several ────────────> the workers
//!                  they are not, or with more than the cipher ───> the hand-over
//!     cipher ────────────────────────────────────────────────────> the cipher
//!     submit-wait ───────────────────────────────────────────────> submission
//!     device ────────────────────────────────────────────────────> the device
//!     completion   workers are busy: who waits helps them ───────> the workers
//!                  they are not ─────────────────────────────────> completion
//! ```
//! Without a queue of a device, what is in `queue` lies in the inbox of its connection, behind the
//! others of that connection: its thread is busy, and the other stages say with what.
//!
//! Times are those of requests. How many are in flight follows from them (Little's law: rate
//! times mean time). Whether a thread is busy the kernel knows: it has a CPU, or waits for one.

use blockyard_host::stages::Stage;

use crate::size::human_time;

/// A connection that has less in flight than this, in the mean, is waited for. Ours.
const BUSY_IN_FLIGHT: f64 = 0.5;
/// Threads that are busy for less than this share of the time are not what is waited for. Ours.
const BUSY_THREADS: f64 = 0.5;
/// A cipher that takes less does not pay for the way to a worker: half of what the way there and
/// back is taken to cost (docs/pipelines.md).
const HAND_OVER_NS: f64 = 20_000.0;
/// Waiting for others of the same connection is told from this share of a request's time on. Ours.
const TOLD_QUEUE: f64 = 0.1;

/// What is known of a volume over some time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Mean times of a request, in the order of [`Stage::ALL`].
    pub(crate) stages_ns: [f64; Stage::ALL.len()],
    /// Requests in flight of each connection, in the mean.
    pub(crate) in_flight: f64,
    /// Share of the time that the thread of one has a CPU or waits for one.
    pub(crate) connections_run: f64,
    /// Threads that run ciphers for others.
    pub(crate) workers: usize,
    /// The same of a worker.
    pub(crate) workers_run: f64,
    /// Requests pass the queue of a device.
    pub(crate) has_device_queue: bool,
}

/// Who limits, why we think so, and what would change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// In one or a few words.
    pub(crate) party: &'static str,
    pub(crate) saw: String,
    pub(crate) change: &'static str,
}

/// Names it; nobody if nothing was asked for.
pub(crate) fn limit(seen: &Seen) -> Option<Limit> {
    if seen.total_ns() <= 0.0 {
        return None;
    }
    let Seen { in_flight, workers, .. } = *seen;
    if in_flight < BUSY_IN_FLIGHT {
        let saw = format!("a connection has {in_flight:.2} requests in flight in the mean");
        return Some(of_client(saw));
    }
    if !seen.has_device_queue && seen.worked_at() < BUSY_IN_FLIGHT {
        return Some(beside_the_stages(seen));
    }
    let stage = seen.longest();
    let mut saw = seen.share_of(stage);
    let (party, change) = match stage {
        Stage::CipherWait | Stage::Completion if workers > 0 => {
            let percent = seen.workers_run * 100.0;
            saw.push_str(&format!("; {workers} worker(s), busy {percent:.0} % of the time"));
            waits_for_workers(stage, seen)
        }
        _ => of_stage(stage),
    };
    Some(Limit { party, saw, change })
}

fn of_client(saw: String) -> Limit {
    let change = "more requests at a time, or more connections: the volume waits for work";
    Limit { party: "the client", saw, change }
}

/// Requests lie in the inbox, and for half of the time none is in any other stage.
fn beside_the_stages(seen: &Seen) -> Limit {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let (worked, runs) = (percent(seen.worked_at()), percent(seen.connections_run));
    if seen.connections_run < BUSY_THREADS {
        let saw = format!(
            "requests come in bursts: the connection's thread has something to do {runs} of the \
             time"
        );
        return of_client(saw);
    }
    let saw = format!(
        "the connection's thread is busy {runs} of the time, and with a request's stages {worked}"
    );
    let change = "longer requests, or more connections: each has a thread";
    Limit { party: "receiving and replying", saw, change }
}

/// Who is behind a stage, and what would change it.
fn of_stage(stage: Stage) -> (&'static str, &'static str) {
    match stage {
        Stage::Queue => (
            "queue, tags and elevator",
            "a greater --queue-depth, --elevator none, or fewer requests at a time: more do not \
             make it faster",
        ),
        Stage::CipherWait => {
            ("submission", "more connections: one thread looks at the device and runs the ciphers")
        }
        Stage::Cipher => (
            "the cipher",
            "more connections, each has a thread; 4096-byte encryption sectors if they are \
             shorter; --threads for long requests",
        ),
        Stage::SubmitWait => {
            ("submission", "a pipeline without a writing thread (--pipeline adaptive, E or inline)")
        }
        Stage::Device => (
            "the device",
            "a faster device, or more requests at a time as long as its time does not grow",
        ),
        Stage::Completion => {
            ("completion", "more connections: the thread that replies is busy with other requests")
        }
    }
}

/// In front of a worker, or behind it: the thread that is to go on with a request helps the workers
/// instead of waiting for them.
fn waits_for_workers(stage: Stage, seen: &Seen) -> (&'static str, &'static str) {
    let pays = seen.of(Stage::Cipher) >= HAND_OVER_NS;
    match (pays && seen.workers_run >= BUSY_THREADS, seen.workers) {
        (false, _) if stage == Stage::Completion => of_stage(stage),
        (false, _) => (
            "the hand-over to workers",
            "--pipeline adaptive or inline: the way to a worker takes longer than the cipher",
        ),
        (true, 1) => {
            ("the cipher, on a single worker", "more workers (--threads), or --pipeline inline")
        }
        (true, _) => {
            ("the cipher, on all workers", "more workers (--threads) if there are idle CPUs")
        }
    }
}

impl Seen {
    fn total_ns(&self) -> f64 {
        self.stages_ns.iter().sum()
    }

    fn of(&self, stage: Stage) -> f64 {
        self.stages_ns[stage as usize]
    }

    /// Time in the inbox, behind others of the same connection.
    fn inbox_ns(&self) -> f64 {
        if self.has_device_queue { 0.0 } else { self.of(Stage::Queue) }
    }

    /// Requests of a connection that are not in its inbox, in the mean.
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

    /// As a sentence, with what a request waited in the inbox.
    fn share_of(&self, stage: Stage) -> String {
        let (total_ns, inbox_ns) = (self.total_ns(), self.inbox_ns());
        let rest_ns = total_ns - inbox_ns;
        let percent = self.of(stage) / rest_ns * 100.0;
        let (name, rest) = (stage.name(), human_time(rest_ns));
        let mut saw = format!("{percent:.0} % of a request's {rest} is {name}");
        if inbox_ns > TOLD_QUEUE * total_ns {
            let inbox = human_time(inbox_ns);
            saw.push_str(&format!("; before, it waits {inbox} for others of its connection"));
        }
        saw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a volume with a queue, and one connection; all threads are busy.
    fn seen(stages_us: [f64; 6], in_flight: f64, workers: usize) -> Seen {
        Seen {
            stages_ns: stages_us.map(|us| us * 1e3),
            in_flight,
            connections_run: 0.9,
            workers,
            workers_run: 0.9,
            has_device_queue: true,
        }
    }

    fn party(seen: &Seen) -> &'static str {
        limit(seen).map_or("nobody", |limit| limit.party)
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
            assert_eq!(party(&seen(stages_us, in_flight, workers)), is, "{stages_us:?}");
        }
    }

    #[test]
    fn workers_that_are_idle_are_not_what_is_waited_for() {
        for (stages_us, is) in [
            ([0.0, 60.0, 30.0, 0.0, 9.0, 0.0], "the hand-over to workers"),
            ([0.0, 10.0, 40.0, 0.0, 0.0, 50.0], "completion"),
        ] {
            let idle = Seen { workers_run: 0.2, ..seen(stages_us, 4.0, 2) };
            assert_eq!(party(&idle), is, "{stages_us:?}");
        }
    }

    #[test]
    fn without_a_queue_of_a_device_what_waits_is_in_front_of_its_own_connection() {
        let of = |stages_us, in_flight| {
            let seen = Seen { has_device_queue: false, ..seen(stages_us, in_flight, 0) };
            limit(&seen).unwrap()
        };
        let busy = of([90.0, 0.0, 6.0, 0.0, 3.0, 1.0], 10.0);
        assert_eq!(busy.party, "the cipher");
        let saw = "60 % of a request's 10.0 us is cipher; before, it waits 90.0 us for others of \
                   its connection";
        assert_eq!(busy.saw, saw);
        assert_eq!(of([5.0, 0.0, 3.0, 0.0, 60.0, 37.0], 1.0).party, "the device");
        assert!(!of([5.0, 0.0, 3.0, 0.0, 60.0, 37.0], 1.0).saw.contains("connection"));
    }

    #[test]
    fn thread_that_is_in_no_stage_is_at_its_socket_or_waits_for_the_next_burst() {
        let stages_us = [95.0, 0.0, 4.0, 0.0, 1.0, 0.0];
        let busy = Seen { has_device_queue: false, ..seen(stages_us, 6.0, 0) };
        let saw = limit(&busy).unwrap();
        assert_eq!(saw.party, "receiving and replying");
        assert!(saw.saw.contains("busy 90 % of the time") && saw.saw.ends_with("30 %"), "{saw:?}");
        assert_eq!(party(&Seen { connections_run: 0.2, ..busy }), "the client");
    }

    #[test]
    fn what_was_seen_has_the_share_the_time_and_the_workers() {
        let limit = limit(&seen([0.0, 60.0, 30.0, 0.0, 10.0, 0.0], 3.0, 1)).unwrap();
        let saw = "60 % of a request's 100 us is cipher-wait; 1 worker(s), busy 90 % of the time";
        assert_eq!(limit.saw, saw);
    }
}
