//! Names that look like data: text or keys encoded into labels, to be carried out by a lookup.
//!
//! A guess, so it only makes an event: an allowed service may have such names. Ordinary names make none: hashes of 40
//! hexadecimal digits, UUIDs, names of cloud resources, punycode.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use saggar_domain::net::{HostName, NetDecision, Protocol, Rules, Verdict};

use crate::resolve::labels_below_wildcard;

/// A label of this length or more is judged by its letters. Hashes of 40 digits and UUIDs are shorter.
const LABEL_LONG: usize = 41;
/// A name longer than this in its labels but the last two carries something.
const NAME_LONG: usize = 120;
/// Bits per character: base32 and base64 have more. Hexadecimal digits reach 4 at most, so [`is_hexadecimal`] judges them.
const ENTROPY: f64 = 3.9;
/// Words have as many bits at this length, and hyphens between them. Encoded text has one in this many letters at most.
const HYPHEN_EVERY: usize = 20;

/// How many domains are reported for names that look like data.
const SUSPECTS_MAX: usize = 16;
const DNS_PORT: u16 = 53;

/// The domains of one session that were reported, whichever way the name came: a lookup, CONNECT, SOCKS or a request.
#[derive(Debug, Default)]
pub struct Suspects(Mutex<HashSet<String>>);

impl Suspects {
    /// The report about an allowed name, if it looks like data and is the first one of its domain.
    pub fn notice(&self, rules: &Rules, name: &HostName) -> Option<NetDecision> {
        if !looks_like_data(name) || labels_below_wildcard(rules, name) == 0 {
            return None;
        }
        let mut labels = name.as_str().rsplitn(3, '.');
        let domain: Vec<&str> = labels.by_ref().take(2).collect();
        let is_new = {
            let mut domains = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            domains.len() < SUSPECTS_MAX && domains.insert(domain.join("."))
        };
        is_new.then(|| NetDecision {
            host: name.to_string(),
            address: None,
            port: DNS_PORT,
            protocol: Protocol::Dns,
            method: None,
            path: None,
            verdict: Verdict::Allowed,
            rule: "egress/dns-data".to_owned(),
            reason: Some("the name looks like encoded data, and a wildcard rule allows it".to_owned()),
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: 0,
            connection: None,
            secrets: Vec::new(),
            times: 1,
        })
    }
}

fn looks_like_data(name: &HostName) -> bool {
    let labels: Vec<&str> = name.as_str().split('.').collect();
    let Some(below) = labels.len().checked_sub(2).map(|count| &labels[..count]) else { return false };
    let length = below.iter().map(|label| label.len() + 1).sum::<usize>();
    length > NAME_LONG
        || below.iter().any(|label| label.len() >= LABEL_LONG && (is_hexadecimal(label) || is_encoded(label)))
}

fn is_hexadecimal(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_encoded(label: &str) -> bool {
    let hyphens = label.bytes().filter(|&byte| byte == b'-').count();
    hyphens * HYPHEN_EVERY <= label.len() && entropy(label) >= ENTROPY
}

/// Shannon's entropy of the bytes, in bits per byte.
fn entropy(label: &str) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in label.bytes() {
        counts[usize::from(byte)] += 1;
    }
    let length = label.len() as f64;
    counts
        .iter()
        .filter(|&&count| count > 0)
        .map(|&count| {
            let share = f64::from(count) / length;
            -share * share.log2()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_data_is_seen_and_ordinary_names_are_not() {
        for (name, suspicious) in [
            ("nbswy3dpeb3w64tmmqwcayjanrxw4zzanvsxg43bm5sse5dimvzgk.evil.example", true),
            ("aGVsbG8gd29ybGQgdGhpcyBpcyBhIGxvbmcgc2VjcmV0IG1lc3NhZ2U.evil.example", true),
            ("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b.evil.example", true),
            (
                "abcdefghij.abcdefghij.abcdefghij.abcdefghij.abcdefghij.abcdefghij.abcdefghij.abcdefghij.abcdefghij.abcdefghij.abcdefghij.evil.example",
                true,
            ),
            ("example.com", false),
            ("localhost", false),
            ("files.pythonhosted.org", false),
            ("my-very-long-service-name-for-the-production-environment.region.example", false),
            ("da39a3ee5e6b4b0d3255bfef95601890afd80709.objects.example", false),
            ("123e4567-e89b-12d3-a456-426614174000.tenants.example", false),
            ("xn--bcher-kva.example.com", false),
            ("prod-eu-west-1-starport-layer-bucket.s3.eu-west-1.amazonaws.com", false),
            ("k8s-default-ingress-4f2a1b9c3d-1234567890.elb.us-east-1.amazonaws.com", false),
        ] {
            assert_eq!(looks_like_data(&name.parse().unwrap()), suspicious, "{name}");
        }
    }
}
