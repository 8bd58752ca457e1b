//! News of an image: librbd calls back when its header has changed, and a thread of ours looks at
//! the length.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};

use super::image::Image;
use crate::poll;
use crate::process::with_signals_blocked;

/// Readable after a change.
pub(super) struct Changes(OwnedFd);

impl Changes {
    /// # Errors
    /// The system has no more descriptors.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the thread that waits.
    pub(super) fn tell(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn wait(&self) {
        if poll::readable(&[Some(self.0.as_fd())], None).is_err() {
            thread::yield_now();
        }
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Notes a change of an image. Runs in a thread of librbd.
///
/// # Safety
/// `argument` is a [`Changes`] that lives as long as the watch.
pub(super) unsafe extern "C" fn note_change(argument: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    let changes = unsafe { &*argument.cast::<Changes>() };
    changes.tell();
}

/// Starts the thread that calls a function when the image has grown. It ends with the image.
///
/// # Errors
/// The system has no more threads.
pub(super) fn on_growth(
    image: Weak<Image>,
    changes: Arc<Changes>,
    mut len_bytes: u64,
    call: impl Fn() + Send + 'static,
) -> io::Result<()> {
    let run = move || {
        loop {
            changes.wait();
            let Some(image) = image.upgrade() else { return };
            let present = image.present_len_bytes();
            drop(image);
            let Ok(present) = present else { continue };
            if present > len_bytes {
                call();
            }
            len_bytes = present;
        }
    };
    let thread = thread::Builder::new().name("rbd/growth".into());
    with_signals_blocked(|| thread.spawn(run))?;
    Ok(())
}
