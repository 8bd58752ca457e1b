//! News of an image: librbd calls back when its header has changed. A thread of ours looks at the
//! length, and the device's thread of a gateway at the number of takeovers.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};

use super::image::Image;
use crate::device_thread::Shared;
use crate::poll;
use crate::process::with_signals_blocked;

/// Changes of an image's header.
pub(super) struct Changes {
    /// Readable after a change.
    ready: OwnedFd,
    /// Whether the device's thread has not looked since the last change.
    is_new: AtomicBool,
    /// The device's thread, if it wants to know.
    device: OnceLock<Arc<Shared>>,
}

impl Changes {
    /// # Errors
    /// The system has no more descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { ready, is_new: AtomicBool::new(false), device: OnceLock::new() })
    }

    /// Wakes the threads that wait.
    pub(super) fn tell(&self) {
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
        self.is_new.store(true, Ordering::Release);
        if let Some(device) = self.device.get() {
            device.nudge();
        }
    }

    /// Also wakes the thread of a device.
    pub(super) fn tell_device(&self, device: Arc<Shared>) {
        let _ = self.device.set(device);
    }

    /// Whether something has changed since the last call.
    pub(super) fn take(&self) -> bool {
        self.is_new.swap(false, Ordering::AcqRel)
    }

    fn wait(&self) {
        if poll::readable(&[Some(self.ready.as_fd())], None).is_err() {
            thread::yield_now();
        }
        let _ = rustix::io::read(&self.ready, &mut [0; 8]);
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
