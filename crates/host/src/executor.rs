//! Executes SQEs, each in the way that is cheapest for its file.
//!
//! What can be done at once is done at once and answered in the same call: ciphers inline, tmpfs
//! through its mapping, page cache hits, buffered writes. What would block goes to the ring, or is
//! done by whoever waits for nothing else ([`blocking`]); what is large enough goes to a worker;
//! both are answered by [`Executor::poll`]. What a device with direct I/O is asked for is plugged
//! until [`Executor::unplug`], and passes the device's queue ([`crate::disk`]): that of this
//! executor, or that of the device's thread.

mod blocking;
mod buffers;
mod ciphers;
mod end;
#[cfg(feature = "canaries")]
mod false_flushes;
mod files;
mod handed_over;
mod hctx;
mod neighbours;

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_engine::bio::{BlkStatus, IoContext, Op, Sample};
use blockyard_engine::sq::{Cqe, DevId, Sqe, SqeOp, Token};
use blockyard_engine::stack::Stack;
use blockyard_engine::time::Nanos;

use blocking::{Blocking, User};
pub(crate) use buffers::Buffers;
use handed_over::HandedOver;
use hctx::Hctx;

use crate::backend::{Backend, Device};
use crate::stages::{self, Samples, Stage, StageStats};
use crate::timers::Timers;
use crate::workers::{Task, Workers};

/// The real world of one shard. More than twelve fields: who submits, the ends of the devices'
/// queues, what is in flight where, and vectors that are kept for their memory.
pub(crate) struct Executor {
    backend: Arc<Backend>,
    workers: Option<Arc<Workers>>,
    /// The io-context of the volume's writing thread.
    writer: IoContext,
    io_context: IoContext,
    buffers: Buffers,
    /// This thread as a worker, while it does what waits for one.
    helper: Task,
    blocking: Blocking,
    /// What is executed now is all that its submitter waits for.
    is_alone: bool,
    /// One for each device of the volume.
    hctxs: Vec<Hctx>,
    handed_over: HandedOver,
    /// The writing thread is to run.
    woken: Vec<Token>,
    /// The task in whose name operations are submitted that leave it open.
    task: IoContext,
    timers: Timers,
    #[cfg(feature = "canaries")]
    flushes: false_flushes::Flushes,
    /// Bios that time is kept of.
    pub(crate) samples: Samples,
    epoch: Instant,
    /// Emptied after each use; kept for their memory.
    completed: Vec<(User, io::Result<()>)>,
    done: Vec<(IoContext, Cqe)>,
}

impl Executor {
    pub(crate) fn new(
        backend: &Arc<Backend>,
        workers: Option<&Arc<Workers>>,
        writer: IoContext,
        stage_stats: &Arc<StageStats>,
        buffers: Buffers,
        io_context: IoContext,
    ) -> io::Result<Self> {
        let has_threads = workers.is_some() || backend.device_threads().next().is_some();
        let handed_over = HandedOver::new(has_threads)?;
        let hctxs = backend.devices.iter().map(Hctx::of).collect();
        let files = backend.devices.iter().map(|device| &device.file);
        let files = files.filter(|file| file.local().is_some()).map(|file| file.data_fd());
        let blocking = Blocking::new(files.collect());
        if let Some(completions) = &handed_over.completions {
            backend
                .device_threads()
                .for_each(|disk| disk.join(io_context, Arc::clone(completions)));
        }
        Ok(Self {
            backend: Arc::clone(backend),
            workers: workers.cloned(),
            writer,
            samples: Samples::new(stage_stats),
            io_context,
            buffers,
            helper: Task::new(),
            blocking,
            is_alone: false,
            hctxs,
            handed_over,
            woken: Vec::new(),
            task: io_context,
            timers: Timers::default(),
            #[cfg(feature = "canaries")]
            flushes: false_flushes::Flushes::default(),
            epoch: Instant::now(),
            completed: Vec::new(),
            done: Vec::new(),
        })
    }

    /// Whether the writing thread is to run; its wake-ups are moved to the end of `cqes`.
    pub(crate) fn take_woken(&mut self, cqes: &mut Vec<Cqe>) -> bool {
        if self.woken.is_empty() {
            return false;
        }
        let woken = self.woken.drain(..).map(|token| Cqe { token, status: BlkStatus::Ok });
        cqes.extend(woken);
        true
    }

