//! A process whose threads execute one instruction each in turns, under `ptrace`.
//!
//! No two threads are outside of the kernel at the same time. A system call goes on while other
//! threads step. A cipher and a string instruction run to their end at once: a breakpoint stands
//! there meanwhile.

use super::code::{Code, Flow, LONGEST_BYTES, value};
use super::lines::{Chain, Lines};
use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc::user_regs_struct;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// The system call that marks the begin and the end of a submitter's requests.
const MARK: u64 = nix::libc::SYS_getppid as u64;
const BREAKPOINT: u8 = 0xcc;

/// The counts of all threads while a submitter has requests.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) instructions: u64,
    pub(super) system_calls: BTreeMap<u64, u64>,
    /// Executions of atomic read-modify-write instructions.
    pub(super) atomics: HashMap<Chain, u64>,
    pub(super) lines: Lines,
}

/// A thread of the process.
#[derive(Default)]
struct Thread {
    number: usize,
    /// Whether it was there before the submitters: a worker.
    is_worker: bool,
    /// Whether it is between its marks.
    has_requests: bool,
    is_in_kernel: bool,
    /// Addresses of the calls that have not returned.
    calls: Vec<u64>,
}

/// A process under `ptrace`.
pub(super) struct Steps<'a> {
    /// Starts of functions that run to their end at once.
    whole: &'a HashSet<u64>,
    memory: File,
    codes: HashMap<u64, Code>,
    threads: BTreeMap<Pid, Thread>,
    /// Threads outside of the kernel.
    ready: VecDeque<Pid>,
    counts: Counts,
}

impl<'a> Steps<'a> {
    /// Stops all threads of a process, each in a system call.
    pub(super) fn attach(process: Pid, whole: &'a HashSet<u64>) -> Result<Self> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem"));
        let memory = memory.context("the memory of the process")?;
        // Each step is a switch to the thread and back, which is cheap on one CPU.
        pin(None)?;
        let mut steps = Self {
            whole,
            memory,
            codes: HashMap::new(),
            threads: BTreeMap::new(),
            ready: VecDeque::new(),
            counts: Counts::default(),
        };
        let options = Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
        for task in fs::read_dir(format!("/proc/{process}/task"))? {
            let name = task?.file_name();
            let thread = Pid::from_raw(name.to_string_lossy().parse()?);
            match ptrace::seize(thread, options) {
                // A submitter before the marks, which has ended meanwhile.
                Err(Errno::ESRCH) => continue,
                seized => seized.context("ptrace is not permitted here")?,
            }
            ptrace::interrupt(thread)?;
            let status = waitpid(thread, Some(WaitPidFlag::__WALL))?;
            if !matches!(status, WaitStatus::Exited(..)) {
                pin(Some(thread))?;
                steps.insert(thread, thread != process);
                steps.enter_kernel(thread)?;
            }
        }
        Ok(steps)
    }

    /// Steps until so many submitters have ended their requests.
    pub(super) fn run(mut self, submitters: usize) -> Result<Counts> {
        let mut ended = 0;
        while ended < submitters {
            while let Some(status) = self.arrived()? {
                self.arrive(status)?;
            }
            let Some(thread) = self.ready.pop_front() else { continue };
            ended += usize::from(self.step(thread)?);
        }
        Ok(self.counts)
    }

    fn insert(&mut self, thread: Pid, is_worker: bool) {
        let number = self.threads.len();
        self.threads.insert(thread, Thread { number, is_worker, ..Thread::default() });
    }

    /// A thread that has left the kernel. Waits for one if no other can step.
    fn arrived(&self) -> Result<Option<WaitStatus>> {
        let is_idle = self.ready.is_empty();
        let wait = if is_idle { WaitPidFlag::empty() } else { WaitPidFlag::WNOHANG };
        if !self.threads.values().any(|thread| thread.is_in_kernel) {
            ensure!(!is_idle, "the process has ended");
            return Ok(None);
        }
        let status = waitpid(None, Some(WaitPidFlag::__WALL | wait))?;
        Ok((status != WaitStatus::StillAlive).then_some(status))
    }

    fn arrive(&mut self, status: WaitStatus) -> Result<()> {
        match status {
            WaitStatus::Exited(thread, _) => {
                self.threads.remove(&thread);
            }
            // It has made a thread, and is still in that call.
            WaitStatus::PtraceEvent(thread, _, nix::libc::PTRACE_EVENT_CLONE) => {
                ptrace::step(thread, None)?;
            }
            WaitStatus::PtraceEvent(thread, ..) if !self.threads.contains_key(&thread) => {
                self.insert(thread, false);
                self.ready.push_back(thread);
            }
            WaitStatus::Stopped(thread, Signal::SIGTRAP) => {
                self.thread(thread)?.is_in_kernel = false;
                self.ready.push_back(thread);
            }
            other => bail!("a thread was to step: {other:?}"),
        }
        Ok(())
    }

