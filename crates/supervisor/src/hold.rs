//! Holds a sandbox: one process, one thread and one poll loop between its agent and its clients.
//!
//! The loop serves the agent (many execs over one channel), the filter's notifications, the control socket and its
//! connections, and a few deadlines. It makes no decisions about the sandbox's policy. It runs until the sandbox is
//! dead, and then reports how it ended.

mod again;
mod ancestry;
mod connection;
mod exec;
mod execs;
mod guest;
mod happenings;
mod held;
mod holder;
mod lifetime;
mod listening;
mod moment;
mod network;
mod owners;
mod pausing;
mod requests;
mod ring;
mod stillness;
mod streams;
#[cfg(test)]
mod tests;
mod usage;

pub use again::{Again, Inside, Outcome};
pub use held::Held;
pub use holder::{Changes, Hold, Holding};
