//! The transmission phase: request headers and the payload of writes.
//!
//! ```text
//!   state      input                                         answer            next
//!   Header     complete header, request is fine              Request           Header
//!   Header     ... a WRITE                                   Request           Payload
//!   Header     ... refused, or nothing to do (length 0)      reply, Continue   Header
//!   Header     ... refused, and payload follows              Continue          Discard
//!   Header     DISC                                          Closed            Ended
//!   Header     wrong magic, payload beyond all bounds        Broken            Ended
//!   Payload    a piece, more to come                         Payload           Payload
//!   Payload    the last piece                                Payload(last)     Header
//!   Discard    bytes, more to come                           Continue          Discard
//!   Discard    the last bytes                                reply, Continue   Header
//!   Ended      anything                                      the same again    Ended
//! ```
//!
//! With less than a header, a piece or (BLOCK_STATUS with a payload) 44 bytes the event is
//! NeedMore, and the bytes stay with the caller. Payload is neither copied nor collected. A length
//! from the wire is only counted down.

use alloc::vec::Vec;

use super::export::Export;
use super::reply::{Answered, ReplyMode};
use super::request::{Command, Contexts, Errno, Request};
use super::session::{Event, Piece, Step, Violation};
use super::status::{ALLOCATION_ID, DIRTY_ID};
use super::wire::*;

const COMPACT_HEADER_BYTES: usize = 28;
const EXTENDED_HEADER_BYTES: usize = 32;
/// Payload of BLOCK_STATUS before the ids: the effect length.
const STATUS_LEN_BYTES: usize = 8;
/// Payload of BLOCK_STATUS with one id and with two, because there are two contexts.
const STATUS_PAYLOADS_BYTES: [usize; 2] = [12, 16];

/// Longest refused payload that is read and discarded; the export's limit if that is larger. A
/// client with a longer one is disconnected.
const DISCARD_MAX_BYTES: u64 = 64 << 20;

/// A data chunk has 32 bits for its length, which includes 8 bytes for the offset.
const READ_MAX_BYTES: u64 = u32::MAX as u64 - 8;

/// Valid flags of each command; FUA is valid everywhere.
const COMMAND_FLAGS: [u16; 8] = [
    CMD_FLAG_FUA | CMD_FLAG_DF,
    CMD_FLAG_FUA | CMD_FLAG_PAYLOAD_LEN,
    CMD_FLAG_FUA,
    CMD_FLAG_FUA,
    CMD_FLAG_FUA,
    CMD_FLAG_FUA,
    CMD_FLAG_FUA | CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
    CMD_FLAG_FUA | CMD_FLAG_REQ_ONE | CMD_FLAG_PAYLOAD_LEN,
];

/// Result of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) export: usize,
    pub(super) mode: ReplyMode,
    /// The contexts that were selected for this export.
    pub(super) contexts: Contexts,
    /// Whether the client asked for block sizes and so respects them.
    pub(super) sizes_known: bool,
}

impl Opening {
    pub(super) fn has_contexts(&self) -> bool {
        self.contexts != Contexts::NONE
    }
}

#[derive(Debug)]
pub(super) struct Transmission {
    state: State,
    pub(super) opening: Opening,
    size_bytes: u64,
    /// `block_min_bytes - 1`.
    unaligned_mask: u64,
    /// Longest served READ or WRITE.
    payload_max_bytes: u64,
    /// Longest payload that is read.
    discard_max_bytes: u64,
    /// Flags that are valid in this mode.
    known_flags: u16,
    read_only: bool,
    can_trim: bool,
    can_fast_zero: bool,
    /// Limit of the variable part of chunks.
    pub(super) chunk_max_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Payload { offset_bytes: u64, left_bytes: u64 },
    Discard { left_bytes: u64, to: Answered, refusal: Refusal },
    Ended(Event),
}

