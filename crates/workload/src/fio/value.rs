//! Values of options: numbers with units, arithmetic, times, switches, values of each direction.
//!
//! A number is decimal or `0x` hexadecimal. An expression such as `4*(1k+512)` may replace any
//! number: `+ - * / % ^` and parentheses, on integers. `k` is 1024 and `ki` 1000, as in fio, which
//! keeps this for old job files; with `kb_base=1000` the meanings are swapped.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use blockyard_engine::time::Nanos;

/// Greatest number of a NUMA node. Our choice.
const NODE_MAX: u16 = 255;
/// Greatest number of a CPU: Linux has at most 8192 (`CONFIG_NR_CPUS`).
const CPU_MAX: u16 = 8191;
/// Greatest depth of parentheses. Our choice.
const DEPTH_MAX: u32 = 32;

/// Meaning of the suffix `k`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KbBase {
    /// `k` is 1024, and `ki` is 1000.
    #[default]
    Binary,
    /// `k` is 1000, and `ki` is 1024.
    Decimal,
}

/// Parses an integer in a range.
pub(super) fn number<T: TryFrom<u64>>(text: &str, min: u64, max: u64) -> Result<T, String> {
    let number = evaluate(text, |unit| size_unit(unit, KbBase::Binary));
    let number = number.filter(|number| (min..=max).contains(number));
    let number = number.and_then(|number: u64| T::try_from(number).ok());
    number.ok_or_else(|| format!("it must be a number from {min} to {max}"))
}

/// Parses a decimal fraction into thousandths within the range.
pub(super) fn thousandths(text: &str, min: u32, max: u32) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= 6;
    if !digits(whole) || !digits(part) || whole.len() + part.len() == 0 {
        return None;
    }
    let part: String = format!("{part}000").chars().take(3).collect();
    let value = format!("0{whole}").parse::<u32>().ok()?.checked_mul(1000)?;
    let value = value.checked_add(part.parse().ok()?)?;
    (min..=max).contains(&value).then_some(value)
}

/// Parses a decimal fraction into millionths.
pub(super) fn millionths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= 12;
    if !digits(whole) || !digits(part) || whole.len() + part.len() == 0 {
        return None;
    }
    let part: String = format!("{part}000000").chars().take(6).collect();
    let value = format!("0{whole}").parse::<u64>().ok()?.checked_mul(1_000_000)?;
    value.checked_add(part.parse().ok()?)
}

/// Parses a switch; an empty value is on.
pub(super) fn flag(text: &str) -> Result<bool, String> {
    match text {
        "" | "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("it must be 0 or 1".into()),
    }
}

/// Parses a number of bytes.
pub(super) fn size(text: &str, base: KbBase) -> Result<u64, String> {
    let bytes = evaluate(text, |unit| size_unit(unit, base));
    bytes.ok_or_else(|| "it must be a number with k, m, g, t or p (1024s), as in 4k or 1g".into())
}

/// Parses a signed number of bytes.
pub(super) fn signed_size(text: &str, base: KbBase) -> Result<i64, String> {
    let (is_back, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let bytes = size(text, base)?;
    let bytes =
        i64::try_from(bytes).map_err(|_| String::from("it must be less than 2^63 bytes"))?;
    Ok(if is_back { -bytes } else { bytes })
}

/// Parses a rate in bytes per second.
pub(super) fn rate(text: &str, base: KbBase) -> Result<u64, String> {
    let nonzero = size(text, base)?;
    if nonzero == 0 { Err("it must be above zero, as in 10m".into()) } else { Ok(nonzero) }
}

/// Parses a duration; a bare number is seconds, as in fio. The duration must not be zero.
pub(super) fn duration(text: &str) -> Result<Nanos, String> {
    let ns = any_duration(text)?;
    if ns.0 == 0 { Err("it must be above zero, as in 60 or 500ms".into()) } else { Ok(ns) }
}

const DURATION: &str = "it must be a time in s, m, h, d, ms or us, as in 60 or 500ms";

/// Parses a duration as [`duration`] does, or zero.
pub(super) fn any_duration(text: &str) -> Result<Nanos, String> {
    time(text, "s")
}

/// Parses a duration; a bare number is microseconds.
pub(super) fn microseconds(text: &str) -> Result<Nanos, String> {
    time(text, "us")
}

/// Parses a duration; a bare number is milliseconds.
pub(super) fn milliseconds(text: &str) -> Result<Nanos, String> {
    time(text, "ms")
}

/// Parses one number with its unit, or arithmetic in parentheses, which counts in microseconds.
fn time(text: &str, bare: &str) -> Result<Nanos, String> {
    let ns = if text.starts_with('(') {
        let us = evaluate(text, |unit| time_unit(unit, "us").map(|ns| ns / 1000));
        us.and_then(|us| us.checked_mul(1000))
    } else if text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        evaluate(text, |unit| time_unit(unit, bare))
    } else {
        None
    };
    ns.map(Nanos).ok_or_else(|| DURATION.into())
}

