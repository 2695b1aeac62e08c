//! Replay: derives a run again from its journal, without executing effects, and compares the result with the record.
//!
//! The first event of each batch shows which input caused it. Replay feeds that input to the engine and compares the
//! events with those recorded. A difference means that the engine's behaviour has changed, or that the journal was
//! edited.

use saggar_domain::{SnapshotId, Timestamp};

use crate::effect::Effect;
use crate::event::{Event, RunOutcome, Settled};
use crate::input::{Input, Rejected, Report, Signal};
use crate::run::{Attempt, OpenStep, Run};

/// The result of a replay.
#[derive(Debug)]
pub struct Replayed {
    /// The run up to the first difference.
    pub run: Run,
    /// Number of events that agreed.
    pub agreed: usize,
    /// The first difference.
    pub divergence: Option<Divergence>,
}

/// A difference between a recorded event and the one derived now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Position in the journal, from 0.
    pub at: usize,
    /// `None` if the journal ends early.
    pub recorded: Option<Event>,
    /// `None` if nothing would be decided now.
    pub derived: Option<Event>,
    /// Why nothing would be decided.
    pub rejected: Option<Rejected>,
}

/// Replays a journal. It may end in the middle of a batch, as a fork's history can; that is not a divergence.
pub fn replay(events: &[Event]) -> Replayed {
    let mut run = Run::new();
    let mut at = 0;
    let is_fork = |at: &usize| matches!(events[*at], Event::Forked { .. });
    let forks: Vec<usize> = (0..events.len()).filter(is_fork).collect();
    while let Some(first) = events.get(at) {
        let derived = match input_of(&run, first, &events[at + 1..]) {
            Some(input) => run.decide(first.at(), &input),
            None => Ok(Vec::new()),
        };
        let (derived, rejected) = match derived {
            Ok(derived) => (derived, None),
            Err(rejected) => (Vec::new(), Some(rejected)),
        };
        // A fork may cut its history anywhere, even within a batch.
        let end = forks.iter().copied().find(|fork| *fork > at).unwrap_or(events.len());
        let recorded = &events[at..end.min(at + derived.len().max(1))];
        let agreed = recorded.iter().zip(&derived).take_while(|(recorded, derived)| recorded == derived).count();
        for event in &recorded[..agreed] {
            run.apply(event);
        }
        at += agreed;
        if agreed < recorded.len() {
            let divergence = Divergence {
                at,
                recorded: recorded.get(agreed).cloned(),
                derived: derived.get(agreed).cloned(),
                rejected,
            };
            return Replayed { run, agreed: at, divergence: Some(divergence) };
        }
    }
    Replayed { run, agreed: at, divergence: None }
}

