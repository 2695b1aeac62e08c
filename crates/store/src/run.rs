//! Runs as rows, and their journals.
//!
//! A run is held by one worker at a time. A claim raises the run's epoch, and every append names the epoch and the
//! head that it continues from. So a worker that was stopped, and wakes up after another has taken over, can't change
//! anything, whatever its clock says. The lease only says when another worker may take over.
//!
//! This module doesn't interpret entries; the engine does.

mod append;
mod blob;
mod block;
mod claim;
mod create;
mod due;
mod files;
mod get;
mod inbox;
mod load;
mod remove;
mod reuse;
pub(crate) mod room;
mod sum;

use rusqlite::Row;
use saggar_domain::{Labels, ProjectId, RunId, RunState, SandboxId, Timestamp};

use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;

pub use append::{Append, Appended, KnownCalls, Summary};
pub(crate) use blob::forget_loose;
pub use blob::{BLOB_BYTES_MAX, BlobHash, Blobs};
pub(crate) use block::block_all;
pub use block::{Block, BlockKind};
pub use claim::{Claimed, Holder, LEASE_MAX, Lease, Now, Taking};
pub use create::{Fork, ForkError, NewRun, RunInsertion};
pub use files::FilesOfRun;
pub use get::RunQuery;
pub(crate) use get::any;
pub use inbox::{InboxError, Letter, LetterRoom, NewLetter};
pub(crate) use load::page;
pub use load::{JOURNAL_PAGE, JournalEntry};
pub use remove::Removal;
pub(crate) use remove::{forget, forget_requests};
pub use reuse::{HandedOn, ReuseNeed, Taken};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    pub id: RunId,
    pub project: ProjectId,
    pub agent: String,
    pub labels: Labels,
    pub state: RunState,
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// The number of its last entry.
    pub head: u64,
    /// The epoch of the current or last holder.
    pub epoch: u64,
    pub holder: Option<Holder>,
    /// When a worker should look at it.
    pub wake_at: Option<Timestamp>,
    /// The first run of its tree.
    pub root: RunId,
    /// For a fork: the run whose history it shares, and up to which entry.
    pub parent: Option<(RunId, u64)>,
    /// The run that started it, and the step of that run that waits for it.
    pub child_of: Option<(RunId, u64)>,
    /// The branch of its tree.
    pub generation: u32,
    /// Since when its open step has been waiting for sandbox capacity.
    pub room_since: Option<Timestamp>,
    pub sandbox: Option<SandboxId>,
    pub outcome: Option<JsonText>,
    /// Its snapshots, and where its files come from.
    pub files: Option<JsonText>,
    /// The files of an earlier run that its sandbox began with.
    pub began_with: Option<HandedOn>,
    /// Why no worker claims it until a human has decided.
    pub block: Option<Block>,
}

/// The columns that [`read`] reads.
macro_rules! columns {
    () => {
        "id, project_id, agent, labels_json, state, created_at, updated_at, head, epoch, holder, wake_at, root_id, parent_id, \
         parent_through, child_of, child_of_step, generation, room_since, sandbox_id, outcome_json, \
         files_json, began_with, began_from, \
         blocked, blocked_reason"
    };
}
use columns;

fn read(row: &Row<'_>) -> Result<RunRow, Error> {
    let parent = column::parsed_optional(row, "parent_id", RunId::parse)?;
    let through = column::number_optional(row, "parent_through")?;
    let child_of = column::parsed_optional(row, "child_of", RunId::parse)?;
    Ok(RunRow {
        id: column::parsed(row, "id", RunId::parse)?,
        project: column::parsed(row, "project_id", ProjectId::parse)?,
        agent: column::plain(row, "agent")?,
        labels: column::json(row, "labels_json")?,
        state: column::parsed(row, "state", RunState::parse)?,
        created_at: column::time(row, "created_at")?,
        updated_at: column::time(row, "updated_at")?,
        head: column::number(row, "head")?,
        epoch: column::number(row, "epoch")?,
        holder: column::parsed_optional(row, "holder", Holder::parse)?,
        wake_at: column::time_optional(row, "wake_at")?,
        root: column::parsed(row, "root_id", RunId::parse)?,
        parent: parent.zip(through),
        child_of: child_of.zip(column::number_optional(row, "child_of_step")?),
        generation: column::plain(row, "generation")?,
        room_since: column::time_optional(row, "room_since")?,
        sandbox: column::parsed_optional(row, "sandbox_id", SandboxId::parse)?,
        outcome: column::parsed_optional(row, "outcome_json", JsonText::from_column)?,
        files: column::parsed_optional(row, "files_json", JsonText::from_column)?,
        began_with: reuse::handed_on(row)?,
        block: block::read(row)?,
    })
}
