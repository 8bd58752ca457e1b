//! Listening sockets: unix with mode 0600, TCP, inherited.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketFlags};

use super::socket::Socket;
use crate::Error;

/// A socket that accepts clients.
#[derive(Debug)]
pub(super) struct Listener {
    fd: OwnedFd,
    is_unix: bool,
    /// A socket file of ours, removed with the listener.
    file: Option<SocketFile>,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Listener {
    pub(super) fn unix(path: &Path) -> Result<Self, Error> {
        remove_stale(path)?;
        // The mask rather than a later chmod: no moment in which others could connect.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        rustix::process::umask(mask);
        let listener = bound.map_err(|error| Error::io(path, "listen on", error))?;
        let inode = std::fs::symlink_metadata(path)
            .map_err(|error| Error::io(path, "look at", error))?
            .ino();
        let file = Some(SocketFile { path: path.to_owned(), inode });
        let listener = Self { fd: listener.into(), is_unix: true, file };
        listener.set_non_blocking(path)?;
        Ok(listener)
    }

    pub(super) fn tcp(address: SocketAddr) -> Result<(Self, SocketAddr), Error> {
        let shown = address.to_string();
        let path = Path::new(&shown);
        let listener =
            TcpListener::bind(address).map_err(|error| Error::io(path, "listen on", error))?;
        let bound = listener.local_addr().map_err(|error| Error::io(path, "look at", error))?;
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

    /// A client may be gone again between `poll` and `accept`.
    fn set_non_blocking(&self, path: &Path) -> Result<(), Error> {
        rustix::io::ioctl_fionbio(&self.fd, true)
            .map_err(|error| Error::io(path, "make non-blocking", error))
    }

    /// The next client, if one is waiting, and its address if it came by TCP.
    pub(super) fn accept(&self) -> io::Result<Option<(Socket, Option<IpAddr>)>> {
        match rustix::net::acceptfrom_with(&self.fd, SocketFlags::CLOEXEC) {
            Ok((fd, address)) => {
                let peer = address.and_then(|address| SocketAddr::try_from(address).ok());
                let peer = peer.map(|address| address.ip());
                Ok(Some((Socket::new(fd, self.is_unix), peer)))
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED) => Ok(None),
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
        // Only if nobody has put another file in its place.
        if std::fs::symlink_metadata(&file.path).is_ok_and(|found| found.ino() == file.inode) {
            let _ = std::fs::remove_file(&file.path);
        }
    }
}

/// Removes the socket of a server that is gone.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(Error::volume(path, "exists and is not a socket; choose another path"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
                .map_err(|error| Error::io(path, "remove the stale socket", error))
        }
        _ => Err(Error::volume(
            path,
            "another server is listening there; stop it or choose another path",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn unix_socket_is_for_its_owner_only_and_goes_with_the_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = Listener::unix(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn living_server_keeps_its_socket_and_a_dead_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let living = Listener::unix(&path).unwrap();
        assert!(Listener::unix(&path).unwrap_err().to_string().contains("another server"));
        drop(living);
        std::fs::write(&path, "precious").unwrap();
        assert!(Listener::unix(&path).unwrap_err().to_string().contains("not a socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}
