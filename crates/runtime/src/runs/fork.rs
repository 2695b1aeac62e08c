//! Forks: another run from a run's past, at a step or an entry. It costs the same at any length of that past.

use saggar_domain::RunId;
use saggar_engine::{Body, Entry, Event};
use saggar_store::{Fork, ForkError, RunRow};

use super::bodies::shelve;
use super::handle::Runs;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{now, random};

/// Entries read around one that is looked for: most name a step.
const WINDOW: u32 = 16;

/// Where to fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkAt {
    /// After everything that was recorded of this step.
    Step(u64),
    /// After this entry.
    Entry(u64),
    /// After everything there is.
    End,
}

impl Runs {
    /// Begins a run that has this one's past up to there, and its own future. Files are not restored with it: the fork is marked
    /// logical-only.
    pub async fn fork(&self, permit: &Permit, at: ForkAt, message: Option<Body>) -> Result<RunRow, Fault> {
        permit.check(|action| matches!(action, Action::ForkRun(_)))?;
        let parent = self.row(permit, permit.run()?).await?;
        let through = match at {
            ForkAt::Entry(seq) if parent.outcome.is_some() && seq == parent.head => {
                let what = format!("entry {seq} is the end of run {}: nothing goes on from there", parent.id);
                return Err(no_such(&parent.id, what));
            }
            ForkAt::Entry(seq) => seq,
            ForkAt::End if parent.outcome.is_some() => parent.head.saturating_sub(1),
            ForkAt::End => parent.head,
            ForkAt::Step(step) => self.end_of_step(&parent, step).await?,
        };
        let message = match message {
            Some(message) => Some(shelve(self.store(), message).await?),
            None => None,
        };
        let (id, created_at) = (RunId::from_random(random()), now());
        let fork =
            Fork { project: permit.project().clone(), parent: parent.id.clone(), through, id: id.clone(), created_at };
        let (new, of) = (id.clone(), parent.id.clone());
        let first = move |generation: u32, seq: u64| {
            let event = Event::Forked {
                run: new.clone(),
                parent: of.clone(),
                generation,
                message: message.clone(),
                is_logical_only: true,
                at: created_at,
            };
            Entry::new(seq, event).encode()
        };
        match self.store().fork_run(fork, first).await {
            Ok(_) => {}
            Err(ForkError::NoParent) => return Err(Fault::no_run(&parent.id)),
            Err(error @ ForkError::NoSuchEntry(_)) => return Err(no_such(&parent.id, error.to_string())),
            Err(ForkError::Store(error)) => return Err(error.into()),
        }
        self.hub().wake();
        self.row(permit, &id).await
    }

    /// The last entry of a step. Steps only grow along a journal, so it is found by halving.
    async fn end_of_step(&self, parent: &RunRow, step: u64) -> Result<u64, Fault> {
        let (mut low, mut high) = (0, parent.head);
        // INVARIANT: every entry up to `low` belongs to this step or an earlier one; some entry after `high` to a later one, or none is left.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.first_step_after(parent, middle, high).await? {
                Some((_, found)) if found > step => high = middle,
                Some((seq, _)) => low = seq,
                None => high = middle,
            }
        }
        match self.step_at(parent, low).await? {
            Some(found) if found == step && low > 0 => Ok(low),
            _ => Err(no_such(&parent.id, format!("run {} has no step {step}", parent.id))),
        }
    }

    /// The first entry after `after`, and up to `until`, that names a step.
    async fn first_step_after(&self, run: &RunRow, after: u64, until: u64) -> Result<Option<(u64, u64)>, Fault> {
        let mut after = after;
        while after < until {
            let page = self.store().journal_page(run.id.clone(), after, WINDOW).await?;
            let Some(last) = page.last() else { return Ok(None) };
            for entry in page.iter().filter(|entry| entry.seq <= until) {
                if let Some(step) = step_of(&entry.entry) {
                    return Ok(Some((entry.seq, step)));
                }
            }
            after = last.seq;
        }
        Ok(None)
    }

    async fn step_at(&self, run: &RunRow, seq: u64) -> Result<Option<u64>, Fault> {
        let Some(before) = seq.checked_sub(1) else { return Ok(None) };
        let page = self.store().journal_page(run.id.clone(), before, 1).await?;
        Ok(page.first().and_then(|entry| step_of(&entry.entry)))
    }
}

fn step_of(entry: &str) -> Option<u64> {
    match Entry::decode(entry).ok()?.event {
        Event::StepIntended { step, .. }
        | Event::StepSettled { step, .. }
        | Event::StepFailed { step, .. }
        | Event::StepDelayed { step, .. }
        | Event::StepUnknown { step, .. }
        | Event::StepProbed { step, .. }
        | Event::StepDecided { step, .. }
        | Event::StepAbandoned { step, .. } => Some(step),
        Event::RunStarted { .. }
        | Event::Forked { .. }
        | Event::Claimed { .. }
        | Event::SignalReceived { .. }
        | Event::Paused { .. }
        | Event::Resumed { .. }
        | Event::RunFinished { .. } => None,
    }
}

fn no_such(id: &RunId, what: String) -> Fault {
    Fault::Conflict { what, help: format!("look at the journal of {id} for its steps and entries") }
}
