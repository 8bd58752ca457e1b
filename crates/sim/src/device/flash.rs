//! Flash: an SD card, or an SSD behind NVMe.
//!
//! ```text
//!   read ── overhead ──> its channels ──> the bus, when it is free ──> ended
//!   write ── overhead ──> the bus, when it is free ──> its channels ──> ended
//! ```
//! A command is split into pages, which are spread over channels in turn; a channel handles one
//! page at a time. The bus carries one command at a time; of the ready commands the one that was
//! ready first. A time of each command there limits the rate of small ones. Data may enter faster
//! than it leaves.
//!
//! With a write buffer, a write ends when the buffer has room for it; its pages are programmed
//! afterwards, and reads go before them. Sustained writes fill the buffer, and then wait for the
//! channels: the write cliff. A power cut does not lose the buffer.
//!
//! A page is programmed into an open erase block. The number of open blocks is limited; a write to
//! another block closes the least recently used one, and closing costs a copy of its missing pages.
//! So an SD card, with one or two open blocks, writes a hundred times slower at random than in
//! order; an SSD, which remaps pages (no limit), does not. With [`Collection`] the SSD also has to
//! make room: a write pays for the pages that the collection of garbage copies.
//!
//! An SSD with several queues takes commands from them in turn (round robin, without a burst), as
//! soon as it works on fewer than its limit (`queues`). Pages of cells with several bits take
//! different times to read ([`PageTypes`]).
//!
//! Left out: wear, a volatile cache.

mod collection;
mod queues;

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use blockyard_engine::time::{Nanos, earlier};
use blockyard_workload::random::Random;

use self::collection::Mapping;
use self::queues::Submitted;
use super::{Command, CommandOp, Device};

pub use self::collection::Collection;
pub use self::queues::Queues;

/// Seed of the choice of slow commands.
const SLOW_SEED: u64 = 1;

/// Parameters of a flash device.
// 16 fields: the constants of each part of the device.
#[derive(Clone, Copy, Debug)]
pub struct FlashConfig {
    /// Size in sectors.
    pub sectors: u64,
    /// Sectors of a page.
    pub page_sectors: u32,
    /// Number of pages handled in parallel.
    pub channels: u32,
    /// Time to read a page.
    pub read_page: Nanos,
    /// Time to program a page.
    pub program_page: Nanos,
    /// Electronics and protocol, per command.
    pub overhead: Nanos,
    /// Bus time of one sector.
    pub bus_sector: Nanos,
    /// Of one written sector, if it differs.
    pub bus_write_sector: Option<Nanos>,
    /// Time of each command on the bus, besides its sectors.
    pub bus_command: Nanos,
    /// Depth of each queue; 1 for an SD card.
    pub queue_depth: u32,
    /// Queues of commands.
    pub queues: Queues,
    /// Types of pages, whose times to read differ.
    pub page_types: PageTypes,
    /// Erase blocks, for a device that maps whole blocks.
    pub blocks: Option<EraseBlocks>,
    /// Garbage collection, for a device that maps pages.
    pub collection: Option<Collection>,
    /// Length of the write buffer in sectors; 0: a write ends when its pages are programmed.
    pub write_buffer_sectors: u32,
    /// Commands that take longer.
    pub slow: Slow,
}

/// Most types of pages: four bits a cell have four, and two halves of a block may differ.
pub const PAGE_TYPES_MAX: usize = 8;

/// Types of pages: lower and upper ones of a cell with two bits, and so on. Neighbouring pages of a
/// channel have them in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageTypes {
    times: [Nanos; PAGE_TYPES_MAX],
    count: usize,
}

impl PageTypes {
    /// Types with these times to read. Without any all pages are equal, with
    /// [`FlashConfig::read_page`].
    ///
    /// # Panics
    /// There are more than [`PAGE_TYPES_MAX`].
    #[must_use]
    pub fn new(times: &[Nanos]) -> Self {
        let mut new = Self { count: times.len(), ..Self::default() };
        new.times[..times.len()].copy_from_slice(times);
        new
    }

