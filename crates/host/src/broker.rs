//! The broker: a small process outside of the sandbox, for what the server itself may not do
//! afterwards: remove its sockets and its PID file, end the command that it serves, open its
//! configuration again, start the programs that print its keys.
//!
//! ```text
//! server ─ fork, before any secret ─> broker
//!        ─ files ───────────────────> kept, before a command may change them
//!        ─ programs, then seal ─────> kept: programs, command; nothing is added afterwards
//!   first client
//!        ─ remove, terminate, open ─> done, for the kept files and the command only
//!        ─ start NUMBER ────────────> a program that was named before the seal (`program`)
//!        ─ end of the server ───────> ends too
//! ```
//! A request is one packet: a byte, and a number for a start. All that it works on was fixed before
//! the first client: a server that is taken over can only have its own files removed, its own
//! command ended, and its own keys printed again. The process of a mount has a broker too
//! (`mount`).

mod mount;
mod program;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};

use crate::{cpus, poll, process};
use mount::Places;
pub use mount::{MountedPlace, Unmount, start_driver};
use program::Programs;
pub use program::Started;

/// Longest packet: some hundred paths.
const PACKET_BYTES_MAX: usize = 64 << 10;
/// More than the digits of a process ID.
const TEXT_BYTES_MAX: usize = 64;
/// Descriptors of a packet: the output of a program, and its process.
const DESCRIPTORS_MAX: usize = 2;
const PROGRAM: u8 = b'p';
const PLACE: u8 = b'm';
const UNMOUNT: u8 = b'u';
const DRIVER: u8 = b'v';
const DRIVER_STATUS: u8 = b'e';
const SIGNAL: u8 = b'g';
const LEAVE_TERMINAL: u8 = b'l';
const START: u8 = b'b';
const STATUS: u8 = b'w';
const KILL: u8 = b'k';
const FILES: u8 = b'n';
const SEAL: u8 = b's';
const REMOVE_SOCKETS: u8 = b'c';
const REMOVE: u8 = b'r';
const TERMINATE: u8 = b't';
const OPEN: u8 = b'o';
const DONE: u8 = b'd';
const FAILED: u8 = b'f';

/// Limit for a reply. A usual request takes milliseconds, on a busy disk seconds; the file system
/// of the configuration or of a program may hang.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// More than an error with the path of a file.
const REPLY_BYTES_MAX: usize = 8 << 10;

/// The broker of this process, which ends with this value.
#[derive(Debug)]
pub struct Broker {
    socket: OwnedFd,
    /// One request and its reply at a time.
    turn: Mutex<()>,
    pid: Pid,
    /// It has not replied within a limit, and may not end before this process.
    is_lost: AtomicBool,
}

impl Broker {
    /// Forks the broker. Call it before there are threads, or secrets in memory.
    ///
    /// # Errors
    /// There are threads, or the system has no more processes or descriptors.
    pub fn fork(configuration: Option<&Path>) -> io::Result<Self> {
        Self::fork_with(configuration, None)
    }

    fn fork_with(configuration: Option<&Path>, unmount: Option<Unmount>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match process::fork_alone()? {
            None => {
                drop(ours);
                Served::new(configuration, unmount).run(&theirs)
            }
            Some(pid) => {
                let is_lost = AtomicBool::new(false);
                Ok(Self { socket: ours, turn: Mutex::new(()), pid, is_lost })
            }
        }
    }

    /// Fixes the files and empty folders that [`Broker::remove`] removes, as they are now. Call it
    /// before the command starts: the command may change the files.
    ///
    /// # Errors
    /// The paths are too long together; a folder cannot be opened; the broker has ended, or has
    /// been told its files or been sealed before.
    pub fn keep(&self, files: &[PathBuf]) -> io::Result<()> {
        self.ask(&packet_of_files(files)?, None).map(drop)
    }

    /// Limits the broker, and the programs that it starts, to these CPUs.
    ///
    /// # Errors
    /// The system allows none of them, or the broker has ended.
    pub fn run_on(&self, cpus: &[u16]) -> io::Result<()> {
        cpus::run_thread_on(self.pid.as_raw_nonzero().get(), cpus)
    }

    /// Fixes the command that [`Broker::terminate`] ends. Nothing is added afterwards.
    ///
    /// # Errors
    /// The broker has ended, or has been sealed before.
    pub fn seal(&self, command: Option<&OwnedFd>) -> io::Result<()> {
        self.ask(&[SEAL], command.map(AsFd::as_fd)).map(drop)
    }

