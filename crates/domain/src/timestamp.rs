//! Wall-clock times, as rows and messages store them.
//!
//! Used for display and for ordering history. Never used for measuring or waiting: a wall clock jumps.

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
}

/// A clock that is set before 1970 reads as 1970.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self::from_millis(u64::try_from(since.as_millis()).unwrap_or(MILLIS_MAX))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::from_millis)
    }
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
}
