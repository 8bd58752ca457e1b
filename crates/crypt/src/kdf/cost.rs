//! Chooses the KDF cost of a new keyslot from a target time.
//!
//! Argon2 gets as much memory as allowed and as few passes as cryptsetup allows (4), because memory
//! is the most expensive resource for an attacker. The search is a pure function over a callback
//! that gives the milliseconds of a cost: [`measure`] runs the KDF, tests use a model.

use std::time::Instant;

use super::{Argon2Variant, Kdf, KdfError, KdfLimits};
use crate::hash::HashAlgorithm;

/// Fewest argon2 passes in a new keyslot; cryptsetup's minimum.
pub const TIME_MIN: u32 = 4;
/// Fewest PBKDF2 iterations; NIST SP 800-132 and cryptsetup's minimum.
pub const ITERATIONS_MIN: u32 = 1000;
/// Least argon2 memory in a new keyslot, in KiB; cryptsetup's minimum.
pub const MEMORY_KIB_MIN: u32 = 32;
/// Most lanes in a new keyslot; cryptsetup's maximum.
pub const LANES_MAX: u32 = 4;
/// Most memory in a new keyslot, in KiB: cryptsetup's default of 1 GiB.
pub const MEMORY_KIB_MAX: u32 = 1024 * 1024;
/// First guess in KiB; cryptsetup's benchmark starts there too.
const MEMORY_KIB_START: u32 = 64 * 1024;
/// Least time of a sample that gives a reliable estimate.
const SAMPLE_MS_MIN: u64 = 250;
/// Accepted range: 95 % to 110 % of the target, as in cryptsetup.
const PERCENT_MIN: u128 = 95;
const PERCENT_MAX: u128 = 110;
/// Greatest number of rounds. The estimate converges in two or three rounds, but noise could
/// prevent that.
const ROUNDS_MAX: u32 = 8;

/// Limits of argon2 in a new keyslot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argon2Bounds {
    /// Target time of one derivation in milliseconds.
    pub target_ms: u64,
    /// Most memory in KiB.
    pub memory_kib_max: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Argon2Bounds {
    /// Limits for a machine: at most 1 GiB and half of its memory, at most 4 lanes and one per CPU.
    #[must_use]
    pub fn for_machine(target_ms: u64, memory_bytes: u64, cpus: usize) -> Self {
        let half_kib = u32::try_from(memory_bytes / 2 / 1024).unwrap_or(u32::MAX);
        let lanes = u32::try_from(cpus).unwrap_or(LANES_MAX).clamp(1, LANES_MAX);
        Self {
            target_ms: target_ms.max(1),
            memory_kib_max: half_kib.clamp(MEMORY_KIB_MIN, MEMORY_KIB_MAX),
            lanes,
        }
    }
}

/// Finds the argon2 cost that takes about `bounds.target_ms` by `measure_ms`.
///
/// # Errors
/// The error of `measure_ms`.
pub fn argon2(
    variant: Argon2Variant,
    bounds: Argon2Bounds,
    measure_ms: &mut dyn FnMut(&Kdf) -> Result<u64, KdfError>,
) -> Result<Kdf, KdfError> {
    let cost = |time, memory_kib| Kdf::Argon2 { variant, time, memory_kib, lanes: bounds.lanes };
    let mut time = TIME_MIN;
    let mut memory_kib = MEMORY_KIB_START.min(bounds.memory_kib_max);
    let mut sample_wanted_ms = SAMPLE_MS_MIN.min(bounds.target_ms);
    for _ in 0..ROUNDS_MAX {
        let took_ms = measure_ms(&cost(time, memory_kib))?.max(1);
        let last = (time, memory_kib);
        if took_ms < sample_wanted_ms {
            // The sample is too short for an extrapolation to the target: first grow to a reliable
            // length.
            (time, memory_kib) = scaled(last, sample_wanted_ms, took_ms, &bounds);
        } else {
            sample_wanted_ms = 0;
            let target_ms = u128::from(bounds.target_ms);
            let low_ms = target_ms * PERCENT_MIN / 100;
            let high_ms = target_ms * PERCENT_MAX / 100;
            if (low_ms..=high_ms).contains(&u128::from(took_ms)) {
                break;
            }
            (time, memory_kib) = scaled(last, bounds.target_ms, took_ms, &bounds);
        }
        if (time, memory_kib) == last {
            break;
        }
    }
    Ok(cost(time, memory_kib))
}

