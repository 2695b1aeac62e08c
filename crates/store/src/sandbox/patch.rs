//! Changes to a live sandbox.

use rusqlite::Connection;
use saggar_domain::{Ingress, Labels, PublicPorts, SandboxId};

use super::change::found;
use super::{Changed, Lifetime, written_on_deadline};
use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

/// A column without a new value stays as it is. A deadline can also be removed, so ?2 says whether there is a new
/// lifetime.
const PATCH: &str = "
    UPDATE sandbox SET
        deadline = iif(?2, ?3, deadline),
        on_deadline = iif(?2, ?4, on_deadline),
        idle_timeout_ms = iif(?2, ?5, idle_timeout_ms),
        labels_json = coalesce(?6, labels_json),
        auto_resume = coalesce(?7, auto_resume),
        public_ports_json = coalesce(?8, public_ports_json),
        ingress_json = coalesce(?9, ingress_json),
        rests_at_deadline = iif(?2, ?10, rests_at_deadline)
    WHERE id = ?1 AND state <> 'ended'";

/// New values; fields that are `None` stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxPatch {
    pub lifetime: Option<Lifetime>,
    /// Replaces all labels.
    pub labels: Option<Labels>,
    pub auto_resume: Option<bool>,
    /// Replaces all ports that need no token.
    pub public_ports: Option<PublicPorts>,
    pub ingress: Option<Ingress>,
}

impl Store {
    /// Changes a live sandbox; [`Changed::Otherwise`] if it has ended.
    pub async fn patch_sandbox(&self, id: SandboxId, patch: SandboxPatch) -> Result<Changed, Error> {
        self.write(Durability::Process, move |connection| apply(connection, &id, &patch)).await
    }
}

fn apply(connection: &Connection, id: &SandboxId, patch: &SandboxPatch) -> Result<Changed, Error> {
    let lifetime = patch.lifetime;
    let on_deadline = lifetime.map(|lifetime| written_on_deadline(lifetime.on_deadline));
    let params = (
        id.as_str(),
        lifetime.is_some(),
        lifetime.and_then(|lifetime| lifetime.deadline).map(column::millis),
        on_deadline.map(|(action, _)| action),
        lifetime.and_then(|lifetime| lifetime.idle_timeout).map(column::span),
        patch.labels.as_ref().map(column::to_json),
        patch.auto_resume,
        patch.public_ports.as_ref().map(column::to_json),
        patch.ingress.as_ref().map(column::to_json),
        on_deadline.map(|(_, rests)| rests),
    );
    let touched = column::execute(connection, PATCH, params)?;
    if touched > 0 { Ok(Changed::Done) } else { found(connection, id) }
}
