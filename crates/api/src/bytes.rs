//! Bytes in JSON: `text` where they are UTF-8, `base64` where they aren't, never a lossy conversion.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

/// Bytes that are mostly text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

/// How they are written: one of the two.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Bytes)]
pub(crate) enum Written {
    /// UTF-8, as it is.
    Text(String),
    /// RFC 4648, with padding.
    #[schema(format = "byte")]
    Base64(String),
}

impl Written {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }

    pub(crate) fn read(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Base64(text) => decode(&text),
        }
    }
}

/// Reads RFC 4648 with padding.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| format!("not base64: {error}"))
}

/// RFC 4648 with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written::of(&self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Written::deserialize(deserializer)?.read().map(Self).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_and_the_rest_is_base64() {
        for (bytes, json) in [(&b"ok\n"[..], r#"{"text":"ok\n"}"#), (b"\xff\xfe", r#"{"base64":"//4="}"#)] {
            let value = Bytes(bytes.to_vec());
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
            assert_eq!(serde_json::from_str::<Bytes>(json).unwrap(), value);
        }
        assert!(serde_json::from_str::<Bytes>(r#"{"base64":"%"}"#).is_err());
    }
}
