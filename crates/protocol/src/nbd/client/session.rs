//! One connection: [`Session`].
//!
//! This file is what a world sees of it: bytes in, [`Event`]s out, requests in, bytes out.

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

/// As many as the kernel's nbd driver keeps in flight.
const IN_FLIGHT_DEFAULT: u16 = 128;

/// What a caller wants of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The export to open; the server's default if it is empty. At most 4096 bytes, without NUL.
    pub export_name: String,
    /// The best form of replies to ask for; a server that does not know it is asked for the next.
    pub mode_max: ReplyMode,
    /// Ask for `base:allocation`, for BLOCK_STATUS. Needs replies in chunks.
    pub allocation: bool,
    /// Most requests in flight, at least one. Memory for them is taken once.
    pub in_flight_max: u16,
}

impl Settings {
    /// The best that the server can, without block status.
    pub fn new(export_name: impl Into<String>) -> Self {
        Self {
            export_name: export_name.into(),
            mode_max: ReplyMode::Extended,
            allocation: false,
            in_flight_max: IN_FLIGHT_DEFAULT,
        }
    }
}

/// What [`Session::on_bytes`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the consumed bytes must not be passed again"]
pub struct Step {
    /// How many of the bytes are done with. The rest must be passed again, with more behind.
    pub consumed: usize,
    /// What happened.
    pub event: Event,
}

impl Step {
    pub(super) const NEED_MORE: Self = Self { consumed: 0, event: Event::NeedMore };
}

/// Bytes of a READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The READ.
    pub cookie: Cookie,
    /// Where they belong, counted from the start of the request: the place in the caller's buffer.
    pub start_bytes: u64,
    /// How many there are. They lie within the request, and no other piece has them.
    pub len_bytes: u64,
}

/// What happened on a connection. Every event but `NeedMore`, `Done` and `Broken` consumed at least
/// one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The bytes are not enough for anything: receive more. At most 134 bytes in the handshake, and
    /// 32 later, have to lie in one piece.
    NeedMore,
    /// Something was understood: call again.
    Continue,
    /// The export is open: requests can be submitted, and [`Session::remote`] tells which.
    Opened,
    /// Data of a READ: the first `len_bytes` of what was passed, which were consumed.
    Payload(Piece),
    /// A piece of a READ that is all zeroes, for which there is no data.
    Zeroes(Piece),
    /// What is known of a BLOCK_STATUS request's next bytes. The first extent starts where the
    /// request does, each where the one before ended; the last may end before the request does.
    Extent {
        /// The BLOCK_STATUS.
        cookie: Cookie,
        /// Length and state.
        extent: Extent,
    },
    /// A request has its reply, and its cookie is forgotten. Of a READ that succeeded, every byte
    /// was in exactly one piece; of one that failed, the pieces are worth nothing.
    Done {
        /// The request.
        cookie: Cookie,
        /// The server's error. What it says about it is [`Session::message`].
        result: Result<(), Errno>,
    },
    /// Nothing can come any more, and [`Session::failure`] says why: send what was written, then
    /// disconnect. What is in flight has no reply.
    Broken,
}

/// The client's end of one connection.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    in_flight: InFlight,
    remote: Option<Remote>,
    /// The server said ESHUTDOWN, after which it must be given no new requests.
    shuts_down: bool,
    /// `disconnect` was called.
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
    /// A session for a new connection, on which the server speaks first.
    ///
    /// # Panics
    ///
    /// If there may be no request in flight.
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

    /// Takes a prefix of `bytes`, appends to `out` what must be sent, and tells what happened.
    ///
    /// To be called again, with what was not consumed, until it says [`Event::NeedMore`]; it may
    /// have something to tell also without bytes. After [`Event::Broken`] it says the same for
    /// ever.
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

    /// The payload that the stream goes on with, if nothing else comes first: the next `len_bytes`
    /// bytes belong to this READ. A caller that has passed all that it received may receive them
    /// straight into the buffer of the request, and then says how many there were with
    /// [`Self::payload_received`].
    #[inline]
    pub fn payload_expected(&self) -> Option<Piece> {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.payload_expected(),
            _ => None,
        }
    }

    /// So many bytes of the expected payload were received, and are not passed to
    /// [`Self::on_bytes`], which is to be called next.
    ///
    /// # Panics
    ///
    /// If that is nothing, or more than was expected.
    #[inline]
    pub fn payload_received(&mut self, len_bytes: u64) {
        let Phase::Transmission(transmission) = &mut self.phase else {
            panic!("no payload is expected");
        };
        transmission.payload_received(len_bytes);
    }

    /// Appends a request to `out`. The payload of a WRITE has to be sent right behind it, all of
    /// it, also when the reply comes before that is over.
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

    /// Says goodbye: appends it to `out`, and takes no new requests. Replies to what is in flight
    /// may still come, but a server need not send them: a careful caller waits for them first. An
    /// export that is not open yet is given up.
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

    /// The server closed the connection: nothing will come any more. Returns what that means.
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

    /// The export, once it is open. Stays when the connection ends.
    pub fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    /// What ended the session.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The requests without a reply, by slot. When the connection has ended, nobody knows which of
    /// them the server has done.
    pub fn in_flight(&self) -> impl Iterator<Item = (Cookie, &Request)> {
        self.in_flight.iter()
    }

    /// How many requests have no reply yet.
    pub fn in_flight_count(&self) -> usize {
        self.in_flight.count()
    }

    /// What the server said with the last error of a request: its beginning, made printable, or
    /// nothing. Right after [`Event::Done`] that is most likely about this request.
    pub fn message(&self) -> String {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.message.printable(),
            _ => String::new(),
        }
    }
}
