//! The handshake phase: client flags, then options until one of them opens an export.
//!
//! ```text
//!   state         input                                       answer           next
//!   ClientFlags   known flags                                 Continue         OptionHeader
//!   ClientFlags   unknown flags                               Broken           Ended
//!   OptionHeader  wrong magic; data beyond all bounds; not
//!                 EXPORT_NAME, without fixed newstyle; too
//!                 many options                                Broken           Ended
//!   OptionHeader  ... of an option without data               as below         as below
//!   OptionHeader  ... and data that has to be read in one     Continue         OptionData
//!   OptionHeader  ... and data that does not matter           Continue         OptionDiscard
//!   OptionData    EXPORT_NAME, GO of a known export           its reply, Open  (transmission)
//!   OptionData    EXPORT_NAME of an unknown one               Broken           Ended
//!   OptionData    EXPORT_NAME, INFO, GO of a closed one,
//!                 or a question for its dirty bitmap          Asked            OptionData
//!   OptionData    any other                                   its reply        OptionHeader
//!   OptionDiscard bytes, more to come                         Continue         OptionDiscard
//!   OptionDiscard the last bytes of ABORT                     ACK, Closed      Ended
//!   OptionDiscard the last bytes of any other                 its reply        OptionHeader
//!   OptionHeader  STARTTLS, if TLS is offered                 ACK, StartTls    OptionHeader
//!   OptionHeader  ... with bytes behind it                    Broken           Ended
//!   Ended         anything                                    the same again   Ended
//! ```
//!
//! EXPORT_NAME, INFO, GO and the metadata contexts need their data in one piece, up to
//! [`OPTION_DATA_MAX_BYTES`]. All other data is discarded on arrival: of unknown options and of
//! ABORT, surplus data of options without data, and data beyond that size.
//!
//! Where TLS is required, all options but STARTTLS and ABORT are refused before it, without a look
//! at
//! their data, and EXPORT_NAME ends the connection (FORCEDTLS in the specification). With TLS the
//! negotiation begins anew: an attacker may have negotiated before. Bytes behind STARTTLS were sent
//! before the client could know the answer. They would enter the protected stream in the clear.
//!
//! A client without fixed newstyle speaks plain newstyle. There the specification has no option but
//! EXPORT_NAME, and no way to refuse one. So such a client gets its export or is disconnected.

use alloc::vec::Vec;

use super::export::Exports;
use super::options::{self, Answer};
use super::reply::ReplyMode;
use super::request::Contexts;
use super::session::{Event, Step, Violation};
use super::transmission::Opening;
use super::wire::*;

const HEADER_BYTES: usize = 16;

/// Longest parsed option data; the caller's buffer must hold it in one piece. A GO with the longest
/// name and all information requests needs about 4 KiB.
const OPTION_DATA_MAX_BYTES: u32 = 64 << 10;

/// Longest discarded option data; a client with more is disconnected.
const OPTION_DISCARD_MAX_BYTES: u32 = 1 << 20;

/// Greatest number of options on one connection: enough to list hundreds of exports and to query
/// each of them.
const OPTIONS_MAX: u32 = 4096;

/// A step, or the end of the phase.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Step(Step),
    Open { consumed: usize, opening: Opening },
}

/// Use of TLS on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    /// The server has no TLS.
    NoTls,
    /// The client may start TLS.
    Offered,
    /// The client must start TLS.
    Required,
    /// All bytes come out of TLS.
    Started,
}

/// State of the negotiation.
#[derive(Debug)]
pub(super) struct Negotiated {
    pub(super) fixed_newstyle: bool,
    pub(super) no_zeroes: bool,
    pub(super) mode: ReplyMode,
    /// The export for which contexts were selected, and these contexts.
    pub(super) contexts: Option<(usize, Contexts)>,
}

#[derive(Debug)]
pub(super) struct Handshake {
    state: State,
    negotiated: Negotiated,
    pub(super) security: Security,
    options_seen: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData { option: u32, len_bytes: usize },
    OptionDiscard { option: u32, left_bytes: u32, too_big: bool },
    Ended(Event),
}

impl Handshake {
    pub(super) fn new() -> Self {
        Self {
            state: State::ClientFlags,
            negotiated: Negotiated {
                fixed_newstyle: false,
                no_zeroes: false,
                mode: ReplyMode::Simple,
                contexts: None,
            },
            security: Security::NoTls,
            options_seen: 0,
        }
    }

    pub(super) fn mode(&self) -> ReplyMode {
        self.negotiated.mode
    }

