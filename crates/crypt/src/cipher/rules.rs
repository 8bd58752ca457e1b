//! Rules for combinations: block sizes, IV modes, digests, and the lengths of volume keys.
//!
//! The rules are those of dm-crypt and its crypto templates (`crypt_ctr_ivmode`, `crypt_iv_*_ctr`,
//! `crypto/essiv.c`), checked against Linux 6.1. Two are stricter. `lmk` requires CBC: the kernel
//! accepts other modes and then cannot read its own data back. A serpent key must have a usual
//! length.
//!
//! ```text
//!   volume key of  aes:2-cbc-tcw           | key 0 | key 1 | IV seed | whitening |
//!                  aes:64-cbc-lmk, v3      | key 0 | ... | key 63 | seed |
//!                  aes-cbc-elephant        | key 0 | key of the diffuser |
//!                  aes-lrw-benbi           | key 0: AES key, tweak key |
//!                  aes-xts-plain64         | key 0: AES key, tweak key |
//! ```

use super::CipherError;
use super::spec::{CipherSpec, Digest, IvMode, Mode};
use crate::block;

/// Block size of every cipher but cast5; of LRW's and XTS's field; of AES.
pub(super) const WIDE_BLOCK_BYTES: usize = 16;

/// Length of Adiantum's key, and of its tweak.
pub(super) const ADIANTUM_BYTES: usize = 32;

/// Length of the whitening value of `tcw`.
pub(super) const WHITENING_BYTES: usize = 16;

/// Greatest key length of Serpent, which is defined for every length up to this.
const SERPENT_KEY_BYTES_MAX: usize = 32;

/// Layout of a volume key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyLayout {
    /// Length of each data key.
    pub(super) key_len_bytes: usize,
    /// Length of the rest after the data keys.
    pub(super) extra_len_bytes: usize,
}

impl CipherSpec {
    pub(super) fn block_bytes(&self) -> usize {
        if self.cipher == "cast5" { 8 } else { WIDE_BLOCK_BYTES }
    }

    /// Length of a sector's IV; zero where the mode has none.
    pub(super) fn iv_bytes(&self) -> usize {
        match self.mode {
            Mode::Ecb => 0,
            Mode::Cbc | Mode::Ctr | Mode::Lrw | Mode::Xts => self.block_bytes(),
            Mode::Adiantum(_) => ADIANTUM_BYTES,
        }
    }

    /// Layout of a volume key of this length.
    pub(super) fn key_layout(&self, len_bytes: usize) -> Result<KeyLayout, CipherError> {
        let layouts = self.key_layouts();
        match layouts.iter().find(|(total, _)| *total == len_bytes) {
            Some((_, layout)) => Ok(*layout),
            None => Err(CipherError::BadKeyLength {
                spec: self.as_str().to_owned(),
                got: len_bytes,
                allowed: list(layouts.iter().map(|(total, _)| *total).collect()),
            }),
        }
    }

    /// All valid lengths of a volume key, with their layouts.
    fn key_layouts(&self) -> Vec<(usize, KeyLayout)> {
        let lengths = block::key_lengths(&self.cipher).unwrap_or_default();
        let key_count = self.key_count as usize;
        let mut layouts = Vec::new();
        for length in lengths {
            let key_len_bytes = match self.mode {
                Mode::Ecb | Mode::Cbc | Mode::Ctr => *length,
                Mode::Lrw => length + WIDE_BLOCK_BYTES,
                Mode::Xts => 2 * length,
                Mode::Adiantum(_) => ADIANTUM_BYTES,
            };
            let keys_bytes = key_len_bytes.saturating_mul(key_count);
            let mut add = |extra_len_bytes: usize| {
                let layout = KeyLayout { key_len_bytes, extra_len_bytes };
                layouts.push((keys_bytes.saturating_add(extra_len_bytes), layout));
            };
            match self.iv {
                IvMode::Elephant if aes_takes(keys_bytes) => add(keys_bytes),
                IvMode::Elephant => {}
                IvMode::Tcw => add(self.iv_bytes() + WHITENING_BYTES),
                IvMode::Lmk => {
                    add(0);
                    // A seed is recognised only if the length is not divisible by the number of
                    // keys.
                    if key_len_bytes % key_count != 0 {
                        add(key_len_bytes);
                    }
                }
                _ => add(0),
            }
        }
        layouts
    }
}

/// Refuses invalid combinations.
pub(super) fn check(spec: &CipherSpec) -> Result<(), CipherError> {
    let cipher = &spec.cipher;
    let block_bytes = spec.block_bytes();
    let narrow = block_bytes != WIDE_BLOCK_BYTES;
    if narrow && matches!(spec.mode, Mode::Lrw | Mode::Xts) {
        let mode = if spec.mode == Mode::Lrw { "lrw" } else { "xts" };
        return Err(refused(
            spec,
            format!("mode `{mode}` takes blocks of 16 bytes, and those of `{cipher}` have 8"),
        ));
    }
    if let Some(digest) = spec.essiv {
        if spec.iv_bytes() != block_bytes {
            return Err(refused(spec, "essiv needs a mode with an IV of one block".to_owned()));
        }
        let len = digest.len_bytes();
        if essiv_key_len(cipher, len).is_none() {
            let lengths = block::key_lengths(cipher).unwrap_or_default();
            let lengths = list(lengths.to_vec());
            let reason = format!("essiv's digest has {len} bytes, a key of `{cipher}` {lengths}");
            return Err(refused(spec, reason));
        }
    }
    match (spec.mode, spec.iv) {
        (Mode::Ecb, _) => return Ok(()),
        (Mode::Ctr | Mode::Adiantum(_), IvMode::Eboiv | IvMode::Elephant) => {
            let reason = "eboiv and elephant encrypt the IV as one block of mode cbc, lrw or xts";
            return Err(refused(spec, reason.to_owned()));
        }
        (mode, IvMode::Lmk) if mode != Mode::Cbc => {
            let reason = "lmk is defined for mode cbc only: with any other mode, the kernel \
                          itself cannot read its data back";
            return Err(refused(spec, reason.to_owned()));
        }
        (Mode::Adiantum(_), IvMode::Tcw) => {
            return Err(refused(spec, "tcw is not defined for an IV of 32 bytes".to_owned()));
        }
        _ => {}
    }
    if spec.key_layouts().is_empty() {
        let reason = "no key fits: its second half must be an AES key for the diffuser";
        return Err(refused(spec, reason.to_owned()));
    }
    Ok(())
}

