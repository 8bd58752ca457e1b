//! The cost of one try of a passphrase, chosen for this machine.

use std::ops::RangeInclusive;
use std::path::Path;

use blockyard_crypt::format;
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::cost::{self, Argon2Bounds};
use blockyard_crypt::kdf::{Argon2Variant, Kdf};

use crate::format::{FormatError, wrong};
use crate::memory;

/// Durations of a derivation: none protects nothing, and a longer one has no use.
const PBKDF_TARGET_MS: RangeInclusive<u64> = 1..=600_000;

/// The key derivation function of a new keyslot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pbkdf {
    /// Argon2id.
    #[default]
    Argon2id,
    /// Argon2i.
    Argon2i,
    /// PBKDF2.
    Pbkdf2,
}

/// A function and its limits.
pub(crate) struct Cost {
    pub(crate) pbkdf: Pbkdf,
    pub(crate) target_ms: u64,
    pub(crate) memory_kib: Option<u32>,
    pub(crate) threads: Option<u32>,
    pub(crate) iterations: Option<u32>,
}

impl Cost {
    /// The cost for this machine. `hash` is PBKDF2's.
    pub(crate) fn measured(&self, hash: HashAlgorithm) -> Result<format::Pbkdf, FormatError> {
        if !PBKDF_TARGET_MS.contains(&self.target_ms) {
            return Err(wrong("pbkdf_target_ms", &"it is none of 1 to 600000"));
        }
        self.check()?;
        let variant = match self.pbkdf {
            Pbkdf::Argon2id => Argon2Variant::Id,
            Pbkdf::Argon2i => Argon2Variant::I,
            Pbkdf::Pbkdf2 => {
                return Ok(match self.iterations {
                    Some(iterations) => format::Pbkdf::Fixed(Kdf::Pbkdf2 { hash, iterations }),
                    None => format::Pbkdf::Pbkdf2 { hash, target_ms: self.target_ms },
                });
            }
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let memory_bytes = memory::limit_bytes(Path::new("/"));
        let mut bounds = Argon2Bounds::for_machine(self.target_ms, memory_bytes, cpus);
        bounds.lanes = self.threads.unwrap_or(bounds.lanes);
        bounds.memory_kib_max = self.memory_kib.unwrap_or(bounds.memory_kib_max);
        Ok(match self.iterations {
            Some(time) => format::Pbkdf::Fixed(Kdf::Argon2 {
                variant,
                time,
                memory_kib: bounds.memory_kib_max,
                lanes: bounds.lanes,
            }),
            None => format::Pbkdf::Argon2 { variant, bounds },
        })
    }

    /// Checks the given costs: their function has them, and they keep cryptsetup's limits.
    fn check(&self) -> Result<(), FormatError> {
        let is_argon2 = self.pbkdf != Pbkdf::Pbkdf2;
        if !is_argon2 && (self.memory_kib.is_some() || self.threads.is_some()) {
            return Err(FormatError::NotArgon2);
        }
        let iterations_min = match self.pbkdf {
            Pbkdf::Pbkdf2 => cost::ITERATIONS_MIN,
            Pbkdf::Argon2id | Pbkdf::Argon2i => cost::TIME_MIN,
        };
        let given = [
            ("pbkdf_iterations", self.iterations, iterations_min..=u32::MAX),
            ("pbkdf_memory_kib", self.memory_kib, cost::MEMORY_KIB_MIN..=u32::MAX),
            ("pbkdf_threads", self.threads, 1..=cost::LANES_MAX),
        ];
        for (field, value, range) in given {
            let Some(value) = value.filter(|value| !range.contains(value)) else { continue };
            let (least, most) = range.into_inner();
            let problem = format!("{value} is none of {least} to {most}");
            return Err(wrong(field, &problem));
        }
        Ok(())
    }
}