    /// Time to read the page of this number in its channel.
    fn read(&self, in_channel: u64) -> Option<Nanos> {
        let number = in_channel.checked_rem(self.count as u64)?;
        Some(self.times[number as usize])
    }
}

/// Commands that take longer, for a reason that is not modelled: a read is repeated, the firmware
/// is busy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slow {
    /// Of a thousand commands, drawn at random.
    pub per_mille: u32,
    /// Additional time.
    pub takes: Nanos,
}

/// A mapping by whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct EraseBlocks {
    /// Sectors of a block.
    pub sectors: u32,
    /// Limit of open blocks.
    pub open: u32,
    /// Time to close a block: copy the rest, erase.
    pub close: Nanos,
}

/// Order of arrival of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival(u64);

/// Work of a channel.
#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    /// End of all its work.
    ends: Nanos,
    /// End of its reads, which go before the programs of a write buffer.
    reads_end: Nanos,
}

/// The device.
// 16 fields: one for each part of the device, and its counters.
#[derive(Debug)]
pub struct Flash {
    config: FlashConfig,
    channels: Vec<Channel>,
    mapping: Option<Mapping>,
    /// Writes in the buffer: the time at which its room is free again, and its sectors.
    buffered: BinaryHeap<Reverse<(Nanos, u32)>>,
    buffered_sectors: u32,
    random: Random,
    /// Commands that wait for the bus, by the time they are ready.
    for_bus: BinaryHeap<Reverse<(Nanos, Arrival, Command)>>,
    /// The command on the bus, and its end.
    on_bus: Option<(Nanos, Arrival, Command)>,
    /// Open blocks, the most recently used last: number, and the next page of a sequential write.
    open: VecDeque<(u64, u64)>,
    /// Commands that no longer need the bus, by their end.
    ending: BinaryHeap<Reverse<(Nanos, Arrival, u32)>>,
    /// Writes in flight.
    writes: BTreeSet<Arrival>,
    /// Flushes that wait for earlier writes: earliest end, arrival, tag.
    flushes: VecDeque<(Nanos, Arrival, u32)>,
    arrivals: u64,
    /// Commands in the queues.
    submitted: Submitted,
    in_flight: u32,
    /// Number of blocks closed before they were full.
    closed: u64,
}

impl Flash {
    /// An idle device.
    ///
    /// # Panics
    /// The device has no channel, or the limit of open blocks is zero.
    #[must_use]
    pub fn new(config: FlashConfig) -> Self {
        Self::of_member(config, 0)
    }

    /// An idle device that draws its slow commands as this one of several.
    ///
    /// # Panics
    /// As [`Flash::new`].
    #[must_use]
    pub fn of_member(config: FlashConfig, member: u16) -> Self {
        assert!(config.channels > 0 && config.page_sectors > 0 && config.queue_depth > 0);
        assert!(config.blocks.is_none_or(|blocks| blocks.open > 0 && blocks.sectors > 0));
        let mapping =
            |collection: &Collection| Mapping::new(collection, config.sectors, config.page_sectors);
        Self {
            channels: vec![Channel::default(); config.channels as usize],
            mapping: config.collection.as_ref().map(mapping),
            buffered: BinaryHeap::new(),
            buffered_sectors: 0,
            random: Random::new(SLOW_SEED, u64::from(member)),
            config,
            for_bus: BinaryHeap::new(),
            on_bus: None,
            open: VecDeque::new(),
            ending: BinaryHeap::new(),
            writes: BTreeSet::new(),
            flushes: VecDeque::new(),
            arrivals: 0,
            submitted: Submitted::new(config.queues, config.queue_depth),
            in_flight: 0,
            closed: 0,
        }
    }

    /// Number of blocks closed before they were full.
    #[must_use]
    pub fn blocks_closed(&self) -> u64 {
        self.closed
    }