    pub(super) fn on_bytes(
        &mut self,
        exports: &Exports,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Progress {
        match self.state {
            State::ClientFlags => self.on_client_flags(bytes),
            State::OptionHeader => self.on_option_header(exports, bytes, out),
            State::OptionData { option, len_bytes } => match bytes.get(..len_bytes) {
                Some(data) => self.on_option_data(exports, (option, data), len_bytes, out),
                None => Progress::Step(Step::NEED_MORE),
            },
            State::OptionDiscard { option, left_bytes, too_big } => {
                let taken = bytes.len().min(left_bytes as usize);
                if taken == 0 {
                    return Progress::Step(Step::NEED_MORE);
                }
                let left_bytes = left_bytes - taken as u32;
                self.state = State::OptionDiscard { option, left_bytes, too_big };
                if left_bytes > 0 {
                    return step(taken, Event::Continue);
                }
                if self.needs_tls(option) {
                    options::needs_tls(option, out);
                    return self.on_answer(Answer::Replied, taken);
                }
                if option == OPT_STARTTLS && self.security != Security::NoTls {
                    options::put_error(option, REP_ERR_INVALID, "STARTTLS takes no data", out);
                    return self.on_answer(Answer::Replied, taken);
                }
                let answer = options::answer_discarded(
                    &mut self.negotiated,
                    option,
                    if too_big { REP_ERR_TOO_BIG } else { REP_ERR_INVALID },
                    out,
                );
                self.on_answer(answer, taken)
            }
            State::Ended(event) => step(0, event),
        }
    }

    fn on_client_flags(&mut self, bytes: &[u8]) -> Progress {
        let Some(bytes) = bytes.first_chunk::<4>() else {
            return Progress::Step(Step::NEED_MORE);
        };
        let flags = be32(bytes, 0);
        let fixed_newstyle = u32::from(FLAG_FIXED_NEWSTYLE);
        let no_zeroes = u32::from(FLAG_NO_ZEROES);
        if flags & !(fixed_newstyle | no_zeroes) != 0 {
            return self.end(4, Event::Broken(Violation::ClientFlags(flags)));
        }
        self.negotiated.fixed_newstyle = flags & fixed_newstyle != 0;
        self.negotiated.no_zeroes = flags & no_zeroes != 0;
        self.state = State::OptionHeader;
        step(4, Event::Continue)
    }

    fn on_option_header(&mut self, exports: &Exports, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Progress::Step(Step::NEED_MORE);
        };
        let option = be32(header, 8);
        let len_bytes = be32(header, 12);
        if let Some(violation) = self.violation(be64(header, 0), option, len_bytes) {
            return self.end(HEADER_BYTES, Event::Broken(violation));
        }
        self.options_seen += 1;
        let needs_tls = self.needs_tls(option);
        let has_reader = options::reads_data(option) && !needs_tls;
        let too_big = has_reader && len_bytes > OPTION_DATA_MAX_BYTES;
        match len_bytes {
            0 if needs_tls => {
                options::needs_tls(option, out);
                self.on_answer(Answer::Replied, HEADER_BYTES)
            }
            0 if option == OPT_STARTTLS && self.security != Security::NoTls => {
                self.on_start_tls(bytes.len() > HEADER_BYTES, out)
            }
            0 if has_reader => self.on_option_data(exports, (option, &[]), HEADER_BYTES, out),
            0 => {
                let answer = options::answer_empty(&mut self.negotiated, exports, option, out);
                self.on_answer(answer, HEADER_BYTES)
            }
            _ if has_reader && !too_big => {
                self.state = State::OptionData { option, len_bytes: len_bytes as usize };
                step(HEADER_BYTES, Event::Continue)
            }
            left_bytes => {
                self.state = State::OptionDiscard { option, left_bytes, too_big };
                step(HEADER_BYTES, Event::Continue)
            }
        }
    }

    /// The violation of an option header, if any.
    fn violation(&self, magic: u64, option: u32, len_bytes: u32) -> Option<Violation> {
        if magic != OPTION_MAGIC {
            return Some(Violation::OptionMagic(magic));
        }
        if option == OPT_EXPORT_NAME && self.security == Security::Required {
            return Some(Violation::ExportNameWithoutTls);
        }
        if option != OPT_EXPORT_NAME && !self.negotiated.fixed_newstyle {
            return Some(Violation::NotFixedNewstyle(option));
        }
        if self.options_seen == OPTIONS_MAX {
            return Some(Violation::TooManyOptions);
        }
        let limit_bytes = match option {
            OPT_EXPORT_NAME => STRING_MAX_BYTES as u32,
            _ => OPTION_DISCARD_MAX_BYTES,
        };
        (len_bytes > limit_bytes).then_some(Violation::OptionTooLong { option, len_bytes })
    }

