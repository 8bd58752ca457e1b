//! Programs, tasks, and the system calls that they make.

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
    /// `nanosleep`.
    Sleep(Nanos),
    /// The task has ended.
    Exit,
}

/// How a call went: nothing, or the reason as an error number.
pub type Returned = Result<(), i32>;

/// One thread of a program.
pub trait Task {
    /// The next call. `now` is the time at which the last one returned, and `returned` how it went;
    /// the first time, the moment at which all tasks of the phase start.
    fn next(&mut self, now: Nanos, returned: Returned) -> Call;
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