    /// As [`Executor::execute`], in the name of the volume's writing thread.
    pub(crate) fn execute_as_writer(&mut self, sqes: &[Sqe], shard: &Stack, cqes: &mut Vec<Cqe>) {
        self.task = self.writer;
        self.execute(sqes, shard, cqes);
        self.task = self.io_context;
    }

    /// Executes the `sqes` of `shard`, and moves what was answered at once to the end of `cqes`.
    pub(crate) fn execute(&mut self, sqes: &[Sqe], shard: &Stack, cqes: &mut Vec<Cqe>) {
        #[cfg(feature = "canaries")]
        self.flushes.see(sqes);
        if self.buffers.has_pages {
            self.buffers.look_up(sqes, shard);
        }
        self.is_alone = sqes.len() == 1 && self.blocking.is_alone() && self.is_all_blocking();
        let mut rest = sqes;
        while let [sqe, tail @ ..] = rest {
            let neighbours = self.write_neighbours(rest, cqes);
            if neighbours > 0 {
                rest = &rest[neighbours..];
                continue;
            }
            let status = if sqe.linked {
                let [second, tail @ ..] = tail else { panic!("a linked SQE has a second half") };
                rest = tail;
                self.execute_pair(sqe, second, cqes)
            } else {
                rest = tail;
                match self.device_bio(sqe) {
                    Some((dev, bio)) => self.plug(dev, bio, cqes),
                    None if sqe.origin.sample == Sample::NONE => self.execute_one(sqe),
                    None => self.execute_timed(sqe),
                }
            };
            if let Some(status) = status {
                cqes.push(Cqe { token: sqe.token, status });
            }
        }
        self.blocking.submit();
    }

    /// As [`Executor::execute_one`], with a look at the clock before and behind it.
    fn execute_timed(&mut self, sqe: &Sqe) -> Option<BlkStatus> {
        let (sample, from) = (sqe.origin.sample, stages::now());
        let status = self.execute_one(sqe);
        let is_cipher = matches!(sqe.op, SqeOp::Crypt { .. });
        let stage = if is_cipher { Stage::Cipher } else { Stage::Device };
        match status {
            Some(_) => self.samples.add_since(sample, stage, from),
            // A worker keeps time itself, and a thread is woken for many bios.
            None if is_cipher || sqe.op == SqeOp::Wake => {}
            None => self.samples.wait(sample, sqe.token, from),
        }
        status
    }

    fn execute_one(&mut self, sqe: &Sqe) -> Option<BlkStatus> {
        match sqe.op {
            SqeOp::Read { dev, sector, buf } => self.read(sqe.token, dev, sector, buf),
            SqeOp::Write { dev, sector, buf, fua } => self.write(dev, sector, buf, fua),
            SqeOp::Flush { dev } => self.flush(sqe.token, dev),
            SqeOp::Discard { dev, sector, len } => {
                let device = self.device(dev);
                if let Some(mapping) = &device.mapping {
                    mapping.forget(sector.bytes(), len.bytes());
                }
                let discarded = device.file.discard(sector.bytes(), len.bytes());
                Some(device.file.ended(Op::Discard, false, discarded))
            }
            SqeOp::WriteZeroes { dev, sector, len } => {
                let device = self.device(dev);
                if let Some(mapping) = &device.mapping {
                    mapping.forget(sector.bytes(), len.bytes());
                }
                let written = device.file.write_zeroes(sector.bytes(), len.bytes());
                Some(device.file.ended(Op::WriteZeroes, false, written))
            }
            SqeOp::Check { dev } => {
                let file = &self.device(dev).file;
                Some(file.ended(Op::Read, false, file.file().read_exact_at(&mut [0; 512], 0)))
            }
            SqeOp::Fill { buf, byte } => {
                let base = self.buffers.at(buf);
                // SAFETY: `at` checked the range, and the part of the buffer belongs to this SQE.
                unsafe { base.write_bytes(byte, buf.len_bytes as usize) };
                Some(BlkStatus::Ok)
            }
            SqeOp::Log { log, step, buf } => {
                let (base, len) = (self.buffers.at(buf).cast_const(), buf.len_bytes as usize);
                // SAFETY: `at` checked the range; the bytes of a write change for nobody until it
                // has been answered.
                let bytes = unsafe { std::slice::from_raw_parts(base, len) };
                let flush = (self.io_context, sqe.token.index);
                Some(self.backend.log(log).step(step, bytes, flush))
            }
            SqeOp::Timeout { after } => {
                self.timers.start(since(self.epoch) + after, sqe.token);
                None
            }
            SqeOp::Wake => {
                self.woken.push(sqe.token);
                None
            }
            SqeOp::Crypt { src, dst, .. } => {
                let (src, dst) = (self.buffers.at(src).cast_const(), self.buffers.memory(dst));
                self.crypt(sqe, src, dst)
            }
        }
    }

