//! One attempt to open a volume: the tried keyslots, and the skipped keyslots with the reasons.
//!
//! An unusable keyslot (an unknown cipher, a KDF over the limits) does not prevent the attempts at
//! the others. A wrong passphrase gives the same error for all of them. The estimated time of all
//! keyslots together is bounded too: thirty slots may not each take the whole limit.

use crate::error::{Error, KeyslotProblem};
use crate::kdf::{Kdf, KdfError, KdfLimits};

/// Time limit of all keyslots together, in multiples of the limit for one.
const TOTAL_TIMES_LIMIT: u64 = 4;

/// The reason why a keyslot cannot be tried.
#[derive(Debug)]
pub(crate) struct Problem {
    text: String,
    out_of_memory: bool,
}

impl Problem {
    /// Adds the number of the keyslot.
    pub(crate) fn of(self, keyslot: u32) -> KeyslotProblem {
        KeyslotProblem { keyslot, problem: self.text, out_of_memory: self.out_of_memory }
    }
}

impl<T: Into<String>> From<T> for Problem {
    fn from(text: T) -> Self {
        Self { text: text.into(), out_of_memory: false }
    }
}

/// The problem of a failed key derivation.
pub(crate) fn kdf_problem(error: &KdfError) -> Problem {
    let out_of_memory = matches!(error, KdfError::OutOfMemory { .. });
    Problem { text: error.to_string(), out_of_memory }
}

pub(crate) struct Attempt {
    limits: KdfLimits,
    left_ms: u64,
    tried_any: bool,
    untried: Vec<KeyslotProblem>,
}

impl Attempt {
    pub(crate) fn new(limits: KdfLimits) -> Self {
        let left_ms = limits.seconds_max.saturating_mul(1000 * TOTAL_TIMES_LIMIT);
        Self { limits, left_ms, tried_any: false, untried: Vec::new() }
    }

    /// Whether a KDF of a keyslot or of its digest may run.
    pub(crate) fn admit(&mut self, kdf: &Kdf, out_len_bytes: usize) -> Result<(), String> {
        kdf.check(out_len_bytes, &self.limits).map_err(|error: KdfError| error.to_string())?;
        let estimated_ms = kdf.estimated_ms(out_len_bytes);
        self.left_ms = self.left_ms.checked_sub(estimated_ms).ok_or(
            "the keyslots before it have used up the time limit of all keyslots; name it with \
             `keyslot` to try it alone",
        )?;
        Ok(())
    }

    pub(crate) fn limits(&self) -> &KdfLimits {
        &self.limits
    }

    /// Notes a keyslot that the passphrase does not open.
    pub(crate) fn wrong(&mut self) {
        self.tried_any = true;
    }

    /// Notes a skipped keyslot.
    pub(crate) fn skip(&mut self, keyslot: u32, problem: impl Into<Problem>) {
        self.untried.push(problem.into().of(keyslot));
    }

    /// The error if no keyslot was opened.
    pub(crate) fn failed(self) -> Error {
        if self.tried_any {
            Error::WrongPassphrase { untried: self.untried }
        } else {
            Error::NoUsableKeyslot { untried: self.untried }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kdf::Argon2Variant;

    #[test]
    fn memory_that_the_system_does_not_give_is_told_apart_from_other_problems() {
        let mut attempt = Attempt::new(KdfLimits::default());
        let short = KdfError::OutOfMemory { kdf: "argon2id", demanded_kib: 1 << 20 };
        attempt.skip(3, kdf_problem(&short));
        attempt.skip(4, "its KDF is unknown");
        let Error::NoUsableKeyslot { untried } = attempt.failed() else { panic!() };
        assert!(untried[0].out_of_memory && !untried[1].out_of_memory, "{untried:?}");
        assert!(untried[0].problem.contains("1048576 KiB"), "{untried:?}");
    }

    #[test]
    fn attempt_bounds_the_time_of_all_keyslots_together() {
        let mut attempt = Attempt::new(KdfLimits { seconds_max: 10, ..KdfLimits::default() });
        let nine_seconds =
            Kdf::Argon2 { variant: Argon2Variant::Id, time: 9, memory_kib: 1 << 20, lanes: 1 };
        for _ in 0..4 {
            attempt.admit(&nine_seconds, 64).unwrap();
        }
        let refused = attempt.admit(&nine_seconds, 64).unwrap_err();
        assert!(refused.contains("`keyslot`"), "{refused}");
    }
}
