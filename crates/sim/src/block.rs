//! A device behind its request queue: the engine's own queue and elevator over a device model.
//!
//! Bios go in, ended bios come out, and the caller passes the time. The queue is the code that
//! schedules real volumes; only the device is a model.

use std::cell::Cell;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::{Issue, QueueConfig, RequestQueue, Submitted};
use blockyard_engine::request::Tag;
use blockyard_engine::time::{Nanos, earlier};

use crate::device::{Command, CommandOp, Device};

/// An event between a queue and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A request was issued to the device.
    Issued(Issue),
    /// The device has completed a request.
    Ended(Tag),
}

/// A queue and its device.
pub struct BlockDevice<D> {
    queue: RequestQueue,
    /// Tags of each hardware queue, if there are several.
    tags_per_queue: Option<u32>,
    device: D,
    /// Emptied after each use; kept for their memory.
    issues: Vec<Issue>,
    ended: Vec<(Nanos, Tag)>,
    indices: Vec<(Nanos, u32)>,
    late: Vec<Tag>,
    /// Issued discards with their times: they cost nothing, and the range is dropped immediately.
    /// They end with the next event, like all requests.
    forgotten: Vec<(Nanos, Tag)>,
    /// Events since the last take, if observed.
    events: Option<Vec<(Nanos, DeviceEvent)>>,
    /// The next event, unless queue or device may have changed since it was computed.
    next: Cell<Option<Option<Nanos>>>,
}

impl<D: Device> BlockDevice<D> {
    /// A device under a queue. Commands of several hardware queues are numbered one queue after the
    /// other ([`BlockDevice::number_of`]).
    #[must_use]
    pub fn new(config: QueueConfig, elevator: &ElevatorSpec, device: D) -> Self {
        let tags_per_queue = (config.hw_queues > 1).then_some(config.queue_depth);
        let queue = RequestQueue::new(config, elevator);
        let issues = Vec::new();
        let ended = Vec::new();
        let indices = Vec::new();
        let late = Vec::new();
        let forgotten = Vec::new();
        let next = Cell::new(None);
        Self {
            queue,
            tags_per_queue,
            device,
            issues,
            ended,
            indices,
            late,
            forgotten,
            events: None,
            next,
        }
    }

    /// The queue: to plug, unplug and inspect.
    pub fn queue(&mut self) -> &mut RequestQueue {
        self.next.set(None);
        &mut self.queue
    }

    /// The number of a request among those of all hardware queues.
    #[must_use]
    pub fn number_of(&self, tag: Tag) -> u32 {
        u32::from(tag.hctx) * self.tags_per_queue.unwrap_or(0) + tag.index
    }

    /// The device, to inspect.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Keeps all later events for [`BlockDevice::take_events`].
    pub fn observe(&mut self) {
        self.events.get_or_insert_default();
    }

    /// Takes the events since the last call, in order.
    pub fn take_events(&mut self, out: &mut Vec<(Nanos, DeviceEvent)>) {
        self.events.iter_mut().for_each(|events| out.append(events));
    }

    /// Submits a bio; [`BlockDevice::run`] starts the requests that the device accepts.
    pub fn submit(&mut self, now: Nanos, bio: Bio) -> Submitted {
        self.queue().submit_bio(now, bio)
    }

    /// Starts all requests that the device accepts now.
    pub fn run(&mut self, now: Nanos) {
        let mut issues = std::mem::take(&mut self.issues);
        self.dispatch(now, &mut issues);
        issues.drain(..).for_each(|issue| self.start(now, issue));
        self.issues = issues;
    }

    /// Takes all requests from the queue that the device accepts now; each must be started.
    pub fn dispatch(&mut self, now: Nanos, issues: &mut Vec<Issue>) {
        let mut had = None;
        while had != Some(issues.len()) {
            had = Some(issues.len());
            self.queue().dispatch(now, issues);
        }
    }

    /// Starts a dispatched request.
    pub fn start(&mut self, now: Nanos, issue: Issue) {
        self.next.set(None);
        if let Some(events) = &mut self.events {
            events.push((now, DeviceEvent::Issued(issue)));
        }
        match command(&issue, self.number_of(issue.tag)) {
            Some(command) => self.device.start(now, command),
            None => self.forgotten.push((now, issue.tag)),
        }
    }