/// Scales the cost by `target_ms / took_ms`: first memory, then passes when memory is at its limit.
fn scaled(
    (time, memory_kib): (u32, u32),
    target_ms: u64,
    took_ms: u64,
    bounds: &Argon2Bounds,
) -> (u32, u32) {
    let work =
        u128::from(time) * u128::from(memory_kib) * u128::from(target_ms) / u128::from(took_ms);
    let memory_max = u128::from(bounds.memory_kib_max.max(1));
    let memory_min = (8 * u128::from(bounds.lanes)).max(MEMORY_KIB_MIN.into()).min(memory_max);
    let memory = (work / u128::from(TIME_MIN)).clamp(memory_min, memory_max);
    let time = (work / memory).clamp(u128::from(TIME_MIN), u128::from(u32::MAX / 2));
    let narrow = |value: u128| u32::try_from(value).expect("clamped to 32 bits");
    (narrow(time), narrow(memory))
}

/// Finds the PBKDF2 iterations that take about `target_ms` for `key_len_bytes` of output.
///
/// # Errors
/// The error of `measure_ms`.
pub fn pbkdf2(
    hash: HashAlgorithm,
    target_ms: u64,
    measure_ms: &mut dyn FnMut(&Kdf) -> Result<u64, KdfError>,
) -> Result<Kdf, KdfError> {
    let mut iterations: u32 = 1 << 15;
    let took_ms = loop {
        let took_ms = measure_ms(&Kdf::Pbkdf2 { hash, iterations })?.max(1);
        if took_ms >= SAMPLE_MS_MIN.min(target_ms) || iterations >= 1 << 28 {
            break took_ms;
        }
        iterations *= 4;
    };
    let wanted = u128::from(iterations) * u128::from(target_ms) / u128::from(took_ms);
    let iterations = u32::try_from(wanted).unwrap_or(u32::MAX).max(ITERATIONS_MIN);
    Ok(Kdf::Pbkdf2 { hash, iterations })
}

/// Checks that cryptsetup would accept the cost in a new volume.
pub(crate) fn check_minimum(kdf: &Kdf) -> Result<(), String> {
    match *kdf {
        Kdf::Pbkdf2 { iterations, .. } if iterations < ITERATIONS_MIN => {
            Err(format!("{iterations} iterations are fewer than {ITERATIONS_MIN}"))
        }
        Kdf::Argon2 { time, .. } if time < TIME_MIN => {
            Err(format!("{time} passes are fewer than {TIME_MIN}"))
        }
        Kdf::Argon2 { memory_kib, .. } if memory_kib < MEMORY_KIB_MIN => {
            Err(format!("{memory_kib} KiB of memory are less than {MEMORY_KIB_MIN}"))
        }
        Kdf::Argon2 { lanes, .. } if lanes == 0 || lanes > LANES_MAX => {
            Err(format!("{lanes} threads are not 1 to {LANES_MAX}"))
        }
        _ => Ok(()),
    }
}

