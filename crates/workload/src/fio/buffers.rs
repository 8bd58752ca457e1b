//! Content of writes: noise, a pattern, parts of both, and repetitions (`buffer_pattern`,
//! `buffer_compress_percentage`, `dedupe_percentage` and their like).
//!
//! ```text
//! request:  │ noise │ pattern or zeros │ noise │ pattern or zeros │ …
//!           └ 100 - buffer_compress_percentage of each chunk
//! ```
//! As in fio 3.33, a whole request is either new or a repetition. Without any of these options a
//! client's buffers are filled with noise once.

use blockyard_engine::time::Nanos;

use super::job::Job;
use super::options::{Set, set};
use super::value::{flag, number, size};
use super::verify::Pattern;
use crate::random::Random;

/// Stream of random numbers besides that of the offsets. Our choice.
const STREAM: u64 = 0x6275_6666;
/// Greatest number of buffers in a working set: 32 MiB of their seeds. Our choice.
const SET_MAX: u64 = 1 << 22;

/// Options of this module.
pub(super) const OPTIONS: &[(&str, Set)] = &[
    ("buffer_pattern", |job, text| set(&mut job.buffers.pattern, Pattern::parse(text).map(Some))),
    ("zero_buffers", |job, text| {
        let is_zero = flag(text)?;
        let zeros = if is_zero { Pattern::parse("0x00").map(Some) } else { Ok(None) };
        set(&mut job.buffers.pattern, zeros)
    }),
    ("refill_buffers", |job, text| set(&mut job.buffers.refills, flag(text))),
    ("scramble_buffers", |job, text| set(&mut job.buffers.scrambles, flag(text))),
    ("buffer_compress_percentage", |job, text| {
        set(&mut job.buffers.fixed_percent, number(text, 0, 100))
    }),
    ("buffer_compress_chunk", |job, text| {
        set(&mut job.buffers.chunk_bytes, size(text, job.kb_base))
    }),
    ("dedupe_percentage", |job, text| set(&mut job.buffers.again_percent, number(text, 0, 100))),
    ("dedupe_mode", |job, text| {
        let is_set = match text {
            "repeat" => Ok(false),
            "working_set" => Ok(true),
            _ => Err("it must be repeat or working_set".into()),
        };
        set(&mut job.buffers.has_working_set, is_set)
    }),
    ("dedupe_working_set_percentage", |job, text| {
        set(&mut job.buffers.working_set_percent, number(text, 1, 100))
    }),
];

/// Content of a job's writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// `buffer_pattern`, `zero_buffers`: content of a request, or of the rest of each chunk.
    pub pattern: Option<Pattern>,
    /// `refill_buffers`: new noise for each request.
    pub refills: bool,
    /// `scramble_buffers`: changes a few bytes of each sector. Unlike in fio, off by default.
    pub scrambles: bool,
    /// `buffer_compress_percentage`: compressible share of each chunk in percent.
    pub fixed_percent: u8,
    /// `buffer_compress_chunk`: length of a chunk; 0: length of the shortest request.
    pub chunk_bytes: u64,
    /// `dedupe_percentage`: percentage of requests with bytes that were written before.
    pub again_percent: u8,
    /// `dedupe_mode=working_set`: repeat one of the first requests instead of the last new one.
    pub has_working_set: bool,
    /// `dedupe_working_set_percentage`: size of the working set in percent of the requests in
    /// `size`.
    pub working_set_percent: u8,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            pattern: None,
            refills: false,
            scrambles: false,
            fixed_percent: 0,
            chunk_bytes: 512,
            again_percent: 0,
            has_working_set: false,
            working_set_percent: 5,
        }
    }
}

/// Generator of a clone's bytes.
#[derive(Clone, Debug)]
pub(super) struct Source {
    buffers: Buffers,
    random: Random,
    /// Greatest length of a chunk.
    chunk_bytes: usize,
    /// Seed of new noise.
    seed: u64,
    /// Seeds of the first requests, until the working set is full.
    working_set: Vec<u64>,
    working_set_max: usize,
}

