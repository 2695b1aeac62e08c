//! A client's options: the server's URL, the key, trusted certificates, timeouts.

use std::time::Duration;

use crate::secret::Secret;

/// A client's options.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Such as `http://127.0.0.1:7420`; a path before the API's own is kept. Or `unix:/run/saggar.sock`.
    pub url: String,
    /// The API key.
    pub key: Option<Secret>,
    /// Additional trusted certificates in PEM, such as a server's self-signed one.
    pub certificates: Vec<u8>,
    /// Time limit for making a connection.
    pub connect_timeout: Duration,
    /// Time limit for an ordinary call. It doesn't apply to streams, files and waiting for an exec.
    pub call_timeout: Duration,
    /// Maximum number of attempts of an idempotent call whose connection is refused.
    pub attempts_max: u32,
}

impl ClientOptions {
    /// The default address of a server.
    pub const DEFAULT_URL: &str = "http://127.0.0.1:7420";

    /// The defaults with this URL.
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

    /// Sets the key.
    pub fn with_key(mut self, key: Secret) -> Self {
        self.key = Some(key);
        self
    }
}
