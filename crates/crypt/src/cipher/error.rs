//! Errors in the choice of a cipher and its key. Encryption itself cannot fail.

use thiserror::Error;

use super::Tier;

/// The reason why a cipher cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CipherError {
    /// The text is not a cipher string.
    #[error("cipher string `{spec}` is malformed: {reason} (an example: `aes-xts-plain64`)")]
    BadSpec {
        /// The text.
        spec: String,
        /// The problem.
        reason: &'static str,
    },
    /// The text is well-formed, but this version does not support it.
    #[error("cipher `{spec}`: {part} is not supported yet")]
    Unsupported {
        /// The text.
        spec: String,
        /// The unsupported part: "cipher `serpent`".
        part: String,
    },
    /// Every part is known, but they exclude each other.
    #[error("cipher `{spec}`: {reason}")]
    BadCombination {
        /// The text.
        spec: String,
        /// The parts, and the reason.
        reason: String,
    },
    /// The null cipher: it would store the plaintext.
    #[error("cipher `{spec}` does not encrypt; the null cipher is always refused")]
    NullCipher {
        /// The text.
        spec: String,
    },
    /// The cipher does not take a key of this length.
    #[error("cipher `{spec}` takes a key of {allowed} bytes, not {got}")]
    BadKeyLength {
        /// The cipher string.
        spec: String,
        /// Length of the given key.
        got: usize,
        /// Valid lengths, as text.
        allowed: String,
    },
    /// The encryption sector size is not one of dm-crypt's.
    #[error("encryption sector size {got} is not one of 512, 1024, 2048, 4096 bytes")]
    BadSectorSize {
        /// The given size.
        got: u32,
    },
    /// The IV mode is defined for sectors of 512 bytes only.
    #[error("cipher `{spec}`: its IV mode takes sectors of 512 bytes, not {got}")]
    SmallSectorsOnly {
        /// The cipher string.
        spec: String,
        /// The given size.
        got: u32,
    },
    /// The CPU lacks the instructions of the requested tier.
    #[error("this CPU cannot run the cipher tier `{}`", tier.name())]
    TierUnavailable {
        /// The tier.
        tier: Tier,
    },
}
