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
//!   OptionData    any other                                   its reply        OptionHeader
//!   OptionDiscard bytes, more to come                         Continue         OptionDiscard
//!   OptionDiscard the last bytes of ABORT                     ACK, Closed      Ended
//!   OptionDiscard the last bytes of any other                 its reply        OptionHeader
//!   Ended         anything                                    the same again   Ended
//! ```
//!
//! Data has to be read in one for EXPORT_NAME, INFO, GO and the metadata contexts, up to
//! [`OPTION_DATA_MAX_BYTES`]. Everything else is thrown away as it comes: data of unknown options
//! and of ABORT, and data that options without data or beyond that size should not have.
//!
//! Not fixed newstyle means plain newstyle: the specification knows no other option there than
//! EXPORT_NAME, and no way to refuse one, so such a client gets its export or is dropped.

use alloc::vec::Vec;

use super::export::Exports;
use super::options::{self, Answer};
use super::reply::ReplyMode;
use super::session::{Event, Step, Violation};
use super::transmission::Opening;
use super::wire::*;

const HEADER_BYTES: usize = 16;

/// Longest option data that is looked at; the caller's buffer must hold it in one piece. A GO with
/// the longest name and every information request there is needs about 4 KiB.
const OPTION_DATA_MAX_BYTES: u32 = 64 << 10;

/// Longest option data that is thrown away politely; beyond, the client is dropped.
const OPTION_DISCARD_MAX_BYTES: u32 = 1 << 20;

/// A client that lists hundreds of exports and asks about each stays below; one that haggles for
/// ever does not.
const OPTIONS_MAX: u32 = 4096;

/// A step, or the end of the phase.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Step(Step),
    Open { consumed: usize, opening: Opening },
}

/// What has been negotiated so far.
#[derive(Debug)]
pub(super) struct Negotiated {
    pub(super) fixed_newstyle: bool,
    pub(super) no_zeroes: bool,
    pub(super) mode: ReplyMode,
    /// The export for which `base:allocation` was selected.
    pub(super) allocation: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Handshake {
    state: State,
    negotiated: Negotiated,
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
                allocation: None,
            },
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
        let (option, len_bytes) = (be32(header, 8), be32(header, 12));
        if let Some(violation) = self.violation(be64(header, 0), option, len_bytes) {
            return self.end(HEADER_BYTES, Event::Broken(violation));
        }
        self.options_seen += 1;
        let has_reader = options::reads_data(option);
        let too_big = has_reader && len_bytes > OPTION_DATA_MAX_BYTES;
        match len_bytes {
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

    /// What makes an option header the last thing that is read.
    fn violation(&self, magic: u64, option: u32, len_bytes: u32) -> Option<Violation> {
        if magic != OPTION_MAGIC {
            return Some(Violation::OptionMagic(magic));
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

    fn on_option_data(
        &mut self,
        exports: &Exports,
        (option, data): (u32, &[u8]),
        consumed: usize,
        out: &mut Vec<u8>,
    ) -> Progress {
        let answer = options::answer_data(&mut self.negotiated, exports, option, data, out);
        self.on_answer(answer, consumed)
    }

    fn on_answer(&mut self, answer: Answer, consumed: usize) -> Progress {
        match answer {
            Answer::Replied => {
                self.state = State::OptionHeader;
                step(consumed, Event::Continue)
            }
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
