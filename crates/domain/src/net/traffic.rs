//! Sums of decisions.

use serde::{Deserialize, Serialize};

use crate::net::decision::{NetDecision, Verdict};

/// What a sandbox exchanged with one host and port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTraffic {
    pub host: String,
    pub port: u16,
    /// Number of decisions.
    pub allowed: u64,
    pub denied: u64,
    /// Bytes from the sandbox.
    pub bytes_up: u64,
    /// Bytes to the sandbox.
    pub bytes_down: u64,
}

impl HostTraffic {
    pub fn new(host: String, port: u16) -> Self {
        Self { host, port, allowed: 0, denied: 0, bytes_up: 0, bytes_down: 0 }
    }

    pub fn add(&mut self, decision: &NetDecision) {
        let count = match decision.verdict {
            Verdict::Allowed => &mut self.allowed,
            Verdict::Denied => &mut self.denied,
        };
        *count = count.saturating_add(decision.times);
        self.bytes_up = self.bytes_up.saturating_add(decision.bytes_up);
        self.bytes_down = self.bytes_down.saturating_add(decision.bytes_down);
    }

    /// Adds other sums of the same host and port.
    pub fn join(&mut self, other: &Self) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.bytes_up = self.bytes_up.saturating_add(other.bytes_up);
        self.bytes_down = self.bytes_down.saturating_add(other.bytes_down);
    }
}
