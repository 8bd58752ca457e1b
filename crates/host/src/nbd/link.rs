//! One connection: requests out, replies in, and its end.
//!
//! No call here blocks. Payload is sent from the memory of operations and received into it, so an
//! operation counts as *used* until its request has a reply and its payload is sent.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use blockyard_protocol::nbd::Errno;
use blockyard_protocol::nbd::client::{Cookie, Event, Piece, Refusal, Remote, Session};
use rustix::net::{RecvFlags, Shutdown, sockopt};

use super::dial::Opened;
use super::ops::{Issue, Ops, Payload};
use super::unflushed::Success;
use super::wire::{Wire, lost};
use crate::file_op::iovec;
use crate::memory::ZEROS;

/// Receive size for data of unknown destination.
const RECEIVE_BYTES: usize = 64 << 10;
/// Receive calls before other connections have their turn.
const RECEIVES_MAX: usize = 32;
/// Limit of requests per send call.
const SEND_REQUESTS_MAX: usize = 64;

/// Reason for giving up a connection.
#[derive(Debug)]
pub(super) struct Loss {
    /// Description.
    pub(super) why: String,
    /// The server has closed the connection, so it will execute no further request of it.
    pub(super) is_dead: bool,
}

/// A request without a reply.
#[derive(Clone, Copy, Debug)]
struct Requested {
    op: u32,
    /// Offset in the operation.
    start_bytes: u64,
    at: Instant,
    success: Success,
}

/// A request that is not completely sent.
#[derive(Debug)]
struct Outgoing {
    op: u32,
    /// At most 32 bytes.
    header: Vec<u8>,
    payload: Payload,
    /// Sent bytes of header and payload.
    sent_bytes: usize,
}

/// A connection in use.
// 15 fields: its socket and session, outgoing and received data, and deadlines.
#[derive(Debug)]
pub(super) struct Link {
    wire: Wire,
    is_unix: bool,
    made: Instant,
    session: Session,
    /// Requests by slot of their cookie.
    requests: Vec<Option<Requested>>,
    out: VecDeque<Outgoing>,
    /// `start..end` is received and not parsed.
    received: Vec<u8>,
    start: usize,
    end: usize,
    /// The server has replied to a request other than with a shutdown.
    pub(super) has_answered: bool,
    /// The server accepts no more requests.
    is_closing: bool,
    /// Time limit for a reply.
    timeout: Duration,
    /// No request exceeds the limit before this time.
    look_at: Option<Instant>,
    /// Emptied after each use; kept for their memory.
    vectors: Vec<libc::iovec>,
    headers: Vec<Vec<u8>>,
}

// SAFETY: the addresses in `vectors` are used only during the call that filled it.
unsafe impl Send for Link {}

impl Link {
    pub(super) fn new(now: Instant, opened: Opened, timeout: Duration) -> Self {
        let Opened { wire, is_unix, session, received: early } = opened;
        let mut received = vec![0; RECEIVE_BYTES];
        received[..early.len()].copy_from_slice(&early);
        Self {
            wire,
            is_unix,
            made: now,
            session,
            requests: Vec::new(),
            out: VecDeque::new(),
            received,
            start: 0,
            end: early.len(),
            has_answered: false,
            is_closing: false,
            timeout,
            look_at: None,
            vectors: Vec::new(),
            headers: Vec::new(),
        }
    }

    pub(super) fn remote(&self) -> &Remote {
        self.session.remote().expect("the export is open")
    }

    /// Number of requests without a reply; `None` if the connection accepts no more.
    pub(super) fn load(&self) -> Option<usize> {
        (!self.is_closing).then(|| self.session.in_flight_count())
    }

    /// Whether data waits to be sent.
    pub(super) fn has_out(&self) -> bool {
        !self.out.is_empty() || self.wire.has_unsent()
    }

    /// Whether replies can be received that no poll reports.
    pub(super) fn has_received(&self) -> bool {
        self.wire.has_received()
    }

