//! The files of a run at a place in its journal: which snapshot they are in, and which changes it lacks.
//!
//! INVARIANT: nothing else is open while a snapshot is taken. So one belongs to the history up to an entry exactly if its
//! step comes before the last one that is settled there, or is that one.

use saggar_engine::{Effect, Entry, Event, KeptFiles, Restored, RestoredAt, RunFiles, Settled};
use saggar_store::RunRow;

use super::damage::unreadable;
use super::fork::OpenCall;
use super::handle::Runs;
use super::stored_agent::agent_of_entry;
use super::tools::{Needs, Tool};
use crate::fault::Fault;

/// Entries read at once.
const WINDOW: u32 = 64;

impl Runs {
    /// The files that a history up to an entry goes on with, if they are in a snapshot. Calls that are done again count
    /// as not done.
    pub(super) async fn files_at(
        &self,
        row: &RunRow,
        through: u64,
        does_again: &[OpenCall],
    ) -> Result<Option<RunFiles>, Fault> {
        let files = files_of(row)?;
        if files.kept.is_empty() {
            return Ok(None);
        }
        let (last, bound) = self.last_steps(row, through).await?;
        let Some(kept) = files.at(bound).cloned() else { return Ok(None) };
        let older_from = self.changed_since(row, &kept, through, does_again).await?;
        let files = Restored { from: Some(kept.clone()), older_from };
        Ok(Some(RunFiles { kept: vec![kept], restored: Some(RestoredAt { after: last, files }) }))
    }

    /// The last step up to an entry, and the last one by which a snapshot must have been taken to belong to it.
    async fn last_steps(&self, row: &RunRow, through: u64) -> Result<(u64, u64), Fault> {
        let mut until = through;
        while until > 0 {
            let after = until.saturating_sub(u64::from(WINDOW));
            for (_, event) in self.events_between(row, after, until).await?.iter().rev() {
                match event {
                    Event::StepSettled { step, .. } => return Ok((*step, *step)),
                    Event::RolledBack { to, .. } => return Ok((*to, *to)),
                    event => {
                        if let Some(step) = event.step() {
                            return Ok((step, step - 1));
                        }
                    }
                }
            }
            until = after;
        }
        Ok((0, 0))
    }

    /// The first step after a snapshot whose changes it lacks.
    async fn changed_since(
        &self,
        row: &RunRow,
        kept: &KeptFiles,
        through: u64,
        does_again: &[OpenCall],
    ) -> Result<Option<u64>, Fault> {
        let mut after = self.find_end_of_step(row, kept.step).await?.unwrap_or(0);
        let mut since = None;
        while after < through {
            let until = through.min(after + u64::from(WINDOW));
            for (_, event) in self.events_between(row, after, until).await? {
                match event {
                    Event::StepIntended { step, attempt: 1, effect: Effect::CallTool { call }, .. }
                        if uses_sandbox(&call.tool) && !does_again.iter().any(|open| open.step == step) =>
                    {
                        since = since.or(Some(step));
                    }
                    // From here on the files are those of a snapshot again.
                    Event::RolledBack { files, .. } | Event::Forked { files: Some(files), .. } => {
                        since = files.older_from
                    }
                    Event::StepSettled { result: Settled::Returned(result), .. } => {
                        if let Some(files) = result.restored {
                            since = files.older_from;
                        }
                    }
                    _ => {}
                }
            }
            after = until;
        }
        Ok(since)
    }

    /// What follows that entry, up to the other. A run's first entry is left out: it may be stored elsewhere.
    async fn events_between(&self, row: &RunRow, after: u64, until: u64) -> Result<Vec<(u64, Event)>, Fault> {
        let (mut from, mut events) = (after, Vec::new());
        // A page ends with a parent's history, so it may be shorter than requested.
        while from < until {
            let limit = u32::try_from(until - from).unwrap_or(u32::MAX);
            let page = self.store().journal_page(row.id.clone(), from, limit).await;
            let page = page.map_err(|error| Fault::of_run(&row.id, error))?;
            let Some(last) = page.last() else { break };
            from = last.seq;
            for entry in page.iter().filter(|entry| agent_of_entry(entry.seq, &entry.entry).is_none()) {
                let decoded = Entry::decode(&entry.entry).map_err(|error| unreadable(&row.id, entry.seq, error))?;
                events.push((entry.seq, decoded.event));
            }
        }
        Ok(events)
    }
}

/// What a row says about its run's files.
pub(super) fn files_of(row: &RunRow) -> Result<RunFiles, Fault> {
    let read = row.files.as_ref().map(saggar_store::JsonText::to_value).transpose();
    Ok(read.map_err(|error| Fault::internal("reading a run's files", error))?.unwrap_or_default())
}

/// Whether the calls of a tool may change the files of the run's sandbox.
pub(super) fn uses_sandbox(tool: &str) -> bool {
    Tool::find(tool).is_some_and(|tool| tool.needs == Needs::Sandbox)
}
