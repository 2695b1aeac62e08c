//! Takes a run back to the end of an earlier step, with its files. The run keeps its id; its history stays in its journal.
//!
//! What can't be taken back is told: calls after that step whose effects are outside. The request is refused with an
//! explanation where there is no way back; when the run's worker reads it, the engine decides again.

use saggar_domain::RunId;
use saggar_engine::{Body, Class, Effect, Event, Input, Rejected, Restored, Run, Settled};
use saggar_store::RunRow;

use super::bodies::shelve;
use super::files::uses_sandbox;
use super::handle::Runs;
use super::instruction::Instruction;
use super::stored_agent::read_entry;
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::now;

/// What becomes of a request to go back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollBack {
    pub run: RunId,
    pub to: u64,
    /// The files that the run goes on with.
    pub files: Restored,
    /// What was done after that step and stays done, as of the request.
    pub stays_done: Vec<DoneCall>,
}

/// A call that had, or may have had, an effect that a rollback doesn't undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoneCall {
    pub step: u64,
    pub tool: String,
    pub class: Class,
    /// Whether it certainly was done.
    pub is_certain: bool,
    /// Whether it worked in the sandbox: its files are taken back, and what its programs did outside is not.
    pub in_sandbox: bool,
    /// The run that it started.
    pub child: Option<RunId>,
}

impl Runs {
    /// Asks a run to go on from the end of that step. The request is durable when this returns. One that names the run's generation
    /// is effective once: repeating it gives the same answer.
    pub async fn roll_back(
        &self,
        permit: &Permit,
        step: u64,
        generation: Option<u32>,
        message: Option<Body>,
    ) -> Result<RollBack, Fault> {
        permit.check(|action| matches!(action, Action::TellRun(_)))?;
        let row = self.row(permit, permit.run()?).await?;
        let conflict = |what: String, help: String| Err(Fault::Conflict { what, help });
        let events = self.events(&row).await?;
        let run = Run::from_events(&events);
        if let Some(generation) = generation.filter(|generation| *generation != run.generation()) {
            return self.went_back(&row, &events, step, generation, message).await;
        }
        if row.outcome.is_some() {
            let help = format!("start another run from that step: saggar runs fork {} --at {step}", row.id);
            return conflict(format!("run {} has finished: it can't go back", row.id), help);
        }
        let files = match run.decide(now(), &Input::RollBack { step, message: None }) {
            Ok(decided) => decided.into_iter().find_map(|event| match event {
                Event::RolledBack { files, .. } => Some(files),
                _ => None,
            }),
            Err(Rejected::Undecided { step: open }) => {
                let what = format!("step {open} of run {} may be done only once, and is in progress", row.id);
                return conflict(what, "wait for its end, then ask again".to_owned());
            }
            Err(rejected @ (Rejected::NoWayBack { .. } | Rejected::NoFiles { .. })) => {
                let help =
                    "`saggar runs follow` shows the steps; `[snapshots]` in an agent says when its files are kept";
                return conflict(format!("run {}: {rejected}", row.id), help.to_owned());
            }
            Err(rejected) => return conflict(format!("run {}: {rejected}", row.id), "read it again".to_owned()),
        };
        pass("run-back/checked");
        self.tell(permit, None, Instruction::RollBack { step, generation, message }).await?;
        pass("run-back/told");
        Ok(RollBack { run: row.id, to: step, files: files.unwrap_or_default(), stays_done: stay_done(&events, step) })
    }

    /// The answer to a request that had its effect, if it is the same.
    async fn went_back(
        &self,
        row: &RunRow,
        events: &[Event],
        step: u64,
        generation: u32,
        message: Option<Body>,
    ) -> Result<RollBack, Fault> {
        let message = match message {
            Some(message) => Some(shelve(self.store(), message).await?),
            None => None,
        };
        let same = events.iter().enumerate().find_map(|(at, event)| match event {
            Event::RolledBack { to, generation: next, message: given, files, .. }
                if (*to, *next, given) == (step, generation.saturating_add(1), &message) =>
            {
                Some((at, files.clone()))
            }
            _ => None,
        });
        let Some((at, files)) = same else {
            return Err(Fault::Conflict {
                what: format!("run {} is no longer at generation {generation}: it has gone back since", row.id),
                help: format!("read it again, then decide: saggar runs show {}", row.id),
            });
        };
        Ok(RollBack { run: row.id.clone(), to: step, files, stays_done: stay_done(&events[..at], step) })
    }

