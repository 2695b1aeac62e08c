//! Replaces the network rules of a live sandbox.

use rusqlite::Connection;
use saggar_domain::net::EgressDraft;
use saggar_domain::{Draft, PolicyHash, SandboxId};

use super::Changed;
use super::change::found;
use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

const SPEC: &str = "SELECT spec_json FROM sandbox WHERE id = ?1 AND state <> 'ended'";
const REPLACE: &str = "UPDATE sandbox SET spec_json = ?2, policy_hash = ?3 WHERE id = ?1";

impl Store {
    /// Replaces the rules in the spec, and the hash that covers them; [`Changed::Otherwise`] if the sandbox has ended.
    pub async fn set_egress(&self, id: SandboxId, egress: EgressDraft, hash: PolicyHash) -> Result<Changed, Error> {
        self.write(Durability::Process, move |connection| replace(connection, &id, &egress, &hash)).await
    }
}

fn replace(connection: &Connection, id: &SandboxId, egress: &EgressDraft, hash: &PolicyHash) -> Result<Changed, Error> {
    let spec = column::one(connection, SPEC, [id.as_str()], |row| column::json::<Draft>(row, "spec_json"))?;
    let Some(spec) = spec else { return found(connection, id) };
    let spec = Draft { egress: egress.clone(), ..spec };
    column::execute(connection, REPLACE, (id.as_str(), column::to_json(&spec), hash.as_str()))?;
    Ok(Changed::Done)
}
