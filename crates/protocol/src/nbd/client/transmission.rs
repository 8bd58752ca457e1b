//! The transmission phase: replies, in any order.
//!
//! ```text
//!   state        input                                      answer      next
//!   Head         simple reply, or a chunk NONE              Done        Head
//!   Head         simple reply to a READ, no error           Continue    Payload
//!   Head         any other chunk                            Continue    Fields
//!   Fields       of data                                    Continue    Payload
//!   Fields       of a hole                                  Zeroes      (end of chunk)
//!   Fields       of a block status                          Continue    Extents
//!   Fields       of an error                                Continue    Message, Tail or end
//!   Payload      bytes                                      Payload     Payload or end
//!   Extents      a descriptor                               Extent      Extents or end
//!   Message      bytes                                      Continue    Message, Tail or end
//!   Tail         offset of the error, fields of later kinds Continue    Tail or end
//!   Done         nothing                                    Done        Head
//!
//!   (end of chunk): Done if it was the final chunk, else Head
//! ```
//!
//! With fewer bytes than necessary (at most 32) the event is NeedMore, and the bytes stay with the
//! caller. The fields of the final chunk decide whether a reply is complete. So a READ with a gap
//! is detected before its last data is returned. A length from the wire is only compared and
//! counted down.

use super::coverage::Part;
use super::failure::Violation;
use super::head::{Chunk, Head};
use super::in_flight::{Cookie, InFlight};
use super::message::Message;
use super::request::Request;
use super::session::{Event, Piece, Step};
use crate::nbd::reply::ReplyMode;
use crate::nbd::request::{Command, Errno};
use crate::nbd::status::Extent;
use crate::nbd::wire::*;

/// Length of the error number and of the message's length.
const ERROR_FIELDS_BYTES: usize = 6;

#[derive(Debug)]
pub(super) struct Transmission {
    state: State,
    mode: ReplyMode,
    /// The id of `base:allocation`.
    context: Option<u32>,
    pub(super) message: Message,
}

/// Request of a chunk, and whether the chunk is the final one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    cookie: Cookie,
    done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Fields { at: At, kind: u16, len_bytes: u64 },
    Payload { at: At, start_bytes: u64, left_bytes: u64 },
    Extents { at: At, left_count: u32, left_bytes: u64 },
    Message { at: At, tail: Tail },
    Tail { at: At, tail: Tail },
    Done(Cookie),
}

/// Fields after the message of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tail {
    /// Whether the fields begin with an offset.
    has_offset: bool,
    left_bytes: u64,
}

impl Transmission {
    pub(super) fn new(mode: ReplyMode, context: Option<u32>) -> Self {
        Self { state: State::Head, mode, context, message: Message::default() }
    }

    #[inline]
    pub(super) fn on_bytes(
        &mut self,
        bytes: &[u8],
        in_flight: &mut InFlight,
    ) -> Result<Step, Violation> {
        match self.state {
            State::Head => self.on_head(bytes, in_flight),
            State::Fields { at, kind, len_bytes } => match kind {
                REPLY_TYPE_OFFSET_DATA => self.on_data(bytes, at, len_bytes - 8, in_flight),
                REPLY_TYPE_OFFSET_HOLE => self.on_hole(bytes, at, in_flight),
                REPLY_TYPE_BLOCK_STATUS | REPLY_TYPE_BLOCK_STATUS_EXT => {
                    self.on_status(bytes, at, len_bytes, in_flight)
                }
                _ => self.on_error(bytes, at, (kind, len_bytes), in_flight),
            },
            State::Payload { at, start_bytes, left_bytes } => {
                let len_bytes = left_bytes.min(bytes.len() as u64);
                if len_bytes == 0 {
                    return Ok(Step::NEED_MORE);
                }
                self.payload_received(len_bytes);
                let piece = Piece { cookie: at.cookie, start_bytes, len_bytes };
                Ok(Step { consumed: len_bytes as usize, event: Event::Payload(piece) })
            }
            State::Extents { at, left_count, left_bytes } => {
                self.on_extent(bytes, at, left_count, left_bytes)
            }
            State::Message { at, tail } => {
                let taken = self.message.on_bytes(bytes);
                if self.message.is_complete() {
                    self.state = tail_of(at, tail);
                }
                Ok(went_on(taken))
            }
            State::Tail { at, tail } => self.on_tail(bytes, at, tail, in_flight),
            State::Done(cookie) => {
                self.state = State::Head;
                Ok(done(0, cookie, in_flight))
            }
        }
    }

    /// The payload that comes next in the stream.
    #[inline]
    pub(super) fn payload_expected(&self) -> Option<Piece> {
        match self.state {
            State::Payload { at, start_bytes, left_bytes } => {
                Some(Piece { cookie: at.cookie, start_bytes, len_bytes: left_bytes })
            }
            _ => None,
        }
    }

    /// See [`super::Session::payload_received`].
    #[inline]
    pub(super) fn payload_received(&mut self, len_bytes: u64) {
        let State::Payload { at, start_bytes, left_bytes } = self.state else {
            panic!("no payload is expected");
        };
        assert!(len_bytes > 0 && len_bytes <= left_bytes, "that was more than the payload");
        self.state = match left_bytes - len_bytes {
            0 => end_of_chunk(at),
            left_bytes => State::Payload { at, start_bytes: start_bytes + len_bytes, left_bytes },
        };
    }

