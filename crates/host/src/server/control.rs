//! Sockets with one request in, one reply out, then the connection is closed: the control socket,
//! whose requests are lines, and that of the metrics, whose requests are heads of HTTP.
//!
//! The meaning of a request is the answer's affair. Here it is bounded in length and time, and
//! wiped: it may hold a key. A request gets a thread when it is whole.

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

/// Longer lines are refused. The longest key is 8320 hex digits, and the longest name 4096 bytes.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Requests that are answered at a time; more wait for a place.
const ANSWERS_MAX: usize = 8;
/// Pieces of 4 KiB that are read behind a request: as much as four requests of the largest size.
const DISCARDS_MAX: usize = 4 * REQUEST_BYTES_MAX / 4096;
/// How long a client may take for its request, and then for the reply.
const LINE_LIMIT: Duration = Duration::from_secs(10);
/// Clients of a socket that have not sent their request: each has a locked buffer of
/// [`REQUEST_BYTES_MAX`], and the locked memory of a user is 8 MiB by default.
const WAITING: Limits = Limits { clients_max: 16, of_one_peer_max: 16, time: LINE_LIMIT };

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

/// The socket, those who have not sent their request, and the requests that are being answered.
pub(super) struct Control {
    pub(super) listener: Listener,
    framing: Framing,
    answer: Answer,
    pub(super) waiting: Waiting<Request>,
    answering: Threads,
}

impl Control {
    pub(super) fn new(listener: Listener, framing: Framing, answer: Answer, ends: Ends) -> Self {
        let (waiting, answering) = (Waiting::new(WAITING), Threads::new("control", ends));
        Self { listener, framing, answer, waiting, answering }
    }

    pub(super) fn admit(&mut self, now: Instant, socket: Socket, peer: Option<IpAddr>) {
        self.waiting.admit(now, socket, peer, Request::new(self.framing));
    }

    /// Answers whole requests, as far as there are places.
    pub(super) fn answer(&mut self) {
        self.answering.join_ended();
        while self.answering.len() < ANSWERS_MAX
            && let Some((socket, request)) = self.waiting.take_complete()
        {
            let answer = self.answer.clone();
            self.answering.start(socket, move |socket| request.serve(&answer, socket));
        }
    }

    /// No more requests; those that are being answered end.
    pub(super) fn end(mut self) {
        self.answering.stop_receiving();
        self.answering.join();
    }
}

/// What a client has sent of its request.
pub(super) struct Request {
    framing: Framing,
    line: SecretBytes,
    received_bytes: usize,
    /// Its length without what ends it, once it is whole.
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
        // A client that does not read its reply must not keep the place.
        socket.set_send_timeout(LINE_LIMIT);
        let _ = socket.send(&mut [vec]);
        discard(socket);
    }
}

/// Takes what a client has sent behind its request. A socket that is closed with unread bytes
/// resets the connection, and the client loses the reply. Bytes that come later are not waited for.
fn discard(socket: &Socket) {
    let mut bytes = [0; 4096];
    for _ in 0..DISCARDS_MAX {
        let Ok(Some(1..)) = socket.receive_now(&mut bytes) else { return };
    }
}

impl Conversation for Request {
    /// A client that has sent its request may end its side and read the reply.
    const LEAVES_WITH: PollFlags = PollFlags::empty();

    fn go_on(&mut self, socket: &Socket) -> Progress {
        match socket.receive_now(&mut self.line.as_mut_slice()[self.received_bytes..]) {
            Ok(None) => return Progress::WaitsFor(PollFlags::IN),
            // The answer says that it is no request.
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

    /// As of one that is too long.
    fn time_is_up(&mut self) -> Progress {
        Progress::Complete
    }
}
