//! fio's I/O logs (`write_iolog`, `read_iolog`) as traces: versions 2 and 3 of the "trace file
//! format" in fio(1).
//!
//! ```text
//! fio version 2 iolog                 fio version 3 iolog
//! disk.img add                        40 disk.img add
//! disk.img open                       700 disk.img open
//! disk.img read 61440 4096            707 disk.img read 61440 4096
//! disk.img wait 1500 0                2210 disk.img sync 0 0
//! disk.img close                      2300 disk.img close
//! ```
//! Offsets and lengths are bytes; times are microseconds since the start. In version 2 each `wait`
//! counts from the one before. The log has no submitters, priorities or completions. Ranges are
//! widened to whole sectors of 512 bytes. Several files follow each other, in the order in which
//! they were added.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use blockyard_engine::bio::Op;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::{BIOS_MAX, EXPORT_BYTES_MAX, End, Header, SECTORS_MAX, Trace, TraceError, TracedBio};

/// Longest line: a path of 4096 bytes and some numbers.
const LINE_BYTES_MAX: usize = 8192;
/// Most files of a log. Our choice.
const FILES_MAX: usize = 4096;
/// Alignment of a file's start: whole pages.
const FILE_ALIGN_SECTORS: u64 = 8;
/// Shortest `wait` that counts; fio ignores shorter ones.
const WAIT_US_MIN: u64 = 100;
/// Greatest valid time.
const US_MAX: u64 = i64::MAX as u64 / 1000;

/// Whether the first bytes may be those of an fio log.
#[must_use]
pub fn begins_with(bytes: [u8; 4]) -> bool {
    bytes == *b"fio "
}

/// Reads a whole log.
///
/// # Errors
/// When a line is wrong (the error names the line), or the log has more bios than a trace may have.
pub fn read(input: impl BufRead) -> Result<Trace, TraceError> {
    let mut lines = Lines { input, text: Vec::new(), offset_bytes: 0, line: 0 };
    let version = match lines.next_line()?.unwrap_or_default() {
        "fio version 2 iolog" => Version::Two,
        "fio version 3 iolog" => Version::Three,
        _ => {
            return Err(lines.wrong(
                "begins neither with \"fio version 2 iolog\" nor with \"fio version 3 iolog\": \
                 this is no log of fio, or one of another version",
            ));
        }
    };
    let mut log = Log { version, clock_us: 0, files: BTreeMap::new(), bios: Vec::new() };
    while let Some(line) = lines.next_line()? {
        if line.trim().is_empty() {
            continue;
        }
        // The error is formatted here because it borrows the line's text.
        if let Err(problem) = log.take(line) {
            return Err(lines.wrong(&problem));
        }
    }
    log.into_trace().map_err(|problem| lines.wrong(&problem))
}

/// A file, line by line.
struct Lines<R> {
    input: R,
    text: Vec<u8>,
    /// Offset of the line.
    offset_bytes: u64,
    line: u64,
}

impl<R: BufRead> Lines<R> {
    fn next_line(&mut self) -> Result<Option<&str>, TraceError> {
        self.offset_bytes += self.text.len() as u64;
        self.text.clear();
        self.line += 1;
        let limited = self.input.by_ref().take(LINE_BYTES_MAX as u64 + 1);
        let read = { limited }.read_until(b'\n', &mut self.text);
        if let Err(error) = read {
            return Err(self.wrong(&format!("cannot be read: {error}")));
        }
        if self.text.len() > LINE_BYTES_MAX {
            return Err(self.wrong(&format!("is longer than {LINE_BYTES_MAX} bytes")));
        }
        if self.text.is_empty() {
            return Ok(None);
        }
        let offset_bytes = self.offset_bytes;
        let line = self.line;
        match std::str::from_utf8(&self.text) {
            Ok(text) => Ok(Some(text.trim_end_matches(['\n', '\r']))),
            Err(_) => Err(wrong(offset_bytes, line, "is not UTF-8")),
        }
    }

    fn wrong(&self, problem: &str) -> TraceError {
        wrong(self.offset_bytes, self.line, problem)
    }
}

fn wrong(offset_bytes: u64, line: u64, problem: &str) -> TraceError {
    let problem = format!("line {line} {problem}");
    TraceError { offset_bytes, bio: None, problem }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Two,
    Three,
}

/// A file of the log.
struct LoggedFile {
    /// Number in the order of adding.
    number: u32,
    end_sector: u64,
}