    /// Whether the option is refused until TLS is in use.
    fn needs_tls(&self, option: u32) -> bool {
        self.security == Security::Required && !matches!(option, OPT_STARTTLS | OPT_ABORT)
    }

    fn on_start_tls(&mut self, has_more: bool, out: &mut Vec<u8>) -> Progress {
        if self.security == Security::Started {
            let text = "TLS is in use already";
            options::put_error(OPT_STARTTLS, REP_ERR_INVALID, text, out);
            return self.on_answer(Answer::Replied, HEADER_BYTES);
        }
        if has_more {
            return self.end(HEADER_BYTES, Event::Broken(Violation::BytesBehindStartTls));
        }
        options::put_option_reply(OPT_STARTTLS, REP_ACK, &[], out);
        self.security = Security::Started;
        // The client's flags stay: they are sent only once.
        self.negotiated.mode = ReplyMode::Simple;
        self.negotiated.contexts = None;
        self.state = State::OptionHeader;
        step(HEADER_BYTES, Event::StartTls)
    }

    fn on_option_data(
        &mut self,
        exports: &Exports,
        (option, data): (u32, &[u8]),
        consumed: usize,
        out: &mut Vec<u8>,
    ) -> Progress {
        match options::answer_data(&mut self.negotiated, exports, option, data, out) {
            Answer::Ask(export) => {
                // The option is read again when the world has answered.
                if data.is_empty() {
                    self.options_seen -= 1;
                    self.state = State::OptionHeader;
                }
                step(0, Event::Asked(export))
            }
            answer => self.on_answer(answer, consumed),
        }
    }

    fn on_answer(&mut self, answer: Answer, consumed: usize) -> Progress {
        match answer {
            Answer::Replied => {
                self.state = State::OptionHeader;
                step(consumed, Event::Continue)
            }
            Answer::Ask(_) => unreachable!("only options with data ask"),
            Answer::Open(opening) => Progress::Open { consumed, opening },
            Answer::End(event) => self.end(consumed, event),
        }
    }

    fn end(&mut self, consumed: usize, event: Event) -> Progress {
        self.state = State::Ended(event);
        step(consumed, event)
    }
}

