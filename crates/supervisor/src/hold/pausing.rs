//! Pauses and resumes a sandbox, and says whether it can be.
//!
//! A sandbox is frozen while it is paused, and while its changes are read (`stillness`); it runs when neither holds.

use saggar_domain::{Code, DeadlineAction, Problem};
use saggar_jail::cgroup::Group;

use crate::control::{EventBody, Terms};

use super::holder::Hold;
use super::moment::Moment;

impl Hold {
    /// Refuses terms that can't be kept.
    pub(super) fn check_terms(&self, terms: Terms) -> Result<(), Problem> {
        match terms.then {
            DeadlineAction::Kill => Ok(()),
            DeadlineAction::Pause | DeadlineAction::Rest if self.group.as_ref().is_some_and(Group::is_freezable) => {
                Ok(())
            }
            DeadlineAction::Pause | DeadlineAction::Rest => Err(not_freezable()),
        }
    }

    pub(super) fn check_runs(&self) -> Result<(), Problem> {
        match self.paused {
            None => Ok(()),
            Some(_) => Err(Problem::new(
                Code::SandboxPaused,
                format!("the sandbox {} is paused", self.sandbox_id),
                "resume it first",
            )),
        }
    }

    /// Freezes everything. `by_itself` is true at a deadline.
    pub(super) fn pause(&mut self, now: Moment, by_itself: bool) -> Result<(), Problem> {
        if self.paused.is_some() {
            return Ok(());
        }
        if self.still.is_none() {
            self.freeze()?;
        }
        self.paused = Some(now);
        self.lifetime.pause(now);
        self.tell(EventBody::Paused { by_itself });
        Ok(())
    }

    pub(super) fn freeze(&self) -> Result<(), Problem> {
        let group = self.group.as_ref().filter(|group| group.is_freezable()).ok_or_else(not_freezable)?;
        group.freeze().map_err(|error| {
            Problem::new(
                Code::Internal,
                format!("the sandbox {} could not be frozen: {}", self.sandbox_id, error.kind()),
                "a process that waits for a disk or a device can't be frozen; try again, or end it",
            )
        })
    }

    pub(super) fn thaw(&self) -> Result<(), Problem> {
        let Some(group) = &self.group else { return Ok(()) };
        group.thaw().map_err(|error| {
            Problem::new(
                Code::Internal,
                format!("the sandbox {} could not be thawed: {}", self.sandbox_id, error.kind()),
                "try again",
            )
        })
    }

    pub(super) fn resume(&mut self, terms: Option<Terms>, now: Moment) -> Result<(), Problem> {
        if let Some(terms) = terms {
            self.check_terms(terms)?;
        }
        if let Some(since) = self.paused {
            // One whose changes are being read goes on when they are.
            if self.still.is_none() {
                self.thaw()?;
            }
            self.paused = None;
            let span = now.since(since);
            self.execs.iter_mut().filter_map(|exec| exec.deadline.as_mut()).for_each(|deadline| deadline.move_on(span));
            self.lifetime.resume(now);
            self.tell(EventBody::Resumed);
        }
        if let Some(terms) = terms {
            self.lifetime.set(terms, now);
        }
        Ok(())
    }
}

fn not_freezable() -> Problem {
    Problem::new(
        Code::UnsupportedCapability,
        "this host can't freeze a sandbox: no freezable cgroup is available",
        "end sandboxes instead of pausing them; `saggar doctor` shows what this host supports",
    )
}