/// Content read so far. Sectors are relative to the file until all files are known.
struct Log {
    version: Version,
    /// Version 2: the sum of all waits.
    clock_us: u64,
    files: BTreeMap<String, LoggedFile>,
    /// Bios with the number of their file.
    bios: Vec<(u32, TracedBio)>,
}

impl Log {
    fn take(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_ascii_whitespace();
        let at_us = match self.version {
            Version::Two => self.clock_us,
            Version::Three => number(words.next().unwrap_or_default(), "a time in microseconds")?,
        };
        if at_us > US_MAX {
            return Err(format!("is {at_us} microseconds after the beginning: centuries"));
        }
        let (Some(name), Some(action)) = (words.next(), words.next()) else {
            return Err("has no file and action".into());
        };
        let range: Vec<&str> = words.collect();
        let file = match (action, self.files.get_mut(name)) {
            ("add", _) => return self.add(name),
            (_, Some(file)) => file,
            (_, None) => return Err(format!("is of {name:?}, which no line before it adds")),
        };
        let op = match action {
            "open" | "close" => return Ok(()),
            "read" => Op::Read,
            "write" => Op::Write,
            "trim" => Op::Discard,
            // A file system may skip something for the last two; a disk does not.
            "sync" | "datasync" | "sync_file_range" => Op::Flush,
            "wait" if self.version == Version::Two => {
                let wait_us = number(range.first().unwrap_or(&""), "how long to wait")?;
                let is_short = wait_us < WAIT_US_MIN;
                self.clock_us = self.clock_us.saturating_add(if is_short { 0 } else { wait_us });
                return Ok(());
            }
            _ => {
                return Err(format!(
                    "has the action {action:?}; there are add, open, close, read, write, trim, \
                     sync, datasync, sync_file_range, and wait in version 2"
                ));
            }
        };
        let (sector, sectors) = match (op, &range[..]) {
            (Op::Flush, _) => (0, 0),
            (_, [offset, len]) => sectors_of(offset, len)?,
            _ => return Err(format!("is a {action} without an offset and a length")),
        };
        if self.bios.len() == BIOS_MAX {
            return Err(format!("is the first above {BIOS_MAX} bios; cut the log into parts"));
        }
        file.end_sector = file.end_sector.max(sector + u64::from(sectors));
        let bio = TracedBio {
            start: Nanos(at_us * 1000),
            op,
            fua: false,
            preflush: false,
            sync: true,
            sector,
            sectors,
            submitter: 0,
            priority: Priority::default(),
            completion: None,
        };
        self.bios.push((file.number, bio));
        Ok(())
    }

    fn add(&mut self, name: &str) -> Result<(), String> {
        if self.files.contains_key(name) {
            return Ok(());
        }
        if name.len() > EXPORT_BYTES_MAX {
            return Err(format!("has a file whose name is longer than {EXPORT_BYTES_MAX} bytes"));
        }
        if self.files.len() == FILES_MAX {
            return Err(format!("is the first above {FILES_MAX} files"));
        }
        let number = u32::try_from(self.files.len()).expect("the number of files is limited");
        self.files.insert(name.to_owned(), LoggedFile { number, end_sector: 0 });
        Ok(())
    }

    fn into_trace(self) -> Result<Trace, String> {
        let export = match self.files.first_key_value() {
            Some((name, _)) if self.files.len() == 1 => name.clone(),
            _ => format!("{} files of fio, one behind the other", self.files.len()),
        };
        let mut files: Vec<LoggedFile> = self.files.into_values().collect();
        files.sort_by_key(|file| file.number);
        let mut starts = Vec::new();
        let mut end = 0u64;
        for file in &files {
            starts.push(end.next_multiple_of(FILE_ALIGN_SECTORS));
            end = end.next_multiple_of(FILE_ALIGN_SECTORS) + file.end_sector;
            if end > SECTORS_MAX {
                return Err("is the last; all files together are longer than any disk".into());
            }
        }
        let mut bios: Vec<TracedBio> = Vec::with_capacity(self.bios.len());
        for (file, mut bio) in self.bios {
            if bio.op != Op::Flush {
                bio.sector += starts[file as usize];
            }
            bios.push(bio);
        }
        let length = bios.iter().map(|bio| bio.start).max().unwrap_or_default();
        let header = Header { volume_bytes: 0, sector_bytes: 512, export, began_unix_ns: 0 };
        Ok(Trace::of(header, bios, End { length, ..End::default() }))
    }
}

fn number(word: &str, what: &str) -> Result<u64, String> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let number = word.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| format!("has {word:?} where {what} belongs"))
}

