//! Wall-clock times, as rows and messages store them.
//!
//! Printed as RFC 3339 in UTC with milliseconds, and stored as a number. Used for display and for ordering history. Never used for measuring or waiting: a wall clock jumps.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970 in UTC; between 1970 and the end of the year 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

/// The last millisecond of the year 9999: fits a signed 64-bit column, a JavaScript number and RFC 3339.
const MILLIS_MAX: u64 = 253_402_300_799_999;

impl Timestamp {
    /// Clamped to the end of the year 9999.
    pub const fn from_millis(millis: u64) -> Self {
        Self(if millis < MILLIS_MAX { millis } else { MILLIS_MAX })
    }

    pub fn as_millis(self) -> u64 {
        self.0
    }

    pub fn after(self, span: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(MILLIS_MAX)))
    }

    /// Not before 1970.
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_millis()).unwrap_or(MILLIS_MAX)))
    }

    /// Parses `2026-11-15T12:00:00Z`, with or without a fraction; only UTC.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::read(text).ok_or_else(|| {
            format!(
                "{text:?} is not a timestamp: write it in UTC, such as 2026-11-15T12:00:00Z or 2026-11-15T12:00:00.250Z"
            )
        })
    }

    fn read(text: &str) -> Option<Self> {
        let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
        let mut date = date.splitn(3, '-');
        let (year, month, day) = (digits(date.next()?, 4)?, digits(date.next()?, 2)?, digits(date.next()?, 2)?);
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
        let mut clock = clock.splitn(3, ':');
        let (hour, minute, second) = (digits(clock.next()?, 2)?, digits(clock.next()?, 2)?, digits(clock.next()?, 2)?);
        let is_fraction = !fraction.is_empty() && fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit());
        let is_date = year >= 1970 && (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
        if !is_fraction || !is_date || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let millis: u64 = format!("{fraction:0<3}")[..3].parse().ok()?;
        let seconds = days_before(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        Some(Self(seconds * 1000 + millis))
    }
}

/// A clock that is set before 1970 reads as 1970.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self::from_millis(u64::try_from(since.as_millis()).unwrap_or(MILLIS_MAX))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0 / 1000, self.0 % 1000);
        let (year, month, day) = date_of(seconds / 86_400);
        let second = seconds % 86_400;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::from_millis)
    }
}

fn digits(text: &str, count: usize) -> Option<u64> {
    (text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

fn days_in(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a date. Years start in March, so that the leap day comes last.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The inverse of [`days_before`].
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_stays_within_its_bounds() {
        let last = Timestamp::from_millis(u64::MAX);
        assert_eq!(last.as_millis(), MILLIS_MAX);
        assert_eq!(last.after(Duration::MAX), last);
        assert_eq!(last.before(Duration::MAX), Timestamp::from_millis(0));
        assert_eq!(Timestamp::from(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), Timestamp::from_millis(0));
        assert_eq!(Timestamp::from_millis(5).after(Duration::from_millis(3)), Timestamp::from_millis(8));
    }

    #[test]
    fn instants_read_and_print() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_794_700_800_250, "2026-11-15T00:00:00.250Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (MILLIS_MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), text);
            assert_eq!(Timestamp::parse(text).map(Timestamp::as_millis), Ok(millis), "{text}");
        }
        assert_eq!(Timestamp::parse("2000-02-29T00:00:00Z"), Ok(Timestamp(951_782_400_000)));
        assert_eq!(Timestamp::parse("2000-02-29T00:00:00.5Z"), Ok(Timestamp(951_782_400_500)));
        assert_eq!(Timestamp::from_millis(u64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn what_is_no_instant_is_refused() {
        for wrong in [
            "",
            "Z",
            "2026-11-15",
            "2026-11-15T12:00:00",
            "2026-11-15T12:00:00+02:00",
            "2026-02-29T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T23:59:60Z",
            "1969-12-31T23:59:59Z",
            "2026-01-01T00:00:00.Z",
            "2026-1-01T00:00:00Z",
            "+026-01-01T00:00:00Z",
        ] {
            assert!(Timestamp::parse(wrong).is_err(), "{wrong}");
        }
    }
}