    /// Removes the sockets among the kept files, unless another file has taken the name.
    ///
    /// # Errors
    /// The first socket that cannot be removed, or the broker has ended.
    pub fn remove_sockets(&self) -> io::Result<()> {
        self.ask(&[REMOVE_SOCKETS], None).map(drop)
    }

    /// Removes all kept files, unless another file or content has taken the name.
    ///
    /// # Errors
    /// The first file that cannot be removed, or the broker has ended.
    pub fn remove(&self) -> io::Result<()> {
        self.ask(&[REMOVE], None).map(drop)
    }

    /// Sends SIGTERM to the sealed command, if it runs.
    ///
    /// # Errors
    /// The broker has ended.
    pub fn terminate(&self) -> io::Result<()> {
        self.ask(&[TERMINATE], None).map(drop)
    }

    /// Opens the configuration that is at its path now.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub fn open_configuration(&self) -> io::Result<File> {
        let reply = self.ask(&[OPEN], None)?;
        reply.fds.into_iter().next().map(File::from).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A descriptor that hangs up (POLLHUP) when the broker has ended.
    #[must_use]
    pub fn end(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the broker has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let nothing = [(self.end(), PollFlags::empty())];
        poll::ready_among(&nothing, Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
    }

    fn ask(&self, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<Reply> {
        self.ask_within(packet, fd, ASK_LIMIT)
    }

    /// Like [`Broker::ask`], with a limit for the reply. A broker that does not reply within it
    /// counts as ended.
    fn ask_within(
        &self,
        packet: &[u8],
        fd: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> io::Result<Reply> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = &self.socket;
        send(socket, packet, fd.as_slice())?;
        if !replies_within(socket, limit)? {
            // Its late reply would be taken for that to the next request.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            self.is_lost.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut reply = vec![0; REPLY_BYTES_MAX];
        let (len, fds) = receive(socket, &mut reply)?;
        match &reply[..len] {
            [DONE] => Ok(Reply { fds, number: 0 }),
            [DONE, a, b, c, d] => Ok(Reply { fds, number: i32::from_ne_bytes([*a, *b, *c, *d]) }),
            [FAILED, a, b, c, d] => {
                Err(io::Error::from_raw_os_error(i32::from_ne_bytes([*a, *b, *c, *d])))
            }
            [FAILED, _, _, _, _, text @ ..] => {
                Err(io::Error::other(String::from_utf8_lossy(text).into_owned()))
            }
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// The reply to a request that succeeded.
#[derive(Debug, Default)]
struct Reply {
    fds: Vec<OwnedFd>,
    /// Status of a program.
    number: i32,
}

impl Reply {
    fn packet(&self) -> Vec<u8> {
        [&[DONE][..], &self.number.to_ne_bytes()].concat()
    }
}

/// The reply to a request that failed: an error number, or a text.
fn failed(error: &io::Error) -> Vec<u8> {
    let text = if error.raw_os_error().is_some() { String::new() } else { error.to_string() };
    let errno = error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
    let len = text.len().min(REPLY_BYTES_MAX - 1 - errno.len());
    [&[FAILED][..], &errno, &text.as_bytes()[..len]].concat()
}

fn of_file(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        if *self.is_lost.get_mut() {
            return;
        }
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
    }
}

/// A request with the words of a command. A zero byte ends each word.
fn packet_of_words<'a>(kind: u8, words: impl IntoIterator<Item = &'a [u8]>) -> io::Result<Vec<u8>> {
    let mut packet = vec![kind];
    for word in words {
        packet.extend(word);
        packet.push(0);
    }
    if packet.len() > PACKET_BYTES_MAX {
        let problem = format!("a command of {} bytes is too long", packet.len());
        return Err(io::Error::other(problem));
    }
    Ok(packet)
}

fn packet_of_files(files: &[PathBuf]) -> io::Result<Vec<u8>> {
    let mut packet = vec![FILES];
    for file in files {
        packet.extend(std::path::absolute(file)?.as_os_str().as_bytes());
        packet.push(0);
    }
    if packet.len() > PACKET_BYTES_MAX {
        return Err(io::Error::other(format!(
            "the paths of {} sockets and other files that the server removes at its end are {} \
             bytes long together, at most {PACKET_BYTES_MAX} are possible; use shorter or fewer \
             paths",
            files.len(),
            packet.len()
        )));
    }
    Ok(packet)
}

/// The broker's side.
struct Served {
    configuration: Option<PathBuf>,
    files: Option<Vec<Entry>>,
    is_sealed: bool,
    /// A descriptor of the command's process.
    command: Option<OwnedFd>,
    programs: Programs,
    places: Places,
}

/// A file by its folder and name, as it was.
struct Entry {
    folder: Rc<Folder>,
    name: OsString,
    id: (u64, u64),
    kind: FileType,
    /// Content of a file with a process ID: another process may have written its own.
    text: Vec<u8>,
}

/// A folder, which its files share.
struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Served {
    fn new(configuration: Option<&Path>, unmount: Option<Unmount>) -> Self {
        let configuration = configuration.and_then(|path| std::path::absolute(path).ok());
        let programs = Programs::default();
        let places = Places::new(unmount);
        Self { configuration, files: None, is_sealed: false, command: None, programs, places }
    }

    /// Serves until the other side has ended. Never returns.
    fn run(mut self, socket: &OwnedFd) -> ! {
        // A signal to the group of a terminal or service is for the server, which needs this then.
        process::leave_signals_to_others();
        // The end of the server is the end of the socket. A signal of the kernel would come before,
        // and leave programs and a driver behind.
        process::close_all_but(socket);
        let mut packet = vec![0; PACKET_BYTES_MAX];
        while let Ok((len, fds)) = receive(socket, &mut packet)
            && len > 0
        {
            let replied = match self.answer(packet[0], &packet[1..len], fds) {
                Ok(reply) => {
                    let fds: Vec<_> = reply.fds.iter().map(AsFd::as_fd).collect();
                    send(socket, &reply.packet(), &fds)
                }
                Err(error) => send(socket, &failed(&error), &[]),
            };
            if replied.is_err() {
                break;
            }
        }
        self.programs.kill();
        self.places.end(self.command.as_ref());
        process::exit_now(0)
    }

    fn answer(&mut self, request: u8, names: &[u8], fds: Vec<OwnedFd>) -> io::Result<Reply> {
        let done = || Ok(Reply::default());
        match request {
            PROGRAM if !self.is_sealed => {
                self.programs.add(names);
                done()
            }
            START => {
                let number = names.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
                let Started { output, end } = self.programs.start(u32::from_ne_bytes(number))?;
                Ok(Reply { fds: vec![output, end], number: 0 })
            }
            STATUS => Ok(Reply { fds: Vec::new(), number: self.programs.status()? }),
            KILL => {
                self.programs.kill();
                done()
            }
            PLACE if !self.is_sealed => {
                self.places.add(names)?;
                done()
            }
            DRIVER if !self.is_sealed => {
                let output = fds.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?;
                Ok(Reply { fds: vec![self.places.start_driver(names, output)?], number: 0 })
            }
            DRIVER_STATUS => Ok(Reply { fds: Vec::new(), number: self.places.driver_status()? }),
            UNMOUNT => {
                self.places.unmount(names)?;
                done()
            }
            SIGNAL => {
                mount::signal(self.command.as_ref(), names)?;
                done()
            }
            LEAVE_TERMINAL => {
                process::leave_standard_streams()?;
                done()
            }
            FILES if !self.is_sealed && self.files.is_none() => {
                self.keep(names).and_then(|()| done())
            }
            SEAL if !self.is_sealed => {
                self.command = fds.into_iter().next();
                self.is_sealed = true;
                done()
            }
            REMOVE | REMOVE_SOCKETS => {
                let all = std::mem::take(self.files.get_or_insert_default());
                let is_wanted = |entry: &Entry| request == REMOVE || entry.is_socket();
                let (wanted, left) = all.into_iter().partition::<Vec<_>, _>(is_wanted);
                // Once only: another server may get the inode of a removed socket.
                self.files = Some(left);
                let outcomes: Vec<_> = wanted.iter().map(Entry::remove).collect();
                outcomes.into_iter().collect::<io::Result<()>>()?;
                done()
            }
            TERMINATE => {
                // It may have ended.
                let _ = self.command.as_ref().map(|fd| pidfd_send_signal(fd, Signal::TERM));
                done()
            }
            OPEN => {
                let path = self.configuration.as_ref().ok_or(io::ErrorKind::NotFound)?;
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let opened = rustix::fs::open(path, flags, Mode::empty())?;
                Ok(Reply { fds: vec![opened], number: 0 })
            }
            _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
        }
    }
}

impl Served {
    /// Fixes the files, by their paths, each with a zero byte at its end.
    fn keep(&mut self, paths: &[u8]) -> io::Result<()> {
        let paths = paths.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let files = self.files.insert(Vec::new());
        let mut folders = BTreeMap::new();
        for path in paths.map(|path| Path::new(OsStr::from_bytes(path))) {
            files.extend(Entry::of(path, &mut folders)?);
        }
        Ok(())
    }
}

impl Entry {
    /// `None` for a file that has gone already.
    fn of(path: &Path, folders: &mut BTreeMap<PathBuf, Rc<Folder>>) -> io::Result<Option<Self>> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(of_file(path, "this is no file"));
        };
        let folder = match folders.get(above) {
            Some(folder) => Rc::clone(folder),
            None => {
                let folder = Rc::new(Folder::open(above)?);
                folders.insert(above.to_owned(), Rc::clone(&folder));
                folder
            }
        };
        let facts = match statat(&folder.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            facts => facts.map_err(|error| of_file(path, error))?,
        };
        let kind = FileType::from_raw_mode(facts.st_mode);
        let id = (facts.st_dev, facts.st_ino);
        let text = text_of(&folder.descriptor, name, kind);
        Ok(Some(Self { folder, name: name.to_owned(), id, kind, text }))
    }

    fn is_socket(&self) -> bool {
        self.kind == FileType::Socket
    }

    /// Removes the file, unless another one has its name.
    fn remove(&self) -> io::Result<()> {
        let Folder { descriptor: folder, path } = &*self.folder;
        let found = statat(folder, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if !found.is_ok_and(|facts| (facts.st_dev, facts.st_ino) == self.id)
            || text_of(folder, &self.name, self.kind) != self.text
        {
            return Ok(());
        }
        let is_folder = self.kind == FileType::Directory;
        let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let removed = unlinkat(folder, &self.name, flags);
        removed.map_err(|error| of_file(&path.join(&self.name), error))
    }
}

impl Folder {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let descriptor = opened.map_err(|error| of_file(path, error))?;
        Ok(Self { descriptor, path: path.to_owned() })
    }
}

/// The start of a regular file.
fn text_of(folder: &OwnedFd, name: &OsStr, kind: FileType) -> Vec<u8> {
    let mut text = vec![0; TEXT_BYTES_MAX];
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut read = || rustix::io::read(openat(folder, name, flags, Mode::empty())?, &mut text);
    let len = if kind == FileType::RegularFile { read().unwrap_or(0) } else { 0 };
    text.truncate(len);
    text
}

fn replies_within(socket: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if poll::readable(&[Some(socket.as_fd())], Some(left))?[0] {
            return Ok(true);
        }
        // A signal ends the wait early.
        if left.is_zero() {
            return Ok(false);
        }
    }
}

fn send(socket: &OwnedFd, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(beside.push(SendAncillaryMessage::ScmRights(fds)), "they have room");
    }
    let packet = [IoSlice::new(packet)];
    let flags = SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(socket, &packet, &mut beside, flags))?;
    Ok(())
}