    /// Queues a request of an operation.
    pub(super) fn submit(
        &mut self,
        now: Instant,
        op: u32,
        issue: &Issue,
        ops: &mut Ops,
    ) -> Result<(), Refusal> {
        let mut header = self.headers.pop().unwrap_or_default();
        let cookie = self.session.submit(&issue.request, &mut header)?;
        let slot = cookie.slot();
        if slot >= self.requests.len() {
            self.requests.resize(slot + 1, None);
        }
        let success = ops.unflushed.sent(&issue.request, self.remote());
        let start_bytes = issue.start_bytes;
        self.requests[slot] = Some(Requested { op, start_bytes, at: now, success });
        self.look_at.get_or_insert(now + self.timeout);
        ops.use_begins(op);
        if issue.payload.len_bytes() > 0 {
            ops.use_begins(op);
        }
        self.out.push_back(Outgoing { op, header, payload: issue.payload, sent_bytes: 0 });
        Ok(())
    }

    /// Sends as much as the socket accepts. Adds operations that it no longer uses to `unused`.
    pub(super) fn send(&mut self, ops: &mut Ops, unused: &mut Vec<u32>) -> Result<(), Loss> {
        let failed = |error| Loss { why: lost(&error), is_dead: false };
        if self.out.is_empty() && self.wire.has_unsent() {
            self.wire.send_now(&mut []).map_err(failed)?;
        }
        while !self.out.is_empty() {
            self.vectors.clear();
            for outgoing in self.out.iter().take(SEND_REQUESTS_MAX) {
                outgoing.describe(&mut self.vectors);
            }
            match self.wire.send_now(&mut self.vectors).map_err(failed)? {
                0 => return Ok(()),
                sent => self.was_sent(sent, ops, unused),
            }
        }
        Ok(())
    }

    fn was_sent(&mut self, mut sent: usize, ops: &mut Ops, unused: &mut Vec<u32>) {
        while let Some(first) = self.out.front_mut() {
            let left = first.left_bytes();
            if sent < left {
                first.sent_bytes += sent;
                return;
            }
            sent -= left;
            let Outgoing { op, mut header, payload, .. } =
                self.out.pop_front().expect("just looked");
            if payload.len_bytes() > 0 {
                ops.use_ends(op, unused);
            }
            header.clear();
            self.headers.push(header);
        }
    }

