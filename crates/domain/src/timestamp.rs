//! Moments by the wall clock, as rows and messages hold them.
//!
//! Good for telling people and for ordering history. Nothing is timed by them: a wall clock jumps.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970 in UTC; never before that, never after the year 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

/// The last millisecond of the year 9999: fits a signed 64-bit column, a JavaScript number and RFC 3339.
const MILLIS_MAX: u64 = 253_402_300_799_999;

impl Timestamp {
    /// The moment so many milliseconds after 1970; later than the year 9999 is its end.
    pub const fn from_millis(millis: u64) -> Self {
        Self(if millis < MILLIS_MAX { millis } else { MILLIS_MAX })
    }

    /// Milliseconds since 1970.
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// A moment later by this much.
    pub fn after(self, span: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(MILLIS_MAX)))
    }

    /// A moment earlier by this much; not before 1970.
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_millis()).unwrap_or(MILLIS_MAX)))
    }
}

/// A clock that stands before 1970 reads as 1970.
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
