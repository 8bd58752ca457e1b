//! fsync-tester (Theodore Ts'o, March 2009): the latency of `fsync` beside a writer.
//!
//! The tester writes 1 MiB at the start of a file, times the `fsync`, sleeps for a second, and
//! begins anew. The 2009 mail does not name the background load. Here the background load is a
//! writer like `dd`: it fills another file in pieces of 1 MiB, from start to end, again and again.
//! The sleep of one second is from memory of the original.

use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use crate::program::{Call, FileId, Phase, Program, Returned, Task};

/// Length of a write: before each `fsync`, and of the background writer.
pub const BUFFER_BYTES: u64 = 1 << 20;
/// Sleep between an `fsync` and the next write.
const PAUSE: Nanos = Nanos::from_ms(1_000);

/// Configuration of a run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of timed `fsync` calls.
    pub samples: u32,
    /// Length of the background writer's file; `None`: no background writer.
    pub background_bytes: Option<u64>,
    /// Priority of the tester (`ionice`); the background writer has the default.
    pub priority: Priority,
}

/// The fsync-tester program and its samples.
#[derive(Debug)]
pub struct FsyncTester {
    config: Config,
    started: bool,
    samples: Vec<Nanos>,
}

impl FsyncTester {
    /// Creates the program.
    ///
    /// # Panics
    /// When the background file is shorter than one buffer.
    #[must_use]
    pub fn new(config: Config) -> Self {
        assert!(config.background_bytes.is_none_or(|len| len >= BUFFER_BYTES));
        Self { config, started: false, samples: Vec::new() }
    }

    /// Latency of each `fsync`, in order.
    #[must_use]
    pub fn samples(&self) -> &[Nanos] {
        &self.samples
    }

    /// The samples in the tool's output format: seconds, one line each.
    #[must_use]
    pub fn print(&self) -> String {
        let line = |sample: &Nanos| format!("fsync time: {:5.4}\n", sample.0 as f64 / 1e9);
        self.samples.iter().map(line).collect()
    }
}

impl Program for FsyncTester {
    type Task = FsyncTask;

    fn next_phase(&mut self) -> Option<Phase<FsyncTask>> {
        if std::mem::replace(&mut self.started, true) {
            return None;
        }
        let tester = FsyncTask::Tester(Tester {
            priority: self.config.priority,
            left: self.config.samples,
            step: Step::Create,
            issued: Nanos(0),
            samples: Vec::new(),
        });
        let writer = |len_bytes| FsyncTask::Writer { len_bytes, next: None };
        let background = self.config.background_bytes.map(writer).into_iter().collect();
        Some(Phase { tasks: vec![tester], background })
    }

    fn end_phase(&mut self, _: Nanos, _: Nanos, tasks: Vec<FsyncTask>) {
        for task in tasks {
            if let FsyncTask::Tester(tester) = task {
                self.samples = tester.samples;
            }
        }
    }
}

/// A thread of the program.
#[derive(Debug)]
pub enum FsyncTask {
    /// The timed tester.
    Tester(Tester),
    /// The background writer.
    Writer {
        /// Length of the writer's file.
        len_bytes: u64,
        /// Offset of the next write; `None` before the file exists.
        next: Option<u64>,
    },
}

/// The tester's next step.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create,
    Write,
    Fsync,
    Pause,
}

/// The timed thread.
#[derive(Debug)]
pub struct Tester {
    priority: Priority,
    left: u32,
    step: Step,
    /// Time of the `fsync` call.
    issued: Nanos,
    samples: Vec<Nanos>,
}

const TESTED: FileId = FileId(0);
const FILLED: FileId = FileId(1);

impl Task for FsyncTask {
    fn next(&mut self, now: Nanos, returned: &Returned<'_>) -> Call {
        if returned.status.is_err() {
            return Call::Exit;
        }
        match self {
            Self::Tester(tester) => tester.next(now),
            Self::Writer { next: next @ None, .. } => {
                *next = Some(0);
                Call::Create(FILLED)
            }
            Self::Writer { len_bytes, next: Some(next) } => {
                let offset_bytes = *next;
                let after = offset_bytes + BUFFER_BYTES;
                *next = if after + BUFFER_BYTES > *len_bytes { 0 } else { after };
                Call::Write { file: FILLED, offset_bytes, len_bytes: BUFFER_BYTES }
            }
        }
    }

    fn priority(&self) -> Priority {
        match self {
            Self::Tester(tester) => tester.priority,
            Self::Writer { .. } => Priority::default(),
        }
    }
}

impl Tester {
    fn next(&mut self, now: Nanos) -> Call {
        match self.step {
            Step::Create => {
                self.step = Step::Write;
                Call::Create(TESTED)
            }
            Step::Write if self.left == 0 => Call::Exit,
            Step::Write => {
                self.step = Step::Fsync;
                Call::Write { file: TESTED, offset_bytes: 0, len_bytes: BUFFER_BYTES }
            }
            Step::Fsync => {
                (self.step, self.issued) = (Step::Pause, now);
                Call::Fsync(TESTED)
            }
            Step::Pause => {
                self.samples.push(now.since(self.issued));
                (self.step, self.left) = (Step::Write, self.left - 1);
                Call::Sleep(PAUSE)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Config =
        Config { samples: 0, background_bytes: None, priority: Priority::best_effort(4) };

    /// Runs a task in a world in which `cost` gives the time of each call.
    fn run(task: &mut FsyncTask, calls: usize, cost: impl Fn(&Call) -> u64) -> Vec<Call> {
        let mut now = Nanos(0);
        let mut made = Vec::new();
        while made.len() < calls {
            let call = task.next(now, &Returned::OK);
            now = now + Nanos::from_ms(cost(&call));
            made.push(call);
            if call == Call::Exit {
                break;
            }
        }
        made
    }

    #[test]
    fn only_fsync_is_timed_and_printed_with_four_digits() {
        let mut program =
            FsyncTester::new(Config { samples: 2, background_bytes: Some(4 << 20), ..IDLE });
        let mut phase = program.next_phase().unwrap();
        assert!(program.next_phase().is_none());
        let cost = |call: &Call| match call {
            Call::Write { .. } => 5_000,
            Call::Fsync(_) => 796,
            Call::Sleep(pause) => pause.0 / 1_000_000,
            _ => 0,
        };
        let calls = run(&mut phase.tasks[0], 100, cost);
        assert_eq!(calls.len(), 8, "create, two rounds of three, exit: {calls:?}");
        let tasks = phase.tasks.into_iter().chain(phase.background).collect();
        program.end_phase(Nanos(0), Nanos(0), tasks);
        assert_eq!(program.print(), "fsync time: 0.7960\nfsync time: 0.7960\n");
    }

    #[test]
    fn background_writer_fills_its_file_in_order_and_starts_again() {
        let program =
            FsyncTester::new(Config { samples: 1, background_bytes: Some(5 << 19), ..IDLE });
        let mut phase = { program }.next_phase().unwrap();
        let calls = run(&mut phase.background[0], 6, |_| 0);
        let offsets: Vec<u64> = calls
            .iter()
            .filter_map(|call| match call {
                Call::Write { offset_bytes, .. } => Some(*offset_bytes >> 20),
                _ => None,
            })
            .collect();
        assert_eq!(offsets, [0, 1, 0, 1, 0], "2.5 MiB hold two buffers");
    }
}
