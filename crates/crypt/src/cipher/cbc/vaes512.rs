//! CBC on VAES and AVX-512: four blocks a register; four registers in flight, from sixteen
//! sectors, when encrypting and eight, from one sector, when decrypting.

use std::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_load_si128, _mm_loadu_si128, _mm_prefetch, _mm_sfence,
    _mm_storeu_si128, _mm512_aesdec_epi128, _mm512_aesdeclast_epi128, _mm512_aesenc_epi128,
    _mm512_aesenclast_epi128, _mm512_broadcast_i32x4, _mm512_castsi128_si512,
    _mm512_castsi512_si128, _mm512_extracti32x4_epi32, _mm512_inserti32x4, _mm512_loadu_si512,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_stream_si512, _mm512_ternarylogic_epi64,
    _mm512_xor_si512,
};

use super::aesni;
use crate::cipher::aesni::{IV_BATCH, ivs};
use crate::cipher::job::{Job, Kernels};
use crate::cipher::schedule::Schedule;

const BLOCK_BYTES: usize = size_of::<__m128i>();
const REGISTER_BYTES: usize = size_of::<__m512i>();
const REGISTER_BLOCKS: usize = REGISTER_BYTES / BLOCK_BYTES;
/// Registers in flight when decrypting.
const LANES: usize = 8;
/// Bytes of these registers.
const GROUP_BYTES: usize = LANES * REGISTER_BYTES;
/// Chains that run side by side when encrypting: four registers cover the latency of AES.
const CHAINS: usize = 16;
/// Sector size above which eight sectors are encrypted at a time.
const SECTOR_BYTES_WIDE: usize = 1024;
/// `a ^ b ^ c` as a truth table.
const XOR3: i32 = 0x96;

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
#[target_feature(enable = "avx512f,vaes")]
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
            for (chain, start) in starts.iter_mut().enumerate() {
                *start = (first + chain.min(last_sector)) * job.sector_bytes;
            }
            let mut chains = [_mm512_setzero_si512(); CHAINS / REGISTER_BLOCKS];
            for (index, four) in chains.iter_mut().enumerate() {
                let chain = REGISTER_BLOCKS * index;
                *four = join([iv(chain), iv(chain + 1), iv(chain + 2), iv(chain + 3)]);
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
#[target_feature(enable = "avx512f,vaes")]
unsafe fn encrypt_blocks<const ROUNDS: usize>(
    keys: *const __m128i,
    src: *const u8,
    dst: *mut u8,
    starts: &[usize; CHAINS],
    chains: &mut [__m512i; CHAINS / REGISTER_BLOCKS],
) {
    // SAFETY: the caller gives `ROUNDS + 1` aligned round keys, and a block of source and of
    // destination at every start.
    unsafe {
        let whitening = key(keys, 0);
        for (four, starts) in chains.iter_mut().zip(starts.as_chunks().0) {
            let block = |start: usize| _mm_loadu_si128(src.add(start).cast());
            let [a, b, c, d]: [usize; REGISTER_BLOCKS] = *starts;
            let bytes = join([block(a), block(b), block(c), block(d)]);
            *four = _mm512_ternarylogic_epi64::<XOR3>(*four, bytes, whitening);
        }
        for round in 1..ROUNDS {
            let key = key(keys, round);
            for four in chains.iter_mut() {
                *four = _mm512_aesenc_epi128(*four, key);
            }
        }
        let last = key(keys, ROUNDS);
        for (four, starts) in chains.iter_mut().zip(starts.as_chunks().0) {
            *four = _mm512_aesenclast_epi128(*four, last);
            let [a, b, c, d]: [usize; REGISTER_BLOCKS] = *starts;
            _mm_storeu_si128(dst.add(a).cast(), _mm512_castsi512_si128(*four));
            _mm_storeu_si128(dst.add(b).cast(), _mm512_extracti32x4_epi32::<1>(*four));
            _mm_storeu_si128(dst.add(c).cast(), _mm512_extracti32x4_epi32::<2>(*four));
            _mm_storeu_si128(dst.add(d).cast(), _mm512_extracti32x4_epi32::<3>(*four));
        }
    }
}

/// Four blocks in a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn join(blocks: [__m128i; REGISTER_BLOCKS]) -> __m512i {
    let one = _mm512_castsi128_si512(blocks[0]);
    let two = _mm512_inserti32x4::<1>(one, blocks[1]);
    let three = _mm512_inserti32x4::<2>(two, blocks[2]);
    _mm512_inserti32x4::<3>(three, blocks[3])
}

/// Decrypts a job.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
#[target_feature(enable = "avx512f,vaes")]
unsafe fn decrypt<const ROUNDS: usize>(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        if job.streams(REGISTER_BYTES) {
            decrypt_sectors::<ROUNDS, true>(schedule, job);
            _mm_sfence();
        } else {
            decrypt_sectors::<ROUNDS, false>(schedule, job);
        }
    }
}

#[target_feature(enable = "avx512f,vaes")]
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
#[target_feature(enable = "avx512f,vaes")]
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
        let mut data = [_mm512_setzero_si512(); LANES];
        for (index, four) in data.iter_mut().enumerate() {
            let bytes = _mm512_loadu_si512(src.cast::<__m512i>().add(index));
            *four = _mm512_xor_si512(bytes, whitening);
        }
        for round in 1..ROUNDS {
            let key = key(keys, round);
            for four in &mut data {
                *four = _mm512_aesdec_epi128(*four, key);
            }
        }
        let last = key(keys, ROUNDS);
        let block = |index: usize| _mm_loadu_si128(src.cast::<__m128i>().add(index));
        let mut before = join([previous, block(0), block(1), block(2)]);
        for (index, four) in data.iter_mut().enumerate() {
            // The last round only adds its key, so the instruction can add the earlier ciphertext
            // too.
            *four = _mm512_aesdeclast_epi128(*four, _mm512_xor_si512(last, before));
            if index + 1 < LANES {
                // The ciphertext of the next register, one block earlier.
                let next = src.add((index + 1) * REGISTER_BYTES - BLOCK_BYTES);
                before = _mm512_loadu_si512(next.cast());
            }
        }
        let last_ciphertext = block(GROUP_BYTES / BLOCK_BYTES - 1);
        for (index, four) in data.into_iter().enumerate() {
            let to = dst.cast::<__m512i>().add(index);
            if STREAM {
                _mm512_stream_si512(to, four);
            } else {
                _mm512_storeu_si512(to, four);
            }
        }
        last_ciphertext
    }
}

/// A round key in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn key(keys: *const __m128i, round: usize) -> __m512i {
    // SAFETY: the caller gives more than `round` round keys, aligned.
    _mm512_broadcast_i32x4(unsafe { _mm_load_si128(keys.add(round)) })
}
