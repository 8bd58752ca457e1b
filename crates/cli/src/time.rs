//! Times in text.

use std::time::Duration;

/// Parses a time: a number of seconds, or one with a unit.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let refuse = || format!("{text:?} is no time: give for example 30s, 500ms, 5m or 1h");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().map_err(|_| refuse())?;
    let unit_ms = match &text[end..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(refuse()),
    };
    let ms = number.checked_mul(unit_ms).filter(|ms| *ms > 0).ok_or_else(refuse)?;
    Ok(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let ms = |text| parse_time(text).map(|time| time.as_millis());
        assert_eq!(ms("30s"), Ok(30_000));
        assert_eq!(ms("30"), Ok(30_000));
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("2h"), Ok(7_200_000));
        for text in ["", "s", "-1s", "1.5s", "0", "9d", "99999999999999999h"] {
            assert!(ms(text).unwrap_err().contains("30s"), "{text}");
        }
    }
}
