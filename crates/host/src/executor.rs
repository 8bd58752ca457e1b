//! Executes each SQE in the cheapest way for its file.
//!
//! Work that does not block is done and completed in the same call: ciphers inline, tmpfs through
//! its mapping, page cache hits, buffered writes. Blocking operations go to the ring; if the
//! submitter waits for nothing else, its thread does them ([`blocking`]). Long ciphers go to a
//! worker. [`Executor::poll`] returns their completions. Operations for a device with direct I/O
//! are plugged until [`Executor::unplug`], and pass the device's queue ([`crate::disk`]): this
//! executor's own, or that of the device's thread.

mod batch;
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

use blockyard_engine::bio::{BlkStatus, IoContext, Op, Sample, Sector};
use blockyard_engine::sq::{Cqe, DevId, Sqe, SqeOp, Token};
use blockyard_engine::stack::Stack;
use blockyard_engine::time::Nanos;

use batch::Batch;
use blocking::{Blocking, User};
pub(crate) use buffers::Buffers;
use handed_over::HandedOver;
use hctx::Hctx;

use crate::backend::{Backend, Device};
use crate::stages::{self, Samples, Stage, StageStats};
use crate::timers::Timers;
use crate::workers::{HandOver, Task, Workers};

/// The executor of one shard.
// 20 fields: identities of submitters, the ends of the devices' queues, places of operations in
// flight, and vectors that are kept for their memory.
pub(crate) struct Executor {
    backend: Arc<Backend>,
    workers: Option<HandOver>,
    /// The io-context of the volume's writing thread.
    writer: IoContext,
    io_context: IoContext,
    buffers: Buffers,
    /// This thread as a worker, while it runs waiting jobs.
    helper: Task,
    blocking: Blocking,
    /// The submitter waits only for the current SQEs.
    is_alone: bool,
    /// Hardware context of each device of the volume.
    hctxs: Vec<Hctx>,
    /// Whether a device has a queue.
    has_queues: bool,
    handed_over: HandedOver,
    /// Short ciphers for the next job of a worker.
    batch: Batch,
    /// Wake-ups of the writing thread.
    woken: Vec<Token>,
    /// Io-context of operations without one.
    task: IoContext,
    timers: Timers,
    #[cfg(feature = "canaries")]
    flushes: false_flushes::Flushes,
    /// Sampled bios.
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
        (io_context, since): (IoContext, Instant),
    ) -> io::Result<Self> {
        let has_threads = workers.is_some() || backend.device_threads().next().is_some();
        let handed_over = HandedOver::new(has_threads)?;
        let hctxs: Vec<Hctx> = backend.devices.iter().map(Hctx::of).collect();
        let files = backend.devices.iter().map(|device| &device.file);
        let files = files.filter(|file| file.local().is_some()).map(|file| file.data_fd());
        let blocking = Blocking::new(files.collect());
        if let Some(completions) = &handed_over.completions {
            backend
                .device_threads()
                .for_each(|disk| disk.join(io_context, Arc::clone(completions), since));
        }
        Ok(Self {
            backend: Arc::clone(backend),
            workers: workers.map(Workers::for_submitter),
            writer,
            samples: Samples::new(stage_stats),
            io_context,
            buffers,
            helper: Task::new(),
            blocking,
            is_alone: false,
            has_queues: !hctxs.iter().all(|hctx| matches!(hctx, Hctx::Bypassed)),
            hctxs,
            handed_over,
            batch: Batch::default(),
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

    /// Whether the writing thread must run; moves its wake-ups to the end of `cqes`.
    #[inline]
    pub(crate) fn take_woken(&mut self, cqes: &mut Vec<Cqe>) -> bool {
        if self.woken.is_empty() {
            return false;
        }
        let woken = self.woken.drain(..).map(|token| Cqe { token, status: BlkStatus::Ok });
        cqes.extend(woken);
        true
    }

    /// Like [`Executor::execute`], with the io-context of the volume's writing thread.
    pub(crate) fn execute_as_writer(&mut self, sqes: &[Sqe], shard: &Stack, cqes: &mut Vec<Cqe>) {
        self.task = self.writer;
        self.execute(sqes, shard, cqes);
        self.task = self.io_context;
    }

    /// Executes the `sqes` of `shard`; moves immediate completions to the end of `cqes`.
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

    /// Like [`Executor::execute_one`], with timestamps before and after.
    fn execute_timed(&mut self, sqe: &Sqe) -> Option<BlkStatus> {
        let sample = sqe.origin.sample;
        let from = stages::now();
        let status = self.execute_one(sqe);
        let is_cipher = matches!(sqe.op, SqeOp::Crypt { .. });
        let stage = if is_cipher { Stage::Cipher } else { Stage::Device };
        match status {
            Some(_) => self.samples.add_since(sample, stage, from),
            // A worker takes its own timestamps, and a wake-up serves many bios.
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
                Some(device.file.ended(Op::Discard, sector, false, discarded))
            }
            SqeOp::WriteZeroes { dev, sector, len } => {
                let device = self.device(dev);
                if let Some(mapping) = &device.mapping {
                    mapping.forget(sector.bytes(), len.bytes());
                }
                let written = device.file.write_zeroes(sector.bytes(), len.bytes());
                Some(device.file.ended(Op::WriteZeroes, sector, false, written))
            }
            SqeOp::Check { dev } => {
                let file = &self.device(dev).file;
                let read = file.file().read_exact_at(&mut [0; 512], 0);
                Some(file.ended(Op::Read, Sector(0), false, read))
            }
            SqeOp::Fill { buf, byte } => {
                let base = self.buffers.at(buf);
                // SAFETY: `at` checked the range, and the part of the buffer belongs to this SQE.
                unsafe { base.write_bytes(byte, buf.len_bytes as usize) };
                Some(BlkStatus::Ok)
            }
            SqeOp::Log { log, step, buf } => {
                let base = self.buffers.at(buf).cast_const();
                let len = buf.len_bytes as usize;
                // SAFETY: `at` checked the range; the bytes of a write do not change until its
                // completion.
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
                let src = self.buffers.at(src).cast_const();
                let dst = self.buffers.memory(dst);
                self.crypt(sqe, src, dst)
            }
        }
    }

    fn device(&self, dev: DevId) -> &Device {
        self.backend.device(dev)
    }

    /// Moves completions to the end of `cqes`.
    pub(crate) fn poll(&mut self, cqes: &mut Vec<Cqe>) {
        let before = cqes.len();
        if self.blocking.in_flight() > 0 {
            self.blocking.take(&mut self.completed);
            self.on_completed(cqes);
        }
        self.hand_over_batch();
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
                User::Sqe(token, dev, op, sector) => {
                    let status = self.device(dev).file.ended(op, sector, false, result);
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

    /// Whether every SQE has completed.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.handed_over.count() + self.woken.len() + self.batch.len() == 0
            && self.timers.is_empty()
            && self.blocking.in_flight() == 0
            && (!self.has_queues || self.hctxs.iter().all(Hctx::is_idle))
    }

    /// Runs a job of this volume that waits for a worker in this submitter's lane, if any. Its
    /// completion may be another executor's. Counts this thread as a submitter, unless it is
    /// counted.
    pub(crate) fn help(&mut self, is_counted: bool) -> bool {
        let workers = self.workers.as_ref().filter(|_| self.handed_over.to_workers > 0);
        workers.is_some_and(|workers| {
            let _busy = (!is_counted).then(|| workers.busy());
            workers.help(&mut self.helper)
        })
    }

    /// The hand-over to the workers that the volume has.
    #[cfg(test)]
    pub(crate) fn hand_over_of_workers(&self) -> HandOver {
        self.workers.as_ref().expect("the volume has workers").again()
    }

    /// Counts the CPUs of the workers again, if the number is old.
    pub(crate) fn count_cpus(&self) {
        if let Some(workers) = &self.workers {
            workers.count_cpus(stages::now());
        }
    }

    /// Waits a moment for workers without sleep; returns whether there are completions.
    pub(crate) fn spin(&self) -> bool {
        self.handed_over.to_workers > 0 && self.handed_over.spin()
    }

    /// Number of operations at workers.
    pub(crate) fn at_workers(&self) -> usize {
        self.handed_over.to_workers + self.batch.len()
    }

    /// Whether another thread still reads the front end's buffers.
    pub(crate) fn reads_client_buffer(&self) -> bool {
        self.handed_over.to_workers + self.batch.len() + self.handed_over.borrowed > 0
    }

    /// Sets whether the submitter has nothing else to do until the following SQEs have ended.
    pub(crate) fn set_awaited(&mut self, is_awaited: bool) {
        self.blocking.set_awaited(is_awaited);
    }

    /// Waits in a blocking system call, if nothing else is in flight; returns whether it did.
    pub(crate) fn wait_inside(&mut self) -> bool {
        self.is_all_blocking() && self.blocking.wait()
    }

    /// Whether only [`Blocking`] has operations in flight.
    fn is_all_blocking(&self) -> bool {
        self.handed_over.count() + self.batch.len() == 0 && self.timers.is_empty()
    }

    /// Descriptors that become readable when [`Executor::poll`] has completions.
    pub(crate) fn wake_sources(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [self.blocking.ready(), self.handed_over.wake()]
    }

    /// Time after which [`Executor::poll`] has completions in any case.
    pub(crate) fn wake_after(&self) -> Option<Duration> {
        let wait = self.timers.next()?.since(since(self.epoch));
        Some(Duration::from_nanos(wait.0))
    }

    /// Counters of this executor's own queue for a device.
    #[cfg(test)]
    pub(crate) fn counters(&self, device: usize) -> Option<blockyard_engine::mq::Counters> {
        match &self.hctxs[device] {
            Hctx::Own { queue, .. } => Some(queue.counters()),
            Hctx::Bypassed | Hctx::Shared(_) => None,
        }
    }

    /// Releases buffer memory while nothing is in flight.
    pub(crate) fn release_buffers(&self) {
        assert!(self.is_idle());
        self.buffers.bounce.release();
        self.helper.scratch.release();
        for region in &self.buffers.world {
            region.release();
        }
    }
}

/// Now, for a sampled bio.
fn time_of(sample: Sample) -> Nanos {
    if sample == Sample::NONE { Nanos(0) } else { stages::now() }
}

fn since(epoch: Instant) -> Nanos {
    Nanos(u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn dev_id(index: usize) -> DevId {
    DevId(u16::try_from(index).expect("a table has few lines"))
}
