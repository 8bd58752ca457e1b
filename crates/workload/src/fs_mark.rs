//! `fs_mark` 3.3 (Ric Wheeler, 2003): how many files threads create in a second, and the time of
//! each call.
//!
//! A thread creates its files one after the other: `open`, `write` in pieces, `fsync`, `close`. The
//! sync method decides about the `fsync`, and about calls after the last file:
//!
//! ```text
//!   0  none                            4  sync, then as 3
//!   1  fsync before each close         5  open, fsync, close of each file, in order
//!   2  sync, then fsync of one file    6  sync, then as 5
//!   3  as 5, in reverse order
//! ```
//! Files go round the directories, some in each (`-D`, `-N`), of which every thread begins with the
//! first. Files stay (`-k`), and there is one iteration.
//!
//! Left out: `mkdir` of the directories, which exist; directories by time; removal of files.

use std::fmt::Write as _;

use blockyard_engine::time::Nanos;

use crate::program::{Call, FileId, Phase, Program, Returned, Task};

/// Calls that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timed {
    /// `open` with `O_CREAT`.
    Create,
    /// `write`.
    Write,
    /// `fsync`; of methods 2 to 6 with the `open` and `close` around it.
    Fsync,
    /// `sync`.
    Sync,
    /// `close`.
    Close,
}

impl Timed {
    /// All of them, in the order of the tool's columns.
    pub const ALL: [Self; 5] = [Self::Create, Self::Write, Self::Fsync, Self::Sync, Self::Close];

    /// Name of the call.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Write => "write",
            Self::Fsync => "fsync",
            Self::Sync => "sync",
            Self::Close => "close",
        }
    }
}

/// Configuration of a run; the letters are the tool's options.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// `-t`: number of threads.
    pub threads: u32,
    /// `-n`: files of each thread.
    pub files: u32,
    /// `-s`: length of a file.
    pub file_bytes: u64,
    /// `-w`: length of a `write`.
    pub write_bytes: u64,
    /// `-D`: number of directories; all threads share them.
    pub directories: u32,
    /// `-N`: successive files of a thread in one directory.
    pub files_per_directory: u32,
    /// `-S`, 0 to 6.
    pub sync_method: u8,
}

impl Config {
    /// Whether the run makes this call.
    #[must_use]
    pub fn makes(&self, call: Timed) -> bool {
        match call {
            Timed::Create | Timed::Write | Timed::Close => true,
            Timed::Fsync => self.sync_method > 0,
            Timed::Sync => matches!(self.sync_method, 2 | 4 | 6),
        }
    }

    /// Files that a thread opens again for an `fsync`, in order.
    fn synced_later(&self) -> Vec<u32> {
        match self.sync_method {
            2 => vec![0],
            3 | 4 => (0..self.files).rev().collect(),
            5 | 6 => (0..self.files).collect(),
            _ => Vec::new(),
        }
    }
}

/// Times of one kind of call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// Number of calls.
    pub count: u64,
    /// Their sum.
    pub sum: Nanos,
    /// The shortest.
    pub min: Nanos,
    /// The longest.
    pub max: Nanos,
}

impl CallTimes {
    fn record(&mut self, took: Nanos) {
        self.add(&Self { count: 1, sum: took, min: took, max: took });
    }

    fn add(&mut self, other: &Self) {
        if other.count > 0 {
            self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        }
        self.count += other.count;
        self.sum = self.sum + other.sum;
        self.max = self.max.max(other.max);
    }
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Sum of the threads' rates: files over the time of the thread's loop.
    pub files_per_s: f64,
    /// Time of the slowest thread.
    pub longest: Nanos,
    /// Time outside the timed calls, of all threads.
    pub overhead: Nanos,
    /// Times of the calls, in the order of [`Timed::ALL`].
    pub calls: [CallTimes; 5],
}

/// The program and its results.
#[derive(Debug)]
pub struct FsMark {
    config: Config,
    started: bool,
    results: Results,
}