    /// End of a command's pages.
    fn pages(&mut self, ready: Nanos, command: &Command) -> Nanos {
        let page_sectors = u64::from(self.config.page_sectors);
        let first = command.sector.0 / page_sectors;
        let last = (command.sector.0 + u64::from(command.sectors) - 1) / page_sectors;
        let mut end = ready;
        for page in first..=last {
            let ends = match command.op {
                CommandOp::Read => self.read_page(ready, page),
                _ => self.program_page(ready, page),
            };
            end = end.max(ends);
        }
        end
    }

    /// End of the read of a page. A program of the write buffer that has begun ends first.
    fn read_page(&mut self, ready: Nanos, page: u64) -> Nanos {
        let FlashConfig { read_page, program_page, write_buffer_sectors, .. } = self.config;
        let channels = self.channels.len() as u64;
        let read_page = self.config.page_types.read(page / channels).unwrap_or(read_page);
        let channel = &mut self.channels[(page % channels) as usize];
        let starts = if write_buffer_sectors > 0 {
            let programs = channel.ends.since(ready.min(channel.ends)).0;
            ready.max(channel.reads_end) + Nanos(programs.checked_rem(program_page.0).unwrap_or(0))
        } else {
            ready.max(channel.ends)
        };
        channel.ends = channel.ends.max(starts) + read_page;
        channel.reads_end = starts + read_page;
        channel.reads_end
    }

    /// End of the program of a page, after the copies of the collection.
    fn program_page(&mut self, ready: Nanos, page: u64) -> Nanos {
        let time = self.config.program_page + self.open_block(page) + self.collect(page);
        let channel = (page % self.channels.len() as u64) as usize;
        let channel = &mut self.channels[channel];
        channel.ends = ready.max(channel.ends) + time;
        channel.ends
    }

    /// Time of the collection's copies and erasures for a written page.
    fn collect(&mut self, page: u64) -> Nanos {
        let Some((mapping, collection)) = self.mapping.as_mut().zip(self.config.collection) else {
            return Nanos(0);
        };
        let copied = mapping.write(page);
        let copy = self.config.read_page + self.config.program_page;
        Nanos(copy.0 * u64::from(copied.pages) + collection.erase.0 * u64::from(copied.blocks))
    }

    /// Puts a write into the buffer; returns the time at which there is room for it.
    fn buffer(&mut self, now: Nanos, command: &Command) -> Nanos {
        let programmed = self.pages(now, command);
        // A write that is longer than the buffer passes through it.
        let sectors = command.sectors.min(self.config.write_buffer_sectors);
        let mut room = now;
        while let Some(Reverse((free_at, freed))) = self.buffered.peek().copied()
            && (free_at <= now
                || self.buffered_sectors + sectors > self.config.write_buffer_sectors)
        {
            self.buffered.pop();
            self.buffered_sectors -= freed;
            room = room.max(free_at);
        }
        self.buffered.push(Reverse((programmed, sectors)));
        self.buffered_sectors += sectors;
        room
    }

    /// Additional time of a command.
    fn slowness(&mut self) -> Nanos {
        let Slow { per_mille, takes } = self.config.slow;
        let is_slow = per_mille > 0 && self.random.below(1000) < u64::from(per_mille);
        if is_slow { takes } else { Nanos(0) }
    }

    /// Cost of opening the block of a page for this page.
    fn open_block(&mut self, page: u64) -> Nanos {
        let Some(blocks) = self.config.blocks else { return Nanos(0) };
        let pages = u64::from(blocks.sectors / self.config.page_sectors).max(1);
        let block = page / pages;
        let in_block = page % pages;
        let place = self.open.iter().position(|(open, _)| *open == block);
        let mut cost = Nanos(0);
        let in_order = match place.and_then(|place| self.open.remove(place)) {
            Some((_, next)) => next == in_block,
            None => {
                if self.open.len() == blocks.open as usize {
                    self.open.pop_front();
                    self.closed += 1;
                    cost = cost + blocks.close;
                }
                true
            }
        };
        // A page out of order cannot be programmed, so the block is copied.
        if !in_order {
            self.closed += 1;
            cost = cost + blocks.close;
        }
        if in_block + 1 < pages {
            self.open.push_back((block, in_block + 1));
        }
        cost
    }
}

