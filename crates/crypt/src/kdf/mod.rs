//! Key derivation: PBKDF2 (RFC 8018) and Argon2i, Argon2id (RFC 9106), with limits.
//!
//! A header determines the cost of a passphrase, and a header is untrusted. So every derivation
//! first checks its cost against [`KdfLimits`], before it allocates or computes:
//!
//! | demand | limit | default |
//! |---|---|---|
//! | argon2 memory | [`KdfLimits::memory_kib_max`] | 4 GiB, cryptsetup's own maximum |
//! | argon2 lanes | [`KdfLimits::lanes_max`] | 16 (cryptsetup writes at most 4) |
//! | argon2 passes x memory, PBKDF2 iterations x blocks | [`KdfLimits::seconds_max`] | 60 s |
//!
//! Seconds are estimated from fixed rates of one slow core, so that all machines accept or refuse
//! the same headers: 1 GiB of argon2 memory per second, and the PBKDF2 rates of
//! `pbkdf2_rate_per_s`. A usual header takes 1 to 4 s by this estimate; 2^31 iterations are refused
//! with every hash.
//!
//! The argon2 memory is allocated and zeroised here, and the stack is wiped after every derivation.

pub mod cost;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use zeroize::Zeroize;

use crate::hash::HashAlgorithm;
use crate::stack::with_wiped_stack;

/// Limits on the demands of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KdfLimits {
    /// Most memory of one argon2 run, in KiB.
    pub memory_kib_max: u64,
    /// Most argon2 lanes.
    pub lanes_max: u32,
    /// Most estimated seconds of one derivation.
    pub seconds_max: u64,
}

impl KdfLimits {
    /// No limits, for a cost that this program chose itself.
    pub(crate) const UNLIMITED: Self =
        Self { memory_kib_max: u64::MAX, lanes_max: u32::MAX, seconds_max: u64::MAX };
}

impl Default for KdfLimits {
    fn default() -> Self {
        Self { memory_kib_max: 4 * 1024 * 1024, lanes_max: 16, seconds_max: 60 }
    }
}

/// Variant of Argon2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argon2Variant {
    /// Argon2i.
    I,
    /// Argon2id.
    Id,
}

/// A key derivation function and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kdf {
    /// PBKDF2 with HMAC.
    Pbkdf2 {
        /// The hash in HMAC.
        hash: HashAlgorithm,
        /// Rounds for each block of output.
        iterations: u32,
    },
    /// Argon2, version 1.3.
    Argon2 {
        /// i or id.
        variant: Argon2Variant,
        /// Passes over the memory.
        time: u32,
        /// Memory in KiB.
        memory_kib: u32,
        /// Lanes; each can be a thread.
        lanes: u32,
    },
}

/// The reason why a key was not derived, without the place: the caller knows the keyslot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KdfError {
    /// More memory than [`KdfLimits::memory_kib_max`].
    #[error(
        "its {kdf} demands {demanded_kib} KiB of memory and at most {limit_kib} KiB are allowed; \
         if you trust the header, raise the limit `memory_kib_max`"
    )]
    Memory {
        /// Name of the function.
        kdf: &'static str,
        /// The header's demand.
        demanded_kib: u64,
        /// The limit.
        limit_kib: u64,
    },
    /// More lanes than [`KdfLimits::lanes_max`].
    #[error("its {kdf} demands {demanded} lanes and at most {limit} are allowed")]
    Lanes {
        /// Name of the function.
        kdf: &'static str,
        /// The header's demand.
        demanded: u32,
        /// The limit.
        limit: u32,
    },
    /// More work than [`KdfLimits::seconds_max`].
    #[error(
        "its {kdf} would take about {estimated_s} s ({cost}) and at most {limit_s} s are allowed; \
         if you trust the header, raise the limit `seconds_max`"
    )]
    Time {
        /// Name of the function.
        kdf: &'static str,
        /// The cost in the header's terms.
        cost: String,
        /// Estimated seconds.
        estimated_s: u64,
        /// The limit in seconds.
        limit_s: u64,
    },
    /// Invalid parameters.
    #[error("its {kdf} has impossible parameters ({problem}); the header is broken")]
    Parameters {
        /// Name of the function.
        kdf: &'static str,
        /// The problem.
        problem: String,
    },
    /// The allocation failed.
    #[error("its {kdf} needs {demanded_kib} KiB of memory and the system does not give them")]
    OutOfMemory {
        /// Name of the function.
        kdf: &'static str,
        /// The header's demand.
        demanded_kib: u64,
    },
    /// The threads of the lanes could not be started.
    #[error("its {kdf} cannot be computed: {problem}")]
    Threads {
        /// Name of the function.
        kdf: &'static str,
        /// The system's error.
        problem: String,
    },
}

/// PBKDF2 iterations for one block of output per second on one slow core (OpenSSL 3.0 without
/// special instructions, rounded down).
fn pbkdf2_rate_per_s(hash: HashAlgorithm) -> u64 {
    match hash {
        HashAlgorithm::Sha1 => 1_400_000,
        HashAlgorithm::Sha224 | HashAlgorithm::Sha256 => 2_900_000,
        HashAlgorithm::Sha384 | HashAlgorithm::Sha512 => 1_100_000,
        HashAlgorithm::Ripemd160 => 600_000,
        HashAlgorithm::Whirlpool => 300_000,
        HashAlgorithm::Sha3_224
        | HashAlgorithm::Sha3_256
        | HashAlgorithm::Sha3_384
        | HashAlgorithm::Sha3_512 => 400_000,
        HashAlgorithm::Blake2b160
        | HashAlgorithm::Blake2b256
        | HashAlgorithm::Blake2b384
        | HashAlgorithm::Blake2b512
        | HashAlgorithm::Blake2s128
        | HashAlgorithm::Blake2s160
        | HashAlgorithm::Blake2s224
        | HashAlgorithm::Blake2s256 => 700_000,
    }
}

