//! Listening sockets: Unix, TCP, inherited.
//!
//! A Unix socket file outlives a killed server, and the next server replaces it. Checking, removing
//! and binding are three steps, which two servers must not run concurrently: each could remove the
//! other's new socket. So a server first locks a file beside the socket ([`Turn`]).

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::access::SocketAccess;
use super::socket::Socket;
use crate::{Error, process};

/// Limit of unaccepted clients: the system's own limit (`net.core.somaxconn`) since Linux 5.4.
const BACKLOG: i32 = 4096;
/// `sun_path` has 108 bytes; Linux needs no terminating zero.
const TOO_LONG: &str = "the path of a socket has at most 108 bytes; choose a shorter one";
/// Another server holds the lock file for three system calls.
const TURN_PATIENCE: Duration = Duration::from_secs(1);

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    fd: OwnedFd,
    is_unix: bool,
    /// Our socket file, removed with the listener.
    file: Option<SocketFile>,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Listener {
    pub(super) fn unix(path: &Path, access: &SocketAccess) -> Result<Self, Error> {
        let _turn = Turn::take(path)?;
        remove_stale(path)?;
        let failed = |errno| {
            let error = match errno {
                Errno::NAMETOOLONG => io::Error::other(TOO_LONG),
                errno => errno.into(),
            };
            Error::io(path, "listen", error)
        };
        let fd = bind_unix(path).map_err(failed)?;
        let inode = std::fs::symlink_metadata(path)
            .map_err(|error| Error::io(path, "look at it", error))?
            .ino();
        let file = Some(SocketFile { path: path.to_owned(), inode });
        // From here on the drop removes the file.
        let listener = Self { fd, is_unix: true, file };
        let gives = "set the mode, the owner and the group of the socket";
        access.give(path).map_err(|error| Error::io(path, gives, error))?;
        rustix::net::listen(&listener.fd, BACKLOG).map_err(failed)?;
        Ok(listener)
    }

    pub(super) fn tcp(address: SocketAddr) -> Result<(Self, SocketAddr), Error> {
        let shown = address.to_string();
        let path = Path::new(&shown);
        let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => Error::socket_in_use(
                path,
                "another program is listening there; stop it or choose another port",
            ),
            _ => Error::io(path, "listen", error),
        })?;
        let bound = listener.local_addr().map_err(|error| Error::io(path, "look at it", error))?;
        let listener = Self { fd: listener.into(), is_unix: false, file: None };
        listener.set_non_blocking(path)?;
        Ok((listener, bound))
    }

    pub(super) fn inherited(fd: OwnedFd) -> Result<Self, Error> {
        let path = Path::new("inherited descriptor");
        let address = rustix::net::getsockname(&fd)
            .map_err(|error| Error::io(path, "use as a listening socket", error))?;
        let is_unix = address.address_family() == AddressFamily::UNIX;
        let listener = Self { fd, is_unix, file: None };
        listener.set_non_blocking(path)?;
        Ok(listener)
    }

    /// Like [`Listener::inherited`], for a Unix stream socket only.
    pub(super) fn inherited_unix(fd: OwnedFd) -> Result<Self, Error> {
        let path = Path::new("inherited descriptor");
        check_unix(&fd).map_err(|problem| Error::parameter(path.display(), problem))?;
        Self::inherited(fd)
    }

    /// Needed because a client may vanish between `poll` and `accept`.
    fn set_non_blocking(&self, path: &Path) -> Result<(), Error> {
        rustix::io::ioctl_fionbio(&self.fd, true)
            .map_err(|error| Error::io(path, "make non-blocking", error))
    }

    /// The next waiting client, with its address on TCP.
    pub(super) fn accept(&self) -> io::Result<Option<(Socket, Option<IpAddr>)>> {
        match rustix::net::acceptfrom_with(&self.fd, SocketFlags::CLOEXEC) {
            Ok((fd, address)) => {
                let peer = address.and_then(|address| SocketAddr::try_from(address).ok());
                let peer = peer.map(|address| address.ip());
                Ok(Some((Socket::new(fd, self.is_unix), peer)))
            }
            Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        // Only if no other file has taken its place.
        if std::fs::symlink_metadata(&file.path).is_ok_and(|found| found.ino() == file.inode) {
            let _ = std::fs::remove_file(&file.path);
        }
    }
}

/// A descriptor of our own for a listening Unix socket that another program has opened and passed
/// by its number.
///
/// # Errors
/// No descriptor has this number, or it is another one.
pub fn inherited_unix_socket(number: i32) -> Result<OwnedFd, Error> {
    let failed = |problem: String| Error::parameter(format!("descriptor {number}"), problem);
    let fd = process::duplicate(number).map_err(|error| match error.raw_os_error() {
        Some(libc::EBADF) => failed("is not open; pass the listening socket".into()),
        _ => failed(format!("cannot be used: {error}")),
    })?;
    check_unix(&fd).map_err(|problem| failed(problem.into()))?;
    Ok(fd)
}

