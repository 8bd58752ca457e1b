//! The states of the server, for the service manager (sd_notify(3)).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;

use sd_notify::NotifyState;

/// systemd may be absent or not listen, which is no reason to stop.
pub(super) fn tell_service_manager(states: &[NotifyState<'_>]) {
    if let Some(manager) = service_manager() {
        let lines: Vec<String> = states.iter().map(NotifyState::to_string).collect();
        let _ = manager.send(lines.join("\n").as_bytes());
    }
}

/// Connects to systemd, if it has started the server.
pub(super) fn connect() {
    let _ = service_manager();
}

/// The socket of systemd. It is connected by the first call: the sandbox permits no new socket.
fn service_manager() -> Option<&'static UnixDatagram> {
    static MANAGER: OnceLock<Option<UnixDatagram>> = OnceLock::new();
    MANAGER.get_or_init(|| connected_service_manager().ok()).as_ref()
}

/// sd_notify(3): a path, or a name of an abstract socket behind `@`.
fn connected_service_manager() -> io::Result<UnixDatagram> {
    let place = std::env::var_os("NOTIFY_SOCKET").ok_or(io::ErrorKind::NotFound)?;
    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => unix::net::SocketAddr::from_abstract_name(name)?,
        None => unix::net::SocketAddr::from_pathname(place)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    // A manager that reads nothing delays neither a reload nor the end.
    socket.set_nonblocking(true)?;
    Ok(socket)
}
