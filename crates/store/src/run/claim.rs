//! Claims: which worker may drive a run, and when another may take over.
//!
//! A lease lasts until its deadline; then any worker may claim the run. A worker known to be dead holds nothing.
//! Holding a lease is not permission to write: every append also names the epoch, which a claim raises.

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

/// A worker's name, which is new each time the worker starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder(String);

/// Maximum duration of a lease.
pub const LEASE_MAX: Duration = Duration::from_secs(60);

/// Maximum length of a holder's name.
const HOLDER_LEN_MAX: usize = 64;

impl Holder {
    /// Accepts 1 to 64 letters, digits and `-_.`.
    pub fn parse(text: &str) -> Option<Self> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        ((1..=HOLDER_LEN_MAX).contains(&text.len()) && text.bytes().all(is_name)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub from: Uptime,
    /// When another worker may take over. At most [`LEASE_MAX`] later.
    pub until: Uptime,
}

/// The current time by both clocks: timers go by the wall clock, and leases by a monotonic clock that can't be set.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For timers.
    pub wall: Timestamp,
    /// For leases.
    pub uptime: Uptime,
}

/// How many runs to claim.
#[derive(Clone, Copy, Debug)]
pub struct Taking {
    pub most: u32,
    /// How many of these are reserved for projects without a held run, so that one project can't fill a worker.
    pub reserved: u32,
    /// Maximum number of held runs per agent of a project, over all workers.
    pub per_agent: u32,
    /// Maximum number of held runs per project, over all workers.
    pub per_project: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The run as it was before the claim.
    pub run: RunRow,
    /// The epoch to append with.
    pub epoch: u64,
}

impl Store {
    /// Claims due runs that have no holder.
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

    pub async fn runs_held_by(&self, holder: Holder) -> Result<Vec<Claimed>, Error> {
        let work = move |connection: &Connection| {
            let runs = column::all(connection, HELD_BY, [holder.as_str()], read)?;
            Ok(runs.into_iter().map(|run| Claimed { epoch: run.epoch, run }).collect())
        };
        self.read(work).await
    }

    /// Extends every lease of a holder.
    pub async fn renew_leases(&self, holder: Holder, until: Uptime) -> Result<usize, Error> {
        let work =
            move |connection: &Connection| column::execute(connection, RENEW, (holder.as_str(), column::uptime(until)));
        self.write(Durability::Process, work).await
    }

    /// Releases a run, unless it has been claimed again.
    pub async fn release_run(&self, id: RunId, epoch: u64) -> Result<(), Error> {
        let work = move |connection: &Connection| {
            column::execute(connection, RELEASE, (id.as_str(), column::count(epoch))).map(|_| ())
        };
        self.write(Durability::Process, work).await
    }

    /// Marks that a finished run holds nothing any more, so that no worker looks at it again.
    pub async fn let_go_run(&self, id: RunId, epoch: u64) -> Result<(), Error> {
        let work = move |connection: &Connection| {
            column::execute(connection, LET_GO, (id.as_str(), column::count(epoch))).map(|_| ())
        };
        self.write(Durability::Process, work).await
    }

    /// Drops the leases of a dead holder, so that its runs can be claimed at once.
    pub async fn drop_holder(&self, holder: Holder, now: Timestamp) -> Result<usize, Error> {
        let work = move |connection: &Connection| {
            column::execute(connection, DROP_HOLDER, (holder.as_str(), column::millis(now)))
        };
        self.write(Durability::Process, work).await
    }

    /// Whether there is a run to claim. Writes nothing: workers poll this many times a second.
    pub async fn is_run_due(&self, now: Now, taking: Taking) -> Result<bool, Error> {
        self.read(move |connection| Ok(!due(connection, now, taking, 1)?.is_empty())).await
    }

    /// A holder's runs that have unread letters.
    pub async fn runs_with_letters(&self, holder: Holder) -> Result<Vec<RunId>, Error> {
        let work = move |connection: &Connection| {
            column::all(connection, WITH_LETTERS, [holder.as_str()], |row| column::parsed(row, "id", RunId::parse))
        };
        self.read(work).await
    }
}
