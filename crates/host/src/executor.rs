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
mod end;
#[cfg(feature = "canaries")]
mod false_flushes;
mod neighbours;

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_engine::bio::{BlkStatus, IoContext, Op, Origin, Sample, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::none::NONE;
use blockyard_engine::sq::{Cqe, DevId, Place, Sqe, SqeOp, Token};
use blockyard_engine::stack::Stack;
use blockyard_engine::time::Nanos;

use blocking::{Blocking, User};
pub(crate) use buffers::Buffers;

use crate::canary::{Canary, is_planted};
use crate::completions::CompletionQueue;
use crate::device_thread::DiskOp;
use crate::disk::{DeviceQueue, DiskQueue, PLUG_MAX};
use crate::file::Kind;
use crate::file_op::{self, FileOp, FileOpKind, iovec};
use crate::fused::{Calls, Fused, Run};
use crate::memory::{Address, Memory};
use crate::pages::BounceChoice;
use crate::stages::{self, Samples, Stage, Timed};
use crate::sync_io::{read_all, read_cached, write_memory};
use crate::timers::Timers;
use crate::volume::{Device, Volume};
use crate::workers::{Job, Task};

/// This executor's end of the way to a device.
enum Way {
    /// No queue.
    Plain,
    /// A queue of its own.
    Own {
        queue: Box<DiskQueue>,
        /// How many operations wait for [`Executor::unplug`].
        plugged: usize,
    },
    /// The queue of the device's thread; what waits for [`Executor::unplug`].
    Shared(Vec<DiskOp>),
}

/// The real world of one shard.
pub(crate) struct Executor {
    volume: Arc<Volume>,
    io_context: IoContext,
    buffers: Buffers,
    /// Writes are encrypted into lists of pages.
    has_pages: bool,
    /// This thread as a worker, while it does what waits for one.
    helper: Task,
    blocking: Blocking,
    /// What is executed now is all that its submitter waits for.
    is_alone: bool,
    /// One for each device of the volume.
    ways: Vec<Way>,
    answers: Option<Arc<CompletionQueue>>,
    with_workers: usize,
    /// The writing thread is to run.
    woken: Vec<Token>,
    /// The task in whose name operations are submitted that leave it open.
    task: IoContext,
    /// Operations that the threads of devices have.
    with_disks: usize,
    /// Writes of them, or on their way to them, that read the front end's memory.
    borrowed: usize,
    timers: Timers,
    #[cfg(feature = "canaries")]
    flushes: false_flushes::Flushes,
    /// Bios that time is kept of.
    pub(crate) samples: Samples,
    epoch: Instant,
    /// Emptied after each use; kept for their memory.
    completed: Vec<(User, io::Result<()>)>,
    done: Vec<(IoContext, Cqe)>,
    timed: Vec<Timed>,
}

impl Executor {
    pub(crate) fn new(
        volume: Arc<Volume>,
        buffers: Buffers,
        io_context: IoContext,
    ) -> io::Result<Self> {
        let is_answered = volume.workers.is_some() || volume.disks().next().is_some();
        let answers = if is_answered { Some(CompletionQueue::new()?) } else { None };
        let way = |device: &Device| match &device.queue {
            DeviceQueue::Bypassed => Way::Plain,
            DeviceQueue::PerConnection(config) => {
                let (file, none) = (Arc::clone(&device.file), ElevatorSpec::of(&NONE));
                Way::Own { queue: Box::new(DiskQueue::new(file, *config, &none)), plugged: 0 }
            }
            DeviceQueue::Shared(_) => Way::Shared(Vec::with_capacity(PLUG_MAX)),
        };
        let ways = volume.devices.iter().map(way).collect();
        let files = volume.devices.iter().map(|device| &device.file);
        let files = files.filter(|file| file.local().is_some()).map(|file| file.data_fd());
        let blocking = Blocking::new(files.collect());
        if let Some(answers) = &answers {
            volume.disks().for_each(|disk| disk.join(io_context, Arc::clone(answers)));
        }
        Ok(Self {
            samples: Samples::new(&volume.stage_stats),
            has_pages: matches!(volume.bounce, BounceChoice::Pages(_)),
            volume,
            io_context,
            buffers,
            helper: Task::new(),
            blocking,
            is_alone: false,
            ways,
            answers,
            with_workers: 0,
            woken: Vec::new(),
            task: io_context,
            with_disks: 0,
            borrowed: 0,
            timers: Timers::default(),
            #[cfg(feature = "canaries")]
            flushes: false_flushes::Flushes::default(),
            epoch: Instant::now(),
            completed: Vec::new(),
            done: Vec::new(),
            timed: Vec::new(),
        })
    }

    /// Whether the writing thread is to run; its wake-ups are moved to the end of `cqes`.
    pub(crate) fn take_woken(&mut self, cqes: &mut Vec<Cqe>) -> bool {
        if self.woken.is_empty() {
            return false;
        }
        let answers = self.woken.drain(..).map(|token| Cqe { token, status: BlkStatus::Ok });
        cqes.extend(answers);
        true
    }

    /// As [`Executor::execute`], in the name of the volume's writing thread.
    pub(crate) fn execute_as_writer(&mut self, sqes: &[Sqe], shard: &Stack, cqes: &mut Vec<Cqe>) {
        self.task = self.volume.writer;
        self.execute(sqes, shard, cqes);
        self.task = self.io_context;
    }

    /// Executes the `sqes` of `shard`, and moves what was answered at once to the end of `cqes`.
    pub(crate) fn execute(&mut self, sqes: &[Sqe], shard: &Stack, cqes: &mut Vec<Cqe>) {
        #[cfg(feature = "canaries")]
        self.flushes.see(sqes);
        if self.has_pages {
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
                match self.disk_op(sqe) {
                    Some((dev, op)) => self.plug(dev, op, cqes),
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

    /// The operation of an SQE whose device has a queue.
    fn disk_op(&self, sqe: &Sqe) -> Option<(DevId, DiskOp)> {
        let transfer =
            |buf: BufRef| (Sector::holding(u64::from(buf.len_bytes)), self.buffers.memory(buf));
        let no_memory = Memory::NONE;
        let is_queued = |dev: DevId| !matches!(self.ways[usize::from(dev.0)], Way::Plain);
        let (dev, op, sector, (len, memory), fua) = match sqe.op {
            SqeOp::Read { dev, sector, buf } if is_queued(dev) => {
                (dev, Op::Read, sector, transfer(buf), false)
            }
            SqeOp::Write { dev, sector, buf, fua } if is_queued(dev) => {
                (dev, Op::Write, sector, transfer(buf), fua)
            }
            SqeOp::Flush { dev } if is_queued(dev) => {
                (dev, Op::Flush, Sector(0), (Sector(0), no_memory), false)
            }
            SqeOp::Discard { dev, sector, len } if is_queued(dev) => {
                (dev, Op::Discard, sector, (len, no_memory), false)
            }
            SqeOp::WriteZeroes { dev, sector, len } if is_queued(dev) => {
                (dev, Op::WriteZeroes, sector, (len, no_memory), false)
            }
            SqeOp::Check { dev } if self.device(dev).file.kind() == Kind::Remote => {
                (dev, Op::Read, Sector(0), (Sector(1), no_memory), false)
            }
            _ => return None,
        };
        let borrows = matches!(sqe.op, SqeOp::Write { buf, .. } if buf.is_world());
        let is_check = matches!(sqe.op, SqeOp::Check { .. });
        let (token, client, origin) = (sqe.token, self.io_context, named(sqe.origin, self.task));
        let submitted = time_of(origin.sample);
        let op = DiskOp {
            token,
            client,
            op,
            sector,
            len,
            memory,
            fua,
            borrows,
            is_check,
            origin,
            submitted,
        };
        Some((dev, op))
    }

    /// Holds an operation back until the next unplug; a full plug is pulled.
    fn plug(&mut self, dev: DevId, op: DiskOp, cqes: &mut Vec<Cqe>) -> Option<BlkStatus> {
        let now = since(self.epoch);
        let waiting = match &mut self.ways[usize::from(dev.0)] {
            Way::Plain => unreachable!("only a device with a queue is plugged"),
            Way::Own { queue, plugged } => {
                if *plugged == 0 {
                    queue.plug(self.io_context);
                }
                queue.submit(now, op);
                *plugged += 1;
                *plugged
            }
            Way::Shared(batch) => {
                self.borrowed += usize::from(op.borrows);
                batch.push(op);
                batch.len()
            }
        };
        if waiting >= PLUG_MAX {
            self.unplug(cqes);
        }
        None
    }

    /// Nothing more will be submitted for now: what was plugged goes to the devices.
    pub(crate) fn unplug(&mut self, cqes: &mut Vec<Cqe>) {
        let epoch = self.epoch;
        for index in 0..self.ways.len() {
            match &mut self.ways[index] {
                Way::Plain | Way::Own { plugged: 0, .. } => {}
                Way::Own { queue, plugged } => {
                    let now = since(epoch);
                    *plugged = 0;
                    queue.unplug(now, self.io_context);
                    self.dispatch(now, dev_id(index), cqes);
                }
                Way::Shared(batch) if batch.is_empty() => {}
                Way::Shared(batch) => {
                    self.with_disks += batch.len();
                    self.volume.devices[index].disk().expect("made for its disk").send(batch);
                }
            }
        }
    }

    /// Starts what a device with an own queue takes now, and collects what has ended.
    fn dispatch(&mut self, now: Nanos, dev: DevId, cqes: &mut Vec<Cqe>) {
        let Self { ways, blocking, done, samples, .. } = self;
        let Way::Own { queue, .. } = &mut ways[usize::from(dev.0)] else {
            unreachable!("only own queues are dispatched here");
        };
        queue.dispatch(now, &mut |op, memory| {
            let user = User::Request(dev, op.user);
            // SAFETY: buffers live as long as the executor, which drops its ring, and with it waits
            // for every completion, before them; the engine gives a buffer to one SQE at a time.
            unsafe { blocking.start(FileOp { user, fd: op.fd, kind: op.kind }, memory) }
        });
        queue.take_done(done);
        queue.take_timed().for_each(|(_, timed)| samples.add(timed));
        cqes.extend(done.drain(..).map(|(_, cqe)| cqe));
        blocking.submit();
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
                Some(self.volume.logs[usize::from(log.0)].step(step, bytes, flush))
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

    /// Runs a cipher between two buffers, here or on a worker.
    fn crypt(&mut self, sqe: &Sqe, src: *const u8, dst: Memory) -> Option<BlkStatus> {
        let SqeOp::Crypt { cipher, direction, iv_sector, src: buf, place, .. } = sqe.op else {
            unreachable!("the caller matched a cipher");
        };
        let run = Run { cipher, direction, iv_sector, len_bytes: buf.len_bytes as usize };
        match place {
            Place::Inline => {
                // SAFETY: both ranges were checked by `Buffers`, belong to this SQE, and are the
                // same or disjoint, as the engine promises.
                unsafe { run.into_memory(&self.volume, src, dst) };
                Some(BlkStatus::Ok)
            }
            Place::SameCpu | Place::Unbound => {
                let (src, sample) = (Address(src.cast_mut()), sqe.origin.sample);
                self.hand_over(place, sqe, run.len_bytes, move |volume, task| {
                    // SAFETY: as above; the buffers outlive the job, because an executor waits for
                    // its workers before it is dropped.
                    unsafe { run.into_memory(volume, src.get(), dst) };
                    task.lap(sample, Stage::Cipher);
                    BlkStatus::Ok
                });
                None
            }
        }
    }

    /// A cipher and the file's side of it as one.
    fn execute_pair(
        &mut self,
        first: &Sqe,
        second: &Sqe,
        cqes: &mut Vec<Cqe>,
    ) -> Option<BlkStatus> {
        if let SqeOp::Write { buf, .. } = second.op
            && buf.slot != BufRef::LINKED_SLOT
        {
            return self.encrypt_and_write(first, second, cqes);
        }
        let (crypt, dev, sector, buf, fua) = match (first.op, second.op) {
            (SqeOp::Read { dev, sector, .. }, crypt @ SqeOp::Crypt { dst, .. }) => {
                (crypt, dev, sector, dst, false)
            }
            (crypt @ SqeOp::Crypt { src, .. }, SqeOp::Write { dev, sector, fua, .. }) => {
                (crypt, dev, sector, src, fua)
            }
            _ => unreachable!("the crypt target links a cipher with a read or a write"),
        };
        let SqeOp::Crypt { cipher, direction, iv_sector, place, .. } = crypt else {
            unreachable!("matched above");
        };
        let run = Run { cipher, direction, iv_sector, len_bytes: buf.len_bytes as usize };
        let fused = Fused { run, dev, sector, base: Address(self.buffers.at(buf)), fua };
        let sample = first.origin.sample;
        match place {
            Place::Inline => {
                let (from, mut calls) = (time_of(sample), Calls::of(sample));
                let scratch = &mut self.helper.scratch;
                // SAFETY: `Buffers::at` checked the buffer, which belongs to this pair; so does the
                // scratch memory, to this thread.
                let status = unsafe { fused.execute(&self.volume, scratch, &mut calls) };
                for span in calls.spans(direction, from).into_iter().flatten() {
                    self.samples.add(Timed { sample, span });
                }
                Some(status)
            }
            Place::SameCpu | Place::Unbound => {
                self.hand_over(place, first, run.len_bytes, move |volume, task| {
                    let mut calls = Calls::of(sample);
                    // SAFETY: as above; the buffers outlive the job, because an executor waits for
                    // its workers before it is dropped.
                    let status = unsafe { fused.execute(volume, &mut task.scratch, &mut calls) };
                    for span in calls.spans(direction, task.seen).into_iter().flatten() {
                        task.lap_until(sample, span.stage, span.to);
                    }
                    status
                });
                None
            }
        }
    }

    /// Encrypts into a bounce slot and submits the write, both in one task.
    fn encrypt_and_write(
        &mut self,
        encrypt: &Sqe,
        write: &Sqe,
        cqes: &mut Vec<Cqe>,
    ) -> Option<BlkStatus> {
        let (
            SqeOp::Crypt { cipher, direction, iv_sector, src, dst, place },
            SqeOp::Write { dev, sector, fua, .. },
        ) = (encrypt.op, write.op)
        else {
            unreachable!("the crypt target links a cipher with a write");
        };
        let run = Run { cipher, direction, iv_sector, len_bytes: src.len_bytes as usize };
        let (src, dst) = (Address(self.buffers.at(src)), self.buffers.memory(dst));
        // SAFETY: `Buffers` checked both ranges, which belong to this pair and are disjoint. They
        // outlive a job, because an executor waits for its workers before it is dropped.
        let encrypt = move |volume: &Volume| unsafe {
            run.into_memory(volume, src.get().cast_const(), dst);
        };
        let sample = write.origin.sample;
        if place == Place::Inline {
            let from = time_of(sample);
            encrypt(&self.volume);
            if sample != Sample::NONE {
                self.samples.add_since(sample, Stage::Cipher, from);
            }
            return match self.disk_op(write) {
                Some((dev, op)) => self.plug(dev, op, cqes),
                None if sample == Sample::NONE => self.execute_one(write),
                None => self.execute_timed(write),
            };
        }
        let queued = self.disk_op(write);
        let shared = matches!(self.ways[usize::from(dev.0)], Way::Shared(_));
        let Some((_, op)) = queued.filter(|_| shared) else {
            // No queue, or one that belongs to this thread's ring: the worker writes itself.
            self.hand_over(place, write, run.len_bytes, move |volume, task| {
                encrypt(volume);
                task.lap(sample, Stage::Cipher);
                let (file, at) = (&volume.devices[usize::from(dev.0)].file, sector.bytes());
                // SAFETY: as above.
                let written = unsafe { write_memory(file.data_fd(), at, dst, run.len_bytes, fua) };
                task.lap(sample, Stage::Device);
                file.ended(Op::Write, fua, written)
            });
            return None;
        };
        let origin = write.origin;
        self.with_disks += 1;
        self.hand_over_job(place, sample, run.len_bytes, move |volume, task| {
            encrypt(volume);
            task.lap(sample, Stage::Cipher);
            let disk = volume.devices[usize::from(dev.0)].disk().expect("its way is shared");
            let (origin, submitted) = (named(origin, task.io_context), task.seen);
            disk.send(&mut vec![DiskOp { origin, submitted, ..op }]);
            None
        });
        None
    }

    fn hand_over(
        &mut self,
        place: Place,
        sqe: &Sqe,
        len_bytes: usize,
        run: impl FnOnce(&Volume, &mut Task) -> BlkStatus + Send + 'static,
    ) {
        let (token, sample) = (sqe.token, sqe.origin.sample);
        let run = move |volume: &Volume, task: &mut Task| Cqe { token, status: run(volume, task) };
        self.hand_over_job(place, sample, len_bytes, move |volume, task| Some(run(volume, task)));
    }

    fn hand_over_job(
        &mut self,
        place: Place,
        sample: Sample,
        len_bytes: usize,
        run: impl FnOnce(&Volume, &mut Task) -> Option<Cqe> + Send + 'static,
    ) {
        let workers = self.volume.workers.as_ref().expect("only a volume with workers fans out");
        let answers = self.answers.as_ref().expect("made together with the workers");
        let volume = Arc::clone(&self.volume);
        self.with_workers += 1;
        let handed_over = time_of(sample);
        let job = Job {
            run: Box::new(move |task| {
                task.seen = handed_over;
                task.lap(sample, Stage::CipherWait);
                run(&volume, task)
            }),
            answer_to: Arc::clone(answers),
            len_bytes: len_bytes as u64,
            counted: None,
        };
        match place {
            Place::SameCpu => workers.submit_here(job, &mut self.helper),
            Place::Inline | Place::Unbound => workers.submit(job, &mut self.helper),
        }
    }

    fn device(&self, dev: DevId) -> &Device {
        &self.volume.devices[usize::from(dev.0)]
    }

    fn read(&mut self, token: Token, dev: DevId, sector: Sector, buf: BufRef) -> Option<BlkStatus> {
        let base = self.buffers.at(buf);
        let (offset_bytes, len_bytes) = (sector.bytes(), buf.len_bytes as usize);
        let device = self.device(dev);
        let fd = device.file.data_fd();
        match device.file.kind() {
            Kind::Tmpfs => {
                if let Some(mapping) = &device.mapping
                    && let Some(pages) = mapping.readable(offset_bytes, len_bytes as u64)
                {
                    // SAFETY: the pages are mapped, the buffer is this SQE's; they are disjoint.
                    unsafe { pages.copy_to_nonoverlapping(base, len_bytes) };
                    if !mapping.is_broken() {
                        return Some(BlkStatus::Ok);
                    }
                }
                let read = read_all(fd, offset_bytes, base, len_bytes);
                Some(device.file.ended(Op::Read, false, read))
            }
            Kind::Cached if self.is_alone => {
                let read = read_all(fd, offset_bytes, base, len_bytes);
                Some(device.file.ended(Op::Read, false, read))
            }
            // What the page cache holds is copied at once; the rest would block.
            Kind::Cached => {
                let done = read_cached(fd, offset_bytes, base, len_bytes);
                if done == len_bytes {
                    return Some(BlkStatus::Ok);
                }
                let kind = FileOpKind::Read { offset_bytes: offset_bytes + done as u64 };
                let rest = iovec(base.wrapping_add(done), len_bytes - done);
                let user = User::Sqe(token, dev, Op::Read);
                self.start(FileOp { user, fd, kind }, &[rest])
            }
            Kind::Direct | Kind::Remote => unreachable!("it passes a queue"),
        }
    }

    fn write(&mut self, dev: DevId, sector: Sector, buf: BufRef, fua: bool) -> Option<BlkStatus> {
        let (memory, len_bytes) = (self.buffers.memory(buf), buf.len_bytes as usize);
        let device = self.device(dev);
        if let Some(mapping) = &device.mapping
            && let Some(mut pages) = mapping.rewritable(sector.bytes(), len_bytes as u64)
        {
            // SAFETY: the memory is this SQE's, which is answered below; the pages are mapped for
            // as many bytes; they are disjoint.
            unsafe {
                memory.each(0, len_bytes, |base, len_bytes| {
                    pages.copy_from_nonoverlapping(base, len_bytes);
                    pages = pages.add(len_bytes);
                });
            }
            if !mapping.is_broken() {
                return Some(BlkStatus::Ok);
            }
        }
        let fd = device.file.data_fd();
        // SAFETY: as above.
        let written = unsafe { write_memory(fd, sector.bytes(), memory, len_bytes, fua) };
        Some(device.file.ended(Op::Write, fua, written))
    }

    fn flush(&mut self, token: Token, dev: DevId) -> Option<BlkStatus> {
        #[cfg(feature = "canaries")]
        if let Some(lie) = self.flushes.flush(&self.volume, dev) {
            return Some(lie);
        }
        if is_planted(Canary::Fdatasync) {
            return Some(BlkStatus::Ok);
        }
        let device = self.device(dev);
        match device.file.kind() {
            Kind::Tmpfs => Some(file_op::status(device.file.flush())),
            Kind::Cached => {
                let fd = device.file.data_fd();
                let kind = FileOpKind::Flush;
                let user = User::Sqe(token, dev, Op::Flush);
                self.start(FileOp { user, fd, kind }, &[])
            }
            Kind::Direct | Kind::Remote => unreachable!("it passes a queue"),
        }
    }

    /// An operation of this executor's buffers, which may have ended when this returns.
    fn start(&mut self, op: FileOp<User>, memory: &[libc::iovec]) -> Option<BlkStatus> {
        let User::Sqe(_, dev, what) = op.user else {
            unreachable!("requests of a queue are started by `dispatch`");
        };
        // SAFETY: as in `dispatch`.
        let ended = unsafe { self.blocking.start(op, memory) };
        ended.map(|result| self.device(dev).file.ended(what, false, result))
    }

    /// Moves what has been answered meanwhile to the end of `cqes`.
    pub(crate) fn poll(&mut self, cqes: &mut Vec<Cqe>) {
        let before = cqes.len();
        if self.blocking.in_flight() > 0 {
            self.blocking.take(&mut self.completed);
            self.on_completed(cqes);
        }
        if let Some(answers) = &self.answers
            && self.with_workers + self.with_disks > 0
        {
            let taken = answers.take(cqes, &mut self.timed);
            self.samples.add_all(&mut self.timed);
            self.with_workers -= taken.from_workers;
            self.with_disks -= taken.from_disks;
            self.borrowed -= taken.borrowed;
        }
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
                    if let Way::Own { queue, .. } = &mut self.ways[usize::from(dev.0)] {
                        queue.complete(now, tag, result);
                    }
                }
            }
        }
        self.completed = completed;
        for index in 0..self.ways.len() {
            if matches!(self.ways[index], Way::Own { .. }) {
                self.dispatch(now, dev_id(index), cqes);
            }
        }
    }

    /// Whether every SQE has been answered.
    pub(crate) fn is_idle(&self) -> bool {
        let way_is_idle = |way: &Way| match way {
            Way::Plain => true,
            Way::Own { queue, .. } => queue.len() == 0,
            Way::Shared(batch) => batch.is_empty(),
        };
        self.with_workers + self.with_disks + self.woken.len() == 0
            && self.timers.is_empty()
            && self.blocking.in_flight() == 0
            && self.ways.iter().all(way_is_idle)
    }

    /// Does what waits for a worker, if there is something: its answer may be this executor's.
    pub(crate) fn help(&mut self) -> bool {
        let workers = self.volume.workers.as_ref().filter(|_| self.with_workers > 0);
        workers.is_some_and(|workers| {
            let _busy = workers.busy();
            workers.help(&mut self.helper)
        })
    }

    /// Whether somebody still reads the front end's buffers.
    pub(crate) fn reads_client_buffer(&self) -> bool {
        self.with_workers + self.borrowed > 0
    }

    /// Whether nobody does anything else until what is executed from now on has ended.
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
        self.with_workers + self.with_disks == 0 && self.timers.is_empty()
    }

    /// What becomes readable when [`Executor::poll`] has something.
    pub(crate) fn wake_sources(&self) -> [Option<BorrowedFd<'_>>; 2] {
        let answers = self.answers.as_ref().filter(|_| self.with_workers + self.with_disks > 0);
        [self.blocking.ready(), answers.map(|answers| answers.ready())]
    }

    /// After this time [`Executor::poll`] has something in any case.
    pub(crate) fn wake_after(&self) -> Option<Duration> {
        let wait = self.timers.next()?.since(since(self.epoch));
        Some(Duration::from_nanos(wait.0))
    }

    /// What this executor's own queue for a device has counted.
    #[cfg(test)]
    pub(crate) fn counters(&self, device: usize) -> Option<blockyard_engine::mq::Counters> {
        match &self.ways[device] {
            Way::Own { queue, .. } => Some(queue.counters()),
            Way::Plain | Way::Shared(_) => None,
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

/// With the io-context of the task that submits it, if it is left open whose.
fn named(origin: Origin, task: IoContext) -> Origin {
    let io_context = match origin.io_context {
        IoContext::OF_TASK => task,
        own => own,
    };
    Origin { io_context, ..origin }
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
