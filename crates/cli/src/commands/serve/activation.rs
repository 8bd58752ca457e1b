//! Socket activation: sockets bound by systemd before this process started (`sd_listen_fds(3)`).

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use listenfd::ListenFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use super::reachable_host;
use crate::failure::Failure;
use crate::nbd;

/// A passed listening socket.
pub(super) struct Activated {
    /// The socket.
    pub(super) fd: OwnedFd,
    /// Its address for clients, if it has one.
    pub(super) place: Option<nbd::Server>,
    /// Its address if it is a TCP socket.
    pub(super) address: Option<SocketAddr>,
}

/// Takes all sockets. Call it before any thread exists: it clears the environment variables.
pub(super) fn sockets() -> Result<Vec<Activated>, Failure> {
    let mut given = ListenFd::from_env();
    (0..given.len()).map(|index| take(&mut given, index)).collect()
}

fn take(given: &mut ListenFd, index: usize) -> Result<Activated, Failure> {
    for family in [AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6] {
        let socket = given.take_custom::<OwnedFd>(
            index,
            family.as_raw().into(),
            SocketType::STREAM.as_raw().try_into().expect("socket types are small numbers"),
            "stream socket",
        );
        if let Ok(Some(fd)) = socket {
            let (place, address) = place_of(&fd);
            return Ok(Activated { fd, place, address });
        }
    }
    Err(Failure::failed(format!(
        "socket activation: descriptor {} is no Unix or TCP stream socket; use ListenStream= in \
         the socket unit",
        index + 3
    )))
}

fn place_of(fd: &OwnedFd) -> (Option<nbd::Server>, Option<SocketAddr>) {
    let Ok(address) = rustix::net::getsockname(fd.as_fd()) else { return (None, None) };
    if let Ok(tcp) = SocketAddr::try_from(address.clone()) {
        return (Some(nbd::Server::Tcp(reachable_host(&tcp), tcp.port())), Some(tcp));
    }
    let unix = SocketAddrUnix::try_from(address).ok();
    let path = unix.and_then(|unix| unix.path()?.into_owned().into_string().ok());
    (path.map(|path| nbd::Server::Unix(PathBuf::from(path))), None)
}
