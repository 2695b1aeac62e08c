//! What a client needs to know: where the server is, the key, which certificates to trust, how long to wait.

use std::time::Duration;

use crate::secret::Secret;

/// Everything a client is made from.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Such as `http://127.0.0.1:7420`; a path in front of the API's own is kept.
    pub url: String,
    /// The API key.
    pub key: Option<Secret>,
    /// Certificates in PEM to trust besides the host's, such as a server's self-made one.
    pub certificates: Vec<u8>,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long an ordinary call may take. Streams, files and waiting for an exec have no such end.
    pub call_timeout: Duration,
    /// How often an idempotent call whose connection is refused is made, all in all.
    pub attempts_max: u32,
}

impl ClientOptions {
    /// Where a server listens unless told otherwise.
    pub const DEFAULT_URL: &str = "http://127.0.0.1:7420";

    /// Everything by default but the address.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            key: None,
            certificates: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(60),
            attempts_max: 4,
        }
    }

    /// The same with a key.
    pub fn with_key(mut self, key: Secret) -> Self {
        self.key = Some(key);
        self
    }
}
