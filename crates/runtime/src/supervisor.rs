//! Communication with supervisors: starts one, and opens one connection per operation.

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
