//! Replicated object storage, as Ceph's RBD sees it: images of objects on the OSDs of many hosts.
//!
//! ```text
//!   read ── client's link ──> CPU of the primary's host ──> its disk ──> links ──> ended
//!   write ── links ──> CPU of the primary's host ─┬─> disk, journal ────────────────┬──> ended
//!                                                 └─> copies: links, CPU, journal ──┘
//! ```
//! A write ends when all copies are in the journals of their OSDs. A journal commits all that waits
//! at once. A short write goes into the journal as a whole, and to the disk afterwards; a long one
//! goes to the disk first, and has a record in the journal. The CPUs of a host serve all of its
//! OSDs. A link has one direction for each way.
//!
//! The device is the space of all images: image after image, each on the link of its client.
//!
//! After the loss of OSDs their placement groups have others, and each OSD copies objects to others
//! for the whole run, some at a time.
//!
//! Left out: the order of requests in one placement group, caches of OSDs, the time until a loss is
//! noticed, writes that wait for the recovery of their object.

mod events;
mod placement;
mod stations;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use blockyard_engine::time::Nanos;

use self::placement::Placement;
use self::stations::{Journal, Link, Station};
use super::{Command, CommandOp, Device};

pub use self::placement::Layout;

/// Parameters of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterConfig {
    /// Size of all images in sectors.
    pub sectors: u64,
    /// Size of an image in sectors.
    pub image_sectors: u64,
    /// Size of an object in sectors.
    pub object_sectors: u32,
    /// Hosts, OSDs and copies.
    pub layout: Layout,
    /// CPUs of the hosts.
    pub cpu: OsdCpu,
    /// Links.
    pub network: Network,
    /// Disk and journal of each OSD.
    pub store: Store,
    /// Copies after the loss of an OSD.
    pub recovery: Recovery,
    /// Requests of all clients in flight.
    pub queue_depth: u32,
}

/// CPU time of OSDs.
#[derive(Clone, Copy, Debug)]
pub struct OsdCpu {
    /// CPUs of a host.
    pub cpus_per_host: u32,
    /// Of a read.
    pub read: Nanos,
    /// Of a write in its primary.
    pub write: Nanos,
    /// Of each further copy, in both OSDs together.
    pub copy: Nanos,
    /// Of a sector that is read.
    pub read_sector: Nanos,
    /// Of a sector that is written, in each OSD.
    pub write_sector: Nanos,
}

/// Links between clients and hosts.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Time of a message from one machine to another.
    pub latency: Nanos,
    /// Number of clients' machines; images take turns on them.
    pub clients: u32,
    /// Time of a sector on a client's link.
    pub client_sector: Nanos,
    /// Time of a sector on a host's link.
    pub host_sector: Nanos,
}

/// Disk and journal of an OSD.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// Requests that the disk handles in parallel.
    pub channels: u32,
    /// Time of a read.
    pub read: Nanos,
    /// Time of a write.
    pub write: Nanos,
    /// Time of a sector in one channel.
    pub sector: Nanos,
    /// Time of a commit of the journal.
    pub commit: Nanos,
    /// Time of a sector in the journal.
    pub journal_sector: Nanos,
    /// Longest write that goes into the journal as a whole (`bluestore_prefer_deferred_size`).
    pub journal_max_sectors: u32,
}

/// Recovery after the loss of an OSD.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    /// Objects that an OSD copies at a time (`osd_recovery_max_active`); 0: none.
    pub active: u32,
    /// Pause after each object (`osd_recovery_sleep`).
    pub pause: Nanos,
}

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// Copy of an object from the first OSD to the second.
    Recover,
}

/// A request to one object, or the recovery of one.
#[derive(Clone, Debug)]
struct Work {
    kind: Kind,
    /// Place in `commands`; unused by a recovery.
    command: usize,
    sectors: u32,
    /// Link of its client.
    client: u32,
    /// OSDs, the primary first.
    osds: Vec<u32>,
    /// Copies that are not committed.
    uncommitted: u32,
    /// Time at which the primary knows of the commits so far.
    latest_ack: Nanos,
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    tag: u32,
    arrival: u64,
    /// Requests to objects.
    works: u32,
    is_write: bool,
}

/// A place in a list whose entries are used again.
type Place = usize;

/// An event of the work of one of its OSDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The OSD with this number in the work gets the message.
    Received(Place, u32),
    /// The message is in the memory of the host.
    Handle(Place, u32),
    /// The CPU has done its part.
    Handled(Place, u32),
    /// The disk has the data, or has read it.
    Stored(Place, u32),
    /// The journal of this OSD has committed.
    Committed(u32),
    /// The data is at the client's link.
    Reply(Place),
    /// The client has the reply.
    End(Place),
    /// The command has ended.
    Ended(Place),
    /// The next object of the recovery of this OSD.
    Recover(u32),
}

#[derive(Debug)]
struct Host {
    cpus: Station,
    link: Link,
}

#[derive(Debug)]
struct Osd {
    disk: Station,
    journal: Journal<(Place, u32)>,
}

