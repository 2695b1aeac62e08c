//! The conversation of a server that manages the process.

use saggar_domain::Problem;
use saggar_supervisor::egress::{FromEgress, ToEgress, Upstream};

use super::wire::{Control, Incoming};
use super::{broken, check_version, misused};
use crate::service::Sessions;

/// Until the server closes the connection.
pub(crate) async fn manage(control: &Control, v: u32, sessions: &Sessions) -> Result<(), Problem> {
    check_version(v)?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let managing = FromEgress::Managing { version, sessions: sessions.count() };
    control.send(&managing).await.map_err(broken)?;
    loop {
        let message = match control.receive().await.map_err(broken)? {
            Incoming::Message(message, _) => message,
            Incoming::End => return Ok(()),
        };
        match message {
            ToEgress::UpstreamNow(upstream) => {
                replace_upstream(sessions, &upstream);
                control.send(&FromEgress::Ruled {}).await.map_err(broken)?;
            }
            ToEgress::Retire {} => {
                // Answered first: without a session the process ends with the next step.
                control.send(&FromEgress::Retired {}).await.map_err(broken)?;
                sessions.retire();
            }
            ToEgress::Open(_) | ToEgress::Gates(_) | ToEgress::Rules(_) | ToEgress::Manage { .. } => {
                return Err(misused("a management connection has no session"));
            }
        }
    }
}

fn replace_upstream(sessions: &Sessions, upstream: &Upstream) {
    for controls in sessions.all() {
        // Its rules were accepted before, and other addresses of the host don't change that.
        let replaced = controls.replace_upstream(upstream);
        debug_assert!(replaced.is_ok(), "{replaced:?}");
    }
}
