//! What a model asks of the tool `http`.

use ::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::TOOL;
use crate::runs::tools::tool::or_none;
use saggar_egress::outside::HttpAddress;
use saggar_egress::secret::Credential;

/// Maximum number of headers of a call, and of bytes in them.
const HEADERS_MAX: usize = 64;
const HEADER_BYTES_MAX: usize = 32 * 1024;
/// Headers that belong to the connection or to us.
const OWN: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::runs::tools) struct Arguments {
    url: String,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    headers: Map<String, Value>,
    /// Sent as JSON. `null` counts as a body only for POST.
    #[serde(default)]
    body: Value,
    #[serde(default)]
    text: Option<String>,
}

/// A call whose parts are valid.
#[derive(Debug)]
pub(super) struct Call {
    pub address: HttpAddress,
    pub method: Method,
    pub headers: HeaderMap,
    pub payload: Payload,
    /// The header that gets the step's key.
    pub key_header: Option<HeaderName>,
    /// Goes into each request, and is removed from its answer.
    pub credential: Option<Credential>,
}

#[derive(Debug)]
pub(super) enum Payload {
    None,
    Json(Bytes),
    Text(Bytes),
}

impl Call {
    /// An error is for the model.
    pub fn parse(arguments: &str) -> Result<Self, String> {
        let arguments: Arguments = serde_json::from_str(or_none(arguments))
            .map_err(|error| format!("the arguments of {} are invalid: {error}", TOOL.name))?;
        let address = HttpAddress::parse(&arguments.url)
            .map_err(|error| format!("the URL {:?} is not allowed: {error}", arguments.url))?;
        let method = arguments.method.as_deref().unwrap_or("POST");
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| format!("{method:?} is not a method"))?;
        let payload = match (arguments.text, arguments.body) {
            (Some(_), body) if !body.is_null() => return Err("give \"body\" or \"text\", not both".to_owned()),
            (Some(text), _) => Payload::Text(Bytes::from(text)),
            (None, Value::Null) if method != Method::POST => Payload::None,
            (None, body) => Payload::Json(Bytes::from(body.to_string())),
        };
        let key_header = Some(HeaderName::from_static("idempotency-key"));
        Ok(Self { address, method, headers: headers(&arguments.headers)?, payload, key_header, credential: None })
    }

    /// The type of the body, unless the call sets one.
    pub fn content_type(&self) -> Option<HeaderValue> {
        match &self.payload {
            _ if self.headers.contains_key(header::CONTENT_TYPE) => None,
            Payload::None => None,
            Payload::Json(_) => Some(HeaderValue::from_static("application/json")),
            Payload::Text(_) => Some(HeaderValue::from_static("text/plain; charset=utf-8")),
        }
    }

    /// An answer to HEAD has nothing else.
    pub fn wants_headers(&self) -> bool {
        self.method == Method::HEAD
    }
}

pub(super) fn headers(given: &Map<String, Value>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut bytes = 0;
    for (name, value) in given {
        let Value::String(value) = value else { return Err(format!("the header {name:?} is not text")) };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is not a header"))?;
        if OWN.contains(&key.as_str()) {
            return Err(format!("the header {name:?} is set by the tool: leave it out"));
        }
        let value = HeaderValue::from_str(value).map_err(|_| format!("the header {name:?} has a bad character"))?;
        bytes += key.as_str().len() + value.len();
        headers.append(key, value);
    }
    if headers.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
        return Err(format!(
            "there are more than {HEADERS_MAX} headers, or more than {HEADER_BYTES_MAX} bytes in them"
        ));
    }
    Ok(headers)
}

/// Headers as text, one a line.
pub(super) fn shown(headers: &HeaderMap) -> String {
    let line =
        |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
    headers.iter().map(line).collect()
}
