//! The loop of a queue: it keeps a number of requests in flight and measures each. The bare cipher
//! has the same loop (`crates/host/examples/bare_bench.rs`).

use crate::Result;
use std::io::{Write, stdin, stdout};
use std::thread;
use std::time::{Duration, Instant};

/// Requests of the queues.
pub(crate) struct Job {
    pub(crate) is_write: bool,
    is_random: bool,
    pub(crate) len_bytes: usize,
    /// Requests in flight on each queue.
    pub(crate) depth: usize,
    pub(crate) queues: usize,
    /// Part of the disk that is used, from its start.
    size_bytes: u64,
    limit: Limit,
}

/// End of the load of a queue.
#[derive(Clone, Copy)]
enum Limit {
    Time(Duration),
    Requests(u64),
}

impl Job {
    /// Parses `read|write random|in-order LEN DEPTH QUEUES SIZE LIMIT`, lengths in bytes. LIMIT is
    /// a number of milliseconds (`700ms`) or of requests of each queue.
    pub(crate) fn parse(words: &[String]) -> Result<Job> {
        let [rw, order, len, depth, queues, size, limit] = words else {
            return Err("a job has seven words: see load.rs".into());
        };
        Ok(Job {
            is_write: rw == "write",
            is_random: order == "random",
            len_bytes: len.parse()?,
            depth: depth.parse()?,
            queues: queues.parse()?,
            size_bytes: size.parse()?,
            limit: match limit.strip_suffix("ms") {
                Some(ms) => Limit::Time(Duration::from_millis(ms.parse()?)),
                None => Limit::Requests(limit.parse()?),
            },
        })
    }

    /// A door for each queue.
    pub(crate) fn doors<D>(&self, open: impl Fn() -> Result<D>) -> Result<Vec<D>> {
        (0..self.queues).map(|_| open()).collect()
    }
}

/// Loads all queues at once, each from its own thread. Prints `ready`, waits for a line, and prints
/// one line of JSON.
pub(crate) fn load<D: Door + Send>(job: &Job, doors: Vec<D>) -> Result<()> {
    println!("ready");
    stdout().flush()?;
    stdin().read_line(&mut String::new())?;
    let seen: Result<Vec<Seen>> = thread::scope(|scope| {
        let queue = |(seed, door)| scope.spawn(move || run(job, door, seed));
        let threads: Vec<_> = (1..).zip(doors).map(queue).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    println!("{}", Seen::sum(seen?).json(job.len_bytes));
    Ok(())
}

/// A way to the disk. A slot is a request in flight with its buffer.
pub(crate) trait Door {
    /// Takes a request; it may wait for `publish`.
    fn submit(&mut self, slot: usize, offset: u64) -> Result<()>;
    /// Makes all submitted requests known to the server.
    fn publish(&mut self) -> Result<()>;
    /// Waits until requests have ended, and pushes their slots.
    fn wait(&mut self, ended: &mut Vec<usize>) -> Result<()>;
}

/// Measurements of one or more queues.
struct Seen {
    seconds: f64,
    latencies_ns: Vec<u32>,
}

fn run(job: &Job, mut door: impl Door, seed: u64) -> Result<Seen> {
    let mut places = Places { state: seed, next: 0 };
    let mut started = vec![Instant::now(); job.depth];
    let mut latencies_ns = Vec::with_capacity(1 << 20);
    let begun = Instant::now();
    let mut submitted = 0;
    let mut goes_on = |now: Instant| {
        submitted += 1;
        match job.limit {
            Limit::Time(limit) => now - begun < limit,
            Limit::Requests(limit) => submitted <= limit,
        }
    };
    let mut in_flight = 0;
    let mut now = begun;
    let mut idle: Vec<usize> = (0..job.depth).collect();
    loop {
        for slot in idle.drain(..) {
            if goes_on(now) {
                started[slot] = now;
                door.submit(slot, places.next(job))?;
                in_flight += 1;
            }
        }
        if in_flight == 0 {
            break;
        }
        door.publish()?;
        door.wait(&mut idle)?;
        now = Instant::now();
        in_flight -= idle.len();
        let latency_ns = |slot: &usize| (now - started[*slot]).as_nanos() as u32;
        latencies_ns.extend(idle.iter().map(latency_ns));
    }
    Ok(Seen { seconds: begun.elapsed().as_secs_f64(), latencies_ns })
}

/// Offsets of requests: one after another, or at random (xorshift).
struct Places {
    state: u64,
    next: u64,
}

impl Places {
    fn next(&mut self, job: &Job) -> u64 {
        let len_bytes = job.len_bytes as u64;
        let count = job.size_bytes / len_bytes;
        let place = if job.is_random {
            for shift in [13, -7, 17_i32] {
                let shifted = if shift < 0 { self.state >> -shift } else { self.state << shift };
                self.state ^= shifted;
            }
            self.state % count
        } else {
            self.next += 1;
            self.next % count
        };
        place * len_bytes
    }
}

impl Seen {
    /// The measurements of queues that ran at once.
    fn sum(queues: Vec<Seen>) -> Seen {
        let seconds = queues.iter().map(|seen| seen.seconds).fold(0.0, f64::max);
        let latencies_ns = queues.into_iter().flat_map(|seen| seen.latencies_ns).collect();
        Seen { seconds, latencies_ns }
    }

    fn json(mut self, len_bytes: usize) -> String {
        let requests = self.latencies_ns.len();
        self.latencies_ns.sort_unstable();
        let percentile_us = |percent: usize| {
            let ns = self.latencies_ns.get(requests * percent / 100).copied().unwrap_or_default();
            f64::from(ns) / 1000.0
        };
        format!(
            "{{\"requests\": {requests}, \"bytes\": {}, \"seconds\": {:.6}, \"p50_us\": {:.3}, \
             \"p99_us\": {:.3}}}",
            requests * len_bytes,
            self.seconds,
            percentile_us(50),
            percentile_us(99),
        )
    }
}
