//! Memory bandwidth: ciphers, copies and DMA share the memory of a socket, and the links between
//! sockets.
//!
//! ```text
//!   burst, interrupt, transfer ── bytes ──> [link] ──> memory of the data's socket
//!   rate of each: max-min fair, at most its own demand ── slower than that ──> it ends later
//! ```
//! A *flow* is the traffic of one burst, of one interrupt, or of one transfer of a device. A burst
//! needs its bytes evenly over its CPU time, so it demands a rate, and takes longer if it gets
//! less. A transfer takes all that it can get. The shares are max-min fair (Bertsekas and Gallager,
//! *Data Networks*, 1992, 6.5.2): each flow has its demand, or as much as any other one at its
//! bottleneck. So a resource is idle only if nobody wants more of it, and its rate is never above
//! its limit.
//!
//! Left out: latency of a loaded memory, channels and banks, pages that are interleaved over
//! sockets, caches beyond the shares of bytes in [`BandwidthConfig`].

use std::collections::BTreeMap;

use blockyard_engine::time::Nanos;

use super::config::BandwidthConfig;
use crate::cpu::{CpuId, ThreadId, Topology};

/// Parts of a byte in which flows are counted: a rate of one byte a second moves one of them in a
/// nanosecond.
const PARTS: u64 = 1_000_000_000;

/// Bytes between a CPU or a device, and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) bytes: u64,
    /// Socket with the data.
    pub(super) home: u16,
}

/// Number of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowId(u64);

/// Burst of a thread whose end is that of its flow, if that is later than that of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Burst {
    pub(super) cpu: CpuId,
    pub(super) thread: ThreadId,
    /// End of its work.
    pub(super) works_until: Nanos,
}

/// Change of the end of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) burst: Burst,
    pub(super) from: Nanos,
    pub(super) to: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Numbers of the memory, and of the link if it is another socket's.
    memory: usize,
    link: Option<usize>,
    /// Parts of bytes that are not moved.
    left: u64,
    /// Largest rate, in bytes a second.
    demand: u64,
    rate: u64,
    ends: Nanos,
    burst: Option<Burst>,
}

/// The memory of all sockets, their links, and the flows.
#[derive(Debug)]
pub(super) struct Bandwidth {
    config: BandwidthConfig,
    sockets: u16,
    /// Rates of the memories, then those of the links.
    capacities: Vec<u64>,
    flows: BTreeMap<FlowId, Flow>,
    begun: u64,
    /// Time up to which the flows have moved.
    at: Nanos,
    /// Changed ends of bursts, which nobody has taken.
    moved: Vec<Moved>,
    moved_bytes: u64,
    waited: Nanos,
}

impl Bandwidth {
    pub(super) fn new(config: BandwidthConfig, topology: Topology) -> Self {
        let sockets = topology.sockets;
        let mut capacities = vec![config.memory_bytes_per_s; usize::from(sockets)];
        if let Some(link) = config.link_bytes_per_s {
            let pairs = usize::from(sockets) * usize::from(sockets);
            capacities.extend(vec![link; pairs]);
        }
        Self {
            config,
            sockets,
            capacities,
            flows: BTreeMap::new(),
            begun: 0,
            at: Nanos(0),
            moved: Vec::new(),
            moved_bytes: 0,
            waited: Nanos(0),
        }
    }

    pub(super) fn config(&self) -> &BandwidthConfig {
        &self.config
    }

    /// Bytes of all flows so far.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Time in which bursts waited for memory after their work.
    pub(super) fn waited(&self) -> Nanos {
        self.waited
    }

    /// The link between two sockets; `None` in one socket, and without a limit.
    fn link(&self, one: u16, other: u16) -> Option<usize> {
        let sockets = usize::from(self.sockets);
        let low = usize::from(one.min(other));
        let high = usize::from(one.max(other));
        let number = sockets + low * sockets + high;
        (one != other && number < self.capacities.len()).then_some(number)
    }

    /// Begins a flow from or to a socket, which takes at least this time.
    pub(super) fn begin(
        &mut self,
        now: Nanos,
        traffic: Traffic,
        socket: u16,
        least: Nanos,
    ) -> FlowId {
        self.advance(now);
        let left = traffic.bytes.saturating_mul(PARTS);
        self.moved_bytes += traffic.bytes;
        let id = FlowId(self.begun);
        self.begun += 1;
        let flow = Flow {
            memory: usize::from(traffic.home),
            link: self.link(socket, traffic.home),
            left,
            demand: left.checked_div(least.0).map_or(u64::MAX, |rate| rate.max(1)),
            rate: 0,
            ends: now,
            burst: None,
        };
        self.flows.insert(id, flow);
        self.share_out();
        id
    }

