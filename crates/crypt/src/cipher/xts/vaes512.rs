//! XTS on VAES and AVX-512: four blocks a register, eight registers in flight.
//!
//! ```text
//! registers of one group (512 bytes)      base = {T, .. Tx^3} {Tx^4, .. Tx^7}
//!   base, base * x^8, base * x^16, base * x^24      next base = base * x^32
//! ```
//!
//! On Intel one port does AES, shifts and half of the logic, and another one all shuffles and
//! carry-less products. So this kernel never shifts by bits: steps go by whole bytes, and powers of
//! x are products. The IVs of eight sectors are encrypted together, one sector in advance, so that
//! the latency of their rounds overlaps with the sector's data.

use std::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm_sfence, _mm512_aesdec_epi128,
    _mm512_aesdeclast_epi128, _mm512_aesenc_epi128, _mm512_aesenclast_epi128,
    _mm512_broadcast_i32x4, _mm512_bslli_epi128, _mm512_clmulepi64_epi128, _mm512_loadu_si512,
    _mm512_maskz_mov_epi32, _mm512_set_epi64, _mm512_set1_epi64, _mm512_setzero_si512,
    _mm512_shuffle_epi8, _mm512_shuffle_epi32, _mm512_store_si512, _mm512_storeu_si512,
    _mm512_stream_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use crate::cipher::iv::IvCounter;
use crate::cipher::job::{Job, Kernels};
use crate::cipher::schedule::Schedule;

/// Registers of data in flight.
const LANES: usize = 8;
/// Bytes of these registers.
const GROUP_BYTES: usize = LANES * size_of::<__m512i>();
/// Registers that hold the base of a group's tweaks.
const BASE: usize = 2;
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
        16 => Kernels { encrypt: run::<10, true>, decrypt: run::<10, false>, spills: false },
        24 => Kernels { encrypt: run::<12, true>, decrypt: run::<12, false>, spills: false },
        _ => Kernels { encrypt: run::<14, true>, decrypt: run::<14, false>, spills: false },
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
        let mut src = job.src;
        let mut dst = job.dst;
        let mut first_tweaks = encrypt_ivs::<ROUNDS>(iv_keys, &job.iv, 0);
        for sector in 0..job.sectors {
            let first = first_tweaks.0[sector % IV_BATCH];
            if sector % IV_BATCH == IV_BATCH - 1 && sector + 1 < job.sectors {
                first_tweaks = encrypt_ivs::<ROUNDS>(iv_keys, &job.iv, sector + 1);
            }
            let mut base = powers(first);
            let end = src.add(job.sector_bytes);
            loop {
                group::<ROUNDS, ENCRYPT, STREAM>(data_keys, src, dst, &unfold(&base), ahead);
                src = src.add(GROUP_BYTES);
                dst = dst.add(GROUP_BYTES);
                if src == end {
                    break;
                }
                times_x32(&mut base);
            }
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

/// The base of one sector: each half of `T` times its lane's power, with the bits shifted out
/// reduced.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn powers(first: __m128i) -> [__m512i; BASE] {
    let first = _mm512_broadcast_i32x4(first);
    let mut base = [first; BASE];
    for (tweak, power) in base.iter_mut().zip([1, 16]) {
        let powers = _mm512_set_epi64(0, power << 3, 0, power << 2, 0, power << 1, 0, power);
        let low = _mm512_clmulepi64_epi128::<0x00>(first, powers);
        let high = _mm512_clmulepi64_epi128::<0x01>(first, powers);
        let reduced = _mm512_clmulepi64_epi128::<0x01>(high, polynomial());
        let high = _mm512_bslli_epi128::<8>(high);
        *tweak = _mm512_ternarylogic_epi64::<XOR3>(low, high, reduced);
    }
    base
}

/// The tweaks of a group.
///
/// `t * x^8k` is `t` shifted by `k` bytes, plus the `k` bytes shifted out times the polynomial. One
/// multiplication gives the products of the last three bytes, of two and of one:
///
/// ```text
/// byte       0   1   2   3   4   5   6   7   8
/// factor    t13 t14 t15  0  t14 t15  0  t15
/// product   [--- k=3 ---]   [- k=2 -]   [k=1]
/// ```
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn unfold(base: &[__m512i; BASE]) -> [__m512i; LANES] {
    const NONE: i8 = -1;
    let spread = lanes([13, 14, 15, NONE, 14, 15, NONE, 15]);
    let one = lanes([7, 8, NONE, NONE, NONE, NONE, NONE, NONE]);
    let two = lanes([4, 5, 6, NONE, NONE, NONE, NONE, NONE]);
    let mut tweaks = [_mm512_setzero_si512(); LANES];
    for (index, tweak) in base.iter().enumerate() {
        let spread = _mm512_shuffle_epi8(*tweak, spread);
        let product = _mm512_clmulepi64_epi128::<0x00>(spread, polynomial());
        let by_one = _mm512_shuffle_epi8(product, one);
        let by_two = _mm512_shuffle_epi8(product, two);
        let by_three = _mm512_maskz_mov_epi32(0x1111, product);
        tweaks[index] = *tweak;
        tweaks[BASE + index] = _mm512_xor_si512(_mm512_bslli_epi128::<1>(*tweak), by_one);
        tweaks[2 * BASE + index] = _mm512_xor_si512(_mm512_bslli_epi128::<2>(*tweak), by_two);
        tweaks[3 * BASE + index] = _mm512_xor_si512(_mm512_bslli_epi128::<3>(*tweak), by_three);
    }
    tweaks
}

/// The base of the next group: rotates by four bytes and reduces the rotated ones.
///
/// The bytes are already in place for `x^0`, so they are multiplied by `x^128 + 1`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
fn times_x32(base: &mut [__m512i; BASE]) {
    for tweak in base {
        let round = _mm512_shuffle_epi32::<0x93>(*tweak);
        let out = _mm512_maskz_mov_epi32(0x1111, round);
        let rest = _mm512_clmulepi64_epi128::<0x00>(out, _mm512_set1_epi64(0x86));
        *tweak = _mm512_xor_si512(round, rest);
    }
}

/// `x^7 + x^2 + x + 1`, which is `x^128`, in every half.
#[inline]
#[target_feature(enable = "avx512f")]
fn polynomial() -> __m512i {
    _mm512_set1_epi64(0x87)
}

/// A shuffle with equal lanes that clears the upper half of each.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(low: [i8; 8]) -> __m512i {
    let low = i64::from_le_bytes(low.map(i8::cast_unsigned));
    _mm512_set_epi64(-1, low, -1, low, -1, low, -1, low)
}

/// One group from `src` to `dst`. All reads precede all writes.
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
            // The last round only adds its key, so the instruction can add the tweak too.
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
