//! Closes descriptors that a front end must not send.
//!
//! The close of a file of FUSE asks its process to flush, and waits for the answer. A process that
//! is silent would hold the thread of its front end for good. So a thread of its own closes such
//! descriptors. The count of these threads is bounded: while too many wait, the socket accepts no
//! front end, and other sockets do not notice.

use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

const STACK_BYTES: usize = 64 << 10;
/// Limit of the threads of one socket.
const THREADS_MAX: usize = 4;

/// The threads of one socket that close.
#[derive(Debug, Default)]
pub(crate) struct Closing(AtomicUsize);

impl Closing {
    pub(super) fn has_room(&self) -> bool {
        self.0.load(Ordering::Acquire) < THREADS_MAX
    }

    /// Closes descriptors without a wait of this thread.
    pub(super) fn close(self: &Arc<Self>, descriptors: Vec<OwnedFd>) {
        self.0.fetch_add(1, Ordering::AcqRel);
        // A thread that cannot start must not close them here: they stay open, and count.
        let descriptors = ManuallyDrop::new(descriptors);
        let closing = Arc::clone(self);
        let thread = Builder::new().name("vhost closing".into()).stack_size(STACK_BYTES);
        let _ = thread.spawn(move || {
            drop(ManuallyDrop::into_inner(descriptors));
            closing.0.fetch_sub(1, Ordering::AcqRel);
        });
    }
}