impl FsMark {
    /// Creates the program.
    ///
    /// # Panics
    /// A number of the configuration is zero, but for the sync method.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let Config { threads, files, directories, files_per_directory, .. } = config;
        assert!(threads > 0 && files > 0 && directories > 0 && files_per_directory > 0);
        assert!(config.file_bytes > 0 && config.write_bytes > 0);
        Self { config, started: false, results: Results::default() }
    }

    /// The results.
    #[must_use]
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// The tool's line of statistics (`-v`), with its header; times are in microseconds. How full
    /// the file system is stays open.
    #[must_use]
    pub fn print(&self) -> String {
        let Config { threads, files, file_bytes, .. } = self.config;
        let count = u64::from(threads) * u64::from(files);
        let us = |time: Nanos| time.0 / 1_000;
        let mut text = String::new();
        let heads = ["Count", "Size", "Files/sec"].map(|head| format!(" {head:>12}"));
        let _ = write!(text, "{:>6}{}", "FSUse%", heads.concat());
        let _ = write!(text, " {:>16}", "App Overhead");
        let names = Timed::ALL.map(|call| call.name().to_uppercase());
        for name in names.map(|name| name.replace("CREATE", "CREAT")) {
            let _ = write!(text, " {:>26}", format!("{name} (Min/Avg/Max)"));
        }
        let Results { files_per_s, overhead, .. } = self.results;
        let _ = write!(text, "\n{:>6} {count:>12} {file_bytes:>12} {files_per_s:>12.1}", "-");
        let _ = write!(text, " {:>16}", us(overhead));
        for (call, times) in Timed::ALL.iter().zip(&self.results.calls) {
            // The tool divides the time of all `fsync` calls of a thread by its files.
            let over = if *call == Timed::Fsync { count } else { times.count.max(1) };
            let [min, average, max] = [us(times.min), us(times.sum) / over, us(times.max)];
            let _ = write!(text, " {min:>8} {average:>8} {max:>8}");
        }
        text + "\n"
    }
}

impl Program for FsMark {
    type Task = Creator;

    fn next_phase(&mut self) -> Option<Phase<Creator>> {
        if std::mem::replace(&mut self.started, true) {
            return None;
        }
        let tasks = (0..self.config.threads).map(|number| Creator::new(self.config, number));
        Some(Phase { tasks: tasks.collect(), background: Vec::new() })
    }

    fn end_phase(&mut self, _: Nanos, _: Nanos, tasks: Vec<Creator>) {
        for task in tasks {
            let took = task.ended.since(task.started);
            let timed: u64 = task.calls.iter().map(|times| times.sum.0).sum();
            let results = &mut self.results;
            results.files_per_s += f64::from(self.config.files) * 1e9 / took.0.max(1) as f64;
            results.longest = results.longest.max(took);
            results.overhead = results.overhead + Nanos(took.0.saturating_sub(timed));
            for (sum, times) in results.calls.iter_mut().zip(&task.calls) {
                sum.add(times);
            }
        }
    }
}

/// The next step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Directories,
    Create,
    Write { offset_bytes: u64 },
    Fsync,
    Close,
    Sync,
    Reopen { done: usize },
    LaterFsync { done: usize },
    LaterClose { done: usize },
    Exit,
}

/// A thread.
#[derive(Debug)]
pub struct Creator {
    config: Config,
    number: u32,
    /// Its current file, from 0.
    file: u32,
    step: Step,
    synced_later: Vec<u32>,
    /// The running call, and its start.
    timed: Option<(Timed, Nanos)>,
    started: Nanos,
    ended: Nanos,
    calls: [CallTimes; 5],
}

impl Creator {
    fn new(config: Config, number: u32) -> Self {
        Self {
            config,
            number,
            file: 0,
            step: Step::Directories,
            synced_later: config.synced_later(),
            timed: None,
            started: Nanos(0),
            ended: Nanos(0),
            calls: Default::default(),
        }
    }

    fn id(&self, file: u32) -> FileId {
        FileId(self.number * self.config.files + file)
    }

    fn after_close(&self) -> Step {
        match self.config.sync_method {
            _ if self.file < self.config.files => Step::Create,
            2 | 4 | 6 => Step::Sync,
            _ => self.reopen(0),
        }
    }

    fn reopen(&self, done: usize) -> Step {
        if done < self.synced_later.len() { Step::Reopen { done } } else { Step::Exit }
    }

    /// The call of a step, the timed call that begins with it, and the step after it.
    fn step(&self, step: Step) -> (Call, Option<Timed>, Step) {
        let file = self.id(self.file);
        let Config { directories, files_per_directory, file_bytes, write_bytes, .. } = self.config;
        let later = |done: usize| self.id(self.synced_later[done]);
        match step {
            Step::Directories => (Call::MakeDirectories(directories), None, Step::Create),
            Step::Create => {
                let directory = self.file / files_per_directory % directories;
                let next = Step::Write { offset_bytes: 0 };
                (Call::CreateIn { file, directory }, Some(Timed::Create), next)
            }
            Step::Write { offset_bytes } => {
                let len_bytes = write_bytes.min(file_bytes - offset_bytes);
                let next = match offset_bytes + len_bytes {
                    end if end < file_bytes => Step::Write { offset_bytes: end },
                    _ if self.config.sync_method == 1 => Step::Fsync,
                    _ => Step::Close,
                };
                (Call::Write { file, offset_bytes, len_bytes }, Some(Timed::Write), next)
            }
            Step::Fsync => (Call::Fsync(file), Some(Timed::Fsync), Step::Close),
            // The next file is decided about by the next step.
            Step::Close => (Call::Close(file), Some(Timed::Close), Step::Create),
            Step::Sync => (Call::Sync, Some(Timed::Sync), self.reopen(0)),
            Step::Reopen { done } => {
                (Call::Open(later(done)), Some(Timed::Fsync), Step::LaterFsync { done })
            }
            Step::LaterFsync { done } => {
                (Call::Fsync(later(done)), None, Step::LaterClose { done })
            }
            Step::LaterClose { done } => (Call::Close(later(done)), None, self.reopen(done + 1)),
            Step::Exit => (Call::Exit, None, Step::Exit),
        }
    }
}

