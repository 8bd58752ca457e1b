//! Counts acknowledged writes that no flush covers, which a lost server may have lost.
//!
//! ```text
//!   0 ──────────── covered ──────── mark ──────── acknowledged      bytes, in the order of replies
//!     stable            └─ unflushed ──────────────────┘
//! ```
//! A flush covers the writes acknowledged before it was sent, not later ones. The paths of a
//! multipath line share one count: a flush goes to one path and covers all.

use std::sync::atomic::{AtomicU64, Ordering};

use blockyard_protocol::nbd::Command;
use blockyard_protocol::nbd::client::{Remote, Request};

/// The count of a device, or of all paths of a multipath line.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    acknowledged_bytes: AtomicU64,
    covered_bytes: AtomicU64,
}

/// Effect of a successful request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Success {
    /// No information about stable storage.
    Plain,
    /// The server may keep this many bytes in its cache.
    Unflushed(u64),
    /// All bytes acknowledged up to this count are stable.
    Covers(u64),
}

impl Unflushed {
    /// The effect of a request sent now. A server without FLUSH makes each write stable before its
    /// reply, because it has no other way.
    pub(super) fn sent(&self, request: &Request, remote: &Remote) -> Success {
        match request.command {
            Command::Flush => Success::Covers(self.acknowledged_bytes.load(Ordering::SeqCst)),
            Command::Write | Command::WriteZeroes if remote.can_flush && !request.fua => {
                Success::Unflushed(request.len_bytes)
            }
            _ => Success::Plain,
        }
    }

    /// Notes a successful request.
    pub(super) fn succeeded(&self, success: Success) {
        match success {
            Success::Plain => {}
            Success::Unflushed(len_bytes) => {
                self.acknowledged_bytes.fetch_add(len_bytes, Ordering::SeqCst);
            }
            Success::Covers(mark) => {
                self.covered_bytes.fetch_max(mark, Ordering::SeqCst);
            }
        }
    }

    /// Acknowledged bytes that are not covered.
    pub(super) fn bytes(&self) -> u64 {
        // In this order: otherwise a flush in between could cover more than is read.
        let covered_bytes = self.covered_bytes.load(Ordering::SeqCst);
        self.acknowledged_bytes.load(Ordering::SeqCst) - covered_bytes
    }

    /// Resets the count after a report of the loss.
    pub(super) fn reported(&self) {
        self.succeeded(Success::Covers(self.acknowledged_bytes.load(Ordering::SeqCst)));
    }
}

/// The difference between a lost export and the one that came back, if it means another disk or
/// another cache. Limits and hints may change: a newer server may describe more.
pub(super) fn difference(before: &Remote, now: &Remote) -> Option<String> {
    if before.size_bytes != now.size_bytes {
        return Some(format!("it had {} bytes, and has {}", before.size_bytes, now.size_bytes));
    }
    let changed = |name: &str, before: bool, now: bool| {
        let (was, is) = if before { ("was", "is not any more") } else { ("was not", "is now") };
        (before != now).then(|| format!("{name} {was} offered, and {is}"))
    };
    changed("FLUSH", before.can_flush, now.can_flush)
        .or_else(|| changed("FUA", before.can_fua, now.can_fua))
        .or_else(|| changed("TRIM", before.can_trim, now.can_trim))
        .or_else(|| changed("WRITE_ZEROES", before.can_write_zeroes, now.can_write_zeroes))
}

#[cfg(test)]
mod tests {
    use blockyard_protocol::nbd::ReplyMode;

    use super::*;

    /// A server with a cache, or one that writes through.
    fn server(can_flush: bool) -> Remote {
        Remote {
            size_bytes: 1 << 20,
            read_only: false,
            can_flush,
            can_fua: true,
            can_trim: true,
            can_write_zeroes: true,
            can_fast_zero: false,
            can_cache: false,
            multi_conn: false,
            rotational: false,
            allocation: false,
            mode: ReplyMode::Simple,
            block_sizes_known: false,
            block_min_bytes: 1,
            block_preferred_bytes: 4096,
            payload_max_bytes: 1 << 25,
        }
    }

    #[test]
    fn flush_covers_what_was_acknowledged_when_it_was_sent() {
        let count = Unflushed::default();
        let server = server(true);
        let write = count.sent(&Request::new(Command::Write, 0..4096), &server);
        count.succeeded(write);
        let flush = count.sent(&Request::FLUSH, &server);
        let zeroes = count.sent(&Request::new(Command::WriteZeroes, 0..512), &server);
        count.succeeded(zeroes);
        assert_eq!(count.bytes(), 4096 + 512);
        let later = count.sent(&Request::FLUSH, &server);
        count.succeeded(later);
        assert_eq!(count.bytes(), 0);
        count.succeeded(flush);
        assert_eq!(count.bytes(), 0, "a flush that ends later takes nothing back");
        count.succeeded(zeroes);
        count.succeeded(flush);
        assert_eq!(count.bytes(), 512);
        count.reported();
        assert_eq!(count.bytes(), 0);
    }

    #[test]
    fn server_keeps_only_plain_writes_in_a_cache_and_only_if_it_can_flush() {
        let count = Unflushed::default();
        let write = Request::new(Command::Write, 0..4096);
        for (request, can_flush) in [
            (Request { fua: true, ..write }, true),
            (write, false),
            (Request::new(Command::WriteZeroes, 0..4096), false),
            (Request::new(Command::Read, 0..4096), true),
            (Request::new(Command::Trim, 0..4096), true),
        ] {
            let sent = count.sent(&request, &server(can_flush));
            assert_eq!(sent, Success::Plain, "{request:?}");
            count.succeeded(sent);
            assert_eq!(count.bytes(), 0);
        }
    }

    #[test]
    fn server_that_came_back_is_another_if_its_size_or_its_cache_is() {
        let before = server(true);
        assert_eq!(difference(&before, &before), None);
        let hints = Remote { rotational: true, payload_max_bytes: 1 << 20, ..before.clone() };
        assert_eq!(difference(&before, &hints), None);
        for (now, told) in [
            (Remote { size_bytes: 512, ..before.clone() }, "it had 1048576 bytes, and has 512"),
            (server(false), "FLUSH was offered, and is not any more"),
            (Remote { can_fua: false, ..before.clone() }, "FUA was offered, and is not any more"),
            (Remote { can_trim: false, ..before.clone() }, "TRIM was offered, and is not any more"),
            (
                Remote { can_write_zeroes: false, ..before.clone() },
                "WRITE_ZEROES was offered, and is not any more",
            ),
        ] {
            assert_eq!(difference(&before, &now).as_deref(), Some(told));
        }
        let told = difference(&server(false), &before);
        assert_eq!(told.as_deref(), Some("FLUSH was not offered, and is now"));
    }
}
