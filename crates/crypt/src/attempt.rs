//! One attempt to open a volume: which keyslots were tried, and what was not tried and why.
//!
//! A keyslot that cannot be used (an unknown cipher, a KDF over the limits) does not keep the
//! others from being tried, and a wrong passphrase looks the same for all of them. The estimated
//! time of all keyslots together is bounded too: thirty slots may not each take the whole limit.

use crate::error::{Error, KeyslotProblem};
use crate::kdf::{Kdf, KdfError, KdfLimits};

/// All keyslots together may take this many times the limit for one.
const TOTAL_TIMES_LIMIT: u64 = 4;

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
            "the keyslots before it have used the time that is allowed for all together; name it \
             with --key-slot to try it alone",
        )?;
        Ok(())
    }

    pub(crate) fn limits(&self) -> &KdfLimits {
        &self.limits
    }

    /// Notes that a keyslot was tried and the passphrase is not its.
    pub(crate) fn wrong(&mut self) {
        self.tried_any = true;
    }

    /// Notes that a keyslot was not tried.
    pub(crate) fn skip(&mut self, keyslot: u32, problem: String) {
        self.untried.push(KeyslotProblem { keyslot, problem });
    }

    /// The error when nothing has opened.
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
    fn attempt_bounds_the_time_of_all_keyslots_together() {
        let mut attempt = Attempt::new(KdfLimits { seconds_max: 10, ..KdfLimits::default() });
        let nine_seconds =
            Kdf::Argon2 { variant: Argon2Variant::Id, time: 9, memory_kib: 1 << 20, lanes: 1 };
        for _ in 0..4 {
            attempt.admit(&nine_seconds, 64).unwrap();
        }
        let refused = attempt.admit(&nine_seconds, 64).unwrap_err();
        assert!(refused.contains("--key-slot"), "{refused}");
    }
}
