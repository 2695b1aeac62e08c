//! Which budget a run waits for, read backwards from its journal.

use saggar_domain::RunState;
use saggar_engine::{BudgetName, Entry, Event};
use saggar_store::RunRow;

use super::damage::unreadable;
use super::handle::Runs;
use super::stored_agent::agent_of_entry;
use crate::fault::Fault;
use crate::permit::{Action, Permit};

/// Entries read at once while going backwards.
const WINDOW: u64 = 16;

impl Runs {
    /// The budget that a person has to raise, so that the run goes on; `None` if it doesn't wait for that.
    pub async fn out_of_budget(&self, permit: &Permit, row: &RunRow) -> Result<Option<BudgetName>, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        if row.state != RunState::Parked {
            return Ok(None);
        }
        let mut until = row.head;
        while until > 0 {
            let after = until.saturating_sub(WINDOW);
            let (mut page, mut from) = (Vec::new(), after);
            // A page ends with a parent's history, so it may be shorter than requested.
            while from < until {
                let more = self.store().journal_page(row.id.clone(), from, (until - from) as u32).await;
                let more = more.map_err(|error| Fault::of_run(&row.id, error))?;
                let Some(last) = more.last() else { break };
                from = last.seq;
                page.extend(more);
            }
            for entry in page.iter().rev().filter(|entry| entry.seq <= until) {
                if agent_of_entry(entry.seq, &entry.entry).is_some() {
                    return Ok(None);
                }
                let decoded = Entry::decode(&entry.entry);
                match decoded.map_err(|error| unreadable(&row.id, entry.seq, error))?.event {
                    Event::BudgetReached { budget, note: None, .. } => return Ok(Some(budget)),
                    // Nothing else happens while a run waits for this.
                    Event::Claimed { .. }
                    | Event::Priced { .. }
                    | Event::SandboxCalled { .. }
                    | Event::SignalReceived { .. }
                    | Event::Paused { .. }
                    | Event::Resumed { .. } => {}
                    _ => return Ok(None),
                }
            }
            until = after;
        }
        Ok(None)
    }
}