/// A request header, unchecked.
#[derive(Clone, Copy)]
struct Header {
    flags: u16,
    command: u16,
    cookie: u64,
    offset_bytes: u64,
    len_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refusal {
    errno: Errno,
    text: &'static str,
}

const fn refuse(errno: Errno, text: &'static str) -> Refusal {
    Refusal { errno, text }
}

impl Transmission {
    pub(super) fn new(export: &Export, opening: Opening) -> Self {
        let advertised = u64::from(export.block_max_bytes);
        let payload_max_bytes = if opening.sizes_known {
            advertised
        } else {
            advertised.max(u64::from(DEFAULT_PAYLOAD_MAX_BYTES))
        };
        let mut known_flags = !0;
        if opening.mode == ReplyMode::Simple {
            known_flags &= !CMD_FLAG_DF;
        }
        if opening.mode != ReplyMode::Extended {
            known_flags &= !CMD_FLAG_PAYLOAD_LEN;
        }
        Self {
            state: State::Header,
            opening,
            size_bytes: export.size_bytes,
            // A client that has not asked for block sizes counts in bytes.
            unaligned_mask: if opening.sizes_known {
                u64::from(export.block_min_bytes) - 1
            } else {
                0
            },
            payload_max_bytes,
            discard_max_bytes: payload_max_bytes.max(DISCARD_MAX_BYTES),
            known_flags,
            read_only: export.read_only,
            can_trim: export.can_trim,
            can_fast_zero: export.can_fast_zero,
            chunk_max_bytes: export.block_max_bytes,
        }
    }

    #[inline]
    pub(super) fn on_bytes(&mut self, bytes: &[u8], piece: Piece, out: &mut Vec<u8>) -> Step {
        match self.state {
            State::Header => self.on_header(bytes, out),
            State::Payload { offset_bytes, left_bytes } => {
                self.on_payload(bytes, piece, offset_bytes, left_bytes)
            }
            State::Discard { left_bytes, to, refusal } => {
                let taken = left_bytes.min(bytes.len() as u64);
                if taken == 0 {
                    return Step::NEED_MORE;
                }
                self.discard(left_bytes - taken, to, refusal, out);
                Step { consumed: taken as usize, event: Event::Continue }
            }
            State::Ended(event) => Step { consumed: 0, event },
        }
    }

