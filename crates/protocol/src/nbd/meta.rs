//! Metadata contexts: LIST_META_CONTEXT and SET_META_CONTEXT.
//!
//! There is one context, `base:allocation`. A query is `namespace:leaf`. Unknown namespaces and
//! unknown leaves are ignored. `base:` alone is a wildcard that lists but does not select. SET
//! replaces the selection even when it fails.

use alloc::vec::Vec;

use super::export::Exports;
use super::handshake::Negotiated;
use super::options::{Cursor, put_error, put_option_reply};
use super::reply::ReplyMode;
use super::status::ALLOCATION_ID;
use super::wire::*;

const ALLOCATION: &[u8] = b"base:allocation";
const WILDCARD: &[u8] = b"base:";

/// Queries of a request.
struct Queries<'a> {
    export_name: &'a [u8],
    /// Number of queries.
    count: u32,
    exact: bool,
    wildcard: bool,
}

/// Answers either option, up to the final reply.
pub(super) fn list_or_set(
    negotiated: &mut Negotiated,
    exports: &Exports,
    option: u32,
    data: &[u8],
    out: &mut Vec<u8>,
) {
    let set = option == OPT_SET_META_CONTEXT;
    if set {
        negotiated.allocation = None;
    }
    if negotiated.mode == ReplyMode::Simple {
        let text = "metadata contexts need structured replies: negotiate them first";
        return put_error(option, REP_ERR_INVALID, text, out);
    }
    let Some(queries) = parse(data) else {
        let text = "name or queries are malformed: a query is a namespace, a colon and a leaf";
        return put_error(option, REP_ERR_INVALID, text, out);
    };
    let Some(index) = exports.find(queries.export_name) else {
        return put_error(option, REP_ERR_UNKNOWN, "no export of this name", out);
    };
    let listed = queries.exact || (!set && (queries.wildcard || queries.count == 0));
    if listed {
        let id = if set { ALLOCATION_ID } else { 0 };
        put_option_reply(option, REP_META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION], out);
    }
    if set && listed {
        negotiated.allocation = Some(index);
    }
    put_option_reply(option, REP_ACK, &[], out);
}

/// Parses all queries before the first reply, so that no reply precedes an error.
fn parse(data: &[u8]) -> Option<Queries<'_>> {
    let mut data = Cursor(data);
    let export_name = data.string()?;
    let count = data.u32()?;
    let mut queries = Queries { export_name, count, exact: false, wildcard: false };
    // Every query takes at least four bytes of existing data, so `count` determines no allocation,
    // and a wrong count ends the loop early.
    for _ in 0..count {
        let query = data.string()?;
        if !query.contains(&b':') {
            return None;
        }
        queries.exact |= query == ALLOCATION;
        queries.wildcard |= query == WILDCARD;
    }
    data.0.is_empty().then_some(queries)
}