/// An error for a packet that is longer than the buffer: its last path would be another one. And
/// for one whose descriptor is lost.
fn receive(socket: &OwnedFd, packet: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(packet)];
        match recvmsg(socket, into, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => {
                let received = received?;
                if received.flags.contains(ReturnFlags::TRUNC) {
                    return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
                }
                // This process has no room for the descriptor that was sent.
                if received.flags.contains(ReturnFlags::CTRUNC) {
                    return Err(io::Error::from_raw_os_error(libc::EMFILE));
                }
                let mut fds = Vec::new();
                for message in beside.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        fds.extend(received);
                    }
                }
                return Ok((received.bytes, fds));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Without a process of its own: a test has threads.
    fn served(configuration: Option<&Path>) -> Served {
        Served::new(configuration, None)
    }

    fn names(paths: &[&Path]) -> Vec<u8> {
        paths.iter().flat_map(|path| [path.as_os_str().as_bytes(), b"\0"].concat()).collect()
    }

    #[test]
    fn kept_files_are_removed_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let _listener = UnixListener::bind(at("socket")).unwrap();
        let _old = UnixListener::bind(at("taken")).unwrap();
        std::fs::write(at("pid"), "1").unwrap();
        std::fs::write(at("other"), "precious").unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let mut served = served(None);
        let list = ["socket", "taken", "pid", "missing", "folder"].map(at);
        let list = names(&list.each_ref().map(PathBuf::as_path));
        served.answer(FILES, &list, Vec::new()).unwrap();
        let again = served.answer(FILES, &names(&[&at("other")]), Vec::new());
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EPERM));
        served.answer(SEAL, &[], Vec::new()).unwrap();
        for request in [SEAL, FILES, PROGRAM, PLACE, DRIVER] {
            let late = served.answer(request, b"/bin/sh\0", Vec::new());
            assert_eq!(late.unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        // Another server has taken the name.
        std::fs::write(at("new"), "2").unwrap();
        std::fs::rename(at("new"), at("pid")).unwrap();
        std::fs::remove_file(at("taken")).unwrap();
        let _new = UnixListener::bind(at("taken")).unwrap();
        served.answer(REMOVE_SOCKETS, &[], Vec::new()).unwrap();
        assert!(!at("socket").exists() && at("folder").exists());
        let _again = UnixListener::bind(at("socket")).unwrap();
        served.answer(REMOVE, &[], Vec::new()).unwrap();
        let left = ["socket", "taken", "pid", "other", "folder"].map(|name| at(name).exists());
        assert_eq!(left, [true, true, true, true, false]);
    }

    #[test]
    fn paths_that_are_too_long_together_are_refused_and_never_cut() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        // One byte for the request, one behind each path.
        let longest = PathBuf::from(format!("/{}", "a".repeat(PACKET_BYTES_MAX - 3)));
        let packet = packet_of_files(&[longest]).unwrap();
        send(&ours, &packet, &[]).unwrap();
        assert_eq!(receive(&theirs, &mut buffer).unwrap().0, PACKET_BYTES_MAX);
        assert_eq!(buffer, packet);
        let longer = PathBuf::from(format!("/{}", "a".repeat(PACKET_BYTES_MAX - 2)));
        let error = packet_of_files(&[longer]).unwrap_err();
        assert!(error.to_string().contains("shorter or fewer paths"), "{error}");
        send(&ours, &vec![FILES; PACKET_BYTES_MAX + 1], &[]).unwrap();
        let error = receive(&theirs, &mut buffer).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }

    #[test]
    fn files_of_one_folder_share_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..8).map(|number| dir.path().join(number.to_string())).collect();
        paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
        let mut served = served(None);
        let list: Vec<_> = paths.iter().map(PathBuf::as_path).collect();
        served.answer(FILES, &names(&list), Vec::new()).unwrap();
        let files = served.files.as_ref().unwrap();
        assert!(files.iter().all(|one| Rc::ptr_eq(&one.folder, &files[0].folder)));
    }

    #[test]
    fn failures_name_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("full")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        let mut first = served(None);
        let missing =
            first.answer(FILES, &names(&[&at("missing/socket")]), Vec::new()).unwrap_err();
        assert!(missing.to_string().contains("missing: No such file"), "{missing}");
        let mut served = served(None);
        served.answer(FILES, &names(&[&at("full"), &at("file")]), Vec::new()).unwrap();
        std::fs::write(at("full/other"), "").unwrap();
        let stays = served.answer(REMOVE, &[], Vec::new()).unwrap_err();
        assert!(stays.to_string().contains("full: Directory not empty"), "{stays}");
        assert!(!at("file").exists(), "the others are removed");
        let reply = failed(&stays);
        assert!(reply.ends_with(stays.to_string().as_bytes()));
        assert_eq!(failed(&io::Error::from_raw_os_error(libc::EACCES)).len(), 5);
    }

    /// A child of the test, because the limit is that of the process.
    #[test]
    fn descriptor_without_room_is_an_error_of_its_own() {
        const IS_CHILD: &str = "BLOCKYARD_TEST_NO_DESCRIPTORS";
        let name = "broker::tests::descriptor_without_room_is_an_error_of_its_own";
        if std::env::var_os(IS_CHILD).is_none() {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            let output = child.args([name, "--exact"]).env(IS_CHILD, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        send(&ours, &[DONE], &[ours.as_fd()]).unwrap();
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
        let error = receive(&theirs, &mut [0; 8]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    }

    #[test]
    fn file_of_another_process_id_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        for (later, stays) in [("1", false), ("2", true)] {
            std::fs::write(&path, "1").unwrap();
            let mut served = served(None);
            served.answer(FILES, &names(&[&path]), Vec::new()).unwrap();
            std::fs::write(&path, later).unwrap();
            served.answer(REMOVE, &[], Vec::new()).unwrap();
            assert_eq!(path.exists(), stays);
        }
    }

    #[test]
    fn configuration_is_that_of_the_path_now_and_nothing_else_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disks.toml");
        std::fs::write(&path, "old").unwrap();
        let mut served = served(Some(&path));
        std::fs::write(dir.path().join("new"), "new").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        let reply = served.answer(OPEN, b"/etc/passwd\0", Vec::new()).unwrap();
        let fd = reply.fds.into_iter().next().unwrap();
        assert_eq!(io::read_to_string(File::from(fd)).unwrap(), "new");
        assert!(served.answer(b'x', &[], Vec::new()).is_err());
        let mut without = self::served(None);
        assert!(without.answer(OPEN, &[], Vec::new()).is_err());
    }
}
