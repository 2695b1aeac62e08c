//! Taking runs: who may drive one, and until when another must wait.
//!
//! A lease is held until its end, and then anyone may take the run; a worker that is known to be dead holds nothing. Holding a lease is
//! not permission to write: every append also names the epoch, which is raised here.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::Connection;
use saggar_domain::{ProjectId, RunId, Timestamp, Uptime};

use super::{RunRow, columns, read};
use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

/// Due runs that nobody holds, finished ones that still hold something among them; those of projects with the fewest held runs first, then
/// the longest due. ?1 now, ?2 most of an agent, ?3 most of a project, ?4 how many, ?5 now by the clock of leases, ?6 the latest end that a
/// lease can have by it: one that ends later was given in an earlier boot, whose processes are all dead.
const DUE: &str = concat!(
    "WITH held AS (SELECT project_id, agent, count(*) AS held FROM run WHERE holder IS NOT NULL AND lease_until > ?5 AND lease_until <= ?6 GROUP BY project_id, agent)
     SELECT ",
    columns!(),
    ", row_number() OVER (PARTITION BY project_id ORDER BY wake_at, id)
          + coalesce((SELECT sum(held) FROM held WHERE held.project_id = run.project_id), 0) AS turn
     FROM run
     WHERE wake_at IS NOT NULL AND blocked IS NULL AND wake_at <= ?1
       AND (holder IS NULL OR lease_until <= ?5 OR lease_until > ?6)
       AND coalesce((SELECT held FROM held WHERE held.project_id = run.project_id AND held.agent = run.agent), 0) < ?2
       AND coalesce((SELECT sum(held) FROM held WHERE held.project_id = run.project_id), 0) < ?3
     ORDER BY turn, wake_at, id LIMIT ?4"
);
const HELD: &str = "
    SELECT project_id, agent, count(*) AS held FROM run
    WHERE holder IS NOT NULL AND lease_until > ?1 AND lease_until <= ?2
    GROUP BY project_id, agent";
const TAKE: &str = "
    UPDATE run SET holder = ?2, lease_until = ?3, epoch = epoch + 1, updated_at = ?4
    WHERE id = ?1 AND epoch = ?5";
const RENEW: &str = "UPDATE run SET lease_until = ?2 WHERE holder = ?1";
const RELEASE: &str = "
    UPDATE run SET holder = NULL, lease_until = NULL WHERE id = ?1 AND epoch = ?2 AND holder IS NOT NULL";
const LET_GO: &str = "
    UPDATE run SET holder = NULL, lease_until = NULL, wake_at = NULL
    WHERE id = ?1 AND epoch = ?2 AND state = 'finished'";
const DROP_HOLDER: &str = "UPDATE run SET holder = NULL, lease_until = NULL, wake_at = coalesce(min(wake_at, ?2), ?2)
    WHERE holder = ?1";
const HELD_BY: &str = concat!("SELECT ", columns!(), " FROM run WHERE holder = ?1");
const IS_DUE: &str = "
    SELECT 1 AS is_due FROM run WHERE wake_at IS NOT NULL AND blocked IS NULL AND wake_at <= ?1
        AND (holder IS NULL OR lease_until <= ?2 OR lease_until > ?3)
    LIMIT 1";
const WITH_LETTERS: &str = "
    SELECT id FROM run WHERE holder = ?1 AND EXISTS (SELECT 1 FROM inbox WHERE inbox.run_id = run.id)";

/// Who holds runs: a worker's name, new with each of its lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder(String);

/// The longest lease.
pub const LEASE_MAX: Duration = Duration::from_secs(60);

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

/// Until when a holder is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Now.
    pub from: Uptime,
    /// When another may take over. At most [`LEASE_MAX`] later.
    pub until: Uptime,
}

/// Now, by both clocks: what is due is due by the wall clock, and who holds it holds it by one that nobody sets.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// What timers are due by.
    pub wall: Timestamp,
    /// What leases are judged by.
    pub uptime: Uptime,
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
    pub async fn claim_due(
        &self,
        holder: Holder,
        at: Timestamp,
        lease: Lease,
        taking: Taking,
    ) -> Result<Vec<Claimed>, Error> {
        let work = move |connection: &Connection| {
            let (now, latest) = (column::uptime(lease.from), column::uptime(lease.from.after(LEASE_MAX)));
            let params = (column::millis(at), taking.per_agent, taking.per_project, taking.most, now, latest);
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
                    column::uptime(lease.until),
                    column::millis(at),
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

    /// What a holder has taken.
    pub async fn runs_held_by(&self, holder: Holder) -> Result<Vec<Claimed>, Error> {
        let work = move |connection: &Connection| {
            let runs = column::all(connection, HELD_BY, [holder.as_str()], read)?;
            Ok(runs.into_iter().map(|run| Claimed { epoch: run.epoch, run }).collect())
        };
        self.read(work).await
    }

    /// Prolongs every lease of a holder.
    pub async fn renew_leases(&self, holder: Holder, until: Uptime) -> Result<usize, Error> {
        let work =
            move |connection: &Connection| column::execute(connection, RENEW, (holder.as_str(), column::uptime(until)));
        self.write(Durability::Process, work).await
    }

    /// Gives a run back, unless it was taken meanwhile.
    pub async fn release_run(&self, id: RunId, epoch: u64) -> Result<(), Error> {
        let work = move |connection: &Connection| {
            column::execute(connection, RELEASE, (id.as_str(), column::count(epoch))).map(|_| ())
        };
        self.write(Durability::Process, work).await
    }

    /// A run that has finished holds nothing any more: nobody has to look at it again.
    pub async fn let_go_run(&self, id: RunId, epoch: u64) -> Result<(), Error> {
        let work = move |connection: &Connection| {
            column::execute(connection, LET_GO, (id.as_str(), column::count(epoch))).map(|_| ())
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

    /// Whether there is a run that is due and that nobody holds; limits apart.
    pub async fn is_run_due(&self, now: Now) -> Result<bool, Error> {
        let work = move |connection: &Connection| {
            let latest = now.uptime.after(LEASE_MAX);
            let params = (column::millis(now.wall), column::uptime(now.uptime), column::uptime(latest));
            Ok(column::one(connection, IS_DUE, params, |_| Ok(()))?.is_some())
        };
        self.read(work).await
    }

    /// Runs of a holder that somebody has written to.
    pub async fn runs_with_letters(&self, holder: Holder) -> Result<Vec<RunId>, Error> {
        let work = move |connection: &Connection| {
            column::all(connection, WITH_LETTERS, [holder.as_str()], |row| column::parsed(row, "id", RunId::parse))
        };
        self.read(work).await
    }
}

/// How many runs of each agent are held.
fn held(connection: &Connection, now: Uptime) -> Result<BTreeMap<(ProjectId, String), u64>, Error> {
    let rows = column::all(connection, HELD, [column::uptime(now), column::uptime(now.after(LEASE_MAX))], |row| {
        let project = column::parsed(row, "project_id", ProjectId::parse)?;
        Ok(((project, column::plain(row, "agent")?), column::number(row, "held")?))
    })?;
    Ok(rows.into_iter().collect())
}
