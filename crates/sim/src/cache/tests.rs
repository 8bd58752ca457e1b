use blockyard_workload::random::Random;

use super::*;

const A: FileId = FileId(7);
const B: FileId = FileId(3);
const C: FileId = FileId(900_000_000);
const NONE: [u64; 0] = [];

/// A memory with this many pages; writers are throttled above 40 %, flushers work above 10 %.
fn cache(memory_pages: u64) -> PageCache {
    PageCache::new(CacheConfig {
        memory_bytes: memory_pages * PAGE_BYTES,
        dirty_ratio_percent: 40,
        dirty_background_ratio_percent: 10,
        dirty_expire: Nanos(30_000_000_000),
        write_back_interval: Nanos(5_000_000_000),
        read_ahead_bytes: 128 << 10,
    })
}

/// Starts a read of these pages; returns the absent runs.
fn begin_read(cache: &mut PageCache, file: FileId, pages: Range<u64>) -> Vec<Range<u64>> {
    let mut absent = Vec::new();
    cache.begin_read(file, pages, None, &mut absent);
    absent
}

fn read(cache: &mut PageCache, file: FileId, pages: Range<u64>) {
    begin_read(cache, file, pages.clone());
    cache.end_read(file, pages);
}

/// The up-to-date pages, without using them.
fn up_to_date(cache: &mut PageCache, file: FileId, pages: Range<u64>) -> Vec<u64> {
    pages.filter(|&page| state(cache, file, page) & UP_TO_DATE != 0).collect()
}

fn state(cache: &mut PageCache, file: FileId, page: u64) -> u8 {
    cache.page(file, page).map_or(0, |state| *state)
}

#[test]
fn page_that_was_written_or_read_is_found() {
    let mut cache = cache(100);
    assert_eq!(cache.lookup(A, 5), Lookup::Absent);
    cache.dirty(Nanos(0), A, 5..7);
    assert_eq!((cache.lookup(A, 5), cache.lookup(A, 6)), (Lookup::UpToDate, Lookup::UpToDate));
    assert_eq!((cache.lookup(A, 4), cache.lookup(A, 7)), (Lookup::Absent, Lookup::Absent));
    assert_eq!(cache.lookup(B, 5), Lookup::Absent);

    assert_eq!(begin_read(&mut cache, A, 3..10), [3..5, 7..10]);
    assert_eq!((cache.lookup(A, 3), cache.lookup(A, 5)), (Lookup::Reading, Lookup::UpToDate));
    assert_eq!(begin_read(&mut cache, A, 0..12), [0..3, 10..12]);
    cache.end_read(A, 3..10);
    assert_eq!((cache.lookup(A, 3), cache.lookup(A, 9)), (Lookup::UpToDate, Lookup::UpToDate));
    assert_eq!((cache.lookup(A, 2), cache.lookup(A, 10)), (Lookup::Reading, Lookup::Reading));
    assert_eq!(cache.resident_pages(), 12);
}

#[test]
fn runs_are_added_behind_what_was_in_the_list() {
    let mut cache = cache(100);
    let mut absent = begin_read(&mut cache, B, 1..2);
    cache.begin_read(A, 2..4, None, &mut absent);
    assert_eq!(absent, [1..2, 2..4]);
}

#[test]
fn page_that_is_written_while_it_is_read_keeps_what_was_written() {
    let mut cache = cache(100);
    begin_read(&mut cache, A, 0..2);
    cache.dirty(Nanos(0), A, 1..2);
    assert_eq!((cache.lookup(A, 0), cache.lookup(A, 1)), (Lookup::Reading, Lookup::UpToDate));
    cache.end_read(A, 0..2);
    assert_eq!((cache.dirty_pages(), cache.lookup(A, 0)), (1, Lookup::UpToDate));
    assert_eq!(cache.begin_write_back(A, 0, 9), Some(1..2));
}