impl Flash {
    /// Time of the next bus event: the end of a transfer, or the next ready command.
    fn bus_event(&self) -> Option<Nanos> {
        let carried = self.on_bus.map(|(ends, ..)| ends);
        carried.or_else(|| self.for_bus.peek().map(|Reverse((ready, ..))| *ready))
    }

    /// Handles a bus event: ends a transfer, or starts the next.
    fn turn_of_bus(&mut self, now: Nanos) {
        if let Some((_, arrival, command)) = self.on_bus.take() {
            let ends = match command.op {
                CommandOp::Write { .. } if self.config.write_buffer_sectors > 0 => {
                    self.buffer(now, &command)
                }
                CommandOp::Write { .. } => self.pages(now, &command),
                _ => now,
            };
            self.ending.push(Reverse((ends, arrival, command.tag)));
        }
        if let Some(next) = self.for_bus.peek_mut()
            && next.0.0 <= now
        {
            let Reverse((_, arrival, command)) = PeekMut::pop(next);
            let FlashConfig { bus_sector, bus_write_sector, bus_command, .. } = self.config;
            let sector = match command.op {
                CommandOp::Write { .. } => bus_write_sector.unwrap_or(bus_sector),
                _ => bus_sector,
            };
            let takes = bus_command + Nanos(sector.0 * u64::from(command.sectors));
            self.on_bus = Some((now + takes, arrival, command));
        }
    }

    /// Ends a command, and flushes that waited for it.
    fn end(&mut self, now: Nanos, arrival: Arrival) {
        if self.writes.is_empty() {
            return;
        }
        self.writes.remove(&arrival);
        let unwritten = self.writes.first().copied();
        while let Some(&(ready, flush, tag)) = self.flushes.front()
            && unwritten.is_none_or(|write| write > flush)
        {
            self.flushes.pop_front();
            self.ending.push(Reverse((now.max(ready), flush, tag)));
        }
    }
}

impl Flash {
    /// Takes commands from the queues and begins with them.
    fn fetch(&mut self, now: Nanos) {
        while let Some(command) = self.submitted.take() {
            self.begin(now, command);
        }
    }

    fn begin(&mut self, now: Nanos, command: Command) {
        let ready = now + self.config.overhead + self.slowness();
        let arrival = Arrival(self.arrivals);
        self.arrivals += 1;
        match command.op {
            CommandOp::Flush if self.writes.is_empty() => {
                self.ending.push(Reverse((ready, arrival, command.tag)));
            }
            CommandOp::Flush => self.flushes.push_back((ready, arrival, command.tag)),
            CommandOp::Read => {
                let read = self.pages(ready, &command);
                self.for_bus.push(Reverse((read, arrival, command)));
            }
            CommandOp::Write { .. } => {
                self.writes.insert(arrival);
                self.for_bus.push(Reverse((ready, arrival, command)));
            }
        }
    }
}

impl Device for Flash {
    fn start(&mut self, now: Nanos, command: Command) {
        assert!(command.sector.0 + u64::from(command.sectors) <= self.config.sectors);
        assert!(self.in_flight < self.config.queue_depth * u32::from(self.config.queues.count));
        self.in_flight += 1;
        self.submitted.put(command);
        self.fetch(now);
    }

    fn next_event(&self) -> Option<Nanos> {
        let ending = self.ending.peek().map(|Reverse((ends, ..))| *ends);
        earlier(self.bus_event(), ending)
    }

