//! XTS on VAES and AVX2: two blocks a register, eight registers in flight.
//!
//! ```text
//! tweaks of two groups (512 bytes)    base = {T, Tx} {Tx^2, Tx^3} {Tx^4, Tx^5} {Tx^6, Tx^7}
//!   first group     base, base * x^8
//!   second group    base * x^16, base * x^24      next base = base * x^32
//! ```
//!
//! On Zen 3 the limit of this kernel is the tweaks' share of the two ports that also do AES: half a
//! cycle for a shuffle or a shift, more than one for a carry-less product, next to nothing for
//! logic. So steps go by whole bytes, one product serves the three steps of a register, and the
//! base comes from doubling two sectors at once. Base and IVs of eight sectors are computed
//! together, one sector in advance, so that their latency overlaps with the sector's data.

use std::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T0, _mm_load_si128, _mm_prefetch, _mm_setzero_si128, _mm_sfence,
    _mm256_add_epi64, _mm256_aesdec_epi128, _mm256_aesdeclast_epi128, _mm256_aesenc_epi128,
    _mm256_aesenclast_epi128, _mm256_and_si256, _mm256_blend_epi32, _mm256_broadcastsi128_si256,
    _mm256_bslli_epi128, _mm256_castsi256_si128, _mm256_clmulepi64_epi128, _mm256_cmpgt_epi32,
    _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set_epi32, _mm256_set_epi64x,
    _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_shuffle_epi32,
    _mm256_sllv_epi64, _mm256_srlv_epi64, _mm256_storeu_si256, _mm256_stream_si256,
    _mm256_sub_epi64, _mm256_unpackhi_epi64, _mm256_xor_si256,
};

use crate::cipher::aesni::pairs_in_step;
use crate::cipher::iv::IvCounter;
use crate::cipher::job::{Job, Kernels};
use crate::cipher::schedule::Schedule;

/// Registers of data in flight.
const LANES: usize = 8;
/// Bytes of these registers.
const GROUP_BYTES: usize = LANES * size_of::<__m256i>();
/// Registers that hold the base of the tweaks of two groups.
const BASE: usize = 4;
/// Sectors whose IVs are encrypted together.
const IV_BATCH: usize = 8;

/// `T` to `Tx^7` of the sectors of a batch.
#[repr(C, align(32))]
struct Bases([[__m128i; 2 * BASE]; IV_BATCH]);

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
        let mut src = job.src;
        let mut dst = job.dst;
        let mut bases = Bases([[_mm_setzero_si128(); 2 * BASE]; IV_BATCH]);
        let pairs = encrypt_ivs::<ROUNDS>(iv_keys, &job.iv, 0);
        let mut base = if job.sectors == 1 {
            // Without a batch, the latency of doublings would not overlap with anything.
            powers(_mm256_castsi256_si128(pairs[0]))
        } else {
            double(&mut bases, pairs);
            load(&bases.0[0])
        };
        for sector in 0..job.sectors {
            if sector % IV_BATCH == IV_BATCH - 1 && sector + 1 < job.sectors {
                double(&mut bases, encrypt_ivs::<ROUNDS>(iv_keys, &job.iv, sector + 1));
            }
            let end = src.add(job.sector_bytes);
            loop {
                let (first, second) = unfold(&base);
                group::<ROUNDS, ENCRYPT, STREAM>(data_keys, src, dst, &first, ahead);
                let src2 = src.add(GROUP_BYTES);
                let dst2 = dst.add(GROUP_BYTES);
                group::<ROUNDS, ENCRYPT, STREAM>(data_keys, src2, dst2, &second, ahead);
                src = src.add(2 * GROUP_BYTES);
                dst = dst.add(2 * GROUP_BYTES);
                if src == end {
                    break;
                }
                times_x32(&mut base);
            }
            base = load(&bases.0[(sector + 1) % IV_BATCH]);
        }
    }
}

/// Encrypts the IVs of eight sectors from `first` on, two a register.
#[inline]
#[target_feature(enable = "avx2,vaes")]
unsafe fn encrypt_ivs<const ROUNDS: usize>(
    keys: *const __m128i,
    iv: &IvCounter,
    first: usize,
) -> [__m256i; IV_BATCH / 2] {
    let high = iv.high.cast_signed();
    let mut pairs = [_mm256_setzero_si256(); IV_BATCH / 2];
    for (index, pair) in pairs.iter_mut().enumerate() {
        let low = iv.low(first + 2 * index).cast_signed();
        let next = iv.low(first + 2 * index + 1).cast_signed();
        *pair = _mm256_set_epi64x(high, next, high, low);
    }
    // SAFETY: a schedule holds at least `ROUNDS + 1` round keys.
    unsafe { cipher::<{ IV_BATCH / 2 }, ROUNDS, true>(keys, &mut pairs) };
    pairs
}

