//! The handshake: the server's greeting, then options until one of them opens the export.
//!
//! ```text
//!   option sent        on ACK                 on an error
//!   STARTTLS           (TLS), the first one   failed
//!   EXTENDED_HEADERS   SET_META_CONTEXT       STRUCTURED_REPLY
//!   STRUCTURED_REPLY   SET_META_CONTEXT       GO, with simple replies
//!   SET_META_CONTEXT   GO                     GO, without block status
//!   GO                 open                   EXPORT_NAME if GO is unknown, else ABORT, failed
//!   EXPORT_NAME        (its own reply: open)  (the server disconnects)
//! ```
//!
//! The first option asks for the best mode that the caller wants. SET_META_CONTEXT is left out
//! without block status. STARTTLS is sent before all others if the caller wants TLS. A server may
//! not send anything between its ACK and TLS. An error for TLS or shutdown ends the handshake after
//! any option.
//!
//! ```text
//!   state       input                                     next
//!   Greeting    fixed newstyle                            Reply, first option sent
//!   Reply       header of ACK                             Reply or ExportName, next option sent
//!   Reply       header of ACK to STARTTLS                 TlsStarted
//!   TlsStarted  (the caller has TLS)                      Reply, next option sent
//!   Reply       header of an error with a message         Error
//!   Reply       header of INFO, META_CONTEXT              Info, Context
//!   Error       the end of the message                    as the table above says
//!   Info        what is known; the rest is not read       Skip, Reply
//!   Skip        the last byte                             Reply
//!   Context     its id                                    Reply
//!   ExportName  size and flags                            (transmission)
//! ```
//!
//! The session keeps only numbers and the beginning of a message of the server's data.

use alloc::string::String;
use alloc::vec::Vec;

use super::failure::{Failure, Violation};
use super::message::Message;
use super::remote::{Infos, Remote};
use super::session::{Event, Settings, Step};
use crate::nbd::reply::ReplyMode;
use crate::nbd::wire::*;

const ALLOCATION: &[u8] = b"base:allocation";

const GREETING_BYTES: usize = 18;
const REPLY_HEADER_BYTES: usize = 20;
/// Id and name of the one requested context.
const CONTEXT_BYTES: usize = 4 + ALLOCATION.len();
/// Type, then size and flags.
const INFO_EXPORT_BYTES: usize = 2 + 8 + 2;
/// Type, then three sizes.
const INFO_BLOCK_SIZE_BYTES: usize = 2 + 3 * 4;
/// Zeroes after the reply to EXPORT_NAME, unless both sides agree to omit them.
const EXPORT_NAME_ZEROES_BYTES: usize = 124;

/// Longest information of an unknown kind that is skipped. Our choice; the longest kinds in the
/// specification are strings.
const INFO_MAX_BYTES: u32 = 64 << 10;

/// Most replies to one option. Our choice: a GO has a handful.
const REPLIES_MAX: u32 = 256;

/// A step, or the end of the phase.
#[derive(Debug)]
pub(super) enum Progress {
    Step(Step),
    Open {
        consumed: usize,
        remote: Remote,
        /// The id of `base:allocation`, if it was selected.
        context: Option<u32>,
    },
}

#[derive(Debug)]
pub(super) struct Handshake {
    state: State,
    export_name: String,
    /// Whether block status is wanted.
    allocation: bool,
    tls: bool,
    no_zeroes: bool,
    /// The wanted mode, then the negotiated one.
    mode: ReplyMode,
    context: Option<u32>,
    infos: Infos,
    /// The last option, and its number of replies.
    option: u32,
    replies_seen: u32,
    message: Message,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    TlsStarted,
    Reply,
    Error { kind: u32 },
    Info { len_bytes: usize },
    Context,
    Skip { left_bytes: usize },
    ExportName,
}