/// Parses distinct numbers and ranges, separated by commas; an empty list is all nodes.
pub(super) fn nodes(text: &str) -> Result<Vec<u16>, String> {
    let wanted = || format!("it must be sockets from 0 to {NODE_MAX}, each once, as in 0-3 or 0,2");
    let ranges = ranges(text, NODE_MAX).ok_or_else(wanted)?;
    if ranges.iter().map(ExactSizeIterator::len).sum::<usize>() > usize::from(NODE_MAX) + 1 {
        return Err(wanted());
    }
    let nodes: Vec<u16> = ranges.into_iter().flatten().collect();
    let different: BTreeSet<&u16> = nodes.iter().collect();
    if different.len() == nodes.len() { Ok(nodes) } else { Err(wanted()) }
}

/// Parses a set of CPUs, as in `0-3,8`; the result is in order, like fio's mask, and not empty.
///
/// # Errors
/// The text of the rule.
pub fn cpus(text: &str) -> Result<Vec<u16>, String> {
    let wanted = || format!("it must be CPUs from 0 to {CPU_MAX}, as in 0-3 or 0,8");
    // A mask, because a short text may name all of them hundreds of times.
    let mut mask = vec![false; usize::from(CPU_MAX) + 1];
    for range in ranges(text, CPU_MAX).ok_or_else(wanted)? {
        if !range.is_empty() {
            mask[usize::from(*range.start())..=usize::from(*range.end())].fill(true);
        }
    }
    let cpus: Vec<u16> = (0..).zip(mask).filter_map(|(cpu, is_in)| is_in.then_some(cpu)).collect();
    if cpus.is_empty() { Err(wanted()) } else { Ok(cpus) }
}

/// Parses numbers and ranges of them, separated by commas.
fn ranges(text: &str, max: u16) -> Option<Vec<RangeInclusive<u16>>> {
    let edge = |text: &str| text.parse::<u16>().ok().filter(|number| *number <= max);
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(edge(first)?..=edge(last)?)
    };
    parts.map(range).collect()
}

/// Parses values for reads, writes and trims, separated by commas. A single value applies to all
/// directions; the second of two applies to trims too; an omitted value is `None`.
pub(super) fn of_directions<T: Clone>(
    text: &str,
    value: impl Fn(&str) -> Result<T, String>,
) -> Result<[Option<T>; 3], String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.len() > 3 {
        return Err("it must have at most three parts: for reads, writes and trims".into());
    }
    let part = |index: usize| match parts[index.min(parts.len() - 1)] {
        // An empty value is an error, as in fio: `bs=${NAME}` without that variable.
        "" if parts.len() > 1 => Ok(None),
        part => value(part).map(Some),
    };
    Ok([part(0)?, part(1)?, part(2)?])
}

fn size_unit(unit: &str, base: KbBase) -> Option<u64> {
    let unit = unit.strip_suffix('b').unwrap_or(unit);
    let power = |prefix: &str| ["", "k", "m", "g", "t", "p"].into_iter().position(|p| p == prefix);
    let (short, long) = match base {
        KbBase::Binary => (1024u64, 1000u64),
        KbBase::Decimal => (1000, 1024),
    };
    match unit.strip_suffix('i').filter(|prefix| !prefix.is_empty()) {
        Some(prefix) => Some(long.pow(power(prefix)? as u32)),
        None => Some(short.pow(power(unit)? as u32)),
    }
}

/// Length of a time unit in nanoseconds.
fn time_unit(unit: &str, bare: &str) -> Option<u64> {
    match if unit.is_empty() { bare } else { unit } {
        "d" => Some(86_400_000_000_000),
        "h" => Some(3_600_000_000_000),
        "m" => Some(60_000_000_000),
        "s" => Some(1_000_000_000),
        "ms" | "msec" => Some(1_000_000),
        "us" | "usec" => Some(1_000),
        _ => None,
    }
}

/// Evaluates an integer or an arithmetic expression.
fn evaluate(text: &str, unit: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let mut terms = Terms { text: &text.to_ascii_lowercase(), unit: &unit, depth: 0 };
    let value = terms.sum()?;
    terms.text.is_empty().then_some(value)
}

/// Unparsed rest of an expression.
struct Terms<'a> {
    text: &'a str,
    unit: &'a dyn Fn(&str) -> Option<u64>,
    depth: u32,
}

