//! The order of the log, and its bytes.

use std::fs::File;
use std::path::Path;

use super::*;
use crate::file::Access;

const A: IoContext = IoContext(1);
const B: IoContext = IoContext(2);

struct Fixture {
    dir: tempfile::TempDir,
    log: Option<WriteLog>,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str, len| {
        let path = dir.path().join(name);
        File::create(&path).unwrap().set_len(len).unwrap();
        DeviceFile::open(&path, Access::ReadWrite, false).unwrap()
    };
    let data = open("data", 1 << 20);
    let log = open("log", 0);
    let log = Some(WriteLog::begin(log, Arc::new(data)).unwrap());
    Fixture { dir, log }
}

impl Fixture {
    fn step(&self, step: LogStep, bytes: &[u8], flush: FlushKey) {
        let log = self.log.as_ref().unwrap();
        assert_eq!(log.step(step, bytes, flush), BlkStatus::Ok);
    }

    fn write(&self, sector: u64, byte: u8) {
        let step = LogStep::Written { sector: Sector(sector), fua: false };
        self.step(step, &[byte; 512], (A, 0));
    }

    fn flush_starts(&self, key: FlushKey) {
        self.step(LogStep::FlushStarts, &[], key);
    }

    fn flush_ends(&self, key: FlushKey, is_stable: bool) {
        self.step(LogStep::FlushEnded { is_stable }, &[], key);
    }

    fn path(&self) -> &Path {
        self.log.as_ref().unwrap().file.path()
    }

    /// The log as a reader finds it now: the sector of each write, or the flags of other entries.
    fn order(&self) -> Vec<String> {
        let name = |entry: &LogEntry| match entry.flags {
            0 => format!("{}", entry.sector),
            FUA => format!("{} fua", entry.sector),
            FLUSH => "flush".into(),
            DISCARD => format!("{} discard {}", entry.sector, entry.nr_sectors),
            _ => entry.mark.clone().unwrap(),
        };
        LogReader::open(self.path()).unwrap().entries().iter().map(name).collect()
    }
}

#[test]
fn only_what_had_ended_when_the_flush_started_is_logged_before_it() {
    let log = fixture();
    log.write(3, 3);
    log.write(2, 2);
    log.flush_starts((A, 0));
    log.write(1, 1);
    assert!(log.order().is_empty(), "nothing is stable yet");
    log.flush_ends((A, 0), true);
    assert_eq!(log.order(), ["3", "2", "flush"]);
    log.flush_starts((B, 0));
    log.flush_ends((B, 0), true);
    assert_eq!(log.order(), ["3", "2", "flush", "1", "flush"]);
}

#[test]
fn flush_that_overtakes_another_is_for_what_that_one_took() {
    let log = fixture();
    log.write(1, 1);
    log.flush_starts((A, 5));
    log.write(2, 2);
    log.flush_starts((B, 5));
    log.write(3, 3);
    log.flush_ends((B, 5), true);
    assert_eq!(log.order(), ["1", "2", "flush"], "1 had ended before this flush started");
    log.flush_ends((A, 5), true);
    assert_eq!(log.order(), ["1", "2", "flush", "flush"]);
}

#[test]
fn fua_overtakes_and_discards_keep_their_place() {
    let log = fixture();
    log.write(1, 1);
    log.step(LogStep::Discarded { sector: Sector(1), len: Sector(4) }, &[], (A, 0));
    log.step(LogStep::Written { sector: Sector(9), fua: true }, &[9; 1024], (A, 0));
    assert_eq!(log.order(), ["9 fua"]);
    log.flush_starts((A, 0));
    log.flush_ends((A, 0), true);
    assert_eq!(log.order(), ["9 fua", "1", "1 discard 4", "flush"]);
}

#[test]
fn fua_write_is_not_undone_by_what_it_replaced() {
    let log = fixture();
    let fua = |sector| {
        let step = LogStep::Written { sector: Sector(sector), fua: true };
        log.step(step, &[9; 1024], (A, 0));
    };
    (4..8).for_each(|sector| log.write(sector, 1));
    log.flush_starts((A, 0));
    log.write(2, 2);
    log.write(1, 1);
    fua(4);
    assert_eq!(log.order(), ["4", "5", "4 fua"]);
    fua(2);
    assert_eq!(log.order(), ["4", "5", "4 fua", "6", "7", "2", "2 fua"]);
    log.flush_ends((A, 0), true);
    log.flush_starts((A, 0));
    log.flush_ends((A, 0), true);
    assert_eq!(log.order()[7..], ["flush", "1", "flush"]);
}

