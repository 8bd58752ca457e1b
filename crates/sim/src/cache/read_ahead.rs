//! On-demand read-ahead: which pages to read when one is missed, or when a marked one is met.
//!
//! As `mm/readahead.c` does it since 2.6.23, with the state of one open file:
//!
//! ```text
//!                          |<------ async ------>|
//!     |------------------ size ----------------->|
//!     |====================#=====================|
//!     ^ start              ^ mark
//! ```
//!
//! The window is what was read last. Whoever meets the mark starts the next window, and has the
//! asynchronous part left to read meanwhile. A stream that is read page by page has, where 32 pages
//! is the longest window:
//!
//! ```text
//!     met          window     mark
//!     0 (miss)     0..4       1
//!     1 (mark)     4..12      4
//!     4 (mark)     12..28     12
//!     12 (mark)    28..60     28
//!     28 (mark)    60..92     60     and so on, 32 pages each
//! ```
//!
//! Left out: streams that are interleaved in one open file, and a mark that another open file left
//! behind. The kernel looks for the next page that is not in memory then, and goes on from there;
//! here the stream goes on at its next miss. Congestion and lack of memory, which make windows
//! smaller or delay them, are left out too.

use std::ops::Range;

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// These, as far as they are absent.
    pub pages: Range<u64>,
    /// The one that gets the mark.
    pub mark: Option<u64>,
}

/// The read-ahead state of an open file.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    max_pages: u64,
    start: u64,
    size: u64,
    async_size: u64,
    /// The last page of the call before; none at first.
    previous: Option<u64>,
}

impl ReadAhead {
    /// Of a file that was just opened; zero pages turn read-ahead off.
    #[must_use]
    pub fn new(max_pages: u64) -> Self {
        Self { max_pages, start: 0, size: 0, async_size: 0, previous: None }
    }

    /// A page is absent, of a call that wants `asked_pages` from it on: what to read before it can
    /// go on. Random access brings just those.
    pub fn miss(&mut self, page: u64, asked_pages: u64, file_pages: u64) -> Window {
        if self.max_pages == 0 {
            return clip(page..page + 1, None, file_pages);
        }
        let follows = self.previous.is_some_and(|previous| page.wrapping_sub(previous) <= 1);
        self.previous = Some(page + asked_pages.max(1) - 1);
        if self.expects(page) {
            return self.advance(file_pages);
        }
        // Page 0 starts a stream. (In 2.6.23 only if the file was just opened.)
        if !follows && page > 0 && asked_pages <= self.max_pages {
            return clip(page..page + asked_pages, None, file_pages);
        }
        self.start = page;
        self.size = first_size(asked_pages, self.max_pages);
        self.async_size = if self.size > asked_pages { self.size - asked_pages } else { self.size };
        self.window(file_pages)
    }

    /// The marked page was met: what to read while the task goes on. None at the end of the file,
    /// or if the mark is not of this open file.
    pub fn mark(&mut self, page: u64, file_pages: u64) -> Option<Window> {
        if self.max_pages == 0 || !self.expects(page) {
            return None;
        }
        let window = self.advance(file_pages);
        (!window.pages.is_empty()).then_some(window)
    }

    /// A call has ended, and this was its last page, read ahead or not: one that goes on from there
    /// is part of a stream. Without it, only calls that missed a page are known.
    pub fn called(&mut self, last_page: u64) {
        self.previous = Some(last_page);
    }

    /// The stream has come where the next window is due.
    fn expects(&self, page: u64) -> bool {
        let end = self.start + self.size;
        page > 0 && (page == end - self.async_size || page == end)
    }

    fn advance(&mut self, file_pages: u64) -> Window {
        self.start += self.size;
        self.size = next_size(self.size, self.max_pages);
        self.async_size = self.size;
        self.window(file_pages)
    }

    fn window(&self, file_pages: u64) -> Window {
        let end = self.start + self.size;
        clip(self.start..end, Some(end - self.async_size), file_pages)
    }
}

