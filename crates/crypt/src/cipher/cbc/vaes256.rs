//! CBC on VAES and AVX2: two blocks a register, eight registers in flight, from sixteen sectors
//! when encrypting and from one when decrypting.

use std::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T0, _mm_load_si128, _mm_loadu_si128, _mm_prefetch, _mm_sfence,
    _mm_storeu_si128, _mm256_aesdec_epi128, _mm256_aesdeclast_epi128, _mm256_aesenc_epi128,
    _mm256_aesenclast_epi128, _mm256_broadcastsi128_si256, _mm256_castsi128_si256,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_inserti128_si256, _mm256_loadu_si256,
    _mm256_set_m128i, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_stream_si256,
    _mm256_xor_si256,
};

use super::aesni;
use crate::cipher::aesni::{IV_BATCH, ivs};
use crate::cipher::job::{Job, Kernels};
use crate::cipher::schedule::Schedule;

/// Registers in flight.
const LANES: usize = 8;
const BLOCK_BYTES: usize = size_of::<__m128i>();
/// Bytes of these registers.
const GROUP_BYTES: usize = LANES * size_of::<__m256i>();
/// Chains that run side by side, two a register.
const CHAINS: usize = 2 * LANES;
/// Sector size above which eight sectors are encrypted at a time.
const SECTOR_BYTES_WIDE: usize = 1024;

/// The kernels of a key length.
pub(super) fn kernels(aes_key_len_bytes: usize) -> Kernels {
    match aes_key_len_bytes {
        16 => Kernels { encrypt: encrypt::<10>, decrypt: decrypt::<10>, spills: true },
        24 => Kernels { encrypt: encrypt::<12>, decrypt: decrypt::<12>, spills: true },
        _ => Kernels { encrypt: encrypt::<14>, decrypt: decrypt::<14>, spills: true },
    }
}

/// Encrypts a job, sixteen sectors side by side.
///
/// Fewer sectors go eight at a time, and so do sectors so large that sixteen of their lines map to
/// one set of the L1 cache. The last sectors may be fewer than sixteen too. Then the spare chains
/// repeat the last sector and write the same bytes. They take no extra time, because one chain
/// takes as long as all.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
#[target_feature(enable = "avx2,vaes")]
unsafe fn encrypt<const ROUNDS: usize>(schedule: *const Schedule, job: &Job) {
    let wide = if job.sector_bytes > SECTOR_BYTES_WIDE {
        0
    } else {
        let rest = job.sectors % CHAINS;
        if rest > aesni::CHAINS { job.sectors } else { job.sectors - rest }
    };
    // SAFETY: the caller vouches for the schedule and for source and destination; every address
    // is that of a block in one of the job's sectors.
    unsafe {
        let keys: *const __m128i = (&raw const (*schedule).encrypt).cast();
        for first in (0..wide).step_by(CHAINS) {
            let last_sector = (wide - first).min(CHAINS) - 1;
            let halves = [ivs(schedule, &job.iv, first), ivs(schedule, &job.iv, first + IV_BATCH)];
            let iv = |chain: usize| halves.as_flattened()[chain.min(last_sector)];
            let mut starts = [0; CHAINS];
            let mut chains = [_mm256_setzero_si256(); LANES];
            for (index, pair) in chains.iter_mut().enumerate() {
                *pair = _mm256_set_m128i(iv(2 * index + 1), iv(2 * index));
                for chain in [2 * index, 2 * index + 1] {
                    starts[chain] = (first + chain.min(last_sector)) * job.sector_bytes;
                }
            }
            for in_sector in (0..job.sector_bytes).step_by(BLOCK_BYTES) {
                let src = job.src.add(in_sector);
                let dst = job.dst.add(in_sector);
                encrypt_blocks::<ROUNDS>(keys, src, dst, &starts, &mut chains);
            }
        }
        if wide < job.sectors {
            aesni::encrypt::<ROUNDS>(schedule, &job.skip(wide));
        }
    }
}