impl Terms<'_> {
    fn take(&mut self, operators: &[char]) -> Option<char> {
        let first = self.text.chars().next().filter(|c| operators.contains(c))?;
        self.text = &self.text[1..];
        Some(first)
    }

    fn sum(&mut self) -> Option<u64> {
        let mut value = self.product()?;
        while let Some(operator) = self.take(&['+', '-']) {
            let other = self.product()?;
            value = match operator {
                '+' => value.checked_add(other)?,
                _ => value.checked_sub(other)?,
            };
        }
        Some(value)
    }

    fn product(&mut self) -> Option<u64> {
        let mut value = self.power()?;
        while let Some(operator) = self.take(&['*', '/', '%']) {
            let other = self.power()?;
            value = match operator {
                '*' => value.checked_mul(other)?,
                '/' => value.checked_div(other)?,
                _ => value.checked_rem(other)?,
            };
        }
        Some(value)
    }

    fn power(&mut self) -> Option<u64> {
        let mut value = self.atom()?;
        while self.take(&['^']).is_some() {
            value = value.checked_pow(u32::try_from(self.atom()?).ok()?)?;
        }
        Some(value)
    }

    fn atom(&mut self) -> Option<u64> {
        if self.take(&['(']).is_some() {
            self.depth += 1;
            let value = if self.depth > DEPTH_MAX { None } else { self.sum() };
            self.depth -= 1;
            self.take(&[')'])?;
            return value;
        }
        let hexadecimal = self.text.strip_prefix("0x");
        let digits = hexadecimal.unwrap_or(self.text);
        let radix = if hexadecimal.is_some() { 16 } else { 10 };
        let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
        let number = u64::from_str_radix(&digits[..end], radix).ok()?;
        let rest = &digits[end..];
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        self.text = &rest[end..];
        number.checked_mul((self.unit)(&rest[..end])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_arithmetic() {
        let binary = |text: &str| size(text, KbBase::Binary).ok();
        for (text, bytes) in [
            ("4k", 4096),
            ("4KB", 4096),
            ("4ki", 4000),
            ("1MiB", 1_000_000),
            ("0x1000", 4096),
            ("4*1024", 4096),
            ("5*1024*1024*8/8", 5 << 20),
            ("2*(1k + 512) - 2^10", 2048),
            ("7%4", 3),
        ] {
            assert_eq!(binary(text), Some(bytes), "{text}");
        }
        let wrong =
            ["", "k", "4x", "4k4", "1/0", "1-2", "(1", "1)", "2^99", "1p*1p", "4k 4q", "-1", "+"];
        assert!(wrong.iter().all(|text| binary(text).is_none()));
        assert!(binary(&"(".repeat(100_000)).is_none(), "no deep recursion");
        assert_eq!(size("4k", KbBase::Decimal), Ok(4000));
        assert_eq!(size("4kib", KbBase::Decimal), Ok(4096));
        assert_eq!(signed_size("-8k", KbBase::Binary), Ok(-8192));
    }

    #[test]
    fn times_are_seconds_unless_in_parentheses() {
        assert_eq!(duration("2m"), Ok(Nanos(120_000_000_000)));
        assert_eq!(duration("(5*1000)"), Ok(Nanos(5_000_000)));
        assert_eq!(any_duration("0"), Ok(Nanos(0)));
        assert_eq!(microseconds("30"), Ok(Nanos(30_000)));
        assert_eq!(milliseconds("30"), Ok(Nanos(30_000_000)));
        assert!(duration("0").is_err() && duration("1y").is_err());
    }

    #[test]
    fn values_of_directions_fall_to_those_behind() {
        let of = |text: &str| of_directions(text, |text| number::<u64>(text, 0, 99));
        assert_eq!(of("7"), Ok([Some(7); 3]));
        assert_eq!(of("1,2"), Ok([Some(1), Some(2), Some(2)]));
        assert_eq!(of(",2,"), Ok([None, Some(2), None]));
        assert_eq!(of("7,"), Ok([Some(7), None, None]));
        assert!(of("1,2,3,4").is_err() && of("1,x").is_err());
    }

    #[test]
    fn sets_name_a_number_several_times_and_lists_do_not() {
        assert_eq!(cpus("8,0-2, 1,,2-1"), Ok(vec![0, 1, 2, 8]));
        assert_eq!(cpus(&"0-8191,".repeat(500)).map(|cpus| cpus.len()), Ok(8192));
        assert!(["", ",", "3-2", "8192", "1-x"].iter().all(|text| cpus(text).is_err()));
        assert_eq!(nodes("2,0-1"), Ok(vec![2, 0, 1]));
        assert_eq!(nodes(""), Ok(Vec::new()));
        assert!(["1,0-1", "0-255,0-255", "256"].iter().all(|text| nodes(text).is_err()));
    }

    #[test]
    fn thousandths_are_exact() {
        assert_eq!(thousandths("1.2", 0, 9999), Some(1200));
        assert_eq!(thousandths(".5", 0, 9999), Some(500));
        assert_eq!(thousandths("99.9999", 0, 100_000), Some(99_999));
        for wrong in ["", ".", "-1", "1e3", "10.0", "9999999"] {
            assert_eq!(thousandths(wrong, 0, 9999), None, "{wrong}");
        }
    }
}
