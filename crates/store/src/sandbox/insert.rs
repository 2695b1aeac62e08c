//! Inserts a sandbox before it is created, or before it is given to its owner, once per idempotency key.
//!
//! The same key with the same request returns the first sandbox for a day, whatever its state. If that sandbox could
//! not be created, the request is carried out again. The same key with a different request is a client error. Keys of
//! different projects are independent.

use std::time::Duration;

use rusqlite::Connection;
use saggar_domain::{NetworkMode, ProjectId, SandboxId, Timestamp};

use super::change::{Change, apply};
use super::{NewSandbox, written_on_deadline, written_spec};
use crate::column;
use crate::error::Error;
use crate::hash::RequestHash;
use crate::run::room::count_live;
use crate::store::Store;
use crate::writer::Durability;

/// How long a key is remembered.
pub const IDEMPOTENCY_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// In bytes.
const KEY_LEN_MAX: usize = 255;

const INSERT: &str = "
    INSERT INTO sandbox (id, project_id, state, state_since, created_at, deadline, on_deadline, idle_timeout_ms, auto_resume,
        template, network, boot_id, policy_hash, access_token_hash, public_ports_json, ingress_json, labels_json, spec_json, env_names_json, rests_at_deadline)
    VALUES (?1, ?2, 'creating', ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)";
const FIND_KEY: &str = "
    SELECT request_hash, sandbox_id,
        EXISTS (SELECT 1 FROM sandbox WHERE id = sandbox_id AND end_reason = 'start_failed') AS came_to_nothing
    FROM idempotency WHERE project_id = ?1 AND key = ?2 AND created_at > ?3";
const INSERT_KEY: &str = "
    INSERT INTO idempotency (project_id, key, request_hash, sandbox_id, created_at) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (project_id, key) DO UPDATE
    SET request_hash = excluded.request_hash, sandbox_id = excluded.sandbox_id, created_at = excluded.created_at";

/// Makes a request idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// The client's key.
    pub key: IdempotencyKey,
    /// Hash of the request, to detect a different request with the same key.
    pub request_hash: RequestHash,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Accepts 1 to 255 visible ASCII characters.
    pub fn parse(text: &str) -> Option<Self> {
        let is_key = (1..=KEY_LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_key.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// Inserted; the caller must create the sandbox.
    Inserted,
    /// The request was made before, and created this sandbox.
    Replayed(SandboxId),
    /// The key was used for a different request.
    Mismatch,
    /// The limit of live sandboxes is reached.
    NoRoom,
}

impl Store {
    /// Inserts a sandbox in state `creating`. [`Error::Missing`] if the project doesn't exist.
    pub async fn insert_sandbox(&self, new: NewSandbox, idempotency: Option<Idempotency>) -> Result<Insertion, Error> {
        self.insert_changed(new, idempotency, None, u64::MAX).await
    }

    /// The same, if fewer than this number have not ended, over all processes that create sandboxes.
    pub async fn insert_sandbox_within(
        &self,
        new: NewSandbox,
        idempotency: Option<Idempotency>,
        capacity: u64,
    ) -> Result<Insertion, Error> {
        self.insert_changed(new, idempotency, None, capacity).await
    }

    /// Inserts a sandbox that already exists, in one commit with its start.
    pub async fn insert_started_sandbox(
        &self,
        new: NewSandbox,
        idempotency: Option<Idempotency>,
        at: Timestamp,
        supervisor_pid: u32,
    ) -> Result<Insertion, Error> {
        self.insert_changed(new, idempotency, Some(Change::Started { at, supervisor_pid }), u64::MAX).await
    }

    async fn insert_changed(
        &self,
        new: NewSandbox,
        idempotency: Option<Idempotency>,
        change: Option<Change>,
        capacity: u64,
    ) -> Result<Insertion, Error> {
        let work = move |connection: &Connection| {
            if let Some(idempotency) = &idempotency
                && let Some(earlier) = find_earlier(connection, &new.project, new.created_at, idempotency)?
            {
                return Ok(earlier);
            }
            if capacity < u64::MAX && count_live(connection)? >= capacity {
                return Ok(Insertion::NoRoom);
            }
            insert(connection, &new)?;
            if let Some(idempotency) = &idempotency {
                remember(connection, &new, idempotency)?;
            }
            if let Some(change) = &change {
                apply(connection, &new.id, change)?;
            }
            Ok(Insertion::Inserted)
        };
        self.write(Durability::Process, work).await
    }
}

/// The object that the key refers to, unless the key has expired. An expired key that has not been deleted yet
/// doesn't count.
pub(super) fn find_earlier(
    connection: &Connection,
    project: &ProjectId,
    now: Timestamp,
    idempotency: &Idempotency,
) -> Result<Option<Insertion>, Error> {
    let oldest = now.before(IDEMPOTENCY_RETENTION);
    let params = (project.as_str(), idempotency.key.as_str(), column::millis(oldest));
    let found = column::one(connection, FIND_KEY, params, |row| {
        let request_hash = RequestHash::from_bytes(column::plain(row, "request_hash")?);
        let sandbox = column::parsed(row, "sandbox_id", SandboxId::parse)?;
        let came_to_nothing: bool = column::plain(row, "came_to_nothing")?;
        Ok(match request_hash == idempotency.request_hash {
            true if came_to_nothing => None,
            true => Some(Insertion::Replayed(sandbox)),
            false => Some(Insertion::Mismatch),
        })
    })?;
    Ok(found.flatten())
}

fn insert(connection: &Connection, new: &NewSandbox) -> Result<(), Error> {
    let template = new.spec.template_name();
    let (on_deadline, rests) = written_on_deadline(new.lifetime.on_deadline);
    let params = rusqlite::params![
        new.id.as_str(),
        new.project.as_str(),
        column::millis(new.created_at),
        new.lifetime.deadline.map(column::millis),
        on_deadline,
        new.lifetime.idle_timeout.map(column::span),
        new.auto_resume,
        template.as_str(),
        new.spec.network.unwrap_or(NetworkMode::None).as_str(),
        new.boot_id.as_str(),
        new.policy_hash.as_ref().map(|hash| hash.as_str()),
        new.access_token_hash.as_ref().map(|hash| hash.as_bytes()),
        column::to_json(&new.public_ports),
        column::to_json(&new.ingress),
        column::to_json(&new.labels),
        column::to_json(&written_spec(&new.spec)),
        column::to_json(&new.env_names),
        rests,
    ];
    column::execute(connection, INSERT, params).map_err(|error| match error {
        Error::Taken { .. } => error.naming("a sandbox of that id"),
        other => other.naming("the project"),
    })?;
    Ok(())
}

fn remember(connection: &Connection, new: &NewSandbox, idempotency: &Idempotency) -> Result<(), Error> {
    let created_at: Timestamp = new.created_at;
    let params = (
        new.project.as_str(),
        idempotency.key.as_str(),
        idempotency.request_hash.as_bytes(),
        new.id.as_str(),
        column::millis(created_at),
    );
    column::execute(connection, INSERT_KEY, params)?;
    Ok(())
}
