//! JSON that somebody else understands: a spec, an event, the details of an end. Here it is text with a bound.

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// Longest, in bytes.
const LEN_MAX: usize = 1 << 20;

/// JSON text of at most 1 MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonText(String);

impl JsonText {
    /// The JSON of a value; `None` if it has none or is too long.
    pub fn of(value: &impl Serialize) -> Option<Self> {
        serde_json::to_string(value).ok().filter(|text| text.len() <= LEN_MAX).map(Self)
    }

    /// Takes text that is JSON.
    pub fn parse(text: &str) -> Option<Self> {
        let is_json = text.len() <= LEN_MAX && serde_json::from_str::<IgnoredAny>(text).is_ok();
        is_json.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads it as a value.
    pub fn to_value<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// What a column holds was JSON when it was written; whoever reads it as a value finds out if it isn't any more.
    pub(crate) fn from_column(text: &str) -> Option<Self> {
        Some(Self(text.to_owned()))
    }
}
