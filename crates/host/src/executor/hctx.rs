//! Hardware contexts of an executor: its end of each device's queue.
//!
//! Bios are plugged until [`Executor::unplug`]. Then they go to this executor's own queue, or to
//! the device's thread.

use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, IoContext, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::none::NONE;
use blockyard_engine::sq::{Cqe, DevId, Sqe, SqeOp};
use blockyard_engine::time::Nanos;

use super::blocking::User;
use super::{Executor, dev_id, since, time_of};
use crate::backend::Device;
use crate::device_thread::DeviceBio;
use crate::disk::{DeviceQueue, DiskQueue, PLUG_MAX};
use crate::file::BackingKind;
use crate::file_op::FileOp;
use crate::memory::Memory;

/// One end of a device's queue.
pub(super) enum Hctx {
    /// No queue.
    Bypassed,
    /// An own queue.
    Own {
        queue: Box<DiskQueue>,
        /// Number of plugged bios.
        plugged: usize,
    },
    /// Plugged bios for the queue of the device's thread.
    Shared(Vec<DeviceBio>),
}

impl Hctx {
    pub(super) fn of(device: &Device) -> Self {
        match &device.queue {
            DeviceQueue::Bypassed => Self::Bypassed,
            DeviceQueue::PerConnection(config) => {
                let file = Arc::clone(&device.file);
                let none = ElevatorSpec::of(&NONE);
                Self::Own { queue: Box::new(DiskQueue::new(file, *config, &none)), plugged: 0 }
            }
            DeviceQueue::Shared(_) => Self::Shared(Vec::with_capacity(PLUG_MAX)),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        match self {
            Self::Bypassed => true,
            Self::Own { queue, .. } => queue.len() == 0,
            Self::Shared(batch) => batch.is_empty(),
        }
    }
}

impl Executor {
    /// The bio of an SQE whose device has a queue.
    #[inline]
    pub(super) fn device_bio(&self, sqe: &Sqe) -> Option<(DevId, DeviceBio)> {
        if self.has_queues { self.queued_bio(sqe) } else { None }
    }

    #[inline(never)]
    fn queued_bio(&self, sqe: &Sqe) -> Option<(DevId, DeviceBio)> {
        let dev = match sqe.op {
            SqeOp::Check { dev } if self.device(dev).file.kind() != BackingKind::Remote => {
                return None;
            }
            SqeOp::Read { dev, .. }
            | SqeOp::Write { dev, .. }
            | SqeOp::Flush { dev }
            | SqeOp::Discard { dev, .. }
            | SqeOp::WriteZeroes { dev, .. }
            | SqeOp::Check { dev } => dev,
            _ => return None,
        };
        if matches!(self.hctxs[usize::from(dev.0)], Hctx::Bypassed) {
            return None;
        }
        let bio = Bio { origin: named(sqe.origin, self.task), ..bio_of(&sqe.op)? };
        let has_data = matches!(sqe.op, SqeOp::Read { .. } | SqeOp::Write { .. });
        let bio = DeviceBio {
            bio,
            memory: if has_data { self.buffers.memory(bio.buf) } else { Memory::NONE },
            token: sqe.token,
            client: self.io_context,
            borrows: bio.op == Op::Write && bio.buf.is_world(),
            is_check: matches!(sqe.op, SqeOp::Check { .. }),
            submitted: time_of(bio.origin.sample),
        };
        Some((dev, bio))
    }

    /// Plugs a bio; flushes a full plug.
    pub(super) fn plug(
        &mut self,
        dev: DevId,
        bio: DeviceBio,
        cqes: &mut Vec<Cqe>,
    ) -> Option<BlkStatus> {
        let now = since(self.epoch);
        let waiting = match &mut self.hctxs[usize::from(dev.0)] {
            Hctx::Bypassed => unreachable!("only a device with a queue is plugged"),
            Hctx::Own { queue, plugged } => {
                if *plugged == 0 {
                    queue.plug(self.io_context);
                }
                queue.submit(now, bio);
                *plugged += 1;
                *plugged
            }
            Hctx::Shared(batch) => {
                self.handed_over.borrowed += usize::from(bio.borrows);
                batch.push(bio);
                batch.len()
            }
        };
        if waiting >= PLUG_MAX {
            self.unplug(cqes);
        }
        None
    }

    /// Ends the plug: plugged bios go to the devices.
    #[inline]
    pub(crate) fn unplug(&mut self, cqes: &mut Vec<Cqe>) {
        if self.batch.len() > 0 {
            self.hand_over_batch();
        }
        if self.has_queues {
            self.unplug_all(cqes);
        }
    }

    #[inline(never)]
    fn unplug_all(&mut self, cqes: &mut Vec<Cqe>) {
        let epoch = self.epoch;
        for index in 0..self.hctxs.len() {
            match &mut self.hctxs[index] {
                Hctx::Bypassed | Hctx::Own { plugged: 0, .. } => {}
                Hctx::Own { queue, plugged } => {
                    let now = since(epoch);
                    *plugged = 0;
                    queue.unplug(now, self.io_context);
                    self.dispatch(now, dev_id(index), cqes);
                }
                Hctx::Shared(batch) if batch.is_empty() => {}
                Hctx::Shared(batch) => {
                    self.handed_over.to_devices += batch.len();
                    self.backend.devices[index].thread().expect("made for its disk").send(batch);
                }
            }
        }
    }

    /// Starts all requests that a device with an own queue accepts now; collects completions.
    pub(super) fn dispatch(&mut self, now: Nanos, dev: DevId, cqes: &mut Vec<Cqe>) {
        let Self { hctxs, blocking, done, samples, .. } = self;
        let Hctx::Own { queue, .. } = &mut hctxs[usize::from(dev.0)] else {
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
}

/// An SQE for a device as a bio; a check reads the first sector.
fn bio_of(op: &SqeOp) -> Option<Bio> {
    let range = |op, sector, len| Bio::new(op, sector, len, BufRef::NONE, 0);
    let transfer = |op, sector, buf: BufRef| {
        Bio::new(op, sector, Sector::holding(u64::from(buf.len_bytes)), buf, 0)
    };
    match *op {
        SqeOp::Read { sector, buf, .. } => Some(transfer(Op::Read, sector, buf)),
        SqeOp::Write { sector, buf, fua, .. } => {
            Some(Bio { fua, ..transfer(Op::Write, sector, buf) })
        }
        SqeOp::Flush { .. } => Some(range(Op::Flush, Sector(0), Sector(0))),
        SqeOp::Discard { sector, len, .. } => Some(range(Op::Discard, sector, len)),
        SqeOp::WriteZeroes { sector, len, .. } => Some(range(Op::WriteZeroes, sector, len)),
        SqeOp::Check { .. } => Some(range(Op::Read, Sector(0), Sector(1))),
        _ => None,
    }
}

/// Sets the io-context to the submitting task's, if it is open.
pub(super) fn named(origin: Origin, task: IoContext) -> Origin {
    let io_context = match origin.io_context {
        IoContext::OF_TASK => task,
        own => own,
    };
    Origin { io_context, ..origin }
}
