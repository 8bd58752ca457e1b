//! One connection: [`Session`].
//!
//! The public interface for a world: bytes in, [`Event`]s out, requests in, bytes out.

use alloc::string::String;
use alloc::vec::Vec;

use super::failure::Failure;
use super::handshake::{Handshake, Progress};
use super::in_flight::{Cookie, InFlight};
use super::remote::Remote;
use super::request::{Refusal, Request, put_disconnect};
use super::transmission::Transmission;
use crate::nbd::export::ExportError;
use crate::nbd::reply::ReplyMode;
use crate::nbd::request::Errno;
use crate::nbd::status::Extent;
use crate::nbd::wire::STRING_MAX_BYTES;

/// Default number of requests in flight, as in the kernel's nbd driver.
const IN_FLIGHT_DEFAULT: u16 = 128;

/// A caller's settings for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the export, at most 4096 bytes without NUL; empty: the server's default.
    pub export_name: String,
    /// Preferred form of replies; the next simpler one is tried if the server does not know it.
    pub mode_max: ReplyMode,
    /// Request `base:allocation`, for BLOCK_STATUS. Requires replies in chunks.
    pub allocation: bool,
    /// Ask for TLS first, and fail without it.
    pub tls: bool,
    /// Greatest number of requests in flight, at least one. Their memory is allocated once.
    pub in_flight_max: u16,
}

impl Settings {
    /// The best mode that the server supports, without block status.
    pub fn new(export_name: impl Into<String>) -> Self {
        Self {
            export_name: export_name.into(),
            mode_max: ReplyMode::Extended,
            allocation: false,
            tls: false,
            in_flight_max: IN_FLIGHT_DEFAULT,
        }
    }
}

/// Result of [`Session::on_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the consumed bytes must not be passed again"]
pub struct Step {
    /// Number of consumed bytes. The rest must be passed again, with later bytes appended.
    pub consumed: usize,
    /// The event.
    pub event: Event,
}

impl Step {
    pub(super) const NEED_MORE: Self = Self { consumed: 0, event: Event::NeedMore };
}

/// A range of a READ's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The READ.
    pub cookie: Cookie,
    /// Offset from the start of the request, and so in the caller's buffer.
    pub start_bytes: u64,
    /// Length. The range lies within the request and is in no other piece.
    pub len_bytes: u64,
}

/// An event on a connection. Every event but `NeedMore`, `Done` and `Broken` consumed at least one
/// byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are necessary: receive. At most 134 bytes in the handshake, and 32 later, must be
    /// passed in one piece.
    NeedMore,
    /// Progress without a result: call again.
    Continue,
    /// The server starts TLS: perform a TLS handshake, then call again without bytes. All later
    /// bytes must come out of TLS.
    StartTls,
    /// The export is open: submit requests. [`Session::remote`] describes it.
    Opened,
    /// Data of a READ: the first `len_bytes` of the passed bytes, which were consumed.
    Payload(Piece),
    /// A range of a READ that is all zeroes, without data.
    Zeroes(Piece),
    /// The state of a BLOCK_STATUS request's next bytes. The first extent starts at the request's
    /// offset, each later one where the last ended; the last may end before the request does.
    Extent {
        /// The BLOCK_STATUS.
        cookie: Cookie,
        /// Length and state of the range.
        extent: Extent,
    },
    /// A request has its reply, and its cookie is free. After a successful READ, every byte was in
    /// exactly one piece. After a failed READ the pieces are void.
    Done {
        /// The request.
        cookie: Cookie,
        /// The server's error; [`Session::message`] has its text.
        result: Result<(), Errno>,
    },
    /// The connection has failed, and [`Session::failure`] gives the reason: send the written
    /// bytes, then disconnect. Requests in flight have no reply.
    Broken,
}

/// The client's end of one connection.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    in_flight: InFlight,
    remote: Option<Remote>,
    /// Whether the server replied ESHUTDOWN, after which no request may be sent.
    shuts_down: bool,
    /// Whether `disconnect` was called.
    said_goodbye: bool,
    failure: Option<Failure>,
}

#[derive(Debug)]
enum Phase {
    Handshake(Handshake),
    Transmission(Transmission),
    Ended,
}

impl Session {
    /// Creates a session for a new connection. The server sends first.
    ///
    /// # Panics
    ///
    /// If `in_flight_max` is zero.
    pub fn new(settings: Settings) -> Result<Self, ExportError> {
        let name = &settings.export_name;
        if name.len() > STRING_MAX_BYTES || name.contains('\0') {
            return Err(ExportError::Text("name"));
        }
        assert!(settings.in_flight_max > 0, "nothing could ever be submitted");
        Ok(Self {
            in_flight: InFlight::new(settings.in_flight_max),
            phase: Phase::Handshake(Handshake::new(settings)),
            remote: None,
            shuts_down: false,
            said_goodbye: false,
            failure: None,
        })
    }

