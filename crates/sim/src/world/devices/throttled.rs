//! A limit of the rate of the device, in front of its queue or its mapped device, like that of a
//! server's export ([`blockyard_engine::throttle`]). The throttle itself costs no CPU time.

use blockyard_engine::bio::Bio;
use blockyard_engine::throttle::{Limits, Throttle, Waiting};
use blockyard_engine::time::Nanos;

use super::super::actions::Context;
use super::super::machine::Machine;
use super::{Backend, Devices};
use crate::cpu::CpuId;

/// Token buckets, and the bios that wait for tokens.
pub(super) struct Throttled {
    throttle: Throttle,
    waiting: Waiting,
}

impl Throttled {
    /// `None` without limits.
    pub(super) fn new(limits: Limits) -> Option<Self> {
        let new = || Self { throttle: Throttle::new(limits), waiting: Waiting::new() };
        limits.is_some().then(new)
    }

    /// Whether a bio may start now; otherwise it waits.
    pub(super) fn admits(&mut self, now: Nanos, bio: &Bio) -> bool {
        self.waiting.begin_request();
        self.waiting.admit(now, bio, |cost| self.throttle.reserve(now, cost))
    }

    pub(super) fn next_event(&self) -> Option<Nanos> {
        self.waiting.wake_at()
    }

    fn next(&mut self, now: Nanos) -> Option<Bio> {
        let held = self.waiting.next(now, |cost| self.throttle.reserve(now, cost))?;
        Some(held.bio)
    }
}

impl Devices {
    /// Starts the first bio that has its tokens.
    pub(super) fn start_throttled(&mut self, machine: &mut Machine<'_>) {
        let now = machine.threads.now();
        let Some(bio) = self.throttled.as_mut().and_then(|throttled| throttled.next(now)) else {
            return;
        };
        // The work is its submitter's, wherever the kernel has its timer.
        let by = Context::Interrupt(CpuId(bio.origin.cpu));
        let thread = self.bios.owner(bio.user);
        if let Backend::Mapped(_) = self.backend {
            self.submit_mapped(machine, by, bio, thread);
        } else {
            // A bio that waits for a request here has no thread that waits for it.
            self.enters_queue(machine, by, bio, thread);
            self.run_queue(machine, by);
        }
    }
}
