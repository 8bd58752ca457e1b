//! A world for jobs, and tests of jobs in it, by story.

mod batches;
mod ends;
mod fsyncs;
mod order;
mod pace;
mod report;

use super::*;
use crate::program::{DirectOp, Reaped};

/// A world in which each operation takes a fixed time, with any number in flight.
pub(super) struct World {
    now: Nanos,
    /// Duration of a call, or of `submit`.
    call: Nanos,
    /// Duration of a reap that does not wait.
    reap: Nanos,
    /// Time from `submit` to the end of an operation.
    device: Nanos,
    /// Offset of the operation that fails.
    fails_at: Option<u64>,
    pub(super) calls: Vec<Call>,
    in_flight: Vec<(Nanos, Reaped)>,
    /// Operations that wait for their `io_submit`: offsets by id.
    prepared: Vec<(u32, u64)>,
    depth_max: usize,
}

impl World {
    pub(super) fn new(call_us: u64, device_us: u64) -> Self {
        Self {
            now: Nanos(0),
            call: Nanos(call_us * 1000),
            reap: Nanos(0),
            device: Nanos(device_us * 1000),
            fails_at: None,
            calls: Vec::new(),
            in_flight: Vec::new(),
            prepared: Vec::new(),
            depth_max: 0,
        }
    }

    fn execute(&mut self, call: Call) -> (Result<(), i32>, Vec<Reaped>) {
        let fails_at = self.fails_at;
        let status = |offset| if Some(offset) == fails_at { Err(5) } else { Ok(()) };
        let is_part = matches!(call, Call::Submit { .. } | Call::Commit | Call::Priority(_));
        assert!(is_part || self.prepared.is_empty(), "prepared operations wait for {call:?}");
        match call {
            Call::Submit { id, offset_bytes, more, .. } => {
                self.prepared.push((id, offset_bytes));
                if !more {
                    return self.execute(Call::Commit);
                }
                (Ok(()), vec![])
            }
            Call::Commit => {
                let ended = self.now + self.device;
                for (id, offset_bytes) in self.prepared.drain(..) {
                    let reaped = Reaped { id, status: status(offset_bytes), ended };
                    self.in_flight.push((ended, reaped));
                }
                self.depth_max = self.depth_max.max(self.in_flight.len());
                self.now = self.now + self.call;
                (Ok(()), vec![])
            }
            Call::Reap { at_least, at_most } => {
                assert!(at_least as usize <= self.in_flight.len(), "it would wait for ever");
                let last = self.in_flight[at_least as usize - 1].0;
                self.now = self.now.max(last) + self.reap;
                let ended = self.in_flight.partition_point(|(ended, _)| *ended <= self.now);
                let ended = ended.min(at_most as usize);
                (Ok(()), self.in_flight.drain(..ended).map(|(_, reaped)| reaped).collect())
            }
            Call::Read { offset_bytes, .. } | Call::Write { offset_bytes, .. } => {
                self.now = self.now + self.call;
                (status(offset_bytes), vec![])
            }
            Call::Sleep(pause) => {
                assert!(self.in_flight.is_empty(), "it pauses with nothing in flight");
                self.now = self.now + pause;
                (Ok(()), vec![])
            }
            Call::Fsync(_) => {
                self.now = self.now + self.call;
                (Ok(()), vec![])
            }
            _ => (Ok(()), vec![]),
        }
    }

    /// Runs the tasks one after the other.
    fn run(&mut self, fio: &mut Fio) {
        while let Some(mut phase) = fio.next_phase() {
            for task in &mut phase.tasks {
                let mut last = (Ok(()), vec![]);
                loop {
                    let returned = Returned { status: last.0, reaped: &last.1, ..Returned::OK };
                    let call = task.next(self.now, &returned);
                    self.calls.push(call);
                    if call == Call::Exit {
                        break;
                    }
                    last = self.execute(call);
                }
                assert!(self.in_flight.is_empty(), "a task ends with nothing in flight");
            }
            fio.end_phase(Nanos(0), self.now, phase.tasks);
        }
    }
}

fn job(rw: Rw, blocks: u64) -> Job {
    Job::new("a").with(|job| {
        job.shape.rw = rw;
        job.region.size_bytes = blocks * 4096;
    })
}

pub(super) fn run(world: &mut World, job: Job) -> JobResult {
    let mut fio = Fio::new(vec![job]).unwrap();
    world.run(&mut fio);
    fio.results()[0].clone()
}

/// Read blocks and written blocks, in order.
fn blocks(calls: &[Call]) -> (Vec<u64>, Vec<u64>) {
    let mut read = vec![];
    let mut written = vec![];
    for call in calls {
        match *call {
            Call::Read { offset_bytes, .. }
            | Call::Submit { op: DirectOp::Read, offset_bytes, .. } => {
                read.push(offset_bytes / 4096);
            }
            Call::Write { offset_bytes, .. } | Call::Submit { offset_bytes, .. } => {
                written.push(offset_bytes / 4096);
            }
            _ => {}
        }
    }
    (read, written)
}