#[test]
fn failed_flush_leaves_its_writes_to_the_next_one_that_started() {
    let log = fixture();
    log.write(1, 1);
    log.flush_starts((A, 0));
    log.write(2, 2);
    log.flush_starts((B, 0));
    log.write(3, 3);
    log.flush_ends((A, 0), false);
    log.flush_ends((B, 0), true);
    assert_eq!(log.order(), ["1", "2", "flush"]);
}

#[test]
fn failed_flush_makes_nothing_stable_and_the_next_one_does() {
    let log = fixture();
    log.write(1, 1);
    log.flush_starts((A, 0));
    log.write(2, 2);
    log.flush_ends((A, 0), false);
    assert!(log.order().is_empty());
    log.flush_starts((A, 0));
    log.flush_ends((A, 0), true);
    assert_eq!(log.order(), ["1", "2", "flush"]);
}

#[test]
fn end_writes_what_was_not_flushed_and_a_mark() {
    let mut log = fixture();
    log.write(1, 1);
    log.flush_starts((A, 0));
    log.write(2, 2);
    let path = log.path().to_owned();
    drop(log.log.take());
    let reader = LogReader::open(&path).unwrap();
    let marks: Vec<_> = reader.entries().iter().map(|entry| entry.mark.as_deref()).collect();
    assert_eq!(marks, [None, None, Some(END_MARK)]);
    let device = File::create(log.dir.path().join("replayed")).unwrap();
    reader.replay(1, &device).unwrap();
    let replayed = std::fs::read(log.dir.path().join("replayed")).unwrap();
    assert_eq!((replayed.len(), &replayed[512..]), (1024, &[1; 512][..]));
}

/// The bytes that the kernel's target writes for the same steps.
#[test]
fn log_is_byte_for_byte_the_kernels() {
    let log = fixture();
    log.step(LogStep::Written { sector: Sector(0x1234), fua: true }, &[7; 1024], (A, 0));
    let bytes = std::fs::read(log.path()).unwrap();
    let mut expected = vec![0; 4 * 512];
    expected[..8].copy_from_slice(b"rhswfsj\0");
    (expected[8], expected[16], expected[25]) = (1, 1, 2);
    (expected[512], expected[513], expected[520], expected[528]) = (0x34, 0x12, 2, 2);
    expected[1024..].fill(7);
    assert!(bytes == expected);
}

#[test]
fn more_than_memory_is_for_is_logged_in_order_without_a_flush() {
    let log = fixture();
    let piece = vec![5; 16 << 20];
    log.write(1, 1);
    log.flush_starts((A, 0));
    for sector in 0..4 {
        let step = LogStep::Written { sector: Sector(sector), fua: false };
        log.step(step, &piece, (B, 0));
    }
    log.write(9, 9);
    log.flush_ends((A, 0), true);
    assert_eq!(log.order(), ["1", "0", "1", "2", "3", "flush"]);
}

#[test]
fn file_that_is_no_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let problem = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        LogReader::open(&path).unwrap_err().to_string()
    };
    assert!(problem(&[]).contains("cannot read its log"));
    assert!(problem(&[0; 4096]).contains("no log of log-writes"));
    let mut bytes = [0; 1024];
    bytes[..512].copy_from_slice(&entry_sector([MAGIC, VERSION, 2, 512], &[]));
    bytes[512..].copy_from_slice(&entry_sector([0, u64::MAX, 0, 0], &[]));
    assert!(problem(&bytes).contains("bad entry 0"));
    bytes[512..].copy_from_slice(&entry_sector([0, 0, MARK, u64::MAX], &[]));
    assert!(problem(&bytes).contains("bad entry 0"));
    bytes[512..].copy_from_slice(&entry_sector([0, 1 << 40, 0, 0], &[]));
    assert!(problem(&bytes).contains("cannot read its log"), "the second entry is missing");
    bytes[..512].copy_from_slice(&entry_sector([MAGIC, VERSION, 2, 100], &[]));
    assert!(problem(&bytes).contains("sectors of 100 bytes"));
}
