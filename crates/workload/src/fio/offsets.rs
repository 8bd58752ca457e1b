//! Offset of the next request: sequential, with leaps, or in a random order that has each block
//! once.
//!
//! fio marks visited blocks in a bitmap. Here the order is a computed permutation: a Feistel
//! network over the next power of four, iterated until the result is in range. The permutation
//! needs no memory and no search. A bitmap ([`super::map`]) is necessary only where lengths differ,
//! or where some requests follow others.
//!
//! Each direction has its own sequential position; a random order is shared. Seen with fio 3.33: a
//! leap (`rw=read:8k`) counts from the end of the request before and not at the very start. A leap
//! back past the start continues at the end of the region; a leap past the end ends the pass.

use super::distribution::Draw;
use super::job::{Job, Sequencer};
use super::lens::{Direction, Lens};
use super::map::Map;
use super::strides::Zone;
use crate::random::Random;

/// Rounds of the network, enough to separate neighbours; a test checks this.
const ROUNDS: usize = 6;
/// Streams of random numbers besides that of the offsets. Our choice.
const LENS_STREAM: u64 = 0x6c65_6e73;
const CHOICE_STREAM: u64 = 0x6368_6f69;

/// Most draws for an offset within a zone that is cut off at the end of the region; after these the
/// offset is 0. Our choice.
const CUT_DRAWS_MAX: u32 = 4096;

/// A range of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

/// The requests of a clone, pass after pass; offsets are relative to its region.
// 14 fields: one for each of fio's options about offsets and lengths, and the state of each
// direction.
#[derive(Clone, Debug)]
pub(crate) struct Offsets {
    /// The current zone, if there are zones; the other fields are then relative to a zone.
    zone: Option<Zone>,
    region_bytes: u64,
    /// Unit of a random order.
    unit_bytes: u64,
    /// By direction: alignment of offsets, and lengths.
    align_bytes: [u64; 3],
    lens: [Lens; 3],
    order: Order,
    /// Distance from the end of a sequential request to the start of the next.
    leap_bytes: i64,
    /// Number of requests per random offset.
    every: u64,
    sequencer: Sequencer,
    /// By direction: percentage of random requests.
    random_percent: [u8; 3],
    /// By direction: number of requests, and the last request.
    count: [u64; 3],
    last: [Option<Extent>; 3],
    lens_random: Random,
    choices: Random,
}

#[derive(Clone, Debug)]
enum Order {
    Sequential,
    /// Each block once a pass, with the position in the pass.
    Permuted(Random, Permutation, u64),
    /// Each unit once a pass, for requests of several lengths.
    Mapped(Random, Map),
    /// Random draws with replacement.
    Drawn(Draw),
}

impl Offsets {
    /// The offsets of a clone; `number` counts all clones of the program.
    pub(crate) fn of(job: &Job, number: u64) -> Self {
        let lens = Direction::ALL.map(|direction| job.shape.lens(direction).clone());
        let align_bytes = Direction::ALL.map(|direction| job.shape.align_bytes(direction));
        let zone = Zone::first(&job.shape.strides, job.region_bytes());
        let region_bytes = zone.as_ref().map_or(job.region_bytes(), Zone::len_bytes);
        let unit_bytes = job.shape.unit_bytes();
        let units = region_bytes / unit_bytes;
        let mut random = Random::new(job.shape.seed, 2 * number);
        let order = if !job.shape.rw.is_random() {
            Order::Sequential
        } else if !job.shape.has_map() {
            Order::Drawn(Draw::new(&job.shape.distribution, units, unit_bytes, random))
        } else if job.shape.needs_bitmap() {
            Order::Mapped(random, Map::new(units))
        } else {
            let permutation = Permutation::draw(units, &mut random);
            Order::Permuted(random, permutation, 0)
        };
        Self {
            zone,
            region_bytes,
            unit_bytes,
            align_bytes,
            lens,
            order,
            leap_bytes: job.shape.leap_bytes,
            every: job.shape.random_every.into(),
            sequencer: job.shape.sequencer,
            random_percent: job.shape.random_percent,
            count: [0; 3],
            last: [None; 3],
            lens_random: Random::new(job.shape.seed ^ LENS_STREAM, number),
            choices: Random::new(job.shape.seed ^ CHOICE_STREAM, number),
        }
    }

