//! Standard error as the place of the lines.
//!
//! A command waits until a pipe takes its line. A server does not: its reader may have stopped, and
//! its clients, its control socket and its end would stop with it. A line without room is dropped
//! and counted, and the next line that finds room follows the count.

use std::io::{IoSlice, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{SendFlags, send};

/// Room of a pipe that is ready for writing (`PIPE_BUF` of pipe(7)).
const PIPE_ROOM_BYTES: usize = 4096;

/// A way to write without a wait.
enum Place {
    /// A regular file has no reader.
    File,
    Socket,
    /// A pipe or a terminal, opened a second time: the mode of a descriptor is that of all
    /// processes that share it.
    Reopened(OwnedFd),
    /// A pipe or a terminal of another user.
    Polled,
}

impl Place {
    fn of_stderr() -> Self {
        let facts = fstat(rustix::stdio::stderr());
        match facts.map(|facts| FileType::from_raw_mode(facts.st_mode)) {
            Ok(FileType::RegularFile) => Self::File,
            Ok(FileType::Socket) => Self::Socket,
            _ => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                rustix::fs::open("/proc/self/fd/2", flags, Mode::empty())
                    .map_or(Self::Polled, Self::Reopened)
            }
        }
    }

    /// Writes the begin of these bytes; `EAGAIN` without room.
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let stderr = rustix::stdio::stderr();
        match self {
            Self::File => rustix::io::write(stderr, bytes),
            Self::Socket => send(stderr, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Self::Reopened(fd) => rustix::io::write(fd, bytes),
            Self::Polled => match write_now(stderr, bytes) {
                // Another program may take the room between the two calls: the only way here.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) if has_room(stderr)? => {
                    rustix::io::write(stderr, &bytes[..bytes.len().min(PIPE_ROOM_BYTES)])
                }
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Err(Errno::AGAIN),
                written => written,
            },
        }
    }

    /// Writes bytes until there is no room, also on a disk; returns the rest. A closed reader takes
    /// all (`2>&1 | head`).
    fn write_all<'a>(&self, mut bytes: &'a [u8]) -> &'a [u8] {
        while !bytes.is_empty() {
            match self.write(bytes) {
                Ok(len) => bytes = &bytes[len..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO) => {
                    return bytes;
                }
                Err(_) => return &[],
            }
        }
        bytes
    }
}

/// Writes without a wait to a descriptor that waits otherwise; pipes can do so, terminals cannot.
fn write_now(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    /// The position of the descriptor, as for write(2).
    const HERE: u64 = u64::MAX;
    rustix::io::pwritev2(fd, &[IoSlice::new(bytes)], HERE, ReadWriteFlags::NOWAIT)
}

fn has_room(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    Ok(poll(&mut fds, Some(&now))? > 0)
}

static PLACE: OnceLock<Place> = OnceLock::new();
static BEHIND: Mutex<Behind> = Mutex::new(Behind { rest: Vec::new(), dropped: 0 });

/// Lines that had no room.
struct Behind {
    /// The end of a line whose begin is written.
    rest: Vec<u8>,
    /// Lines of which nothing is written.
    dropped: u64,
}

impl Behind {
    /// Writes a line, or counts it.
    fn put(&mut self, place: &Place, line: &[u8], note: impl FnOnce(u64) -> String) {
        if !self.catch_up(place, note) || !self.begin(place, line) {
            self.dropped += 1;
        }
    }

    /// Ends a line, and tells the number of dropped ones. False without room.
    fn catch_up(&mut self, place: &Place, note: impl FnOnce(u64) -> String) -> bool {
        self.rest = place.write_all(&self.rest).to_vec();
        if self.rest.is_empty()
            && self.dropped > 0
            && self.begin(place, note(self.dropped).as_bytes())
        {
            self.dropped = 0;
        }
        self.rest.is_empty() && self.dropped == 0
    }

    /// Writes a line whose end may follow. False if nothing is written.
    fn begin(&mut self, place: &Place, line: &[u8]) -> bool {
        let rest = place.write_all(line);
        if rest.len() < line.len() {
            self.rest = rest.to_vec();
        }
        rest.len() < line.len()
    }
}

/// Drops later lines that have no room, and counts them.
pub(super) fn never_wait() {
    PLACE.get_or_init(Place::of_stderr);
}

/// Writes a line. `note` makes the line that counts those before it.
pub(super) fn put(line: &str, note: impl FnOnce(u64) -> String) {
    match PLACE.get() {
        // One call for a line, so that lines of several threads do not mix.
        None => drop(std::io::stderr().write_all(line.as_bytes())),
        Some(place) => {
            let mut behind = BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
            behind.put(place, line.as_bytes(), note);
        }
    }
}

/// Ends the last line, and counts dropped lines, as far as there is room.
pub(super) fn catch_up(note: impl FnOnce(u64) -> String) {
    if let Some(place) = PLACE.get() {
        let mut behind = BEHIND.lock().unwrap_or_else(PoisonError::into_inner);
        behind.catch_up(place, note);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn note(dropped: u64) -> String {
        format!("{dropped} dropped\n")
    }

    /// A pipe that never waits, and its reader.
    fn pipe() -> (Place, File) {
        let flags = rustix::pipe::PipeFlags::NONBLOCK;
        let (reader, writer) = rustix::pipe::pipe_with(flags).unwrap();
        (Place::Reopened(writer), reader.into())
    }

    fn take(reader: &mut File, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        let len = reader.read(&mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn line_without_room_is_counted_and_the_count_comes_before_the_next_line() {
        let (place, mut reader) = pipe();
        let mut behind = Behind { rest: Vec::new(), dropped: 0 };
        let long = vec![b'a'; 1 << 20];
        behind.put(&place, &long, note);
        assert!(!behind.rest.is_empty() && behind.dropped == 0, "its end follows");
        behind.put(&place, b"lost\n", note);
        behind.put(&place, b"lost\n", note);
        let mut said = Vec::new();
        // One round takes what a pipe holds.
        while behind.dropped > 0 {
            said.extend(take(&mut reader, 1 << 20));
            behind.catch_up(&place, note);
        }
        behind.put(&place, b"there\n", note);
        said.extend(take(&mut reader, 1 << 20));
        assert_eq!(said[..long.len()], long);
        assert_eq!(&said[long.len()..], b"2 dropped\nthere\n");
    }

    #[test]
    fn full_pipe_whose_descriptor_waits_is_no_wait() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut written = 0;
        let problem = loop {
            match write_now(writer.as_fd(), &[b'a'; 100]) {
                Ok(len) => written += len,
                Err(errno) => break errno,
            }
        };
        assert_eq!(problem, Errno::AGAIN);
        let said = take(&mut reader.into(), 1 << 20);
        assert_eq!(said, vec![b'a'; written]);
    }

    #[test]
    fn line_that_a_full_disk_does_not_take_is_counted() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut behind = Behind { rest: Vec::new(), dropped: 0 };
        behind.put(&Place::Reopened(full.into()), b"lost\n", note);
        assert_eq!(behind.dropped, 1);
    }

    #[test]
    fn reader_that_has_left_is_no_loss() {
        let (place, reader) = pipe();
        drop(reader);
        let mut behind = Behind { rest: Vec::new(), dropped: 0 };
        assert!(behind.begin(&place, b"line\n"));
        let (socket, other) = UnixStream::pair().unwrap();
        drop(other);
        assert_eq!(Place::Reopened(socket.into()).write_all(b"line\n"), b"");
    }
}
