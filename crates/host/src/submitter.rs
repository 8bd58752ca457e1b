//! Identity of a connection for the schedulers: its io-context, its priority, and whether it waits
//! for its writes.

use std::sync::atomic::{AtomicU32, Ordering};

use blockyard_engine::bio::{Bio, IoContext, Op, Origin};
use blockyard_engine::priority::Priority;

/// A connection that writes less than this between its flushes waits for its writes. Ours: a
/// database log stays below, a copy does not (RFD 2, 7).
const SYNC_MAX_BYTES: u64 = 1 << 20;

/// A connection or a copy.
#[derive(Debug)]
pub(crate) struct Submitter {
    io_context: IoContext,
    priority: Priority,
    /// Bytes written since its last flush; `None` before the first.
    since_flush_bytes: Option<u64>,
}

/// A new io-context.
pub(crate) fn new_io_context() -> IoContext {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    IoContext(NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Submitter {
    /// A submitter with a new io-context.
    pub(crate) fn new(priority: Priority) -> Self {
        Self { io_context: new_io_context(), priority, since_flush_bytes: None }
    }

    pub(crate) fn io_context(&self) -> IoContext {
        self.io_context
    }

    /// Sets the priority of later bios.
    pub(crate) fn set_priority(&mut self, priority: Priority) {
        self.priority = priority;
    }

    /// The origin of its next bio. A write with its own sync flag keeps it.
    pub(crate) fn origin(&mut self, bio: &Bio) -> Origin {
        let mut sync = bio.origin.sync;
        match bio.op {
            Op::Flush => self.since_flush_bytes = Some(0),
            Op::Write | Op::WriteZeroes => {
                if let Some(bytes) = &mut self.since_flush_bytes {
                    sync |= *bytes < SYNC_MAX_BYTES;
                    *bytes = bytes.saturating_add(bio.len.bytes());
                }
            }
            Op::Read | Op::Discard => {}
        }
        let Self { io_context, priority, .. } = *self;
        Origin { io_context, priority, sync, ..Origin::default() }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::Sector;
    use blockyard_engine::buf::BufRef;

    use super::*;

    fn bio(op: Op, len: u64) -> Bio {
        Bio::new(op, Sector(0), Sector(len), BufRef::NONE, 0)
    }

    #[test]
    fn writes_are_waited_for_while_the_submitter_flushes_often() {
        let mut submitter = Submitter::new(Priority::IDLE);
        let mut sync = |op, len| submitter.origin(&bio(op, len)).sync;
        assert!(!sync(Op::Write, 8), "no flush so far");
        sync(Op::Flush, 0);
        assert!(sync(Op::Write, 2040));
        sync(Op::Read, 4096);
        assert!(sync(Op::Write, 8), "reads do not count");
        assert!(!sync(Op::Write, 8), "1 MiB was written since the flush");
        sync(Op::Flush, 0);
        assert!(sync(Op::WriteZeroes, 8));
        assert!(!sync(Op::Discard, 8));
    }

    #[test]
    fn write_that_says_so_is_waited_for_in_any_case() {
        let mut submitter = Submitter::new(Priority::real_time(0));
        let mut write = bio(Op::Write, 8);
        write.origin.sync = true;
        let origin = submitter.origin(&write);
        assert_eq!((origin.sync, origin.priority), (true, Priority::real_time(0)));
    }

    #[test]
    fn two_submitters_are_two_io_contexts() {
        let context = || Submitter::new(Priority::default()).io_context();
        assert_ne!(context(), context());
    }
}