fn check_unix(fd: &OwnedFd) -> Result<(), &'static str> {
    let is_unix = sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX);
    if !is_unix || sockopt::socket_type(fd) != Ok(SocketType::STREAM) {
        return Err("is no Unix stream socket; pass one that listens");
    }
    if sockopt::socket_acceptconn(fd) != Ok(true) {
        return Err("is a Unix socket that does not listen; pass the one that accepts connections");
    }
    Ok(())
}

/// Creates a socket with access for its owner only, which does not listen yet.
fn bind_unix(path: &Path) -> rustix::io::Result<OwnedFd> {
    let fd = unix_socket()?;
    // The file gets the mode of the socket, so that others can never connect.
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o600))?;
    rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes the socket file of an ended server.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        let problem = "exists and is not a socket; choose another path";
        return Err(Error::parameter(path.display(), problem));
    }
    // Without blocking: a living server may have no room for another client.
    let connected =
        unix_socket().and_then(|fd| rustix::net::connect(&fd, &SocketAddrUnix::new(path)?));
    match connected {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path)
            .map_err(|error| Error::io(path, "remove the stale socket", error)),
        _ => Err(Error::socket_in_use(
            path,
            "another server is listening there; stop it or choose another path",
        )),
    }
}

/// The lock on `PATH.lock`, held by one of the servers that start at this path. The drop removes
/// the file; a file left by a killed server is unlocked and is reused.
struct Turn {
    path: PathBuf,
    _file: File,
}

impl Turn {
    fn take(socket: &Path) -> Result<Self, Error> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let start = Instant::now();
        loop {
            match Self::try_take(&path) {
                Ok(Some(file)) => return Ok(Self { path, _file: file }),
                Ok(None) if start.elapsed() < TURN_PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(None) => {
                    let problem = "is locked: another server is starting there; try again";
                    return Err(Error::socket_in_use(&path, problem));
                }
                Err(error) => return Err(Error::io(socket, "listen", error)),
            }
        }
    }

    /// `None` if another server holds the lock.
    fn try_take(path: &Path) -> rustix::io::Result<Option<File>> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?);
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error),
        }
        // The previous holder may have removed the file; then the lock protects nothing.
        let locked = rustix::fs::fstat(&file)?;
        let is_there = rustix::fs::stat(path)
            .is_ok_and(|found| (found.st_dev, found.st_ino) == (locked.st_dev, locked.st_ino));
        Ok(is_there.then_some(file))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn unix_socket_is_for_its_owner_only_and_goes_with_the_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = Listener::unix(&path, &SocketAccess::default()).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn socket_of_a_group_has_its_mode_whatever_the_mask_of_the_process_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for mode in [0o660, 0o606, 0o200] {
            let group = Some(rustix::process::getgid().as_raw());
            let access = SocketAccess { mode, owner: None, group };
            let _listener = Listener::unix(&path, &access).unwrap();
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, mode);
            assert_eq!(Some(metadata.gid()), group);
            UnixStream::connect(&path).unwrap();
        }
    }

    #[test]
    fn living_server_keeps_its_socket_and_a_dead_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let living = Listener::unix(&path, &SocketAccess::default()).unwrap();
        assert!(
            Listener::unix(&path, &SocketAccess::default())
                .unwrap_err()
                .to_string()
                .contains("another server")
        );
        drop(living);
        std::fs::write(&path, "precious").unwrap();
        assert!(
            Listener::unix(&path, &SocketAccess::default())
                .unwrap_err()
                .to_string()
                .contains("not a socket")
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn of_two_servers_that_start_at_once_one_listens_and_its_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for round in 0..300 {
            drop(UnixListener::bind(&path).unwrap());
            let start = Barrier::new(2);
            let listen = || {
                start.wait();
                Listener::unix(&path, &SocketAccess::default())
            };
            let listeners = std::thread::scope(|scope| {
                let both = [scope.spawn(listen), scope.spawn(listen)];
                both.map(|thread| thread.join().unwrap())
            });
            let said = |listener: &Result<Listener, Error>| match listener {
                Ok(_) => "listens".to_owned(),
                Err(error) => error.to_string(),
            };
            let said = listeners.each_ref().map(said);
            let count = listeners.iter().filter(|listener| listener.is_ok()).count();
            assert_eq!(count, 1, "round {round}: {said:?}");
            assert!(said.iter().any(|said| said.contains("another server")), "{said:?}");
            UnixStream::connect(&path).unwrap();
            drop(listeners);
            let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}
