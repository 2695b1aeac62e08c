//! Labels: keys and values that users attach to a sandbox to find it again. Bounded in number and length; Saggar
//! doesn't interpret them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::problem::{Code, Problem};

/// Maximum number of labels of one sandbox.
const ENTRIES_MAX: usize = 64;
/// Maximum length of a key, in bytes.
const KEY_LEN_MAX: usize = 256;
/// Maximum length of a value, in bytes.
const VALUE_LEN_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Checks number, lengths and characters.
    pub fn parse(entries: BTreeMap<String, String>) -> Result<Self, Problem> {
        let fail = |message: String| {
            let help =
                "at most 64 labels; a key is 1 to 256 bytes and a value at most 4096, both without control characters";
            Err(Problem::new(Code::InvalidValue, message, help))
        };
        if entries.len() > ENTRIES_MAX {
            return fail(format!("{} labels are more than {ENTRIES_MAX}", entries.len()));
        }
        for (key, value) in &entries {
            if !is_key(key) {
                return fail(format!("{key:?} is not a valid label key"));
            }
            if value.len() > VALUE_LEN_MAX || value.chars().any(char::is_control) {
                return fail(format!("the value of label {key:?} is too long or has control characters"));
            }
        }
        Ok(Self(entries))
    }

    pub fn entries(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(BTreeMap::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

fn is_key(key: &str) -> bool {
    (1..=KEY_LEN_MAX).contains(&key.len()) && !key.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn labels_have_bounds() {
        assert!(Labels::parse(one("team/owner", "Zoë = 1")).is_ok());
        assert!(Labels::parse(one("a", "")).is_ok());
        assert!(Labels::parse(one("Who = what? ☂", "x")).is_ok());
        let many = (0..65).map(|index| (format!("k{index}"), String::new())).collect();
        for wrong in [
            one("", "x"),
            one("a\u{7f}b", "x"),
            one(&"k".repeat(257), "x"),
            one("k", &"v".repeat(4097)),
            one("k", "a\nb"),
            many,
        ] {
            assert!(Labels::parse(wrong.clone()).is_err(), "{wrong:?}");
        }
    }
}
