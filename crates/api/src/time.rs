//! Timestamps on the wire: RFC 3339 in UTC with milliseconds. Reads no clock.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A moment that is sent as text. Rows and the control protocol have the same moment as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(saggar_domain::Timestamp);

impl Timestamp {
    /// From milliseconds since 1970; saturates at the end of the year 9999.
    pub const fn from_millis(millis: u64) -> Self {
        Self(saggar_domain::Timestamp::from_millis(millis))
    }

    /// Milliseconds since 1970.
    pub fn as_millis(self) -> u64 {
        self.0.as_millis()
    }

    /// Parses `2026-11-15T12:00:00Z`, with or without a fraction; only UTC.
    pub fn parse(text: &str) -> Result<Self, String> {
        saggar_domain::Timestamp::parse(text).map(Self)
    }
}

/// A time before 1970 becomes 1970.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self(time.into())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_text_on_the_wire() {
        let moment = Timestamp::from_millis(1_794_700_800_250);
        let text = serde_json::to_string(&moment).unwrap();
        assert_eq!(text, r#""2026-11-15T00:00:00.250Z""#);
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), moment);
        assert!(serde_json::from_str::<Timestamp>("1794700800250").is_err());
    }
}
