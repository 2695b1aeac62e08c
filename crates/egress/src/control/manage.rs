//! The conversation of a server that manages the process.

use std::os::fd::OwnedFd;

use saggar_domain::secret::Grant;
use saggar_domain::{Code, Problem, SandboxId};
use saggar_supervisor::egress::{FromEgress, SecretsOf, ToEgress, Upstream};

use super::wire::{Control, Incoming};
use super::{broken, check_version, misused};
use crate::models::Models;
use crate::service::Sessions;

/// Until the server closes the connection.
pub(crate) async fn manage(control: &Control, v: u32, sessions: &Sessions, models: &Models) -> Result<(), Problem> {
    check_version(v)?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let managing = FromEgress::Managing { version, sessions: sessions.count(), leads_models: true };
    control.send(&managing).await.map_err(broken)?;
    loop {
        let (message, files) = match control.receive().await.map_err(broken)? {
            Incoming::Message(message, files) => (message, files),
            Incoming::End => return Ok(()),
        };
        match message {
            ToEgress::UpstreamNow(upstream) => {
                replace_upstream(sessions, &upstream);
                control.send(&FromEgress::Ruled {}).await.map_err(broken)?;
            }
            ToEgress::SecretsOf(SecretsOf { sandbox_id, secrets }) => {
                let bound = bind(sessions, &sandbox_id, secrets);
                let answer = bound.map_or_else(FromEgress::Failed, |()| FromEgress::Bound {});
                control.send(&answer).await.map_err(broken)?;
            }
            ToEgress::Models {} => {
                let [socket] = <[OwnedFd; 1]>::try_from(files).map_err(|_| misused("models are behind one socket"))?;
                models.lead_to(socket).map_err(broken)?;
                control.send(&FromEgress::ModelsKnown {}).await.map_err(broken)?;
            }
            ToEgress::Retire {} => {
                // In force before the answer, unless there is no session: then the process ends with it.
                if sessions.count() > 0 {
                    sessions.retire();
                }
                control.send(&FromEgress::Retired {}).await.map_err(broken)?;
                sessions.retire();
            }
            ToEgress::Open(_)
            | ToEgress::Gates(_)
            | ToEgress::Rules(_)
            | ToEgress::Record {}
            | ToEgress::Replay {}
            | ToEgress::Answer { .. }
            | ToEgress::Settle {}
            | ToEgress::Manage { .. } => {
                return Err(misused("a management connection has no session"));
            }
        }
    }
}

fn bind(sessions: &Sessions, sandbox: &SandboxId, grants: Vec<Grant>) -> Result<(), Problem> {
    let controls = sessions.of(sandbox).ok_or_else(|| {
        Problem::new(
            Code::SandboxEnded,
            format!("the egress process has no session of {sandbox}"),
            "it may have ended; a session that opens later gets its secrets then",
        )
    })?;
    controls.bind(grants)
}

fn replace_upstream(sessions: &Sessions, upstream: &Upstream) {
    for controls in sessions.all() {
        // Its rules were accepted before, and other addresses of the host don't change that.
        let replaced = controls.replace_upstream(upstream);
        debug_assert!(replaced.is_ok(), "{replaced:?}");
    }
}
