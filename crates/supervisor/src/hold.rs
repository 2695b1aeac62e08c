//! Holding a sandbox: one process, one thread and one poll loop between its agent and whoever asks about it.
//!
//! The loop knows the agent (many execs over one channel), the filter's questions, the control socket and its connections, and a few
//! deadlines. It decides nothing about what a sandbox is; it lives until the sandbox is dead, and then says how that came about.

mod ancestry;
mod connection;
mod exec;
mod execs;
mod guest;
mod happenings;
mod held;
mod holder;
mod lifetime;
mod moment;
mod requests;
mod ring;
mod streams;
#[cfg(test)]
mod tests;
mod usage;

pub use held::Held;
pub use holder::{Hold, Holding};
