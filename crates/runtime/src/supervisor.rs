//! Talking to the processes that hold sandboxes: starting one, and one connection for each thing that is asked of it.

mod connection;
mod place;
mod start;

pub use connection::{ControlError, Following, Message};
pub(crate) use connection::Connection;
pub(crate) use place::Places;
pub(crate) use start::{StartError, start};
