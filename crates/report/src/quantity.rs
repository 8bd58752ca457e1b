//! Formats numbers for readers: four significant digits and a suitable unit.

use crate::model::{Interval, Unit};

const SIGNIFICANT_DIGITS: i32 = 4;

/// Greatest number without an exponent.
const PLAIN_MAX: f64 = 1e9;
const PLAIN_MIN: f64 = 1e-6;

const SECONDS: &[(f64, &str)] = &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")];
const PER_SECOND: &[(f64, &str)] = &[(1e9, "G/s"), (1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")];
const FRACTION: &[(f64, &str)] = &[(0.01, "%")];
const COUNT: &[(f64, &str)] = &[(1.0, "")];
const BYTES: &[(f64, &str)] = &[
    (1_099_511_627_776.0, "TiB"),
    (1_073_741_824.0, "GiB"),
    (1_048_576.0, "MiB"),
    (1_024.0, "KiB"),
    (1.0, "B"),
];
const BYTES_PER_SECOND: &[(f64, &str)] = &[
    (1_099_511_627_776.0, "TiB/s"),
    (1_073_741_824.0, "GiB/s"),
    (1_048_576.0, "MiB/s"),
    (1_024.0, "KiB/s"),
    (1.0, "B/s"),
];

/// A number in the unit that fits it: `1.500 ms`.
#[must_use]
pub fn shown(unit: Unit, value: f64) -> String {
    Scale::of(unit, &[Some(value)]).with_unit(value)
}

/// A common unit for all numbers of a line, which makes them comparable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    size: f64,
    pub(crate) symbol: &'static str,
    /// Whether whole numbers are printed exactly: 3 requests, but 3.000 s.
    counts: bool,
}

impl Scale {
    /// The largest unit in which the first non-zero number is at least one.
    pub(crate) fn of(unit: Unit, numbers: &[Option<f64>]) -> Scale {
        let units = match unit {
            Unit::Seconds => SECONDS,
            Unit::BytesPerSecond => BYTES_PER_SECOND,
            Unit::Bytes => BYTES,
            Unit::PerSecond => PER_SECOND,
            Unit::Fraction => FRACTION,
            Unit::Count => COUNT,
        };
        let leads = |number: &f64| number.is_finite() && *number != 0.0;
        let smallest = units[units.len() - 1];
        let found = match numbers.iter().flatten().copied().find(leads) {
            Some(number) => units.iter().find(|(size, _)| number.abs() >= *size),
            None => units.iter().find(|(size, _)| *size == 1.0),
        };
        let (size, symbol) = *found.unwrap_or(&smallest);
        let counts = size == 1.0 && matches!(unit, Unit::Bytes | Unit::Count);
        Scale { size, symbol, counts }
    }

    /// The number in this unit, without the unit.
    pub(crate) fn number(self, value: f64) -> String {
        let scaled = value / self.size;
        // Adding zero turns -0 into 0.
        if self.counts && scaled.fract() == 0.0 && scaled.abs() < PLAIN_MAX {
            format!("{:.0}", scaled + 0.0)
        } else {
            significant(scaled)
        }
    }

    /// The number in this unit, with the unit.
    pub(crate) fn with_unit(self, value: f64) -> String {
        format!("{} {}", self.number(value), self.symbol).trim_end().to_owned()
    }

    /// `[low .. high]` in this unit; empty if all accepted fits agree.
    pub(crate) fn range(self, interval: Interval) -> String {
        let low = self.number(interval.low);
        let high = self.number(interval.high);
        if low == high { String::new() } else { format!("[{low} .. {high}]") }
    }
}

/// A number with four significant digits.
pub(crate) fn significant(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(PLAIN_MIN..PLAIN_MAX).contains(&size) {
        return format!("{value:.3e}");
    }
    // The exponent after rounding: 9.9996 is 10.00, not 10.000.
    let rounded = format!("{value:.3e}");
    let exponent = rounded.split_once('e').and_then(|(_, e)| e.parse::<i32>().ok()).unwrap_or(0);
    let decimals = usize::try_from(SIGNIFICANT_DIGITS - 1 - exponent).unwrap_or(0);
    format!("{value:.decimals$}")
}

/// A relative error: up to 100 % in percent, above that as the factor between the two numbers.
pub(crate) fn error(error: f64) -> String {
    if error.abs() <= 1.0 {
        let percent = format!("{:+.1} %", error * 100.0);
        return if percent == "-0.0 %" { "+0.0 %".to_owned() } else { percent };
    }
    format!("x {}", factor(1.0 + error))
}

/// A relative error without its sign.
pub(crate) fn percent(size: f64) -> String {
    format!("{:.1} %", size * 100.0)
}

/// A factor with three digits.
fn factor(ratio: f64) -> String {
    match ratio.abs() {
        size if size < 10.0 => format!("{ratio:.2}"),
        size if size < 100.0 => format!("{ratio:.1}"),
        size if size < 1e6 => format!("{ratio:.0}"),
        _ => format!("{ratio:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(unit: Unit, value: f64) -> String {
        Scale::of(unit, &[Some(value)]).with_unit(value)
    }

    #[test]
    fn numbers_have_four_digits_and_a_unit_that_fits() {
        assert_eq!(said(Unit::Seconds, 17.922_92), "17.92 s");
        assert_eq!(said(Unit::Seconds, 0.004_122), "4.122 ms");
        assert_eq!(said(Unit::Seconds, 48.3e-6), "48.30 µs");
        assert_eq!(said(Unit::Seconds, 30e-9), "30.00 ns");
        assert_eq!(said(Unit::BytesPerSecond, 26_055_016.448), "24.85 MiB/s");
        assert_eq!(said(Unit::Bytes, 2_684_354_560.0), "2.500 GiB");
        assert_eq!(said(Unit::PerSecond, 3_000_000.0), "3.000 M/s");
        assert_eq!(said(Unit::Fraction, 0.000_798), "0.07980 %");
        assert_eq!(said(Unit::Count, 655_360.0), "655360");
    }

    #[test]
    fn odd_numbers_print_as_something_short() {
        assert_eq!(said(Unit::Seconds, 0.0), "0 s");
        assert_eq!(said(Unit::Bytes, 0.0), "0 B");
        assert_eq!(said(Unit::Seconds, f64::NAN), "- s");
        assert_eq!(said(Unit::Count, 9.999_96), "10.00");
        assert_eq!(said(Unit::Count, 1e300), "1.000e300");
        assert_eq!(significant(-0.0), "0");
    }

    #[test]
    fn one_line_has_one_unit_and_the_published_number_names_it() {
        let scale = Scale::of(Unit::Seconds, &[Some(0.8), Some(1.2)]);
        assert_eq!((scale.with_unit(0.8), scale.number(1.2)), ("800.0 ms".into(), "1200".into()));
        let scale = Scale::of(Unit::Seconds, &[Some(0.0), Some(2.0)]);
        assert_eq!(scale.symbol, "s");
        let same = Interval { low: 1.0, median: 1.0, high: 1.0 };
        assert_eq!(scale.range(same), "");
        assert_eq!(scale.range(Interval { high: 2.5, ..same }), "[1.000 .. 2.500]");
    }

    #[test]
    fn errors_are_percent_and_then_factors() {
        assert_eq!(error(0.034), "+3.4 %");
        assert_eq!(error(-0.97), "-97.0 %");
        assert_eq!(error(-0.0001), "+0.0 %");
        assert_eq!(error(1.0), "+100.0 %");
        assert_eq!(error(2.41), "x 3.41");
        assert_eq!(error(37.91), "x 38.9");
        assert_eq!(error(-2.0), "x -1.00");
    }
}