/// As much of it as lies in the file.
fn clip(pages: Range<u64>, mark: Option<u64>, file_pages: u64) -> Window {
    Window {
        pages: pages.start.min(file_pages)..pages.end.min(file_pages),
        mark: mark.filter(|&mark| mark < file_pages),
    }
}

/// The size of the first window: what was asked for, to the next power of two, times four if that
/// is little, times two if it is not much. Where 32 pages is the longest: 4 for one or two, 16 for
/// eight, 32 above.
fn first_size(asked_pages: u64, max_pages: u64) -> u64 {
    let asked = asked_pages.next_power_of_two();
    if asked <= max_pages / 32 {
        asked * 4
    } else if asked <= max_pages / 4 {
        asked * 2
    } else {
        max_pages
    }
}

/// The size of a window after one of this size.
fn next_size(size: u64, max_pages: u64) -> u64 {
    let times = if size < max_pages / 16 { 4 } else { 2 };
    (size * times).min(max_pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{CacheConfig, Lookup, PageCache};
    use blockyard_engine::time::Nanos;
    use blockyard_workload::program::FileId;

    const END: u64 = 1 << 20;

    fn window(pages: Range<u64>, mark: u64) -> Window {
        Window { pages, mark: Some(mark) }
    }

    fn unmarked(pages: Range<u64>) -> Window {
        Window { pages, mark: None }
    }

    /// Reads pages one by one, each I/O ending at once: what was met, and which window it brought.
    fn stream(pages: Range<u64>, max_pages: u64, file_pages: u64) -> Vec<(u64, Window)> {
        let mut cache = PageCache::new(CacheConfig {
            memory_bytes: 1 << 30,
            dirty_ratio_percent: 40,
            dirty_background_ratio_percent: 10,
            dirty_expire: Nanos(0),
            write_back_interval: Nanos(0),
            read_ahead_bytes: max_pages * 4096,
        });
        let mut read_ahead = ReadAhead::new(max_pages);
        let mut brought = Vec::new();
        for page in pages {
            let window = match cache.lookup(FileId(0), page) {
                Lookup::Absent => Some(read_ahead.miss(page, 1, file_pages)),
                Lookup::Marked => read_ahead.mark(page, file_pages),
                Lookup::UpToDate => None,
                Lookup::Reading => unreachable!("reads end at once"),
            };
            if let Some(window) = window {
                let mut absent = Vec::new();
                cache.begin_read(FileId(0), window.pages.clone(), window.mark, &mut absent);
                assert_eq!(
                    absent.into_iter().flatten().collect::<Vec<_>>(),
                    window.pages.clone().collect::<Vec<_>>(),
                    "overlap"
                );
                cache.end_read(FileId(0), window.pages.clone());
                brought.push((page, window));
            }
            read_ahead.called(page);
        }
        brought
    }

    #[test]
    fn stream_gets_windows_that_double_each_brought_by_the_mark_of_the_last() {
        let expected = [
            (0, window(0..4, 1)),
            (1, window(4..12, 4)),
            (4, window(12..28, 12)),
            (12, window(28..60, 28)),
            (28, window(60..92, 60)),
            (60, window(92..124, 92)),
            (92, window(124..156, 124)),
        ];
        assert_eq!(stream(0..100, 32, END), expected);
    }

    #[test]
    fn windows_grow_fourfold_while_they_are_small() {
        let expected = [
            (0, window(0..4, 1)),
            (1, window(4..20, 4)),
            (4, window(20..52, 20)),
            (20, window(52..116, 52)),
            (52, window(116..244, 116)),
            (116, window(244..372, 244)),
        ];
        assert_eq!(stream(0..200, 128, END), expected);
        // A sixteenth of the longest is no longer small.
        assert_eq!(stream(0..2, 64, END), [(0, window(0..4, 1)), (1, window(4..12, 4))]);
    }

    #[test]
    fn stream_from_the_middle_begins_with_the_second_page() {
        let expected =
            [(500, unmarked(500..501)), (501, window(501..505, 502)), (502, window(505..513, 505))];
        assert_eq!(stream(500..504, 32, END), expected);
    }

    #[test]
    fn end_of_the_file_clips_windows_and_ends_them() {
        let expected = [(0, window(0..4, 1)), (1, window(4..12, 4)), (4, window(12..20, 12))];
        assert_eq!(stream(0..20, 32, 20), expected);
        assert_eq!(stream(0..1, 32, 1), [(0, unmarked(0..1))]);
        assert_eq!(stream(0..3, 32, 3), [(0, window(0..3, 1))]);
    }

    #[test]
    fn first_window_depends_on_what_was_asked_for() {
        let first = |asked| ReadAhead::new(32).miss(0, asked, END);
        assert_eq!(first(1), window(0..4, 1));
        assert_eq!(first(2), window(0..4, 2));
        assert_eq!(first(3), window(0..8, 3));
        assert_eq!(first(8), window(0..16, 8));
        assert_eq!(first(9), window(0..32, 9));
        assert_eq!(first(32), window(0..32, 0));
        assert_eq!(first(100), window(0..32, 0));
    }

    #[test]
    fn random_reads_bring_just_what_was_asked_for_and_leave_the_stream_alone() {
        let mut read_ahead = ReadAhead::new(32);
        assert_eq!(read_ahead.miss(700, 1, END), unmarked(700..701));
        assert_eq!(read_ahead.miss(702, 1, END), unmarked(702..703));
        assert_eq!(read_ahead.miss(90, 4, END), unmarked(90..94));
        assert_eq!(read_ahead.miss(5_000, 1, END), unmarked(5_000..5_001));
        assert_eq!(read_ahead.miss(4_998, 1, END), unmarked(4_998..4_999), "backwards");

        assert_eq!(read_ahead.miss(0, 1, END), window(0..4, 1));
        read_ahead.miss(9_000, 1, END);
        assert_eq!(read_ahead.mark(1, END), Some(window(4..12, 4)));
    }

    #[test]
    fn read_larger_than_a_window_is_a_stream_wherever_it_begins() {
        let mut read_ahead = ReadAhead::new(32);
        assert_eq!(read_ahead.miss(700, 40, END), window(700..732, 700));
        assert_eq!(read_ahead.mark(700, END), Some(window(732..764, 732)));
    }

    #[test]
    fn stream_goes_on_behind_pages_that_were_in_memory() {
        let mut read_ahead = ReadAhead::new(32);
        (300..340).for_each(|page| read_ahead.called(page));
        assert_eq!(read_ahead.miss(340, 1, END), window(340..344, 341));
        let mut without = ReadAhead::new(32);
        assert_eq!(without.miss(340, 1, END), unmarked(340..341));
    }

    #[test]
    fn miss_at_the_end_of_the_window_goes_on_with_the_next() {
        // The mark was not met: its page had been in memory before.
        let mut read_ahead = ReadAhead::new(32);
        assert_eq!(read_ahead.miss(0, 1, END), window(0..4, 1));
        read_ahead.called(3);
        assert_eq!(read_ahead.miss(4, 1, END), window(4..12, 4));
    }

    #[test]
    fn mark_of_another_open_file_brings_nothing() {
        let mut read_ahead = ReadAhead::new(32);
        assert_eq!(read_ahead.mark(28, END), None);
        read_ahead.miss(0, 1, END);
        assert_eq!(read_ahead.mark(28, END), None);
        assert_eq!(read_ahead.mark(1, END), Some(window(4..12, 4)), "and changes nothing");
    }

    #[test]
    fn read_ahead_that_is_off_brings_single_pages() {
        let mut read_ahead = ReadAhead::new(0);
        assert_eq!(read_ahead.miss(0, 4, END), unmarked(0..1));
        assert_eq!(read_ahead.miss(1, 3, END), unmarked(1..2));
        assert_eq!(read_ahead.mark(1, END), None);
    }
}
