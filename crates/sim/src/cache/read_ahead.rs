//! On-demand read-ahead: the pages to read after a miss, or at a marked page.
//!
//! Follows `mm/readahead.c` since 2.6.23, with the state of one open file:
//!
//! ```text
//!                          |<------ async ------>|
//!     |------------------ size ----------------->|
//!     |====================#=====================|
//!     ^ start              ^ mark
//! ```
//!
//! The window is the last range that was read. The reader that meets the mark starts the next
//! window, and still has the asynchronous part to read meanwhile. With a longest window of 32
//! pages, a stream that is read page by page has:
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
//! Left out: interleaved streams in one open file, and marks of another open file. The kernel then
//! searches for the next page that is not in memory and continues there; here the stream continues
//! at its next miss. Also left out: congestion and lack of memory, which shrink or delay windows.

use std::ops::Range;

/// Pages to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Range; only absent pages are read.
    pub pages: Range<u64>,
    /// Page that gets the mark.
    pub mark: Option<u64>,
}

/// The read-ahead state of an open file.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    max_pages: u64,
    start: u64,
    size: u64,
    async_size: u64,
    /// Last page of the previous call; `None` at first.
    previous: Option<u64>,
}

impl ReadAhead {
    /// State of a newly opened file; zero pages disable read-ahead.
    #[must_use]
    pub fn new(max_pages: u64) -> Self {
        Self { max_pages, start: 0, size: 0, async_size: 0, previous: None }
    }

    /// Handles an absent page of a call that wants `asked_pages` from it on; returns the pages to
    /// read first. Random access reads only those of the call.
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

    /// Handles a marked page; returns the pages to read while the task continues. `None` at the end
    /// of the file, or if the mark belongs to another open file.
    pub fn mark(&mut self, page: u64, file_pages: u64) -> Option<Window> {
        if self.max_pages == 0 || !self.expects(page) {
            return None;
        }
        let window = self.advance(file_pages);
        (!window.pages.is_empty()).then_some(window)
    }

    /// Notes the last page of a call, read ahead or not: a call that continues there belongs to a
    /// stream. Without this, only calls with a miss are known.
    pub fn called(&mut self, last_page: u64) {
        self.previous = Some(last_page);
    }

    /// Whether the stream has reached the next window.
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

/// Clips a window to the file.
fn clip(pages: Range<u64>, mark: Option<u64>, file_pages: u64) -> Window {
    Window {
        pages: pages.start.min(file_pages)..pages.end.min(file_pages),
        mark: mark.filter(|&mark| mark < file_pages),
    }
}

/// Size of the first window: the requested size, rounded up to a power of two, times four if that
/// is little, times two if it is moderate. With a longest window of 32 pages: 4 for one or two
/// pages, 16 for eight, 32 above.
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

/// Size of the window that follows one of this size.
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

    /// Reads pages one by one, with each I/O ending immediately; returns the pages that started a
    /// window, with the window.
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
        // A sixteenth of the longest is no longer little.
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
        // The mark had no effect, because its page was in memory before.
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