    fn device(&self, dev: DevId) -> &Device {
        self.backend.device(dev)
    }

    /// Moves what has been answered meanwhile to the end of `cqes`.
    pub(crate) fn poll(&mut self, cqes: &mut Vec<Cqe>) {
        let before = cqes.len();
        if self.blocking.in_flight() > 0 {
            self.blocking.take(&mut self.completed);
            self.on_completed(cqes);
        }
        self.handed_over.take(cqes, &mut self.samples);
        if !self.timers.is_empty() {
            self.timers.take_due(since(self.epoch), cqes);
        }
        self.samples.on_answers(&cqes[before..]);
    }

    fn on_completed(&mut self, cqes: &mut Vec<Cqe>) {
        let now = since(self.epoch);
        let mut completed = std::mem::take(&mut self.completed);
        for (user, result) in completed.drain(..) {
            match user {
                User::Sqe(token, dev, op) => {
                    let status = self.device(dev).file.ended(op, false, result);
                    cqes.push(Cqe { token, status });
                }
                User::Request(dev, tag) => {
                    if let Hctx::Own { queue, .. } = &mut self.hctxs[usize::from(dev.0)] {
                        queue.complete(now, tag, result);
                    }
                }
            }
        }
        self.completed = completed;
        for index in 0..self.hctxs.len() {
            if matches!(self.hctxs[index], Hctx::Own { .. }) {
                self.dispatch(now, dev_id(index), cqes);
            }
        }
    }

    /// Whether every SQE has been answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.handed_over.count() + self.woken.len() == 0
            && self.timers.is_empty()
            && self.blocking.in_flight() == 0
            && self.hctxs.iter().all(Hctx::is_idle)
    }

    /// Does what waits for a worker, if there is something: its answer may be this executor's.
    pub(crate) fn help(&mut self) -> bool {
        let workers = self.workers.as_ref().filter(|_| self.handed_over.to_workers > 0);
        workers.is_some_and(|workers| {
            let _busy = workers.busy();
            workers.help(&mut self.helper)
        })
    }

    /// Whether another thread still reads the front end's buffers.
    pub(crate) fn reads_client_buffer(&self) -> bool {
        self.handed_over.to_workers + self.handed_over.borrowed > 0
    }

    /// Whether the submitter has nothing else to do until what is executed from now on has ended.
    pub(crate) fn set_awaited(&mut self, is_awaited: bool) {
        self.blocking.set_awaited(is_awaited);
    }

    /// Waits for what blocks in a system call of its own, if there is nothing else to wait for, and
    /// says so.
    pub(crate) fn wait_inside(&mut self) -> bool {
        self.is_all_blocking() && self.blocking.wait()
    }

    /// Nothing is in flight but what [`Blocking`] has.
    fn is_all_blocking(&self) -> bool {
        self.handed_over.count() == 0 && self.timers.is_empty()
    }

    /// What becomes readable when [`Executor::poll`] has something.
    pub(crate) fn wake_sources(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [self.blocking.ready(), self.handed_over.wake()]
    }

    /// After this time [`Executor::poll`] has something in any case.
    pub(crate) fn wake_after(&self) -> Option<Duration> {
        let wait = self.timers.next()?.since(since(self.epoch));
        Some(Duration::from_nanos(wait.0))
    }

    /// What this executor's own queue for a device has counted.
    #[cfg(test)]
    pub(crate) fn counters(&self, device: usize) -> Option<blockyard_engine::mq::Counters> {
        match &self.hctxs[device] {
            Hctx::Own { queue, .. } => Some(queue.counters()),
            Hctx::Bypassed | Hctx::Shared(_) => None,
        }
    }

    /// Gives the memory of the buffers back while nothing is in flight.
    pub(crate) fn release_buffers(&self) {
        assert!(self.is_idle());
        self.buffers.bounce.release();
        self.helper.scratch.release();
        for region in &self.buffers.world {
            region.release();
        }
    }
}

/// Now, if time is kept of the bio.
fn time_of(sample: Sample) -> Nanos {
    if sample == Sample::NONE { Nanos(0) } else { stages::now() }
}

fn since(epoch: Instant) -> Nanos {
    Nanos(u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn dev_id(index: usize) -> DevId {
    DevId(u16::try_from(index).expect("a table has few lines"))
}
