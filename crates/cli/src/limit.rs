//! Who limits a volume: the rule behind the last lines of `bench`, `status` and `top`.
//!
//! ```text
//!   a connection has nothing to do half of the time ─────────────> the client
//!   else: the stage in which requests are longest
//!     queue        in front of the device, or of the shard ──────> queue, tags and elevator
//!     cipher-wait  its workers are busy: one, or several ────────> the workers
//!                  they are not ─────────────────────────────────> the hand-over
//!     cipher ────────────────────────────────────────────────────> the cipher
//!     submit-wait ───────────────────────────────────────────────> submission
//!     device ────────────────────────────────────────────────────> the device
//!     completion ────────────────────────────────────────────────> completion
//! ```
//! Times are those of requests. How many are in flight follows from them (Little's law: rate
//! times mean time), and so does how busy workers are: no counter is asked for it.

use blockyard_host::stages::Stage;

use crate::size::human_time;

/// A connection that has less in flight than this, in the mean, is waited for. Ours.
const BUSY_IN_FLIGHT: f64 = 0.5;
/// Workers that are busy for less than this share of the time are not what is waited for. Ours.
const BUSY_WORKERS: f64 = 0.5;

/// What is known of a volume over some time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Mean times of a request, in the order of [`Stage::ALL`].
    pub(crate) stages_ns: [f64; Stage::ALL.len()],
    /// Requests in flight of each connection, in the mean.
    pub(crate) in_flight: f64,
    /// Connections, in the mean.
    pub(crate) connections: f64,
    /// Threads that run ciphers for others.
    pub(crate) workers: usize,
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
    let Seen { stages_ns, in_flight, workers, .. } = *seen;
    let total_ns: f64 = stages_ns.iter().sum();
    if total_ns <= 0.0 {
        return None;
    }
    if in_flight < BUSY_IN_FLIGHT {
        let saw = format!("a connection has {in_flight:.2} requests in flight in the mean");
        let change = "more requests at a time, or more connections: the volume waits for work";
        return Some(Limit { party: "the client", saw, change });
    }
    let longest = Stage::ALL
        .into_iter()
        .max_by(|one, other| stages_ns[*one as usize].total_cmp(&stages_ns[*other as usize]));
    let stage = longest.expect("there are stages");
    let share = stages_ns[stage as usize] / total_ns;
    let mut saw = format!(
        "{:.0} % of a request's {} is {}",
        share * 100.0,
        human_time(total_ns),
        stage.name(),
    );
    let (party, change) = match stage {
        Stage::CipherWait if workers > 0 => {
            let busy = seen.workers_busy();
            saw.push_str(&format!("; {workers} worker(s), busy {:.0} % of the time", busy * 100.0));
            waits_for_workers(workers, busy)
        }
        _ => of_stage(stage),
    };
    Some(Limit { party, saw, change })
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
            "more connections, each has a thread; 4096-byte encryption sectors; --threads for long \
             requests",
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

fn waits_for_workers(workers: usize, busy: f64) -> (&'static str, &'static str) {
    match workers {
        _ if busy < BUSY_WORKERS => (
            "the hand-over to workers",
            "--pipeline adaptive or inline: the way to a worker takes longer than the cipher",
        ),
        1 => ("the cipher, on a single worker", "more workers (--threads), or --pipeline inline"),
        _ => ("the cipher, on all workers", "more workers (--threads) if there are idle CPUs"),
    }
}

impl Seen {
    /// Share of the time that a worker is in the cipher, if the workers run all of it.
    fn workers_busy(&self) -> f64 {
        let total_ns: f64 = self.stages_ns.iter().sum();
        let in_cipher = self.stages_ns[Stage::Cipher as usize] / total_ns;
        self.in_flight * self.connections * in_cipher / self.workers as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Microseconds of each stage, requests in flight, workers: who it is.
    fn party(stages_us: [f64; 6], in_flight: f64, workers: usize) -> &'static str {
        let stages_ns = stages_us.map(|us| us * 1e3);
        let seen = Seen { stages_ns, in_flight, connections: 1.0, workers };
        limit(&seen).map_or("nobody", |limit| limit.party)
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
        ] {
            assert_eq!(party(stages_us, in_flight, workers), is, "{stages_us:?}");
        }
    }

    #[test]
    fn what_was_seen_has_the_share_the_time_and_the_workers() {
        let stages_ns = [0.0, 60e3, 30e3, 0.0, 10e3, 0.0];
        let seen = Seen { stages_ns, in_flight: 3.0, connections: 1.0, workers: 1 };
        let limit = limit(&seen).unwrap();
        assert_eq!(
            limit.saw,
            "60 % of a request's 100 us is cipher-wait; 1 worker(s), busy 90 % of the time"
        );
    }
}
