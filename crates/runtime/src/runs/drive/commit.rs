//! Makes what was decided durable: entries, the run's row, letters and children in one append.
//!
//! It decides nothing. It tries until the store answers, or the run is no longer this worker's.

use std::sync::Arc;

use saggar_domain::RunState;
use saggar_engine as engine;
use saggar_engine::{Attempt, Entry, Event, RunStatus};
use saggar_store::{Append, Appended, BlobHash, JsonText, Summary};

use super::{Drive, Driven, END_TIMEOUT, STORE_RETRY, Stopped};
use crate::fail_point::{pass, pass_numbered};
use crate::runs::damage::Unread;
use crate::runs::effects::{Effects, Session};
use crate::runs::family::Batch;
use crate::runs::journal::Journal;
use crate::runs::sandbox_calls::{known_calls, left_for_sandboxes};

/// What became of an append.
pub(super) enum Committed {
    Done,
    /// Nothing was written, and memory is ahead of the journal.
    Overtaken,
}

impl<J: Journal, E: Effects> Drive<J, E> {
    /// Makes events durable. After `Err`, memory is ahead of the journal: the caller must drop it.
    pub(super) async fn commit(
        &self,
        driven: &mut Driven<E::Session>,
        Batch { events, children, letters, agents }: Batch,
        consumed: Vec<i64>,
        tries: u32,
    ) -> Result<Committed, Stopped> {
        for agent in agents {
            // Children of the same agent share it: it is stored once, before the first entry that names it.
            if driven.agents.insert(BlobHash::of(&agent)) {
                self.until_done(|| self.journal.put_blob(agent.clone())).await;
            }
        }
        let target = driven.head + events.len() as u64;
        let is_rolled_back = events.iter().any(|event| matches!(event, Event::RolledBack { .. }));
        let generation = is_rolled_back.then(|| driven.run.generation());
        let known_calls = known_calls(&driven.run, &events, tries);
        let before = (Arc::clone(&driven.session), driven.recorded.clone());
        if is_rolled_back {
            // The sandbox is of another generation, and no longer the run's.
            let earlier = driven.session.sandbox().or(driven.recorded.take());
            driven.session = self.session(&driven.run, None, earlier);
        }
        let entries = (driven.head + 1..).zip(events).map(|(seq, event)| Entry::new(seq, event).encode()).collect();
        let summary = self.summary(driven);
        let sandbox = summary.sandbox.clone();
        let files = Some(driven.run.files()).filter(|files| **files != driven.files);
        let append = Append {
            run: self.claimed.run.id.clone(),
            epoch: self.claimed.epoch,
            head: driven.head,
            entries,
            summary,
            consumed,
            seen: driven.seen,
            children,
            letters,
            files: files.and_then(JsonText::of),
            generation,
            left: left_for_sandboxes(&driven.run),
            known_calls,
        };
        let mut failures = 0;
        loop {
            match self.journal.append(append.clone()).await {
                Ok(Appended::Done { head }) => {
                    debug_assert_eq!(head, target);
                    break;
                }
                // Only the holder appends, so an unexpected head is the result of our own attempt that seemed to
                // fail.
                Ok(Appended::Moved { head }) if failures > 0 && head == target => break,
                Ok(Appended::Overtaken) => {
                    (driven.session, driven.recorded) = before;
                    return Ok(Committed::Overtaken);
                }
                Ok(Appended::Fenced { .. } | Appended::Finished | Appended::Absent) => return Err(Stopped::Lost),
                Ok(Appended::Moved { head }) => {
                    tracing::error!(run_id = %append.run, head, expected = append.head, "unexpected head of a journal");
                    return Err(Stopped::Lost);
                }
                // A blob that an entry names isn't stored, so a retry can't help. The run waits for a human.
                Err(error @ saggar_store::Error::Missing { .. }) => {
                    let damaged = Unread::Damaged(error.to_string());
                    return Err(self.unread(damaged).await.unwrap_or_else(|stopped| stopped));
                }
                Err(error) => {
                    tracing::warn!(run_id = %append.run, error = %error, "appending to a journal failed");
                    failures += 1;
                    self.wait_by(&STORE_RETRY, failures).await;
                }
            }
        }
        if is_rolled_back {
            pass("run-back/recorded");
            // Its programs belong to what was undone. Tried again before the next use of a sandbox.
            let _ = tokio::time::timeout(END_TIMEOUT, driven.session.end_earlier()).await;
            pass("run-back/ended");
        }
        if !append.consumed.is_empty() {
            pass("letter/consumed");
        }
        driven.head = target;
        driven.run.open_steps().iter().for_each(|open| pass_numbered("run/open", open.step));
        driven.files.clone_from(driven.run.files());
        if sandbox.is_some() {
            driven.recorded = sandbox;
        }
        self.hub.grown(&self.claimed.run.id);
        if !append.children.is_empty() {
            self.hub.wake();
        }
        append.letters.iter().for_each(|letter| self.hub.letter(&letter.run));
        Ok(Committed::Done)
    }

    fn summary(&self, driven: &Driven<E::Session>) -> Summary {
        let now = self.effects.now();
        let run = &driven.run;
        let state = match run.status() {
            RunStatus::Unborn | RunStatus::Queued => RunState::Queued,
            RunStatus::Running => RunState::Running,
            RunStatus::Waiting { .. } | RunStatus::Delegating { .. } => RunState::Waiting,
            RunStatus::Asking => RunState::Asking,
            RunStatus::Parked { .. } | RunStatus::OutOfBudget { .. } => RunState::Parked,
            RunStatus::Paused => RunState::Paused,
            RunStatus::Finished => RunState::Finished,
        };
        let wake_at = match state {
            // Until its resources are released.
            RunState::Finished => driven.session.may_hold().then_some(now),
            // Any worker that finds it without a holder continues at once.
            RunState::Queued | RunState::Running => Some(now),
            _ if run.pending().next().is_some() => Some(now),
            RunState::Waiting | RunState::Asking | RunState::Parked | RunState::Paused => run.next_deadline(),
        };
        let sandbox = driven.session.sandbox().filter(|sandbox| driven.recorded.as_ref() != Some(sandbox));
        // A failed step waits for its retry, not for capacity.
        let is_queued = |open: &&engine::OpenStep| matches!(open.phase, Attempt::Delayed { .. } | Attempt::Doing);
        let room_since = run.open_steps().iter().filter(is_queued).filter_map(|open| open.delayed_since).min();
        Summary { state, at: now, wake_at, outcome: run.outcome().and_then(JsonText::of), room_since, sandbox }
    }
}