impl Handshake {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            state: State::Greeting,
            export_name: settings.export_name,
            allocation: settings.allocation,
            tls: settings.tls,
            no_zeroes: false,
            mode: settings.mode_max,
            context: None,
            infos: Infos::default(),
            option: 0,
            replies_seen: 0,
            message: Message::default(),
        }
    }

    /// Whether the server can refuse only by disconnecting.
    pub(super) fn is_export_name(&self) -> bool {
        self.state == State::ExportName
    }

    /// Appends ABORT, if the option phase has begun.
    pub(super) fn put_abort(&self, out: &mut Vec<u8>) {
        if !matches!(self.state, State::Greeting | State::ExportName) {
            put_option(OPT_ABORT, &[], out);
        }
    }

    pub(super) fn on_bytes(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Progress, Failure> {
        match self.state {
            State::Greeting => self.on_greeting(bytes, out),
            State::TlsStarted => {
                self.send_first(out);
                Ok(Progress::Step(Step::NEED_MORE))
            }
            State::Reply => self.on_reply(bytes, out),
            State::Error { kind } => {
                let taken = self.message.on_bytes(bytes);
                if self.message.is_complete() {
                    self.on_error(kind, out)?;
                }
                Ok(went_on(taken))
            }
            State::Info { len_bytes } => self.on_info(bytes, len_bytes),
            State::Context => self.on_context(bytes),
            State::Skip { left_bytes } => {
                let taken = left_bytes.min(bytes.len());
                self.skip(left_bytes - taken);
                Ok(went_on(taken))
            }
            State::ExportName => self.on_export_name(bytes),
        }
    }

    /// The first eight bytes decide whether the peer speaks NBD.
    fn on_greeting(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Progress, Failure> {
        if let Some(magic) = bytes.first_chunk::<8>()
            && be64(magic, 0) != INIT_MAGIC
        {
            return Err(Failure::NotNbd(be64(magic, 0)));
        }
        if let Some(magic) = bytes.first_chunk::<16>() {
            match be64(magic, 8) {
                OPTION_MAGIC => {}
                OLDSTYLE_MAGIC => return Err(Failure::Oldstyle),
                other => return Err(Failure::NotNbd(other)),
            }
        }
        let Some(greeting) = bytes.first_chunk::<GREETING_BYTES>() else {
            return Ok(Progress::Step(Step::NEED_MORE));
        };
        let flags = be16(greeting, 16);
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(Failure::NotFixedNewstyle);
        }
        let known = flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        self.no_zeroes = known & FLAG_NO_ZEROES != 0;
        out.put32(u32::from(known));
        if self.tls {
            self.send(OPT_STARTTLS, out);
        } else {
            self.send_first(out);
        }
        Ok(went_on(GREETING_BYTES))
    }

    fn send_first(&mut self, out: &mut Vec<u8>) {
        match self.mode {
            ReplyMode::Extended => self.send(OPT_EXTENDED_HEADERS, out),
            ReplyMode::Structured => self.send(OPT_STRUCTURED_REPLY, out),
            ReplyMode::Simple => self.send(OPT_GO, out),
        }
    }

    /// Sends an option with its data, and waits for its replies.
    fn send(&mut self, option: u32, out: &mut Vec<u8>) {
        let name = self.export_name.as_bytes();
        let name_len = u32::try_from(name.len()).expect("at most 4096 bytes").to_be_bytes();
        match option {
            OPT_GO => {
                let [count, kind] = [1, INFO_BLOCK_SIZE].map(u16::to_be_bytes);
                put_option(option, &[&name_len, name, &count, &kind], out);
            }
            OPT_SET_META_CONTEXT => {
                let [count, len] = [1, ALLOCATION.len() as u32].map(u32::to_be_bytes);
                put_option(option, &[&name_len, name, &count, &len, ALLOCATION], out);
            }
            OPT_EXPORT_NAME => put_option(option, &[name], out),
            _ => put_option(option, &[], out),
        }
        self.option = option;
        self.replies_seen = 0;
        self.state = match option {
            OPT_EXPORT_NAME => State::ExportName,
            _ => State::Reply,
        };
    }

    fn on_reply(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Progress, Failure> {
        if let Some(magic) = bytes.first_chunk::<8>()
            && be64(magic, 0) != OPTION_REPLY_MAGIC
        {
            return Err(Violation::OptionReplyMagic(be64(magic, 0)).into());
        }
        let Some(header) = bytes.first_chunk::<REPLY_HEADER_BYTES>() else {
            return Ok(Progress::Step(Step::NEED_MORE));
        };
        let answered = be32(header, 8);
        let kind = be32(header, 12);
        let len_bytes = be32(header, 16);
        let asked = self.option;
        if answered != asked {
            return Err(Violation::OptionReplyTo { asked, answered }.into());
        }
        self.replies_seen += 1;
        if self.replies_seen > REPLIES_MAX {
            return Err(Violation::TooManyReplies.into());
        }
        let len_ok = match (kind, self.option) {
            (REP_ACK, _) => len_bytes == 0,
            (REP_INFO, OPT_GO) => (2..=INFO_MAX_BYTES).contains(&len_bytes),
            (REP_META_CONTEXT, OPT_SET_META_CONTEXT) => len_bytes > 4,
            (kind, _) if kind & REP_ERROR != 0 => len_bytes <= STRING_MAX_BYTES as u32,
            (kind, option) => return Err(Violation::OptionReplyType { option, kind }.into()),
        };
        if !len_ok {
            return Err(Violation::OptionReplyLen { kind, len_bytes }.into());
        }
        let len_bytes = len_bytes as usize;
        match kind {
            REP_ACK if self.option == OPT_STARTTLS => {
                return self.on_tls_ack(bytes.len() > REPLY_HEADER_BYTES);
            }
            REP_ACK => return self.on_ack(out),
            REP_INFO => self.state = State::Info { len_bytes },
            REP_META_CONTEXT if len_bytes != CONTEXT_BYTES => {
                return Err(Violation::MetaContext.into());
            }
            REP_META_CONTEXT => self.state = State::Context,
            _ => {
                self.message.begin(len_bytes);
                self.state = State::Error { kind };
                if len_bytes == 0 {
                    self.on_error(kind, out)?;
                }
            }
        }
        Ok(went_on(REPLY_HEADER_BYTES))
    }

    fn on_tls_ack(&mut self, has_more: bool) -> Result<Progress, Failure> {
        if has_more {
            return Err(Violation::BytesBeforeTls.into());
        }
        self.state = State::TlsStarted;
        Ok(Progress::Step(Step { consumed: REPLY_HEADER_BYTES, event: Event::StartTls }))
    }

    fn on_ack(&mut self, out: &mut Vec<u8>) -> Result<Progress, Failure> {
        match self.option {
            OPT_EXTENDED_HEADERS | OPT_STRUCTURED_REPLY if self.allocation => {
                self.send(OPT_SET_META_CONTEXT, out);
            }
            OPT_EXTENDED_HEADERS | OPT_STRUCTURED_REPLY | OPT_SET_META_CONTEXT => {
                self.send(OPT_GO, out);
            }
            _ => return self.open(REPLY_HEADER_BYTES),
        }
        Ok(went_on(REPLY_HEADER_BYTES))
    }

    fn on_error(&mut self, error: u32, out: &mut Vec<u8>) -> Result<(), Failure> {
        match (self.option, error) {
            (OPT_STARTTLS, _) => {
                self.put_abort(out);
                return Err(Failure::NoTls { text: self.message.printable() });
            }
            (_, REP_ERR_TLS_REQD) => {
                self.put_abort(out);
                return Err(Failure::TlsRequired { text: self.message.printable() });
            }
            (OPT_EXTENDED_HEADERS, error) if error != REP_ERR_SHUTDOWN => {
                self.mode = ReplyMode::Structured;
                self.send(OPT_STRUCTURED_REPLY, out);
            }
            (OPT_STRUCTURED_REPLY, error) if error != REP_ERR_SHUTDOWN => {
                self.mode = ReplyMode::Simple;
                self.send(OPT_GO, out);
            }
            (OPT_SET_META_CONTEXT, error) if error != REP_ERR_SHUTDOWN => {
                self.context = None; // an earlier context is void after an error
                self.send(OPT_GO, out);
            }
            // Earlier information is void too. EXPORT_NAME is not allowed after extended headers,
            // whose servers know GO.
            (OPT_GO, REP_ERR_UNSUP) if self.mode != ReplyMode::Extended => {
                self.infos = Infos::default();
                self.send(OPT_EXPORT_NAME, out);
            }
            _ => {
                self.put_abort(out);
                return Err(Failure::Refused { error, text: self.message.printable() });
            }
        }
        Ok(())
    }

    fn on_info(&mut self, bytes: &[u8], len_bytes: usize) -> Result<Progress, Failure> {
        let kind_bytes = bytes.first_chunk::<2>().map(|bytes| be16(bytes, 0));
        let known_bytes = match kind_bytes {
            None => return Ok(Progress::Step(Step::NEED_MORE)),
            Some(INFO_EXPORT) => INFO_EXPORT_BYTES,
            Some(INFO_BLOCK_SIZE) => INFO_BLOCK_SIZE_BYTES,
            Some(_) => {
                self.skip(len_bytes - 2);
                return Ok(went_on(2));
            }
        };
        if len_bytes != known_bytes {
            let len_bytes = u32::try_from(len_bytes).expect("it was one");
            return Err(Violation::OptionReplyLen { kind: REP_INFO, len_bytes }.into());
        }
        let Some(info) = bytes.get(..known_bytes) else {
            return Ok(Progress::Step(Step::NEED_MORE));
        };
        if known_bytes == INFO_EXPORT_BYTES {
            self.infos.export = Some((be64(info, 2), be16(info, 10)));
        } else {
            self.infos.block_sizes = Some([be32(info, 2), be32(info, 6), be32(info, 10)]);
        }
        self.state = State::Reply;
        Ok(went_on(known_bytes))
    }

    fn on_context(&mut self, bytes: &[u8]) -> Result<Progress, Failure> {
        let Some(context) = bytes.first_chunk::<CONTEXT_BYTES>() else {
            return Ok(Progress::Step(Step::NEED_MORE));
        };
        if &context[4..] != ALLOCATION || self.context.is_some() {
            return Err(Violation::MetaContext.into());
        }
        self.context = Some(be32(context, 0));
        self.state = State::Reply;
        Ok(went_on(CONTEXT_BYTES))
    }

    fn on_export_name(&mut self, bytes: &[u8]) -> Result<Progress, Failure> {
        let reply_bytes = 10 + if self.no_zeroes { 0 } else { EXPORT_NAME_ZEROES_BYTES };
        let Some(reply) = bytes.get(..reply_bytes) else {
            return Ok(Progress::Step(Step::NEED_MORE));
        };
        self.infos.export = Some((be64(reply, 0), be16(reply, 8)));
        self.open(reply_bytes)
    }

    fn open(&self, consumed: usize) -> Result<Progress, Failure> {
        let remote = Remote::new(&self.infos, self.mode, self.context.is_some())?;
        Ok(Progress::Open { consumed, remote, context: self.context })
    }

    fn skip(&mut self, left_bytes: usize) {
        self.state = match left_bytes {
            0 => State::Reply,
            _ => State::Skip { left_bytes },
        };
    }
}

/// The step for consumed bytes; without any, more are necessary.
fn went_on(consumed: usize) -> Progress {
    let event = if consumed == 0 { Event::NeedMore } else { Event::Continue };
    Progress::Step(Step { consumed, event })
}

/// Appends an option; its data is given in parts.
fn put_option(option: u32, parts: &[&[u8]], out: &mut Vec<u8>) {
    let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
    out.put64(OPTION_MAGIC);
    out.put32(option);
    out.put32(u32::try_from(len_bytes).expect("a name and a few numbers"));
    for part in parts {
        out.extend_from_slice(part);
    }
}