    /// Time of the next event without further submissions.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        if let Some(known) = self.next.get() {
            return known;
        }
        let wake = self.queue.wake_at();
        let forgotten = self.forgotten.first().map(|(at, _)| *at);
        let next = earlier(earlier(wake, self.device.next_event()), forgotten);
        self.next.set(Some(next));
        next
    }

    /// Advances to the next event at `now`; adds the ended bios.
    pub fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        let mut ended = std::mem::take(&mut self.ended);
        self.advance_device(now, &mut ended);
        for (at, tag) in ended.drain(..) {
            self.queue().complete(at, tag, BlkStatus::Ok);
        }
        self.ended = ended;
        self.run(now);
        self.queue().take_done(done);
    }

    /// Advances the device alone; adds its completed requests, which the caller must complete.
    pub fn advance_device(&mut self, now: Nanos, ended: &mut Vec<(Nanos, Tag)>) {
        self.next.set(None);
        self.device.advance(now, &mut self.indices);
        let tags_per_queue = self.tags_per_queue;
        let of_device =
            self.indices.drain(..).map(|(at, number)| (at, tag_of(number, tags_per_queue)));
        ended.extend(self.forgotten.drain(..).chain(of_device));
        if let Some(events) = &mut self.events {
            events.extend(ended.iter().map(|(at, tag)| (*at, DeviceEvent::Ended(*tag))));
        }
        // Late requests are awaited again: these devices are slow, but lose nothing.
        self.queue.timed_out(now, &mut self.late);
        self.late.clear();
    }
}

fn tag_of(number: u32, tags_per_queue: Option<u32>) -> Tag {
    let Some(tags) = tags_per_queue else { return Tag { hctx: 0, index: number } };
    let hctx = u16::try_from(number / tags).expect("it is one of the hardware queues");
    Tag { hctx, index: number % tags }
}

