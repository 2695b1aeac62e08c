//! The value of a secret. It can't be printed, logged or stored by accident: it has no `Debug`, `Display` or `Serialize`.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serializer, de};
use zeroize::{Zeroize as _, Zeroizing};

/// Maximum length of a value, in bytes. The largest tokens in use have about 4 KiB.
const VALUE_LEN_MAX: usize = 8 * 1024;
/// Minimum length of a value, in bytes. A shorter one could not be removed from answers without damage to other text, and
/// could be guessed.
const VALUE_LEN_MIN: usize = 8;

/// Text on one line, without surrounding spaces. Clones share one copy, which is overwritten when the last of them is dropped.
#[derive(Clone)]
pub struct SecretValue(Arc<Zeroizing<String>>);

/// Says nothing about the value itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretValueError {
    #[error("the value is shorter than {VALUE_LEN_MIN} bytes: it could not be told from other text in an answer")]
    TooShort,
    #[error("the value is longer than {VALUE_LEN_MAX} bytes")]
    TooLong,
    #[error("the value has a line break or another control character: give it on one line")]
    ControlCharacter,
    #[error("the value begins or ends with a space")]
    Space,
}

impl SecretValue {
    pub fn parse(text: &str) -> Result<Self, SecretValueError> {
        if text.len() > VALUE_LEN_MAX {
            return Err(SecretValueError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(SecretValueError::ControlCharacter);
        }
        if text.trim() != text {
            return Err(SecretValueError::Space);
        }
        if text.len() < VALUE_LEN_MIN {
            return Err(SecretValueError::TooShort);
        }
        Ok(Self(Arc::new(Zeroizing::new(text.to_owned()))))
    }

    /// The value itself. Callers must not let it get into a message, a log or a file.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// For the socket of the egress process and for sealing, and nothing else: `#[serde(serialize_with = …)]`.
pub(super) fn exposed<S: Serializer>(value: &SecretValue, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.expose())
}

impl<'de> Deserialize<'de> for SecretValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = SecretValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the value of a secret, as text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SecretValue, E> {
                SecretValue::parse(text).map_err(E::custom)
            }

            fn visit_string<E: de::Error>(self, mut text: String) -> Result<SecretValue, E> {
                let parsed = SecretValue::parse(&text).map_err(E::custom);
                text.zeroize();
                parsed
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_line_of_some_length() {
        for good in ["sk-12345", "pässwörd 1", &"x".repeat(8192)] {
            assert!(SecretValue::parse(good).is_ok(), "{good}");
        }
        for (wrong, error) in [
            ("", SecretValueError::TooShort),
            ("1234567", SecretValueError::TooShort),
            ("12345678\n", SecretValueError::ControlCharacter),
            ("1234\r\nX: y", SecretValueError::ControlCharacter),
            ("1234\u{0}5678", SecretValueError::ControlCharacter),
            (" 12345678", SecretValueError::Space),
            (&*"x".repeat(8193), SecretValueError::TooLong),
        ] {
            assert_eq!(SecretValue::parse(wrong).err(), Some(error), "{wrong:?}");
        }
    }

    #[test]
    fn a_refused_value_is_not_repeated() {
        let refused = serde_json::from_str::<SecretValue>(r#""canary\u0000-value""#).err().unwrap();
        assert!(!refused.to_string().contains("canary"), "{refused}");
        let other = serde_json::from_str::<SecretValue>("7777777777").err();
        assert!(other.is_some());
    }
}