impl Digest {
    pub(super) fn len_bytes(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Hash(hash) => hash.digest_len_bytes(),
        }
    }
}

/// Length of the key that a digest of `digest_len_bytes` gives the cipher of `essiv`.
pub(super) fn essiv_key_len(cipher: &str, digest_len_bytes: usize) -> Option<usize> {
    if cipher == "serpent" && digest_len_bytes <= SERPENT_KEY_BYTES_MAX {
        return Some(SERPENT_KEY_BYTES_MAX);
    }
    let lengths = block::key_lengths(cipher)?;
    lengths.contains(&digest_len_bytes).then_some(digest_len_bytes)
}

fn aes_takes(len_bytes: usize) -> bool {
    block::key_lengths("aes").is_some_and(|lengths| lengths.contains(&len_bytes))
}

fn refused(spec: &CipherSpec, reason: String) -> CipherError {
    CipherError::BadCombination { spec: spec.as_str().to_owned(), reason }
}

/// "16, 24 or 32".
fn list(mut lengths: Vec<usize>) -> String {
    lengths.sort_unstable();
    lengths.dedup();
    let words: Vec<String> = lengths.iter().map(ToString::to_string).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        CipherSpec::parse(text).unwrap_err().to_string()
    }

    fn allowed(text: &str) -> String {
        let error = CipherSpec::parse(text).unwrap().key_layout(1).unwrap_err();
        let CipherError::BadKeyLength { allowed, got: 1, .. } = error else {
            panic!("{error}");
        };
        allowed
    }

    #[test]
    fn rules_refuse_what_does_not_go_together_and_say_why() {
        for (text, reason) in [
            ("cast5-xts-plain64", "mode `xts` takes blocks of 16 bytes"),
            ("cast5-lrw-benbi", "mode `lrw` takes blocks of 16 bytes"),
            ("aes-ecb-essiv:sha256", "essiv needs a mode with an IV"),
            ("aes-cbc-essiv:sha1", "essiv's digest has 20 bytes, a key of `aes` 16, 24 or 32"),
            ("aes-cbc-essiv:sha512", "essiv's digest has 64 bytes"),
            ("serpent-cbc-essiv:sha512", "essiv's digest has 64 bytes"),
            ("xchacha12,aes-adiantum-essiv:sha256", "essiv needs a mode with an IV of one block"),
            ("xchacha12,aes-adiantum-eboiv", "as one block of mode cbc"),
            ("xchacha12,aes-adiantum-lmk", "lmk is defined for mode cbc only"),
            ("xchacha12,aes-adiantum-tcw", "tcw is not defined"),
            ("aes-ctr-eboiv", "as one block of mode cbc"),
            ("aes-xts-lmk", "lmk is defined for mode cbc only"),
            ("aes:4-cbc-elephant", "no key fits"),
            ("aes-xts-random", "keeps each sector's IV in its integrity tag"),
        ] {
            let error = error(text);
            assert!(error.contains(reason) && error.contains(text), "{text}: {error}");
        }
        for text in ["serpent-cbc-essiv:sha1", "cast6-cbc-essiv:sha224", "aes-xts-elephant"] {
            assert!(CipherSpec::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn rules_list_every_length_of_a_volume_key() {
        for (text, lengths) in [
            ("aes-xts-plain64", "32, 48 or 64"),
            ("serpent-cbc-plain64", "16, 24 or 32"),
            ("aes-lrw-benbi", "32, 40 or 48"),
            ("xchacha12,aes-adiantum-plain64", "32"),
            ("aes-cbc-tcw", "48, 56 or 64"),
            ("cast5-cbc-tcw", "29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39 or 40"),
            ("aes-cbc-elephant", "32, 48 or 64"),
            ("aes:2-cbc-elephant", "64"),
            ("aes:64-cbc-lmk", "1024, 1040, 1536, 1560, 2048 or 2080"),
            ("aes:2-cbc-plain64", "32, 48 or 64"),
        ] {
            assert_eq!(allowed(text), lengths, "{text}");
        }
        // The greatest key count of a cipher string: nothing overflows.
        assert!(allowed("aes:2147483648-xts-plain64").starts_with("68719476736, "));
    }

    #[test]
    fn rules_take_the_seed_of_lmk_from_the_length_alone() {
        let layout = |text: &str, len| {
            let layout = CipherSpec::parse(text).unwrap().key_layout(len).unwrap();
            (layout.key_len_bytes, layout.extra_len_bytes)
        };
        assert_eq!(layout("aes:64-cbc-lmk", 64 * 32), (32, 0));
        assert_eq!(layout("aes:64-cbc-lmk", 65 * 32), (32, 32));
        // Three keys of 16 bytes are read as two of 24, as in the kernel.
        assert_eq!(layout("aes:2-cbc-lmk", 48), (24, 0));
    }
}
