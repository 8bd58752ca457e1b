//! Addresses of sockets: from the command line to the system, and to the lines for users.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use blockyard::Server;

use crate::failure::Failure;
use crate::nbd::split_host_port;
use crate::output::say;

/// The addresses of `--listen HOST:PORT`.
pub(super) fn resolved(listen: &str) -> Result<Vec<SocketAddr>, Failure> {
    let failed = |problem: &str| {
        Failure::failed(format!(
            "--listen {listen}: {problem}; write HOST:PORT, for example 127.0.0.1:10809"
        ))
    };
    // Numbers alone would be an address too: 10898 is 0.0.42.146.
    if !listen.is_empty() && listen.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(failed(&format!(
            "this is a port without a host; 127.0.0.1:{listen} serves this machine only"
        )));
    }
    let (host, port) = split_host_port(listen).ok_or_else(|| failed("this is no address"))?;
    let addresses: Vec<_> = (host.as_str(), port)
        .to_socket_addrs()
        .map_err(|error| failed(&error.to_string()))?
        .collect();
    if addresses.is_empty() { Err(failed("the host has no address")) } else { Ok(addresses) }
}

/// Adds a socket for Prometheus.
pub(super) fn with_metrics(server: Server, place: &str) -> Result<Server, Failure> {
    if place.contains('/') {
        return Ok(server.metrics_unix(place));
    }
    let failed = |problem: &str| {
        Failure::failed(format!(
            "--metrics {place}: {problem}; write HOST:PORT, as in 127.0.0.1:9100, or the path of a \
             socket, as in ./metrics"
        ))
    };
    let mut addresses = place.to_socket_addrs().map_err(|error| failed(&error.to_string()))?;
    let address = addresses.next().ok_or_else(|| failed("the host has no address"))?;
    Ok(server.metrics_tcp(address))
}

pub(super) fn say_metrics(address: &SocketAddr) {
    say(&format!("metrics at http://{address}/metrics"));
    if !address.ip().is_loopback() {
        say(&format!(
            "warning: metrics are not authenticated: every client that reaches {address} sees \
             names, sizes and load of the volumes, but neither keys nor data"
        ));
    }
}

/// An address for clients on this machine.
pub(super) fn reachable_host(address: &SocketAddr) -> String {
    if address.ip().is_unspecified() { "localhost".into() } else { address.ip().to_string() }
}

pub(super) fn absolute(socket: &Path) -> PathBuf {
    std::path::absolute(socket).unwrap_or_else(|_| socket.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_are_resolved_or_explained() {
        assert_eq!(resolved("127.0.0.1:7").unwrap(), ["127.0.0.1:7".parse().unwrap()]);
        assert_eq!(resolved("127.0.0.1").unwrap(), ["127.0.0.1:10809".parse().unwrap()]);
        assert_eq!(resolved("[::1]:7").unwrap(), ["[::1]:7".parse().unwrap()]);
        for listen in ["10898", "127.0.0.1:http", "300.1.1.1:1", ":::"] {
            let failure = resolved(listen).unwrap_err();
            assert!(failure.message.contains(listen), "{failure}");
            assert!(failure.message.contains("HOST:PORT"), "{failure}");
        }
    }

    #[test]
    fn unspecified_addresses_are_printed_as_something_to_connect_to() {
        assert_eq!(reachable_host(&"0.0.0.0:1".parse().unwrap()), "localhost");
        assert_eq!(reachable_host(&"[::1]:1".parse().unwrap()), "::1");
    }
}
