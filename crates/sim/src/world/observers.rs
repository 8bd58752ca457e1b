//! Observers of a run: its trace, and the causes of its duration.

use blockyard_engine::bio::{Bio, BlkStatus};
use blockyard_engine::time::Nanos;

use super::causes::Causes;
use super::trace::{Event, Observer, Trace};
use crate::cpu::ThreadId;

/// The trace and the causes.
pub(super) struct Observers<'a> {
    trace: Trace<'a>,
    pub(super) causes: Causes,
    /// Bytes of submitted bios that have not ended.
    queued_bytes: u64,
    idle_since: Option<Nanos>,
}

impl<'a> Observers<'a> {
    pub(super) fn new(observer: &'a mut dyn Observer) -> Self {
        let trace = Trace::new(observer);
        Self { trace, causes: Causes::default(), queued_bytes: 0, idle_since: None }
    }

    pub(super) fn event(&mut self, at: Nanos, event: Event) {
        self.trace.event(at, event);
    }

    pub(super) fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Notes a submission, with the number of requests in flight.
    pub(super) fn note_submit(&mut self, now: Nanos, bio: &Bio, thread: ThreadId, in_flight: u32) {
        let sync = bio.is_sync();
        if sync {
            self.causes.sync_bios += 1;
            self.causes.bytes_ahead_of_sync += self.queued_bytes;
        }
        self.queued_bytes += bio.len.bytes();
        self.note_idle(now, in_flight);
        let sectors = u32::try_from(bio.len.0).expect("bios are short");
        self.event(
            now,
            Event::Submit {
                bio: bio.user,
                thread,
                op: bio.op,
                sector: bio.sector.0,
                sectors,
                sync,
                fua: bio.fua,
                preflush: bio.preflush,
                priority: bio.origin.priority,
            },
        );
    }

    /// Notes the end of a bio in the queue.
    pub(super) fn note_end(
        &mut self,
        now: Nanos,
        (bio, bytes): (u64, u64),
        status: BlkStatus,
        in_flight: u32,
    ) {
        self.event(now, Event::End { bio, status });
        self.queued_bytes -= bytes;
        self.note_idle(now, in_flight);
    }

    /// Counts the time in which the device is idle although bios wait.
    pub(super) fn note_idle(&mut self, now: Nanos, in_flight: u32) {
        let idles = in_flight == 0 && self.queued_bytes > 0;
        match (self.idle_since, idles) {
            (None, true) => self.idle_since = Some(now),
            (Some(since), false) => {
                self.causes.idle_waiting = self.causes.idle_waiting + now.since(since);
                self.idle_since = None;
            }
            _ => {}
        }
    }
}
