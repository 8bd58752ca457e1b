//! Sizes with cryptsetup's suffixes.
//!
//! `K`, `M`, `G`, `T` (or `KiB`…) are powers of 1024, `KB`, `MB`… of 1000, `S` means 512-byte
//! sectors, and a bare number means bytes (`tools_string_to_size` of cryptsetup). Suffixes ignore
//! case. Beyond cryptsetup, a number may have a fraction (`1.5G`) if the result is a whole number
//! of bytes, and bytes may be hexadecimal (`0x10000`).

/// Parses a size in bytes.
///
/// # Errors
/// The text is no size; the message says why.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let too_large = || "this size is too large".to_string();
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let is_hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex {
            return Err("0x must be followed by hexadecimal digits, without a suffix".into());
        }
        return u64::from_str_radix(digits, 16).map_err(|_| too_large());
    }
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && !digits.contains('.');
    if !is_number(whole) || !is_number(fraction) {
        return Err("a size starts with a number: 512, 64K, 1.5G".into());
    }
    let whole: u64 = whole.parse().map_err(|_| "this number is too large".to_string())?;
    let multiplier = multiplier_of(suffix).ok_or_else(|| {
        format!("unknown suffix {suffix:?}: use K, M, G, T (1024s), KB… (1000s) or S")
    })?;
    let part = part_of(multiplier, fraction)
        .ok_or_else(|| format!("{text} is no whole number of bytes; write it in a smaller unit"))?;
    whole.checked_mul(multiplier).and_then(|size| size.checked_add(part)).ok_or_else(too_large)
}

/// `multiplier` times the decimal digits after the point, if that is a whole number.
fn part_of(multiplier: u64, digits: &str) -> Option<u64> {
    let digits = digits.trim_end_matches('0');
    let divisor = 10u128.checked_pow(u32::try_from(digits.len()).ok()?)?;
    let numerator = match digits {
        "" => 0,
        _ => digits.parse::<u128>().ok()?.checked_mul(u128::from(multiplier))?,
    };
    numerator.is_multiple_of(divisor).then(|| u64::try_from(numerator / divisor).ok())?
}

fn multiplier_of(suffix: &str) -> Option<u64> {
    let suffix = suffix.to_ascii_lowercase();
    if suffix.is_empty() {
        return Some(1);
    }
    let (unit, tail) = suffix.split_at_checked(1)?;
    let base: u64 = match tail {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return None,
    };
    match unit {
        "s" if tail.is_empty() => Some(512),
        "k" => Some(base),
        "m" => Some(base.pow(2)),
        "g" => Some(base.pow(3)),
        "t" => Some(base.pow(4)),
        _ => None,
    }
}

/// Formats a time in nanoseconds: `850 ns`, `12.5 us`, `3.40 ms`, `2.00 s`.
#[must_use]
pub fn human_time(ns: f64) -> String {
    let (value, unit) = match ns {
        _ if ns < 1e3 => return format!("{ns:.0} ns"),
        _ if ns < 1e6 => (ns / 1e3, "us"),
        _ if ns < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// Formats a size: `10 GiB`, `1.5 MiB`, `512 bytes`; rounded to one decimal.
#[must_use]
pub fn human_size(len_bytes: u64) -> String {
    const UNITS: [&str; 4] = ["TiB", "GiB", "MiB", "KiB"];
    for (power, unit) in [4u32, 3, 2, 1].into_iter().zip(UNITS) {
        let unit_bytes = 1u64 << (10 * power);
        if len_bytes >= unit_bytes {
            let tenths = u128::from(len_bytes) * 10 / u128::from(unit_bytes);
            return match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                tenth => format!("{}.{tenth} {unit}", tenths / 10),
            };
        }
    }
    format!("{len_bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_cryptsetup_suffixes_are_bytes() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("8s"), Ok(4096));
        assert_eq!(parse_size("64k"), Ok(65_536));
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("64KB"), Ok(64_000));
        assert_eq!(parse_size("10G"), Ok(10 << 30));
        assert_eq!(parse_size("2T"), Ok(2 << 40));
        assert_eq!(parse_size("64kb"), Ok(64_000));
        assert_eq!(parse_size("64kib"), Ok(65_536));
    }

    #[test]
    fn fractions_and_hexadecimal_numbers_are_sizes_of_whole_bytes() {
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("0.25KB"), Ok(250));
        assert_eq!(parse_size("2.50s"), Ok(1280));
        assert_eq!(parse_size("7.0"), Ok(7));
        assert_eq!(parse_size("0x10000"), Ok(65_536));
        assert_eq!(parse_size("0Xff"), Ok(255));
        assert!(parse_size("1.3K").unwrap_err().contains("whole number of bytes"));
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for text in [
            "",
            "G",
            "-1",
            "1.5",
            "1.G",
            ".5G",
            "1.2.3G",
            "0x",
            "0x10K",
            "0x+1",
            "0x10000000000000000",
            "0.0000000000000000000000000000000000000000000001T",
            "10X",
            "10Gi",
            "10sB",
            "1é",
            "99999999999999999999",
            "18446744073709551615K",
        ] {
            assert!(parse_size(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn human_sizes_round_down_to_one_decimal() {
        assert_eq!(human_size(0), "0 bytes");
        assert_eq!(human_size(1023), "1023 bytes");
        assert_eq!(human_size(16 << 20), "16 MiB");
        assert_eq!(human_size((10 << 30) - (16 << 20)), "9.9 GiB");
        assert_eq!(human_size(u64::MAX), "16777215.9 TiB");
    }
}
