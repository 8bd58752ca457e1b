//! XTS on VAES and AVX2: two blocks a register, eight registers in flight.
//!
//! ```text
//! registers of one group (256 bytes)      next group = this group's second half, times x^8
//!   t0 = {T, Tx}      t4 = t0 * x^8
//!   t1 = {Tx^2, Tx^3} t5 = t1 * x^8
//!   t2 = {Tx^4, Tx^5} t6 = t2 * x^8
//!   t3 = {Tx^6, Tx^7} t7 = t3 * x^8
//! ```
//!
//! A step by x^8 is a byte shift, and a carry-less product of the byte that fell out. Those run on
//! ports that AES leaves idle. The IVs of eight sectors are encrypted together, one sector before
//! they are needed, so that their chain of rounds hides behind the sector's data.

use std::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm_sfence, _mm256_aesdec_epi128,
    _mm256_aesdeclast_epi128, _mm256_aesenc_epi128, _mm256_aesenclast_epi128,
    _mm256_broadcastsi128_si256, _mm256_bslli_epi128, _mm256_bsrli_epi128,
    _mm256_clmulepi64_epi128, _mm256_loadu_si256, _mm256_set_epi64x, _mm256_setzero_si256,
    _mm256_shuffle_epi32, _mm256_sllv_epi64, _mm256_srlv_epi64, _mm256_store_si256,
    _mm256_storeu_si256, _mm256_stream_si256, _mm256_unpackhi_epi64, _mm256_xor_si256,
};

use crate::cipher::iv::IvCounter;
use crate::cipher::job::{Job, Kernels};
use crate::cipher::schedule::Schedule;

/// Registers of data in flight.
const LANES: usize = 8;
/// Bytes they hold.
const GROUP_BYTES: usize = LANES * size_of::<__m256i>();
/// Sectors whose IVs are encrypted together.
const IV_BATCH: usize = 8;

/// Encrypted IVs, two a register.
#[repr(C, align(32))]
struct Tweaks([__m128i; IV_BATCH]);

/// The kernels of a key length.
pub(super) fn kernels(aes_key_len_bytes: usize) -> Kernels {
    match aes_key_len_bytes {
        16 => Kernels { encrypt: run::<10, true>, decrypt: run::<10, false> },
        24 => Kernels { encrypt: run::<12, true>, decrypt: run::<12, false> },
        _ => Kernels { encrypt: run::<14, true>, decrypt: run::<14, false> },
    }
}

/// Runs a job.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
unsafe fn run<const ROUNDS: usize, const ENCRYPT: bool>(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        if job.streams(size_of::<__m256i>()) {
            sectors::<ROUNDS, ENCRYPT, true>(schedule, job);
            _mm_sfence();
        } else {
            sectors::<ROUNDS, ENCRYPT, false>(schedule, job);
        }
    }
}

#[target_feature(enable = "avx2,vaes,vpclmulqdq")]
unsafe fn sectors<const ROUNDS: usize, const ENCRYPT: bool, const STREAM: bool>(
    schedule: *const Schedule,
    job: &Job,
) {
    // SAFETY: the caller vouches for the schedule, and that source and destination hold
    // `sectors * sector_bytes`; a sector is a multiple of two groups.
    unsafe {
        let data_keys = if ENCRYPT {
            (&raw const (*schedule).encrypt).cast()
        } else {
            (&raw const (*schedule).decrypt).cast()
        };
        let iv_keys: *const __m128i = (&raw const (*schedule).iv).cast();
        let ahead = job.prefetch_bytes();
        let (mut src, mut dst) = (job.src, job.dst);
        let mut tweaks = encrypt_ivs::<ROUNDS>(iv_keys, &job.iv, 0);
        for sector in 0..job.sectors {
            let first = tweaks.0[sector % IV_BATCH];
            if sector % IV_BATCH == IV_BATCH - 1 && sector + 1 < job.sectors {
                tweaks = encrypt_ivs::<ROUNDS>(iv_keys, &job.iv, sector + 1);
            }
            let mut quarter = powers(first);
            for _ in 0..job.sector_bytes / GROUP_BYTES {
                let tweaks = unfold(&mut quarter);
                group::<ROUNDS, ENCRYPT, STREAM>(data_keys, src, dst, &tweaks, ahead);
                src = src.add(GROUP_BYTES);
                dst = dst.add(GROUP_BYTES);
            }
        }
    }
}

/// Encrypts the IVs of eight sectors from `first` on.
#[inline]
#[target_feature(enable = "avx2,vaes")]
unsafe fn encrypt_ivs<const ROUNDS: usize>(
    keys: *const __m128i,
    iv: &IvCounter,
    first: usize,
) -> Tweaks {
    let high = iv.high.cast_signed();
    let mut ivs = [_mm256_setzero_si256(); IV_BATCH / 2];
    for (index, pair) in ivs.iter_mut().enumerate() {
        let low = iv.low(first + 2 * index).cast_signed();
        let next = iv.low(first + 2 * index + 1).cast_signed();
        *pair = _mm256_set_epi64x(high, next, high, low);
    }
    // SAFETY: a schedule holds at least `ROUNDS + 1` round keys; `Tweaks` is aligned and as long
    // as `ivs`.
    unsafe {
        cipher::<{ IV_BATCH / 2 }, ROUNDS, true>(keys, &mut ivs);
        let mut tweaks = Tweaks([_mm_load_si128(keys); IV_BATCH]);
        for (index, pair) in ivs.into_iter().enumerate() {
            _mm256_store_si256((&raw mut tweaks.0).cast::<__m256i>().add(index), pair);
        }
        tweaks
    }
}

