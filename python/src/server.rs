//! NBD servers on threads of their own.

use std::net::ToSocketAddrs;
use std::path::PathBuf;

use blockyard::{Running, Server};
use pyo3::prelude::*;

use crate::error::{raised, raised_io};
use crate::owned::Owned;
use crate::volume::NativeVolume;

/// A running server of one volume.
#[pyclass(frozen, name = "Server")]
pub(crate) struct NativeServer {
    running: Owned<Running>,
    /// Hosts and ports.
    #[pyo3(get)]
    addresses: Vec<(String, u16)>,
}

#[pymethods]
impl NativeServer {
    #[new]
    #[pyo3(signature = (volume, *, export, socket, address))]
    fn new(
        py: Python<'_>,
        volume: &NativeVolume,
        export: &str,
        socket: Option<PathBuf>,
        address: Option<(String, u16)>,
    ) -> PyResult<Self> {
        let volume = volume.volume()?;
        let mut server = Server::new().export(export, &volume);
        if let Some(socket) = socket {
            server = server.unix(socket);
        }
        let running = py.detach(|| {
            if let Some((host, port)) = address {
                let addresses = (host, port).to_socket_addrs().map_err(raised_io)?;
                server = server.tcp_first_of(addresses.collect());
            }
            server.start().map_err(raised)
        })?;
        let bound = running.addresses().iter();
        let addresses = bound.map(|at| (at.ip().to_string(), at.port())).collect();
        Ok(Self { running: Owned::new(running), addresses })
    }

    /// Completes received requests, and flushes the volume.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running.take();
        py.detach(move || running.map_or(Ok(()), Running::stop)).map_err(raised)
    }
}