/// One block of every chain.
#[inline]
#[target_feature(enable = "avx2,vaes")]
unsafe fn encrypt_blocks<const ROUNDS: usize>(
    keys: *const __m128i,
    src: *const u8,
    dst: *mut u8,
    starts: &[usize; CHAINS],
    chains: &mut [__m256i; LANES],
) {
    // SAFETY: the caller gives `ROUNDS + 1` aligned round keys, and a block of source and of
    // destination at every start.
    unsafe {
        let whitening = key(keys, 0);
        for (index, pair) in chains.iter_mut().enumerate() {
            let low = _mm_loadu_si128(src.add(starts[2 * index]).cast());
            let high = _mm_loadu_si128(src.add(starts[2 * index + 1]).cast());
            let bytes = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
            *pair = _mm256_xor_si256(*pair, _mm256_xor_si256(bytes, whitening));
        }
        for round in 1..ROUNDS {
            let key = key(keys, round);
            for pair in chains.iter_mut() {
                *pair = _mm256_aesenc_epi128(*pair, key);
            }
        }
        let last = key(keys, ROUNDS);
        for (index, pair) in chains.iter_mut().enumerate() {
            *pair = _mm256_aesenclast_epi128(*pair, last);
            let low = starts[2 * index];
            let high = starts[2 * index + 1];
            _mm_storeu_si128(dst.add(low).cast(), _mm256_castsi256_si128(*pair));
            _mm_storeu_si128(dst.add(high).cast(), _mm256_extracti128_si256::<1>(*pair));
        }
    }
}

/// Decrypts a job.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
#[target_feature(enable = "avx2,vaes")]
unsafe fn decrypt<const ROUNDS: usize>(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        if job.streams(size_of::<__m256i>()) {
            decrypt_sectors::<ROUNDS, true>(schedule, job);
            _mm_sfence();
        } else {
            decrypt_sectors::<ROUNDS, false>(schedule, job);
        }
    }
}

#[target_feature(enable = "avx2,vaes")]
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
#[target_feature(enable = "avx2,vaes")]
unsafe fn decrypt_group<const ROUNDS: usize, const STREAM: bool>(
    keys: *const __m128i,
    src: *const u8,
    dst: *mut u8,
    previous: __m128i,
) -> __m128i {
    // SAFETY: the caller gives a group's worth of source and destination, aligned to a register if
    // it streams, and `ROUNDS + 1` aligned round keys.
    unsafe {
        let whitening = key(keys, 0);
        let mut data = [_mm256_setzero_si256(); LANES];
        for (index, pair) in data.iter_mut().enumerate() {
            let bytes = _mm256_loadu_si256(src.cast::<__m256i>().add(index));
            *pair = _mm256_xor_si256(bytes, whitening);
        }
        for round in 1..ROUNDS {
            let key = key(keys, round);
            for pair in &mut data {
                *pair = _mm256_aesdec_epi128(*pair, key);
            }
        }
        let last = key(keys, ROUNDS);
        let mut before = _mm256_set_m128i(_mm_loadu_si128(src.cast()), previous);
        for (index, pair) in data.iter_mut().enumerate() {
            *pair = _mm256_xor_si256(_mm256_aesdeclast_epi128(*pair, last), before);
            if index + 1 < LANES {
                // The ciphertext of the next register, one block earlier.
                let next = src.add((index + 1) * size_of::<__m256i>() - BLOCK_BYTES);
                before = _mm256_loadu_si256(next.cast());
            }
        }
        let last_ciphertext = _mm_loadu_si128(src.add(GROUP_BYTES - BLOCK_BYTES).cast());
        for (index, pair) in data.into_iter().enumerate() {
            let to = dst.cast::<__m256i>().add(index);
            if STREAM {
                _mm256_stream_si256(to, pair);
            } else {
                _mm256_storeu_si256(to, pair);
            }
        }
        last_ciphertext
    }
}

/// A round key in both lanes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn key(keys: *const __m128i, round: usize) -> __m256i {
    // SAFETY: the caller gives more than `round` round keys, aligned.
    _mm256_broadcastsi128_si256(unsafe { _mm_load_si128(keys.add(round)) })
}