fn sectors_of(offset: &str, len: &str) -> Result<(u64, u32), String> {
    let offset = number(offset, "an offset in bytes")?;
    let len = number(len, "a length in bytes")?;
    if len == 0 {
        return Err("has a length of zero".into());
    }
    let end = offset.checked_add(len).filter(|end| *end <= SECTORS_MAX * 512);
    let end = end.ok_or("ends beyond any disk's end")?.div_ceil(512);
    let sectors = u32::try_from(end - offset / 512).map_err(|_| "is longer than a bio can be")?;
    Ok((offset / 512, sectors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bios(text: &str) -> Vec<(u64, Op, u64, u32)> {
        let trace = read(text.as_bytes()).unwrap();
        let bio = |bio: &TracedBio| (bio.start.0, bio.op, bio.sector, bio.sectors);
        trace.bios.iter().map(bio).collect()
    }

    fn refused(text: &str) -> String {
        read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn version_three_says_when_in_microseconds() {
        let text = "fio version 3 iolog\n40 f add\n157 f open\n162 f write 61440 4096\n\
                    202 f sync 774144 0\n310 f trim 4096 8192\n382 f read 100 1000\n390 f close\n";
        let wanted = [
            (162_000, Op::Write, 120, 8),
            (202_000, Op::Flush, 0, 0),
            (310_000, Op::Discard, 8, 16),
            (382_000, Op::Read, 0, 3),
        ];
        assert_eq!(bios(text), wanted);
        let trace = read(text.as_bytes()).unwrap();
        assert_eq!((trace.header.export.as_str(), trace.end.length), ("f", Nanos(382_000)));
    }

    #[test]
    fn version_two_waits_from_wait_to_wait() {
        let text = "fio version 2 iolog\n/a add\n/a open\n/a read 0 512\n/a wait 500 0\n\
                    /a read 512 512\n/a wait 99 0\n/a wait 1500 0\n/a datasync\n/a close";
        let wanted = [(0, Op::Read, 0, 1), (500_000, Op::Read, 1, 1), (2_000_000, Op::Flush, 0, 0)];
        assert_eq!(bios(text), wanted);
    }

    #[test]
    fn files_lie_one_behind_the_other_as_they_were_added() {
        let text = "fio version 3 iolog\n0 b add\n0 a add\n1 b read 0 512\n2 a read 512 512\n\
                    3 b read 4096 512\n4 a sync 0 0\n";
        let wanted = [
            (1000, Op::Read, 0, 1),
            (2000, Op::Read, 17, 1),
            (3000, Op::Read, 8, 1),
            (4000, Op::Flush, 0, 0),
        ];
        assert_eq!(bios(text), wanted);
    }

    #[test]
    fn errors_have_their_line() {
        let three = |line: &str| refused(&format!("fio version 3 iolog\n0 f add\n{line}\n"));
        let two = |line: &str| refused(&format!("fio version 2 iolog\nf add\n{line}\n"));
        for (said, wanted) in [
            (refused("fio version 4 iolog\n"), "line 1 begins neither"),
            (three("x f read 0 512"), "line 3 has \"x\" where a time"),
            (three("5 g read 0 512"), "line 3 is of \"g\", which no line before it adds"),
            (three("5 f wait 500 0"), "line 3 has the action \"wait\""),
            (three("5 f read 0"), "line 3 is a read without"),
            (three("5 f read 0 0"), "length of zero"),
            (three("5 f read -1 512"), "\"-1\" where an offset"),
            (three("5 f read 0 4000000000000"), "longer than a bio can be"),
            (three("5 f read 18446744073709551615 512"), "beyond any disk"),
            (three("18446744073709551615 f sync"), "centuries"),
            (two("f"), "line 3 has no file and action"),
            (two(&format!("{} add", "n".repeat(9000))), "line 3 is longer than 8192"),
            (two(&format!("{} add", "n".repeat(5000))), "name is longer than 4096"),
        ] {
            assert!(said.contains(wanted), "{said:?} has no {wanted:?}");
        }
        let far = format!("0 {{}} read {} 512\n", (SECTORS_MAX - 8) * 512);
        let [a, b] = ["a", "b"].map(|name| far.replace("{}", name));
        let both = format!("fio version 3 iolog\n0 a add\n0 b add\n{a}{b}");
        assert!(refused(&both).contains("all files together"));
        let mut bytes = b"fio version 3 iolog\n0 f add\n".to_vec();
        bytes.extend(b"0 \xff add\n");
        assert!(read(&bytes[..]).unwrap_err().problem.contains("line 3 is not UTF-8"));
    }
}
