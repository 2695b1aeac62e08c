//! The way back: where a run can be rolled back to, and what that changes.
//!
//! A run can go back to the end of each step at which nothing was open. Its conversation becomes the one it had there;
//! what it has spent, its signals and its numbers of steps go on, and its generation is a new one, so no key is used
//! again. INVARIANT: every mark is a prefix of the conversation.

use std::collections::BTreeMap;

use saggar_domain::Timestamp;

use super::next::Planner;
use super::{Born, Message, Run};
use crate::body::Body;
use crate::effect::Class;
use crate::event::Event;
use crate::input::Rejected;
use crate::repeats::Repeats;
use crate::snapshots::Restored;

/// A place in a run's history at which nothing was open.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    step: u64,
    pub(super) messages: usize,
    /// The place of the next call in the model's last reply.
    pub(super) next: u32,
    /// Results of later calls than that. Only a fork has such: of calls that were made beside those that it makes again.
    pub(super) held: BTreeMap<u32, Option<Message>>,
    /// A person's messages that the model had not seen.
    pub(super) later: Vec<Message>,
    replies: u64,
    repeats: Repeats,
    /// The step of the newest snapshot then, and the first step since that may have changed files.
    kept: Option<u64>,
    changed_since: Option<u64>,
}

impl Run {
    /// Remembers this place, if nothing is open.
    pub(super) fn mark(&mut self) {
        if !self.open.is_empty() || self.outcome.is_some() {
            return;
        }
        let (messages, next, held, later) = self.conversation.place();
        let mark = Mark {
            step: self.last_step,
            messages,
            next,
            held,
            later,
            replies: self.replies,
            repeats: self.repeats.clone(),
            kept: self.snapshots.files.kept.last().map(|kept| kept.step),
            changed_since: self.snapshots.changed_since,
        };
        self.marks.retain_last(mark);
    }

    pub(super) fn decide_roll_back(
        &self,
        now: Timestamp,
        born: &Born,
        step: u64,
        message: &Option<Body>,
    ) -> Result<Vec<Event>, Rejected> {
        let mark = self.marks.at(step).ok_or_else(|| Rejected::NoWayBack { step, nearest: self.marks.before(step) })?;
        if let Some(open) = self.open.iter().find(|open| open.class == Class::Once && open.is_being_done()) {
            return Err(Rejected::Undecided { step: open.step });
        }
        let files = self.files_at(mark).ok_or_else(|| Rejected::NoFiles {
            step,
            nearest: self.marks.0.iter().rev().find(|mark| self.files_at(mark).is_some()).map(|mark| mark.step),
        })?;
        let abandoned = self.open.iter().map(|open| Event::StepAbandoned { step: open.step, at: now });
        let rolled_back = Event::RolledBack {
            to: step,
            generation: born.generation.saturating_add(1),
            message: message.clone(),
            files,
            at: now,
        };
        let mut events: Vec<Event> = abandoned.chain([rolled_back]).collect();
        let mut after = self.clone();
        events.iter().for_each(|event| after.apply(event));
        if let (false, Some(born)) = (after.is_paused, &after.born) {
            events.extend(Planner::new(&after, born, now).plan());
        }
        Ok(events)
    }

    /// The files that the run had there; `None` if they are in no snapshot that is kept.
    fn files_at(&self, mark: &Mark) -> Option<Restored> {
        match mark.kept {
            // A new sandbox is what it had.
            None if mark.changed_since.is_none() => Some(Restored::default()),
            None => None,
            Some(step) => {
                let from = self.snapshots.files.kept.iter().find(|kept| kept.step == step)?.clone();
                Some(Restored { from: Some(from), older_from: mark.changed_since })
            }
        }
    }

    pub(super) fn roll_back(&mut self, to: u64, generation: u32, message: Option<&Body>, files: &Restored) {
        let Some(mark) = self.marks.at(to).cloned() else { return };
        if let Some(born) = &mut self.born {
            self.earlier_generations.push(born.generation);
            born.generation = generation;
        }
        // What was abandoned may have cost all that was set aside for it.
        self.open.clear();
        let reserved = self.ledger.reserved();
        self.ledger.settle(reserved, reserved);
        self.conversation.back_to(&mark);
        self.replies = mark.replies;
        self.repeats = mark.repeats;
        self.final_answer = None;
        self.short = None;
        self.useless = 0;
        self.marks.0.retain(|mark| mark.step <= to);
        self.snapshots.files.kept.retain(|kept| kept.step <= to);
        self.snapshots.restore(files.clone(), self.last_step, None);
        self.snapshots.tried_at = self.last_step;
        if let Some(message) = message {
            self.tell(message.clone());
        }
    }
}

/// INVARIANT: in the order of their steps, one for each.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(Vec<Mark>);

impl Marks {
    fn at(&self, step: u64) -> Option<&Mark> {
        let at = self.0.binary_search_by_key(&step, |mark| mark.step).ok()?;
        self.0.get(at)
    }

    /// The last step before that one to which there is a way back.
    fn before(&self, step: u64) -> Option<u64> {
        self.0.iter().rev().map(|mark| mark.step).find(|before| *before < step)
    }

    fn retain_last(&mut self, mark: Mark) {
        while self.0.last().is_some_and(|last| last.step >= mark.step) {
            self.0.pop();
        }
        self.0.push(mark);
    }
}
