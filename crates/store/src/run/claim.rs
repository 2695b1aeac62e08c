//! Taking runs: who may drive one, and until when another must wait.
//!
//! A lease is held until its end, and then anyone may take the run; a worker that is known to be dead holds nothing. Holding a lease is
//! not permission to write: every append also names the epoch, which is raised here.

use std::time::Duration;

use rusqlite::Connection;
use saggar_domain::{RunId, Timestamp, Uptime};

use super::due::due;
use super::{RunRow, columns, read};
use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

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

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Until when a holder is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
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
    pub most: u32,
    /// How many of these only go to projects of which no run is held: so that one project can't fill a worker.
    pub reserved: u32,
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
            let now = Now { wall: at, uptime: lease.from };
            let mut claimed = Vec::new();
            for run in due(connection, now, taking, taking.most)? {
                let params = (
                    run.id.as_str(),
                    holder.as_str(),
                    column::uptime(lease.until),
                    column::millis(at),
                    column::count(run.epoch),
                );
                if column::execute(connection, TAKE, params)? > 0 {
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

    /// Whether there is a run to take. Writes nothing: workers look many times a second.
    pub async fn is_run_due(&self, now: Now, taking: Taking) -> Result<bool, Error> {
        self.read(move |connection| Ok(!due(connection, now, taking, 1)?.is_empty())).await
    }

    /// Runs of a holder that somebody has written to.
    pub async fn runs_with_letters(&self, holder: Holder) -> Result<Vec<RunId>, Error> {
        let work = move |connection: &Connection| {
            column::all(connection, WITH_LETTERS, [holder.as_str()], |row| column::parsed(row, "id", RunId::parse))
        };
        self.read(work).await
    }
}
