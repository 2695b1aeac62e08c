//! Records that a live sandbox began again from another template.

use saggar_domain::{PolicyHash, SandboxId, TemplateName};

use super::Changed;
use super::change::found;
use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

const SET: &str = "UPDATE sandbox SET template = ?2, policy_hash = ?3 WHERE id = ?1 AND state <> 'ended'";

impl Store {
    /// [`Changed::Otherwise`] if the sandbox has ended.
    pub async fn set_template(
        &self,
        id: SandboxId,
        template: TemplateName,
        hash: PolicyHash,
    ) -> Result<Changed, Error> {
        self.write(Durability::Process, move |connection| {
            let touched = column::execute(connection, SET, (id.as_str(), template.as_str(), hash.as_str()))?;
            if touched > 0 { Ok(Changed::Done) } else { found(connection, &id) }
        })
        .await
    }
}
