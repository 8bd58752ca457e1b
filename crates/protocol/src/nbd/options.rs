//! Answers to options, one function each. The handshake decides the next state.

use alloc::vec::Vec;

use super::export::{Export, Exports, Looked};
use super::handshake::Negotiated;
use super::meta;
use super::reply::ReplyMode;
use super::request::Contexts;
use super::session::{Event, Violation};
use super::transmission::Opening;
use super::wire::*;

/// Consequence of an option.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// A final reply was written; the client may send its next option.
    Replied,
    /// Nothing was written: the option asks for a closed export.
    Ask(usize),
    /// The transmission phase begins.
    Open(Opening),
    /// The connection ends.
    End(Event),
}

/// Whether the option's data is parsed.
pub(super) fn reads_data(option: u32) -> bool {
    matches!(
        option,
        OPT_EXPORT_NAME | OPT_INFO | OPT_GO | OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT
    )
}

/// Answers an option for which [`reads_data`] is true.
pub(super) fn answer_data(
    negotiated: &mut Negotiated,
    exports: &Exports,
    option: u32,
    data: &[u8],
    out: &mut Vec<u8>,
) -> Answer {
    match option {
        OPT_EXPORT_NAME => export_name(negotiated, exports, data, out),
        OPT_INFO | OPT_GO => info_or_go(negotiated, exports, option, data, out),
        _ => meta::list_or_set(negotiated, exports, option, data, out),
    }
}

/// Answers any other option without data.
pub(super) fn answer_empty(
    negotiated: &mut Negotiated,
    exports: &Exports,
    option: u32,
    out: &mut Vec<u8>,
) -> Answer {
    match option {
        OPT_ABORT => return abort(out),
        OPT_LIST => list(exports, out),
        OPT_STRUCTURED_REPLY if negotiated.mode == ReplyMode::Extended => {
            let text = "extended headers are in use, which include structured replies";
            put_error(option, REP_ERR_EXT_HEADER_REQD, text, out);
        }
        OPT_STRUCTURED_REPLY if negotiated.mode == ReplyMode::Structured => {
            put_error(option, REP_ERR_INVALID, "structured replies are in use already", out);
        }
        OPT_EXTENDED_HEADERS if negotiated.mode == ReplyMode::Extended => {
            put_error(option, REP_ERR_INVALID, "extended headers are in use already", out);
        }
        OPT_STRUCTURED_REPLY => {
            negotiated.mode = ReplyMode::Structured;
            put_option_reply(option, REP_ACK, &[], out);
        }
        OPT_EXTENDED_HEADERS => {
            negotiated.mode = ReplyMode::Extended;
            put_option_reply(option, REP_ACK, &[], out);
        }
        _ => unsupported(option, out),
    }
    Answer::Replied
}

/// Answers an option whose data was discarded: an unknown one, one with surplus data (`error` is
/// ERR_INVALID), or one with too much data (ERR_TOO_BIG).
pub(super) fn answer_discarded(
    negotiated: &mut Negotiated,
    option: u32,
    error: u32,
    out: &mut Vec<u8>,
) -> Answer {
    match option {
        OPT_ABORT => return abort(out),
        OPT_LIST | OPT_STRUCTURED_REPLY | OPT_EXTENDED_HEADERS => {
            put_error(option, error, "this option takes no data", out);
        }
        _ if reads_data(option) => {
            if option == OPT_SET_META_CONTEXT {
                negotiated.contexts = None; // a failed request replaces it too
            }
            put_error(option, error, "option data exceeds 64 KiB", out);
        }
        _ => unsupported(option, out),
    }
    Answer::Replied
}

/// Answer to an option that needs TLS.
pub(super) fn needs_tls(option: u32, out: &mut Vec<u8>) {
    put_error(option, REP_ERR_TLS_REQD, "this server requires TLS", out);
}

/// Answer to unknown options, and to STARTTLS of a server without TLS: the specification gives this
/// answer for it.
fn unsupported(option: u32, out: &mut Vec<u8>) {
    let text = match option {
        OPT_STARTTLS => "this server does not offer TLS",
        _ => "option is not supported",
    };
    put_error(option, REP_ERR_UNSUP, text, out);
}

fn abort(out: &mut Vec<u8>) -> Answer {
    put_option_reply(OPT_ABORT, REP_ACK, &[], out);
    Answer::End(Event::Closed)
}

fn list(exports: &Exports, out: &mut Vec<u8>) {
    for export in exports.list.iter() {
        let name_len = (export.name.len() as u32).to_be_bytes();
        let parts = [&name_len[..], export.name.as_bytes(), export.description.as_bytes()];
        put_option_reply(OPT_LIST, REP_SERVER, &parts, out);
    }
    put_option_reply(OPT_LIST, REP_ACK, &[], out);
}