/// Argon2 memory per second on one slow core, in KiB.
const ARGON2_KIB_PER_S: u64 = 1024 * 1024;

impl Kdf {
    /// The name as LUKS2 writes it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pbkdf2 { .. } => "pbkdf2",
            Self::Argon2 { variant: Argon2Variant::I, .. } => "argon2i",
            Self::Argon2 { variant: Argon2Variant::Id, .. } => "argon2id",
        }
    }

    /// Estimated milliseconds for `out_len_bytes` of output, at the rates of this file.
    #[must_use]
    pub fn estimated_ms(&self, out_len_bytes: usize) -> u64 {
        match *self {
            Self::Pbkdf2 { hash, iterations } => {
                let blocks = out_len_bytes.div_ceil(hash.digest_len_bytes()) as u64;
                u64::from(iterations).saturating_mul(blocks).saturating_mul(1000)
                    / pbkdf2_rate_per_s(hash)
            }
            Self::Argon2 { time, memory_kib, .. } => {
                let passed_kib = u64::from(time) * u64::from(memory_kib);
                passed_kib.saturating_mul(1000) / ARGON2_KIB_PER_S
            }
        }
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// The exceeded limit.
    pub fn check(&self, out_len_bytes: usize, limits: &KdfLimits) -> Result<(), KdfError> {
        let kdf = self.name();
        let impossible = |problem: &str| KdfError::Parameters { kdf, problem: problem.to_owned() };
        let cost = match *self {
            Self::Pbkdf2 { iterations, .. } => {
                if iterations == 0 {
                    return Err(impossible("0 iterations"));
                }
                format!("{iterations} iterations")
            }
            Self::Argon2 { time, memory_kib, lanes, .. } => {
                if time == 0 || lanes == 0 {
                    return Err(impossible("0 passes or 0 lanes"));
                }
                if lanes > limits.lanes_max {
                    return Err(KdfError::Lanes { kdf, demanded: lanes, limit: limits.lanes_max });
                }
                if u64::from(memory_kib) < 8 * u64::from(lanes) {
                    return Err(impossible("less than 8 KiB of memory for each lane"));
                }
                let demanded_kib = u64::from(memory_kib);
                if demanded_kib > limits.memory_kib_max {
                    let limit_kib = limits.memory_kib_max;
                    return Err(KdfError::Memory { kdf, demanded_kib, limit_kib });
                }
                format!("{time} passes over {memory_kib} KiB")
            }
        };
        let estimated_s = self.estimated_ms(out_len_bytes) / 1000;
        if estimated_s > limits.seconds_max {
            return Err(KdfError::Time { kdf, cost, estimated_s, limit_s: limits.seconds_max });
        }
        Ok(())
    }

    /// Fills `out` from `password`, after [`Kdf::check`].
    ///
    /// # Errors
    /// When the limits forbid it, the parameters are impossible, or memory is short.
    pub fn derive(
        &self,
        password: &[u8],
        salt: &[u8],
        out: &mut [u8],
        limits: &KdfLimits,
    ) -> Result<(), KdfError> {
        self.check(out.len(), limits)?;
        with_wiped_stack(|| match *self {
            Self::Pbkdf2 { hash, iterations } => {
                hash.pbkdf2(password, salt, iterations, out);
                Ok(())
            }
            Self::Argon2 { variant, time, memory_kib, lanes } => {
                let algorithm = match variant {
                    Argon2Variant::I => Algorithm::Argon2i,
                    Argon2Variant::Id => Algorithm::Argon2id,
                };
                let impossible = |error: argon2::Error| KdfError::Parameters {
                    kdf: self.name(),
                    problem: error.to_string(),
                };
                let params =
                    Params::new(memory_kib, time, lanes, Some(out.len())).map_err(impossible)?;
                let mut memory =
                    Argon2Memory::new(params.block_count()).ok_or(KdfError::OutOfMemory {
                        kdf: self.name(),
                        demanded_kib: u64::from(memory_kib),
                    })?;
                let argon2 = Argon2::new(algorithm, Version::V0x13, params);
                with_threads(lanes, || {
                    argon2.hash_password_into_with_memory(password, salt, out, &mut memory.blocks)
                })
                .map_err(|error| KdfError::Threads { kdf: self.name(), problem: error })?
                .map_err(impossible)
            }
        })
    }
}

/// Runs `derive` with its own threads as lanes, which end before the return. Persistent threads
/// would keep traces of the key on their stacks. They would also receive signals that are blocked
/// elsewhere for the program's signal thread.
fn with_threads<R: Send>(lanes: u32, derive: impl FnOnce() -> R + Send) -> Result<R, String> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    rayon::ThreadPoolBuilder::new()
        .num_threads(cpus.min(lanes as usize))
        .thread_name(|_| "argon2-lane".into())
        .build_scoped(|thread| with_wiped_stack(|| thread.run()), |pool| pool.install(derive))
        .map_err(|error| error.to_string())
}

/// Argon2's blocks; always zeroised on drop.
struct Argon2Memory {
    blocks: Vec<Block>,
}

impl Argon2Memory {
    /// `None` if the allocation fails.
    fn new(block_count: usize) -> Option<Self> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(block_count).ok()?;
        blocks.resize(block_count, Block::new());
        Some(Self { blocks })
    }
}

impl Drop for Argon2Memory {
    fn drop(&mut self) {
        for block in &mut self.blocks {
            block.zeroize();
        }
    }
}

#[cfg(test)]
mod tests;
