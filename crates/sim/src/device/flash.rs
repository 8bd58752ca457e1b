//! Flash: an SD card, or an SSD behind NVMe.
//!
//! A command is cut into pages, which lie on channels in turn; a channel does one page at a time. A
//! page is programmed into an erase block that is open. Only so many are open at a time; a write to
//! another one closes the one that was used longest ago, and closing costs a copy of what it does
//! not hold yet. That is why an SD card, with one or two open blocks, writes at random a hundred
//! times slower than in order, and an SSD, whose pages are remapped (no limit), does not.
//!
//! What it leaves out: wear, garbage collection of a full drive, a volatile cache.

use std::collections::{BTreeSet, VecDeque};

use blockyard_engine::time::Nanos;

use super::{Command, CommandOp, Device};

/// What it is like.
#[derive(Clone, Copy, Debug)]
pub struct FlashConfig {
    /// Sectors that it has.
    pub sectors: u64,
    /// Sectors of a page.
    pub page_sectors: u32,
    /// Pages that are worked on side by side.
    pub channels: u32,
    /// To read a page.
    pub read_page: Nanos,
    /// To program a page.
    pub program_page: Nanos,
    /// Electronics and protocol, for each command.
    pub overhead: Nanos,
    /// One sector over the bus.
    pub bus_sector: Nanos,
    /// Commands that it takes at a time; an SD card one.
    pub queue_depth: u32,
    /// Erase blocks, for a device that maps whole blocks.
    pub blocks: Option<EraseBlocks>,
}

/// A mapping by whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct EraseBlocks {
    /// Sectors of a block.
    pub sectors: u32,
    /// How many can be open.
    pub open: u32,
    /// To close one: copy the rest, erase.
    pub close: Nanos,
}

/// The device.
#[derive(Debug)]
pub struct Flash {
    config: FlashConfig,
    /// When each channel has done what it was given.
    channels: Vec<Nanos>,
    bus_free: Nanos,
    /// The one used last is at the end: its number, and where a write in order goes on.
    open: VecDeque<(u64, u64)>,
    /// By end, then by order of arrival.
    running: BTreeSet<(Nanos, u64, u32)>,
    arrivals: u64,
    /// Blocks closed before they were full.
    closed: u64,
}

impl Flash {
    /// A device at rest.
    ///
    /// # Panics
    /// When it has no channel, or no block can be open.
    #[must_use]
    pub fn new(config: FlashConfig) -> Self {
        assert!(config.channels > 0 && config.page_sectors > 0 && config.queue_depth > 0);
        assert!(config.blocks.is_none_or(|blocks| blocks.open > 0 && blocks.sectors > 0));
        Self {
            channels: vec![Nanos(0); config.channels as usize],
            config,
            bus_free: Nanos(0),
            open: VecDeque::new(),
            running: BTreeSet::new(),
            arrivals: 0,
            closed: 0,
        }
    }

    /// How many blocks were closed before they were full.
    #[must_use]
    pub fn blocks_closed(&self) -> u64 {
        self.closed
    }

    /// When the pages of a command are done.
    fn pages(&mut self, ready: Nanos, command: &Command) -> Nanos {
        let page_sectors = u64::from(self.config.page_sectors);
        let first = command.sector.0 / page_sectors;
        let last = (command.sector.0 + u64::from(command.sectors) - 1) / page_sectors;
        let mut end = ready;
        for page in first..=last {
            let time = match command.op {
                CommandOp::Read => self.config.read_page,
                _ => self.config.program_page + self.open_block(page),
            };
            let channel = (page % u64::from(self.config.channels)) as usize;
            let channel = &mut self.channels[channel];
            *channel = ready.max(*channel) + time;
            end = end.max(*channel);
        }
        end
    }

    /// What it costs to have the block of a page open for this page.
    fn open_block(&mut self, page: u64) -> Nanos {
        let Some(blocks) = self.config.blocks else { return Nanos(0) };
        let pages = u64::from(blocks.sectors / self.config.page_sectors).max(1);
        let (block, in_block) = (page / pages, page % pages);
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
        // A page behind or in front of the next one cannot be programmed: the block is copied.
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

impl Device for Flash {
    fn start(&mut self, now: Nanos, command: Command) {
        assert!(command.sector.0 + u64::from(command.sectors) <= self.config.sectors);
        assert!(self.running.len() < self.config.queue_depth as usize);
        let ready = now + self.config.overhead;
        let bus = Nanos(self.config.bus_sector.0 * u64::from(command.sectors));
        let ends = match command.op {
            CommandOp::Flush => self.channels.iter().copied().fold(ready, Nanos::max),
            CommandOp::Read => {
                let read = self.pages(ready, &command);
                self.bus_free = self.bus_free.max(read) + bus;
                self.bus_free
            }
            CommandOp::Write { .. } => {
                self.bus_free = self.bus_free.max(ready) + bus;
                self.pages(self.bus_free, &command)
            }
        };
        self.running.insert((ends, self.arrivals, command.tag));
        self.arrivals += 1;
    }

    fn next_event(&self) -> Option<Nanos> {
        self.running.first().map(|(ends, ..)| *ends)
    }

    fn advance(&mut self, now: Nanos, ended: &mut Vec<(Nanos, u32)>) {
        while self.next_event().is_some_and(|ends| ends <= now) {
            let (ends, _, tag) = self.running.pop_first().expect("just looked");
            ended.push((ends, tag));
        }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::Sector;
    use blockyard_workload::random::Random;

    use super::*;

    const US: u64 = 1_000;

    /// About a card of 2009: 16 KiB pages, blocks of 4 MiB, two of them open.
    fn sd_card() -> Flash {
        Flash::new(FlashConfig {
            sectors: 16 << 20,
            page_sectors: 32,
            channels: 1,
            read_page: Nanos(900 * US),
            program_page: Nanos(1_800 * US),
            overhead: Nanos(300 * US),
            bus_sector: Nanos(25 * US),
            queue_depth: 1,
            blocks: Some(EraseBlocks { sectors: 8 << 10, open: 2, close: Nanos(150_000 * US) }),
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
            queue_depth: 256,
            blocks: None,
        })
    }

    /// Commands a second, `depth` at a time.
    fn rate(
        flash: &mut Flash,
        depth: usize,
        count: u32,
        mut command: impl FnMut(u32) -> Command,
    ) -> u64 {
        let (mut now, mut ended, mut started) = (Nanos(0), Vec::new(), 0);
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
        let (one, many, more) = (iops(1), iops(64), iops(128));
        // Overhead, one page, its bus: 69 us.
        assert!((14_000..15_000).contains(&one), "{one}");
        assert!(many > 11 * one && many < 16 * one, "{one} and {many}");
        assert!(more < many * 5 / 4 && more <= 16 * 1_000_000 / 60, "{many} and {more}");
    }

    #[test]
    fn flush_ends_when_every_channel_has_programmed_what_it_was_given() {
        let mut ssd = ssd();
        (0..32).for_each(|tag| ssd.start(Nanos(0), writes(tag, u64::from(tag) * 8, 8)));
        let flush = Command { tag: 99, op: CommandOp::Flush, sector: Sector(0), sectors: 0 };
        ssd.start(Nanos(0), flush);
        let mut ended = Vec::new();
        ssd.advance(Nanos(1_000_000), &mut ended);
        assert_eq!(ended.last().map(|(_, tag)| *tag), Some(99));
        assert!(ended[32].0 >= Nanos(400 * US), "two pages on each channel: {:?}", ended[32]);
    }
}