#[test]
fn mark_is_met_once_and_not_put_on_a_page_that_was_there() {
    let mut cache = cache(100);
    cache.begin_read(A, 0..4, Some(1), &mut Vec::new());
    cache.end_read(A, 0..4);
    assert_eq!(cache.lookup(A, 0), Lookup::UpToDate);
    assert_eq!((cache.lookup(A, 1), cache.lookup(A, 1)), (Lookup::Marked, Lookup::UpToDate));

    cache.begin_read(A, 0..8, Some(2), &mut Vec::new());
    assert_eq!(cache.lookup(A, 2), Lookup::UpToDate);

    // During its read: the lookup leaves the mark.
    cache.begin_read(B, 0..4, Some(1), &mut Vec::new());
    assert_eq!(cache.lookup(B, 1), Lookup::Reading);
    assert!(!cache.take_mark(B, 0));
    assert!(cache.take_mark(B, 1) && !cache.take_mark(B, 1));
    cache.end_read(B, 0..4);
    assert_eq!(cache.lookup(B, 1), Lookup::UpToDate);
}

#[test]
fn mark_waits_until_write_back_of_its_page_has_ended() {
    let mut cache = cache(100);
    cache.begin_read(A, 0..4, Some(1), &mut Vec::new());
    cache.end_read(A, 0..4);
    cache.dirty(Nanos(0), A, 1..2);
    cache.begin_write_back(A, 0, 9);
    assert_eq!(cache.lookup(A, 1), Lookup::UpToDate);
    cache.end_write_back(A, 1..2);
    assert_eq!(cache.lookup(A, 1), Lookup::Marked);
}

#[test]
fn full_memory_gives_up_the_clean_pages_that_came_first() {
    let mut cache = cache(4);
    read(&mut cache, A, 0..4);
    read(&mut cache, B, 0..1);
    read(&mut cache, B, 1..2);
    assert_eq!(up_to_date(&mut cache, A, 0..4), [2, 3]);
    assert_eq!(up_to_date(&mut cache, B, 0..4), [0, 1]);
    assert_eq!((cache.resident_pages(), cache.admitted_over_limit()), (4, 0));
}

#[test]
fn reclaim_passes_over_what_is_dirty_or_under_io_until_that_ends() {
    let mut cache = cache(4);
    cache.dirty(Nanos(0), A, 0..1);
    cache.dirty(Nanos(0), A, 2..3);
    assert_eq!(cache.begin_write_back(A, 2, 1), Some(2..3));
    begin_read(&mut cache, A, 4..5);
    read(&mut cache, A, 6..7);

    // Only page 6 can be evicted; then none can, and pages are admitted anyway.
    read(&mut cache, B, 0..1);
    assert_eq!((up_to_date(&mut cache, A, 0..9), cache.admitted_over_limit()), (vec![0, 2], 0));
    begin_read(&mut cache, B, 1..3);
    assert_eq!(up_to_date(&mut cache, B, 0..9), NONE);
    assert_eq!((cache.resident_pages(), cache.admitted_over_limit()), (5, 1));
    assert_eq!(up_to_date(&mut cache, A, 0..9), [0, 2]);
    assert_eq!(cache.lookup(A, 4), Lookup::Reading);

    // All three can be evicted after their I/O, and memory is within its limit again.
    cache.end_read(A, 4..5);
    cache.end_write_back(A, 2..3);
    assert_eq!(cache.begin_write_back(A, 0, 1), Some(0..1));
    cache.end_write_back(A, 0..1);
    begin_read(&mut cache, B, 3..5);
    assert_eq!(up_to_date(&mut cache, A, 0..9), NONE);
    assert_eq!((cache.resident_pages(), cache.admitted_over_limit()), (4, 1));
}

#[test]
fn page_that_was_used_twice_outlives_a_stream_and_goes_when_it_is_used_no_more() {
    let mut cache = cache(4);
    read(&mut cache, A, 0..2);
    for page in [0, 0, 1] {
        cache.lookup(A, page);
    }
    for page in 0..3 {
        read(&mut cache, B, page..page + 1);
        cache.lookup(B, page);
    }
    assert_eq!(up_to_date(&mut cache, A, 0..2), [0], "page 1 was used once, as the stream is");
    for page in 3..6 {
        read(&mut cache, B, page..page + 1);
        cache.lookup(B, page);
    }
    assert_eq!(up_to_date(&mut cache, A, 0..2), NONE, "a second chance, not a third");
    assert_eq!(up_to_date(&mut cache, B, 0..6), [2, 3, 4, 5]);
}

#[test]
fn page_that_is_kept_in_use_stays() {
    let mut cache = cache(4);
    read(&mut cache, A, 0..1);
    for page in 0..100 {
        cache.lookup(A, 0);
        cache.lookup(A, 0);
        read(&mut cache, B, page..page + 1);
    }
    assert_eq!(up_to_date(&mut cache, A, 0..1), [0]);
}

