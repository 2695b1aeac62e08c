//! The network of a sandbox.
//!
//! A private one is a network namespace with a loopback and no other device, so no packet can leave it. In a proxied one
//! every address is routed to the loopback, and the packets that arrive there lead to *gates*: sockets that were made
//! inside and are served from outside, by the egress process.
//!
//! ```text
//!  program ── connect 192.0.2.1:443 ─▶ output hook ─▶ lo ─▶ prerouting hook ─▶ gate (accepted socket is 192.0.2.1:443)
//!          ── UDP to port 53 ────────▶ passes                to DNS            gate
//!          ── other UDP, ICMP … ─────▶ dropped: EPERM
//!          ── TCP or UDP between loopback addresses ───────────────────────▶ the other program
//! ```
//!
//! Packets are assigned to the gates' sockets (`tproxy`) rather than rewritten (`redirect`). So there is no connection
//! tracking, whose entries are charged to no cgroup and whose limit is the host's; no answer can be lost to a mapping
//! that doesn't exist; and a connection's own address is the original destination.

mod bounds;
mod datagram;
mod gates;
mod namespace;
mod netlink;
mod routes;
mod rules;
#[cfg(test)]
mod tests;
mod trial;

pub use datagram::{Datagram, receive_datagram, send_datagram};
pub use gates::{GATE_PORT, Gates, PROXY_PORT, Probes, is_peer_open, original_destination};
pub(crate) use namespace::{Joined, Network};
pub use trial::{TrialFailure, try_proxied};
