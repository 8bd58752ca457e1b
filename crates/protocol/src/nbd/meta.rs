//! Metadata contexts: LIST_META_CONTEXT and SET_META_CONTEXT.
//!
//! There are `base:allocation`, and `qemu:dirty-bitmap:NAME` of an export with a bitmap. A query is
//! `namespace:leaf`. Unknown namespaces and unknown leaves are ignored. `base:`, `qemu:` and
//! `qemu:dirty-bitmap:` are wildcards that list but do not select. SET replaces the selection even
//! when it fails.

use alloc::vec::Vec;

use super::export::{Export, Exports, Looked};
use super::handshake::Negotiated;
use super::options::{Answer, Cursor, put_error, put_option_reply};
use super::reply::ReplyMode;
use super::request::Contexts;
use super::status::{ALLOCATION_ID, DIRTY_ID};
use super::wire::*;

const ALLOCATION: &[u8] = b"base:allocation";
const BASE: &[u8] = b"base:";
const DIRTY: &[u8] = b"qemu:dirty-bitmap:";
const QEMU: &[u8] = b"qemu:";

/// Queries of a request.
struct Queries<'a> {
    export_name: &'a [u8],
    /// Number of queries.
    count: u32,
    /// The queries, each with its length, which were checked.
    each: Cursor<'a>,
}

/// Answers either option, up to the final reply.
pub(super) fn list_or_set(
    negotiated: &mut Negotiated,
    exports: &Exports,
    option: u32,
    data: &[u8],
    out: &mut Vec<u8>,
) -> Answer {
    let set = option == OPT_SET_META_CONTEXT;
    if set {
        negotiated.contexts = None;
    }
    let mut refuse = |error: u32, text: &str| {
        put_error(option, error, text, out);
        Answer::Replied
    };
    if negotiated.mode == ReplyMode::Simple {
        let text = "metadata contexts need structured replies: negotiate them first";
        return refuse(REP_ERR_INVALID, text);
    }
    let Some(queries) = parse(data) else {
        let text = "name or queries are malformed: a query is a namespace, a colon and a leaf";
        return refuse(REP_ERR_INVALID, text);
    };
    let Some(index) = exports.find(queries.export_name) else {
        return refuse(REP_ERR_UNKNOWN, "no export of this name");
    };
    let export = match exports.look_up(index) {
        Looked::Up(export) => export,
        // The name of a bitmap is known after the opening only.
        Looked::Closed if queries.ask_for_a_bitmap(set) => return Answer::Ask(index),
        Looked::Refused if queries.ask_for_a_bitmap(set) => {
            return refuse(REP_ERR_UNKNOWN, "the server cannot open this export now");
        }
        Looked::Closed | Looked::Refused => &exports.list[index],
    };
    let contexts = queries.contexts(export, set);
    let id = |id: u32| if set { id } else { 0 }.to_be_bytes();
    if contexts.allocation {
        put_option_reply(option, REP_META_CONTEXT, &[&id(ALLOCATION_ID), ALLOCATION], out);
    }
    if let Some(name) = export.dirty_bitmap.as_ref().filter(|_| contexts.dirty) {
        put_option_reply(option, REP_META_CONTEXT, &[&id(DIRTY_ID), DIRTY, name.as_bytes()], out);
    }
    if set && contexts != Contexts::NONE {
        negotiated.contexts = Some((index, contexts));
    }
    put_option_reply(option, REP_ACK, &[], out);
    Answer::Replied
}

/// Parses all queries before the first reply, so that no reply precedes an error.
fn parse(data: &[u8]) -> Option<Queries<'_>> {
    let mut data = Cursor(data);
    let export_name = data.string()?;
    let count = data.u32()?;
    let each = Cursor(data.0);
    // Every query takes at least four bytes of existing data, so `count` determines no allocation,
    // and a wrong count ends the loop early.
    for _ in 0..count {
        if !data.string()?.contains(&b':') {
            return None;
        }
    }
    data.0.is_empty().then_some(Queries { export_name, count, each })
}

impl Queries<'_> {
    fn each(&self) -> impl Iterator<Item = &[u8]> {
        let mut data = Cursor(self.each.0);
        core::iter::from_fn(move || data.string())
    }

    /// Whether all contexts are asked for.
    fn ask_for_all(&self, set: bool) -> bool {
        !set && self.count == 0
    }

    fn ask_for_a_bitmap(&self, set: bool) -> bool {
        self.ask_for_all(set) || self.each().any(|query| query.starts_with(QEMU))
    }

    /// The contexts of this export that are listed or selected.
    fn contexts(&self, export: &Export, set: bool) -> Contexts {
        let is_wildcard = |query: &[u8], wildcards: &[&[u8]]| !set && wildcards.contains(&query);
        let bitmap = export.dirty_bitmap.as_deref().map(str::as_bytes);
        let mut contexts = Contexts { allocation: self.ask_for_all(set), dirty: false };
        contexts.dirty = self.ask_for_all(set);
        for query in self.each() {
            contexts.allocation |= query == ALLOCATION || is_wildcard(query, &[BASE]);
            let named = query.strip_prefix(DIRTY);
            contexts.dirty |=
                named.is_some() && named == bitmap || is_wildcard(query, &[QEMU, DIRTY]);
        }
        contexts.dirty &= bitmap.is_some();
        contexts
    }
}
