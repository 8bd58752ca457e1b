//! Sockets with one request in, one reply out, then the connection is closed: the control socket,
//! whose requests are lines, and that of the metrics, whose requests are heads of HTTP.
//!
//! What a request says is for who answers. Here it is bounded in length and time, and wiped: it may
//! hold a key.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockyard_crypt::secret::SecretBytes;
use blockyard_export::http;

use super::listen::Listener;
use super::socket::Socket;

/// Longer lines are refused. The longest key is 8320 hex digits, and the longest name 4096 bytes.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Requests at a time; more wait to be accepted.
const REQUESTS_MAX: usize = 8;
/// How long a client may take for its request.
const LINE_LIMIT: Duration = Duration::from_secs(10);

/// Makes the reply to a request: a line without its newline, or a head of HTTP. `None` is one that
/// is too long or did not end.
pub type Answer = Arc<dyn Fn(Option<&[u8]>) -> Vec<u8> + Send + Sync>;

/// Where a request ends.
#[derive(Clone, Copy)]
pub(super) enum Framing {
    Line,
    Http,
}

impl Framing {
    /// The request in what was received so far, once it is whole.
    fn end(self, received: &[u8]) -> Option<usize> {
        match self {
            Self::Line => received.iter().position(|&byte| byte == b'\n'),
            Self::Http => http::end_of_head(received),
        }
    }

    fn bytes_max(self) -> usize {
        match self {
            Self::Line => REQUEST_BYTES_MAX,
            Self::Http => http::HEAD_BYTES_MAX,
        }
    }
}

/// The socket, and the requests that are being answered.
pub(super) struct Control {
    listener: Listener,
    framing: Framing,
    answer: Answer,
    running: Vec<(Arc<Socket>, JoinHandle<()>)>,
}

impl Control {
    pub(super) fn new(listener: Listener, framing: Framing, answer: Answer) -> Self {
        Self { listener, framing, answer, running: Vec::new() }
    }

    /// What becomes readable when somebody asks, as long as there is a place.
    pub(super) fn ready(&self) -> Option<BorrowedFd<'_>> {
        (self.running.len() < REQUESTS_MAX).then(|| self.listener.as_fd())
    }

    pub(super) fn accept(&mut self) {
        let Ok(Some(socket)) = self.listener.accept() else { return };
        let socket = Arc::new(socket);
        let (framing, answer) = (self.framing, self.answer.clone());
        let request = ControlRequest { socket: Arc::clone(&socket), framing, answer };
        let thread = std::thread::Builder::new()
            .name("control".into())
            .stack_size(256 << 10)
            .spawn(move || request.serve());
        // Without a thread the client sees its connection closed.
        if let Ok(thread) = thread {
            self.running.push((socket, thread));
        }
    }

    pub(super) fn join_ended(&mut self) {
        for index in (0..self.running.len()).rev() {
            if self.running[index].1.is_finished() {
                let _ = self.running.swap_remove(index).1.join();
            }
        }
    }

    /// No more requests; those that are being answered end.
    pub(super) fn end(self) {
        for (socket, thread) in self.running {
            socket.stop_receiving();
            let _ = thread.join();
        }
    }
}

/// One connection.
struct ControlRequest {
    socket: Arc<Socket>,
    framing: Framing,
    answer: Answer,
}

impl ControlRequest {
    fn serve(self) {
        let mut line = SecretBytes::zeroed(self.framing.bytes_max());
        let len_bytes = self.receive(line.as_mut_slice());
        let mut reply = (self.answer)(len_bytes.map(|len| &line.as_slice()[..len]));
        drop(line);
        let vec = libc::iovec { iov_base: reply.as_mut_ptr().cast(), iov_len: reply.len() };
        // Who does not wait for the reply has none.
        let _ = self.socket.send(&mut [vec]);
    }

    /// Length of the request that came in time.
    fn receive(&self, line: &mut [u8]) -> Option<usize> {
        let deadline = Instant::now() + LINE_LIMIT;
        let mut len = 0;
        while len < line.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.socket.set_receive_timeout(left);
            let rest = &mut line[len..];
            let received = self.socket.receive(rest.as_mut_ptr(), rest.len());
            let Ok(Some(received @ 1..)) = received else { return None };
            len += received;
            if let Some(end) = self.framing.end(&line[..len]) {
                return Some(end);
            }
        }
        None
    }
}

impl Drop for ControlRequest {
    /// Also when its thread panics: the client must not wait for ever.
    fn drop(&mut self) {
        self.socket.shut_down();
    }
}
