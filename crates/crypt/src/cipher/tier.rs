//! Tiers: the instruction sets of a cipher's kernels, detected at run time, once per cipher.
//!
//! | tier | needs | x86 CPUs |
//! |---|---|---|
//! | `Vaes512` | VAES, VPCLMULQDQ, AVX-512 F, BW, VL | Ice Lake, Sapphire Rapids, Zen 4 and later |
//! | `Vaes256` | VAES, VPCLMULQDQ, AVX2 | Zen 3, Alder Lake and later |
//! | `AesNi` | AES-NI, AVX | Sandy Bridge, Bulldozer and later |
//! | `Portable` | nothing | all, and every other architecture (which uses its own AES, if any) |

use super::spec::{CipherSpec, Digest, IvMode, Mode};
use crate::hash::HashAlgorithm;

/// Instruction set of a cipher's kernels, fastest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Four blocks a register.
    Vaes512,
    /// Two blocks a register.
    Vaes256,
    /// One block a register.
    AesNi,
    /// The `aes` crate.
    Portable,
}

impl Tier {
    /// Every tier, fastest first.
    const ALL: [Self; 4] = [Self::Vaes512, Self::Vaes256, Self::AesNi, Self::Portable];

    /// The fastest tier of this CPU.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.into_iter().find(|tier| tier.is_available()).unwrap_or(Self::Portable)
    }

    /// The tiers of this CPU, fastest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|tier| tier.is_available()).collect()
    }

    /// Its name in options and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vaes512 => "vaes512",
            Self::Vaes256 => "vaes256",
            Self::AesNi => "aesni",
            Self::Portable => "portable",
        }
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_available(self) -> bool {
        let vaes = || {
            is_x86_feature_detected!("aes")
                && is_x86_feature_detected!("vaes")
                && is_x86_feature_detected!("vpclmulqdq")
                && is_x86_feature_detected!("avx2")
        };
        match self {
            Self::Vaes512 => {
                vaes()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
            }
            Self::Vaes256 => vaes(),
            Self::AesNi => is_x86_feature_detected!("aes") && is_x86_feature_detected!("avx"),
            Self::Portable => true,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn is_available(self) -> bool {
        self == Self::Portable
    }
}

/// Ciphers with kernels on every tier: those of nearly all volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tiered {
    /// AES-XTS with `plain` or `plain64`.
    Xts,
    /// AES-CBC with `plain` or `plain64`.
    Cbc,
    /// AES-CBC with `essiv:sha256`.
    CbcEssivSha256,
}

impl Tiered {
    /// The tiered form of a cipher, if there is one.
    pub(super) fn of(spec: &CipherSpec) -> Option<Self> {
        const SHA256: Option<Digest> = Some(Digest::Hash(HashAlgorithm::Sha256));
        if spec.cipher != "aes" || spec.key_count != 1 {
            return None;
        }
        match (spec.mode, spec.iv, spec.essiv) {
            (Mode::Xts, IvMode::Plain | IvMode::Plain64, None) => Some(Self::Xts),
            (Mode::Cbc, IvMode::Plain | IvMode::Plain64, None) => Some(Self::Cbc),
            (Mode::Cbc, IvMode::Plain64, digest) if digest == SHA256 => Some(Self::CbcEssivSha256),
            _ => None,
        }
    }

    /// The length of one AES key in a volume key.
    pub(super) fn aes_key_len_bytes(self, key_len_bytes: usize) -> usize {
        match self {
            Self::Xts => key_len_bytes / 2,
            Self::Cbc | Self::CbcEssivSha256 => key_len_bytes,
        }
    }
}
