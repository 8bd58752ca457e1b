//! The ciphers and cascades of volumes. A cascade encrypts with its first cipher first.

use crate::cipher::{CipherSpec, SectorCipher};
use crate::secret::SecretBytes;

/// Length of one key, and of one tweak key in XTS.
const KEY_LEN_BYTES: usize = 32;
/// Length of the tweak key in LRW, which all ciphers share; it has the first 32 bytes.
const LRW_TWEAK_LEN_BYTES: usize = 16;

/// Ciphers and cascades; the last four are VeraCrypt's.
const CHAINS: [&[&str]; 10] = [
    &["aes"],
    &["serpent"],
    &["twofish"],
    &["twofish", "aes"],
    &["serpent", "twofish", "aes"],
    &["aes", "serpent"],
    &["aes", "twofish", "serpent"],
    &["serpent", "twofish"],
    &["camellia"],
    &["serpent", "camellia"],
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Since TrueCrypt 5.
    Xts,
    /// TrueCrypt 4.1 to 4.3.
    Lrw,
}

/// A cipher or cascade in a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    names: &'static [&'static str],
    mode: Mode,
}

/// All of them; the usual mode first.
pub(super) fn all() -> impl Iterator<Item = Chain> {
    let in_mode = |mode| CHAINS.into_iter().map(move |names| Chain { names, mode });
    in_mode(Mode::Xts).chain(in_mode(Mode::Lrw))
}

impl Chain {
    /// The cipher as [`CipherSpec::parse_line`] reads it.
    pub(super) fn text(&self) -> String {
        let mode = match self.mode {
            Mode::Xts => "xts-plain64",
            Mode::Lrw => "lrw-benbi",
        };
        match self.names {
            [one] => format!("{one}-{mode}"),
            names => format!("cascade:{}-{mode}", names.join("+")),
        }
    }

    /// The keys of a key area, one cipher after the other. In XTS, the area has the keys of all
    /// ciphers, then their tweak keys; in LRW the common tweak key, then the keys.
    pub(super) fn key(&self, area: &[u8]) -> SecretBytes {
        let count = self.names.len();
        let part = |index: usize| &area[KEY_LEN_BYTES * index..KEY_LEN_BYTES * (index + 1)];
        let tweak_len = match self.mode {
            Mode::Xts => KEY_LEN_BYTES,
            Mode::Lrw => LRW_TWEAK_LEN_BYTES,
        };
        let mut keys = SecretBytes::zeroed(count * (KEY_LEN_BYTES + tweak_len));
        let places = keys.as_mut_slice().chunks_exact_mut(KEY_LEN_BYTES + tweak_len);
        for (index, place) in places.enumerate() {
            let (key, tweak) = match self.mode {
                Mode::Xts => (part(index), part(count + index)),
                Mode::Lrw => (part(index + 1), part(0)),
            };
            place[..KEY_LEN_BYTES].copy_from_slice(key);
            place[KEY_LEN_BYTES..].copy_from_slice(&tweak[..tweak_len]);
        }
        keys
    }

    /// The keyed cipher over sectors of 512 bytes.
    pub(super) fn cipher(&self, key: &SecretBytes) -> SectorCipher {
        let spec = CipherSpec::parse_line(&self.text()).expect("the table has valid ciphers");
        SectorCipher::new(&spec, key.as_slice(), 512, false).expect("the key has their length")
    }
}