/// The device.
// 16 fields: the parts of the cluster, and the lists of what is in flight.
#[derive(Debug)]
pub struct Cluster {
    config: ClusterConfig,
    placement: Placement,
    hosts: Vec<Host>,
    osds: Vec<Osd>,
    clients: Vec<Link>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    events_made: u64,
    works: Vec<Work>,
    free_works: Vec<Place>,
    commands: Vec<InFlight>,
    free_commands: Vec<Place>,
    arrivals: u64,
    in_flight: u32,
    /// Arrivals of writes in flight.
    writes: BTreeSet<u64>,
    /// Flushes that wait for earlier writes: arrival, and place in `commands`.
    flushes: VecDeque<(u64, Place)>,
    objects_recovered: u64,
}

impl Cluster {
    /// An idle cluster; the recovery has begun.
    ///
    /// # Panics
    /// A size is zero, or there are fewer OSDs than copies.
    #[must_use]
    pub fn new(config: ClusterConfig) -> Self {
        let Layout { hosts, osds_per_host, copies, lost_osds } = config.layout;
        let count = hosts * osds_per_host;
        assert!(copies > 0 && count >= copies + lost_osds, "each copy has an OSD");
        assert!(config.object_sectors > 0 && config.image_sectors > 0);
        let host = |_| Host { cpus: Station::new(config.cpu.cpus_per_host), link: Link::new() };
        let disk = || Station::new(config.store.channels);
        let osd = |_| Osd { disk: disk(), journal: Journal::default() };
        let mut cluster = Self {
            placement: Placement::new(&config.layout),
            hosts: (0..hosts).map(host).collect(),
            osds: (0..count).map(osd).collect(),
            clients: (0..config.network.clients).map(|_| Link::new()).collect(),
            config,
            events: BinaryHeap::new(),
            events_made: 0,
            works: Vec::new(),
            free_works: Vec::new(),
            commands: Vec::new(),
            free_commands: Vec::new(),
            arrivals: 0,
            in_flight: 0,
            writes: BTreeSet::new(),
            flushes: VecDeque::new(),
            objects_recovered: 0,
        };
        if lost_osds > 0 && copies > 1 {
            let streams =
                (lost_osds..count).flat_map(|osd| vec![osd; config.recovery.active as usize]);
            streams.for_each(|osd| cluster.at(Nanos(0), Event::Recover(osd)));
        }
        cluster
    }

    /// Number of objects that the recovery has copied.
    #[must_use]
    pub fn objects_recovered(&self) -> u64 {
        self.objects_recovered
    }

    fn at(&mut self, at: Nanos, event: Event) {
        self.events.push(Reverse((at, self.events_made, event)));
        self.events_made += 1;
    }

    /// Starts the requests of a command: one for each object that it touches.
    fn start_works(&mut self, now: Nanos, command: &Command, place: Place) {
        let object_sectors = u64::from(self.config.object_sectors);
        let mut sector = command.sector.0;
        let end = sector + u64::from(command.sectors);
        let kind = if command.op == CommandOp::Read { Kind::Read } else { Kind::Write };
        while sector < end {
            let object = sector / object_sectors;
            let sectors = (end - sector).min((object + 1) * object_sectors - sector) as u32;
            let image = sector / self.config.image_sectors;
            let work = Work {
                kind,
                command: place,
                sectors,
                client: (image % self.clients.len() as u64) as u32,
                osds: self.placement.osds(object).to_vec(),
                uncommitted: 0,
                latest_ack: Nanos(0),
            };
            self.commands[place].works += 1;
            self.send(now, work);
            sector += u64::from(sectors);
        }
    }

    /// Ends a command, and flushes that waited for it.
    fn end(&mut self, now: Nanos, place: Place, ended: &mut Vec<(Nanos, u32)>) {
        let command = self.commands[place];
        self.free_commands.push(place);
        self.in_flight -= 1;
        ended.push((now, command.tag));
        if !command.is_write {
            return;
        }
        self.writes.remove(&command.arrival);
        let unwritten = self.writes.first().copied();
        while let Some(&(flush, place)) = self.flushes.front()
            && unwritten.is_none_or(|write| write > flush)
        {
            self.flushes.pop_front();
            self.at(now, Event::Ended(place));
        }
    }
}

impl Device for Cluster {
    fn start(&mut self, now: Nanos, command: Command) {
        assert!(command.sector.0 + u64::from(command.sectors) <= self.config.sectors);
        assert!(self.in_flight < self.config.queue_depth);
        self.in_flight += 1;
        let arrival = self.arrivals;
        self.arrivals += 1;
        let is_write = matches!(command.op, CommandOp::Write { .. });
        let started = InFlight { tag: command.tag, arrival, works: 0, is_write };
        let place = put(&mut self.commands, &mut self.free_commands, started);
        match command.op {
            CommandOp::Flush if self.writes.is_empty() => self.at(now, Event::Ended(place)),
            CommandOp::Flush => self.flushes.push_back((arrival, place)),
            CommandOp::Read | CommandOp::Write { .. } => {
                if is_write {
                    self.writes.insert(arrival);
                }
                self.start_works(now, &command, place);
            }
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    fn advance(&mut self, now: Nanos, ended: &mut Vec<(Nanos, u32)>) {
        while self.next_event().is_some_and(|at| at <= now) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.happen(at, event, ended);
        }
    }
}

/// Puts a value into a free place.
fn put<T>(places: &mut Vec<T>, free: &mut Vec<Place>, value: T) -> Place {
    if let Some(place) = free.pop() {
        places[place] = value;
        return place;
    }
    places.push(value);
    places.len() - 1
}
