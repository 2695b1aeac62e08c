//! Talking to the processes that hold sandboxes: starting one, and one connection for each thing that is asked of it.

mod connection;
mod place;
mod start;

pub(crate) use connection::{Connection, started};
pub use connection::{ControlError, Feeding, Following, Message};
pub(crate) use place::{Making, Places};
pub(crate) use start::{StartError, start};
