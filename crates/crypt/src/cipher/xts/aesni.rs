//! XTS on AES-NI and AVX: one block a register, eight registers in flight.
//!
//! Each tweak is the tweak before, times x: a 128-bit shift from two 64-bit ones (the sum of a lane
//! with itself). The bit shifted out of one lane is added to the other, or reduced. The IVs of
//! eight sectors are encrypted together, one sector in advance, so that the latency of their rounds
//! overlaps with the sector's data.

use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_add_epi64, _mm_aesdec_si128, _mm_aesdeclast_si128, _mm_aesenc_si128,
    _mm_aesenclast_si128, _mm_and_si128, _mm_load_si128, _mm_loadu_si128, _mm_prefetch,
    _mm_set_epi32, _mm_setzero_si128, _mm_sfence, _mm_shuffle_epi32, _mm_srai_epi32,
    _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128,
};

use crate::cipher::aesni::{IV_BATCH, ivs};
use crate::cipher::job::{Job, Kernels};
use crate::cipher::schedule::Schedule;

/// Blocks in flight.
const LANES: usize = 8;
/// Bytes of these blocks.
const GROUP_BYTES: usize = LANES * size_of::<__m128i>();

/// The kernels of a key length.
pub(super) fn kernels(aes_key_len_bytes: usize) -> Kernels {
    match aes_key_len_bytes {
        16 => Kernels { encrypt: run::<10, true>, decrypt: run::<10, false>, spills: true },
        24 => Kernels { encrypt: run::<12, true>, decrypt: run::<12, false>, spills: true },
        _ => Kernels { encrypt: run::<14, true>, decrypt: run::<14, false>, spills: true },
    }
}

/// Runs a job.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
#[target_feature(enable = "aes,avx")]
unsafe fn run<const ROUNDS: usize, const ENCRYPT: bool>(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        if job.streams(size_of::<__m128i>()) {
            sectors::<ROUNDS, ENCRYPT, true>(schedule, job);
            _mm_sfence();
        } else {
            sectors::<ROUNDS, ENCRYPT, false>(schedule, job);
        }
    }
}

#[target_feature(enable = "aes,avx")]
unsafe fn sectors<const ROUNDS: usize, const ENCRYPT: bool, const STREAM: bool>(
    schedule: *const Schedule,
    job: &Job,
) {
    // SAFETY: the caller vouches for the schedule, and that source and destination hold
    // `sectors * sector_bytes`; a sector is a multiple of a group.
    unsafe {
        let keys = if ENCRYPT {
            (&raw const (*schedule).encrypt).cast()
        } else {
            (&raw const (*schedule).decrypt).cast()
        };
        let ahead = job.prefetch_bytes();
        let mut src = job.src;
        let mut dst = job.dst;
        let mut first_tweaks = ivs(schedule, &job.iv, 0);
        for sector in 0..job.sectors {
            let mut tweak = first_tweaks[sector % IV_BATCH];
            if sector % IV_BATCH == IV_BATCH - 1 && sector + 1 < job.sectors {
                first_tweaks = ivs(schedule, &job.iv, sector + 1);
            }
            for _ in 0..job.sector_bytes / GROUP_BYTES {
                let tweaks = unfold(&mut tweak);
                group::<ROUNDS, ENCRYPT, STREAM>(keys, src, dst, &tweaks, ahead);
                src = src.add(GROUP_BYTES);
                dst = dst.add(GROUP_BYTES);
            }
        }
    }
}

/// The tweaks of a group from its first tweak; `tweak` becomes the next group's first.
#[inline]
#[target_feature(enable = "aes,avx")]
fn unfold(tweak: &mut __m128i) -> [__m128i; LANES] {
    // The bit out of the high lane returns as the polynomial, the low lane's as a carry.
    let feedback = _mm_set_epi32(0, 1, 0, 0x87);
    let mut tweaks = [*tweak; LANES];
    for each in &mut tweaks {
        *each = *tweak;
        let tops = _mm_srai_epi32::<31>(_mm_shuffle_epi32::<0x13>(*tweak));
        let doubled = _mm_add_epi64(*tweak, *tweak);
        *tweak = _mm_xor_si128(doubled, _mm_and_si128(tops, feedback));
    }
    tweaks
}

/// One group from `src` to `dst`. All reads precede all writes.
#[inline]
#[target_feature(enable = "aes,avx")]
unsafe fn group<const ROUNDS: usize, const ENCRYPT: bool, const STREAM: bool>(
    keys: *const __m128i,
    src: *const u8,
    dst: *mut u8,
    tweaks: &[__m128i; LANES],
    prefetch_bytes: usize,
) {
    // SAFETY: the caller gives a group's worth of source and destination, aligned to a register if
    // it streams, and `ROUNDS + 1` aligned round keys; prefetching may name any address.
    unsafe {
        let mut data = [_mm_setzero_si128(); LANES];
        for line in 0..GROUP_BYTES / 64 {
            _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(prefetch_bytes + 64 * line).cast());
        }
        let whitening = _mm_load_si128(keys);
        for index in 0..LANES {
            let bytes = _mm_loadu_si128(src.cast::<__m128i>().add(index));
            data[index] = _mm_xor_si128(_mm_xor_si128(bytes, tweaks[index]), whitening);
        }
        for round in 1..ROUNDS {
            let key = _mm_load_si128(keys.add(round));
            for block in &mut data {
                *block = if ENCRYPT {
                    _mm_aesenc_si128(*block, key)
                } else {
                    _mm_aesdec_si128(*block, key)
                };
            }
        }
        let last = _mm_load_si128(keys.add(ROUNDS));
        for index in 0..LANES {
            let bytes = if ENCRYPT {
                _mm_aesenclast_si128(data[index], last)
            } else {
                _mm_aesdeclast_si128(data[index], last)
            };
            let bytes = _mm_xor_si128(bytes, tweaks[index]);
            let to = dst.cast::<__m128i>().add(index);
            if STREAM {
                _mm_stream_si128(to, bytes);
            } else {
                _mm_storeu_si128(to, bytes);
            }
        }
    }
}