fn command(issue: &Issue, number: u32) -> Option<Command> {
    let op = match issue.op {
        Op::Read => CommandOp::Read,
        Op::Write | Op::WriteZeroes => CommandOp::Write { fua: issue.fua },
        Op::Flush => CommandOp::Flush,
        Op::Discard => return None,
    };
    let sectors = u32::try_from(issue.len.0).expect("a request is within the queue's limits");
    Some(Command { tag: number, op, sector: issue.sector, sectors })
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::{IoContext, Origin, Sector};
    use blockyard_engine::buf::BufRef;
    use blockyard_workload::random::Random;

    use super::*;
    use crate::device::disk::geometry::{Geometry, SeekTimes};
    use crate::device::disk::{Disk, DiskConfig, Policy};

    const US: u64 = 1_000;

    /// A drive with a depth of one command, so that only the elevator sorts.
    fn disk() -> Disk {
        let seek = SeekTimes {
            track_to_track: Nanos(800 * US),
            average: Nanos(8_500 * US),
            full_stroke: Nanos(17_000 * US),
            head_switch: Nanos(700 * US),
            write_settle: Nanos(500 * US),
        };
        Disk::new(DiskConfig {
            geometry: Geometry::even(Nanos(8_333 * US), 4, 488_000_000, (1_260, 630), seek),
            overhead: Nanos(100 * US),
            overlaps_overhead: false,
            bus_sector: Nanos(1_700),
            queue_depth: 1,
            policy: Policy::InOrder,
            write_cache_sectors: 0,
            destage_after: Nanos(0),
            read_ahead_sectors: 0,
        })
    }

    fn under(elevator: &str) -> BlockDevice<Disk> {
        let spec = ElevatorSpec::parse(elevator).unwrap();
        let config = QueueConfig { queue_depth: 1, ..QueueConfig::of(spec.elevator.generation) };
        BlockDevice::new(config, &spec, disk())
    }

    fn bio(op: Op, sector: u64, sectors: u64, context: u32, user: u64) -> Bio {
        let buf = BufRef::zeros(u32::try_from(sectors * 512).unwrap());
        let origin = Origin { io_context: IoContext(context), ..Origin::default() };
        Bio { origin, ..Bio::new(op, Sector(sector), Sector(sectors), buf, user) }
    }

    /// Time of `count` random reads by `clients` clients with one read each in flight.
    fn random_reads(elevator: &str, clients: u32, count: u32) -> Nanos {
        let mut block = under(elevator);
        let mut random = Random::new(1, 0);
        let mut read = |client: u64| {
            bio(Op::Read, random.below(480_000_000), 8, u32::try_from(client).unwrap(), client)
        };
        for client in 0..u64::from(clients) {
            let read = read(client);
            block.submit(Nanos(0), read);
        }
        block.run(Nanos(0));
        let mut now = Nanos(0);
        let mut ended = 0;
        let mut done = Vec::new();
        while ended < count {
            now = block.next_event().expect("reads are in flight");
            block.advance(now, &mut done);
            for Done { user, .. } in done.drain(..) {
                ended += 1;
                block.submit(now, read(user));
            }
            block.run(now);
        }
        now
    }

    #[test]
    fn sorting_elevators_gain_on_a_drive_that_does_not_sort_and_noop_does_not() {
        let alone = random_reads("noop", 1, 2_000);
        let noop = random_reads("noop", 32, 2_000);
        assert!(noop.0.abs_diff(alone.0) < alone.0 / 20, "{noop:?} and {alone:?}");
        for elevator in ["deadline", "deadline-prio", "mq-deadline"] {
            let sorted = random_reads(elevator, 32, 2_000);
            // Of 32 waiting requests the next one upwards is near, so half a revolution dominates.
            let gain = noop.0 * 100 / sorted.0;
            assert!((150..260).contains(&gain), "{elevator}: {gain} %");
        }
    }

    #[test]
    fn neighbours_become_one_command_while_the_disk_is_busy() {
        let mut block = under("deadline");
        block.submit(Nanos(0), bio(Op::Write, 400_000_000, 8, 1, 0));
        block.run(Nanos(0));
        for n in 1..=32 {
            block.submit(Nanos(0), bio(Op::Write, n * 8, 8, 1, n));
        }
        block.run(Nanos(0));
        let mut done = Vec::new();
        while done.len() < 33 {
            let now = block.next_event().expect("writes are in flight");
            block.advance(now, &mut done);
        }
        assert_eq!(block.device().counters().jobs, 2);
        assert!(block.queue().is_idle());
    }

    #[test]
    fn discard_ends_though_the_device_has_nothing_to_do_for_it() {
        let mut block = under("deadline");
        let discard = Bio { buf: BufRef::NONE, ..bio(Op::Discard, 80, 1 << 16, 1, 3) };
        block.observe();
        block.submit(Nanos(5), discard);
        block.run(Nanos(5));
        let mut done = Vec::new();
        let mut events = Vec::new();
        while let Some(now) = block.next_event() {
            block.advance(now, &mut done);
        }
        assert_eq!(done, [Done { user: 3, status: BlkStatus::Ok }]);
        block.take_events(&mut events);
        let ends = events.iter().filter(|(_, event)| matches!(event, DeviceEvent::Ended(_)));
        assert!(ends.count() * 2 == events.len() && block.queue().is_idle(), "{events:?}");
    }

    #[test]
    fn request_that_takes_longer_than_the_timeout_ends_and_time_goes_on_meanwhile() {
        let spec = ElevatorSpec::parse("noop").unwrap();
        let timeout = Some(Nanos(1_000 * US));
        let config =
            QueueConfig { queue_depth: 1, timeout, ..QueueConfig::of(spec.elevator.generation) };
        let mut block = BlockDevice::new(config, &spec, disk());
        block.submit(Nanos(0), bio(Op::Read, 400_000_000, 8, 1, 7));
        block.run(Nanos(0));
        let mut now = Nanos(0);
        let mut done = Vec::new();
        let mut events = 0;
        while done.is_empty() && events < 100 {
            now = block.next_event().expect("a read is in flight");
            block.advance(now, &mut done);
            events += 1;
        }
        assert_eq!(done, [Done { user: 7, status: BlkStatus::Ok }]);
        assert!(now > Nanos(5_000 * US) && events > 5, "{now:?} after {events} events");
    }

    #[test]
    fn idling_of_cfq_keeps_the_arm_where_a_reader_comes_back() {
        let passed = |elevator: &str| {
            let mut block = under(elevator);
            let mut now = Nanos(0);
            let mut done = Vec::new();
            let mut next = [0, 300_000_000];
            let mut at = [0u64, 100 * US];
            // Two sequential readers, far apart, each with a think time of 0.1 ms between reads.
            let mut left = 400;
            while left > 0 {
                let reader = usize::from(at[1] < at[0]);
                let event = block.next_event().unwrap_or(Nanos(u64::MAX));
                if at[reader] <= event.0 {
                    now = now.max(Nanos(at[reader]));
                    at[reader] = u64::MAX;
                    block.submit(now, bio(Op::Read, next[reader], 8, reader as u32, reader as u64));
                    block.run(now);
                    next[reader] += 8;
                    continue;
                }
                now = event;
                block.advance(now, &mut done);
                for Done { user, .. } in done.drain(..) {
                    left -= 1;
                    at[user as usize] = now.0 + 100 * US;
                }
            }
            block.device().counters().cylinders_passed
        };
        let cfq = passed("cfq");
        let deadline = passed("deadline");
        let without = passed("cfq,slice_idle=0");
        assert!(cfq * 5 < deadline, "{cfq} and {deadline} cylinders");
        assert!(cfq * 2 < without, "the control: {cfq} and {without} cylinders");
    }
}
