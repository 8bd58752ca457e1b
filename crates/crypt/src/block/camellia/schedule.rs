//! The key schedule of Camellia (RFC 3713, section 2.2): subkeys are halves of rotated keys.

use super::f;

/// Pairs of rounds between two layers of FL.
pub(super) const SIX: usize = 3;

/// Pairs of keys in the order of their use: whitening; then groups of three pairs of round keys and
/// one for FL; whitening.
pub(super) type Keys = [[u64; 2]; 17];

/// The subkeys of a key.
pub(super) struct Schedule {
    pub(super) encrypt: Keys,
    pub(super) decrypt: Keys,
    /// Number of pairs: 13 for keys of 16 bytes, 17 for longer ones.
    pub(super) len: usize,
}

/// The 128-bit keys from which subkeys are taken.
#[derive(Clone, Copy)]
enum Key {
    L,
    R,
    A,
    B,
}

use Key::{A, B, L, R};

/// Key and rotation of each pair of subkeys, for keys of 16 bytes.
const SHORT: [(Key, u32); 13] = [
    (L, 0),
    (A, 0),
    (L, 15),
    (A, 15),
    (A, 30),
    (L, 45),
    // Only the first of these two subkeys is used: see `Schedule::new`.
    (A, 45),
    (A, 60),
    (L, 77),
    (L, 94),
    (A, 94),
    (L, 111),
    (A, 111),
];

/// Key and rotation of each pair of subkeys, for keys of 24 and 32 bytes.
const LONG: [(Key, u32); 17] = [
    (L, 0),
    (B, 0),
    (R, 15),
    (A, 15),
    (R, 30),
    (B, 30),
    (L, 45),
    (A, 45),
    (L, 60),
    (R, 60),
    (B, 60),
    (L, 77),
    (A, 77),
    (R, 94),
    (A, 94),
    (L, 111),
    (B, 111),
];

impl Schedule {
    /// Expands a key of 16, 24 or 32 bytes.
    pub(super) fn new(key: &[u8]) -> Self {
        let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        let (high, low) = match key.len() {
            16 => (0, 0),
            24 => (word(&key[16..]), !word(&key[16..])),
            _ => (word(&key[16..24]), word(&key[24..])),
        };
        let left = join([word(&key[..8]), word(&key[8..16])]);
        let right = join([high, low]);
        let mixed = feistel(left ^ right, [0xa09e_667f_3bcc_908b, 0xb67a_e858_4caa_73b2]) ^ left;
        let a = feistel(mixed, [0xc6ef_372f_e94f_82be, 0x54ff_53a5_f1d3_6f1c]);
        let b = feistel(a ^ right, [0x10e5_27fa_de68_2d1d, 0xb056_88c2_b3e6_c1fd]);
        let pair = |&(from, rotation): &(Key, u32)| {
            let key = match from {
                L => left,
                R => right,
                A => a,
                B => b,
            };
            split(key.rotate_left(rotation))
        };
        let mut encrypt = [[0; 2]; 17];
        let order: &[(Key, u32)] = if key.len() == 16 { &SHORT } else { &LONG };
        for (subkeys, from) in encrypt.iter_mut().zip(order) {
            *subkeys = pair(from);
        }
        if key.len() == 16 {
            // The only pair with halves of two different rotations.
            encrypt[6][1] = pair(&(L, 60))[1];
        }
        let len = order.len();
        let mut decrypt = encrypt;
        decrypt[..len].reverse();
        for [first, second] in &mut decrypt[1..len - 1] {
            std::mem::swap(first, second);
        }
        Self { encrypt, decrypt, len }
    }
}

/// Two rounds with constants as keys.
fn feistel(words: u128, keys: [u64; 2]) -> u128 {
    let [mut d1, mut d2] = split(words);
    d2 ^= f(d1 ^ keys[0]);
    d1 ^= f(d2 ^ keys[1]);
    join([d1, d2])
}

fn join([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

fn split(words: u128) -> [u64; 2] {
    [(words >> 64) as u64, words as u64]
}