impl Task for Creator {
    fn next(&mut self, now: Nanos, returned: &Returned<'_>) -> Call {
        if returned.status.is_err() {
            return Call::Exit;
        }
        let step = self.step;
        let goes_on = matches!(step, Step::LaterFsync { .. } | Step::LaterClose { .. });
        if let Some((call, since)) = self.timed.take_if(|_| !goes_on) {
            self.calls[call as usize].record(now.since(since));
        }
        match step {
            Step::Create if self.file == 0 => self.started = now,
            Step::Exit => self.ended = now,
            _ => {}
        }
        let (call, timed, next) = self.step(step);
        self.timed = timed.map(|timed| (timed, now)).or(self.timed);
        self.step = next;
        if step == Step::Close {
            self.file += 1;
            self.step = self.after_close();
        }
        call
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Config = Config {
        threads: 1,
        files: 3,
        file_bytes: 10 << 10,
        write_bytes: 4 << 10,
        directories: 2,
        files_per_directory: 1,
        sync_method: 1,
    };

    /// Runs the only thread in a world in which a call takes so many microseconds.
    fn run(config: Config, cost_us: impl Fn(&Call) -> u64) -> (FsMark, Vec<Call>) {
        let mut program = FsMark::new(config);
        let mut phase = program.next_phase().unwrap();
        let mut now = Nanos(0);
        let mut calls = Vec::new();
        while calls.last() != Some(&Call::Exit) {
            let call = phase.tasks[0].next(now, &Returned::OK);
            now = now + Nanos(cost_us(&call) * 1_000);
            calls.push(call);
        }
        program.end_phase(Nanos(0), now, phase.tasks);
        assert!(program.next_phase().is_none());
        (program, calls)
    }

    fn cost_us(call: &Call) -> u64 {
        match call {
            Call::MakeDirectories(_) => 1_000_000,
            Call::CreateIn { .. } => 50,
            Call::Write { .. } => 10,
            Call::Fsync(_) => 900,
            Call::Sync => 5_000,
            Call::Open(_) | Call::Close(_) => 20,
            _ => 0,
        }
    }

    #[test]
    fn rate_and_times_of_the_calls_are_those_of_the_loop() {
        let (program, calls) = run(SMALL, cost_us);
        let results = program.results();
        // A file takes 50 + 3 * 10 + 900 + 20 us; the directories are there before.
        assert!((results.files_per_s - 1_000.0).abs() < 1e-9, "{}", results.files_per_s);
        assert_eq!(results.longest, Nanos(3_000_000));
        assert_eq!(results.calls[Timed::Write as usize].count, 9);
        let fsync =
            CallTimes { count: 3, sum: Nanos(2_700_000), min: Nanos(900_000), max: Nanos(900_000) };
        assert_eq!(results.calls[Timed::Fsync as usize], fsync);
        assert_eq!(results.calls[Timed::Sync as usize], CallTimes::default());
        let directories = calls.iter().filter_map(|call| match call {
            Call::CreateIn { directory, .. } => Some(*directory),
            _ => None,
        });
        assert_eq!(directories.collect::<Vec<_>>(), [0, 1, 0]);
        let text = program.print();
        let line = text.lines().nth(1).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..8], ["-", "3", "10240", "1000.0", "0", "50", "50", "50"]);
        assert_eq!(words[11..14], ["900", "900", "900"]);
        assert!(text.contains("CREAT (Min/Avg/Max)"), "{text}");
    }

    #[test]
    fn sync_method_decides_which_files_are_synced_and_when() {
        let order = |sync_method| {
            let (_, calls) = run(Config { sync_method, ..SMALL }, cost_us);
            let shown = calls.iter().filter_map(|call| match call {
                Call::Fsync(FileId(file)) => Some(file.to_string()),
                Call::Close(_) => Some("c".into()),
                Call::Sync => Some("sync".into()),
                _ => None,
            });
            shown.collect::<Vec<_>>().join(" ")
        };
        let methods = [
            "c c c",
            "0 c 1 c 2 c",
            "c c c sync 0 c",
            "c c c 2 c 1 c 0 c",
            "c c c sync 2 c 1 c 0 c",
            "c c c 0 c 1 c 2 c",
            "c c c sync 0 c 1 c 2 c",
        ];
        assert_eq!((0..7).map(order).collect::<Vec<_>>(), methods);
        let (program, _) = run(Config { sync_method: 3, ..SMALL }, cost_us);
        let fsync = program.results().calls[Timed::Fsync as usize];
        assert_eq!((fsync.count, fsync.max), (3, Nanos(940_000)), "with open and close");
    }
}
