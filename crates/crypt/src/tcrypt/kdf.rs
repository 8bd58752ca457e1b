//! The key derivations of headers. None is named in the header, so all are tried.

use crate::error::Error;
use crate::hash::HashAlgorithm;
use crate::kdf::{Argon2Variant, Kdf};

use super::keyfiles::TRUECRYPT_LEN_BYTES;

/// Length of a header key: three keys of 64 bytes. The length matters to argon2, so it is derived
/// for shorter ciphers too.
pub(super) const HEADER_KEY_LEN_BYTES: usize = 192;

/// A derivation to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) kdf: Kdf,
    /// Of VeraCrypt, else of TrueCrypt.
    pub(super) is_veracrypt: bool,
}

impl Candidate {
    pub(super) fn name(&self) -> String {
        match self.kdf {
            Kdf::Pbkdf2 { hash, iterations } => {
                format!("pbkdf2-{} with {iterations} iterations", hash.name())
            }
            Kdf::Argon2 { time, memory_kib, .. } => {
                format!("argon2id with {time} passes over {memory_kib} KiB")
            }
        }
    }
}

/// VeraCrypt's hashes with their iterations without a PIM.
const VERACRYPT: [(HashAlgorithm, u32); 5] = [
    (HashAlgorithm::Sha512, 500_000),
    (HashAlgorithm::Sha256, 500_000),
    (HashAlgorithm::Blake2s256, 500_000),
    (HashAlgorithm::Whirlpool, 500_000),
    (HashAlgorithm::Ripemd160, 655_331),
];
/// Those of its boot loader.
const BOOT: [(HashAlgorithm, u32); 3] = [
    (HashAlgorithm::Sha256, 200_000),
    (HashAlgorithm::Blake2s256, 200_000),
    (HashAlgorithm::Ripemd160, 327_661),
];
/// TrueCrypt's.
const TRUECRYPT: [(HashAlgorithm, u32); 5] = [
    (HashAlgorithm::Ripemd160, 2000),
    (HashAlgorithm::Ripemd160, 1000),
    (HashAlgorithm::Sha512, 1000),
    (HashAlgorithm::Whirlpool, 1000),
    (HashAlgorithm::Sha1, 2000),
];

/// All derivations for a PIM, the cheap ones of TrueCrypt first. TrueCrypt has no PIM, and no
/// passwords over 64 bytes.
pub(super) fn candidates(
    pim: Option<u32>,
    is_system: bool,
    password_len: usize,
) -> Result<Vec<Candidate>, Error> {
    let mut found = Vec::new();
    let mut add = |hash, iterations, is_veracrypt| {
        found.push(Candidate { kdf: Kdf::Pbkdf2 { hash, iterations }, is_veracrypt });
    };
    if pim.is_none() && password_len <= TRUECRYPT_LEN_BYTES {
        for (hash, iterations) in TRUECRYPT {
            add(hash, iterations, false);
        }
    }
    let scaled = |base: u32, factor: u32, usual: u32| match pim {
        None => Ok(usual),
        Some(0) => Err(Error::field("pim", "0 is no PIM; leave it out for the default")),
        Some(pim) => pim
            .checked_mul(factor)
            .and_then(|more| more.checked_add(base))
            .ok_or_else(|| Error::field("pim", format!("{pim} is too large"))),
    };
    if is_system {
        for (hash, usual) in BOOT {
            add(hash, scaled(0, 2048, usual)?, true);
        }
    }
    for (hash, usual) in VERACRYPT {
        add(hash, scaled(15_000, 1000, usual)?, true);
    }
    if !is_system {
        let (time, memory_kib) = argon2_cost(pim);
        let kdf = Kdf::Argon2 { variant: Argon2Variant::Id, time, memory_kib, lanes: 1 };
        found.push(Candidate { kdf, is_veracrypt: true });
    }
    Ok(found)
}

/// Passes and KiB of Argon2id for a PIM; the default is that of PIM 12.
fn argon2_cost(pim: Option<u32>) -> (u32, u32) {
    match pim.unwrap_or(12) {
        pim @ ..=31 => {
            let steps = pim.saturating_sub(1);
            (3 + steps / 3, 1024 * (64 + 32 * steps))
        }
        pim => (pim - 18, 1024 * 1024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(pim: Option<u32>, is_system: bool) -> Vec<String> {
        candidates(pim, is_system, 8).unwrap().iter().map(Candidate::name).collect()
    }

    #[test]
    fn pim_sets_the_iterations_of_veracrypt_and_leaves_truecrypt_out() {
        let usual = costs(None, false);
        assert_eq!(usual.len(), 11);
        assert!(usual.contains(&"pbkdf2-sha512 with 500000 iterations".into()));
        assert!(usual.contains(&"argon2id with 6 passes over 425984 KiB".into()));
        let one = costs(Some(1), false);
        assert_eq!(one.len(), 6);
        assert!(one.contains(&"pbkdf2-ripemd160 with 16000 iterations".into()));
        assert!(one.contains(&"argon2id with 3 passes over 65536 KiB".into()));
        assert!(
            costs(Some(40), false).contains(&"argon2id with 22 passes over 1048576 KiB".into())
        );
        assert!(costs(Some(98), true).contains(&"pbkdf2-sha256 with 200704 iterations".into()));
        assert_eq!(candidates(None, false, 128).unwrap().len(), 6);
        for pim in [0, 5_000_000] {
            assert!(candidates(Some(pim), false, 8).unwrap_err().to_string().contains("`pim`"));
        }
    }
}