    #[inline]
    fn on_header(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Step {
        let extended = self.opening.mode == ReplyMode::Extended;
        let parsed = if extended { Header::extended(bytes) } else { Header::compact(bytes) };
        let header = match parsed {
            Ok(Some(header)) => header,
            Ok(None) => return Step::NEED_MORE,
            Err(magic) => return self.end(0, Event::Broken(Violation::RequestMagic(magic))),
        };
        let consumed = if extended { EXTENDED_HEADER_BYTES } else { COMPACT_HEADER_BYTES };
        if header.command == CMD_DISC {
            return self.end(consumed, Event::Closed);
        }
        // The flag is mandatory for an extended WRITE, but QEMU (10.0) omits it, and the data
        // follows.
        let has_payload =
            header.command == CMD_WRITE || extended && header.flags & CMD_FLAG_PAYLOAD_LEN != 0;
        if has_payload {
            return self.on_header_with_payload(&header, bytes, consumed, out);
        }
        let event = match self.admit(&header) {
            Ok(request) if request.len_bytes > 0 || request.command == Command::Flush => {
                Event::Request(request)
            }
            Ok(request) => {
                self.opening.mode.put_reply(Answered::from(&request), None, out);
                Event::Continue
            }
            Err(refusal) => {
                self.opening.mode.put_error(header.answered(), refusal.errno, refusal.text, out);
                Event::Continue
            }
        };
        Step { consumed, event }
    }

    /// A WRITE, a BLOCK_STATUS with a filter, or a surplus payload.
    #[inline]
    fn on_header_with_payload(
        &mut self,
        header: &Header,
        bytes: &[u8],
        consumed: usize,
        out: &mut Vec<u8>,
    ) -> Step {
        let Header { len_bytes, offset_bytes, .. } = *header;
        if len_bytes > self.discard_max_bytes {
            return self.end(consumed, Event::Broken(Violation::PayloadTooLong(len_bytes)));
        }
        let fits = |payload: &usize| *payload as u64 == len_bytes;
        let payload = STATUS_PAYLOADS_BYTES.into_iter().find(fits);
        if let Some(payload) = payload.filter(|_| header.command == CMD_BLOCK_STATUS) {
            return match bytes[consumed..].get(..payload) {
                Some(payload) => self.on_status_payload(header, payload, out),
                None => Step::NEED_MORE,
            };
        }
        let refusal = match self.admit(header) {
            Ok(request) if request.command == Command::Write && len_bytes > 0 => {
                self.state = State::Payload { offset_bytes, left_bytes: len_bytes };
                return Step { consumed, event: Event::Request(request) };
            }
            Ok(request) if request.command == Command::Write => {
                self.opening.mode.put_reply(Answered::from(&request), None, out);
                return Step { consumed, event: Event::Continue };
            }
            Ok(_) => refuse(Errno::Inval, "payload does not list the negotiated contexts"),
            Err(refusal) => refusal,
        };
        self.discard(len_bytes, header.answered(), refusal, out);
        Step { consumed, event: Event::Continue }
    }

    /// BLOCK_STATUS with a payload, which replaces the length and selects contexts.
    fn on_status_payload(&mut self, header: &Header, payload: &[u8], out: &mut Vec<u8>) -> Step {
        let consumed = EXTENDED_HEADER_BYTES + payload.len();
        let (len_bytes, ids) = payload.split_first_chunk::<STATUS_LEN_BYTES>().expect("it has ids");
        let filtered = Header { len_bytes: be64(len_bytes, 0), ..*header };
        let admitted = match self.contexts_of(ids) {
            Some(contexts) => self.admit(&filtered).map(|request| Request { contexts, ..request }),
            None => Err(refuse(Errno::Inval, "a metadata context id is unknown or given twice")),
        };
        let event = match admitted {
            Ok(request) => Event::Request(request),
            Err(refusal) => {
                self.opening.mode.put_error(header.answered(), refusal.errno, refusal.text, out);
                Event::Continue
            }
        };
        Step { consumed, event }
    }

    /// The contexts with these ids; `None` if one was not selected, or is there twice.
    fn contexts_of(&self, ids: &[u8]) -> Option<Contexts> {
        let mut contexts = Contexts::NONE;
        for id in ids.as_chunks::<4>().0 {
            let (context, is_selected) = match be32(id, 0) {
                ALLOCATION_ID => (&mut contexts.allocation, self.opening.contexts.allocation),
                DIRTY_ID => (&mut contexts.dirty, self.opening.contexts.dirty),
                _ => return None,
            };
            if *context || !is_selected {
                return None;
            }
            *context = true;
        }
        Some(contexts)
    }

    /// Takes the next piece: all available bytes, up to a multiple of the alignment or the end of
    /// the request.
    #[inline]
    fn on_payload(&mut self, bytes: &[u8], piece: Piece, offset_bytes: u64, left: u64) -> Step {
        let here = bytes.len().min(piece.max_bytes) as u64;
        let last = here >= left;
        let mut len_bytes = here.min(left);
        if !last {
            // Relative to the alignment before the piece, because the export's end may be near
            // u64::MAX.
            let over = offset_bytes.wrapping_add(len_bytes) & (piece.align_bytes as u64 - 1);
            if len_bytes <= over {
                return Step::NEED_MORE;
            }
            len_bytes -= over;
        }
        self.state = if last {
            State::Header
        } else {
            State::Payload { offset_bytes: offset_bytes + len_bytes, left_bytes: left - len_bytes }
        };
        let consumed = len_bytes as usize;
        Step { consumed, event: Event::Payload { offset_bytes, len_bytes: consumed, last } }
    }

    /// Discards more of a payload, or replies after its end.
    fn discard(&mut self, left_bytes: u64, to: Answered, refusal: Refusal, out: &mut Vec<u8>) {
        if left_bytes > 0 {
            self.state = State::Discard { left_bytes, to, refusal };
        } else {
            self.state = State::Header;
            self.opening.mode.put_error(to, refusal.errno, refusal.text, out);
        }
    }

    fn end(&mut self, consumed: usize, event: Event) -> Step {
        self.state = State::Ended(event);
        Step { consumed, event }
    }

    /// All checks before a world gets a request.
    #[inline]
    fn admit(&self, header: &Header) -> Result<Request, Refusal> {
        let command = match header.command {
            CMD_READ => Command::Read,
            CMD_WRITE => Command::Write,
            CMD_FLUSH => Command::Flush,
            CMD_TRIM => Command::Trim,
            CMD_CACHE => Command::Cache,
            CMD_WRITE_ZEROES => Command::WriteZeroes,
            CMD_BLOCK_STATUS => Command::BlockStatus,
            _ => return Err(refuse(Errno::Inval, "unknown command")),
        };
        let flags = header.flags;
        let allowed = COMMAND_FLAGS[usize::from(header.command)] & self.known_flags;
        if flags & !allowed != 0 {
            return Err(refuse(Errno::Inval, "flag is not valid for this command"));
        }
        let Header { cookie, offset_bytes, len_bytes, .. } = *header;
        if matches!(command, Command::Write | Command::Trim | Command::WriteZeroes)
            && self.read_only
        {
            return Err(refuse(Errno::Perm, "export is read-only"));
        }
        if offset_bytes > self.size_bytes || len_bytes > self.size_bytes - offset_bytes {
            return Err(out_of_range(command));
        }
        if (offset_bytes | len_bytes) & self.unaligned_mask != 0 {
            return Err(refuse(Errno::Inval, "range is not a multiple of the minimum block size"));
        }
        self.admit_command(command, header)?;
        Ok(Request {
            cookie,
            command,
            offset_bytes,
            len_bytes,
            fua: flags & CMD_FLAG_FUA != 0,
            no_hole: flags & CMD_FLAG_NO_HOLE != 0,
            fast_zero: flags & CMD_FLAG_FAST_ZERO != 0,
            dont_fragment: flags & CMD_FLAG_DF != 0,
            req_one: flags & CMD_FLAG_REQ_ONE != 0,
            contexts: match command {
                Command::BlockStatus => self.opening.contexts,
                _ => Contexts::NONE,
            },
        })
    }

    /// Checks of single commands.
    #[inline]
    fn admit_command(&self, command: Command, header: &Header) -> Result<(), Refusal> {
        let Header { flags, offset_bytes, len_bytes, .. } = *header;
        match command {
            Command::Read if len_bytes > self.payload_max_bytes.min(READ_MAX_BYTES) => {
                // EOVERFLOW is specified for replies in chunks only.
                let errno = match self.opening.mode {
                    ReplyMode::Simple => Errno::Inval,
                    _ => Errno::Overflow,
                };
                Err(refuse(errno, "read is longer than the maximum payload"))
            }
            Command::Write if len_bytes > self.payload_max_bytes => {
                Err(refuse(Errno::Inval, "write is longer than the maximum payload"))
            }
            Command::Flush if offset_bytes | len_bytes != 0 => {
                Err(refuse(Errno::Inval, "flush takes no range"))
            }
            Command::Trim if !self.can_trim => {
                Err(refuse(Errno::Inval, "trim is not offered by this export"))
            }
            // Without holes, zeroes are written, which is no faster than a write.
            Command::WriteZeroes
                if flags & CMD_FLAG_FAST_ZERO != 0
                    && (!self.can_fast_zero || flags & CMD_FLAG_NO_HOLE != 0) =>
            {
                Err(refuse(Errno::NotSup, "zeroes are not faster than a write here"))
            }
            Command::BlockStatus if !self.opening.has_contexts() => {
                Err(refuse(Errno::Inval, "no metadata context was negotiated for this export"))
            }
            Command::BlockStatus if len_bytes == 0 => {
                Err(refuse(Errno::Inval, "block status of an empty range"))
            }
            _ => Ok(()),
        }
    }
}

/// The error for a range past the end of the export, by command.
#[cold]
fn out_of_range(command: Command) -> Refusal {
    let errno = match command {
        Command::Write | Command::WriteZeroes => Errno::NoSpc,
        _ => Errno::Inval,
    };
    refuse(errno, "range reaches past the end of the export")
}

impl Header {
    /// Parses a header; `None` if bytes are missing. A wrong magic is an error even in an
    /// incomplete header.
    #[inline]
    fn compact(bytes: &[u8]) -> Result<Option<Self>, u32> {
        let Some(header) = bytes.first_chunk::<COMPACT_HEADER_BYTES>() else {
            return check_magic(bytes, REQUEST_MAGIC).map(|()| None);
        };
        check_magic(header, REQUEST_MAGIC)?;
        Ok(Some(Self {
            flags: be16(header, 4),
            command: be16(header, 6),
            cookie: be64(header, 8),
            offset_bytes: be64(header, 16),
            len_bytes: u64::from(be32(header, 24)),
        }))
    }

