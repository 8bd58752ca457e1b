//! Tiers: which instructions a cipher runs on, found at run time, once per cipher.
//!
//! | tier | needs | x86 CPUs |
//! |---|---|---|
//! | `Vaes512` | VAES, VPCLMULQDQ, AVX-512 F, BW, VL | Ice Lake, Sapphire Rapids, Zen 4 and later |
//! | `Vaes256` | VAES, VPCLMULQDQ, AVX2 | Zen 3, Alder Lake and later |
//! | `AesNi` | AES-NI, AVX | Sandy Bridge, Bulldozer and later |
//! | `Portable` | nothing | all, and every other architecture (which uses its own AES, if any) |

/// The instructions that a cipher runs on, fastest first.
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
