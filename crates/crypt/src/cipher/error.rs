//! What can be wrong with a cipher before it has seen a byte; encrypting itself cannot fail.

use thiserror::Error;

use super::Tier;

/// Why there is no cipher.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CipherError {
    /// The text is no cipher string.
    #[error("cipher string `{spec}` is malformed: {reason} (an example: `aes-xts-plain64`)")]
    BadSpec {
        /// The text.
        spec: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The text is well formed, and this version does not do what it says.
    #[error("cipher `{spec}`: {part} is not supported yet")]
    Unsupported {
        /// The text.
        spec: String,
        /// The part that is not supported: "cipher `serpent`".
        part: String,
    },
    /// Every part is known, and they cannot be used together.
    #[error("cipher `{spec}`: {reason}")]
    BadCombination {
        /// The text.
        spec: String,
        /// Which parts, and why not.
        reason: String,
    },
    /// The cipher would store the plaintext.
    #[error("cipher `{spec}` does not encrypt: the null cipher is refused, always")]
    NullCipher {
        /// The text.
        spec: String,
    },
    /// The key does not fit the cipher.
    #[error("cipher `{spec}` takes a key of {allowed} bytes, not {got}")]
    BadKeyLength {
        /// The cipher string.
        spec: String,
        /// Length of the key that was given.
        got: usize,
        /// The lengths it takes, for the message.
        allowed: String,
    },
    /// The encryption sector size is none that dm-crypt knows.
    #[error("encryption sector size {got} is not one of 512, 1024, 2048, 4096 bytes")]
    BadSectorSize {
        /// The size that was given.
        got: u32,
    },
    /// The IV mode is defined for sectors of 512 bytes only.
    #[error("cipher `{spec}`: its IV mode takes sectors of 512 bytes, not {got}")]
    SmallSectorsOnly {
        /// The cipher string.
        spec: String,
        /// The size that was given.
        got: u32,
    },
    /// The CPU lacks the instructions of a tier that was asked for by name.
    #[error("this CPU cannot run the cipher tier `{}`", tier.name())]
    TierUnavailable {
        /// The tier.
        tier: Tier,
    },
}
