//! Bios of threads between their submission and their end.

use blockyard_engine::bio::{Bio, BlkStatus, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;

use super::super::in_flight::{InFlight, InFlights, Mark, Out};
use super::super::machine::Machine;
use super::super::threads::Threads;
use super::super::trace::Wait;
use crate::cpu::{CpuId, ThreadId};

/// Bios in flight, and those that wait for a request.
#[derive(Debug, Default)]
pub(super) struct Bios {
    in_flight: InFlights,
    parked: Vec<(u64, ThreadId)>,
}

impl Bios {
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Length of a bio in bytes.
    pub(super) fn bytes(&self, user: u64) -> u64 {
        self.in_flight.bytes(user)
    }

    /// The thread that has submitted a bio.
    pub(super) fn owner(&self, user: u64) -> ThreadId {
        ThreadId(self.in_flight.thread(user))
    }

    /// Makes the bio of a thread and puts it in flight.
    pub(super) fn make(
        &mut self,
        threads: &Threads<'_>,
        cpu: CpuId,
        thread: ThreadId,
        out: &Out,
    ) -> Bio {
        let submitter = &threads[thread];
        let bytes = u64::from(out.sectors) * 512;
        let user =
            self.in_flight.insert(InFlight { thread: thread.0, purpose: out.purpose, bytes });
        let origin = Origin {
            io_context: submitter.io_context,
            cpu: cpu.0,
            priority: submitter.priority,
            sync: out.mark != Mark::Async,
            noidle: out.mark == Mark::SyncNoidle,
            ..Origin::default()
        };
        let buf = match out.op {
            Op::Read | Op::Write => BufRef::zeros(out.sectors * 512),
            _ => BufRef::NONE,
        };
        let sector = Sector(out.sector);
        let len = Sector(u64::from(out.sectors));
        let bio = Bio::new(out.op, sector, len, buf, user);
        Bio { preflush: out.preflush, fua: out.fua, origin, ..bio }
    }

    /// Ends a bio of a thread.
    pub(super) fn end(&mut self, machine: &mut Machine<'_>, user: u64, status: BlkStatus) {
        let bio = self.in_flight.remove(user);
        machine.files.end_bio(&mut machine.threads, bio, status);
    }

    /// The thread waits until its bio gets a request.
    pub(super) fn park(&mut self, user: u64, thread: ThreadId) {
        self.parked.push((user, thread));
    }

    /// Whether a bio of the thread waits for a request.
    pub(super) fn has_parked(&self, thread: ThreadId) -> bool {
        self.parked.iter().any(|(_, parked)| *parked == thread)
    }

    /// Wakes threads whose parked bios have got their requests.
    pub(super) fn wake_parked(&mut self, threads: &mut Threads<'_>, unparked: &mut Vec<u64>) {
        for user in unparked.drain(..) {
            let place = self.parked.iter().position(|(parked, _)| *parked == user);
            if let Some(place) = place {
                let (_, thread) = self.parked.swap_remove(place);
                threads.wake_from(thread, Wait::Request);
            }
        }
    }
}
