//! Sockets with one request and one reply per connection: the control socket, whose requests are
//! lines, and the metrics socket, whose requests are HTTP heads.
//!
//! The answer function interprets a request. This module limits its length and time, and wipes it,
//! because it may hold a key. A complete request gets a thread.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_crypt::secret::SecretBytes;
use blockyard_protocol::http;
use rustix::event::PollFlags;

use super::listen::Listener;
use super::socket::Socket;
use super::threads::{Ends, Threads};
use super::waiting::{Conversation, Limits, Progress, Waiting};

/// Limit of a line. The longest key has 8320 hex digits, the longest name 4096 bytes.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Limit of concurrent answers; further requests wait.
const ANSWERS_MAX: usize = 8;
/// Limit of 4 KiB reads after a request: four requests of the largest size.
const DISCARDS_MAX: usize = 4 * REQUEST_BYTES_MAX / 4096;
/// Time limit for a client's request, and again for its receipt of the reply.
const LINE_LIMIT: Duration = Duration::from_secs(10);
/// Time for running answers at the end of the server: as for a client that takes its reply.
pub(super) const ANSWERS_LIMIT: Duration = LINE_LIMIT;
/// Limits of clients without a complete request: each has a locked buffer of [`REQUEST_BYTES_MAX`],
/// and a user's locked memory is 8 MiB by default.
const WAITING: Limits = Limits { clients_max: 16, of_one_peer_max: 16, time: LINE_LIMIT };

/// Produces the reply to a request: a line without its newline, or an HTTP head. `None` stands for
/// a request that is too long or incomplete.
pub type Answer = Arc<dyn Fn(Option<&[u8]>) -> Vec<u8> + Send + Sync>;

/// End of a request.
#[derive(Clone, Copy)]
pub(super) enum Framing {
    Line,
    Http,
}

impl Framing {
    /// The end of the request in the received bytes, if it is complete.
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

/// A socket, its clients without a complete request, and the running answers.
pub(super) struct Control {
    pub(super) listener: Listener,
    framing: Framing,
    answer: Answer,
    pub(super) waiting: Waiting<Request>,
    answering: Threads,
}

impl Control {
    pub(super) fn new(listener: Listener, framing: Framing, answer: Answer, ends: Ends) -> Self {
        let waiting = Waiting::new(WAITING);
        let answering = Threads::new("control", ends);
        Self { listener, framing, answer, waiting, answering }
    }

    pub(super) fn admit(&mut self, now: Instant, socket: Socket, peer: Option<IpAddr>) {
        self.waiting.admit(now, socket, peer, Request::new(self.framing));
    }

    /// Starts answers to complete requests, within the limit.
    pub(super) fn answer(&mut self) {
        self.answering.join_ended();
        while self.answering.len() < ANSWERS_MAX
            && let Some((socket, request)) = self.waiting.take_complete()
        {
            let answer = self.answer.clone();
            self.answering.start(socket, 0, move |socket| request.serve(&answer, socket));
        }
    }

    /// Stops accepting requests, and waits for running answers until a time: an answer may wait
    /// for another server or a program.
    pub(super) fn end(mut self, deadline: Instant) {
        self.answering.stop_receiving(|_| true);
        self.answering.join_until(deadline);
    }
}

/// The received part of a client's request.
pub(super) struct Request {
    framing: Framing,
    line: SecretBytes,
    received_bytes: usize,
    /// Length without the terminator, once the request is complete.
    len_bytes: Option<usize>,
}

impl Request {
    fn new(framing: Framing) -> Self {
        let line = SecretBytes::zeroed(framing.bytes_max());
        Self { framing, line, received_bytes: 0, len_bytes: None }
    }

    fn serve(self, answer: &Answer, socket: &Socket) {
        let Self { line, len_bytes, .. } = self;
        let mut reply = answer(len_bytes.map(|len| &line.as_slice()[..len]));
        drop(line);
        let vec = libc::iovec { iov_base: reply.as_mut_ptr().cast(), iov_len: reply.len() };
        // A client that does not read its reply must not block the answer.
        socket.set_send_timeout(LINE_LIMIT);
        let _ = socket.send(&mut [vec]);
        discard(socket);
    }
}

/// Discards bytes after a request. Closing a socket with unread bytes would reset the connection,
/// and the client would lose the reply. Later bytes are not awaited.
fn discard(socket: &Socket) {
    let mut bytes = [0; 4096];
    for _ in 0..DISCARDS_MAX {
        let Ok(Some(1..)) = socket.receive_now(&mut bytes) else { return };
    }
}

impl Conversation for Request {
    /// A client may shut down its sending side and read the reply.
    const LEAVES_WITH: PollFlags = PollFlags::empty();

    fn go_on(&mut self, socket: &Socket) -> Progress {
        match socket.receive_now(&mut self.line.as_mut_slice()[self.received_bytes..]) {
            Ok(None) => return Progress::WaitsFor(PollFlags::IN),
            // The answer function reports the incomplete request.
            Ok(Some(0)) | Err(_) => return Progress::Complete,
            Ok(Some(len)) => self.received_bytes += len,
        }
        let received = &self.line.as_slice()[..self.received_bytes];
        self.len_bytes = self.framing.end(received);
        if self.len_bytes.is_some() || received.len() == self.framing.bytes_max() {
            return Progress::Complete;
        }
        Progress::WaitsFor(PollFlags::IN)
    }

    /// Treated as a request that is too long.
    fn time_is_up(&mut self) -> Progress {
        Progress::Complete
    }
}
