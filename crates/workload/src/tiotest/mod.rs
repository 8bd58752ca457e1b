//! tiotest, from tiobench: threads that write, rewrite at random, read, and read at random.
//!
//! Each thread has its own file. The four phases follow each other and keep the caches. All threads
//! of a phase start together, and the phase lasts until the last thread ends. A write phase
//! includes `fsync` and `close`: they count in the phase's time but not in its latencies. So the
//! rate of a random write phase is mostly a rate of write-back. Random offsets are multiples of the
//! block size, drawn with replacement, and never the last block. Source: `tiotest.c` of tiobench.
//! The original takes its seed from the time of day; here the seed is an option.

mod table;

use blockyard_engine::time::Nanos;

use crate::latency::Latency;
use crate::program::{Call, FileId, Phase, Program, Returned, Task};
use crate::random::Random;

pub use table::{latency_table, results_table};

/// The four phases, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// Sequential writes into new files.
    Write,
    /// Random writes into existing files.
    RandomWrite,
    /// Sequential reads.
    Read,
    /// Random reads.
    RandomRead,
}

impl PhaseKind {
    /// All phases, in order.
    pub const ALL: [Self; 4] = [Self::Write, Self::RandomWrite, Self::Read, Self::RandomRead];

    /// Name in the tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "Write",
            Self::RandomWrite => "Random Write",
            Self::Read => "Read",
            Self::RandomRead => "Random Read",
        }
    }

    fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandomWrite)
    }
}

/// The options of the tool.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// `-t`: threads.
    pub threads: u32,
    /// `-f`: length of each file.
    pub file_bytes: u64,
    /// `-b`: length of each read or write.
    pub block_bytes: u64,
    /// `-r`: number of random calls of each thread.
    pub random_ops: u32,
    /// Seed of the random offsets.
    pub seed: u64,
}

impl Config {
    /// Configuration of the 2009 mail: 80 MiB a thread, otherwise the tool's defaults.
    #[must_use]
    pub fn of_2009(threads: u32, seed: u64) -> Self {
        Self { threads, file_bytes: 80 << 20, block_bytes: 4096, random_ops: 1000, seed }
    }

    fn ops(&self, kind: PhaseKind) -> u64 {
        match kind {
            PhaseKind::Write | PhaseKind::Read => self.file_bytes / self.block_bytes,
            PhaseKind::RandomWrite | PhaseKind::RandomRead => u64::from(self.random_ops),
        }
    }
}

/// Result of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseResult {
    /// The phase.
    pub kind: PhaseKind,
    /// Bytes read or written.
    pub bytes: u64,
    /// Time from the start of all threads to the end of the last.
    pub time: Nanos,
    /// Latency of the reads or writes.
    pub latency: Latency,
}

/// The tiotest program and its results.
#[derive(Debug)]
pub struct Tiotest {
    config: Config,
    /// Number of started phases.
    started: usize,
    results: Vec<PhaseResult>,
}

impl Tiotest {
    /// Creates the program.
    ///
    /// # Panics
    /// When there are no threads, or a file is shorter than two blocks.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.threads > 0 && config.block_bytes > 0);
        assert!(config.file_bytes >= 2 * config.block_bytes, "a file has two blocks");
        Self { config, started: 0, results: Vec::new() }
    }

    /// Results of the ended phases.
    #[must_use]
    pub fn results(&self) -> &[PhaseResult] {
        &self.results
    }

    /// Both tables in the tool's output format.
    #[must_use]
    pub fn print(&self) -> String {
        results_table(self.config.threads, &self.results) + &latency_table(&self.results)
    }
}

impl Program for Tiotest {
    type Task = Thread;

    fn next_phase(&mut self) -> Option<Phase<Thread>> {
        let kind = *PhaseKind::ALL.get(self.started)?;
        let phase_number = self.started as u64;
        self.started += 1;
        let thread = |number: u32| Thread {
            config: self.config,
            kind,
            file: FileId(number),
            random: Random::new(self.config.seed, u64::from(number) << 8 | phase_number),
            step: Step::Open,
            done_ops: 0,
            issued: Nanos(0),
            latency: Latency::default(),
        };
        Some(Phase { tasks: (0..self.config.threads).map(thread).collect(), background: vec![] })
    }

    fn end_phase(&mut self, started: Nanos, ended: Nanos, tasks: Vec<Thread>) {
        let kind = PhaseKind::ALL[self.started - 1];
        let mut latency = Latency::default();
        tasks.iter().for_each(|thread| latency.add(&thread.latency));
        let bytes =
            u64::from(self.config.threads) * self.config.ops(kind) * self.config.block_bytes;
        self.results.push(PhaseResult { kind, bytes, time: ended.since(started), latency });
    }
}

/// A thread's next step.
#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    /// First call: no earlier call to time.
    First,
    Transfer,
    Close,
    Exit,
}

/// A tiotest thread.
#[derive(Debug)]
pub struct Thread {
    config: Config,
    kind: PhaseKind,
    file: FileId,
    random: Random,
    step: Step,
    done_ops: u64,
    /// Time of the call that is timed.
    issued: Nanos,
    latency: Latency,
}

impl Thread {
    fn transfer(&mut self, now: Nanos) -> Call {
        let block_bytes = self.config.block_bytes;
        let block = match self.kind {
            PhaseKind::Write | PhaseKind::Read => self.done_ops,
            PhaseKind::RandomWrite | PhaseKind::RandomRead => {
                self.random.below(self.config.file_bytes / block_bytes - 1)
            }
        };
        self.done_ops += 1;
        self.issued = now;
        let file = self.file;
        let offset_bytes = block * block_bytes;
        let len_bytes = block_bytes;
        if self.kind.writes() {
            Call::Write { file, offset_bytes, len_bytes }
        } else {
            Call::Read { file, offset_bytes, len_bytes }
        }
    }

    fn next_transfer(&mut self, now: Nanos) -> Call {
        if self.done_ops < self.config.ops(self.kind) {
            return self.transfer(now);
        }
        if self.kind.writes() {
            self.step = Step::Close;
            return Call::Fsync(self.file);
        }
        self.step = Step::Exit;
        Call::Close(self.file)
    }
}

impl Task for Thread {
    fn next(&mut self, now: Nanos, returned: &Returned<'_>) -> Call {
        if returned.status.is_err() {
            return Call::Exit;
        }
        match self.step {
            Step::Open => {
                self.step = Step::First;
                let creates = self.kind == PhaseKind::Write;
                if creates { Call::Create(self.file) } else { Call::Open(self.file) }
            }
            Step::First => {
                self.step = Step::Transfer;
                self.next_transfer(now)
            }
            Step::Transfer => {
                self.latency.record(now.since(self.issued));
                self.next_transfer(now)
            }
            Step::Close => {
                self.step = Step::Exit;
                Call::Close(self.file)
            }
            Step::Exit => Call::Exit,
        }
    }
}

#[cfg(test)]
mod tests;
