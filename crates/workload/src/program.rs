//! Programs, tasks, and the system calls that they make.

use blockyard_engine::bio::Op;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

/// One of the files of a program, which numbers them itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A system call. A task waits until it has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `open(O_CREAT | O_TRUNC)`: the file is empty.
    Create(FileId),
    /// `open` of a file that is there.
    Open(FileId),
    /// `pread`, through the page cache.
    Read {
        /// From which file.
        file: FileId,
        /// First byte.
        offset_bytes: u64,
        /// Length.
        len_bytes: u64,
    },
    /// `pwrite`, through the page cache.
    Write {
        /// To which file.
        file: FileId,
        /// First byte.
        offset_bytes: u64,
        /// Length.
        len_bytes: u64,
    },
    /// `fsync`.
    Fsync(FileId),
    /// `close`.
    Close(FileId),
    /// The file is there, this long, on the medium and not in memory. Takes no time: it is how the
    /// world was before.
    Layout {
        /// Which file.
        file: FileId,
        /// Its length.
        len_bytes: u64,
    },
    /// `io_submit` of one operation past the page cache: returns at once, and the operation ends
    /// later.
    Submit {
        /// Given back in [`Reaped`].
        id: u32,
        /// Of which file.
        file: FileId,
        /// What to do.
        op: DirectOp,
        /// First byte.
        offset_bytes: u64,
        /// Length; zero for a flush.
        len_bytes: u64,
    },
    /// `io_getevents`: waits until so many of what this task submitted have ended, and brings those
    /// that ended first.
    Reap {
        /// At least so many; no more than are in flight.
        at_least: u32,
        /// No more than so many, though more have ended.
        at_most: u32,
    },
    /// `io_getevents` with a limit: waits until something that this task submitted has ended, or
    /// until this time on the task's clock, and brings all that have ended.
    ReapBefore(Nanos),
    /// `ioprio_set`: of what the task submits from now on, in the place of [`Task::priority`].
    Priority(Priority),
    /// `nanosleep`.
    Sleep(Nanos),
    /// `getrusage(RUSAGE_THREAD)`: what the task has used, in [`Returned::usage`].
    Usage,
    /// The task has ended.
    Exit,
}

/// What [`Call::Submit`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectOp {
    /// From the device.
    Read,
    /// To the device.
    Write,
    /// All that has ended is on stable storage.
    Flush,
    /// Nobody needs the range any more.
    Discard,
    /// A bio of the device itself, whatever the file system on it.
    Bio {
        /// What it asks for.
        op: Op,
        /// Somebody waits for it.
        sync: bool,
        /// On stable storage before it ends.
        fua: bool,
        /// What ended before is on stable storage before it starts.
        preflush: bool,
    },
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// As it was submitted.
    pub id: u32,
    /// How it went: nothing, or the reason as an error number.
    pub status: Result<(), i32>,
    /// When it ended; the task learns of it when it reaps.
    pub ended: Nanos,
}

/// What a task has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of the program itself.
    pub user: Nanos,
    /// CPU time in the kernel, or in what stands for it.
    pub system: Nanos,
    /// How often a CPU took the task in another's place.
    pub switches: u64,
    /// How often the task waited (`ru_nvcsw`).
    pub voluntary: u64,
    /// How often another one took its place (`ru_nivcsw`).
    pub involuntary: u64,
}

/// What a call brought.
#[derive(Clone, Copy, Debug)]
pub struct Returned<'a> {
    /// How it went: nothing, or the reason as an error number.
    pub status: Result<(), i32>,
    /// From [`Call::Reap`] and [`Call::ReapBefore`].
    pub reaped: &'a [Reaped],
    /// From [`Call::Usage`].
    pub usage: Usage,
}

impl Returned<'_> {
    /// A call that went well and brings nothing.
    pub const OK: Self = Self {
        status: Ok(()),
        reaped: &[],
        usage: Usage {
            user: Nanos(0),
            system: Nanos(0),
            switches: 0,
            voluntary: 0,
            involuntary: 0,
        },
    };
}

/// One thread of a program.
pub trait Task {
    /// The next call. `now` is the time at which the last one returned, and `returned` how it went;
    /// the first time, the moment at which all tasks of the phase start.
    fn next(&mut self, now: Nanos, returned: &Returned<'_>) -> Call;

    /// Who makes the bytes that it writes, and looks at those that it has read; without one any
    /// bytes will do. Worlds that have no bytes do not ask.
    fn content(&mut self) -> Option<&mut dyn Content> {
        None
    }

    /// What it submits goes nowhere: it has ended at once.
    fn goes_nowhere(&self) -> bool {
        false
    }

    /// What fails of what it submits is told by it, and no reason for the program to have failed.
    fn counts_errors(&self) -> bool {
        false
    }

    /// For so many calls that submit or reap, the time of one of them will do.
    fn calls_per_look(&self) -> u32 {
        1
    }

    /// `ionice`: of everything that it submits itself.
    fn priority(&self) -> Priority {
        Priority::default()
    }

    /// The socket on whose CPUs alone it runs; none is all of them.
    fn socket(&self) -> Option<u16> {
        None
    }
}

/// The bytes of a task's requests past the page cache.
pub trait Content {
    /// Makes what the request with this number writes, which the last [`Call::Submit`] has.
    fn fill(&mut self, id: u32, bytes: &mut [u8]);

    /// Looks at what a read has brought, before the task reaps it.
    fn check(&mut self, id: u32, bytes: &[u8]);
}

/// What runs side by side.
#[derive(Debug)]
pub struct Phase<T> {
    /// The phase ends when the last of these has ended.
    pub tasks: Vec<T>,
    /// These run meanwhile, and are stopped then.
    pub background: Vec<T>,
}

/// A workload.
pub trait Program {
    /// Its threads.
    type Task: Task + Send;

    /// The next phase; none after the last.
    fn next_phase(&mut self) -> Option<Phase<Self::Task>>;

    /// A phase has ended, with the tasks as they are now, background behind the others.
    fn end_phase(&mut self, started: Nanos, ended: Nanos, tasks: Vec<Self::Task>);
}
