//! A server in a thread, and a small NBD client: export by name, simple replies.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::thread::JoinHandleExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use blockyard_host::process::StopSignal;
use blockyard_host::server::{ServedExport, Server, ServerOptions};

/// A running server, until it is stopped.
pub(crate) struct Serving {
    thread: JoinHandle<()>,
    socket: PathBuf,
}

impl Serving {
    pub(crate) fn start(socket: &Path, exports: Vec<ServedExport>) -> Self {
        Self::start_with(socket, exports, ServerOptions::default(), |_| ())
    }

    /// Starts a server with these limits, and listeners besides the Unix socket.
    pub(crate) fn start_with(
        socket: &Path,
        exports: Vec<ServedExport>,
        options: ServerOptions,
        open_doors: impl FnOnce(&mut Server) + Send + 'static,
    ) -> Self {
        let (ready, listening) = mpsc::channel();
        let path = socket.to_owned();
        let thread = std::thread::spawn(move || {
            let stop = StopSignal::install().unwrap();
            let order: Vec<String> =
                exports.iter().map(|one: &ServedExport| one.name.clone()).collect();
            let mut server = Server::new(&order, exports, options).unwrap();
            server.listen_unix(&path).unwrap();
            open_doors(&mut server);
            ready.send(()).unwrap();
            server.run(&stop, || {}).unwrap();
        });
        listening.recv().unwrap();
        Self { thread, socket: socket.to_owned() }
    }

    pub(crate) fn connect(&self, export: &str) -> Client {
        Client::connect(&self.socket, export)
    }

    /// Stops the server and waits until all requests are answered and flushed.
    pub(crate) fn stop(self) {
        let thread = self.thread.as_pthread_t() as libc::pthread_t;
        // SAFETY: the thread is running until it is joined; the signal is blocked in it and waits
        // in its descriptor.
        unsafe { libc::pthread_kill(thread, libc::SIGTERM) };
        self.thread.join().unwrap();
    }
}

/// Commands.
pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;

/// Time limit of a reply; a slower server hangs.
const HANGS: Duration = Duration::from_secs(60);

/// A request; a write's bytes are `len` times `fill`.
pub(crate) fn request(
    command: u16,
    flags: u16,
    cookie: u64,
    (offset, len): (u64, u32),
    fill: u8,
) -> Vec<u8> {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend(flags.to_be_bytes());
    request.extend(command.to_be_bytes());
    request.extend(cookie.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(len.to_be_bytes());
    if command == WRITE {
        request.resize(request.len() + len as usize, fill);
    }
    request
}

/// One connection.
pub(crate) struct Client {
    stream: UnixStream,
}

impl Client {
    fn connect(socket: &Path, export: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(HANGS)).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(1u32.to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Self { stream }
    }

    /// Sends a request; a write's bytes are `len` times `fill`.
    pub(crate) fn ask(
        &mut self,
        command: u16,
        flags: u16,
        cookie: u64,
        place: (u64, u32),
        fill: u8,
    ) {
        self.send(&request(command, flags, cookie, place, fill));
    }

    /// Sends requests, in one piece.
    pub(crate) fn send(&mut self, requests: &[u8]) {
        self.stream.write_all(requests).unwrap();
    }

    /// The cookie of the next reply, which must not be an error.
    pub(crate) fn reply(&mut self) -> u64 {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        u64::from_be_bytes(reply[8..].try_into().unwrap())
    }

    /// The data after the reply to a read.
    pub(crate) fn data(&mut self, len: u32) -> Vec<u8> {
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data).unwrap();
        data
    }
}
