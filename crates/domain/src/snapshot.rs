//! Snapshots: the files of a sandbox at one moment, kept as a template. What is stored about one.

use serde::{Deserialize, Serialize};

use crate::id::{RunId, SandboxId, SnapshotId};
use crate::label::Labels;
use crate::name::TemplateName;
use crate::template::TemplateId;
use crate::timestamp::Timestamp;

const SCHEMA: &str = "saggar.snapshot/v1";
/// Maximum size of a snapshot's record, in bytes: more than the largest labels need.
pub const SNAPSHOT_RECORD_BYTES_MAX: u64 = 1 << 20;

/// What is stored about a snapshot, beside the template that its files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    schema: String,
    pub id: SnapshotId,
    /// The layers and defaults.
    pub template: TemplateId,
    pub facts: SnapshotFacts,
}

/// What was said or measured when it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotFacts {
    /// A name that sandboxes may be started by too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<TemplateName>,
    /// The sandbox that it was taken of; `None` if it was imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// The snapshot that the sandbox's files were before they changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SnapshotId>,
    pub labels: Labels,
    pub created_at: Timestamp,
    /// When it is removed by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// How long the programs stood still, in microseconds; 0 if they did anyway.
    pub frozen_us: u64,
    /// Bytes and entries that it doesn't share with what its sandbox was started from.
    pub bytes: u64,
    pub entries: u64,
    /// Whether it was taken for forks alone. Such a one isn't listed, and goes with the last sandbox that started from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_for_forks: bool,
    /// The run that took it, to go back to. It is kept for as long as that run or a fork of it needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_run: Option<OfRun>,
    /// Whether it has the files of a sandbox that is paused, for the case that they are all that is left of it. Such a one isn't listed, and
    /// goes when the sandbox runs again or ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Resting>,
}

/// The step of a run that took a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfRun {
    pub run: RunId,
    pub step: u64,
}

/// What a paused sandbox needs to go on from its files alone, beside what its row says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resting {
    /// The variables that its owner gave it, sealed, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
}

impl SnapshotFacts {
    /// Whether clients see it.
    pub fn is_listed(&self) -> bool {
        !self.is_for_forks && self.rest.is_none()
    }
}

impl SnapshotRecord {
    pub fn new(id: SnapshotId, template: TemplateId, facts: SnapshotFacts) -> Self {
        Self { schema: SCHEMA.to_owned(), id, template, facts }
    }

    /// Reads a stored record. Fields of newer versions are ignored; another schema and another snapshot's are refused.
    pub fn read(document: &[u8], id: &SnapshotId) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(document).map_err(|error| error.to_string())?;
        match record.schema == SCHEMA && record.id == *id {
            true => Ok(record),
            false => Err(format!("it is of schema {:?}, and this version reads {SCHEMA:?}", record.schema)),
        }
    }

    /// The name of the template that sandboxes start from it by.
    pub fn template_name(&self) -> TemplateName {
        self.id.template_name()
    }
}

impl SnapshotId {
    pub fn template_name(&self) -> TemplateName {
        TemplateName::parse(self.as_str()).expect("an id has the form of a template's name")
    }

    /// The snapshot that a template's name means, if it is one's id.
    pub fn of_template(name: &TemplateName) -> Option<Self> {
        Self::parse(name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_templates_name_and_back() {
        let id = SnapshotId::from_random([7; 16]);
        assert_eq!(SnapshotId::of_template(&id.template_name()), Some(id));
        assert_eq!(SnapshotId::of_template(&TemplateName::default()), None);
    }

    #[test]
    fn a_record_of_another_snapshot_or_form_is_refused() {
        let id = SnapshotId::from_random([7; 16]);
        let facts = SnapshotFacts {
            name: None,
            sandbox: None,
            parent: None,
            labels: Labels::default(),
            created_at: Timestamp::from_millis(1),
            expires_at: None,
            frozen_us: 0,
            bytes: 1,
            entries: 2,
            is_for_forks: false,
            of_run: None,
            rest: None,
        };
        let record = SnapshotRecord::new(id.clone(), TemplateId::of(b"x"), facts);
        let document = serde_json::to_string(&record).unwrap();
        assert_eq!(SnapshotRecord::read(document.as_bytes(), &id), Ok(record));
        assert!(SnapshotRecord::read(document.as_bytes(), &SnapshotId::from_random([8; 16])).is_err());
        let later = document.replace("snapshot/v1", "snapshot/v2");
        assert!(SnapshotRecord::read(later.as_bytes(), &id).unwrap_err().contains("snapshot/v2"));
    }
}