    fn thread(&mut self, thread: Pid) -> Result<&mut Thread> {
        self.threads.get_mut(&thread).with_context(|| format!("thread {thread} is unknown"))
    }

    fn enter_kernel(&mut self, thread: Pid) -> Result<()> {
        self.thread(thread)?.is_in_kernel = true;
        Ok(ptrace::step(thread, None)?)
    }

    /// Executes an instruction, or a whole function. Returns whether it ended the thread's
    /// requests.
    fn step(&mut self, thread: Pid) -> Result<bool> {
        let regs = ptrace::getregs(thread)?;
        if self.whole.contains(&regs.rip) {
            let mut word = [0; 8];
            self.memory.read_exact_at(&mut word, regs.rsp)?;
            self.thread(thread)?.calls.pop();
            self.run_to(thread, u64::from_le_bytes(word))?;
            self.ready.push_back(thread);
            return Ok(false);
        }
        self.decode(regs.rip)?;
        let code = &self.codes[&regs.rip];
        let flow = code.flow;
        let next = code.next;
        let ends = flow == Flow::Kernel && regs.rax == MARK && self.mark(thread)?;
        self.count(thread, &regs)?;
        let calls = &mut self.thread(thread)?.calls;
        match flow {
            Flow::Call => calls.push(regs.rip),
            Flow::Return => drop(calls.pop()),
            _ => {}
        }
        match flow {
            Flow::Kernel => {
                self.enter_kernel(thread)?;
                return Ok(ends);
            }
            Flow::Repeated => self.run_to(thread, next)?,
            Flow::Inside | Flow::Call | Flow::Return => {
                ptrace::step(thread, None)?;
                stopped(thread)?;
            }
        }
        self.ready.push_back(thread);
        Ok(false)
    }

    /// Begins the thread's requests, or ends them and returns true.
    fn mark(&mut self, thread: Pid) -> Result<bool> {
        let thread = self.thread(thread)?;
        thread.has_requests ^= true;
        Ok(!thread.has_requests)
    }

    fn decode(&mut self, address: u64) -> Result<()> {
        if !self.codes.contains_key(&address) {
            let mut bytes = [0; LONGEST_BYTES];
            let len = self.memory.read_at(&mut bytes, address)?;
            self.codes.insert(address, Code::decode(&bytes[..len], address)?);
        }
        Ok(())
    }

    /// Counts an instruction of a submitter between its marks, or of a worker meanwhile.
    fn count(&mut self, thread: Pid, regs: &user_regs_struct) -> Result<()> {
        let has_requests = self.threads.values().any(|thread| thread.has_requests);
        let thread = &self.threads[&thread];
        if !(thread.has_requests || thread.is_worker && has_requests) {
            return Ok(());
        }
        let code = &self.codes[&regs.rip];
        let mut chain = Chain::default();
        let callers = thread.calls.iter().rev().copied();
        for (frame, address) in chain.iter_mut().zip(std::iter::once(regs.rip).chain(callers)) {
            *frame = address;
        }
        let counts = &mut self.counts;
        counts.instructions += 1;
        if code.flow == Flow::Kernel && regs.rax != MARK {
            *counts.system_calls.entry(regs.rax).or_default() += 1;
        }
        if code.is_atomic {
            *counts.atomics.entry(chain).or_default() += 1;
        }
        for access in code.accesses(|register| value(register, regs)) {
            counts.lines.add(thread.number, &chain, access);
        }
        Ok(())
    }

    /// Runs a thread to this address, while no other one leaves the kernel.
    fn run_to(&self, thread: Pid, address: u64) -> Result<()> {
        let mut original = [0];
        self.memory.read_exact_at(&mut original, address)?;
        self.memory.write_all_at(&[BREAKPOINT], address)?;
        ptrace::cont(thread, None)?;
        stopped(thread)?;
        self.memory.write_all_at(&original, address)?;
        let mut regs = ptrace::getregs(thread)?;
        ensure!(regs.rip == address + 1, "stopped at {:#x}, not {address:#x}", regs.rip);
        regs.rip = address;
        Ok(ptrace::setregs(thread, regs)?)
    }
}

/// Binds a thread, or this one, to the first CPU of this one.
fn pin(thread: Option<Pid>) -> Result<()> {
    let all = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).context("there is no CPU")?;
    let mut one = CpuSet::new();
    one.set(first);
    let thread = thread.and_then(|thread| rustix::process::Pid::from_raw(thread.as_raw()));
    Ok(sched_setaffinity(thread, &one)?)
}

/// Waits for the end of a step.
fn stopped(thread: Pid) -> Result<()> {
    let status = waitpid(thread, Some(WaitPidFlag::__WALL))?;
    ensure!(status == WaitStatus::Stopped(thread, Signal::SIGTRAP), "in a step: {status:?}");
    Ok(())
}
