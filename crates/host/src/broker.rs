//! The broker: a small process outside of the sandbox, for what the server itself may not do
//! afterwards: remove its sockets and its PID file, end the command that it serves, open its
//! configuration again.
//!
//! ```text
//! server ─ fork, before any secret ─> broker
//!        ─ seal: files, command ────> kept; a second seal is refused
//!   first client
//!        ─ remove, terminate, open ─> done, for the sealed files and the command only
//!        ─ end of the server ───────> ends too
//! ```
//! A request is one packet with one byte. All that it works on was fixed before the first client:
//! a server that is taken over can only have its own files removed, and its own command ended.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, openat, statat, unlinkat};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use rustix::process::{
    Pid, Signal, WaitOptions, pidfd_send_signal, set_parent_process_death_signal, waitpid,
};

use crate::process;

/// Longest packet: some hundred paths.
const PACKET_BYTES_MAX: usize = 64 << 10;
/// More than the digits of a process ID.
const TEXT_BYTES_MAX: usize = 64;
const SEAL: u8 = b's';
const REMOVE_SOCKETS: u8 = b'c';
const REMOVE: u8 = b'r';
const TERMINATE: u8 = b't';
const OPEN: u8 = b'o';
const DONE: u8 = b'd';
const FAILED: u8 = b'f';

/// The broker of this process, which ends with this value.
#[derive(Debug)]
pub struct Broker {
    socket: OwnedFd,
    pid: Pid,
}

impl Broker {
    /// Forks the broker. Call it before there are threads, or secrets in memory.
    ///
    /// # Errors
    /// There are threads, or the system has no more processes or descriptors.
    pub fn fork(configuration: Option<&Path>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        match process::fork_alone()? {
            None => {
                drop(ours);
                Served::run(&theirs, configuration)
            }
            Some(pid) => Ok(Self { socket: ours, pid }),
        }
    }

    /// Fixes the files and empty folders that [`Broker::remove`] removes, as they are now, and the
    /// command that [`Broker::terminate`] ends.
    ///
    /// # Errors
    /// The paths are too long together; the broker has ended, or has been sealed before.
    pub fn seal(&self, files: &[PathBuf], command: Option<&OwnedFd>) -> io::Result<()> {
        self.ask(&packet_of_seal(files)?, command.map(AsFd::as_fd)).map(drop)
    }

    /// Removes the sockets among the sealed files, unless another file has taken the name.
    ///
    /// # Errors
    /// The broker has ended.
    pub fn remove_sockets(&self) -> io::Result<()> {
        self.ask(&[REMOVE_SOCKETS], None).map(drop)
    }

    /// Removes all sealed files, unless another file or content has taken the name.
    ///
    /// # Errors
    /// The broker has ended.
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
        self.ask(&[OPEN], None)?.map(File::from).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn ask(&self, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<Option<OwnedFd>> {
        send(&self.socket, packet, fd)?;
        let mut reply = [0; 5];
        let (len, fd) = receive(&self.socket, &mut reply)?;
        match reply {
            [DONE, ..] if len > 0 => Ok(fd),
            [FAILED, errno @ ..] if len == reply.len() => {
                Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
            }
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
    }
}

fn packet_of_seal(files: &[PathBuf]) -> io::Result<Vec<u8>> {
    let mut packet = vec![SEAL];
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
    sealed: Option<Vec<Entry>>,
    /// A descriptor of the command's process.
    command: Option<OwnedFd>,
}

/// A file by its folder and name, as it was.
struct Entry {
    folder: OwnedFd,
    name: OsString,
    id: (u64, u64),
    kind: FileType,
    /// Content of a file with a process ID: another process may have written its own.
    text: Vec<u8>,
}

impl Served {
    /// Serves until the other side has ended. Never returns.
    fn run(socket: &OwnedFd, configuration: Option<&Path>) -> ! {
        // A signal to the group of a terminal or service is for the server, which needs this then.
        process::leave_signals_to_others();
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let configuration = configuration.and_then(|path| std::path::absolute(path).ok());
        process::close_all_but(socket);
        let mut served = Self { configuration, sealed: None, command: None };
        let mut packet = vec![0; PACKET_BYTES_MAX];
        while let Ok((len, fd)) = receive(socket, &mut packet)
            && len > 0
        {
            let replied = match served.answer(packet[0], &packet[1..len], fd) {
                Ok(fd) => send(socket, &[DONE], fd.as_ref().map(AsFd::as_fd)),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    send(socket, &[&[FAILED][..], &errno.to_ne_bytes()].concat(), None)
                }
            };
            if replied.is_err() {
                break;
            }
        }
        process::exit_now(0)
    }

    fn answer(
        &mut self,
        request: u8,
        names: &[u8],
        fd: Option<OwnedFd>,
    ) -> io::Result<Option<OwnedFd>> {
        match request {
            SEAL if self.sealed.is_none() => {
                let paths = names.split(|byte| *byte == 0).filter(|path| !path.is_empty());
                let paths = paths.map(|path| Path::new(OsStr::from_bytes(path)));
                self.sealed = Some(paths.filter_map(|path| Entry::of(path).ok()).collect());
                self.command = fd;
                Ok(None)
            }
            REMOVE | REMOVE_SOCKETS => {
                let all = std::mem::take(self.sealed.get_or_insert_default());
                let is_wanted = |entry: &Entry| request == REMOVE || entry.is_socket();
                let (wanted, left) = all.into_iter().partition::<Vec<_>, _>(is_wanted);
                // Once only: another server may get the inode of a removed socket.
                self.sealed = Some(left);
                wanted.iter().for_each(Entry::remove);
                Ok(None)
            }
            TERMINATE => {
                // It may have ended.
                let _ = self.command.as_ref().map(|fd| pidfd_send_signal(fd, Signal::TERM));
                Ok(None)
            }
            OPEN => {
                let path = self.configuration.as_ref().ok_or(io::ErrorKind::NotFound)?;
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                Ok(Some(rustix::fs::open(path, flags, Mode::empty())?))
            }
            _ => Err(io::Error::from_raw_os_error(libc::EPERM)),
        }
    }
}

impl Entry {
    fn of(path: &Path) -> io::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let folder = rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let facts = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(facts.st_mode);
        let id = (facts.st_dev, facts.st_ino);
        let text = text_of(&folder, name, kind);
        Ok(Self { folder, name: name.to_owned(), id, kind, text })
    }

