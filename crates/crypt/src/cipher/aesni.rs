//! AES-NI pieces that every x86 tier shares: key expansion (FIPS 197, section 5.2) and the
//! encryption of a few IVs at once.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_aesimc_si128,
    _mm_aeskeygenassist_si128, _mm_cvtsi128_si32, _mm_load_si128, _mm_set_epi64x, _mm_set1_epi32,
    _mm_setzero_si128, _mm_store_si128, _mm_xor_si128,
};

use super::iv::IvCounter;
use super::schedule::{ROUND_KEYS_MAX, RoundKeys, Schedule, rounds};

/// Fills the schedule from the data key and, if there is one, the IV key.
#[target_feature(enable = "aes")]
pub(super) fn expand(schedule: &mut Schedule, data_key: &[u8], iv_key: &[u8]) {
    expand_encrypt(&mut schedule.encrypt, data_key);
    let last = rounds(data_key.len());
    schedule.decrypt.0[0] = schedule.encrypt.0[last];
    schedule.decrypt.0[last] = schedule.encrypt.0[0];
    for round in 1..last {
        invert(&schedule.encrypt.0[last - round], &mut schedule.decrypt.0[round]);
    }
    if !iv_key.is_empty() {
        expand_encrypt(&mut schedule.iv, iv_key);
    }
}

#[target_feature(enable = "aes")]
fn expand_encrypt(keys: &mut RoundKeys, key: &[u8]) {
    let words = keys.0.as_flattened_mut();
    words[..key.len()].copy_from_slice(key);
    let word = |bytes: &[u8], index: usize| -> u32 {
        u32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().expect("four bytes"))
    };
    let key_words = key.len() / 4;
    let mut rcon = 1u32;
    for index in key_words..4 * (rounds(key.len()) + 1) {
        let mut next = word(words, index - 1);
        if index % key_words == 0 {
            next = substitute(next).rotate_right(8) ^ rcon;
            rcon = (rcon << 1) ^ (0x11b * (rcon >> 7));
        } else if key_words > 6 && index % key_words == 4 {
            next = substitute(next);
        }
        next ^= word(words, index - key_words);
        words[4 * index..4 * index + 4].copy_from_slice(&next.to_le_bytes());
    }
}

/// The S-box on four bytes, without a table, which cache timing would reveal.
#[target_feature(enable = "aes")]
fn substitute(word: u32) -> u32 {
    let assisted = _mm_aeskeygenassist_si128::<0>(_mm_set1_epi32(word.cast_signed()));
    _mm_cvtsi128_si32(assisted).cast_unsigned()
}

#[target_feature(enable = "aes")]
fn invert(from: &[u8; 16], to: &mut [u8; 16]) {
    // SAFETY: round keys are 16 bytes in an array that is aligned to 64.
    unsafe {
        let key = _mm_load_si128(from.as_ptr().cast());
        _mm_store_si128(to.as_mut_ptr().cast(), _mm_aesimc_si128(key));
    }
}

/// Keeps blocks in step: all blocks finish a round before any block starts the next one.
///
/// Without this, the compiler may run one block through all rounds and then the next. The CPU would
/// reorder that, but every round key would stay alive to the last block. There are more round keys
/// than registers, so some would go to the stack, where they are never wiped. The call costs no
/// instruction, but limits instruction scheduling, so it stands only where `tests/key_residue.rs`
/// shows the need.
#[inline]
#[target_feature(enable = "avx")]
pub(super) fn in_step(blocks: &mut [__m128i]) {
    for block in blocks {
        // SAFETY: the text is a comment.
        unsafe {
            asm!("/* {0} */", inout(xmm_reg) * block, options(nomem, nostack, preserves_flags));
        }
    }
}

/// [`in_step`] for pairs of blocks.
#[inline]
#[target_feature(enable = "avx")]
pub(super) fn pairs_in_step(pairs: &mut [__m256i]) {
    for pair in pairs {
        // SAFETY: the text is a comment.
        unsafe {
            asm!("/* {0} */", inout(ymm_reg) * pair, options(nomem, nostack, preserves_flags));
        }
    }
}

/// Number of IVs encrypted at once: enough to keep an AES unit busy.
pub(super) const IV_BATCH: usize = 8;

/// The IVs of `IV_BATCH` sectors from `first` on, encrypted unless the mode leaves them plain.
///
/// # Safety
///
/// `schedule` must be valid.
#[inline]
#[target_feature(enable = "aes,avx")]
pub(super) unsafe fn ivs(
    schedule: *const Schedule,
    iv: &IvCounter,
    first: usize,
) -> [__m128i; IV_BATCH] {
    let mut blocks = [_mm_setzero_si128(); IV_BATCH];
    for (index, block) in blocks.iter_mut().enumerate() {
        *block = _mm_set_epi64x(iv.high.cast_signed(), iv.low(first + index).cast_signed());
    }
    // SAFETY: the caller vouches for `schedule`.
    let (keys, rounds) = unsafe { (&raw const (*schedule).iv, (*schedule).iv_rounds) };
    if rounds == 0 {
        return blocks;
    }
    for block in &mut blocks {
        // SAFETY: a schedule holds `ROUND_KEYS_MAX` round keys, aligned.
        *block = _mm_xor_si128(*block, unsafe { _mm_load_si128(keys.cast()) });
    }
    debug_assert!(rounds < ROUND_KEYS_MAX);
    for round in 1..rounds {
        // SAFETY: the schedule holds the key of `round`, which is below `rounds`, aligned.
        let key = unsafe { _mm_load_si128(keys.cast::<__m128i>().add(round)) };
        for block in &mut blocks {
            *block = _mm_aesenc_si128(*block, key);
        }
        in_step(&mut blocks);
    }
    // SAFETY: `rounds` is below `ROUND_KEYS_MAX`, so the schedule holds this key, aligned.
    let key = unsafe { _mm_load_si128(keys.cast::<__m128i>().add(rounds)) };
    for block in &mut blocks {
        *block = _mm_aesenclast_si128(*block, key);
    }
    blocks
}
