//! Times of FAT: a local time without a zone, which is taken as UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use hadris_fat::time::{FatDateTime, TimeProvider};

/// The clock for new entries.
pub(super) static CLOCK: Clock = Clock;

/// The system's clock.
#[derive(Debug)]
pub(super) struct Clock;

/// Seconds since 1970, in UTC.
pub(crate) type Moment = i64;

const SECONDS_OF_DAY: i64 = 86_400;
/// Days from 1970 to 1980, the first year of FAT.
const FIRST_DAY: i64 = 3652;
/// Last day of FAT: 2107-12-31.
const LAST_DAY: i64 = 50_402;

impl TimeProvider for Clock {
    fn now(&self) -> FatDateTime {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        fat_time(now.map_or(0, |now| now.as_secs().cast_signed()))
    }
}

/// The time of an entry.
pub(crate) fn moment(time: FatDateTime) -> Moment {
    let date = i64::from(time.date);
    let clock = i64::from(time.time);
    // A damaged entry may have the month 0 or 15.
    let month = ((date >> 5) & 15).clamp(1, 12);
    let days = days_of(1980 + (date >> 9), month) + (date & 31).max(1) - 1;
    days * SECONDS_OF_DAY + (clock >> 11) * 3600 + ((clock >> 5) & 63) * 60 + (clock & 31) * 2
}

/// A time for an entry; one outside of the format's range becomes the nearest in it.
pub(crate) fn fat_time(moment: Moment) -> FatDateTime {
    let day = moment.div_euclid(SECONDS_OF_DAY);
    let second = match day {
        ..FIRST_DAY => 0,
        FIRST_DAY..=LAST_DAY => moment.rem_euclid(SECONDS_OF_DAY),
        _ => SECONDS_OF_DAY - 1,
    };
    let day = day.clamp(FIRST_DAY, LAST_DAY);
    let year = (1980..=2107).rev().find(|year| days_of(*year, 1) <= day).unwrap_or(1980);
    let month = (1..=12).rev().find(|month| days_of(year, *month) <= day).unwrap_or(1);
    let day = day - days_of(year, month) + 1;
    FatDateTime {
        date: ((year - 1980) << 9 | month << 5 | day) as u16,
        time: ((second / 3600) << 11 | (second / 60 % 60) << 5 | (second % 60 / 2)) as u16,
        time_tenth: (second % 2 * 100) as u8,
    }
}

/// Days from 1970-01-01 to the first day of a month.
pub(crate) fn days_of(year: i64, month: i64) -> i64 {
    // Days before each month of a year without a leap day.
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap_days = |year: i64| year / 4 - year / 100 + year / 400;
    let is_leap = leap_days(year) > leap_days(year - 1);
    let days = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    days + BEFORE[(month - 1) as usize] + i64::from(is_leap && month > 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_format_and_its_ends() {
        // `date -u -d '2024-02-29 23:59:58' +%s` and others.
        for (seconds, text) in [
            (1_709_251_198, (2024, 2, 29, 23, 59, 58)),
            (315_532_800, (1980, 1, 1, 0, 0, 0)),
            (4_354_819_198, (2107, 12, 31, 23, 59, 58)),
            (951_827_696, (2000, 2, 29, 12, 34, 56)),
        ] {
            let (year, month, day, hour, minute, second) = text;
            let wanted = FatDateTime::new(year, month, day, hour, minute, second);
            assert_eq!(fat_time(seconds), wanted, "{text:?}");
            assert_eq!(moment(wanted), seconds, "{text:?}");
        }
        assert_eq!(moment(fat_time(0)), 315_532_800);
        assert_eq!(moment(fat_time(i64::MAX)), 4_354_819_198);
        // A damaged entry.
        moment(FatDateTime { date: u16::MAX, time: u16::MAX, time_tenth: 255 });
        moment(FatDateTime { date: 0, time: 0, time_tenth: 0 });
    }
}
