//! The record of a job on disk: `templates/PROJECT/jobs/JOB.json`.
//!
//! Written when the job begins and when it ends. A record that says `waiting` or `running` after a start is of a job
//! that its server took with it.

use saggar_domain::template::TemplateId;
use saggar_domain::{JobId, Problem, TemplateName, Timestamp};
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "saggar.template-job/v1";

/// Maximum size of a record.
pub(super) const DOCUMENT_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    Import,
    Build,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It was asked for, and its parts are not all there.
    Waiting,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl JobState {
    pub fn is_over(self) -> bool {
        match self {
            Self::Waiting | Self::Running => false,
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutcome {
    pub at: Timestamp,
    /// Of a job that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateId>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// The step of a build that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// One line of a job's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLine {
    pub at: Timestamp,
    /// The step of a build that it belongs to, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// Whether the program wrote it to its standard error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobDocument {
    pub(super) schema: String,
    pub(super) id: JobId,
    pub(super) kind: JobKind,
    /// The names that the template gets; the first is the job's.
    pub(super) names: Vec<TemplateName>,
    pub(super) created_at: Timestamp,
    pub(super) state: JobState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<JobOutcome>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) lines: Vec<JobLine>,
}

impl JobDocument {
    pub(super) fn new(id: JobId, kind: JobKind, names: Vec<TemplateName>, created_at: Timestamp) -> Self {
        let schema = SCHEMA.to_owned();
        Self { schema, id, kind, names, created_at, state: JobState::Running, outcome: None, lines: Vec::new() }
    }

    /// `None` if it can't be read, or is of a later version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|document: &Self| document.schema == SCHEMA)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("our own types have only text keys")
    }
}
