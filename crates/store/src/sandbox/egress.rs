//! Replaces the network rules of a live sandbox, and the secrets that it uses.

use rusqlite::Connection;
use saggar_domain::net::EgressDraft;
use saggar_domain::secret::SecretUse;
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
    /// Replaces the rules in the spec, the secrets if any are given, and the hash that covers both; [`Changed::Otherwise`] if the
    /// sandbox has ended.
    pub async fn set_egress(
        &self,
        id: SandboxId,
        egress: EgressDraft,
        secrets: Option<Vec<SecretUse>>,
        hash: PolicyHash,
    ) -> Result<Changed, Error> {
        let work = move |connection: &Connection| {
            let spec = column::one(connection, SPEC, [id.as_str()], |row| column::json::<Draft>(row, "spec_json"))?;
            let Some(mut spec) = spec else { return found(connection, &id) };
            spec.egress = egress.clone();
            if let Some(secrets) = &secrets {
                spec.secrets.clone_from(secrets);
            }
            column::execute(connection, REPLACE, (id.as_str(), column::to_json(&spec), hash.as_str()))?;
            Ok(Changed::Done)
        };
        self.write(Durability::Process, work).await
    }
}