fn step(consumed: usize, event: Event) -> Progress {
    Progress::Step(Step { consumed, event })
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::{vec, vec::Vec};

    use super::super::export::Export;
    use super::*;

    const DISCARD: State = State::OptionDiscard { option: 99, left_bytes: 5, too_big: false };

    fn exports() -> Exports {
        Exports { list: Arc::new([Export::new("disk", 4096)]), default: Some(0), answered: None }
    }

    fn at(state: State) -> Handshake {
        let mut handshake = Handshake::new();
        handshake.state = state;
        handshake.negotiated.fixed_newstyle = true;
        handshake
    }

    fn header(option: u32, len_bytes: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put64(OPTION_MAGIC);
        bytes.put32(option);
        bytes.put32(len_bytes);
        bytes
    }

    /// One call: the event (`None` for an opening), the consumed bytes, whether there was an
    /// answer, and the state after it.
    fn edge(from: State, bytes: &[u8]) -> (Option<Event>, usize, bool, State) {
        let mut handshake = at(from);
        let mut out = Vec::new();
        let (event, consumed) = match handshake.on_bytes(&exports(), bytes, &mut out) {
            Progress::Step(Step { consumed, event }) => (Some(event), consumed),
            Progress::Open { consumed, .. } => (None, consumed),
        };
        (event, consumed, !out.is_empty(), handshake.state)
    }

    fn broken(violation: Violation) -> (Event, State) {
        (Event::Broken(violation), State::Ended(Event::Broken(violation)))
    }

    #[test]
    fn edges_of_client_flags() {
        use State::*;
        let go_on = (Some(Event::Continue), 4, false, OptionHeader);
        assert_eq!(edge(ClientFlags, &[0, 0, 0, 3]), go_on);
        let (event, ended) = broken(Violation::ClientFlags(4));
        assert_eq!(edge(ClientFlags, &[0, 0, 0, 4]), (Some(event), 4, false, ended));
        let wait = (Some(Event::NeedMore), 0, false, ClientFlags);
        assert_eq!(edge(ClientFlags, &[0, 0, 0]), wait);
    }

    #[test]
    fn edges_of_option_header() {
        use State::*;
        let go_on = Some(Event::Continue);
        let wait = (Some(Event::NeedMore), 0, false, OptionHeader);
        assert_eq!(edge(OptionHeader, &header(OPT_LIST, 0)[..15]), wait);
        assert_eq!(edge(OptionHeader, &header(OPT_LIST, 0)), (go_on, 16, true, OptionHeader));
        assert_eq!(edge(OptionHeader, &header(OPT_INFO, 0)), (go_on, 16, true, OptionHeader));
        let closed = (Some(Event::Closed), 16, true, Ended(Event::Closed));
        assert_eq!(edge(OptionHeader, &header(OPT_ABORT, 0)), closed);
        let (event, consumed, answered, _) = edge(OptionHeader, &header(OPT_EXPORT_NAME, 0));
        assert_eq!((event, consumed, answered), (None, 16, true));
        let data = OptionData { option: OPT_GO, len_bytes: 9 };
        assert_eq!(edge(OptionHeader, &header(OPT_GO, 9)), (go_on, 16, false, data));
        assert_eq!(edge(OptionHeader, &header(99, 5)), (go_on, 16, false, DISCARD));
        let option = OPT_GO;
        let left_bytes = OPTION_DATA_MAX_BYTES + 1;
        let discard = OptionDiscard { option, left_bytes, too_big: true };
        assert_eq!(edge(OptionHeader, &header(OPT_GO, left_bytes)), (go_on, 16, false, discard));
    }

    #[test]
    fn edges_of_option_header_that_break() {
        let ends = |bytes: &[u8], violation| {
            let (event, ended) = broken(violation);
            assert_eq!(edge(State::OptionHeader, bytes), (Some(event), 16, false, ended));
        };
        ends(&[b'x'; 16], Violation::OptionMagic(0x7878_7878_7878_7878));
        let option = 99;
        let len_bytes = OPTION_DISCARD_MAX_BYTES + 1;
        ends(&header(option, len_bytes), Violation::OptionTooLong { option, len_bytes });
        let option = OPT_EXPORT_NAME;
        let len_bytes = 4097;
        ends(&header(option, len_bytes), Violation::OptionTooLong { option, len_bytes });

        let mut plain = at(State::OptionHeader);
        plain.negotiated.fixed_newstyle = false;
        let (event, ended) = broken(Violation::NotFixedNewstyle(OPT_LIST));
        let progress = plain.on_bytes(&exports(), &header(OPT_LIST, 0), &mut vec![]);
        assert_eq!((progress, plain.state), (step(16, event), ended));

        let mut tireless = at(State::OptionHeader);
        tireless.options_seen = OPTIONS_MAX;
        let (event, ended) = broken(Violation::TooManyOptions);
        let progress = tireless.on_bytes(&exports(), &header(OPT_LIST, 0), &mut vec![]);
        assert_eq!((progress, tireless.state), (step(16, event), ended));
    }

    #[test]
    fn edges_of_option_data() {
        let data = |option, len_bytes| State::OptionData { option, len_bytes };
        let wait = (Some(Event::NeedMore), 0, false, data(OPT_EXPORT_NAME, 4));
        assert_eq!(edge(data(OPT_EXPORT_NAME, 4), b"dis"), wait);
        for (option, bytes) in
            [(OPT_EXPORT_NAME, &b"disk"[..]), (OPT_GO, &b"\0\0\0\x04disk\0\0"[..])]
        {
            let (event, consumed, answered, _) = edge(data(option, bytes.len()), bytes);
            assert_eq!((event, consumed, answered), (None, bytes.len(), true));
        }
        let (event, ended) = broken(Violation::UnknownExport);
        let unknown = edge(data(OPT_EXPORT_NAME, 1), b"x");
        assert_eq!(unknown, (Some(event), 1, false, ended));
        for option in [OPT_INFO, OPT_GO, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT] {
            let refused = (Some(Event::Continue), 1, true, State::OptionHeader);
            assert_eq!(edge(data(option, 1), b"x, and what follows"), refused);
        }
    }

    #[test]
    fn edges_of_option_discard() {
        use State::*;
        let go_on = Some(Event::Continue);
        assert_eq!(edge(DISCARD, b""), (Some(Event::NeedMore), 0, false, DISCARD));
        let rest = OptionDiscard { option: 99, left_bytes: 2, too_big: false };
        assert_eq!(edge(DISCARD, b"abc"), (go_on, 3, false, rest));
        assert_eq!(edge(DISCARD, b"abcdefgh"), (go_on, 5, true, OptionHeader));
        let abort = OptionDiscard { option: OPT_ABORT, left_bytes: 5, too_big: false };
        let closed = (Some(Event::Closed), 5, true, Ended(Event::Closed));
        assert_eq!(edge(abort, b"abcde"), closed);
    }

    #[test]
    fn edges_of_ended() {
        let violation = Violation::UnknownExport;
        for event in [Event::Closed, Event::Broken(violation)] {
            let ended = State::Ended(event);
            for bytes in [&[][..], &header(OPT_GO, 0)] {
                assert_eq!(edge(ended, bytes), (Some(event), 0, false, ended));
            }
        }
    }
}
