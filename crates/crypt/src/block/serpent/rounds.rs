//! The 32 rounds of Serpent on any [`Word`], and the key schedule.
//!
//! ```text
//! 31 times     X = L(S[i mod 8](X ^ K[i]))
//! at last      X = S[7](X ^ K[31]) ^ K[32]
//! ```
//!
//! This is the bitsliced description of the specification (section 2): word `j` of a block holds
//! bit `j` of all 32 S-boxes, so that the initial and final permutations vanish.

use super::sboxes::{
    s0, s0_inverse, s1, s1_inverse, s2, s2_inverse, s3, s3_inverse, s4, s4_inverse, s5, s5_inverse,
    s6, s6_inverse, s7, s7_inverse,
};
use super::word::Word;

/// One key for each round, and one after the last.
pub(super) const ROUND_KEYS: usize = 33;

/// Round keys, four words each.
pub(super) type RoundKeys = [[u32; 4]; ROUND_KEYS];

/// Encrypts blocks that lie side by side, word by word.
#[inline(always)]
pub(super) fn encrypt<W: Word>(keys: &RoundKeys, mut x: [W; 4]) -> [W; 4] {
    for (octet, keys) in keys.chunks_exact(8).enumerate() {
        x = mix(s0(add(x, &keys[0])));
        x = mix(s1(add(x, &keys[1])));
        x = mix(s2(add(x, &keys[2])));
        x = mix(s3(add(x, &keys[3])));
        x = mix(s4(add(x, &keys[4])));
        x = mix(s5(add(x, &keys[5])));
        x = mix(s6(add(x, &keys[6])));
        x = s7(add(x, &keys[7]));
        if octet < 3 {
            x = mix(x);
        }
    }
    add(x, &keys[ROUND_KEYS - 1])
}

/// Decrypts blocks that lie side by side, word by word.
#[inline(always)]
pub(super) fn decrypt<W: Word>(keys: &RoundKeys, x: [W; 4]) -> [W; 4] {
    let mut x = add(x, &keys[ROUND_KEYS - 1]);
    for (octet, keys) in keys.chunks_exact(8).enumerate().rev() {
        if octet < 3 {
            x = unmix(x);
        }
        x = unmix(add(s7_inverse(x), &keys[7]));
        x = unmix(add(s6_inverse(x), &keys[6]));
        x = unmix(add(s5_inverse(x), &keys[5]));
        x = unmix(add(s4_inverse(x), &keys[4]));
        x = unmix(add(s3_inverse(x), &keys[3]));
        x = unmix(add(s2_inverse(x), &keys[2]));
        x = unmix(add(s1_inverse(x), &keys[1]));
        x = add(s0_inverse(x), &keys[0]);
    }
    x
}

/// Expands a key of at most 32 bytes (specification, section 3).
pub(super) fn expand(key: &[u8]) -> RoundKeys {
    /// The fractional part of the golden ratio.
    const PHI: u32 = 0x9e37_79b9;
    // A shorter key is padded with a one bit and zeros.
    let mut padded = [0u8; 32];
    padded[..key.len()].copy_from_slice(key);
    if let Some(after) = padded.get_mut(key.len()) {
        *after = 1;
    }
    let mut words = [0u32; 8 + 4 * ROUND_KEYS];
    for (word, bytes) in words.iter_mut().zip(padded.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().expect("chunks of four"));
    }
    for (round, at) in (0u32..).zip(8..words.len()) {
        let sum = words[at - 8] ^ words[at - 5] ^ words[at - 3] ^ words[at - 1] ^ PHI ^ round;
        words[at] = sum.rotate_left(11);
    }
    let boxes: [fn([u32; 4]) -> [u32; 4]; 8] = [s3, s2, s1, s0, s7, s6, s5, s4];
    let mut keys = [[0; 4]; ROUND_KEYS];
    for (index, key) in keys.iter_mut().enumerate() {
        let words: [u32; 4] = words[8 + 4 * index..][..4].try_into().expect("four words");
        *key = boxes[index % 8](words);
    }
    keys
}

#[inline(always)]
fn add<W: Word>([a, b, c, d]: [W; 4], key: &[u32; 4]) -> [W; 4] {
    // Not `key.map`: a closure call would not be inlined into the kernel with its instruction set.
    [a ^ W::splat(key[0]), b ^ W::splat(key[1]), c ^ W::splat(key[2]), d ^ W::splat(key[3])]
}

/// The linear transformation.
#[inline(always)]
fn mix<W: Word>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let a = rotate::<W, 13, 19>(a);
    let c = rotate::<W, 3, 29>(c);
    let b = rotate::<W, 1, 31>(b ^ a ^ c);
    let d = rotate::<W, 7, 25>(d ^ c ^ a.shl::<3>());
    let a = rotate::<W, 5, 27>(a ^ b ^ d);
    let c = rotate::<W, 22, 10>(c ^ d ^ b.shl::<7>());
    [a, b, c, d]
}

/// The inverse of [`mix`].
#[inline(always)]
fn unmix<W: Word>([a, b, c, d]: [W; 4]) -> [W; 4] {
    let c = rotate::<W, 10, 22>(c) ^ d ^ b.shl::<7>();
    let a = rotate::<W, 27, 5>(a) ^ b ^ d;
    let d = rotate::<W, 25, 7>(d) ^ c ^ a.shl::<3>();
    let b = rotate::<W, 31, 1>(b) ^ a ^ c;
    [rotate::<W, 19, 13>(a), b, rotate::<W, 29, 3>(c), d]
}

/// Rotates to the left. The second parameter is 32 minus the first, because a const parameter
/// cannot be an expression yet.
#[inline(always)]
fn rotate<W: Word, const LEFT: i32, const RIGHT: i32>(word: W) -> W {
    const { assert!(LEFT + RIGHT == 32) };
    word.shl::<LEFT>() | word.shr::<RIGHT>()
}
