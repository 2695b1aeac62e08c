//! Forks: a new run from a run's history, at a step or an entry. The cost doesn't depend on the length of the
//! history.

use saggar_domain::RunId;
use saggar_engine::{Body, Entry, Event, Restored};
use saggar_store::{Fork, ForkError, JsonText, RunRow};

use super::bodies::shelve;
use super::handle::Runs;
use super::standing::Standing;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{now, random};

/// Entries read around a searched one: most name a step.
const WINDOW: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkAt {
    /// After all entries of this step.
    Step(u64),
    /// After this entry.
    Entry(u64),
    /// After the last entry.
    End,
}

#[derive(Clone, Debug)]
pub struct Forked {
    /// The new run.
    pub row: RunRow,
    /// The calls that were open at the fork, which the fork repeats.
    pub does_again: Vec<OpenCall>,
    /// The files that it begins with; `None` if they are in no snapshot.
    pub files: Option<Restored>,
}

/// A call that was open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCall {
    /// The number of the step in the original run.
    pub step: u64,
    /// The tool that was called, or `model`.
    pub tool: String,
}

impl Runs {
    /// Starts a run that shares this one's history up to there. Its files are those of the newest snapshot before; without
    /// one, the fork is marked logical-only.
    ///
    /// Calls that are open there are repeated by the fork, with keys of its own. If that could do harm, the fork is
    /// refused: a human decides first, or forks before that step.
    pub async fn fork(&self, permit: &Permit, at: ForkAt, message: Option<Body>) -> Result<Forked, Fault> {
        permit.check(|action| matches!(action, Action::ForkRun(_)))?;
        let parent = self.row(permit, permit.run()?).await?;
        let through = match at {
            ForkAt::Entry(seq) if parent.outcome.is_some() && seq == parent.head => {
                let what = format!("entry {seq} is the end of run {}: a fork can't continue from there", parent.id);
                return Err(no_such(&parent.id, what));
            }
            ForkAt::Entry(seq) => seq,
            ForkAt::End if parent.outcome.is_some() => parent.head.saturating_sub(1),
            ForkAt::End => parent.head,
            ForkAt::Step(step) => self.end_of_step(&parent, step).await?,
        };
        let (through, does_again) = self.open_calls(&parent, through).await?;
        let files = self.files_at(&parent, through, &does_again).await?;
        let message = match message {
            Some(message) => Some(shelve(self.store(), message).await?),
            None => None,
        };
        let (id, created_at) = (RunId::from_random(random()), now());
        let stored = files.as_ref().and_then(JsonText::of);
        let files = files.and_then(|files| files.restored).map(|restored| restored.files);
        let project = permit.project().clone();
        let fork = Fork { project, parent: parent.id.clone(), through, id: id.clone(), created_at, files: stored };
        let (new, of, begins_with) = (id.clone(), parent.id.clone(), files.clone());
        let first = move |generation: u32, seq: u64| {
            let event = Event::Forked {
                run: new.clone(),
                parent: of.clone(),
                generation,
                message: message.clone(),
                is_logical_only: begins_with.is_none(),
                does_again: true,
                files: begins_with.clone(),
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
        Ok(Forked { row: self.row(permit, &id).await?, does_again, files })
    }

    /// The position to cut the history at, and the calls that are open there.
    async fn open_calls(&self, parent: &RunRow, through: u64) -> Result<(u64, Vec<OpenCall>), Fault> {
        let mut through = through;
        let mut turn = self.turn(parent, through).await?;
        // Steps that were abandoned at the run's end are open in a history without that end.
        let is_abandoned = |standing: &&Standing| matches!(standing.last, Event::StepAbandoned { .. });
        if let Some(seq) = turn.iter().filter(is_abandoned).map(|standing| standing.seq).min() {
            through = seq - 1;
            turn = self.turn(parent, through).await?;
        }
        let mut open = Vec::new();
        for standing in turn.iter().filter(|standing| standing.is_open()) {
            open.push(may_do_again(parent, standing)?);
        }
        Ok((through, open))
    }

    async fn end_of_step(&self, parent: &RunRow, step: u64) -> Result<u64, Fault> {
        let found = self.find_end_of_step(parent, step).await?;
        found.ok_or_else(|| no_such(&parent.id, format!("run {} has no step {step}", parent.id)))
    }

    /// The last entry of a step, if it exists. Model calls are alone, so a step's entries lie between two of them; a
    /// binary search finds a place among these, because the numbers of one turn are all above those of the turn before.
    pub(super) async fn find_end_of_step(&self, parent: &RunRow, step: u64) -> Result<Option<u64>, Fault> {
        let (mut low, mut high) = (0, parent.head);
        // INVARIANT: the entry at `low` belongs to this step, to an earlier one, or to none; after `high` comes an entry
        // of a later step, or none.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.first_step_after(parent, middle, high).await? {
                Some((_, found)) if found > step => high = middle,
                Some((seq, _)) => low = seq,
                None => high = middle,
            }
        }
        match self.last_of_step_after(parent, low, step).await? {
            Some(seq) => Ok(Some(seq)),
            None => {
                let turn = self.turn(parent, low).await?;
                Ok(turn.iter().find(|standing| standing.step == step).map(|standing| standing.seq))
            }
        }
    }

