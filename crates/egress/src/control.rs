//! The egress process's side of its protocol (`saggar_supervisor::egress`): sessions with supervisors, and the management connection
//! of a server.

mod controls;
mod manage;
mod session;
mod tape;
mod wire;

pub(crate) use controls::Controls;
pub(crate) use manage::manage;
pub use session::converse;
pub(crate) use session::{Accepted, serve_opened};
pub use wire::Control;
pub(crate) use wire::Incoming;

use saggar_domain::{Code, Problem};
use saggar_supervisor::egress::EGRESS;

/// Refuses a peer of a later version.
fn check_version(v: u32) -> Result<(), Problem> {
    if v <= EGRESS {
        return Ok(());
    }
    Err(Problem::new(
        Code::UnsupportedProtocol,
        format!("the other side speaks version {v} of the egress protocol, this process version {EGRESS}"),
        "use the same version of saggar for both",
    ))
}

fn broken(error: impl std::fmt::Display) -> Problem {
    Problem::new(Code::SetupFailed, format!("the egress process failed: {error}"), "try again")
}

pub(crate) fn misused(what: &str) -> Problem {
    Problem::new(Code::InvalidValue, format!("the egress process was misused: {what}"), "report it")
}