    /// Takes a prefix of `bytes`, appends bytes for the server to `out`, and returns an event.
    ///
    /// Call it again with the unconsumed rest until it returns [`Event::NeedMore`]; it may have an
    /// event even without bytes. After [`Event::Broken`] it returns the same event forever.
    #[inline]
    pub fn on_bytes(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Step {
        match &mut self.phase {
            Phase::Transmission(transmission) => {
                match transmission.on_bytes(bytes, &mut self.in_flight) {
                    Ok(step) => {
                        if let Event::Done { result: Err(Errno::Shutdown), .. } = step.event {
                            self.shuts_down = true;
                        }
                        step
                    }
                    Err(violation) => self.fail(violation.into()),
                }
            }
            _ => self.on_handshake_bytes(bytes, out),
        }
    }

    #[cold]
    fn on_handshake_bytes(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Step {
        let Phase::Handshake(handshake) = &mut self.phase else {
            return Step { consumed: 0, event: Event::Broken };
        };
        match handshake.on_bytes(bytes, out) {
            Ok(Progress::Step(step)) => step,
            Ok(Progress::Open { consumed, remote, context }) => {
                self.phase = Phase::Transmission(Transmission::new(remote.mode, context));
                self.remote = Some(remote);
                Step { consumed, event: Event::Opened }
            }
            Err(failure) => self.fail(failure),
        }
    }

    #[cold]
    fn fail(&mut self, failure: Failure) -> Step {
        self.failure = Some(failure);
        self.phase = Phase::Ended;
        Step { consumed: 0, event: Event::Broken }
    }

    /// The expected payload: the next `len_bytes` bytes of the stream belong to this READ. A caller
    /// that has passed all received bytes may receive the payload straight into the request's
    /// buffer and then report the number of bytes with [`Self::payload_received`].
    #[inline]
    pub fn payload_expected(&self) -> Option<Piece> {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.payload_expected(),
            _ => None,
        }
    }

    /// Reports payload bytes that the caller received itself. They must not be passed to
    /// [`Self::on_bytes`], which must be called next.
    ///
    /// # Panics
    ///
    /// If the number is zero or exceeds the expected payload.
    #[inline]
    pub fn payload_received(&mut self, len_bytes: u64) {
        let Phase::Transmission(transmission) = &mut self.phase else {
            panic!("no payload is expected");
        };
        transmission.payload_received(len_bytes);
    }

    /// Appends a request to `out`. The payload of a WRITE must be sent right after it, all of it,
    /// even if the reply comes before its end.
    pub fn submit(&mut self, request: &Request, out: &mut Vec<u8>) -> Result<Cookie, Refusal> {
        let (Phase::Transmission(_), Some(remote)) = (&self.phase, &self.remote) else {
            return Err(Refusal::NotOpen);
        };
        if self.shuts_down || self.said_goodbye {
            return Err(Refusal::Closing);
        }
        remote.admit(request)?;
        let cookie = self.in_flight.start(*request).ok_or(Refusal::Busy)?;
        request.put_header(remote.mode, cookie.on_wire(), out);
        Ok(cookie)
    }

    /// Appends the disconnect request to `out`, and takes no new requests. Replies to requests in
    /// flight may still come, but a server need not send them: a careful caller waits for them
    /// first. Before the export is open, the handshake is aborted.
    pub fn disconnect(&mut self, out: &mut Vec<u8>) {
        match (&self.phase, &self.remote) {
            (Phase::Handshake(handshake), _) => {
                handshake.put_abort(out);
                let _ = self.fail(Failure::GivenUp);
            }
            (Phase::Transmission(_), Some(remote)) if !self.said_goodbye => {
                put_disconnect(remote.mode, out);
                self.said_goodbye = true;
            }
            _ => {}
        }
    }

    /// Handles the end of the stream. Returns the resulting failure.
    pub fn on_eof(&mut self) -> &Failure {
        let failure = match &self.phase {
            Phase::Handshake(handshake) if handshake.is_export_name() => {
                Failure::ClosedOnExportName
            }
            Phase::Handshake(_) => Failure::ClosedInHandshake,
            _ => Failure::Closed { in_flight: self.in_flight.count() },
        };
        self.phase = Phase::Ended;
        self.failure.get_or_insert(failure)
    }

    /// The export, once it is open. It remains after the connection ends.
    pub fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    /// The final error of the session.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The requests without a reply, by slot. After the end of the connection the server may or may
    /// not have executed them.
    pub fn in_flight(&self) -> impl Iterator<Item = (Cookie, &Request)> {
        self.in_flight.iter()
    }

    /// Number of requests without a reply.
    pub fn in_flight_count(&self) -> usize {
        self.in_flight.count()
    }

    /// The server's message to the last failed request: its beginning in printable form, or empty.
    /// Read it right after [`Event::Done`].
    pub fn message(&self) -> String {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.message.printable(),
            _ => String::new(),
        }
    }
}