    /// The next request of a direction; `None` at the end of a pass with leaps.
    pub(crate) fn next(&mut self, direction: Direction) -> Option<Extent> {
        if self.zone.is_none() { self.next_inside(direction) } else { self.next_in_zone(direction) }
    }

    fn next_in_zone(&mut self, direction: Direction) -> Option<Extent> {
        let zone = self.zone.as_mut().expect("the caller checks for a zone");
        if zone.advance() {
            self.last = [None; 3];
        }
        let start_bytes = zone.start_bytes();
        let len_bytes = zone.len_bytes();
        // The last zone may be cut off: a draw past the end of the region is repeated.
        let mut drawn = (0..CUT_DRAWS_MAX).map_while(|_| {
            let extent = self.next_inside(direction)?;
            let is_in = extent.offset_bytes + extent.len_bytes <= len_bytes;
            if !is_in && matches!(self.order, Order::Sequential) {
                self.last = [None; 3];
            }
            Some(Some(extent).filter(|_| is_in))
        });
        let found = drawn.find_map(|extent| extent);
        let first =
            || Extent { offset_bytes: 0, len_bytes: self.lens[direction.index()].min_bytes() };
        let extent = found.unwrap_or_else(first);
        self.zone.as_mut().expect("the zone is still set").moved(extent.len_bytes);
        let offset_bytes = start_bytes + extent.offset_bytes;
        Some(Extent { offset_bytes, ..extent })
    }

    fn next_inside(&mut self, direction: Direction) -> Option<Extent> {
        let index = direction.index();
        let extent = if matches!(self.order, Order::Sequential) {
            self.in_order(index)?
        } else if self.draws(index) {
            self.at_random(index)
        } else {
            self.behind(index)
        };
        self.count[index] += 1;
        self.last[index] = Some(extent);
        Some(extent)
    }

    /// Starts the next pass after a leap past the end.
    pub(crate) fn restart(&mut self) {
        self.last = [None; 3];
    }

    /// The last range of a direction; a trimmed range is written next.
    pub(crate) fn again(&self, direction: Direction) -> Option<Extent> {
        self.last[direction.index()]
    }

    fn draws(&mut self, index: usize) -> bool {
        let percent = u64::from(self.random_percent[index]);
        (self.every == 1 || self.count[index].is_multiple_of(self.every))
            && (percent >= 100 || self.choices.below(100) < percent)
    }

    /// The next sequential request.
    fn in_order(&mut self, index: usize) -> Option<Extent> {
        let behind = self.last[index].map_or(0, |last| last.offset_bytes + last.len_bytes);
        let len_bytes = self.lens[index].draw(&mut self.lens_random);
        let leap = if behind > 0 { self.leap_bytes } else { 0 };
        let offset_bytes = match behind.checked_add_signed(leap) {
            Some(at) if at < self.region_bytes => at,
            // Without a leap, passes follow each other directly.
            Some(_) if leap == 0 => 0,
            Some(_) => return None,
            None => self.region_bytes.saturating_add_signed(leap),
        };
        let left_bytes = self.region_bytes - offset_bytes;
        match self.fitting(index, len_bytes, left_bytes) {
            Some(len_bytes) => Some(Extent { offset_bytes, len_bytes }),
            None if leap != 0 => None,
            None => {
                let len_bytes = self.fitting(index, len_bytes, self.region_bytes);
                let len_bytes = len_bytes.expect("a region has room for one request");
                Some(Extent { offset_bytes: 0, len_bytes })
            }
        }
    }

