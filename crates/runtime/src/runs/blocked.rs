//! What a human can do about a blocked run: let it continue, or end it.

use saggar_domain::{ProjectId, RunId};
use saggar_engine::{ChildEnd, Run, RunOutcome, Spending};
use saggar_store::{Block, BlockKind, JsonText, LetterRoom, NewLetter, PageLimit, RunQuery, RunRow};

use super::family::child_end_id;
use super::handle::Runs;
use super::instruction::Instruction;
use super::stored_agent::read_entry;
use crate::fault::Fault;
use crate::sandboxes::{now, random};

/// What remains to be done after an instruction to a blocked run.
pub(super) enum Blocked {
    /// It stays in the run's inbox.
    Waits,
    /// The block is lifted once it is in the run's inbox.
    Lifted,
    /// Nothing.
    Done,
}

impl Runs {
    /// The effect of an instruction on a blocked run.
    pub(super) async fn tell_blocked(
        &self,
        row: &RunRow,
        block: &Block,
        instruction: &Instruction,
    ) -> Result<Blocked, Fault> {
        match (instruction, block.kind) {
            (
                Instruction::Signal { .. }
                | Instruction::Raise { .. }
                | Instruction::Pause
                | Instruction::ChildEnded(_),
                _,
            ) => Ok(Blocked::Waits),
            (Instruction::Resume, _) => Ok(Blocked::Lifted),
            (Instruction::Decide { .. } | Instruction::RollBack { .. }, _) => Err(Fault::Conflict {
                what: format!("run {} is blocked: {}", row.id, block.reason),
                help: "resume it first, or cancel it".to_owned(),
            }),
            (Instruction::Cancel, BlockKind::Restored) => {
                // All descendants get the letter before any of them can continue.
                for below in self.store().blocked_below(row.id.clone()).await?.into_iter().filter(|id| *id != row.id) {
                    self.cancel_below(row.project.clone(), below).await?;
                }
                Ok(Blocked::Lifted)
            }
            (Instruction::Cancel, BlockKind::Damaged) => self.end_damaged(row).await.map(|()| Blocked::Done),
        }
    }

    /// Unblocks a run and its descendants.
    pub(super) async fn lift(&self, run: &RunId) -> Result<(), Fault> {
        self.store().unblock(run.clone(), now()).await?;
        self.hub().wake();
        Ok(())
    }

    async fn cancel_below(&self, project: ProjectId, run: RunId) -> Result<(), Fault> {
        let id = format!("{:032x}", u128::from_ne_bytes(random()));
        let body = Instruction::Cancel.encode().expect("it is short");
        match self.store().put_letter(NewLetter { project, run, id, at: now(), body }, LetterRoom::Unbounded).await {
            Err(saggar_store::InboxError::Store(error)) => Err(error.into()),
            // A run that is over, gone, or has a full inbox needs no letter: it ends with its parent.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Ends a run whose journal can't be read, and tells the run that waits for it.
    async fn end_damaged(&self, row: &RunRow) -> Result<(), Fault> {
        let word = match &row.child_of {
            None => None,
            Some((parent, _)) => {
                let spent = self.set_aside(parent, &row.id).await;
                let end = ChildEnd { child: row.id.clone(), outcome: RunOutcome::Cancelled, spent };
                let body = Instruction::ChildEnded(end).encode().expect("it is short");
                let (project, run, id) = (row.project.clone(), parent.clone(), child_end_id(&row.id));
                Some(NewLetter { project, run, id, at: now(), body })
            }
        };
        // First, so that a crash in between leaves a run that can be cancelled again.
        let children =
            RunQuery { child_of: Some(row.id.clone()), limit: PageLimit::MAX, ..RunQuery::new(row.project.clone()) };
        for child in self.store().runs(children).await?.items.into_iter().filter(|child| child.outcome.is_none()) {
            self.cancel_below(child.project, child.id).await?;
        }
        let outcome = JsonText::of(&RunOutcome::Cancelled).expect("it is short");
        if !self.store().end_damaged(row.project.clone(), row.id.clone(), outcome, now(), word).await? {
            return Err(Fault::Conflict {
                what: format!("run {} is no longer blocked", row.id),
                help: "read it again".to_owned(),
            });
        }
        if let Some((parent, _)) = &row.child_of {
            self.hub().letter(parent);
        }
        self.hub().wake();
        Ok(())
    }

    /// What a run has reserved for a child that it waits for. The spending of a child with a damaged journal is
    /// unknown, so all of it counts.
    async fn set_aside(&self, parent: &RunId, child: &RunId) -> Spending {
        let mut run = Run::new();
        let mut after = 0;
        while let Ok(page) = self.store().journal_after(parent.clone(), after).await {
            let Some(last) = page.last() else { break };
            after = last.seq;
            for entry in &page {
                if let Ok(Ok(entry)) = read_entry(self.store(), entry.seq, &entry.entry).await {
                    run.apply(&entry.event);
                }
            }
        }
        let open = run.open_steps().iter().find(|open| open.effect.child() == Some(child));
        open.map_or_else(Spending::default, |open| open.reserved)
    }
}
