//! Programs, tasks, and the system calls that they make.

use blockyard_engine::bio::Op;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

/// A file of a program. The program numbers its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A system call. A task waits until it has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `open(O_CREAT | O_TRUNC)`: creates an empty file.
    Create(FileId),
    /// Directories with the numbers 0 to this, which exist before the run and are empty. The call
    /// takes no time.
    MakeDirectories(u32),
    /// As [`Call::Create`], in one of these directories.
    CreateIn {
        /// The new file.
        file: FileId,
        /// Number of the directory.
        directory: u32,
    },
    /// `open` of an existing file.
    Open(FileId),
    /// `pread`, through the page cache.
    Read {
        /// The file to read.
        file: FileId,
        /// First byte.
        offset_bytes: u64,
        /// Length.
        len_bytes: u64,
    },
    /// `pwrite`, through the page cache.
    Write {
        /// The file to write.
        file: FileId,
        /// First byte.
        offset_bytes: u64,
        /// Length.
        len_bytes: u64,
    },
    /// `fsync`.
    Fsync(FileId),
    /// `sync`: all files, as `fsync`.
    Sync,
    /// `close`.
    Close(FileId),
    /// Creates a file of this length before the run: on the medium, not in the page cache. The call
    /// takes no time.
    Layout {
        /// The file.
        file: FileId,
        /// The file's length.
        len_bytes: u64,
    },
    /// `io_submit` of one direct operation, and of those that wait for it: returns at once.
    Submit {
        /// Number of the operation, returned in [`Reaped`].
        id: u32,
        /// The file of the operation.
        file: FileId,
        /// The operation.
        op: DirectOp,
        /// First byte.
        offset_bytes: u64,
        /// Length; zero for a flush.
        len_bytes: u64,
        /// The operation waits in the program: only a [`Call::Priority`] may come before the next
        /// [`Call::Submit`] or [`Call::Commit`].
        more: bool,
    },
    /// `io_submit` of the operations that wait for it.
    Commit,
    /// `io_getevents`: waits until the given number of this task's operations have ended, and
    /// returns them in the order in which they ended.
    Reap {
        /// Least number of operations to wait for; at most the number in flight.
        at_least: u32,
        /// Greatest number of operations to return.
        at_most: u32,
    },
    /// `io_getevents` with a timeout: waits until an operation of this task ends or the task's
    /// clock reaches this time, and returns all ended operations.
    ReapBefore(Nanos),
    /// `ioprio_set`: priority of all later submissions, instead of [`Task::priority`].
    Priority(Priority),
    /// `nanosleep`.
    Sleep(Nanos),
    /// `getrusage(RUSAGE_THREAD)`: the task's resource use, in [`Returned::usage`].
    Usage,
    /// Ends the task.
    Exit,
}

/// System calls of a task's direct operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// A call submits, and another one reaps (`io_submit`, `io_getevents`).
    #[default]
    Aio,
    /// A single call transfers, and returns at the end of the operation (`pread`, `pwrite`):
    /// [`Call::Reap`] is a part of it.
    Sync,
    /// A call submits. Ended operations lie in memory that the task shares with the kernel, so
    /// that a reap is a call only if it has to wait (`io_uring_enter`).
    Ring,
    /// None: the operations go to no device and end at once (fio's `null` engine).
    Nowhere,
}

/// Operation of a [`Call::Submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectOp {
    /// Read from the device.
    Read,
    /// Write to the device.
    Write,
    /// Flush: all ended writes are on stable storage.
    Flush,
    /// Discard: the range's content is no longer needed.
    Discard,
    /// A bio for the device itself, past any file system.
    Bio {
        /// The bio's operation.
        op: Op,
        /// `REQ_SYNC`: the submitter waits for the bio.
        sync: bool,
        /// `REQ_FUA`: the data is on stable storage before the bio ends.
        fua: bool,
        /// `REQ_PREFLUSH`: all ended writes are on stable storage before the bio starts.
        preflush: bool,
    },
}

/// An ended operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// The number from [`Call::Submit`].
    pub id: u32,
    /// Success, or an error number.
    pub status: Result<(), i32>,
    /// Time of the end; the task learns of the end when it reaps.
    pub ended: Nanos,
}

/// Resource use of a task so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time of the program itself.
    pub user: Nanos,
    /// CPU time in the kernel, or in the simulated kernel.
    pub system: Nanos,
    /// Number of times that a CPU switched to the task from another one.
    pub switches: u64,
    /// Voluntary context switches (`ru_nvcsw`): the task waited.
    pub voluntary: u64,
    /// Involuntary context switches (`ru_nivcsw`): another task preempted it.
    pub involuntary: u64,
}

/// Result of a call.
#[derive(Clone, Copy, Debug)]
pub struct Returned<'a> {
    /// Success, or an error number.
    pub status: Result<(), i32>,
    /// Ended operations, from [`Call::Reap`] and [`Call::ReapBefore`].
    pub reaped: &'a [Reaped],
    /// Resource use, from [`Call::Usage`].
    pub usage: Usage,
}

impl Returned<'_> {
    /// A successful call without further results.
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
    /// Returns the next call. `now` is the time at which the last call returned, and `returned` its
    /// result. In the first call `now` is the start of the phase.
    fn next(&mut self, now: Nanos, returned: &Returned<'_>) -> Call;

    /// Generator and checker of the bytes that the task writes and reads; without one any bytes
    /// will do.
    fn content(&mut self) -> Option<&mut dyn Content> {
        None
    }

    /// System calls of its direct operations.
    fn interface(&self) -> Interface {
        Interface::default()
    }

    /// Whether the task counts failed operations itself. Otherwise a failure ends the program.
    fn counts_errors(&self) -> bool {
        false
    }

    /// Number of submit and reap calls per reading of the clock.
    fn calls_per_look(&self) -> u32 {
        1
    }

    /// Priority of all the task's own submissions (`ionice`).
    fn priority(&self) -> Priority {
        Priority::default()
    }

    /// Socket whose CPUs the task is bound to; `None`: all CPUs.
    fn socket(&self) -> Option<u16> {
        None
    }

    /// CPUs that the task is bound to; none: those of its socket.
    fn cpus(&self) -> &[u16] {
        &[]
    }
}

/// Content of a task's direct requests.
pub trait Content {
    /// Fills the buffer of the write request `id`, the request of the last [`Call::Submit`].
    fn fill(&mut self, id: u32, bytes: &mut [u8]);

    /// Checks the bytes of the read request `id` before the task reaps it.
    fn check(&mut self, id: u32, bytes: &[u8]);

    /// Takes the number of bytes that are summed up for verification since the last call of this
    /// function: of started writes, and of reaped reads. A world without bytes, which neither fills
    /// nor checks, charges CPU time for them.
    fn take_summed_bytes(&mut self) -> u64 {
        0
    }
}

/// Tasks that run side by side.
#[derive(Debug)]
pub struct Phase<T> {
    /// The phase ends when the last of these tasks ends.
    pub tasks: Vec<T>,
    /// Tasks that run meanwhile and are stopped at the end of the phase.
    pub background: Vec<T>,
}

/// A workload.
pub trait Program {
    /// Threads of the program.
    type Task: Task + Send;

    /// Returns the next phase; `None` after the last.
    fn next_phase(&mut self) -> Option<Phase<Self::Task>>;

    /// Receives the tasks of an ended phase, background tasks last.
    fn end_phase(&mut self, started: Nanos, ended: Nanos, tasks: Vec<Self::Task>);
}
