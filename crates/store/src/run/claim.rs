//! Taking runs: who may drive one, and until when another must wait.
//!
//! A lease is held until its end, and then anyone may take the run; a worker that is known to be dead holds nothing. Holding a lease is
//! not permission to write: every append also names the epoch, which is raised here.

use std::collections::BTreeMap;

use rusqlite::Connection;
use saggar_domain::{ProjectId, RunId, Timestamp};

use super::{RunRow, columns, read};
use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

/// Due runs that nobody holds, those of projects with the fewest held runs first, then the longest due. ?1 now, ?2 most of an agent, ?3
/// most of a project, ?4 how many.
const DUE: &str = concat!(
    "WITH held AS (SELECT project_id, agent, count(*) AS held FROM run WHERE holder IS NOT NULL AND lease_until > ?1 GROUP BY project_id, agent)
     SELECT ",
    columns!(),
    ", row_number() OVER (PARTITION BY project_id ORDER BY wake_at, id)
          + coalesce((SELECT sum(held) FROM held WHERE held.project_id = run.project_id), 0) AS turn
     FROM run
     WHERE state <> 'finished' AND wake_at IS NOT NULL AND wake_at <= ?1 AND (holder IS NULL OR lease_until <= ?1)
       AND coalesce((SELECT held FROM held WHERE held.project_id = run.project_id AND held.agent = run.agent), 0) < ?2
       AND coalesce((SELECT sum(held) FROM held WHERE held.project_id = run.project_id), 0) < ?3
     ORDER BY turn, wake_at, id LIMIT ?4"
);
const HELD: &str = "
    SELECT project_id, agent, count(*) AS held FROM run WHERE holder IS NOT NULL AND lease_until > ?1
    GROUP BY project_id, agent";
const TAKE: &str = "
    UPDATE run SET holder = ?2, lease_until = ?3, epoch = epoch + 1, updated_at = ?4
    WHERE id = ?1 AND epoch = ?5";
const RENEW: &str = "UPDATE run SET lease_until = ?2 WHERE holder = ?1";
const RELEASE: &str = "
    UPDATE run SET holder = NULL, lease_until = NULL WHERE id = ?1 AND epoch = ?2 AND holder IS NOT NULL";
const DROP_HOLDER: &str = "UPDATE run SET holder = NULL, lease_until = NULL, wake_at = coalesce(min(wake_at, ?2), ?2)
    WHERE holder = ?1 AND state <> 'finished'";
const NEXT_WAKE: &str = "
    SELECT min(wake_at) AS wake_at FROM run WHERE state <> 'finished' AND wake_at IS NOT NULL AND holder IS NULL";

/// Who holds runs: a worker's name, new with each of its lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder(String);

/// Longest name of a holder.
const HOLDER_LEN_MAX: usize = 64;

impl Holder {
    /// Takes 1 to 64 letters, digits and `-_.`.
    pub fn parse(text: &str) -> Option<Self> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        ((1..=HOLDER_LEN_MAX).contains(&text.len()) && text.bytes().all(is_name)).then(|| Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// From when, until when.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Now.
    pub from: Timestamp,
    /// When another may take over.
    pub until: Timestamp,
}

/// How many to take.
#[derive(Clone, Copy, Debug)]
pub struct Taking {
    /// At once.
    pub most: u32,
    /// Of one agent of a project, held by anybody.
    pub per_agent: u32,
    /// Of one project, held by anybody.
    pub per_project: u32,
}

/// A run that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The run, as it was before.
    pub run: RunRow,
    /// The epoch to append with.
    pub epoch: u64,
}

impl Store {
    /// Takes runs that are due and that nobody holds.
    pub async fn claim_due(&self, holder: Holder, lease: Lease, taking: Taking) -> Result<Vec<Claimed>, Error> {
        let work = move |connection: &Connection| {
            let params = (column::millis(lease.from), taking.per_agent, taking.per_project, taking.most);
            let due = column::all(connection, DUE, params, read)?;
            let mut held = held(connection, lease.from)?;
            let mut claimed = Vec::new();
            for run in due {
                // The statement looked at the limits before any of these was taken.
                let of_project: u64 =
                    held.iter().filter(|((other, _), _)| *other == run.project).map(|(_, count)| count).sum();
                let of_agent = held.entry((run.project.clone(), run.agent.clone())).or_default();
                if of_project >= u64::from(taking.per_project) || *of_agent >= u64::from(taking.per_agent) {
                    continue;
                }
                let params = (
                    run.id.as_str(),
                    holder.as_str(),
                    column::millis(lease.until),
                    column::millis(lease.from),
                    column::count(run.epoch),
                );
                if column::execute(connection, TAKE, params)? > 0 {
                    *of_agent += 1;
                    let epoch = run.epoch + 1;
                    claimed.push(Claimed { run, epoch });
                }
            }
            Ok(claimed)
        };
        self.write(Durability::Process, work).await
    }

    /// Prolongs every lease of a holder.
    pub async fn renew_leases(&self, holder: Holder, until: Timestamp) -> Result<usize, Error> {
        let work =
            move |connection: &Connection| column::execute(connection, RENEW, (holder.as_str(), column::millis(until)));
        self.write(Durability::Process, work).await
    }

    /// Gives a run back, unless it was taken meanwhile.
    pub async fn release_run(&self, id: RunId, epoch: u64) -> Result<(), Error> {
        let work = move |connection: &Connection| {
            column::execute(connection, RELEASE, (id.as_str(), column::count(epoch))).map(|_| ())
        };
        self.write(Durability::Process, work).await
    }

    /// A holder is dead: what it held may be taken at once.
    pub async fn drop_holder(&self, holder: Holder, now: Timestamp) -> Result<usize, Error> {
        let work = move |connection: &Connection| {
            column::execute(connection, DROP_HOLDER, (holder.as_str(), column::millis(now)))
        };
        self.write(Durability::Process, work).await
    }

    /// When the next run that nobody holds is due.
    pub async fn next_wake(&self) -> Result<Option<Timestamp>, Error> {
        let work = |connection: &Connection| {
            let found = column::one(connection, NEXT_WAKE, [], |row| column::time_optional(row, "wake_at"))?;
            Ok(found.flatten())
        };
        self.read(work).await
    }
}

/// How many runs of each agent are held.
fn held(connection: &Connection, now: Timestamp) -> Result<BTreeMap<(ProjectId, String), u64>, Error> {
    let rows = column::all(connection, HELD, [column::millis(now)], |row| {
        let project = column::parsed(row, "project_id", ProjectId::parse)?;
        Ok(((project, column::plain(row, "agent")?), column::number(row, "held")?))
    })?;
    Ok(rows.into_iter().collect())
}
