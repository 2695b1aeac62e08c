//! The record of one decision about network access.
//!
//! The query of a request is never recorded: it may hold credentials. Time and ids are added by the process that records it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::mode::choice;
use crate::secret::SecretName;

/// Maximum length of a recorded path, in bytes.
const PATH_SHOWN_MAX: usize = 512;
/// Maximum length of a recorded method, in bytes: longer than any that rules know.
const METHOD_SHOWN_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetDecision {
    /// In canonical form; if it could not be parsed, escaped and bounded.
    pub host: String,
    /// The address that was dialled, or that led to a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    pub port: u16,
    pub protocol: Protocol,
    /// As [`shown_method`] writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// As [`shown_path`] writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub verdict: Verdict,
    /// The allow rule that matched, or the rule of the refusal.
    pub rule: String,
    /// Why it was denied, or why an allowed one failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The secrets whose values the request got.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretName>,
    /// Bytes from the sandbox.
    pub bytes_up: u64,
    /// Bytes to the sandbox.
    pub bytes_down: u64,
    pub duration_ms: u64,
    /// The number of the sandbox's connection within its session. Only for the supervisor, which finds the exec by it: it is neither
    /// stored nor shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// How many decisions this one stands for: more than one if they came too fast to be recorded one by one.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub times: u64,
}

fn once() -> u64 {
    1
}

fn is_once(times: &u64) -> bool {
    *times == 1
}

choice!(
    /// How the sandbox asked.
    Protocol {
        Dns = "dns",
        Connect = "connect",
        Socks = "socks",
        Http = "http",
        Https = "https",
        /// A TLS connection that is not inspected.
        Tls = "tls",
        /// A connection in which no TLS or HTTP is expected.
        Tcp = "tcp",
    }
);

choice!(Verdict {
    Allowed = "allowed",
    Denied = "denied",
});

/// A request's path as it may be recorded and printed: without the query, escaped, and bounded.
pub fn shown_path(raw: &str) -> String {
    shown(raw.split(['?', '#']).next().unwrap_or_default(), PATH_SHOWN_MAX)
}

/// A request's method as it may be recorded and printed: escaped, and bounded. One that is longer than rules know is refused, and
/// recorded.
pub fn shown_method(raw: &str) -> String {
    shown(raw, METHOD_SHOWN_MAX)
}

/// What is cut off ends in `…`.
fn shown(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        if shown.len() >= most {
            shown.push('…');
            break;
        }
        match character {
            '!'..='~' => shown.push(character),
            other => shown.extend(other.escape_unicode()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_chose_is_recorded_escaped_and_bounded_with_a_mark() {
        assert_eq!((shown_method("M-SEARCH"), shown_path("/a b?c")), ("M-SEARCH".to_owned(), "/a\\u{20}b".to_owned()));
        let (method, path) = (shown_method(&"X".repeat(20_000)), shown_path(&"/x".repeat(20_000)));
        assert!(method.len() <= METHOD_SHOWN_MAX + '…'.len_utf8() && method.ends_with("X…"), "{method}");
        assert!(path.len() <= PATH_SHOWN_MAX + '…'.len_utf8() && path.ends_with('…'), "{path}");
    }
}
