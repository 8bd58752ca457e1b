//! CBC on AES-NI and AVX: eight blocks in flight, from eight sectors when encrypting and from one
//! when decrypting.

use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_aesdec_si128, _mm_aesdeclast_si128, _mm_aesenc_si128,
    _mm_aesenclast_si128, _mm_load_si128, _mm_loadu_si128, _mm_prefetch, _mm_setzero_si128,
    _mm_sfence, _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128,
};

use crate::cipher::aesni::{IV_BATCH, in_step, ivs};
use crate::cipher::job::{Job, Kernels};
use crate::cipher::schedule::Schedule;

/// Blocks in flight.
const LANES: usize = 8;
const BLOCK_BYTES: usize = size_of::<__m128i>();
/// Bytes of these blocks.
const GROUP_BYTES: usize = LANES * BLOCK_BYTES;

/// Chains that run side by side when encrypting.
pub(super) const CHAINS: usize = LANES;

const _: () = assert!(CHAINS == IV_BATCH);

/// The kernels of a key length.
pub(super) fn kernels(aes_key_len_bytes: usize) -> Kernels {
    match aes_key_len_bytes {
        16 => Kernels { encrypt: encrypt::<10>, decrypt: decrypt::<10>, spills: true },
        24 => Kernels { encrypt: encrypt::<12>, decrypt: decrypt::<12>, spills: true },
        _ => Kernels { encrypt: encrypt::<14>, decrypt: decrypt::<14>, spills: true },
    }
}

/// Encrypts a job, eight sectors side by side.
///
/// The last sectors may be fewer than eight. Then the spare chains repeat the last sector and write
/// the same bytes. They take no extra time, because one chain takes as long as eight.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
#[target_feature(enable = "aes,avx")]
pub(super) unsafe fn encrypt<const ROUNDS: usize>(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller vouches for the schedule and for source and destination; every address
    // is that of a block in one of the job's sectors.
    unsafe {
        let keys: *const __m128i = (&raw const (*schedule).encrypt).cast();
        for first in (0..job.sectors).step_by(CHAINS) {
            let mut starts = [0; CHAINS];
            for (index, start) in starts.iter_mut().enumerate() {
                *start = (first + index).min(job.sectors - 1) * job.sector_bytes;
            }
            let mut chains = ivs(schedule, &job.iv, first);
            for index in 1..CHAINS {
                if first + index >= job.sectors {
                    chains[index] = chains[index - 1];
                }
            }
            for in_sector in (0..job.sector_bytes).step_by(BLOCK_BYTES) {
                let whitening = _mm_load_si128(keys);
                for (chain, start) in chains.iter_mut().zip(starts) {
                    let bytes = _mm_loadu_si128(job.src.add(start + in_sector).cast());
                    *chain = _mm_xor_si128(*chain, _mm_xor_si128(bytes, whitening));
                }
                for round in 1..ROUNDS {
                    let key = _mm_load_si128(keys.add(round));
                    for chain in &mut chains {
                        *chain = _mm_aesenc_si128(*chain, key);
                    }
                }
                let last = _mm_load_si128(keys.add(ROUNDS));
                for (chain, start) in chains.iter_mut().zip(starts) {
                    *chain = _mm_aesenclast_si128(*chain, last);
                    _mm_storeu_si128(job.dst.add(start + in_sector).cast(), *chain);
                }
            }
        }
    }
}

/// Decrypts a job.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
#[target_feature(enable = "aes,avx")]
unsafe fn decrypt<const ROUNDS: usize>(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        if job.streams(BLOCK_BYTES) {
            decrypt_sectors::<ROUNDS, true>(schedule, job);
            _mm_sfence();
        } else {
            decrypt_sectors::<ROUNDS, false>(schedule, job);
        }
    }
}

#[target_feature(enable = "aes,avx")]
unsafe fn decrypt_sectors<const ROUNDS: usize, const STREAM: bool>(
    schedule: *const Schedule,
    job: &Job,
) {
    // SAFETY: the caller vouches for the schedule, and that source and destination hold
    // `sectors * sector_bytes`; a sector is a multiple of a group.
    unsafe {
        let keys = (&raw const (*schedule).decrypt).cast();
        let ahead = job.prefetch_bytes();
        let mut src = job.src;
        let mut dst = job.dst;
        let mut batch = ivs(schedule, &job.iv, 0);
        for sector in 0..job.sectors {
            let mut previous = batch[sector % IV_BATCH];
            if sector % IV_BATCH == IV_BATCH - 1 && sector + 1 < job.sectors {
                batch = ivs(schedule, &job.iv, sector + 1);
            }
            for _ in 0..job.sector_bytes / GROUP_BYTES {
                for line in 0..GROUP_BYTES / 64 {
                    _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(ahead + 64 * line).cast());
                }
                previous = decrypt_group::<ROUNDS, STREAM>(keys, src, dst, previous);
                src = src.add(GROUP_BYTES);
                dst = dst.add(GROUP_BYTES);
            }
        }
    }
}

/// One group from `src` to `dst`; returns its last ciphertext. All reads precede all writes.
#[inline]
#[target_feature(enable = "aes,avx")]
unsafe fn decrypt_group<const ROUNDS: usize, const STREAM: bool>(
    keys: *const __m128i,
    src: *const u8,
    dst: *mut u8,
    previous: __m128i,
) -> __m128i {
    // SAFETY: the caller gives a group's worth of source and destination, aligned to a block if it
    // streams, and `ROUNDS + 1` aligned round keys.
    unsafe {
        let src = src.cast::<__m128i>();
        let whitening = _mm_load_si128(keys);
        let mut data = [_mm_setzero_si128(); LANES];
        for (index, block) in data.iter_mut().enumerate() {
            *block = _mm_xor_si128(_mm_loadu_si128(src.add(index)), whitening);
        }
        for round in 1..ROUNDS {
            let key = _mm_load_si128(keys.add(round));
            for block in &mut data {
                *block = _mm_aesdec_si128(*block, key);
            }
            in_step(&mut data);
        }
        let last = _mm_load_si128(keys.add(ROUNDS));
        let mut before = previous;
        for (index, block) in data.iter_mut().enumerate() {
            *block = _mm_xor_si128(_mm_aesdeclast_si128(*block, last), before);
            before = _mm_loadu_si128(src.add(index));
        }
        for (index, block) in data.into_iter().enumerate() {
            let to = dst.cast::<__m128i>().add(index);
            if STREAM {
                _mm_stream_si128(to, block);
            } else {
                _mm_storeu_si128(to, block);
            }
        }
        before
    }
}
