//! JSON that other crates interpret: a spec, an event, the details of an end. Here it is text of bounded length.

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// In bytes.
const LEN_MAX: usize = 1 << 20;

/// JSON text of at most 1 MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonText(String);

impl JsonText {
    /// The JSON of a value; `None` if it can't be serialised or is too long.
    pub fn of(value: &impl Serialize) -> Option<Self> {
        serde_json::to_string(value).ok().filter(|text| text.len() <= LEN_MAX).map(Self)
    }

    /// `None` if the text isn't JSON or is too long.
    pub fn parse(text: &str) -> Option<Self> {
        let is_json = text.len() <= LEN_MAX && serde_json::from_str::<IgnoredAny>(text).is_ok();
        is_json.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn to_value<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// Column values were valid JSON when written, so they are not checked here; damage shows when the value is
    /// parsed.
    pub(crate) fn from_column(text: &str) -> Option<Self> {
        Some(Self(text.to_owned()))
    }
}