    /// Receives available data. Adds operations that it no longer uses to `unused`.
    pub(super) fn receive(&mut self, ops: &mut Ops, unused: &mut Vec<u32>) -> Result<(), Loss> {
        for _ in 0..RECEIVES_MAX {
            self.parse(ops, unused)?;
            if self.is_closing && self.session.in_flight_count() == 0 {
                return Err(Loss { why: "the server is shutting down".into(), is_dead: true });
            }
            let received = match self.session.payload_expected() {
                Some(piece) if self.start == self.end && !self.is_check(&piece, ops) => {
                    self.receive_payload(&piece, ops)
                }
                _ => self.receive_any(),
            };
            match received {
                Ok(Some(0)) => {
                    return Err(Loss { why: self.session.on_eof().to_string(), is_dead: true });
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                // A failure of TLS says nothing about the server's requests in flight.
                Err(error) => {
                    let is_dead = error.kind() != io::ErrorKind::InvalidData;
                    return Err(Loss { why: lost(&error), is_dead });
                }
            }
        }
        self.parse(ops, unused)
    }

    fn receive_any(&mut self) -> io::Result<Option<usize>> {
        self.received.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let received = self.wire.receive_now(&mut self.received[self.end..])?;
        self.end += received.unwrap_or(0);
        Ok(received)
    }

    /// Receives payload directly into its destination.
    fn receive_payload(&mut self, piece: &Piece, ops: &Ops) -> io::Result<Option<usize>> {
        self.vectors.clear();
        let vectors = &mut self.vectors;
        each_of(&self.requests, ops, piece, |base, len_bytes| vectors.push(iovec(base, len_bytes)));
        // The vectors describe memory of a read in flight.
        let received = self.wire.receive_vectors(&mut self.vectors)?;
        if let Some(len_bytes @ 1..) = received {
            self.session.payload_received(len_bytes as u64);
        }
        Ok(received)
    }

    fn is_check(&self, piece: &Piece, ops: &Ops) -> bool {
        ops.get(requested(&self.requests, piece.cookie).op).op.is_check
    }

    fn parse(&mut self, ops: &mut Ops, unused: &mut Vec<u32>) -> Result<(), Loss> {
        // In transmission a session sends nothing on its own.
        let mut nothing = Vec::new();
        loop {
            let bytes = &self.received[self.start..self.end];
            let step = self.session.on_bytes(bytes, &mut nothing);
            self.start += step.consumed;
            match step.event {
                Event::NeedMore => return Ok(()),
                Event::Continue | Event::StartTls | Event::Opened | Event::Extent { .. } => {}
                Event::Payload(piece) => {
                    let mut from = bytes.as_ptr();
                    // SAFETY: the consumed bytes are the piece, and the memory belongs to a read in
                    // flight.
                    each_of(&self.requests, ops, &piece, |base, len_bytes| unsafe {
                        std::ptr::copy_nonoverlapping(from, base, len_bytes);
                        from = from.add(len_bytes);
                    });
                }
                Event::Zeroes(piece) => {
                    // SAFETY: the memory belongs to a read in flight.
                    each_of(&self.requests, ops, &piece, |base, len_bytes| unsafe {
                        base.write_bytes(0, len_bytes);
                    });
                }
                Event::Done { cookie, result } => {
                    let request = self.requests[cookie.slot()].take();
                    let Requested { op, success, .. } = request.expect("a request ends once");
                    let is_refused = result == Err(Errno::Shutdown);
                    self.has_answered |= !is_refused;
                    self.is_closing |= is_refused;
                    if result.is_ok() {
                        ops.unflushed.succeeded(success);
                    }
                    ops.replied(op, self.made, result);
                    ops.use_ends(op, unused);
                }
                Event::Broken => {
                    let failure = self.session.failure().expect("it is broken");
                    return Err(Loss { why: failure.to_string(), is_dead: false });
                }
            }
        }
    }

    /// The loss of the connection, if a request has exceeded the limit.
    pub(super) fn is_late(&mut self, now: Instant) -> Option<Loss> {
        let timeout = self.timeout;
        if self.session.in_flight_count() == 0 {
            self.look_at = None;
            return None;
        }
        if self.look_at.is_some_and(|at| now < at) {
            return None;
        }
        let oldest = self.requests.iter().flatten().map(|requested| requested.at).min();
        self.look_at = oldest.map(|at| at + timeout);
        self.look_at.is_some_and(|at| at <= now).then(|| {
            let why = format!("the server has not answered for {} s", timeout.as_secs());
            Loss { why, is_dead: false }
        })
    }

    /// Time of the next [`Link::is_late`] call.
    pub(super) fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Ends the connection. Requests in flight are lost; operations that may still change data stay
    /// used by the dying connection, if one remains.
    pub(super) fn fail(
        self,
        loss: &Loss,
        until: Instant,
        ops: &mut Ops,
        unused: &mut Vec<u32>,
    ) -> Option<Dying> {
        let Self { wire, is_unix, made, requests, out, .. } = self;
        let socket = wire.into_socket();
        for outgoing in out.iter().filter(|outgoing| outgoing.payload.len_bytes() > 0) {
            ops.use_ends(outgoing.op, unused);
        }
        let mut doubtful = Vec::new();
        for Requested { op, .. } in requests.into_iter().flatten() {
            ops.lost(op, made);
            if loss.is_dead || !ops.get(op).changes_data() {
                ops.use_ends(op, unused);
            } else {
                doubtful.push(op);
            }
        }
        let until = (!is_unix).then_some(until);
        let dying = Dying { socket, is_unix, ops: doubtful, until };
        if dying.ops.is_empty() {
            dying.reset();
            return None;
        }
        // The server reads the end after all sent data, and closes.
        let _ = rustix::net::shutdown(&dying.socket, Shutdown::Write);
        Some(dying)
    }

    /// Closes the connection properly. All requests have completed.
    pub(super) fn close(mut self) {
        let mut out = Vec::new();
        self.session.disconnect(&mut out);
        self.wire.close(&out);
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }
}

impl Outgoing {
    fn left_bytes(&self) -> usize {
        self.header.len() + self.payload.len_bytes() - self.sent_bytes
    }

