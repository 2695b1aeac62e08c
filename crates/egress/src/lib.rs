//! The egress process: the only way out of a proxied sandbox. It decides by rules, and reports each decision.
//!
//! A [`session::Session`] serves one sandbox. Connections come in through the gate (redirected, to any address) or the proxy port
//! (CONNECT, SOCKS5, plain HTTP). Both lead to the same destination type and the same decisions, in `passage`.

#![forbid(unsafe_code)]

mod arrivals;
mod ask;
mod budget;
mod bytes;
mod ca;
pub mod control;
mod http;
mod link;
mod listen;
mod notices;
mod passage;
pub mod process;
mod proxy;
mod rate;
mod record;
pub mod secret;
mod tasks;
mod tunnel;

pub mod decisions;
pub mod dial;
pub mod dns;
pub mod gate;
pub mod hello;
pub mod limits;
pub mod models;
pub mod names;
pub mod outside;
pub mod recording;
pub mod refuse;
pub mod replay;
pub mod resolve;
pub mod service;
pub mod session;
pub mod setting;
pub mod socks;
pub mod tls;