/// `{T, Tx}` to `{Tx^6, Tx^7}`: each lane shifted by its power, and what fell out reduced.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn powers(first: __m128i) -> [__m256i; LANES / 2] {
    let first = _mm256_broadcastsi128_si256(first);
    let swapped = _mm256_shuffle_epi32::<0x4e>(first);
    let polynomial = _mm256_set_epi64x(0, 0x87, 0, 0x87);
    let mut tweaks = [first; LANES / 2];
    for (index, tweak) in tweaks.iter_mut().enumerate() {
        let power = 2 * index as i64;
        let left = _mm256_set_epi64x(power + 1, power + 1, power, power);
        let right = _mm256_set_epi64x(63 - power, 63 - power, 64 - power, 64 - power);
        // What crosses from each half: in the high half it stays, in the low half it is reduced.
        let crossed = _mm256_srlv_epi64(swapped, right);
        let reduced = _mm256_clmulepi64_epi128::<0x00>(crossed, polynomial);
        let high = _mm256_unpackhi_epi64(_mm256_setzero_si256(), crossed);
        let shifted = _mm256_sllv_epi64(first, left);
        *tweak = _mm256_xor_si256(_mm256_xor_si256(shifted, high), reduced);
    }
    tweaks
}

/// The eight registers of a group, from its first four; leaves the next group's first four.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn unfold(quarter: &mut [__m256i; LANES / 2]) -> [__m256i; LANES] {
    let mut tweaks = [_mm256_setzero_si256(); LANES];
    for (index, tweak) in quarter.iter_mut().enumerate() {
        tweaks[index] = *tweak;
        tweaks[index + LANES / 2] = times_x8(*tweak);
        *tweak = times_x8(tweaks[index + LANES / 2]);
    }
    tweaks
}

/// `t * x^8`: a shift by one byte, and the byte that fell out times the polynomial.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn times_x8(tweak: __m256i) -> __m256i {
    let polynomial = _mm256_set_epi64x(0, 0x87, 0, 0x87);
    let out = _mm256_bsrli_epi128::<15>(tweak);
    let reduced = _mm256_clmulepi64_epi128::<0x00>(out, polynomial);
    _mm256_xor_si256(_mm256_bslli_epi128::<1>(tweak), reduced)
}

/// One group from `src` to `dst`. Everything is read before anything is written.
#[inline]
#[target_feature(enable = "avx2,vaes")]
unsafe fn group<const ROUNDS: usize, const ENCRYPT: bool, const STREAM: bool>(
    keys: *const __m128i,
    src: *const u8,
    dst: *mut u8,
    tweaks: &[__m256i; LANES],
    prefetch_bytes: usize,
) {
    // SAFETY: the caller gives a group's worth of source and destination, aligned to a register if
    // it streams; prefetching may name any address.
    unsafe {
        let mut data = [_mm256_setzero_si256(); LANES];
        for line in 0..GROUP_BYTES / 64 {
            _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(prefetch_bytes + 64 * line).cast());
        }
        for index in 0..LANES {
            let bytes = _mm256_loadu_si256(src.cast::<__m256i>().add(index));
            data[index] = _mm256_xor_si256(bytes, tweaks[index]);
        }
        cipher::<LANES, ROUNDS, ENCRYPT>(keys, &mut data);
        for index in 0..LANES {
            let bytes = _mm256_xor_si256(data[index], tweaks[index]);
            let to = dst.cast::<__m256i>().add(index);
            if STREAM {
                _mm256_stream_si256(to, bytes);
            } else {
                _mm256_storeu_si256(to, bytes);
            }
        }
    }
}

/// AES on `N` registers.
#[inline]
#[target_feature(enable = "avx2,vaes")]
unsafe fn cipher<const N: usize, const ROUNDS: usize, const ENCRYPT: bool>(
    keys: *const __m128i,
    data: &mut [__m256i; N],
) {
    // SAFETY: the caller gives `ROUNDS + 1` round keys, aligned.
    let key =
        |round: usize| unsafe { _mm256_broadcastsi128_si256(_mm_load_si128(keys.add(round))) };
    let whitening = key(0);
    for block in data.iter_mut() {
        *block = _mm256_xor_si256(*block, whitening);
    }
    for round in 1..ROUNDS {
        let key = key(round);
        for block in data.iter_mut() {
            *block = if ENCRYPT {
                _mm256_aesenc_epi128(*block, key)
            } else {
                _mm256_aesdec_epi128(*block, key)
            };
        }
    }
    let last = key(ROUNDS);
    for block in data.iter_mut() {
        *block = if ENCRYPT {
            _mm256_aesenclast_epi128(*block, last)
        } else {
            _mm256_aesdeclast_epi128(*block, last)
        };
    }
}