    /// Describes the unsent rest.
    fn describe(&self, vectors: &mut Vec<libc::iovec>) {
        let header = self.header.get(self.sent_bytes..).unwrap_or_default();
        if !header.is_empty() {
            vectors.push(iovec(header.as_ptr().cast_mut(), header.len()));
        }
        let sent = self.sent_bytes.saturating_sub(self.header.len());
        match self.payload {
            Payload::None => {}
            Payload::Zeros { len_bytes } => {
                vectors.push(iovec(ZEROS.as_ptr().cast_mut(), len_bytes - sent));
            }
            Payload::Memory { memory, skip_bytes, len_bytes } => {
                // SAFETY: this connection uses the operation, so it has not completed.
                unsafe {
                    memory.each(skip_bytes + sent, len_bytes - sent, |base, len_bytes| {
                        vectors.push(iovec(base, len_bytes));
                    });
                }
            }
        }
    }
}

fn requested(requests: &[Option<Requested>], cookie: Cookie) -> &Requested {
    requests[cookie.slot()].as_ref().expect("a piece comes before the end of its request")
}

/// Calls `each` for the destination of a piece. A check has none.
fn each_of(
    requests: &[Option<Requested>],
    ops: &Ops,
    piece: &Piece,
    each: impl FnMut(*mut u8, usize),
) {
    let requested = requested(requests, piece.cookie);
    let op = &ops.get(requested.op).op;
    if op.is_check {
        return;
    }
    let skip_bytes = (requested.start_bytes + piece.start_bytes) as usize;
    // SAFETY: this connection uses the operation, so it has not completed.
    unsafe { op.memory.each(skip_bytes, piece.len_bytes as usize, each) };
}

/// A connection that was given up, on which the server may still have requests that change data.
#[derive(Debug)]
pub(super) struct Dying {
    socket: OwnedFd,
    is_unix: bool,
    /// Operations that it uses.
    ops: Vec<u32>,
    /// Time at which it is given up; `None` means never.
    until: Option<Instant>,
}

impl Dying {
    /// Whether the server has closed the connection, or had enough time.
    pub(super) fn is_dead(&self, now: Instant) -> bool {
        let mut ignored = [0; 4096];
        for _ in 0..RECEIVES_MAX {
            match rustix::net::recv(&self.socket, &mut ignored, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => return true,
            }
        }
        self.until.is_some_and(|until| until <= now)
    }

    /// Time of the next check without any event.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Stops the use of an operation whose client has gone.
    pub(super) fn forget(&mut self, op: u32, ops: &mut Ops, unused: &mut Vec<u32>) {
        let before = self.ops.len();
        self.ops.retain(|own| *own != op);
        (self.ops.len()..before).for_each(|_| ops.use_ends(op, unused));
    }

    /// Releases its operations; the connection is dead.
    pub(super) fn release(mut self, ops: &mut Ops, unused: &mut Vec<u32>) {
        self.ops.drain(..).for_each(|op| ops.use_ends(op, unused));
        self.reset();
    }

    /// Closes the socket, and discards data that has not reached the server.
    fn reset(self) {
        if !self.is_unix {
            let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        }
    }
}

impl AsFd for Dying {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
