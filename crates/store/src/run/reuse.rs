//! Files that a run leaves for the next run of its agent.
//!
//! ```text
//!   using ──▶ leaving ──▶ left ──▶ over: a later run has taken them
//!     └──────────┴────────────────▶ over: the run keeps them to itself
//! ```
//! A run that needs a sandbox takes what another one has left, in one transaction, so two never take the same. The files are in a
//! snapshot, whose id is stored before it is taken: so whoever goes on for a run that died in between finds it. What isn't taken in
//! time is nobody's, and the snapshot is removed.

use rusqlite::{Connection, Row};
use saggar_domain::{ProjectId, RunId, SnapshotId, Timestamp};

use crate::column;
use crate::error::Error;
use crate::hash::ReuseKey;
use crate::store::Store;
use crate::writer::Durability;

const OWN: &str = "SELECT reuse_state, began_with, began_from, leaves FROM run WHERE id = ?1";
/// The newest: what it has is likely to be used again.
const LEFT: &str = "
    SELECT leaves AS began_with, id AS began_from FROM run INDEXED BY run_by_reuse
    WHERE project_id = ?1 AND reuse_key = ?2 AND reuse_state IS NOT NULL AND reuse_state <> 'over'
        AND reuse_state = 'left' AND leaves_until > ?3 AND removed_at IS NULL
    ORDER BY leaves_until DESC, id LIMIT 1";
/// Whether a run that has completed is about to leave its files. One that ended otherwise leaves none.
const SOON: &str = "
    SELECT 1 AS is_there FROM run INDEXED BY run_by_reuse
    WHERE project_id = ?1 AND reuse_key = ?2 AND reuse_state IS NOT NULL AND reuse_state <> 'over'
        AND reuse_state IN ('using', 'leaving') AND state = 'finished' AND wake_at IS NOT NULL AND removed_at IS NULL
        AND blocked IS NULL AND outcome_json ->> '$.outcome' = 'completed' LIMIT 1";
const BEGIN: &str =
    "UPDATE run SET reuse_key = ?2, reuse_state = 'using', began_with = ?3, began_from = ?4 WHERE id = ?1";
const LEAVE: &str = "
    UPDATE run SET reuse_state = 'leaving', leaves = coalesce(leaves, ?2), leaves_until = ?3
    WHERE id = ?1 AND reuse_state IN ('using', 'leaving')";
const LEFT_NOW: &str =
    "UPDATE run SET reuse_state = 'left', leaves_until = ?2 WHERE id = ?1 AND reuse_state = 'leaving'";
const OVER: &str = "UPDATE run SET reuse_state = 'over' WHERE id = ?1 AND reuse_state IS NOT NULL";
const BEGIN_EMPTY: &str = "UPDATE run SET began_with = NULL, began_from = NULL WHERE id = ?1";
const NEEDED: &str = "
    SELECT leaves AS snapshot, NULL AS needed_by FROM run
    WHERE project_id = ?1 AND removed_at IS NULL
        AND reuse_state IN ('leaving', 'left') AND leaves_until > ?2
    UNION ALL SELECT began_with AS snapshot, id AS needed_by FROM run
    WHERE project_id = ?1 AND removed_at IS NULL AND began_with IS NOT NULL AND state <> 'finished'";

/// Files that one run has left and another one began with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOn {
    pub snapshot: SnapshotId,
    /// The run that left them.
    pub from: RunId,
}

/// What a run gets that asks for files of earlier runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    Files(HandedOn),
    /// There are none.
    Nothing,
    /// A run that has finished is about to leave some.
    Soon,
}

/// A snapshot that is left for later runs, or that a run which isn't over began with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReuseNeed {
    pub snapshot: SnapshotId,
    /// The run that began with it; `None` while it waits for one.
    pub by: Option<RunId>,
}

impl Store {
    /// Takes files that an earlier run left under that key. A run that has asked before gets the same answer.
    pub async fn take_files(
        &self,
        project: ProjectId,
        run: RunId,
        key: ReuseKey,
        now: Timestamp,
    ) -> Result<Taken, Error> {
        self.write(Durability::Process, move |connection| {
            if let Some(own) = own(connection, &run)?.filter(|own| own.state.is_some()) {
                return Ok(own.began.map_or(Taken::Nothing, Taken::Files));
            }
            let (of, hash) = (project.as_str(), &key.as_bytes()[..]);
            let left = column::one(connection, LEFT, (of, hash, column::millis(now)), handed_on)?.flatten();
            if left.is_none() && column::one(connection, SOON, (of, hash), |_| Ok(()))?.is_some() {
                return Ok(Taken::Soon);
            }
            if let Some(left) = &left {
                column::execute(connection, OVER, [left.from.as_str()])?;
            }
            begin(connection, &run, &key, left.as_ref())?;
            Ok(left.map_or(Taken::Nothing, Taken::Files))
        })
        .await
    }

