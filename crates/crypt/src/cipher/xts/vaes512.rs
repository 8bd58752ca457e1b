//! XTS on VAES and AVX-512: four blocks a register, eight registers in flight.
//!
//! ```text
//! registers of one group (512 bytes)
//!   t0 = {T, .. Tx^3}     t2 = t0 * x^8    t4 = t2 * x^8    t6 = t4 * x^8
//!   t1 = {Tx^4, .. Tx^7}  t3 = t1 * x^8    t5 = t3 * x^8    t7 = t5 * x^8
//! ```
//!
//! A step by x^8 is a byte shift, and a carry-less product of the byte that fell out. Those run on
//! ports that AES leaves idle. The IVs of eight sectors are encrypted together, one sector before
//! they are needed, so that their chain of rounds hides behind the sector's data.

use std::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm_sfence, _mm512_aesdec_epi128,
    _mm512_aesdeclast_epi128, _mm512_aesenc_epi128, _mm512_aesenclast_epi128,
    _mm512_broadcast_i32x4, _mm512_bslli_epi128, _mm512_bsrli_epi128, _mm512_clmulepi64_epi128,
    _mm512_loadu_si512, _mm512_set_epi64, _mm512_set1_epi64, _mm512_setzero_si512,
    _mm512_shuffle_epi32, _mm512_sllv_epi64, _mm512_srlv_epi64, _mm512_store_si512,
    _mm512_storeu_si512, _mm512_stream_si512, _mm512_sub_epi64, _mm512_ternarylogic_epi64,
    _mm512_unpackhi_epi64, _mm512_xor_si512,
};

use crate::cipher::iv::IvCounter;
use crate::cipher::job::{Job, Kernels};
use crate::cipher::schedule::Schedule;

/// Registers of data in flight.
const LANES: usize = 8;
/// Bytes they hold.
const GROUP_BYTES: usize = LANES * size_of::<__m512i>();
/// Sectors whose IVs are encrypted together.
const IV_BATCH: usize = 8;
/// `a ^ b ^ c` as a truth table.
const XOR3: i32 = 0x96;

/// Encrypted IVs, four a register.
#[repr(C, align(64))]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
unsafe fn run<const ROUNDS: usize, const ENCRYPT: bool>(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        if job.streams(size_of::<__m512i>()) {
            sectors::<ROUNDS, ENCRYPT, true>(schedule, job);
            _mm_sfence();
        } else {
            sectors::<ROUNDS, ENCRYPT, false>(schedule, job);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
unsafe fn sectors<const ROUNDS: usize, const ENCRYPT: bool, const STREAM: bool>(
    schedule: *const Schedule,
    job: &Job,
) {
    // SAFETY: the caller vouches for the schedule, and that source and destination hold
    // `sectors * sector_bytes`; a sector is a multiple of a group.
    unsafe {
        let data_keys = if ENCRYPT {
            (&raw const (*schedule).encrypt).cast()
        } else {
            (&raw const (*schedule).decrypt).cast()
        };
        let iv_keys: *const __m128i = (&raw const (*schedule).iv).cast();
        let ahead = job.prefetch_bytes();
        let (mut src, mut dst) = (job.src, job.dst);
        let mut first_tweaks = encrypt_ivs::<ROUNDS>(iv_keys, &job.iv, 0);
        for sector in 0..job.sectors {
            let first = first_tweaks.0[sector % IV_BATCH];
            if sector % IV_BATCH == IV_BATCH - 1 && sector + 1 < job.sectors {
                first_tweaks = encrypt_ivs::<ROUNDS>(iv_keys, &job.iv, sector + 1);
            }
            let mut tweaks = unfold(powers(first));
            group::<ROUNDS, ENCRYPT, STREAM>(data_keys, src, dst, &tweaks, ahead);
            for offset in (GROUP_BYTES..job.sector_bytes).step_by(GROUP_BYTES) {
                let pair = [times_x8(tweaks[LANES - 2]), times_x8(tweaks[LANES - 1])];
                tweaks = unfold(pair);
                let (src, dst) = (src.add(offset), dst.add(offset));
                group::<ROUNDS, ENCRYPT, STREAM>(data_keys, src, dst, &tweaks, ahead);
            }
            src = src.add(job.sector_bytes);
            dst = dst.add(job.sector_bytes);
        }
    }
}

/// Encrypts the IVs of eight sectors from `first` on.
#[inline]
#[target_feature(enable = "avx512f,vaes")]
unsafe fn encrypt_ivs<const ROUNDS: usize>(
    keys: *const __m128i,
    iv: &IvCounter,
    first: usize,
) -> Tweaks {
    let high = iv.high.cast_signed();
    let low = |index: usize| iv.low(first + index).cast_signed();
    let mut ivs = [
        _mm512_set_epi64(high, low(3), high, low(2), high, low(1), high, low(0)),
        _mm512_set_epi64(high, low(7), high, low(6), high, low(5), high, low(4)),
    ];
    // SAFETY: a schedule holds at least `ROUNDS + 1` round keys; `Tweaks` is aligned and as long
    // as `ivs`.
    unsafe {
        let whitening = broadcast(keys, 0);
        for block in &mut ivs {
            *block = _mm512_xor_si512(*block, whitening);
        }
        cipher::<{ IV_BATCH / 4 }, ROUNDS, true>(keys, &mut ivs);
        let last = broadcast(keys, ROUNDS);
        let mut tweaks = Tweaks([_mm_load_si128(keys); IV_BATCH]);
        for (index, block) in ivs.into_iter().enumerate() {
            let block = _mm512_aesenclast_epi128(block, last);
            _mm512_store_si512((&raw mut tweaks.0).cast::<__m512i>().add(index), block);
        }
        tweaks
    }
}

/// `{T, .. Tx^3}` and `{Tx^4, .. Tx^7}`: each lane shifted by its power, and what fell out reduced.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn powers(first: __m128i) -> [__m512i; 2] {
    let first = _mm512_broadcast_i32x4(first);
    let swapped = _mm512_shuffle_epi32::<0x4e>(first);
    let mut tweaks = [first; 2];
    for (tweak, power) in tweaks.iter_mut().zip([0, 4]) {
        let (a, b, c, d) = (power, power + 1, power + 2, power + 3);
        let left = _mm512_set_epi64(d, d, c, c, b, b, a, a);
        let right = _mm512_sub_epi64(_mm512_set1_epi64(64), left);
        // What crosses from each half: in the high half it stays, in the low half it is reduced.
        let crossed = _mm512_srlv_epi64(swapped, right);
        let high = _mm512_unpackhi_epi64(_mm512_setzero_si512(), crossed);
        let shifted = _mm512_sllv_epi64(first, left);
        *tweak = _mm512_ternarylogic_epi64::<XOR3>(shifted, high, reduce(crossed));
    }
    tweaks
}

/// The eight registers of a group, from its first two.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn unfold(pair: [__m512i; 2]) -> [__m512i; LANES] {
    let mut tweaks = [pair[0]; LANES];
    tweaks[1] = pair[1];
    for index in 2..LANES {
        tweaks[index] = times_x8(tweaks[index - 2]);
    }
    tweaks
}

