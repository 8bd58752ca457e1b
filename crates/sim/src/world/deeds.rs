//! What is paid for before it is done.
//!
//! A *context* is a thread, or an interrupt of a CPU. What it does for others takes it a burst, and
//! is done at the end of that burst: no device works on a request, and no worker runs, while who
//! submits is still at it.
//!
//! ```text
//!   thread     deed ── its cost, by the scheduler ──> done ── more deeds ──> ... ── its own work
//!   interrupt  deed ── its cost, at once, behind the CPU's other interrupts ──> done ── more deeds
//! ```

use std::collections::VecDeque;

use blockyard_engine::mq::Issue;
use blockyard_engine::request::Tag;
use blockyard_engine::sq::{Sqe, Token};
use blockyard_engine::time::Nanos;

use super::in_flight::Out;
use crate::cpu::{CpuId, ThreadId};

/// Who does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    Thread(CpuId, ThreadId),
    Interrupt(CpuId),
}

impl Context {
    pub(super) fn cpu(self) -> CpuId {
        match self {
            Self::Thread(cpu, _) | Self::Interrupt(cpu) => cpu,
        }
    }
}

/// What a context does at the end of a burst.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deed {
    /// A bio that a thread has made is submitted.
    Bio(ThreadId, Out),
    /// The device gets a request.
    Issue(Issue),
    /// The device has said that it has done a request.
    Interrupted(Tag),
    /// Another CPU calls this one to end a request.
    Called(Tag),
    /// It ends.
    Completed(Tag),
    /// A mapped device's step is executed.
    Step(Step),
    /// A mapped device is told that a time has passed.
    Timeout(Token),
}

/// An SQE, and the one that is linked behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) sqe: Sqe,
    pub(super) then: Option<Sqe>,
    /// Where it was queued for a worker.
    pub(super) queued_on: CpuId,
    /// A cipher that a worker runs.
    pub(super) is_taken: bool,
}

/// Of what a thread's next deed is the first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    Issue,
    Step,
    Bio,
}

/// What a thread has still to do for its bios.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Its burst has paid for it.
    pub(super) paid: Option<Next>,
    /// Dispatched, and not given to the device.
    pub(super) issues: VecDeque<Issue>,
    /// Of mapped devices.
    pub(super) todo: VecDeque<Step>,
    /// The next burst pays for it too.
    pub(super) owed: Nanos,
    /// It has to wait for a request, when the device has what was dispatched before.
    pub(super) parked: bool,
    /// When nothing is left, its plug is closed.
    pub(super) unplugs: bool,
}
