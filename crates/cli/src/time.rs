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

/// A time as `2024-02-29T23:59:58Z`, from seconds since 1970.
pub(crate) fn utc(seconds: i64) -> String {
    const SECONDS_OF_DAY: i64 = 86_400;
    let days = seconds.div_euclid(SECONDS_OF_DAY);
    let second = seconds.rem_euclid(SECONDS_OF_DAY);
    // Years begin in March, so that a leap day is the last day; 400 years have 146,097 days.
    let since = days.saturating_add(719_468);
    let era = since.div_euclid(146_097);
    let day = since.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date -u -d @N +%FT%TZ` says it.
    #[test]
    fn seconds_since_1970_are_a_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_709_251_198, "2024-02-29T23:59:58Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
        utc(i64::MAX);
        utc(i64::MIN);
    }

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