/// `t * x^8`: a shift by one byte, and the byte that fell out times the polynomial.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn times_x8(tweak: __m512i) -> __m512i {
    let out = _mm512_bsrli_epi128::<15>(tweak);
    _mm512_xor_si512(_mm512_bslli_epi128::<1>(tweak), reduce(out))
}

/// The low half of each lane times x^128, modulo the polynomial.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn reduce(out: __m512i) -> __m512i {
    let polynomial = _mm512_set1_epi64(0x87);
    _mm512_clmulepi64_epi128::<0x00>(out, polynomial)
}

/// One group from `src` to `dst`. Everything is read before anything is written.
#[inline]
#[target_feature(enable = "avx512f,vaes")]
unsafe fn group<const ROUNDS: usize, const ENCRYPT: bool, const STREAM: bool>(
    keys: *const __m128i,
    src: *const u8,
    dst: *mut u8,
    tweaks: &[__m512i; LANES],
    prefetch_bytes: usize,
) {
    // SAFETY: the caller gives a group's worth of source and destination, aligned to a register if
    // it streams, and `ROUNDS + 1` aligned round keys; prefetching may name any address.
    unsafe {
        for line in 0..GROUP_BYTES / 64 {
            _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(prefetch_bytes + 64 * line).cast());
        }
        let mut data = [_mm512_setzero_si512(); LANES];
        let whitening = broadcast(keys, 0);
        for index in 0..LANES {
            let bytes = _mm512_loadu_si512(src.cast::<__m512i>().add(index));
            data[index] = _mm512_ternarylogic_epi64::<XOR3>(bytes, tweaks[index], whitening);
        }
        cipher::<LANES, ROUNDS, ENCRYPT>(keys, &mut data);
        let last = broadcast(keys, ROUNDS);
        for index in 0..LANES {
            // The last round only adds its key, so the tweak can ride on it.
            let last = _mm512_xor_si512(last, tweaks[index]);
            let bytes = if ENCRYPT {
                _mm512_aesenclast_epi128(data[index], last)
            } else {
                _mm512_aesdeclast_epi128(data[index], last)
            };
            let to = dst.cast::<__m512i>().add(index);
            if STREAM {
                _mm512_stream_si512(to, bytes);
            } else {
                _mm512_storeu_si512(to, bytes);
            }
        }
    }
}

/// The rounds between the first key and the last on `N` registers.
#[inline]
#[target_feature(enable = "avx512f,vaes")]
unsafe fn cipher<const N: usize, const ROUNDS: usize, const ENCRYPT: bool>(
    keys: *const __m128i,
    data: &mut [__m512i; N],
) {
    for round in 1..ROUNDS {
        // SAFETY: the caller gives `ROUNDS + 1` round keys, aligned.
        let key = unsafe { broadcast(keys, round) };
        for block in data.iter_mut() {
            *block = if ENCRYPT {
                _mm512_aesenc_epi128(*block, key)
            } else {
                _mm512_aesdec_epi128(*block, key)
            };
        }
    }
}

/// A round key in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast(keys: *const __m128i, round: usize) -> __m512i {
    // SAFETY: the caller gives more than `round` round keys, aligned.
    _mm512_broadcast_i32x4(unsafe { _mm_load_si128(keys.add(round)) })
}