    /// See [`Self::compact`].
    #[inline]
    fn extended(bytes: &[u8]) -> Result<Option<Self>, u32> {
        let Some(header) = bytes.first_chunk::<EXTENDED_HEADER_BYTES>() else {
            return check_magic(bytes, EXTENDED_REQUEST_MAGIC).map(|()| None);
        };
        check_magic(header, EXTENDED_REQUEST_MAGIC)?;
        Ok(Some(Self {
            flags: be16(header, 4),
            command: be16(header, 6),
            cookie: be64(header, 8),
            offset_bytes: be64(header, 16),
            len_bytes: be64(header, 24),
        }))
    }

    fn answered(&self) -> Answered {
        Answered { cookie: self.cookie, offset_bytes: self.offset_bytes }
    }
}

#[inline]
fn check_magic(bytes: &[u8], expected: u32) -> Result<(), u32> {
    match bytes.first_chunk::<4>() {
        Some(magic) if be32(magic, 0) != expected => Err(be32(magic, 0)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Answered = Answered { cookie: 7, offset_bytes: 0 };
    const REFUSAL: Refusal = refuse(Errno::Inval, "why");
    const DISCARD: State = State::Discard { left_bytes: 5, to: TO, refusal: REFUSAL };
    const PAYLOAD: State = State::Payload { offset_bytes: 10, left_bytes: 5 };

    fn at(state: State) -> Transmission {
        let export = Export::new("disk", 1 << 40);
        let contexts = Contexts { allocation: true, dirty: false };
        let opening =
            Opening { export: 0, mode: ReplyMode::Extended, contexts, sizes_known: false };
        Transmission { state, ..Transmission::new(&export, opening) }
    }

    fn header(flags: u16, command: u16, offset_bytes: u64, len_bytes: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put32(EXTENDED_REQUEST_MAGIC);
        bytes.put16(flags);
        bytes.put16(command);
        bytes.put64(7);
        bytes.put64(offset_bytes);
        bytes.put64(len_bytes);
        bytes
    }

    /// One call: the step, whether there was an answer, and the state after it.
    fn edge(from: State, bytes: &[u8]) -> (Step, bool, State) {
        let mut transmission = at(from);
        let mut out = Vec::new();
        let piece = Piece { align_bytes: 1, max_bytes: 4096 };
        let step = transmission.on_bytes(bytes, piece, &mut out);
        (step, !out.is_empty(), transmission.state)
    }

    fn go_on(consumed: usize) -> Step {
        Step { consumed, event: Event::Continue }
    }

    #[test]
    fn edges_of_header_that_reach_the_world() {
        let bytes = header(0, CMD_READ, 0, 512);
        assert_eq!(edge(State::Header, &bytes[..31]), (Step::NEED_MORE, false, State::Header));
        let (step, answered, state) = edge(State::Header, &bytes);
        assert!(matches!(step, Step { consumed: 32, event: Event::Request(_) }));
        assert_eq!((answered, state), (false, State::Header));

        let (step, answered, state) =
            edge(State::Header, &header(CMD_FLAG_PAYLOAD_LEN, CMD_WRITE, 10, 5));
        assert!(matches!(step, Step { consumed: 32, event: Event::Request(_) }));
        assert_eq!((answered, state), (false, PAYLOAD));

        let mut bytes = header(CMD_FLAG_PAYLOAD_LEN, CMD_BLOCK_STATUS, 0, 12);
        bytes.put64(512);
        bytes.put32(ALLOCATION_ID);
        assert_eq!(edge(State::Header, &bytes[..43]), (Step::NEED_MORE, false, State::Header));
        let (step, answered, state) = edge(State::Header, &bytes);
        assert!(matches!(step, Step { consumed: 44, event: Event::Request(_) }));
        assert_eq!((answered, state), (false, State::Header));
    }

    #[test]
    fn edges_of_header_that_are_answered_here() {
        for bytes in [header(0, 999, 0, 512), header(0, CMD_READ, 0, 0)] {
            assert_eq!(edge(State::Header, &bytes), (go_on(32), true, State::Header));
        }
        let empty_write = header(CMD_FLAG_PAYLOAD_LEN, CMD_WRITE, 0, 0);
        assert_eq!(edge(State::Header, &empty_write), (go_on(32), true, State::Header));
        let payload = header(CMD_FLAG_PAYLOAD_LEN, 999, 0, 5);
        let refusal = refuse(Errno::Inval, "unknown command");
        let discard = State::Discard { left_bytes: 5, to: TO, refusal };
        assert_eq!(edge(State::Header, &payload), (go_on(32), false, discard));
    }

    #[test]
    fn edges_of_header_that_end() {
        let ends = |bytes: &[u8], consumed, event| {
            let step = Step { consumed, event };
            assert_eq!(edge(State::Header, bytes), (step, false, State::Ended(event)));
        };
        ends(&header(0, CMD_DISC, 0, 0), 32, Event::Closed);
        ends(&[b'x'; 4], 0, Event::Broken(Violation::RequestMagic(0x7878_7878)));
        let too_long = Event::Broken(Violation::PayloadTooLong(DISCARD_MAX_BYTES + 1));
        ends(&header(CMD_FLAG_PAYLOAD_LEN, CMD_WRITE, 0, DISCARD_MAX_BYTES + 1), 32, too_long);
    }

    #[test]
    fn edges_of_payload() {
        let piece = |offset_bytes, len_bytes, last| Step {
            consumed: len_bytes,
            event: Event::Payload { offset_bytes, len_bytes, last },
        };
        assert_eq!(edge(PAYLOAD, b""), (Step::NEED_MORE, false, PAYLOAD));
        let rest = State::Payload { offset_bytes: 13, left_bytes: 2 };
        assert_eq!(edge(PAYLOAD, b"abc"), (piece(10, 3, false), false, rest));
        assert_eq!(edge(PAYLOAD, b"abcdefgh"), (piece(10, 5, true), false, State::Header));
    }

    #[test]
    fn edges_of_discard() {
        assert_eq!(edge(DISCARD, b""), (Step::NEED_MORE, false, DISCARD));
        let rest = State::Discard { left_bytes: 2, to: TO, refusal: REFUSAL };
        assert_eq!(edge(DISCARD, b"abc"), (go_on(3), false, rest));
        assert_eq!(edge(DISCARD, b"abcdefgh"), (go_on(5), true, State::Header));
    }

    #[test]
    fn edges_of_ended() {
        for event in [Event::Closed, Event::Broken(Violation::RequestMagic(0))] {
            let ended = State::Ended(event);
            for bytes in [&[][..], &header(0, CMD_READ, 0, 512)] {
                assert_eq!(edge(ended, bytes), (Step { consumed: 0, event }, false, ended));
            }
        }
    }
}