    /// The last entry of that step in what follows of the turn.
    async fn last_of_step_after(&self, run: &RunRow, after: u64, step: u64) -> Result<Option<u64>, Fault> {
        let (mut after, mut found) = (after, None);
        loop {
            let page = self.store().journal_page(run.id.clone(), after, WINDOW).await;
            let page = page.map_err(|error| Fault::of_run(&run.id, error))?;
            let Some(last) = page.last() else { return Ok(found) };
            for entry in &page {
                let Ok(Entry { event, .. }) = Entry::decode(&entry.entry) else { continue };
                match event {
                    Event::StepIntended { step: next, effect, .. } if next > step && effect.is_of_model() => {
                        return Ok(found);
                    }
                    event if event.step() == Some(step) => found = Some(entry.seq),
                    _ => {}
                }
            }
            after = last.seq;
        }
    }

    /// The first entry after `after`, and up to `until`, that names a step.
    async fn first_step_after(&self, run: &RunRow, after: u64, until: u64) -> Result<Option<(u64, u64)>, Fault> {
        let mut after = after;
        while after < until {
            let page = self.store().journal_page(run.id.clone(), after, WINDOW).await;
            let page = page.map_err(|error| Fault::of_run(&run.id, error))?;
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
}

/// The call of an open step, which a fork repeats; or why it must not.
fn may_do_again(parent: &RunRow, standing: &Standing) -> Result<OpenCall, Fault> {
    let (step, tool) = (standing.step, standing.what().to_owned());
    if let Some(why) = standing.undecided() {
        let before = match step {
            1 => "fork it later".to_owned(),
            _ => format!(
                "or fork before it, so that the fork calls {tool} itself: saggar runs fork {} --at {}",
                parent.id,
                step - 1
            ),
        };
        let what = format!("step {step} ({tool}) of run {} {why}: a fork can't continue from there", parent.id);
        let decide = match standing.parked() {
            Some(_) if parent.outcome.is_none() => {
                format!("decide it first: saggar runs decide {} {step} retry|done|abandon; or ", parent.id)
            }
            _ => String::new(),
        };
        return Err(Fault::Conflict { what, help: format!("{decide}{before}") });
    }
    Ok(OpenCall { step, tool })
}

fn step_of(entry: &str) -> Option<u64> {
    Entry::decode(entry).ok()?.event.step()
}

fn no_such(id: &RunId, what: String) -> Fault {
    Fault::Conflict { what, help: format!("see the journal of {id} for its steps and entries") }
}