    #[inline]
    fn on_head(&mut self, bytes: &[u8], in_flight: &mut InFlight) -> Result<Step, Violation> {
        match Head::parse(self.mode, bytes)? {
            None => Ok(Step::NEED_MORE),
            Some((Head::Simple { error, cookie }, consumed)) => {
                self.on_simple(error, cookie, consumed, in_flight)
            }
            Some((Head::Chunk(chunk), consumed)) => self.on_chunk(&chunk, consumed, in_flight),
        }
    }

    fn on_simple(
        &mut self,
        error: u32,
        cookie: u64,
        consumed: usize,
        in_flight: &mut InFlight,
    ) -> Result<Step, Violation> {
        let (cookie, waiting) = in_flight.find(cookie)?;
        let is_read = waiting.request.command == Command::Read;
        if is_read && self.mode != ReplyMode::Simple {
            return Err(Violation::SimpleReplyToRead);
        }
        if waiting.has_chunks {
            return Err(Violation::SimpleReplyToChunks);
        }
        if error != 0 {
            waiting.error = Some(Errno::from_code(error));
            return Ok(done(consumed, cookie, in_flight));
        }
        if !is_read {
            in_flight.check_complete(cookie)?;
            return Ok(done(consumed, cookie, in_flight));
        }
        let left_bytes = waiting.request.len_bytes;
        in_flight.cover(cookie, Part { start_bytes: 0, end_bytes: left_bytes })?;
        let at = At { cookie, done: true };
        self.state = State::Payload { at, start_bytes: 0, left_bytes };
        Ok(went_on(consumed))
    }

    #[inline]
    fn on_chunk(
        &mut self,
        chunk: &Chunk,
        consumed: usize,
        in_flight: &mut InFlight,
    ) -> Result<Step, Violation> {
        let (cookie, waiting) = in_flight.find(chunk.cookie)?;
        chunk.check(self.mode, &waiting.request)?;
        waiting.has_chunks = true;
        if chunk.kind == REPLY_TYPE_NONE {
            in_flight.check_complete(cookie)?;
            return Ok(done(consumed, cookie, in_flight));
        }
        let at = At { cookie, done: chunk.done };
        self.state = State::Fields { at, kind: chunk.kind, len_bytes: chunk.len_bytes };
        Ok(went_on(consumed))
    }

    #[inline]
    fn on_data(
        &mut self,
        bytes: &[u8],
        at: At,
        left_bytes: u64,
        in_flight: &mut InFlight,
    ) -> Result<Step, Violation> {
        let Some(fields) = bytes.first_chunk::<8>() else { return Ok(Step::NEED_MORE) };
        let start_bytes = cover(in_flight, at, be64(fields, 0), left_bytes)?;
        self.state = State::Payload { at, start_bytes, left_bytes };
        Ok(went_on(8))
    }

    fn on_hole(
        &mut self,
        bytes: &[u8],
        at: At,
        in_flight: &mut InFlight,
    ) -> Result<Step, Violation> {
        let Some(fields) = bytes.first_chunk::<12>() else { return Ok(Step::NEED_MORE) };
        let len_bytes = u64::from(be32(fields, 8));
        let start_bytes = cover(in_flight, at, be64(fields, 0), len_bytes)?;
        self.state = end_of_chunk(at);
        let piece = Piece { cookie: at.cookie, start_bytes, len_bytes };
        Ok(Step { consumed: 12, event: Event::Zeroes(piece) })
    }

    /// Parses the context id, and with extended headers the number of descriptors.
    fn on_status(
        &mut self,
        bytes: &[u8],
        at: At,
        len_bytes: u64,
        in_flight: &mut InFlight,
    ) -> Result<Step, Violation> {
        let extended = self.mode == ReplyMode::Extended;
        let (fields_bytes, descriptor_bytes) = if extended { (8, 16) } else { (4, 8) };
        let Some(fields) = bytes.get(..fields_bytes) else { return Ok(Step::NEED_MORE) };
        let context = be32(fields, 0);
        if self.context != Some(context) {
            return Err(Violation::ContextId(context));
        }
        let count = (len_bytes - fields_bytes as u64) / descriptor_bytes;
        let count = u32::try_from(count).expect("the length of a status chunk is bounded");
        let told = if extended { be32(fields, 4) } else { count };
        let waiting = in_flight.waiting(at.cookie);
        if told != count || (waiting.request.req_one && count != 1) {
            return Err(Violation::DescriptorCount(told));
        }
        if waiting.has_status {
            return Err(Violation::StatusCount);
        }
        waiting.has_status = true;
        let left_bytes = waiting.request.len_bytes;
        self.state = State::Extents { at, left_count: count, left_bytes };
        Ok(went_on(fields_bytes))
    }

