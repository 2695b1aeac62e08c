//! Where the network of a proxied sandbox leads to: a child of our own for `saggar run`, and the service of a server for a sandbox that is
//! held.

mod child;
mod place;
mod process;
mod service;
mod traffic;

pub(crate) use child::{ChildCgroups, ChildProcess};
pub use place::{EgressLock, EgressPlace};
pub use process::ServiceProcess;
pub(crate) use service::ServiceSocket;
pub(crate) use traffic::Traffic;

use std::time::Duration;

/// The helper mode of the binary.
pub const EGRESS: &str = "__egress";
/// Its first argument if it serves many sandboxes.
pub const EGRESS_SERVICE: &str = "service";
/// The socket of the service, in the data directory.
pub(crate) const EGRESS_SOCKET: &str = "egress.sock";

/// How long an egress process may take to report its last decisions, and a child to end.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(2);