    /// Begins the flow of a burst, which ends after both.
    pub(super) fn begin_burst(&mut self, now: Nanos, traffic: Traffic, socket: u16, burst: Burst) {
        // An earlier flow of the CPU belongs to a burst that has ended.
        for flow in self.flows.values_mut() {
            flow.burst = flow.burst.filter(|of| of.cpu != burst.cpu);
        }
        let id = self.begin(now, traffic, socket, burst.works_until.since(now));
        let flow = self.flows.get_mut(&id).expect("it has begun");
        flow.burst = Some(burst);
        let to = flow.ends;
        self.note_moved(burst, burst.works_until, to);
    }

    fn note_moved(&mut self, burst: Burst, from: Nanos, to: Nanos) {
        let from = from.max(burst.works_until);
        let to = to.max(burst.works_until);
        if from != to {
            self.moved.push(Moved { burst, from, to });
        }
    }

    /// Takes the changed ends of bursts.
    pub(super) fn take_moved(&mut self) -> Vec<Moved> {
        std::mem::take(&mut self.moved)
    }

    /// End of a flow if nothing else changes; `None` if it has ended.
    pub(super) fn end_of(&self, id: FlowId) -> Option<Nanos> {
        self.flows.get(&id).map(|flow| flow.ends)
    }

    /// Time of the next end of a flow.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        self.flows.values().map(|flow| flow.ends).min()
    }

    /// Moves the flows up to a time, and ends those that are done.
    pub(super) fn advance(&mut self, now: Nanos) {
        let time = now.since(self.at);
        self.at = now;
        for flow in self.flows.values_mut() {
            let parts = u128::from(flow.rate) * u128::from(time.0);
            let parts = parts.min(u128::from(flow.left));
            flow.left -= u64::try_from(parts).expect("it is at most what is left");
        }
        let before = self.flows.len();
        let waited = &mut self.waited;
        self.flows.retain(|_, flow| {
            if flow.left == 0 {
                let wait = flow.burst.map(|burst| now.since(burst.works_until));
                *waited = *waited + wait.unwrap_or_default();
            }
            flow.left > 0
        });
        if self.flows.len() != before {
            self.share_out();
        }
    }

    /// Gives each flow its rate: the level of the fullest resource rises first, and flows that want
    /// no more than that have what they want.
    fn share_out(&mut self) {
        let mut free = self.capacities.clone();
        let mut users = vec![0; free.len()];
        let mut open: Vec<(FlowId, Flow)> =
            self.flows.iter().map(|(id, flow)| (*id, *flow)).collect();
        for (_, flow) in &open {
            flow.resources().for_each(|number| users[number] += 1);
        }
        while !open.is_empty() {
            let level = |number: usize| free[number].checked_div(users[number]);
            let levels = (0..free.len()).filter_map(|number| level(number).map(|at| (at, number)));
            let (level, fullest) = levels.min().expect("each flow uses a memory");
            let is_content = |flow: &Flow| flow.demand <= level;
            let some_content = open.iter().any(|(_, flow)| is_content(flow));
            let is_settled = |flow: &Flow| {
                let is_there = || flow.resources().any(|number| number == fullest);
                if some_content { is_content(flow) } else { is_there() }
            };
            let settled: Vec<_> = open.extract_if(.., |(_, flow)| is_settled(flow)).collect();
            for (id, flow) in settled {
                let rate = flow.demand.min(level).max(1);
                for number in flow.resources() {
                    free[number] = free[number].saturating_sub(rate);
                    users[number] -= 1;
                }
                self.set_rate(id, rate);
            }
        }
    }

    fn set_rate(&mut self, id: FlowId, rate: u64) {
        let flow = self.flows.get_mut(&id).expect("it has a rate");
        if flow.rate == rate {
            return;
        }
        flow.rate = rate;
        let before = std::mem::replace(&mut flow.ends, self.at + Nanos(flow.left.div_ceil(rate)));
        let Flow { burst, ends, .. } = *flow;
        if let Some(burst) = burst {
            self.note_moved(burst, before, ends);
        }
    }
}

impl Flow {
    /// Numbers of the resources that it uses.
    fn resources(&self) -> impl Iterator<Item = usize> + use<> {
        std::iter::once(self.memory).chain(self.link)
    }
}

#[cfg(test)]
mod tests;