    /// The same for a run that waits no longer for files that another one is about to leave: it has none.
    pub async fn take_no_files(&self, run: RunId, key: ReuseKey) -> Result<(), Error> {
        self.write(Durability::Process, move |connection| match own(connection, &run)? {
            Some(Own { state: Some(_), .. }) => Ok(()),
            _ => begin(connection, &run, &key, None),
        })
        .await
    }

    /// The files that a run took are gone.
    pub async fn begin_with_nothing(&self, run: RunId) -> Result<(), Error> {
        self.write(Durability::Process, move |connection| {
            column::execute(connection, BEGIN_EMPTY, [run.as_str()]).map(drop)
        })
        .await
    }

    /// What a run began with, if it took files of an earlier one.
    pub async fn files_begun_with(&self, run: RunId) -> Result<Option<HandedOn>, Error> {
        self.read(move |connection| Ok(own(connection, &run)?.and_then(|own| own.began))).await
    }

    /// A run that is over begins to leave its files in a snapshot of that id. Returns the id that was stored first; `None` if the run
    /// leaves none, or has left them. If nobody comes to an end with it by then, the snapshot is nobody's.
    pub async fn begin_leaving(
        &self,
        run: RunId,
        snapshot: SnapshotId,
        until: Timestamp,
    ) -> Result<Option<SnapshotId>, Error> {
        self.write(Durability::Process, move |connection| {
            column::execute(connection, LEAVE, (run.as_str(), snapshot.as_str(), column::millis(until)))?;
            let own = own(connection, &run)?;
            Ok(own.filter(|own| own.state.as_deref() == Some("leaving")).and_then(|own| own.leaves))
        })
        .await
    }

    /// The snapshot is there: the next run may take it.
    pub async fn leave_files(&self, run: RunId, until: Timestamp) -> Result<(), Error> {
        self.write(Durability::Process, move |connection| {
            column::execute(connection, LEFT_NOW, (run.as_str(), column::millis(until))).map(drop)
        })
        .await
    }

    /// A run leaves no files for others, also if it was about to.
    pub async fn leave_nothing(&self, run: RunId) -> Result<(), Error> {
        self.write(Durability::Process, move |connection| column::execute(connection, OVER, [run.as_str()]).map(drop))
            .await
    }

    /// The snapshots of a project that are left for later runs, and those that open runs began with.
    pub async fn needed_for_reuse(&self, project: ProjectId, now: Timestamp) -> Result<Vec<ReuseNeed>, Error> {
        self.read(move |connection| {
            column::all(connection, NEEDED, (project.as_str(), column::millis(now)), |row| {
                Ok(ReuseNeed {
                    snapshot: column::parsed(row, "snapshot", SnapshotId::parse)?,
                    by: column::parsed_optional(row, "needed_by", RunId::parse)?,
                })
            })
        })
        .await
    }
}

struct Own {
    state: Option<String>,
    began: Option<HandedOn>,
    leaves: Option<SnapshotId>,
}

fn own(connection: &Connection, run: &RunId) -> Result<Option<Own>, Error> {
    column::one(connection, OWN, [run.as_str()], |row| {
        Ok(Own {
            state: column::plain(row, "reuse_state")?,
            began: handed_on(row)?,
            leaves: column::parsed_optional(row, "leaves", SnapshotId::parse)?,
        })
    })
}

fn begin(connection: &Connection, run: &RunId, key: &ReuseKey, left: Option<&HandedOn>) -> Result<(), Error> {
    let (snapshot, from) = (left.map(|left| left.snapshot.as_str()), left.map(|left| left.from.as_str()));
    column::execute(connection, BEGIN, (run.as_str(), &key.as_bytes()[..], snapshot, from)).map(drop)
}

pub(super) fn handed_on(row: &Row<'_>) -> Result<Option<HandedOn>, Error> {
    let snapshot = column::parsed_optional(row, "began_with", SnapshotId::parse)?;
    let from = column::parsed_optional(row, "began_from", RunId::parse)?;
    Ok(snapshot.zip(from).map(|(snapshot, from)| HandedOn { snapshot, from }))
}
