//! Talking to the processes that hold sandboxes: starting one, and one connection for each thing that is asked of it.

mod connection;
mod launch;
mod place;
mod start;

pub(crate) use connection::{Connection, Incoming, Message, started};
pub use connection::{ControlError, Feeding};
pub(crate) use launch::Program;
pub use launch::{Launched, Launcher, Waiting};
pub(crate) use place::Places;
pub(crate) use start::{StartError, start};