fn export_name(
    negotiated: &Negotiated,
    exports: &Exports,
    name: &[u8],
    out: &mut Vec<u8>,
) -> Answer {
    if negotiated.mode == ReplyMode::Extended {
        return Answer::End(Event::Broken(Violation::ExportNameAfterExtended));
    }
    let Some(index) = exports.find(name) else {
        return Answer::End(Event::Broken(Violation::UnknownExport));
    };
    let export = match exports.look_up(index) {
        Looked::Up(export) => export,
        Looked::Closed => return Answer::Ask(index),
        Looked::Refused => return Answer::End(Event::Broken(Violation::ExportNotAvailable)),
    };
    let opening = opening(negotiated, index, false);
    out.put64(export.size_bytes);
    out.put16(export.transmission_flags(opening.mode, opening.has_contexts()));
    if !negotiated.no_zeroes {
        out.extend_from_slice(&[0; 124]);
    }
    Answer::Open(opening)
}

fn info_or_go(
    negotiated: &Negotiated,
    exports: &Exports,
    option: u32,
    data: &[u8],
    out: &mut Vec<u8>,
) -> Answer {
    let Some((name, wanted)) = parse_info(data) else {
        put_error(option, REP_ERR_INVALID, "name or information requests are malformed", out);
        return Answer::Replied;
    };
    let Some(index) = exports.find(name) else {
        put_error(option, REP_ERR_UNKNOWN, "no export of this name", out);
        return Answer::Replied;
    };
    let export = match exports.look_up(index) {
        Looked::Up(export) => export,
        Looked::Closed => return Answer::Ask(index),
        Looked::Refused => {
            put_error(option, REP_ERR_UNKNOWN, "the server cannot open this export now", out);
            return Answer::Replied;
        }
    };
    let opening = opening(negotiated, index, wanted.block_size);
    put_infos(option, export, &opening, &wanted, out);
    put_option_reply(option, REP_ACK, &[], out);
    if option == OPT_GO { Answer::Open(opening) } else { Answer::Replied }
}

fn opening(negotiated: &Negotiated, export: usize, sizes_known: bool) -> Opening {
    let selected = negotiated.contexts.filter(|(of, _)| *of == export);
    Opening {
        export,
        mode: negotiated.mode,
        contexts: selected.map_or(Contexts::NONE, |(_, contexts)| contexts),
        sizes_known,
    }
}

/// The supported information requests of a client; others must be ignored.
#[derive(Default)]
struct Wanted {
    name: bool,
    description: bool,
    block_size: bool,
}

fn parse_info(data: &[u8]) -> Option<(&[u8], Wanted)> {
    let mut data = Cursor(data);
    let name = data.string()?;
    let count = data.u16()?;
    let mut wanted = Wanted::default();
    for _ in 0..count {
        match data.u16()? {
            INFO_NAME => wanted.name = true,
            INFO_DESCRIPTION => wanted.description = true,
            INFO_BLOCK_SIZE => wanted.block_size = true,
            _ => {}
        }
    }
    data.0.is_empty().then_some((name, wanted))
}

fn put_infos(option: u32, export: &Export, opening: &Opening, wanted: &Wanted, out: &mut Vec<u8>) {
    let mut put = |kind: u16, parts: [&[u8]; 3]| {
        let kind = kind.to_be_bytes();
        put_option_reply(option, REP_INFO, &[&kind, parts[0], parts[1], parts[2]], out);
    };
    let flags = export.transmission_flags(opening.mode, opening.has_contexts());
    put(INFO_EXPORT, [&export.size_bytes.to_be_bytes(), &flags.to_be_bytes(), &[]]);
    if wanted.name {
        put(INFO_NAME, [export.name.as_bytes(), &[], &[]]);
    }
    if wanted.description && !export.description.is_empty() {
        put(INFO_DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
    }
    if wanted.block_size || export.has_unusual_blocks() {
        put(
            INFO_BLOCK_SIZE,
            [
                &export.block_min_bytes.to_be_bytes(),
                &export.block_preferred_bytes.to_be_bytes(),
                &export.block_max_bytes.to_be_bytes(),
            ],
        );
    }
}

/// Appends a reply to an option; its data is given in parts.
pub(super) fn put_option_reply(option: u32, kind: u32, parts: &[&[u8]], out: &mut Vec<u8>) {
    let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
    out.put64(OPTION_REPLY_MAGIC);
    out.put32(option);
    out.put32(kind);
    out.put32(u32::try_from(len_bytes).expect("a few strings of at most 4096 bytes"));
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends a final error reply with a message for users.
pub(super) fn put_error(option: u32, error: u32, text: &str, out: &mut Vec<u8>) {
    put_option_reply(option, error, &[text.as_bytes()], out);
}

/// Parser of option data, from front to back. It never reads past the end.
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn u16(&mut self) -> Option<u16> {
        let (value, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*value))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*value))
    }

    /// A length and a string of that length, valid by the protocol's rules. UTF-8 is not checked: a
    /// name in another encoding matches no export.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let len_bytes = usize::try_from(self.u32()?).ok()?;
        if len_bytes > STRING_MAX_BYTES {
            return None;
        }
        let (text, rest) = self.0.split_at_checked(len_bytes)?;
        self.0 = rest;
        (!text.contains(&0)).then_some(text)
    }
}