impl Source {
    /// `None` if any bytes will do.
    pub(super) fn of(job: &Job, number: u64) -> Option<Box<Self>> {
        let buffers = job.buffers.clone();
        if buffers == (Buffers { chunk_bytes: buffers.chunk_bytes, ..Buffers::default() }) {
            return None;
        }
        let min_bytes = job.shape.min_bytes().max(1);
        let chunk_bytes = match buffers.chunk_bytes {
            0 => min_bytes,
            chunk => chunk.min(min_bytes),
        };
        let requests = job.region.size_bytes / min_bytes;
        let first = requests.saturating_mul(buffers.working_set_percent.into()) / 100;
        let mut random = Random::new(job.shape.seed ^ STREAM, number);
        Some(Box::new(Self {
            seed: random.below(u64::MAX),
            buffers,
            random,
            chunk_bytes: usize::try_from(chunk_bytes).unwrap_or(usize::MAX),
            working_set: Vec::new(),
            working_set_max: first.clamp(1, SET_MAX) as usize,
        }))
    }

    /// Fills the buffer of the request at this offset.
    pub(super) fn fill(&mut self, offset_bytes: u64, started: Nanos, bytes: &mut [u8]) {
        let Buffers { refills, scrambles, fixed_percent, again_percent, .. } = self.buffers;
        match &self.buffers.pattern {
            _ if fixed_percent > 0 || again_percent > 0 => self.fill_parts(offset_bytes, bytes),
            Some(pattern) => return pattern.fill(offset_bytes, bytes),
            None if refills => {
                self.seed = self.random.below(u64::MAX);
                noise(self.seed, bytes);
            }
            None => {}
        }
        // Repeated requests stay identical.
        if scrambles && again_percent == 0 && !refills {
            scramble(offset_bytes, started, bytes);
        }
    }

    fn fill_parts(&mut self, offset_bytes: u64, bytes: &mut [u8]) {
        let seed = self.draw();
        let fixed_percent = usize::from(self.buffers.fixed_percent);
        for (number, chunk) in (0..).zip(bytes.chunks_mut(self.chunk_bytes)) {
            let (random, fixed) = chunk.split_at_mut(chunk.len() * (100 - fixed_percent) / 100);
            noise(seed.wrapping_add(number), random);
            match &self.buffers.pattern {
                Some(pattern) => pattern.fill(offset_bytes, fixed),
                None => fixed.fill(0),
            }
        }
    }

    /// Draws the noise seed of the next request.
    fn draw(&mut self) -> u64 {
        let is_again = self.random.below(100) < self.buffers.again_percent.into();
        if is_again && self.buffers.has_working_set && !self.working_set.is_empty() {
            let at = self.random.below(self.working_set.len() as u64);
            return self.working_set[at as usize];
        }
        if !is_again {
            self.seed = self.random.below(u64::MAX);
            if self.buffers.has_working_set && self.working_set.len() < self.working_set_max {
                self.working_set.push(self.seed);
            }
        }
        self.seed
    }
}

