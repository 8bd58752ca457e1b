//! Actions of contexts: each is paid for before it takes effect.
//!
//! A *context* is a thread, or an interrupt of a CPU. An action takes it a burst, and has its
//! effect at the end of that burst: no device works on a request, and no worker runs, before the
//! submitter has finished.
//!
//! ```text
//!   thread     action ── its cost, by the scheduler ──> done ── more actions ──> ... ── own work
//!   interrupt  action ── its cost, at once, after the CPU's others ──> done ── more actions
//! ```

use std::collections::VecDeque;

use blockyard_engine::mq::Issue;
use blockyard_engine::request::Tag;
use blockyard_engine::sq::{Sqe, Token};
use blockyard_engine::time::Nanos;

use super::bandwidth::FlowId;
use crate::cpu::{CpuId, ThreadId};

/// The context of an action.
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

/// An action of an interrupt whose cost is paid at some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interrupt {
    pub(super) cpu: CpuId,
    pub(super) action: Action,
    /// Its traffic: the interrupt ends after that.
    pub(super) flow: Option<FlowId>,
}

impl Interrupt {
    pub(super) fn of(cpu: CpuId, action: Action) -> Self {
        Self { cpu, action, flow: None }
    }
}

/// A device: the only one, or a member of a RAID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberId(pub(super) u16);

/// A dispatched request of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dispatched {
    pub(super) member: MemberId,
    pub(super) issue: Issue,
}

/// A request at a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct AtDevice {
    pub(super) member: MemberId,
    pub(super) tag: Tag,
}

/// An action of an interrupt.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Issues a request to the device.
    Issue(Dispatched),
    /// The device has completed a request.
    Interrupted(AtDevice),
    /// Another CPU calls this one to complete a request.
    Called(AtDevice),
    /// Completes a request.
    Completed(AtDevice),
    /// Executes a step of a mapped device.
    Step(Step),
    /// A mapped device's timeout.
    Timeout(Token),
}

/// An SQE with its linked successor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) sqe: Sqe,
    pub(super) then: Option<Sqe>,
    /// CPU on which it was queued for a worker.
    pub(super) queued_on: CpuId,
    /// A cipher for a worker.
    pub(super) is_taken: bool,
    pub(super) via: Via,
}

/// Way of a cipher to the context that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// The context that has it, or the worker that takes it.
    Own,
    /// That context hands it over to cryptd.
    Cryptd,
    /// cryptd has it.
    TakenByCryptd,
}

/// Kind of a thread's next action, which is the first of its pending ones.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    Issue,
    Step,
    Bio,
    /// It hands its batch over to workers.
    HandOver,
}

/// Pending actions of a thread.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Action paid for by the current burst.
    pub(super) paid: Option<Next>,
    /// Dispatched requests that are not issued.
    pub(super) issues: VecDeque<Dispatched>,
    /// Steps of mapped devices.
    pub(super) todo: VecDeque<Step>,
    /// Cost to add to the next burst.
    pub(super) deferred: Nanos,
    /// The thread must wait for a free request after issuing its dispatched ones.
    pub(super) parked: bool,
    /// The plug is closed after the last action.
    pub(super) unplugs: bool,
    /// Its batch of ciphers goes to workers after the last action.
    pub(super) hands_over: bool,
}
