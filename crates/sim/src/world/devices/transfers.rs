//! Transfers of the device: its DMA moves the data of a request through memory whose rate is
//! limited ([`super::super::bandwidth`]).
//!
//! ```text
//!   write ── issued ──> from memory ──> device model ──> interrupt
//!   read ── issued ──> device model ──> to memory ──> interrupt
//! ```
//! A device makes one transfer at a time, in order, at all the rate that it can get. The data lies
//! in the socket of the CPU that has submitted the request. Without a limit a transfer takes the
//! device's own time on its bus only; with it a transfer follows that time.

use std::collections::VecDeque;

use blockyard_engine::bio::Op;
use blockyard_engine::mq::Issue;
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;

use super::super::actions::{AtDevice, Dispatched, MemberId};
use super::super::bandwidth::{FlowId, Traffic};
use super::super::config::Config;
use super::super::machine::Machine;
use super::Devices;
use crate::cpu::CpuId;

/// A transfer, and what follows it.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// The device model starts with a write.
    Start(Issue),
    /// The device has completed a read.
    Complete(Tag),
}

/// Transfers in order; the first one is running.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    waiting: VecDeque<(Traffic, Then)>,
    running: Option<FlowId>,
    /// Reads at the device, by number: their traffic.
    reads: Vec<Traffic>,
}

impl Transfers {
    fn note_read(&mut self, number: u32, traffic: Traffic) {
        let index = number as usize;
        self.reads.resize(self.reads.len().max(index + 1), Traffic::default());
        self.reads[index] = traffic;
    }

    fn start_next(&mut self, machine: &mut Machine<'_>) {
        let Some((traffic, _)) = self.waiting.front() else { return };
        let socket = machine.config.bandwidth.map_or(0, |bandwidth| bandwidth.device_socket);
        self.running = machine.threads.begin_flow(*traffic, socket, Nanos(0));
    }

    /// Ends the running transfer if its time has come, and starts the next one. Returns the action
    /// after the ended transfer.
    fn ended(&mut self, machine: &mut Machine<'_>) -> Option<Then> {
        let running = self.running.filter(|flow| machine.threads.flow_end(*flow).is_none());
        running?;
        self.running = None;
        let (_, then) = self.waiting.pop_front()?;
        self.start_next(machine);
        Some(then)
    }
}

/// Traffic of a request's data.
fn traffic_of(config: &Config, issue: &Issue) -> Traffic {
    let percent = config.bandwidth.map_or(0, |bandwidth| bandwidth.dma_percent);
    let bytes = match issue.op {
        Op::Read | Op::Write => issue.len.bytes() * u64::from(percent) / 100,
        Op::Flush | Op::Discard | Op::WriteZeroes => 0,
    };
    Traffic { bytes, home: config.topology.socket_of(CpuId(issue.origin.cpu)) }
}

impl Devices {
    /// Starts a request at the device model, after the transfer of a write.
    pub(super) fn start_request(&mut self, machine: &mut Machine<'_>, request: Dispatched) {
        let Dispatched { member, issue } = request;
        let traffic = traffic_of(machine.config, &issue);
        if issue.op == Op::Write && traffic.bytes > 0 {
            return self.transfer(machine, member, traffic, Then::Start(issue));
        }
        if machine.config.bandwidth.is_some() {
            let to = self.member(member);
            to.transfers.note_read(to.block.number_of(issue.tag), traffic);
        }
        self.member(member).block.start(machine.threads.now(), issue);
    }

    /// The device model has completed a request; a read is transferred first.
    pub(super) fn model_completes(&mut self, machine: &mut Machine<'_>, request: AtDevice) {
        let AtDevice { member, tag } = request;
        let from = self.member(member);
        let number = from.block.number_of(tag);
        let read = from.transfers.reads.get_mut(number as usize);
        let traffic = read.map(std::mem::take).unwrap_or_default();
        if traffic.bytes > 0 {
            return self.transfer(machine, member, traffic, Then::Complete(tag));
        }
        self.device_completes(machine, request);
    }

    fn transfer(
        &mut self,
        machine: &mut Machine<'_>,
        member: MemberId,
        traffic: Traffic,
        then: Then,
    ) {
        let transfers = &mut self.member(member).transfers;
        transfers.waiting.push_back((traffic, then));
        if transfers.running.is_none() {
            transfers.start_next(machine);
        }
    }

    /// Handles the ends of transfers whose flows have ended.
    pub(in crate::world) fn end_transfers(&mut self, machine: &mut Machine<'_>) {
        for member in self.member_ids() {
            while let Some(then) = self.member(member).transfers.ended(machine) {
                match then {
                    Then::Start(issue) => {
                        self.member(member).block.start(machine.threads.now(), issue);
                    }
                    Then::Complete(tag) => {
                        self.device_completes(machine, AtDevice { member, tag });
                    }
                }
            }
        }
    }
}