#[test]
fn file_written_anew_is_not_reclaimed_by_the_age_it_had_before() {
    let mut cache = cache(4);
    read(&mut cache, A, 0..1);
    read(&mut cache, B, 0..3);
    cache.forget(A);
    read(&mut cache, A, 0..1);
    read(&mut cache, B, 3..5);
    assert_eq!(up_to_date(&mut cache, A, 0..1), [0]);
    assert_eq!(up_to_date(&mut cache, B, 0..5), [2, 3, 4]);
}

#[test]
fn levels_count_write_back_against_the_limit_only() {
    let mut cache = cache(100);
    cache.dirty(Nanos(0), A, 0..10);
    assert_eq!(cache.level(), DirtyLevel::Low);
    cache.dirty(Nanos(0), A, 10..11);
    assert_eq!(cache.level(), DirtyLevel::Background);
    cache.dirty(Nanos(0), A, 11..40);
    assert_eq!(cache.level(), DirtyLevel::Background);
    cache.dirty(Nanos(0), A, 40..41);
    assert_eq!(cache.level(), DirtyLevel::Limit);
    cache.begin_write_back(A, 0, 31);
    assert_eq!(cache.level(), DirtyLevel::Limit);
    cache.end_write_back(A, 0..1);
    assert_eq!((cache.level(), cache.dirty_pages()), (DirtyLevel::Low, 10));
}

#[test]
fn background_limit_that_is_not_below_the_limit_is_half_of_it() {
    let config = CacheConfig {
        memory_bytes: 100 * PAGE_BYTES,
        dirty_ratio_percent: 20,
        dirty_background_ratio_percent: 20,
        dirty_expire: Nanos(0),
        write_back_interval: Nanos(0),
        read_ahead_bytes: 0,
    };
    let mut cache = PageCache::new(config);
    cache.dirty(Nanos(0), A, 0..10);
    assert_eq!(cache.level(), DirtyLevel::Low);
    cache.dirty(Nanos(0), A, 10..11);
    assert_eq!(cache.level(), DirtyLevel::Background);
}

#[test]
fn write_back_takes_runs_in_order_and_does_not_wrap() {
    let mut cache = cache(1000);
    for pages in [60..70, 0..3, 128..129, 200..264] {
        cache.dirty(Nanos(0), A, pages);
    }
    assert_eq!(cache.begin_write_back(A, 62, 1000), Some(62..70));
    assert_eq!(cache.begin_write_back(A, 70, 1000), Some(128..129));
    assert_eq!(cache.begin_write_back(A, 129, 50), Some(200..250));
    assert_eq!(cache.begin_write_back(A, 250, 50), Some(250..264));
    assert_eq!(cache.begin_write_back(A, 264, 50), None);
    assert_eq!(cache.begin_write_back(A, u64::MAX, 50), None);
    assert_eq!(cache.begin_write_back(A, 0, 2), Some(0..2));
    assert_eq!(cache.begin_write_back(A, 0, 2), Some(2..3));
    assert_eq!(cache.begin_write_back(A, 0, 2), Some(60..62));
    assert_eq!(cache.begin_write_back(A, 0, 2), None);
    assert_eq!(cache.begin_write_back(B, 0, 2), None);
    assert_eq!((cache.dirty_pages_of(A), cache.write_back_pages_of(A)), (0, 78));
    assert_eq!((cache.dirty_pages(), cache.write_back_pages()), (0, 78));
    cache.end_write_back(A, 0..264);
    assert_eq!((cache.dirty_pages(), cache.write_back_pages()), (0, 0));
    assert_eq!(cache.lookup(A, 263), Lookup::UpToDate);
}

#[test]
fn page_written_while_under_write_back_is_written_back_once_more_afterwards() {
    let mut cache = cache(100);
    cache.dirty(Nanos(1), A, 0..3);
    assert_eq!(cache.begin_write_back(A, 0, 9), Some(0..3));
    cache.dirty(Nanos(2), A, 1..2);
    assert_eq!((cache.dirty_pages_of(A), cache.write_back_pages_of(A)), (1, 3));
    assert_eq!(cache.oldest_dirty(), Some((A, Nanos(2))));
    assert_eq!(cache.begin_write_back(A, 0, 9), None, "the page is under write-back");
    cache.end_write_back(A, 0..3);
    assert_eq!((cache.dirty_pages_of(A), cache.write_back_pages_of(A)), (1, 0));
    assert_eq!(cache.begin_write_back(A, 0, 9), Some(1..2));
    cache.end_write_back(A, 1..2);
    assert_eq!((cache.dirty_pages(), cache.oldest_dirty()), (0, None));
}

