//! Whether a run of an agent goes on with the files that an earlier one left, and how long files wait for the next run.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::problem::{Code, Problem};
use crate::quantity::Timeout;

/// How long files wait without a time of their own: an hour.
const DEFAULT: Timeout = Timeout::millis(60 * 60 * 1000);
const MIN: Timeout = Timeout::millis(1000);
const MAX: Timeout = Timeout::millis(30 * 24 * 60 * 60 * 1000);

/// Written as `false`, `true`, or the time that files wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    #[default]
    Never,
    For(Timeout),
}

impl Reuse {
    pub fn is_never(&self) -> bool {
        *self == Self::Never
    }

    pub(crate) fn check(self) -> Result<(), Problem> {
        match self {
            Self::For(time) if time < MIN || time > MAX => Err(Problem::new(
                Code::InvalidValue,
                format!("sandbox.reuse: files of a run can't wait {time} for the next one"),
                format!(
                    "use a time from {MIN} to {MAX}; `true` is {DEFAULT}, and `false` gives each run a fresh sandbox"
                ),
            )),
            Self::Never | Self::For(_) => Ok(()),
        }
    }
}

impl Serialize for Reuse {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Never => serializer.serialize_bool(false),
            Self::For(time) => time.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Reuse {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

struct Written;

impl Visitor<'_> for Written {
    type Value = Reuse;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true, false, or a time such as \"30m\"")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Reuse, E> {
        Ok(if value { Reuse::For(DEFAULT) } else { Reuse::Never })
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Reuse, E> {
        Timeout::parse(value).map(Reuse::For).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_switch_or_a_time() {
        for (json, reuse, written) in [
            ("false", Reuse::Never, "false"),
            ("true", Reuse::For(DEFAULT), r#""1h""#),
            (r#""30m""#, Reuse::For(Timeout::millis(30 * 60_000)), r#""30m""#),
        ] {
            assert_eq!(serde_json::from_str::<Reuse>(json).unwrap(), reuse, "{json}");
            assert_eq!(serde_json::to_string(&reuse).unwrap(), written);
        }
        for bad in ["1", r#""soon""#, "null"] {
            assert!(serde_json::from_str::<Reuse>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_has_bounds() {
        for (time, is_fine) in [("999ms", false), ("1s", true), ("30d", true), ("31d", false)] {
            assert_eq!(Reuse::For(Timeout::parse(time).unwrap()).check().is_ok(), is_fine, "{time}");
        }
    }
}