    fn is_socket(&self) -> bool {
        self.kind == FileType::Socket
    }

    fn remove(&self) {
        let found = statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|facts| (facts.st_dev, facts.st_ino) == self.id)
            && text_of(&self.folder, &self.name, self.kind) == self.text
        {
            let is_folder = self.kind == FileType::Directory;
            let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let _ = unlinkat(&self.folder, &self.name, flags);
        }
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

fn send(socket: &OwnedFd, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if let Some(fds) = fd.as_ref().map(std::slice::from_ref) {
        assert!(beside.push(SendAncillaryMessage::ScmRights(fds)), "it has room");
    }
    let packet = [IoSlice::new(packet)];
    let flags = SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(socket, &packet, &mut beside, flags))?;
    Ok(())
}

/// An error for a packet that is longer than the buffer: its last path would be another one.
fn receive(socket: &OwnedFd, packet: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(packet)];
        match recvmsg(socket, into, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => {
                let received = received?;
                if received.flags.contains(ReturnFlags::TRUNC) {
                    return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
                }
                let fd = beside.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
                    _ => None,
                });
                return Ok((received.bytes, fd));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Without a process of its own: a test has threads.
    fn served(configuration: Option<PathBuf>) -> Served {
        Served { configuration, sealed: None, command: None }
    }

    fn names(paths: &[&Path]) -> Vec<u8> {
        paths.iter().flat_map(|path| [path.as_os_str().as_bytes(), b"\0"].concat()).collect()
    }

    #[test]
    fn sealed_files_are_removed_and_no_others() {
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
        served.answer(SEAL, &list, None).unwrap();
        let again = served.answer(SEAL, &names(&[&at("other")]), None);
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EPERM));
        // Another server has taken the name.
        std::fs::write(at("new"), "2").unwrap();
        std::fs::rename(at("new"), at("pid")).unwrap();
        std::fs::remove_file(at("taken")).unwrap();
        let _new = UnixListener::bind(at("taken")).unwrap();
        served.answer(REMOVE_SOCKETS, &[], None).unwrap();
        assert!(!at("socket").exists() && at("folder").exists());
        let _again = UnixListener::bind(at("socket")).unwrap();
        served.answer(REMOVE, &[], None).unwrap();
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
        let packet = packet_of_seal(&[longest]).unwrap();
        send(&ours, &packet, None).unwrap();
        assert_eq!(receive(&theirs, &mut buffer).unwrap().0, PACKET_BYTES_MAX);
        assert_eq!(buffer, packet);
        let longer = PathBuf::from(format!("/{}", "a".repeat(PACKET_BYTES_MAX - 2)));
        let error = packet_of_seal(&[longer]).unwrap_err();
        assert!(error.to_string().contains("shorter or fewer paths"), "{error}");
        send(&ours, &vec![SEAL; PACKET_BYTES_MAX + 1], None).unwrap();
        let error = receive(&theirs, &mut buffer).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }

    #[test]
    fn file_of_another_process_id_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        for (later, stays) in [("1", false), ("2", true)] {
            std::fs::write(&path, "1").unwrap();
            let mut served = served(None);
            served.answer(SEAL, &names(&[&path]), None).unwrap();
            std::fs::write(&path, later).unwrap();
            served.answer(REMOVE, &[], None).unwrap();
            assert_eq!(path.exists(), stays);
        }
    }

    #[test]
    fn configuration_is_that_of_the_path_now_and_nothing_else_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disks.toml");
        std::fs::write(&path, "old").unwrap();
        let mut served = served(Some(path.clone()));
        std::fs::write(dir.path().join("new"), "new").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        let fd = served.answer(OPEN, b"/etc/passwd\0", None).unwrap().unwrap();
        assert_eq!(io::read_to_string(File::from(fd)).unwrap(), "new");
        assert!(served.answer(b'x', &[], None).is_err());
        let mut without = self::served(None);
        assert!(without.answer(OPEN, &[], None).is_err());
    }
}