#[test]
fn dirty_files_take_turns_and_keep_their_age() {
    let mut cache = cache(100);
    cache.requeue(A);
    assert_eq!(cache.oldest_dirty(), None);
    cache.dirty(Nanos(10), A, 0..2);
    cache.dirty(Nanos(20), B, 0..1);
    cache.dirty(Nanos(30), A, 5..6);
    assert_eq!(cache.oldest_dirty(), Some((A, Nanos(10))));
    cache.requeue(A);
    assert_eq!(cache.oldest_dirty(), Some((B, Nanos(20))));
    cache.requeue(B);
    assert_eq!(cache.oldest_dirty(), Some((A, Nanos(10))));

    // Clean, it loses its position; the next write makes it dirty anew.
    cache.begin_write_back(A, 0, 9);
    assert_eq!(cache.oldest_dirty(), Some((A, Nanos(10))), "page 5 is left");
    cache.begin_write_back(A, 0, 9);
    assert_eq!(cache.oldest_dirty(), Some((B, Nanos(20))));
    cache.requeue(A);
    cache.dirty(Nanos(40), A, 9..10);
    cache.begin_write_back(B, 0, 9);
    assert_eq!(cache.oldest_dirty(), Some((A, Nanos(40))));
}

#[test]
fn truncated_file_has_nothing_cached_and_its_io_ends_without_harm() {
    let mut cache = cache(100);
    cache.dirty(Nanos(0), A, 0..6);
    cache.begin_write_back(A, 0, 2);
    begin_read(&mut cache, A, 8..10);
    cache.dirty(Nanos(0), B, 0..1);
    cache.forget(A);
    cache.forget(C);
    assert!((0..10).all(|page| cache.lookup(A, page) == Lookup::Absent));
    assert_eq!((cache.dirty_pages_of(A), cache.write_back_pages_of(A)), (0, 2));
    assert_eq!((cache.dirty_pages(), cache.resident_pages()), (1, 3));
    assert_eq!(cache.oldest_dirty(), Some((B, Nanos(0))));
    assert_eq!(cache.begin_write_back(A, 0, 9), None);

    // Page 0 is written again before the device has its old content.
    cache.dirty(Nanos(5), A, 0..1);
    assert_eq!(cache.begin_write_back(A, 0, 9), None);
    cache.end_write_back(A, 0..2);
    cache.end_read(A, 8..10);
    assert_eq!((cache.resident_pages(), cache.write_back_pages()), (2, 0));
    assert_eq!((cache.lookup(A, 1), cache.lookup(A, 8)), (Lookup::Absent, Lookup::Absent));
    assert_eq!(cache.begin_write_back(A, 0, 9), Some(0..1));
}

#[test]
fn table_of_page_states_holds() {
    // The way into a state, and the next state after: dirty, begin_read, end_read,
    // begin_write_back, end_write_back, forget, reclaim.
    let table = [
        ("absent", "", ["dirty", "reading", "", "", "", "", ""]),
        ("reading", "r", ["dirty", "", "clean", "", "", "absent", ""]),
        ("clean", "rR", ["dirty", "", "", "", "", "absent", "absent"]),
        ("dirty", "d", ["", "", "", "under write-back", "", "absent", ""]),
        ("under write-back", "dw", ["both", "", "", "", "clean", "given up", ""]),
        ("both", "dwd", ["", "", "", "", "dirty", "given up", ""]),
        ("given up", "dwf", ["both", "reading", "", "", "absent", "", ""]),
    ];
    for (from, way, to) in table {
        for (event, to) in "drRwWfm".chars().zip(to) {
            let mut cache = cache(1);
            way.chars().for_each(|event| happen(&mut cache, event));
            assert_eq!(name(&mut cache), from);
            happen(&mut cache, event);
            let expected = if to.is_empty() { from } else { to };
            assert_eq!(name(&mut cache), expected, "{from}, {event}");
        }
    }
}

