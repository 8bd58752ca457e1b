//! Closed-loop clients in front of a queue and a device, with the history of each of their
//! requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use blockyard_engine::mq::QueueConfig;
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::hand::{Kind, elevator, queue_of_one};
use crate::block::{BlockDevice, DeviceEvent};
use crate::device::Device;

/// Positions of a client's requests.
#[derive(Clone, Debug)]
pub(super) enum Places {
    /// Uniform in a range of sectors.
    Random(Range<u64>),
    /// Sequential, and again from the start.
    InOrder(Range<u64>),
}

/// A client.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) kind: Kind,
    pub(super) places: Places,
    /// Length of a request.
    pub(super) sectors: u64,
    /// Requests in flight.
    pub(super) depth: u32,
    /// Mean time between completion and the next request; uniform from zero to twice the mean.
    pub(super) think: Nanos,
    /// Start.
    pub(super) from: Nanos,
}

impl Client {
    /// A client with one request of 4 KiB in flight and no think time.
    pub(super) fn new(kind: Kind, places: Places) -> Self {
        Self { kind, places, sectors: 8, depth: 1, think: Nanos(0), from: Nanos(0) }
    }

    /// The first sector of its request with this number.
    fn place(&self, random: &mut Random, number: u64) -> u64 {
        match &self.places {
            // Positions are not adjacent, so that nothing merges by chance.
            Places::Random(range) => {
                let step = 2 * self.sectors;
                range.start + random.below((range.end - range.start) / step) * step
            }
            Places::InOrder(range) => {
                let room = (range.end - range.start) / self.sectors;
                range.start + number % room * self.sectors
            }
        }
    }
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) client: usize,
    pub(super) sector: u64,
    pub(super) asked: Nanos,
    /// Time of issue to the device.
    pub(super) started: Option<Nanos>,
    pub(super) ended: Option<Nanos>,
}

impl Asked {
    /// Time from submission to completion, if completed.
    pub(super) fn latency(&self) -> Option<Nanos> {
        self.ended.map(|ended| ended - self.asked)
    }
}

/// All requests in the order of submission, and the device's order.
pub(super) struct Ran {
    pub(super) asked: Vec<Asked>,
    /// Indices into `asked`. Merged requests are consecutive.
    pub(super) started: Vec<usize>,
}

impl Ran {
    /// Sorted latencies of the requests of some clients.
    pub(super) fn latencies(&self, of: impl Fn(usize) -> bool) -> Vec<Nanos> {
        let of = self.asked.iter().filter(|asked| of(asked.client));
        let mut latencies: Vec<Nanos> = of.filter_map(Asked::latency).collect();
        latencies.sort_unstable();
        latencies
    }
}

/// A queue and its clients.
#[derive(Clone, Debug)]
pub(super) struct Setting<'a> {
    pub(super) elevator: &'a str,
    /// The elevator's knowledge of the device.
    pub(super) rotational: bool,
    pub(super) nr_requests: u32,
    pub(super) clients: &'a [Client],
    pub(super) until: Nanos,
    pub(super) seed: u64,
}

impl Setting<'_> {
    /// Runs the clients until the end of the time; requests in flight then have no completion.
    pub(super) fn run<D: Device>(&self, device: D) -> Ran {
        // Requests of at most 512 KiB, like those of the kernel of 2009.
        let usual = queue_of_one(self.rotational, self.nr_requests);
        let mut config = QueueConfig { write_cache: false, ..usual };
        config.limits.max_sectors = 1024;
        let mut block = BlockDevice::new(config, &elevator(self.elevator), device);
        block.observe();
        let mut run = Run {
            block,
            events: Vec::new(),
            asks: BinaryHeap::new(),
            arrivals: 0,
            randoms: (0u64..).take(self.clients.len()).map(|n| Random::new(self.seed, n)).collect(),
            numbers: vec![0; self.clients.len()],
            ran: Ran { asked: Vec::new(), started: Vec::new() },
        };
        for (number, client) in self.clients.iter().enumerate() {
            (0..client.depth).for_each(|_| run.ask_at(client.from, number));
        }
        run.all(self.clients, self.until);
        run.ran
    }
}

struct Run<D> {
    block: BlockDevice<D>,
    /// Emptied after each use; kept for its memory.
    events: Vec<(Nanos, DeviceEvent)>,
    /// Clients by the time of their next request; at equal times in the order of scheduling.
    asks: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    arrivals: u64,
    randoms: Vec<Random>,
    /// Number of requests of each client.
    numbers: Vec<u64>,
    ran: Ran,
}

impl<D: Device> Run<D> {
    fn ask_at(&mut self, at: Nanos, client: usize) {
        self.asks.push(Reverse((at, self.arrivals, client)));
        self.arrivals += 1;
    }

    fn all(&mut self, clients: &[Client], until: Nanos) {
        let mut done = Vec::new();
        loop {
            let ask_at = self.asks.peek().map(|Reverse((at, ..))| *at);
            let event_at = self.block.next_event();
            let now = match ask_at.into_iter().chain(event_at).min() {
                Some(now) if now <= until => now,
                _ => return,
            };
            if event_at == Some(now) {
                self.block.advance(now, &mut done);
                self.look(now);
                for end in done.drain(..) {
                    let number = end.user as usize;
                    let asked = &mut self.ran.asked[number];
                    asked.ended = Some(now);
                    let client = asked.client;
                    let think = self.randoms[client].below(2 * clients[client].think.0 + 1);
                    self.ask_at(now + Nanos(think), client);
                }
            }
            while let Some(Reverse((at, _, client))) = self.asks.peek()
                && *at <= now
            {
                let client = *client;
                self.asks.pop();
                self.ask(now, client, &clients[client]);
            }
            self.block.run(now);
            self.look(now);
        }
    }

    fn ask(&mut self, now: Nanos, number: usize, client: &Client) {
        let sector = client.place(&mut self.randoms[number], self.numbers[number]);
        self.numbers[number] += 1;
        let user = self.ran.asked.len() as u64;
        self.block.submit(now, client.kind.bio(sector, client.sectors, user));
        let started = None;
        let ended = None;
        self.ran.asked.push(Asked { client: number, sector, asked: now, started, ended });
    }

    /// Notes newly issued requests; none of them has completed.
    fn look(&mut self, now: Nanos) {
        self.block.take_events(&mut self.events);
        for (_, event) in self.events.drain(..) {
            let DeviceEvent::Issued(issue) = event else { continue };
            for bio in self.block.queue().bios(issue.tag) {
                let number = bio.user as usize;
                self.ran.asked[number].started.get_or_insert(now);
                self.ran.started.push(number);
            }
        }
    }
}