    /// All events of a run.
    async fn events(&self, row: &RunRow) -> Result<Vec<Event>, Fault> {
        let damaged = |error| Fault::of_run(&row.id, error);
        let mut events = Vec::new();
        loop {
            let page = self.store().journal_after(row.id.clone(), events.len() as u64).await.map_err(damaged)?;
            if page.is_empty() {
                return Ok(events);
            }
            for entry in page {
                let read = read_entry(self.store(), entry.seq, &entry.entry).await.map_err(damaged)?;
                let read = read.map_err(|error| super::damage::unreadable(&row.id, entry.seq, error))?;
                events.push(read.event);
            }
        }
    }
}

/// The calls after a step that may have had effects outside, in their order.
fn stay_done(events: &[Event], after: u64) -> Vec<DoneCall> {
    let mut calls: Vec<DoneCall> = Vec::new();
    for event in events {
        match event {
            Event::StepIntended { step, attempt: 1, effect, class, .. } if *step > after => {
                let (Some(call), Class::Keyed | Class::Probeable | Class::Once) = (effect.call(), class) else {
                    continue;
                };
                // The engine does these itself; their only effect is a child.
                if matches!(effect, Effect::Wait { .. } | Effect::AskHuman { .. }) {
                    continue;
                }
                calls.push(DoneCall {
                    step: *step,
                    tool: call.tool.clone(),
                    class: *class,
                    is_certain: false,
                    in_sandbox: uses_sandbox(&call.tool),
                    child: effect.child().cloned(),
                });
            }
            Event::StepSettled { step, result, .. } => match result {
                Settled::Returned(result) if result.restored.is_some() => calls.retain(|call| call.step != *step),
                // It certainly had no effect, unless that is what couldn't be found out.
                Settled::GaveUp(failure) if failure.code != "outcome_unknown" => {
                    calls.retain(|call| call.step != *step)
                }
                Settled::GaveUp(_) => {}
                Settled::Returned(_) | Settled::Ended(_) | Settled::Replied(_) | Settled::Kept => {
                    if let Some(call) = calls.iter_mut().find(|call| call.step == *step) {
                        call.is_certain = true;
                    }
                }
            },
            // Those were told when the run went back before.
            Event::RolledBack { to, .. } => calls.retain(|call| call.step <= *to),
            _ => {}
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use saggar_domain::Timestamp;
    use saggar_engine::{EffectFailure, Spending, ToolCall, ToolResult, Usage};

    use super::*;

    fn intended(step: u64, tool: &str, class: Class) -> Event {
        let (id, tool, arguments) = (String::new(), tool.to_owned(), Body::text("{}"));
        let effect =
            Effect::CallTool { call: ToolCall { id, tool, arguments, read: None, invalid: None, class: None } };
        Event::StepIntended {
            step,
            attempt: 1,
            effect,
            class,
            reserved: Spending::default(),
            at: Timestamp::from_millis(0),
        }
    }

    fn settled(step: u64, result: Settled) -> Event {
        Event::StepSettled { step, result, usage: Usage::default(), snapshot: None, at: Timestamp::from_millis(0) }
    }

    #[test]
    fn calls_with_effects_outside_are_told_and_those_without_are_not() {
        let returned = || Settled::Returned(ToolResult::new(Body::text(""), false));
        let gave_up = |code: &str| Settled::GaveUp(EffectFailure::new(code, "", false));
        let events = [
            intended(2, "http", Class::Once),
            settled(2, returned()),
            intended(3, "http", Class::Once),
            settled(3, returned()),
            intended(4, "files", Class::Keyed),
            settled(4, returned()),
            intended(5, "http", Class::Pure),
            settled(5, returned()),
            intended(6, "http", Class::Keyed),
            settled(6, gave_up("refused")),
            intended(7, "http", Class::Keyed),
            settled(7, gave_up("outcome_unknown")),
            intended(8, "shell", Class::Probeable),
        ];
        let told = |events: &[Event]| {
            let calls = stay_done(events, 2);
            calls.iter().map(|call| (call.step, call.is_certain, call.in_sandbox)).collect::<Vec<_>>()
        };
        assert_eq!(told(&events), [(3, true, false), (4, true, true), (7, false, false), (8, false, true)]);
        let back = Event::RolledBack {
            to: 3,
            generation: 1,
            message: None,
            files: Restored::default(),
            at: Timestamp::from_millis(0),
        };
        let again = [&events[..], &[back, intended(9, "http", Class::Once)]].concat();
        assert_eq!(told(&again), [(3, true, false), (9, false, false)], "the others were told then");
    }
}