/// Runs `kdf` once on a made-up passphrase and returns its time in milliseconds.
///
/// # Errors
/// When memory is short.
pub fn measure(kdf: &Kdf, key_len_bytes: usize) -> Result<u64, KdfError> {
    let mut key = vec![0u8; key_len_bytes];
    let start = Instant::now();
    kdf.derive(b"foobarfo", &[0x5a; 32], &mut key, &KdfLimits::UNLIMITED)?;
    Ok(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that processes `kib_per_ms` of argon2 memory in a millisecond.
    fn model(kib_per_ms: u64) -> impl FnMut(&Kdf) -> Result<u64, KdfError> {
        move |kdf| match *kdf {
            Kdf::Argon2 { time, memory_kib, .. } => {
                Ok(u64::from(time) * u64::from(memory_kib) / kib_per_ms)
            }
            Kdf::Pbkdf2 { iterations, .. } => Ok(u64::from(iterations) / kib_per_ms),
        }
    }

    fn chosen(bounds: Argon2Bounds, kib_per_ms: u64) -> (u32, u32) {
        match argon2(Argon2Variant::Id, bounds, &mut model(kib_per_ms)).unwrap() {
            Kdf::Argon2 { time, memory_kib, .. } => (time, memory_kib),
            Kdf::Pbkdf2 { .. } => unreachable!(),
        }
    }

    #[test]
    fn cost_of_slow_machine_takes_less_memory_not_fewer_passes() {
        let bounds = Argon2Bounds { target_ms: 2000, memory_kib_max: MEMORY_KIB_MAX, lanes: 4 };
        let (time, memory_kib) = chosen(bounds, 1000);
        assert_eq!(time, 4);
        assert!((475_000..550_000).contains(&memory_kib), "{memory_kib}");
    }

    #[test]
    fn cost_of_fast_machine_fills_the_memory_then_adds_passes() {
        let bounds = Argon2Bounds { target_ms: 2000, memory_kib_max: MEMORY_KIB_MAX, lanes: 4 };
        let (time, memory_kib) = chosen(bounds, 10_000);
        assert_eq!(memory_kib, MEMORY_KIB_MAX);
        assert!((18..=20).contains(&time), "{time}");
    }

    #[test]
    fn cost_never_leaves_the_bounds_on_a_crawling_machine() {
        let bounds = Argon2Bounds { target_ms: 100, memory_kib_max: 2048, lanes: 1 };
        assert_eq!(chosen(bounds, 1), (4, 32));
    }

    #[test]
    fn extreme_bounds_and_times_do_not_overflow() {
        for (target_ms, memory_kib_max, lanes) in
            [(u64::MAX, u32::MAX, u32::MAX), (u64::MAX, 0, 0), (0, 0, u32::MAX), (1, 1, 1)]
        {
            let bounds = Argon2Bounds { target_ms, memory_kib_max, lanes };
            for took_ms in [0, 1, 300, u64::MAX] {
                argon2(Argon2Variant::Id, bounds, &mut |_| Ok(took_ms)).unwrap();
                pbkdf2(HashAlgorithm::Sha256, target_ms, &mut |_| Ok(took_ms)).unwrap();
            }
        }
    }

    #[test]
    fn bounds_take_half_of_the_memory_and_four_lanes_at_most() {
        let small = Argon2Bounds::for_machine(2000, 512 << 20, 2);
        assert_eq!((small.memory_kib_max, small.lanes), (256 << 10, 2));
        let large = Argon2Bounds::for_machine(2000, 1 << 40, 64);
        assert_eq!((large.memory_kib_max, large.lanes), (1 << 20, 4));
        let unknown = Argon2Bounds::for_machine(0, 0, 0);
        assert_eq!((unknown.memory_kib_max, unknown.lanes, unknown.target_ms), (32, 1, 1));
    }

    #[test]
    fn pbkdf2_iterations_scale_to_the_target_and_keep_the_minimum() {
        let hash = HashAlgorithm::Sha256;
        let fast = pbkdf2(hash, 2000, &mut model(1000)).unwrap();
        let Kdf::Pbkdf2 { iterations, .. } = fast else { unreachable!() };
        assert!((1_990_000..=2_010_000).contains(&iterations), "{iterations}");
        let slow = pbkdf2(hash, 1, &mut |_| Ok(100_000)).unwrap();
        assert_eq!(slow, Kdf::Pbkdf2 { hash, iterations: 1000 });
    }

    #[test]
    fn cost_at_the_minimum_is_taken_and_below_it_is_not() {
        let pbkdf2 = |iterations| Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations };
        let argon2 = |time, memory_kib, lanes| Kdf::Argon2 {
            variant: Argon2Variant::Id,
            time,
            memory_kib,
            lanes,
        };
        for kdf in [pbkdf2(1000), pbkdf2(1001), argon2(4, 32, 1), argon2(5, 33, 4)] {
            assert_eq!(check_minimum(&kdf), Ok(()), "{kdf:?}");
        }
        let few = [pbkdf2(999), argon2(3, 32, 1), argon2(4, 31, 1)];
        for kdf in few.into_iter().chain([argon2(4, 32, 0), argon2(4, 64, 5)]) {
            assert!(check_minimum(&kdf).is_err(), "{kdf:?}");
        }
    }
}