    /// Parses an extent. The last one may reach past the request and is cut there.
    fn on_extent(
        &mut self,
        bytes: &[u8],
        at: At,
        left_count: u32,
        left_bytes: u64,
    ) -> Result<Step, Violation> {
        let (consumed, len_bytes, flags) = if self.mode == ReplyMode::Extended {
            let Some(fields) = bytes.first_chunk::<16>() else { return Ok(Step::NEED_MORE) };
            (16, be64(fields, 0), be64(fields, 8))
        } else {
            let Some(fields) = bytes.first_chunk::<8>() else { return Ok(Step::NEED_MORE) };
            (8, u64::from(be32(fields, 0)), u64::from(be32(fields, 4)))
        };
        if len_bytes == 0 || left_bytes == 0 {
            return Err(Violation::ExtentRange);
        }
        let extent = Extent {
            len_bytes: len_bytes.min(left_bytes),
            hole: flags & u64::from(STATE_HOLE) != 0,
            zero: flags & u64::from(STATE_ZERO) != 0,
        };
        self.state = match left_count - 1 {
            0 => end_of_chunk(at),
            left_count => {
                State::Extents { at, left_count, left_bytes: left_bytes - extent.len_bytes }
            }
        };
        Ok(Step { consumed, event: Event::Extent { cookie: at.cookie, extent } })
    }

    /// Parses the error number and the length of the message.
    #[cold]
    fn on_error(
        &mut self,
        bytes: &[u8],
        at: At,
        (kind, len_bytes): (u16, u64),
        in_flight: &mut InFlight,
    ) -> Result<Step, Violation> {
        let Some(fields) = bytes.first_chunk::<ERROR_FIELDS_BYTES>() else {
            return Ok(Step::NEED_MORE);
        };
        let code = be32(fields, 0);
        let message_bytes = be16(fields, 4);
        let has_offset = kind == REPLY_TYPE_ERROR_OFFSET;
        let behind_bytes = len_bytes - ERROR_FIELDS_BYTES as u64;
        let room_bytes = behind_bytes - if has_offset { 8 } else { 0 };
        if u64::from(message_bytes) > room_bytes.min(STRING_MAX_BYTES as u64) {
            return Err(Violation::MessageLen(message_bytes));
        }
        if code == 0 {
            return Err(Violation::ErrorZero);
        }
        in_flight.waiting(at.cookie).error.get_or_insert(Errno::from_code(code));
        let tail = Tail { has_offset, left_bytes: behind_bytes - u64::from(message_bytes) };
        self.message.begin(usize::from(message_bytes));
        self.state = match message_bytes {
            0 => tail_of(at, tail),
            _ => State::Message { at, tail },
        };
        Ok(went_on(ERROR_FIELDS_BYTES))
    }

    /// Parses the offset of the error. The offset is unused, but must be within the request.
    #[cold]
    fn on_tail(
        &mut self,
        bytes: &[u8],
        at: At,
        tail: Tail,
        in_flight: &mut InFlight,
    ) -> Result<Step, Violation> {
        let taken = if tail.has_offset {
            let Some(fields) = bytes.first_chunk::<8>() else { return Ok(Step::NEED_MORE) };
            part(&in_flight.waiting(at.cookie).request, be64(fields, 0), 1)?;
            8
        } else {
            tail.left_bytes.min(bytes.len() as u64)
        };
        let left_bytes = tail.left_bytes - taken;
        self.state = tail_of(at, Tail { has_offset: false, left_bytes });
        Ok(went_on(taken as usize))
    }
}

/// The part that a content chunk answers, relative to the start of its request.
#[inline]
fn part(request: &Request, offset_bytes: u64, len_bytes: u64) -> Result<Part, Violation> {
    let violation = Violation::ChunkRange { offset_bytes, len_bytes };
    let start_bytes = offset_bytes.checked_sub(request.offset_bytes).ok_or(violation)?;
    let room_bytes = request.len_bytes.saturating_sub(start_bytes);
    if !(1..=room_bytes).contains(&len_bytes) {
        return Err(violation);
    }
    Ok(Part { start_bytes, end_bytes: start_bytes + len_bytes })
}

/// Accepts a content chunk and returns its start in its request.
#[inline]
fn cover(
    in_flight: &mut InFlight,
    at: At,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<u64, Violation> {
    let part = part(&in_flight.waiting(at.cookie).request, offset_bytes, len_bytes)?;
    in_flight.cover(at.cookie, part)?;
    if at.done {
        in_flight.check_complete(at.cookie)?;
    }
    Ok(part.start_bytes)
}

#[inline]
fn end_of_chunk(at: At) -> State {
    if at.done { State::Done(at.cookie) } else { State::Head }
}

fn tail_of(at: At, tail: Tail) -> State {
    if tail.left_bytes == 0 { end_of_chunk(at) } else { State::Tail { at, tail } }
}

/// The step for consumed bytes; without any, more are necessary.
#[inline]
fn went_on(consumed: usize) -> Step {
    let event = if consumed == 0 { Event::NeedMore } else { Event::Continue };
    Step { consumed, event }
}

#[inline]
fn done(consumed: usize, cookie: Cookie, in_flight: &mut InFlight) -> Step {
    Step { consumed, event: Event::Done { cookie, result: in_flight.end(cookie) } }
}
