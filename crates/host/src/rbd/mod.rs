//! A device that is an image of Ceph's RBD.
//!
//! ```text
//!   executors ─> inbox ─> device's thread ─> librbd ═══ cluster
//!                  ^                           │
//!                  └── finished operations <── callback, in a thread of librbd
//! ```
//! `library` opens `librbd` at run time, [`RbdName`] names an image, `cluster` shares
//! connections, `image` is an open image with its lock, `device` is the thread, `gateway`
//! knows the takeovers of an image with several servers, `changes` tells that an image has changed.
//!
//! librbd cannot cancel an operation, so its memory stays with it until the cluster answers or the
//! time limit of the name ends the operation (`reconnect-delay`). A program must not fork and go on
//! with an image; starting programs is harmless.

mod changes;
mod cluster;
mod device;
mod gateway;
mod image;
mod library;
mod name;

use std::ffi::CString;
use std::io;

pub(crate) use image::Image;
pub use name::RbdName;

/// A text for the library.
fn c_text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{text:?} has a zero byte"))
}

/// The error of a call: results below zero are error numbers.
fn errno_of(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}
