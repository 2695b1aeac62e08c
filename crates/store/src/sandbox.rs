//! Sandboxes as rows: what each was asked to be, where in its life it is, and how it ended.
//!
//! A row is written before anything is made, so whatever exists on the host has one. What a live sandbox does is its
//! supervisor's to know; a row may lag behind by a moment, and adoption brings it up to date.

mod change;
mod get;
mod insert;
mod list;
mod patch;
mod repeat;

use std::time::Duration;

use rusqlite::Row;
use saggar_domain::{
    BootId, DeadlineAction, EndReason, Labels, NetworkMode, PolicyHash, ProjectId, PublicPorts, SandboxId,
    SandboxState, TemplateName, Timestamp,
};

use crate::column;
use crate::error::Error;
use crate::hash::TokenHash;
use crate::json_text::JsonText;

pub use change::{Change, Changed, LastWords};
pub use insert::{IDEMPOTENCY_RETENTION, Idempotency, IdempotencyKey, Insertion};
pub use list::{SandboxQuery, Scope};
pub use patch::SandboxPatch;

/// A sandbox to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSandbox {
    pub id: SandboxId,
    /// Whose it is.
    pub project: ProjectId,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// How long it may live.
    pub lifetime: Lifetime,
    /// Whether a request to it while it is paused wakes it.
    pub auto_resume: bool,
    /// What it starts from.
    pub template: TemplateName,
    /// How it reaches the network.
    pub network: NetworkMode,
    /// The boot of the host it is made in.
    pub boot_id: BootId,
    pub policy_hash: Option<PolicyHash>,
    /// What its access token hashes to.
    pub access_token_hash: Option<TokenHash>,
    /// Ports that need no token.
    pub public_ports: PublicPorts,
    /// What people find it by.
    pub labels: Labels,
    /// The spec it is made to.
    pub spec: JsonText,
}

/// A sandbox that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// What it was asked to be, with later changes.
    pub asked: NewSandbox,
    /// Where in its life it is.
    pub life: Life,
    /// The process that holds it, once it was started.
    pub supervisor_pid: Option<u32>,
}

/// Where in its life a sandbox is, with what is known from then on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// Acknowledged, not yet usable.
    Creating,
    Running {
        /// When it first was.
        started_at: Timestamp,
        /// Since when it runs: its start, or the last resume.
        since: Timestamp,
    },
    Paused {
        /// When it was first usable.
        started_at: Timestamp,
        /// Since when it is frozen.
        since: Timestamp,
    },
    Ended {
        /// When it was first usable, if it ever was.
        started_at: Option<Timestamp>,
        /// How it ended.
        ending: Ending,
    },
}

impl Life {
    /// The state without what is known of it.
    pub fn state(&self) -> SandboxState {
        match self {
            Self::Creating => SandboxState::Creating,
            Self::Running { .. } => SandboxState::Running,
            Self::Paused { .. } => SandboxState::Paused,
            Self::Ended { .. } => SandboxState::Ended,
        }
    }
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub at: Timestamp,
    pub reason: EndReason,
    /// What its supervisor, or whoever found it, has to say.
    pub detail: Option<JsonText>,
}

/// How long a sandbox may live, and what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// When its time is up; never, if there is none.
    pub deadline: Option<Timestamp>,
    /// What happens then.
    pub on_deadline: DeadlineAction,
    /// For how long it may be left alone.
    pub idle_timeout: Option<Duration>,
}

/// The columns that [`read`] reads.
macro_rules! columns {
    () => {
        "id, project_id, state, state_since, created_at, started_at, ended_at, end_reason, deadline, on_deadline, \
         idle_timeout_ms, auto_resume, template, network, boot_id, supervisor_pid, policy_hash, access_token_hash, \
         public_ports_json, labels_json, spec_json, end_detail_json"
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
            on_deadline: column::parsed(row, "on_deadline", DeadlineAction::parse)?,
            idle_timeout: column::span_optional(row, "idle_timeout_ms")?,
        },
        auto_resume: column::plain(row, "auto_resume")?,
        template: column::parsed(row, "template", TemplateName::parse)?,
        network: column::parsed(row, "network", NetworkMode::parse)?,
        boot_id: column::parsed(row, "boot_id", BootId::parse)?,
        policy_hash: column::parsed_optional(row, "policy_hash", PolicyHash::parse)?,
        access_token_hash: access_token_hash.map(TokenHash::from_bytes),
        public_ports: column::json(row, "public_ports_json")?,
        labels: column::json(row, "labels_json")?,
        spec: column::parsed(row, "spec_json", JsonText::from_column)?,
    };
    Ok(Sandbox { asked, life: read_life(row)?, supervisor_pid: column::plain(row, "supervisor_pid")? })
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