/// The input that caused a batch, derived from its first event and the state before it.
fn input_of(run: &Run, first: &Event, rest: &[Event]) -> Option<Input> {
    let open = || first.step().and_then(|step| run.open_at(step));
    let reported = |report: Report, chance: u64| {
        let open = open()?;
        Some(Input::Reported { epoch: run.epoch(), step: open.step, attempt: open.attempt, report, chance })
    };
    match first {
        Event::RunStarted { run, agent, child_of, .. } => {
            Some(Input::Start { run: run.clone(), agent: agent.clone(), child_of: child_of.clone() })
        }
        Event::Forked { run, generation, message, is_logical_only, does_again, files, .. } => Some(Input::Fork {
            run: run.clone(),
            generation: *generation,
            message: message.clone(),
            is_logical_only: *is_logical_only,
            does_again: *does_again,
            files: files.clone(),
        }),
        Event::RolledBack { to, message, .. } => Some(Input::RollBack { step: *to, message: message.clone() }),
        Event::Claimed { epoch, rules, .. } => Some(Input::Claim { epoch: *epoch, rules: *rules }),
        Event::Priced { tariff, .. } => Some(Input::Priced(tariff.clone())),
        Event::SandboxCalled { calls, .. } => Some(Input::SandboxCalled(calls.clone())),
        Event::SignalReceived { id, name, body, question, .. } => {
            Some(Input::Signal(Signal { id: id.clone(), name: name.clone(), body: body.clone(), question: *question }))
        }
        // It comes with what the budget doesn't allow, or once calls in sandboxes have ended.
        Event::BudgetReached { .. } => Some(Input::Tick),
        Event::BudgetRaised { id, more, .. } => Some(Input::Raise { id: id.clone(), more: *more }),
        Event::Paused { .. } => Some(Input::Pause),
        Event::Resumed { .. } => Some(Input::Resume),
        Event::StepDecided { step, decision, .. } => {
            Some(Input::Decide { step: *step, attempt: None, decision: decision.clone() })
        }
        Event::StepIntended { .. } => match open().map(|open| &open.phase) {
            Some(Attempt::Probing) => reported(Report::NeverDone, 0),
            Some(
                Attempt::Doing
                | Attempt::Backoff { .. }
                | Attempt::Delayed { .. }
                | Attempt::Interrupted
                | Attempt::Unknown { .. },
            ) => Some(Input::Tick),
            // It waited for calls in sandboxes.
            None => Some(Input::Tick),
        },
        Event::StepSettled { result, usage, snapshot, .. } => match (result, &open()?.effect) {
            // An answer or a signal comes with an event of its own.
            (_, Effect::Wait { .. } | Effect::AskHuman { .. }) => Some(Input::Tick),
            (Settled::Replied(reply), _) => reported(Report::Replied { reply: reply.clone(), usage: *usage }, 0),
            (Settled::Returned(result), _) => {
                reported(Report::Returned { result: result.clone(), snapshot: snapshot.clone() }, 0)
            }
            (Settled::Kept, _) => {
                reported(Report::Kept { snapshot: snapshot.as_deref().and_then(SnapshotId::parse) }, 0)
            }
            (Settled::Ended(end), _) => Some(Input::ChildEnded(end.clone())),
            (Settled::GaveUp(failure), _) => reported(Report::Failed { failure: failure.clone(), usage: *usage }, 0),
        },
        // It comes with the reply.
        Event::Corrected { .. } => None,
        // It was the last attempt, and a person decides.
        Event::StepFailed { failure, usage, .. } if matches!(rest.first(), Some(Event::StepUnknown { .. })) => {
            reported(Report::Failed { failure: failure.clone(), usage: *usage }, 0)
        }
        Event::StepFailed { failure, usage, retry_at, at, .. } => {
            let report = Report::Failed { failure: failure.clone(), usage: *usage };
            let chance = chance_of(run, open()?, *at, *retry_at)?;
            reported(report, chance)
        }
        Event::StepDelayed { reason, .. } => reported(Report::Delayed { reason: reason.clone() }, 0),
        Event::StepUnknown { reason, network, .. } => {
            reported(Report::Unknown { reason: reason.clone(), network: network.clone() }, 0)
        }
        Event::StepInterrupted { .. } => reported(Report::NeverDone, 0),
        Event::StepProbed { network, .. } => {
            reported(Report::Unknown { reason: String::new(), network: network.clone() }, 0)
        }
        // If a fork cut off the final event, any input that abandons a step fits.
        Event::StepAbandoned { .. } => {
            let end = rest.iter().find(|event| !matches!(event, Event::StepAbandoned { .. }));
            Some(end.and_then(ending_input).unwrap_or(Input::Cancel))
        }
        Event::RunFinished { .. } => ending_input(first),
    }
}

/// The input that ends the run or what is open in it.
fn ending_input(end: &Event) -> Option<Input> {
    match end {
        Event::RolledBack { to, message, .. } => Some(Input::RollBack { step: *to, message: message.clone() }),
        Event::RunFinished { outcome: RunOutcome::Cancelled, .. } => Some(Input::Cancel),
        // A time has passed, or calls in sandboxes have ended.
        Event::RunFinished { .. } => Some(Input::Tick),
        _ => None,
    }
}

/// The random number that yields this backoff.
fn chance_of(run: &Run, open: &OpenStep, at: Timestamp, retry_at: Timestamp) -> Option<u64> {
    let agent = run.agent()?;
    let policy = match open.effect.call() {
        None => agent.model.retry,
        Some(call) => agent.tools.get(&call.tool).map(|tool| tool.retry).unwrap_or_default(),
    };
    let least = policy.wait_ms(run.tries(open), 0)?;
    Some((retry_at.as_millis() - at.as_millis()).saturating_sub(least))
}
