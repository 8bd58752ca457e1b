//! The control socket of a server: requests and replies.
//!
//! ```text
//!   status                                 {"max_connections": 16, "io_uring": "restricted",
//!                                           "devices": [...]}
//!   suspend EXPORT                         {}
//!   resume EXPORT                          {"loss": null}
//!   resume-accepting-loss EXPORT           {"loss": null}
//!   resize EXPORT                          {"from_bytes": 1048576, "to_bytes": 2097152}
//!   limit IOPS BYTES BURST-NS EXPORT       {}     0: no limit; BURST-NS `-`: as it is
//!   backup freeze|done|failed EXPORT       {}
//!   key-wipe SECTOR EXPORT                 {"error": {"name": "EINVAL", "problem": "..."}}
//!   key-set SECTOR HEX-DIGITS EXPORT
//!   message SECTOR COUNT WORD... EXPORT
//!   trace-start MILLISECONDS new|replace BYTES PATH EXPORT
//!   reload                                 {"added": ["home"], "removed": [], "replaced": [],
//!                                           "limited": [], "warnings": []}
//!   trace-stop EXPORT                      {"bios": 3, "not_ended": 0, "lost": 0, "seconds": 1.5}
//! ```
//! A request is one line, a reply one JSON document. EXPORT is the rest of the line, because names
//! may contain blanks; it may be empty if the server has one volume only. A refusal has the
//! kernel's error name.

mod client;
mod request;
mod server;

use serde::{Deserialize, Serialize};

use crate::status::Loss;

pub use client::{Control, ControlError};
pub(crate) use server::{Device, Devices, Named};

/// The outcome of a reload: names of exports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reloaded {
    /// New exports.
    pub added: Vec<String>,
    /// Exports that are closed.
    pub removed: Vec<String>,
    /// Exports that were closed and opened with other settings.
    pub replaced: Vec<String>,
    /// Exports with other limits of their rate.
    pub limited: Vec<String>,
    /// Settings that need a restart, and other sentences for the operator.
    pub warnings: Vec<String>,
}

/// The reply to a resume.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Resumed {
    /// The failure after which flushes and writes fail.
    loss: Option<Loss>,
}

/// The reply to a request without a result. Another reply is not taken for it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Done {}

/// The reply to a step of a backup.
#[derive(Debug, Serialize, Deserialize)]
struct BackupAnswer {
    /// Its number.
    backup: String,
}

/// A refusal.
#[derive(Debug, Serialize, Deserialize)]
struct Refused {
    error: Refusal,
}

#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    /// Name from errno(3).
    name: String,
    problem: String,
}
