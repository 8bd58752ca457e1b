//! Sizes as people write them, with cryptsetup's suffixes.
//!
//! `K`, `M`, `G`, `T` (or `KiB`…) count in 1024s, `KB`, `MB`… in 1000s, `S` counts 512-byte
//! sectors, and a bare number counts bytes (`tools_string_to_size` of cryptsetup).

/// Parses a size in bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(digits_end);
    if digits.is_empty() {
        return Err("a size starts with a number: 512, 64K, 10G".into());
    }
    let number: u64 = digits.parse().map_err(|_| "this number is too large".to_string())?;
    let multiplier = multiplier_of(suffix).ok_or_else(|| {
        format!("unknown suffix {suffix:?}: use K, M, G, T (1024s), KB… (1000s) or S")
    })?;
    number.checked_mul(multiplier).ok_or_else(|| "this size is too large".into())
}

fn multiplier_of(suffix: &str) -> Option<u64> {
    if suffix.is_empty() {
        return Some(1);
    }
    let (unit, tail) = suffix.split_at_checked(1)?;
    let base: u64 = match tail {
        "" | "iB" => 1024,
        "B" => 1000,
        _ => return None,
    };
    match unit {
        "s" | "S" if tail.is_empty() => Some(512),
        "k" | "K" => Some(base),
        "m" | "M" => Some(base.pow(2)),
        "g" | "G" => Some(base.pow(3)),
        "t" | "T" => Some(base.pow(4)),
        _ => None,
    }
}

/// A time for people, given in nanoseconds: `850 ns`, `12.5 us`, `3.40 ms`, `2.00 s`.
pub(crate) fn human_time(ns: f64) -> String {
    let (value, unit) = match ns {
        _ if ns < 1e3 => return format!("{ns:.0} ns"),
        _ if ns < 1e6 => (ns / 1e3, "us"),
        _ if ns < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// A size for people: `10 GiB`, `1.5 MiB`, `512 bytes`; rounded to one decimal.
pub(crate) fn human_size(len_bytes: u64) -> String {
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
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for text in [
            "",
            "G",
            "-1",
            "1.5G",
            "10X",
            "10Gi",
            "10sB",
            "1é",
            "99999999999999999999",
            "18446744073709551615K",
        ] {
            assert!(parse_size(text).is_err(), "{text:?} was taken");
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