/// Applies an event to page 3 of file A, in a memory of one page.
fn happen(cache: &mut PageCache, event: char) {
    match event {
        'd' => cache.dirty(Nanos(0), A, 3..4),
        'r' => drop(begin_read(cache, A, 3..4)),
        'R' => cache.end_read(A, 3..4),
        'w' => drop(cache.begin_write_back(A, 3, 1)),
        'W' => cache.end_write_back(A, 3..4),
        'f' => cache.forget(A),
        _ => drop(begin_read(cache, B, 0..1)),
    }
}

fn name(cache: &mut PageCache) -> &'static str {
    let dirty = cache.dirty_pages_of(A);
    let write_back = cache.write_back_pages_of(A);
    match (cache.lookup(A, 3), dirty, write_back) {
        (Lookup::Absent, 0, 0) => "absent",
        (Lookup::Absent, 0, 1) => "given up",
        (Lookup::Reading, 0, _) => "reading",
        (Lookup::UpToDate, 0, 0) => "clean",
        (Lookup::UpToDate, 1, 0) => "dirty",
        (Lookup::UpToDate, 0, 1) => "under write-back",
        (Lookup::UpToDate, 1, 1) => "both",
        other => panic!("{other:?}"),
    }
}

/// Plain state of a page.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Plain {
    up_to_date: bool,
    reading: bool,
    dirty: bool,
    write_back: bool,
}

impl Plain {
    fn is_resident(self) -> bool {
        self.up_to_date || self.reading || self.write_back
    }

    fn is_clean(self) -> bool {
        self == Self { up_to_date: true, ..Self::default() }
    }
}

/// The cache, and a model of it without the order of reclaim.
struct Compared {
    cache: PageCache,
    pages: BTreeMap<(FileId, u64), Plain>,
    /// Dirty files in the write-back order.
    turns: Vec<(FileId, Nanos)>,
    reads: Vec<(FileId, Range<u64>)>,
    write_backs: Vec<(FileId, Range<u64>)>,
    reclaimed: u64,
}

impl Compared {
    fn page(&mut self, file: FileId, page: u64) -> &mut Plain {
        self.pages.entry((file, page)).or_default()
    }

    fn dirty_of(&self, file: FileId) -> u64 {
        self.pages.iter().filter(|(key, page)| key.0 == file && page.dirty).count() as u64
    }

    fn read(&mut self, file: FileId, pages: Range<u64>) {
        let mut absent = Vec::new();
        self.cache.begin_read(file, pages.clone(), None, &mut absent);
        for at in absent.iter().cloned().flatten() {
            let page = self.page(file, at);
            // Or it was evicted to make room for the pages before it.
            assert!(page.is_clean() || !page.up_to_date && !page.reading);
            self.reclaimed += u64::from(self.page(file, at).is_clean());
            let page = self.page(file, at);
            *page = Plain { up_to_date: false, reading: true, ..*page };
        }
        for at in pages {
            let page = self.page(file, at);
            assert!(page.up_to_date || page.reading);
        }
        self.reads.extend(absent.into_iter().map(|run| (file, run)));
    }

    fn write(&mut self, now: Nanos, file: FileId, pages: Range<u64>) {
        self.cache.dirty(now, file, pages.clone());
        for at in pages {
            let page = self.page(file, at);
            *page = Plain { up_to_date: true, reading: false, dirty: true, ..*page };
        }
        if self.turns.iter().all(|turn| turn.0 != file) {
            self.turns.push((file, now));
        }
    }

    fn write_back(&mut self, file: FileId, from: u64, max_pages: u64) {
        let writable = |at: &u64| {
            let page = self.pages.get(&(file, *at)).copied().unwrap_or_default();
            page.dirty && !page.write_back
        };
        let expected = (from..PAGES).find(writable).map(|start| {
            start..(start..PAGES).take_while(writable).take(max_pages as usize).last().unwrap() + 1
        });
        assert_eq!(self.cache.begin_write_back(file, from, max_pages), expected);
        let Some(run) = expected else { return };
        for at in run.clone() {
            let page = self.page(file, at);
            *page = Plain { dirty: false, write_back: true, ..*page };
        }
        self.write_backs.push((file, run));
        if self.dirty_of(file) == 0 {
            self.turns.retain(|turn| turn.0 != file);
        }
    }

