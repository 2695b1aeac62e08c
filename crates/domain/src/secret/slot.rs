//! Where in a request the value of a secret goes.

use serde::{Deserialize, Serialize};

/// Maximum length of each text in a slot, in bytes.
const TEXT_LEN_MAX: usize = 128;
/// Headers that frame a message or belong to one hop. A value there would change what the request means, or would not arrive.
const RESERVED: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Checked by [`crate::secret::Binding::new`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Slot {
    /// `NAME: PREFIX VALUE`, with the prefix as it is written.
    Header {
        name: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        prefix: String,
    },
    /// `Authorization: Bearer VALUE`.
    Bearer,
    /// `Authorization: Basic`, with the value as the password.
    Basic { user: String },
    /// A parameter of the query.
    Query { parameter: String },
    /// The request is signed as AWS does it; the value is the secret access key.
    #[serde(rename = "sigv4")]
    SigV4 { access_key_id: String, region: String, service: String },
}

impl Slot {
    /// The header that it fills, in lower case. A query parameter fills none.
    pub fn header(&self) -> Option<&str> {
        match self {
            Self::Header { name, .. } => Some(name),
            Self::Bearer | Self::Basic { .. } | Self::SigV4 { .. } => Some("authorization"),
            Self::Query { .. } => None,
        }
    }

    /// Whether both fill the same place, so that one request can't have both.
    pub fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Query { parameter: one }, Self::Query { parameter: another }) => one == another,
            // Some servers take `x_api_key` for `x-api-key`.
            _ => match (self.header(), other.header()) {
                (Some(one), Some(another)) => one.replace('_', "-") == another.replace('_', "-"),
                (None, _) | (_, None) => false,
            },
        }
    }

    /// Writes names of headers in lower case. An error says what is wrong.
    pub(super) fn checked(mut self) -> Result<Self, String> {
        match &mut self {
            Self::Header { name, prefix } => {
                name.make_ascii_lowercase();
                let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
                if name.is_empty() || name.len() > TEXT_LEN_MAX || !name.bytes().all(is_token) {
                    return Err("the name of its header is not a name of a header".to_owned());
                }
                if RESERVED.contains(&name.as_str()) || name.starts_with("sec-") || name.starts_with("x-saggar-") {
                    return Err(format!("the header {name} can't hold a secret: it is about the message itself"));
                }
                check("the prefix of its header", prefix, |byte| matches!(byte, b' '..=b'~'))?;
            }
            Self::Bearer => {}
            Self::Basic { user } => {
                check("its user name", user, |byte| matches!(byte, b' '..=b'~') && byte != b':')?;
            }
            Self::Query { parameter } => {
                check("its parameter", parameter, |byte| byte.is_ascii_alphanumeric() || b"-._~[]".contains(&byte))?;
                if parameter.is_empty() {
                    return Err("its parameter is empty".to_owned());
                }
            }
            Self::SigV4 { access_key_id, region, service } => {
                for (what, text) in
                    [("its access key id", access_key_id), ("its region", region), ("its service", service)]
                {
                    check(what, text, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))?;
                    if text.is_empty() {
                        return Err(format!("{what} is empty"));
                    }
                }
            }
        }
        Ok(self)
    }
}

fn check(what: &str, text: &str, is_fine: impl Fn(u8) -> bool) -> Result<(), String> {
    if text.len() > TEXT_LEN_MAX {
        return Err(format!("{what} is longer than {TEXT_LEN_MAX} bytes"));
    }
    if !text.bytes().all(is_fine) {
        return Err(format!("{what} has a character that can't be there"));
    }
    Ok(())
}
