//! The protocols that the egress process speaks, each case a row of a table, and a fuzzer over their parsers.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod corpus;
mod dial;
mod dns;
mod dns_servers;
mod fuzz;
mod hello;
mod nameserver;
mod reply;
mod requests;
mod scrub;
mod session;
mod socks;
mod spawn;
mod targets;
