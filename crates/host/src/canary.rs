//! Planted faults for tests that must find them: each place that makes data stable asks here
//! whether to lie.
//!
//! With the feature `canaries`, which no release has, the environment variable `BLOCKYARD_CANARY`
//! names one fault. Without the feature the answer is a compile-time `false`.

use std::sync::OnceLock;

#[cfg(all(feature = "canaries", not(debug_assertions)))]
compile_error!("the feature `canaries` plants faults: it is for debug builds only");

/// A fault that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// `fdatasync` of served files does nothing, by call or by ring.
    Fdatasync,
    /// FUA is dropped: a plain write.
    Fua,
    /// No flush follows a FUA request that was split, or that writes zeroes.
    CutFua,
    /// A flush reaches only the first of several devices.
    FirstDevice,
    /// A flush does nothing on a connection without writes of its own, as if each connection had a
    /// write-back cache.
    OwnWrites,
    /// A flush that arrives during another flush is answered together with it.
    JoinedFlush,
    /// Served files are not flushed when the server ends.
    ExitFlush,
    /// Headers are written without syncs.
    HeaderSync,
    /// A flush is not passed on to the server below.
    RemoteFlush,
    /// FUA is not passed on to the server below.
    RemoteFua,
    /// The directory of a created file is not synced.
    DirectorySync,
    /// A dirty bitmap is not synced when it is marked as in use.
    BitmapMark,
}

/// Names of the faults.
const NAMES: &[(&str, Canary)] = &[
    ("fdatasync", Canary::Fdatasync),
    ("fua", Canary::Fua),
    ("cut-fua", Canary::CutFua),
    ("first-device", Canary::FirstDevice),
    ("own-writes", Canary::OwnWrites),
    ("joined-flush", Canary::JoinedFlush),
    ("exit-flush", Canary::ExitFlush),
    ("header-sync", Canary::HeaderSync),
    ("remote-flush", Canary::RemoteFlush),
    ("remote-fua", Canary::RemoteFua),
    ("directory-sync", Canary::DirectorySync),
    ("bitmap-mark", Canary::BitmapMark),
];

/// Whether this fault is planted.
///
/// # Panics
/// `BLOCKYARD_CANARY` has an unknown name.
#[must_use]
pub fn is_planted(canary: Canary) -> bool {
    static PLANTED: OnceLock<Option<Canary>> = OnceLock::new();
    let of_name = || {
        let name = std::env::var("BLOCKYARD_CANARY").ok()?;
        let known = NAMES.iter().find(|(known, _)| *known == name);
        Some(known.expect("BLOCKYARD_CANARY names a canary").1)
    };
    cfg!(feature = "canaries") && *PLANTED.get_or_init(of_name) == Some(canary)
}