/// The bases of eight sectors: each tweak is the tweak before, times x.
#[inline]
#[target_feature(enable = "avx2")]
fn double(bases: &mut Bases, mut pairs: [__m256i; IV_BATCH / 2]) {
    // The bit out of a high half returns as the polynomial, a low half's as a carry.
    let feedback = _mm256_set_epi32(0, 1, 0, 0x87, 0, 1, 0, 0x87);
    for power in 0..2 * BASE {
        for (index, pair) in pairs.iter_mut().enumerate() {
            bases.0[2 * index][power] = _mm256_castsi256_si128(*pair);
            bases.0[2 * index + 1][power] = _mm256_extracti128_si256::<1>(*pair);
            let crossing = _mm256_shuffle_epi32::<0x13>(*pair);
            let signs = _mm256_cmpgt_epi32(_mm256_setzero_si256(), crossing);
            let doubled = _mm256_add_epi64(*pair, *pair);
            *pair = _mm256_xor_si256(doubled, _mm256_and_si256(signs, feedback));
        }
    }
}

/// The base of one sector from its encrypted IV: each lane is shifted by its power, and the bits
/// shifted out are reduced.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn powers(first: __m128i) -> [__m256i; BASE] {
    let first = _mm256_broadcastsi128_si256(first);
    let swapped = _mm256_shuffle_epi32::<0x4e>(first);
    let mut base = [first; BASE];
    for (tweak, power) in base.iter_mut().zip([0, 2, 4, 6]) {
        let left = _mm256_set_epi64x(power + 1, power + 1, power, power);
        let right = _mm256_sub_epi64(_mm256_set1_epi64x(64), left);
        // Bits that cross a half: those into the high half stay, the others are reduced.
        let crossed = _mm256_srlv_epi64(swapped, right);
        let high = _mm256_unpackhi_epi64(_mm256_setzero_si256(), crossed);
        let shifted = _mm256_xor_si256(_mm256_sllv_epi64(first, left), high);
        *tweak = _mm256_xor_si256(shifted, times_polynomial(crossed));
    }
    base
}

/// The base of one sector, two powers a register.
#[inline]
#[target_feature(enable = "avx2")]
fn load(powers: &[__m128i; 2 * BASE]) -> [__m256i; BASE] {
    let mut base = [_mm256_setzero_si256(); BASE];
    for (index, pair) in base.iter_mut().enumerate() {
        // SAFETY: four registers of two blocks are the eight powers.
        *pair = unsafe { _mm256_loadu_si256(powers.as_ptr().cast::<__m256i>().add(index)) };
    }
    base
}

/// The tweaks of two groups.
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
#[target_feature(enable = "avx2,vpclmulqdq")]
fn unfold(base: &[__m256i; BASE]) -> ([__m256i; LANES], [__m256i; LANES]) {
    const NONE: i8 = -1;
    let zero = _mm256_setzero_si256();
    let spread = lanes([13, 14, 15, NONE, 14, 15, NONE, 15]);
    let one = lanes([7, 8, NONE, NONE, NONE, NONE, NONE, NONE]);
    let two = lanes([4, 5, 6, NONE, NONE, NONE, NONE, NONE]);
    let mut first = [zero; LANES];
    let mut second = [zero; LANES];
    for (index, tweak) in base.iter().enumerate() {
        let product = times_polynomial(_mm256_shuffle_epi8(*tweak, spread));
        let by_one = _mm256_shuffle_epi8(product, one);
        let by_two = _mm256_shuffle_epi8(product, two);
        let by_three = _mm256_blend_epi32::<0x11>(zero, product);
        first[index] = *tweak;
        first[BASE + index] = _mm256_xor_si256(_mm256_bslli_epi128::<1>(*tweak), by_one);
        second[index] = _mm256_xor_si256(_mm256_bslli_epi128::<2>(*tweak), by_two);
        second[BASE + index] = _mm256_xor_si256(_mm256_bslli_epi128::<3>(*tweak), by_three);
    }
    (first, second)
}

/// The base of the next two groups: rotates by four bytes and reduces the rotated ones.
///
/// The bytes are already in place for `x^0`, so they are multiplied by `x^128 + 1`.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn times_x32(base: &mut [__m256i; BASE]) {
    for tweak in base {
        let round = _mm256_shuffle_epi32::<0x93>(*tweak);
        let out = _mm256_blend_epi32::<0x11>(_mm256_setzero_si256(), round);
        let rest = _mm256_clmulepi64_epi128::<0x00>(out, _mm256_set1_epi64x(0x86));
        *tweak = _mm256_xor_si256(round, rest);
    }
}

/// The low half of each lane times x^7 + x^2 + x + 1, which is x^128.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn times_polynomial(halves: __m256i) -> __m256i {
    _mm256_clmulepi64_epi128::<0x00>(halves, _mm256_set1_epi64x(0x87))
}

/// A shuffle with equal lanes that clears the upper half of each.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(low: [i8; 8]) -> __m256i {
    let low = i64::from_le_bytes(low.map(i8::cast_unsigned));
    _mm256_set_epi64x(-1, low, -1, low)
}

/// One group from `src` to `dst`. All reads precede all writes.
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
        pairs_in_step(data);
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
