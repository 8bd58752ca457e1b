//! Memory of a queue for the data of its requests, in runs of pages.

use std::sync::Arc;

use crate::memory::Region;

const PAGE_BYTES: usize = 4096;
const WORD_PAGES: usize = 64;

/// A region with a bit for each free page. The lowest free run is taken first, so that a queue with
/// few requests in flight uses few pages, which stay in the cache.
#[derive(Debug)]
pub(super) struct Pieces {
    region: Arc<Region>,
    free: Vec<u64>,
}

impl Pieces {
    /// All pages of a region, whose length is a multiple of 256 KiB.
    pub(super) fn new(region: Arc<Region>) -> Self {
        let words = region.len_bytes() / PAGE_BYTES / WORD_PAGES;
        assert_eq!(words * WORD_PAGES * PAGE_BYTES, region.len_bytes());
        Self { region, free: vec![u64::MAX; words] }
    }

    /// Takes a run of at most 256 KiB; returns its offset.
    pub(super) fn take(&mut self, len_bytes: usize) -> Option<usize> {
        let pages = len_bytes.div_ceil(PAGE_BYTES);
        assert!((1..=WORD_PAGES).contains(&pages));
        let (word, bit) = (0..).zip(&self.free).find_map(|(word, free): (usize, &u64)| {
            let starts = starts_of_runs(*free, pages);
            (starts != 0).then(|| (word, starts.trailing_zeros()))
        })?;
        self.free[word] &= !(ones(pages) << bit);
        Some((word * WORD_PAGES + bit as usize) * PAGE_BYTES)
    }

    /// Frees a run.
    pub(super) fn free(&mut self, offset_bytes: usize, len_bytes: usize) {
        let page = offset_bytes / PAGE_BYTES;
        let run = ones(len_bytes.div_ceil(PAGE_BYTES)) << (page % WORD_PAGES);
        let word = &mut self.free[page / WORD_PAGES];
        assert!(*word & run == 0, "a run is freed once");
        *word |= run;
    }

    /// Address of a run.
    pub(super) fn at(&self, offset_bytes: usize, len_bytes: usize) -> *mut u8 {
        self.region.at(offset_bytes, len_bytes)
    }
}

fn ones(count: usize) -> u64 {
    u64::MAX >> (WORD_PAGES - count)
}

/// The bits at which `count` set bits begin.
fn starts_of_runs(mut free: u64, count: usize) -> u64 {
    let mut known = 1;
    while known < count {
        let step = known.min(count - known);
        free &= free >> step;
        known += step;
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_do_not_overlap_and_come_back() {
        let mut pieces = Pieces::new(Arc::new(Region::new(512 << 10).unwrap()));
        let lengths = [4096, 1, 64 << 10, 12 << 10, 256 << 10, 8192];
        let mut taken = Vec::new();
        for round in 0..1000 {
            let len = lengths[round % lengths.len()];
            match pieces.take(len) {
                Some(at) => taken.push((at, len)),
                None => {
                    let (at, len) = taken.remove(round * 7 % taken.len());
                    pieces.free(at, len);
                }
            }
            let mut pages: Vec<_> =
                taken.iter().flat_map(|(at, len)| at / 4096..(at + len).div_ceil(4096)).collect();
            pages.sort_unstable();
            assert!(pages.windows(2).all(|pair| pair[0] < pair[1]), "{taken:?}");
            assert!(pages.last().is_none_or(|last| *last < 128));
        }
        taken.drain(..).for_each(|(at, len)| pieces.free(at, len));
        assert_eq!((pieces.take(256 << 10), pieces.take(256 << 10)), (Some(0), Some(256 << 10)));
    }
}
