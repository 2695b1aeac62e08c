//! Names people give: of keys, and the labels of a sandbox. Each with its bounds, checked once.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::ToSchema;

/// Longest name of a key.
const NAME_LEN_MAX: usize = 64;
/// Maximum length of the name of a label, in bytes.
const LABEL_NAME_LEN_MAX: usize = 256;
/// Maximum length of the value of a label, in bytes.
const LABEL_VALUE_LEN_MAX: usize = 4096;
/// Maximum number of labels of a sandbox.
const LABELS_MAX: usize = 64;

/// The name of an API key, for listing and revoking keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, min_length = 1, max_length = 64, pattern = r"^[^\u0000-\u001f\u007f]+$", example = "ci")]
pub struct KeyName(String);

impl KeyName {
    /// Parses and validates a name.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.chars().count() > NAME_LEN_MAX || text.chars().any(char::is_control) {
            return Err(format!("a key's name has 1 to {NAME_LEN_MAX} characters and no control characters"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for KeyName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// Labels of a sandbox, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Adds a label; an error if the name exists or there are too many.
    pub fn insert(&mut self, label: Label) -> Result<(), String> {
        if self.0.len() >= LABELS_MAX && !self.0.contains_key(&label.name) {
            return Err(format!("a sandbox has at most {LABELS_MAX} labels"));
        }
        match self.0.insert(label.name.clone(), label.value) {
            None => Ok(()),
            Some(_) => Err(format!("label {:?} is given twice", label.name)),
        }
    }

    /// The labels by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> de::Visitor<'de> for Entries {
            type Value = Labels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of label names and text values")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut labels = Labels::default();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    let label = Label::new(name, value).map_err(de::Error::custom)?;
                    labels.insert(label).map_err(de::Error::custom)?;
                }
                Ok(labels)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// One label; as text `name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    name: String,
    value: String,
}

impl Label {
    /// A label from its name and value.
    pub fn new(name: String, value: String) -> Result<Self, String> {
        if name.is_empty() || name.len() > LABEL_NAME_LEN_MAX || name.chars().any(char::is_control) {
            let shown: String = name.chars().take(NAME_LEN_MAX).collect();
            return Err(format!(
                "{shown:?} is not a valid label name: 1 to {LABEL_NAME_LEN_MAX} bytes without control characters"
            ));
        }
        if value.len() > LABEL_VALUE_LEN_MAX || value.chars().any(char::is_control) {
            return Err(format!(
                "the value of label {name:?} is longer than {LABEL_VALUE_LEN_MAX} bytes or has control characters"
            ));
        }
        Ok(Self { name, value })
    }

    /// Parses `name=value`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not a label: write NAME=VALUE"))?;
        Self::new(name.to_owned(), value.to_owned())
    }

    /// The label's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The label's value.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl Serialize for Label {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}={}", self.name, self.value))
    }
}

impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_and_named_once() {
        let read = |json: &str| serde_json::from_str::<Labels>(json);
        assert_eq!(read(r#"{"team": "a", "run/step": ""}"#).unwrap().iter().count(), 2);
        for wrong in [
            r#"{"": "a"}"#,
            r#"{"a\u0007b": "c"}"#,
            r#"{"a": "\u001b[2J"}"#,
            r#"{"a": "1", "a": "2"}"#,
            r#"{"a": 1}"#,
            r#"["a"]"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let many = |count: usize| {
            let entries: BTreeMap<String, &str> = (0..count).map(|index| (format!("l{index}"), "")).collect();
            serde_json::to_string(&entries).unwrap()
        };
        assert!(read(&many(LABELS_MAX)).is_ok());
        assert!(read(&many(LABELS_MAX + 1)).is_err());
        assert!(Label::parse(&format!("a={}", "v".repeat(LABEL_VALUE_LEN_MAX + 1))).is_err());
    }
}
