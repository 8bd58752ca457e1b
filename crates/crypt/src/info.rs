//! Facts of a keyslot that both versions of LUKS have.

use serde::Serialize;

/// The KDF of a keyslot, without its salt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KdfInfo {
    /// Its name in the header: `pbkdf2`, `argon2i`, `argon2id`, or an unknown one.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its cost.
    #[serde(flatten)]
    pub cost: KdfCost,
}

/// The cost of a KDF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KdfCost {
    /// PBKDF2.
    Pbkdf2 {
        /// Its hash.
        hash: String,
        /// Number of iterations.
        iterations: u32,
    },
    /// Argon2.
    Argon2 {
        /// Number of passes over the memory.
        time: u32,
        /// Memory in KiB.
        memory_kib: u32,
        /// Number of lanes, each a thread.
        cpus: u32,
    },
    /// The KDF is unknown, and so is its cost.
    Unknown {},
}

/// The anti-forensic splitter of a keyslot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AfInfo {
    /// Its hash.
    pub hash: String,
    /// Number of stripes.
    pub stripes: u32,
}
