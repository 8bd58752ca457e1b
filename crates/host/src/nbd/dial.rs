//! Connects: the socket, and the handshake under a deadline. This blocks, and name resolution
//! blocks without a deadline.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use blockyard_protocol::nbd::client::{Event, Remote, Session, Settings as SessionSettings};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::uri::{Server, Uri};
use super::wire::{Wire, time_left};

/// Time limit of connecting and handshake. Ours: equal to our server's limit for a client.
const LIMIT: Duration = Duration::from_secs(10);
/// Requests in flight on a connection, like Linux's nbd driver.
pub(super) const IN_FLIGHT_MAX: usize = 128;
/// Keep-alive for idle connections: a vanished machine is noticed after about half a minute. Ours.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_EACH: Duration = Duration::from_secs(5);
const KEEP_ALIVE_COUNT: u32 = 4;

/// A connection with an open export.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) wire: Wire,
    /// The server is on this machine.
    pub(super) is_unix: bool,
    pub(super) session: Session,
    /// Bytes received after the handshake.
    pub(super) received: Vec<u8>,
}

impl Opened {
    pub(super) fn remote(&self) -> &Remote {
        self.session.remote().expect("the export is open")
    }
}

/// Connects and opens the export.
///
/// # Errors
/// A description of the failure.
pub(super) fn dial(uri: &Uri) -> Result<Opened, String> {
    let deadline = Instant::now() + LIMIT;
    let (socket, is_unix) = match &uri.server {
        Server::Tcp(host, port) => (connect_tcp(host, *port, deadline)?, false),
        Server::Unix(path) => {
            let connected = connect_unix(path);
            (connected.map_err(|error| not_connected(&error))?, true)
        }
    };
    let mut wire = Wire::new(socket);
    let (session, received) = handshake(&mut wire, uri, deadline)?;
    Ok(Opened { wire, is_unix, session, received })
}

fn connect_tcp(host: &str, port: u16, deadline: Instant) -> Result<OwnedFd, String> {
    let addresses = (host, port).to_socket_addrs();
    let addresses = addresses.map_err(|error| format!("cannot find the host: {error}"))?;
    let mut last = "cannot connect: the host has no address".to_owned();
    for address in addresses {
        let Some(left) = time_left(deadline) else { break };
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                let socket = OwnedFd::from(stream);
                let _ = sockopt::set_tcp_nodelay(&socket, true);
                let _ = sockopt::set_socket_keepalive(&socket, true);
                let _ = sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE_IDLE);
                let _ = sockopt::set_tcp_keepintvl(&socket, KEEP_ALIVE_EACH);
                let _ = sockopt::set_tcp_keepcnt(&socket, KEEP_ALIVE_COUNT);
                return Ok(socket);
            }
            Err(error) => last = not_connected(&error),
        }
    }
    Err(last)
}

fn not_connected(error: &io::Error) -> String {
    let is_absent = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    let remedy = if is_absent { "; is the server running?" } else { "" };
    format!("cannot connect: {error}{remedy}")
}

fn connect_unix(path: &std::path::Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // A server that never accepts would block us.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(LIMIT))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn handshake(wire: &mut Wire, uri: &Uri, deadline: Instant) -> Result<(Session, Vec<u8>), String> {
    let settings = SessionSettings {
        in_flight_max: IN_FLIGHT_MAX as u16,
        allocation: true,
        tls: uri.tls.is_some(),
        ..SessionSettings::new(uri.export.as_str())
    };
    let session = Session::new(settings);
    let mut session = session.map_err(|error| error.to_string())?;
    let mut received = Vec::new();
    let mut out = Vec::new();
    loop {
        let step = session.on_bytes(&received, &mut out);
        received.drain(..step.consumed);
        match step.event {
            Event::Opened => return Ok((session, received)),
            Event::StartTls => wire.start_tls(uri, deadline)?,
            Event::Broken => {
                let _ = wire.send_all(&out, deadline);
                let failure = session.failure().expect("it is broken");
                return Err(failure.to_string());
            }
            Event::NeedMore => {
                wire.send_all(&out, deadline)?;
                out.clear();
                if wire.receive(&mut received, deadline)? == 0 {
                    return Err(session.on_eof().to_string());
                }
            }
            _ => {}
        }
    }
}
