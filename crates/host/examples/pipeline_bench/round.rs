//! One round: submitters, their requests, and what they cost.

use std::sync::Barrier;
use std::time::Instant;

use blockyard_engine::bio::{BlkStatus, Done, Op};
use blockyard_host::local::{Client, Request};

use super::{Job, SIZE_BYTES};

/// Result of one round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) wall_ns: f64,
    pub(crate) cpu_ns: f64,
    pub(crate) bytes: f64,
    pub(crate) requests: f64,
    /// Voluntary context switches.
    pub(crate) voluntary: f64,
    /// Involuntary context switches.
    pub(crate) involuntary: f64,
}

/// Runs `work` of each worker on its own thread, the first on this one, all at once.
pub(crate) fn timed<T: Send>(
    workers: &mut [T],
    job: &Job,
    work: impl Fn(&mut T, u64) + Sync,
) -> Sample {
    let (first, others) = workers.split_first_mut().expect("there is a submitter");
    let barrier = Barrier::new(1 + others.len());
    let work = &work;
    let count = 1 + others.len();
    let (start, before) = std::thread::scope(|scope| {
        for (number, other) in others.iter_mut().enumerate() {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                work(other, number as u64 + 2);
            });
        }
        barrier.wait();
        let started = (Instant::now(), usage());
        work(first, 1);
        started
    });
    let wall_ns = start.elapsed().as_nanos() as f64;
    let after = usage();
    Sample {
        wall_ns,
        cpu_ns: after.cpu_ns - before.cpu_ns,
        bytes: (count * job.requests) as f64 * job.len_bytes as f64,
        requests: (count * job.requests) as f64,
        voluntary: after.voluntary - before.voluntary,
        involuntary: after.involuntary - before.involuntary,
    }
}

/// Runs a round of a pipeline.
pub(crate) fn measure(clients: &mut [Client], job: &Job) -> Sample {
    // Touches buffers of the job's length and the pages of the file.
    for client in &mut *clients {
        submit(client, &Job { requests: job.depth, ..*job }, 7);
        touch(client, job.len_bytes);
    }
    timed(clients, job, |client, seed| submit(client, job, seed))
}

/// Reads from the whole file: a short request brings the page tables of 64 KiB.
fn touch(client: &mut Client, len_bytes: u64) {
    let mut done = Vec::new();
    for offset_bytes in (0..SIZE_BYTES).step_by(1 << 16) {
        let op = Op::Read;
        let len_bytes = len_bytes.min(1 << 16);
        client.submit(Request { user: 0, op, offset_bytes, len_bytes, sync: false });
        client.wait(1, &mut done);
    }
}

/// Runs a submitter's requests.
pub(crate) fn submit(client: &mut Client, job: &Job, seed: u64) {
    let mut places = Places::new(job, seed);
    let mut done: Vec<Done> = Vec::with_capacity(job.depth);
    let mut submitted = 0;
    while submitted < job.requests || client.in_flight() > 0 {
        // A client knows that a lone request is awaited, but not that of a plug.
        if job.depth > 1 {
            client.plug();
        }
        while submitted < job.requests && client.in_flight() < job.depth {
            let offset_bytes = places.next();
            let len_bytes = job.len_bytes;
            let user = submitted as u64;
            client.submit(Request { user, op: job.op, offset_bytes, len_bytes, sync: false });
            submitted += 1;
        }
        client.wait(1, &mut done);
        assert!(done.drain(..).all(|done| done.status == BlkStatus::Ok));
    }
}

/// Random offsets of a job's requests (xorshift).
pub(crate) struct Places {
    seed: u64,
    len_bytes: u64,
}

impl Places {
    pub(crate) fn new(job: &Job, seed: u64) -> Self {
        Self { seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), len_bytes: job.len_bytes }
    }

    /// Next offset, a multiple of the length.
    pub(crate) fn next(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 20) % (SIZE_BYTES / self.len_bytes) * self.len_bytes
    }
}

struct Usage {
    cpu_ns: f64,
    voluntary: f64,
    involuntary: f64,
}

/// Resource usage of all threads of this process.
fn usage() -> Usage {
    // SAFETY: the system call writes only this plain value.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3;
    Usage {
        cpu_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
        voluntary: usage.ru_nvcsw as f64,
        involuntary: usage.ru_nivcsw as f64,
    }
}
