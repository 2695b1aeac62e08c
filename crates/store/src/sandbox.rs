//! Sandboxes as rows: the request, the state, and how each ended.
//!
//! A row is written before the sandbox is created, so everything that exists on the host has one. The supervisor owns
//! the state of a live sandbox; a row may lag behind it, and adoption updates it.

mod change;
mod egress;
mod get;
mod insert;
mod list;
mod patch;
mod repeat;
mod template;

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::Row;
use saggar_domain::{
    BootId, DeadlineAction, Draft, EndReason, EnvDraft, Ingress, Labels, NetworkMode, PolicyHash, ProjectId,
    PublicPorts, SandboxId, SandboxState, TemplateName, Timestamp,
};

use crate::column;
use crate::error::Error;
use crate::hash::TokenHash;
use crate::json_text::JsonText;

pub use change::{Change, Changed, LastWords};
pub use insert::{IDEMPOTENCY_RETENTION, Idempotency, IdempotencyKey, Insertion};
pub use list::{SandboxQuery, Scope};
pub use patch::SandboxPatch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSandbox {
    pub id: SandboxId,
    pub project: ProjectId,
    pub created_at: Timestamp,
    pub lifetime: Lifetime,
    /// Whether a request resumes it while it is paused.
    pub auto_resume: bool,
    /// The host's boot id.
    pub boot_id: BootId,
    pub policy_hash: Option<PolicyHash>,
    pub access_token_hash: Option<TokenHash>,
    /// Ports that need no token.
    pub public_ports: PublicPorts,
    pub ingress: Ingress,
    pub labels: Labels,
    /// The environment is not stored: it may contain secrets.
    pub spec: Draft,
    /// The names of the environment.
    pub env_names: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// The request, with later changes.
    pub asked: NewSandbox,
    pub life: Life,
    /// Known once it was started.
    pub supervisor_pid: Option<u32>,
}

/// The state of a sandbox, with what is known in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// Acknowledged, not yet usable.
    Creating,
    Running {
        /// When it first ran.
        started_at: Timestamp,
        /// Since when it has been running: its start, or the last resume.
        since: Timestamp,
    },
    Paused {
        /// When it first ran.
        started_at: Timestamp,
        /// Since when it has been frozen.
        since: Timestamp,
    },
    Ended {
        /// When it first ran, if it ever did.
        started_at: Option<Timestamp>,
        ending: Ending,
    },
}

impl Life {
    pub fn state(&self) -> SandboxState {
        match self {
            Self::Creating => SandboxState::Creating,
            Self::Running { .. } => SandboxState::Running,
            Self::Paused { .. } => SandboxState::Paused,
            Self::Ended { .. } => SandboxState::Ended,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub at: Timestamp,
    pub reason: EndReason,
    /// Details from its supervisor, or from the process that found it dead.
    pub detail: Option<JsonText>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// `None` means never.
    pub deadline: Option<Timestamp>,
    pub on_deadline: DeadlineAction,
    /// Maximum time without activity.
    pub idle_timeout: Option<Duration>,
}

/// The columns that [`read`] reads.
macro_rules! columns {
    () => {
        "id, project_id, state, state_since, created_at, started_at, ended_at, end_reason, deadline, on_deadline, \
         rests_at_deadline, idle_timeout_ms, auto_resume, template, network, boot_id, supervisor_pid, policy_hash, access_token_hash, \
         public_ports_json, ingress_json, labels_json, spec_json, env_names_json, end_detail_json"
    };
}
use columns;

fn read(row: &Row<'_>) -> Result<Sandbox, Error> {
    let access_token_hash: Option<[u8; 32]> = column::plain(row, "access_token_hash")?;
    let asked = NewSandbox {
        id: column::parsed(row, "id", SandboxId::parse)?,
        project: column::parsed(row, "project_id", ProjectId::parse)?,
        created_at: column::time(row, "created_at")?,
        lifetime: Lifetime {
            deadline: column::time_optional(row, "deadline")?,
            on_deadline: read_on_deadline(row)?,
            idle_timeout: column::span_optional(row, "idle_timeout_ms")?,
        },
        auto_resume: column::plain(row, "auto_resume")?,
        boot_id: column::parsed(row, "boot_id", BootId::parse)?,
        policy_hash: column::parsed_optional(row, "policy_hash", PolicyHash::parse)?,
        access_token_hash: access_token_hash.map(TokenHash::from_bytes),
        public_ports: column::json(row, "public_ports_json")?,
        ingress: column::json(row, "ingress_json")?,
        labels: column::json(row, "labels_json")?,
        spec: read_spec(row)?,
        env_names: column::json(row, "env_names_json")?,
    };
    Ok(Sandbox { asked, life: read_life(row)?, supervisor_pid: column::plain(row, "supervisor_pid")? })
}

/// The two columns that say what happens at the deadline.
fn written_on_deadline(action: DeadlineAction) -> (&'static str, bool) {
    (action.of_supervisor().as_str(), action == DeadlineAction::Rest)
}

fn read_on_deadline(row: &Row<'_>) -> Result<DeadlineAction, Error> {
    let action = column::parsed(row, "on_deadline", DeadlineAction::parse)?;
    let rests: bool = column::plain(row, "rests_at_deadline")?;
    Ok(if rests && action == DeadlineAction::Pause { DeadlineAction::Rest } else { action })
}

/// What has a column of its own is read from there.
fn read_spec(row: &Row<'_>) -> Result<Draft, Error> {
    let spec: Draft = column::json(row, "spec_json")?;
    Ok(Draft {
        template: Some(column::parsed(row, "template", TemplateName::parse)?),
        network: Some(column::parsed(row, "network", NetworkMode::parse)?),
        ..spec
    })
}

/// The spec as its column holds it. Without the template, as it always was: an earlier version finds that in its own column alone.
fn written_spec(spec: &Draft) -> Draft {
    Draft { env: EnvDraft::default(), template: None, ..spec.clone() }
}

fn read_life(row: &Row<'_>) -> Result<Life, Error> {
    let since = column::time(row, "state_since")?;
    let started_at = column::time_optional(row, "started_at")?;
    let started = || started_at.ok_or_else(|| column::damaged("started_at"));
    Ok(match column::parsed(row, "state", SandboxState::parse)? {
        SandboxState::Creating => Life::Creating,
        SandboxState::Running => Life::Running { started_at: started()?, since },
        SandboxState::Paused => Life::Paused { started_at: started()?, since },
        // What is being ended is no row's affair: it stays what it was until it is over.
        SandboxState::Ending => return Err(column::damaged("state")),
        SandboxState::Ended => {
            let ending = Ending {
                at: column::time(row, "ended_at")?,
                reason: column::parsed(row, "end_reason", |text| Some(EndReason::parse(text)))?,
                detail: column::parsed_optional(row, "end_detail_json", JsonText::from_column)?,
            };
            Life::Ended { started_at, ending }
        }
    })
}
