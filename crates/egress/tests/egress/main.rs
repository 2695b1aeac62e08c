//! A session against a small world of servers, on loopback: programs dial names through the gate or the proxy port, and see what a
//! program in a sandbox would see.

#![allow(clippy::unwrap_used, reason = "a test helper may panic")]

mod asking;
mod changes;
mod client;
mod curl;
mod limits;
mod names;
mod outside;
mod pki;
mod proxy;
mod recording;
mod refusals;
mod requests;
mod sandbox;
mod secrets;
mod server;
mod service;
mod shown;
mod smuggling;
mod streams;
mod trust;
mod tunnels;
mod world;