/// Fills the buffer with incompressible bytes (SplitMix64).
fn noise(seed: u64, bytes: &mut [u8]) {
    let mut random = Random::new(seed, 0);
    let mut words = bytes.chunks_exact_mut(8);
    for word in words.by_ref() {
        word.copy_from_slice(&random.bits().to_le_bytes());
    }
    let rest = words.into_remainder();
    let last = random.bits().to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Scrambles as fio does: eight bytes at one of eight places of each sector become the sector's
/// offset, and sixteen bytes the request's start time.
fn scramble(offset_bytes: u64, started: Nanos, bytes: &mut [u8]) {
    let seconds = started.0 / 1_000_000_000;
    let ns = started.0 % 1_000_000_000;
    let place = ((ns ^ offset_bytes) & 7) as usize * 64;
    for (sector, bytes) in (0u64..).zip(bytes.chunks_exact_mut(512)) {
        let at = offset_bytes + sector * 512;
        bytes[place..place + 8].copy_from_slice(&at.to_le_bytes());
        bytes[48..56].copy_from_slice(&seconds.to_le_bytes());
        bytes[56..64].copy_from_slice(&ns.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn source(options: &[(&str, &str)]) -> Option<Box<Source>> {
        let mut job = Job::new("a").with(|job| job.region.size_bytes = 1000 * 4096);
        options.iter().for_each(|(key, value)| job.set(key, value).unwrap());
        Source::of(&job, 0)
    }

    /// A thousand requests of 4 KiB, all into the same buffer.
    fn requests(options: &[(&str, &str)]) -> Vec<Vec<u8>> {
        let mut source = source(options).unwrap();
        let mut buffer = vec![0xcc; 4096];
        let mut write = |number: u64| {
            source.fill(number * 4096, Nanos(number * 1_000_001), &mut buffer);
            buffer.clone()
        };
        (0..1000).map(&mut write).collect()
    }

    fn zeros(bytes: &[u8]) -> usize {
        bytes.iter().rev().take_while(|byte| **byte == 0).count()
    }

    #[test]
    fn jobs_that_ask_for_nothing_have_no_source() {
        assert!(source(&[]).is_none() && source(&[("buffer_compress_chunk", "4k")]).is_none());
        assert!(source(&[("zero_buffers", "0"), ("dedupe_percentage", "0")]).is_none());
    }

    #[test]
    fn so_much_of_each_chunk_is_zeros_and_the_rest_is_noise() {
        for (chunk, len, fixed) in [("512", 512, 358), ("0", 4096, 2867), ("1m", 4096, 2867)] {
            let options = [("buffer_compress_percentage", "70"), ("buffer_compress_chunk", chunk)];
            let all = requests(&options);
            for part in all.iter().flat_map(|request| request.chunks(len)) {
                // The last byte of the noise may be a zero, too.
                assert!((fixed..fixed + 4).contains(&zeros(part)), "{chunk}: {}", zeros(part));
            }
            let different: BTreeSet<&Vec<u8>> = all.iter().collect();
            assert_eq!(different.len(), 1000, "no two are the same");
        }
    }

    #[test]
    fn the_rest_is_a_pattern_if_there_is_one() {
        let options = [("buffer_compress_percentage", "50"), ("buffer_pattern", "0xab")];
        let all = requests(&options);
        assert!(all.iter().all(|request| request[256..512].iter().all(|byte| *byte == 0xab)));
        assert!(all.iter().all(|request| request[..256].iter().any(|byte| *byte != 0xab)));
    }

    #[test]
    fn so_many_requests_have_the_bytes_of_one_before() {
        for mode in ["repeat", "working_set"] {
            let options = [("dedupe_percentage", "40"), ("dedupe_mode", mode)];
            let all = requests(&options);
            let different: BTreeSet<&Vec<u8>> = all.iter().collect();
            assert!((550..650).contains(&different.len()), "{mode}: {}", different.len());
            // 50 seeds are the working set; otherwise only adjacent requests are equal.
            let next = all.windows(2).filter(|pair| pair[0] == pair[1]).count();
            assert_eq!(next > 300, mode == "repeat", "{mode}: {next}");
        }
    }

    #[test]
    fn refilled_buffers_are_new_and_scrambled_ones_differ_in_a_few_bytes() {
        let all = requests(&[("refill_buffers", "1")]);
        let different: BTreeSet<&Vec<u8>> = all.iter().collect();
        assert_eq!(different.len(), 1000);
        let all = requests(&[("scramble_buffers", "1")]);
        let different: BTreeSet<&Vec<u8>> = all.iter().collect();
        assert_eq!(different.len(), 1000);
        let kept = all[999].iter().filter(|byte| **byte == 0xcc).count();
        assert!((4096 / 2..4096).contains(&kept), "{kept}");
    }
}