    /// A length that fits: the drawn one, or another draw, as in fio.
    fn fitting(&mut self, index: usize, drawn: u64, room_bytes: u64) -> Option<u64> {
        if drawn <= room_bytes {
            return Some(drawn);
        }
        let min_bytes = self.lens[index].min_bytes();
        (min_bytes <= room_bytes).then(|| {
            // A rare length may take many draws.
            let again = (0..16).map(|_| self.lens[index].draw(&mut self.lens_random));
            again.into_iter().find(|len| *len <= room_bytes).unwrap_or(min_bytes)
        })
    }

    /// The request after a random one: sequential or identical.
    fn behind(&mut self, index: usize) -> Extent {
        let Some(last) = self.last[index] else { return self.at_random(index) };
        if self.sequencer == Sequencer::Identical {
            return last;
        }
        let behind = last.offset_bytes + last.len_bytes;
        let len_bytes = self.lens[index].draw(&mut self.lens_random);
        match self.fitting(index, len_bytes, self.region_bytes - behind) {
            Some(len_bytes) => Extent { offset_bytes: behind, len_bytes },
            None => self.at_random(index),
        }
    }

    fn at_random(&mut self, index: usize) -> Extent {
        let align_bytes = self.align_bytes[index];
        let unit = match &mut self.order {
            Order::Sequential => unreachable!("it is not random"),
            Order::Drawn(draw) => draw.next(),
            Order::Permuted(random, permutation, place) => {
                if *place == permutation.blocks {
                    *place = 0;
                    *permutation = Permutation::draw(permutation.blocks, random);
                }
                *place += 1;
                let offset_bytes = permutation.at(*place - 1) * align_bytes;
                let Lens::Fixed(len_bytes) = self.lens[index] else {
                    unreachable!("other lengths have a bitmap");
                };
                return Extent { offset_bytes, len_bytes };
            }
            Order::Mapped(..) => return self.mapped(index),
        };
        let len_bytes = self.lens[index].draw(&mut self.lens_random);
        self.at_unit(index, unit, len_bytes)
    }

    /// A request at a unit, rounded down to the direction's alignment.
    fn at_unit(&mut self, index: usize, unit: u64, len_bytes: u64) -> Extent {
        let align_bytes = self.align_bytes[index];
        let last = self.region_bytes - self.lens[index].min_bytes();
        let at_bytes = (unit * self.unit_bytes).min(last);
        let is_aligned = align_bytes == self.unit_bytes && at_bytes < last;
        // An aligned offset needs no division, which is a tenth of the cost of an offset.
        let offset_bytes = if is_aligned { at_bytes } else { at_bytes / align_bytes * align_bytes };
        let len_bytes = self.fitting(index, len_bytes, self.region_bytes - offset_bytes);
        let len_bytes = len_bytes.expect("the smallest has room there");
        Extent { offset_bytes, len_bytes }
    }

    /// A request from a free unit up to the next used one.
    fn mapped(&mut self, index: usize) -> Extent {
        let len_bytes = self.lens[index].draw(&mut self.lens_random);
        let Order::Mapped(random, map) = &mut self.order else { unreachable!("it has a map") };
        if map.is_full() {
            map.clear();
        }
        let drawn = random.below(map.units());
        let free = map.next_free(drawn).expect("it is not full");
        let mut extent = self.at_unit(index, free, len_bytes);
        let Order::Mapped(_, map) = &mut self.order else { unreachable!("it has a map") };
        let first = extent.offset_bytes / self.unit_bytes;
        let end = (extent.offset_bytes + extent.len_bytes).div_ceil(self.unit_bytes);
        if first == free {
            let marked_bytes = map.mark(first, end - first) * self.unit_bytes;
            extent.len_bytes = extent.len_bytes.min(marked_bytes);
        } else {
            // The alignment is larger than a unit, so the request may cover another direction's
            // units.
            for unit in first..end {
                map.mark(unit, 1);
            }
        }
        extent
    }
}