    fn advance(&mut self, now: Nanos, ended: &mut Vec<(Nanos, u32)>) {
        loop {
            let ending = self.ending.peek().map(|Reverse((ends, ..))| *ends);
            let is_first = |bus: &Nanos| *bus <= now && ending.is_none_or(|ends| *bus <= ends);
            if let Some(at) = self.bus_event().filter(is_first) {
                self.turn_of_bus(at);
                continue;
            }
            if ending.is_none_or(|ends| ends > now) {
                return;
            }
            let Some(Reverse((ends, arrival, tag))) = self.ending.pop() else { return };
            self.in_flight -= 1;
            ended.push((ends, tag));
            self.end(ends, arrival);
            self.submitted.end();
            self.fetch(ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::Sector;
    use blockyard_workload::random::Random;

    use super::*;

    const US: u64 = 1_000;

    /// Like a card of 2009: 16 KiB pages, blocks of 4 MiB, two of them open.
    fn sd_card() -> Flash {
        Flash::new(FlashConfig {
            sectors: 16 << 20,
            page_sectors: 32,
            channels: 1,
            read_page: Nanos(900 * US),
            program_page: Nanos(1_800 * US),
            overhead: Nanos(300 * US),
            bus_sector: Nanos(25 * US),
            bus_write_sector: None,
            bus_command: Nanos(0),
            queue_depth: 1,
            queues: Queues::default(),
            page_types: PageTypes::default(),
            blocks: Some(EraseBlocks { sectors: 8 << 10, open: 2, close: Nanos(150_000 * US) }),
            collection: None,
            write_buffer_sectors: 0,
            slow: Slow::default(),
        })
    }

    fn ssd() -> Flash {
        Flash::new(FlashConfig {
            sectors: 1 << 30,
            page_sectors: 8,
            channels: 16,
            read_page: Nanos(60 * US),
            program_page: Nanos(200 * US),
            overhead: Nanos(8 * US),
            bus_sector: Nanos(160),
            bus_write_sector: None,
            bus_command: Nanos(0),
            queue_depth: 256,
            queues: Queues::default(),
            page_types: PageTypes::default(),
            blocks: None,
            collection: None,
            write_buffer_sectors: 0,
            slow: Slow::default(),
        })
    }

    /// Commands per second, `depth` at a time.
    fn rate(
        flash: &mut Flash,
        depth: usize,
        count: u32,
        mut command: impl FnMut(u32) -> Command,
    ) -> u64 {
        let mut now = Nanos(0);
        let mut ended = Vec::new();
        let mut started = 0;
        while (ended.len() as u32) < count {
            while started < count && (started as usize - ended.len()) < depth {
                flash.start(now, command(started));
                started += 1;
            }
            now = flash.next_event().expect("something is in flight");
            flash.advance(now, &mut ended);
        }
        u64::from(count) * 1_000_000_000 / now.0
    }

    fn writes(tag: u32, sector: u64, sectors: u32) -> Command {
        Command { tag, op: CommandOp::Write { fua: false }, sector: Sector(sector), sectors }
    }

    #[test]
    fn card_writes_in_order_a_hundred_times_faster_than_at_random() {
        let in_order = rate(&mut sd_card(), 1, 2_000, |n| writes(n, u64::from(n) * 32, 32));
        let mut random = Random::new(1, 0);
        let mut card = sd_card();
        let at_random = rate(&mut card, 1, 500, |n| writes(n, random.below(500_000) * 32, 32));
        assert!(in_order > 40 * at_random, "{in_order} and {at_random} pages a second");
        assert!(card.blocks_closed() > 450, "{}", card.blocks_closed());
    }

    #[test]
    fn two_streams_fit_into_two_open_blocks_and_three_do_not() {
        let streams = |count: u64| {
            let mut card = sd_card();
            rate(&mut card, 1, 600, |n| {
                let stream = u64::from(n) % count;
                writes(n, stream * (1 << 20) + u64::from(n) / count * 32, 32)
            });
            card.blocks_closed()
        };
        assert_eq!(streams(2), 0);
        assert!(streams(3) > 500, "{}", streams(3));
    }

    #[test]
    fn random_reads_of_an_ssd_grow_with_the_queue_until_its_channels_are_busy() {
        let iops = |depth| {
            let mut random = Random::new(2, 0);
            rate(&mut ssd(), depth, 20_000, |tag| {
                let sector = Sector(random.below(1 << 27) * 8);
                Command { tag, op: CommandOp::Read, sector, sectors: 8 }
            })
        };
        let one = iops(1);
        let many = iops(64);
        let more = iops(128);
        // Overhead, one page and its bus time: 69 us.
        assert!((14_000..15_000).contains(&one), "{one}");
        assert!(many > 11 * one, "{one} and {many}");
        assert!(more < many * 5 / 4 && more <= 16 * 1_000_000 / 60, "{many} and {more}");
    }

    fn reads(tag: u32, sector: u64) -> Command {
        Command { tag, op: CommandOp::Read, sector: Sector(sector), sectors: 8 }
    }

    #[test]
    fn page_that_is_ready_goes_over_the_bus_before_an_earlier_one_that_is_not() {
        let mut ssd = ssd();
        // Three pages of one channel, then one of another.
        [0, 16, 32, 1].into_iter().zip(0..).for_each(|(page, tag)| {
            ssd.start(Nanos(0), reads(tag, page * 8));
        });
        let mut ended = Vec::new();
        ssd.advance(Nanos(1_000 * US), &mut ended);
        let read = 8 * US + 60 * US;
        let bus = 8 * 160;
        let times = [(read + bus, 0), (read + 2 * bus, 3), (read + 60 * US + bus, 1)];
        let expected = times.into_iter().chain([(read + 120 * US + bus, 2)]);
        assert_eq!(ended, expected.map(|(at, tag)| (Nanos(at), tag)).collect::<Vec<_>>());
    }

    /// The utilisation law: a bus slower than all channels together is never idle.
    #[test]
    fn rate_of_many_random_reads_is_that_of_a_slow_bus() {
        let mut random = Random::new(3, 0);
        let config = FlashConfig { bus_sector: Nanos(750), ..ssd().config };
        let mut slow = Flash::new(config);
        let rate = rate(&mut slow, 128, 20_000, |tag| reads(tag, random.below(1 << 27) * 8));
        // 6 us bus time per page, 3.75 us per page of 16 channels.
        let of_bus = 1_000_000 / 6;
        assert!(rate <= of_bus && rate * 100 > of_bus * 99, "{rate} of {of_bus} a second");
    }

    /// The utilisation law: 5 us a command, 250 ns a written sector, 400 ns a read one.
    #[test]
    fn small_commands_have_a_rate_of_their_own_and_large_ones_that_of_the_bus() {
        let config = FlashConfig {
            channels: 64,
            bus_sector: Nanos(400),
            bus_write_sector: Some(Nanos(250)),
            bus_command: Nanos(5 * US),
            program_page: Nanos(60 * US),
            ..ssd().config
        };
        let rate = |sectors: u32, write: bool| {
            let mut random = Random::new(8, 0);
            rate(&mut Flash::new(config), 256, 20_000, |tag| {
                let sector = random.below(1 << 20) * u64::from(sectors);
                let command = if write { writes(tag, sector, sectors) } else { reads(tag, sector) };
                Command { sectors, ..command }
            })
        };
        for (sectors, write, us) in [(8, true, 7.0), (128, true, 37.0), (8, false, 8.2)] {
            let rate = rate(sectors, write);
            assert!((rate as f64 * us / 1e6 - 1.0).abs() < 0.02, "{sectors} {write}: {rate}");
        }
    }

    /// Little's law: the depth is the rate times the mean time of a command.
    #[test]
    fn rate_times_mean_latency_is_the_depth() {
        for depth in [1, 7, 64] {
            let mut ssd = ssd();
            let mut random = Random::new(4, 0);
            let mut ended = Vec::new();
            let mut now = Nanos(0);
            let mut started = Vec::new();
            let mut sum = 0;
            while ended.len() < 20_000 {
                while started.len() < ended.len() + depth {
                    let tag = started.len() as u32;
                    let sector = random.below(1 << 27) * 8;
                    let write = random.below(3) == 0;
                    let command = if write { writes(tag, sector, 8) } else { reads(tag, sector) };
                    ssd.start(now, command);
                    started.push(now);
                }
                now = ssd.next_event().expect("commands are in flight");
                let before = ended.len();
                ssd.advance(now, &mut ended);
                let took = |(at, tag): &(Nanos, u32)| at.since(started[*tag as usize]).0;
                sum += ended[before..].iter().map(took).sum::<u64>();
            }
            let in_flight = sum as f64 / now.0 as f64;
            assert!((in_flight / depth as f64 - 1.0).abs() < 0.01, "{in_flight} at {depth}");
        }
    }

    fn buffered(sectors: u32) -> Flash {
        Flash::new(FlashConfig { write_buffer_sectors: sectors, ..ssd().config })
    }

    /// The utilisation law again, behind a buffer.
    #[test]
    fn writes_end_in_the_buffer_until_it_is_full_and_then_at_the_rate_of_the_channels() {
        let mut random = Random::new(5, 0);
        let mut random = || random.below(1 << 27) * 8;
        let mut ssd = buffered(2_000 * 8);
        let first = rate(&mut ssd, 1, 500, |n| writes(n, random(), 8));
        // Overhead and bus time: 9.28 us.
        assert!((105_000..108_000).contains(&first), "{first}");
        let sustained = rate(&mut buffered(64 * 8), 32, 20_000, |n| writes(n, random(), 8));
        // 16 channels, 200 us a page.
        assert!((70_000..=80_500).contains(&sustained), "{sustained}");
    }

    #[test]
    fn read_waits_for_the_program_that_has_begun_and_not_for_the_buffer() {
        let mut ssd = buffered(1 << 16);
        // A hundred pages of one channel, then a read of it.
        (0..100).for_each(|tag| ssd.start(Nanos(0), writes(tag, u64::from(tag) * 16 * 8, 8)));
        let mut ended = Vec::new();
        ssd.advance(Nanos(1_000 * US), &mut ended);
        assert_eq!(ended.len(), 100);
        ssd.start(Nanos(1_000 * US), reads(100, 0));
        ssd.advance(Nanos(30_000 * US), &mut ended);
        let took = ended[100].0.since(Nanos(1_000 * US));
        assert!(took >= Nanos(69 * US) && took <= Nanos(269 * US + 280), "{took:?}");
    }

    #[test]
    fn random_writes_of_a_full_drive_pay_for_the_collection_and_writes_in_order_do_not() {
        let collection = Collection {
            block_sectors: 2_048,
            spare_percent: 7,
            free_sectors: 0,
            erase: Nanos(3_000 * US),
        };
        let full = || {
            let sectors = 100_000 * 8;
            Flash::new(FlashConfig { sectors, collection: Some(collection), ..ssd().config })
        };
        let mut random = Random::new(6, 0);
        let at_random = rate(&mut full(), 32, 40_000, |n| writes(n, random.below(100_000) * 8, 8));
        let in_order = rate(&mut full(), 32, 40_000, |n| writes(n, u64::from(n) * 8, 8));
        assert!(at_random * 4 < in_order, "{at_random} and {in_order} pages a second");
    }

    /// Ends of the only command of a queue, beside a full queue: with two queues, and with one.
    #[test]
    fn command_of_a_short_queue_is_next_and_in_a_shared_queue_it_is_last() {
        let place = |count| {
            let queues = Queues { count, working_max: 1 };
            let config = FlashConfig { queues, queue_depth: 64, ..ssd().config };
            let mut ssd = Flash::new(config);
            // 63 commands of the first queue, then one of the second, if there are two.
            let short = if count == 2 { 64 } else { 63 };
            (0..63).chain([short]).for_each(|tag| ssd.start(Nanos(0), reads(tag, 8)));
            let mut ended = Vec::new();
            ssd.advance(Nanos(1_000_000 * US), &mut ended);
            let all = ended[63].0;
            (ended.iter().position(|(_, tag)| *tag == short).unwrap(), all)
        };
        let (two, all) = place(2);
        let (one, of_one) = place(1);
        assert_eq!((two, one), (1, 63), "one is at work already");
        assert_eq!(all, of_one, "the order costs nothing");
    }

    #[test]
    fn limit_of_commands_at_work_is_the_depth_that_counts() {
        let iops = |working_max| {
            let queues = Queues { count: 4, working_max };
            let mut ssd = Flash::new(FlashConfig { queues, queue_depth: 64, ..ssd().config });
            let mut random = Random::new(2, 0);
            let mut free: Vec<u32> = (0..256).collect();
            let mut ended = Vec::new();
            let mut now = Nanos(0);
            let mut done = 0;
            while done < 10_000 {
                while let Some(tag) = free.pop() {
                    ssd.start(now, reads(tag, random.below(1 << 27) * 8));
                }
                now = ssd.next_event().unwrap();
                ssd.advance(now, &mut ended);
                done += ended.len() as u64;
                free.extend(ended.drain(..).map(|(_, tag)| tag));
            }
            done * 1_000_000_000 / now.0
        };
        // Little's law at a depth of one: overhead, a page and its bus time, 69 us.
        assert!((14_000..15_000).contains(&iops(1)), "{}", iops(1));
        assert!(iops(0) > 14 * iops(1), "{}", iops(0));
    }

    #[test]
    fn reads_take_the_times_of_the_types_of_pages_in_equal_shares() {
        let times = [40, 60, 110].map(|us| Nanos(us * US));
        let config = FlashConfig { page_types: PageTypes::new(&times), ..ssd().config };
        let mut ssd = Flash::new(config);
        let mut random = Random::new(9, 0);
        let mut now = Nanos(0);
        let mut counts = std::collections::BTreeMap::new();
        for tag in 0..6_000 {
            let sector = random.below(1 << 20) * 8;
            ssd.start(now, reads(tag, sector));
            let mut ended = Vec::new();
            while ended.is_empty() {
                ssd.advance(ssd.next_event().unwrap(), &mut ended);
            }
            // Less overhead and bus time.
            *counts.entry((ended[0].0.since(now).0 - 9_280) / US).or_insert(0) += 1;
            now = ended[0].0;
        }
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [40, 60, 110]);
        assert!(counts.values().all(|count| (1_850..2_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn slow_commands_are_as_many_as_the_share_says() {
        let slow = Slow { per_mille: 20, takes: Nanos(1_000 * US) };
        let mut ssd = Flash::new(FlashConfig { slow, ..ssd().config });
        let mut now = Nanos(0);
        let mut slow = 0;
        for tag in 0..10_000 {
            ssd.start(now, reads(tag, u64::from(tag) * 8));
            let mut ended = Vec::new();
            while ended.is_empty() {
                let next = ssd.next_event().unwrap();
                ssd.advance(next, &mut ended);
            }
            slow += u32::from(ended[0].0.since(now) > Nanos(1_000 * US));
            now = ended[0].0;
        }
        assert!((150..250).contains(&slow), "{slow}");
    }

    #[test]
    fn flush_ends_when_writes_before_it_have_ended_and_waits_for_no_later_one() {
        let mut ssd = ssd();
        let flush = |tag| Command { tag, op: CommandOp::Flush, sector: Sector(0), sectors: 0 };
        (0..32).for_each(|tag| ssd.start(Nanos(0), writes(tag, u64::from(tag) * 8, 8)));
        ssd.start(Nanos(0), flush(99));
        (32..96).for_each(|tag| ssd.start(Nanos(0), writes(tag, u64::from(tag) * 8, 8)));
        let mut ended = Vec::new();
        ssd.advance(Nanos(10_000 * US), &mut ended);
        let place = |tag| ended.iter().position(|(_, ended)| *ended == tag).unwrap();
        assert!((0..32).all(|tag| place(tag) < place(99)), "{ended:?}");
        assert!(place(99) < place(95) && ended[place(99)].0 >= Nanos(400 * US), "{ended:?}");
        ssd.start(Nanos(20_000 * US), flush(100));
        assert_eq!(ssd.next_event(), Some(Nanos(20_008 * US)), "nothing to wait for");
    }
}
