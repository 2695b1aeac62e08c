//! SHA-256 digests that name layers, templates and other content: `sha256:` and 64 lower-case digits.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use sha2::{Digest, Sha256};

const PREFIX: &str = "sha256:";

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub fn of(content: &[u8]) -> Self {
                Self::from_bytes(Sha256::digest(content).into())
            }

            pub fn from_bytes(bytes: [u8; 32]) -> Self {
                let mut text = String::with_capacity(PREFIX.len() + 64);
                text.push_str(PREFIX);
                for byte in bytes {
                    for digit in [byte >> 4, byte & 15] {
                        text.push(char::from_digit(u32::from(digit), 16).expect("four bits are one digit"));
                    }
                }
                Self(text)
            }

            /// `None` if the text is not a digest. Only SHA-256 is known.
            pub fn parse(text: &str) -> Option<Self> {
                text.strip_prefix(PREFIX).and_then(Self::parse_hex)
            }

            /// From the digits alone, as in a file's name.
            pub fn parse_hex(digits: &str) -> Option<Self> {
                let is_hex = digits.len() == 64 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                is_hex.then(|| Self(format!("{PREFIX}{digits}")))
            }

            /// With the algorithm, as in `sha256:…`.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The digits alone, which are safe as a file's name.
            pub fn hex(&self) -> &str {
                &self.0[PREFIX.len()..]
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text)
                    .ok_or_else(|| de::Error::custom(format!("{text:?} is not a digest of the form sha256:…")))
            }
        }
    };
}

digest!(
    /// A layer, by the digest of its uncompressed archive: what OCI calls a diff id. A layer whose stored form depends on
    /// those below has their chain id instead.
    LayerId
);

impl LayerId {
    /// The id of a layer together with all below it, as OCI defines a chain id. `below` is that of the one below.
    pub fn chained(below: Option<&Self>, layer: &Self) -> Self {
        match below {
            None => layer.clone(),
            Some(below) => Self::of(format!("{below} {layer}").as_bytes()),
        }
    }
}

digest!(
    /// A template, by the digest of its manifest.
    TemplateId
);
digest!(
    /// Any other content, such as a blob of an image.
    ContentDigest
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_read_and_print_in_one_form() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(LayerId::of(b"").as_str(), empty);
        assert_eq!(LayerId::parse(empty), Some(LayerId::of(b"")));
        assert_eq!(LayerId::parse_hex(LayerId::of(b"").hex()), Some(LayerId::of(b"")));
        let upper = empty.to_uppercase();
        for wrong in ["", "sha256:", &empty[..70], &upper, &empty.replace("sha256", "sha512"), "sha256:../../x"] {
            assert!(LayerId::parse(wrong).is_none(), "{wrong}");
        }
    }
}