    fn forget(&mut self, file: FileId) {
        self.cache.forget(file);
        for (_, page) in self.pages.iter_mut().filter(|(key, _)| key.0 == file) {
            *page = Plain { write_back: page.write_back, ..Plain::default() };
        }
        self.turns.retain(|turn| turn.0 != file);
    }

    fn requeue(&mut self, file: FileId) {
        self.cache.requeue(file);
        if let Some(at) = self.turns.iter().position(|turn| turn.0 == file) {
            let turn = self.turns.remove(at);
            self.turns.push(turn);
        }
    }

    fn step(&mut self, now: Nanos, random: &mut Random) {
        let file = [A, B, C][random.below(3) as usize];
        let start = random.below(PAGES);
        let pages = start..(start + 1 + random.below(9)).min(PAGES);
        match random.below(100) {
            0..25 => self.write(now, file, pages),
            25..45 => self.read(file, pages),
            45..60 => self.write_back(file, start, 1 + random.below(20)),
            60..72 if !self.reads.is_empty() => {
                let (file, run) =
                    self.reads.swap_remove(random.below(self.reads.len() as u64) as usize);
                self.cache.end_read(file, run.clone());
                for at in run {
                    let page = self.page(file, at);
                    page.up_to_date |= page.reading;
                    page.reading = false;
                }
            }
            72..84 if !self.write_backs.is_empty() => {
                let any = random.below(self.write_backs.len() as u64) as usize;
                let (file, run) = self.write_backs.swap_remove(any);
                self.cache.end_write_back(file, run.clone());
                run.for_each(|at| self.page(file, at).write_back = false);
            }
            84..86 => self.requeue(file),
            86 if random.below(8) == 0 => self.forget(file),
            _ => {
                let page = *self.page(file, start);
                let expected = match (page.up_to_date, page.reading) {
                    (true, _) => Lookup::UpToDate,
                    (_, true) => Lookup::Reading,
                    _ => Lookup::Absent,
                };
                assert_eq!(self.cache.lookup(file, start), expected);
            }
        }
    }

    /// Compares: the same pages are in memory, except for clean ones evicted for room.
    fn compare(&mut self, resident_before: u64, over_before: u64) {
        let mut resident = 0;
        let mut reclaimed = 0;
        for (&(file, at), page) in &mut self.pages {
            let state = state(&mut self.cache, file, at);
            let found = Plain {
                up_to_date: state & UP_TO_DATE != 0,
                reading: state & READING != 0,
                dirty: state & DIRTY != 0,
                write_back: state & WRITE_BACK != 0,
            };
            if *page != found {
                assert!(page.is_clean() && found == Plain::default(), "{at}: {page:?} {found:?}");
                *page = found;
                reclaimed += 1;
            }
            resident += u64::from(page.is_resident());
        }
        let cache = &self.cache;
        assert_eq!(cache.resident_pages(), resident);
        assert!(reclaimed == 0 || resident >= MEMORY_PAGES, "reclaimed more than was needed");
        let grew = resident > resident_before;
        assert!(!grew || resident <= MEMORY_PAGES || cache.admitted_over_limit() > over_before);
        self.reclaimed += reclaimed;
        let count = |of: fn(&Plain) -> bool| self.pages.values().filter(|page| of(page)).count();
        assert_eq!(cache.dirty_pages(), count(|page| page.dirty) as u64);
        assert_eq!(cache.write_back_pages(), count(|page| page.write_back) as u64);
        let dirty = [A, B, C].map(|file| self.dirty_of(file));
        assert_eq!([A, B, C].map(|file| cache.dirty_pages_of(file)), dirty);
        assert_eq!(cache.oldest_dirty(), self.turns.first().copied());
    }
}

const PAGES: u64 = 40;
const MEMORY_PAGES: u64 = 50;

#[test]
fn random_operations_leave_what_a_plain_model_says() {
    let mut compared = Compared {
        cache: cache(MEMORY_PAGES),
        pages: BTreeMap::new(),
        turns: Vec::new(),
        reads: Vec::new(),
        write_backs: Vec::new(),
        reclaimed: 0,
    };
    let mut random = Random::new(4, 0);
    for now in 0..100_000 {
        let before = (compared.cache.resident_pages(), compared.cache.admitted_over_limit());
        compared.step(Nanos(now), &mut random);
        compared.compare(before.0, before.1);
    }
    assert!(compared.reclaimed > 10_000, "{}", compared.reclaimed);
    assert!(compared.cache.admitted_over_limit() > 100);
}