/// A permutation of `0..blocks`.
#[derive(Clone, Debug)]
struct Permutation {
    blocks: u64,
    /// Bits of each half.
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    fn draw(blocks: u64, random: &mut Random) -> Self {
        let bits = (blocks - 1).checked_ilog2().map_or(0, |highest| highest + 1);
        let keys = [(); ROUNDS].map(|()| random.below(u64::MAX));
        Self { blocks, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// The block at a position of the pass. The network permutes less than four times as many
    /// numbers as there are blocks, so a few iterations give a valid block.
    fn at(&self, place: u64) -> u64 {
        let mut number = self.scramble(place);
        while number >= self.blocks {
            number = self.scramble(number);
        }
        number
    }

    fn scramble(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let mut left = number >> self.half_bits;
        let mut right = number & mask;
        for key in self.keys {
            let mixed = (right ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right, left ^ (mixed >> (64 - self.half_bits)));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Rw;
    use super::super::strides::Strides;
    use super::*;

    fn job(rw: Rw, blocks: u64) -> Job {
        Job::new("a").with(|job| {
            job.shape.rw = rw;
            job.region.size_bytes = blocks * 4096;
        })
    }

    fn blocks(job: &Job, direction: Direction, count: u64) -> Vec<u64> {
        let mut offsets = Offsets::of(job, 0);
        let mut next = || offsets.next(direction).map(|extent| extent.offset_bytes / 4096);
        (0..count).map_while(|_| next()).collect()
    }

    fn pass(offsets: &mut Offsets, blocks: u64) -> Vec<u64> {
        (0..blocks).map(|_| offsets.next(Direction::Read).unwrap().offset_bytes / 4096).collect()
    }

    #[test]
    fn random_order_has_each_block_once_a_pass_and_differs_from_pass_to_pass() {
        for blocks in [1, 2, 3, 5, 16, 17, 256, 1000, 4097] {
            let mut offsets = Offsets::of(&job(Rw::RandRead, blocks), 0);
            let first = pass(&mut offsets, blocks);
            let second = pass(&mut offsets, blocks);
            for pass in [&first, &second] {
                let mut sorted = pass.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..blocks), "{blocks}: {pass:?}");
            }
            assert!(blocks < 16 || first != second);
        }
    }

    #[test]
    fn random_order_jumps_as_far_as_chance_would() {
        let blocks = 10_000;
        for seed in 0..20 {
            let order = job(Rw::RandRead, blocks).with(|job| job.shape.seed = seed);
            let order = pass(&mut Offsets::of(&order, 0), blocks);
            let jumps = order.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
            let mean = jumps.sum::<u64>() / (blocks - 1);
            assert!((3100..3570).contains(&mean), "a third of all blocks: {mean}");
            let ascents = order.windows(2).filter(|pair| pair[0] < pair[1]).count();
            assert!((4700..5300).contains(&ascents), "half: {ascents}");
        }
    }

    #[test]
    fn blocks_in_order_start_again_at_the_end() {
        assert_eq!(blocks(&job(Rw::Read, 3), Direction::Read, 5), [0, 1, 2, 0, 1]);
    }

    /// As in fio 3.33 with 16 blocks.
    #[test]
    fn leaps_end_the_pass_at_the_end_and_go_round_at_the_start() {
        let leap = |leap_bytes, count| {
            blocks(
                &job(Rw::Read, 16).with(|job| job.shape.leap_bytes = leap_bytes),
                Direction::Read,
                count,
            )
        };
        assert_eq!(leap(8192, 99), [0, 3, 6, 9, 12, 15]);
        let back: Vec<u64> = [0].into_iter().chain((0..15).rev()).collect();
        assert_eq!(leap(-8192, 16), back);
    }

    #[test]
    fn every_so_many_requests_a_place_is_drawn_and_the_others_follow_or_stay() {
        let four = job(Rw::RandRead, 256).with(|job| job.shape.random_every = 4);
        let order = blocks(&four, Direction::Read, 32);
        assert!(order.chunks(4).all(|run| run.windows(2).all(|pair| pair[1] == pair[0] + 1)));
        assert!(order.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() >= 6, "{order:?}");
        let same = four.with(|job| job.shape.sequencer = Sequencer::Identical);
        let order = blocks(&same, Direction::Read, 32);
        assert!(order.chunks(4).all(|run| run.iter().all(|block| *block == run[0])), "{order:?}");
    }

    fn strided(rw: Rw, range: u64, size: u64, skip: u64) -> Job {
        let bytes = |blocks: u64| blocks * 4096;
        let is_on = true;
        let range_bytes = Some(bytes(range));
        let strides =
            Strides { is_on, size_bytes: bytes(size), range_bytes, skip_bytes: bytes(skip) };
        job(rw, 64).with(|job| job.shape.strides = strides)
    }

    /// As in fio 3.33 with 64 blocks.
    #[test]
    fn zones_are_gone_through_one_by_one_and_from_the_first_again() {
        let order = blocks(&strided(Rw::Read, 8, 4, 4), Direction::Read, 28);
        let zone = |start: u64| start..start + 4;
        let zones = [0, 12, 24, 36, 48, 60, 0].into_iter().flat_map(zone);
        assert!(order.iter().copied().eq(zones), "{order:?}");
        let twice = blocks(&strided(Rw::Read, 4, 8, 4), Direction::Read, 16);
        assert_eq!(twice, [0, 1, 2, 3, 0, 1, 2, 3, 8, 9, 10, 11, 8, 9, 10, 11]);
        let random = blocks(&strided(Rw::RandRead, 8, 4, 4), Direction::Read, 96);
        for (requests, start) in random.chunks(4).zip([0, 12, 24, 36, 48, 60].iter().cycle()) {
            let inside = |block: &u64| (*start..start + 8).contains(block) && *block < 64;
            assert!(requests.iter().all(inside), "{requests:?} in {start}");
        }
    }

    #[test]
    fn part_of_a_random_order_follows_the_request_before() {
        let some = job(Rw::RandRead, 1 << 20).with(|job| {
            job.shape.random_percent = [20; 3];
            job.shape.norandommap = true;
        });
        let order = blocks(&some, Direction::Read, 1000);
        let follows = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!((750..850).contains(&follows), "{follows}");
    }

    #[test]
    fn lengths_that_differ_have_each_unit_once_and_stay_inside() {
        let split = Lens::Split(vec![(4096, 40), (16_384, 60)]);
        let job = job(Rw::RandWrite, 100).with(|job| job.shape.lens = [const { None }; 3]);
        let job = job.with(|job| job.shape.lens = [None, Some(split), None]);
        let mut offsets = Offsets::of(&job, 0);
        let mut seen = [0u8; 100];
        let mut bytes = 0;
        while bytes < 100 * 4096 {
            let extent = offsets.next(Direction::Write).unwrap();
            let first = (extent.offset_bytes / 4096) as usize;
            let len = (extent.len_bytes / 4096) as usize;
            seen[first..first + len].iter_mut().for_each(|unit| *unit += 1);
            bytes += extent.len_bytes;
        }
        assert!(seen.iter().all(|count| *count == 1), "{seen:?}");
    }

    #[test]
    fn alignment_is_kept_and_of_each_direction_its_own() {
        let job = job(Rw::RandRead, 64).with(|job| job.shape.align_bytes = [Some(16_384); 3]);
        let order = blocks(&job, Direction::Read, 100);
        assert!(order.iter().all(|block| block % 4 == 0), "{order:?}");
        let own = job.with(|job| {
            job.shape.lens = [None, Some(Lens::Fixed(12_288)), None];
            job.shape.align_bytes = [None; 3];
            job.shape.rw = Rw::RandReadWrite;
        });
        let mut offsets = Offsets::of(&own, 0);
        for _ in 0..100 {
            assert_eq!(offsets.next(Direction::Write).unwrap().offset_bytes % 12_288, 0);
            let extent = offsets.next(Direction::Read).unwrap();
            assert!(extent.offset_bytes + extent.len_bytes <= 64 * 4096);
        }
    }
}
