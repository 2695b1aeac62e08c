//! Decisions: which events an input causes in the current state. Pure; the events are the complete result.

use saggar_domain::{RunId, Timestamp};

use super::next::{Planner, is_late};
use super::{ANSWER, Attempt, Born, OpenStep, Run, SIGNALS_MAX};
use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::BudgetName;
use crate::child::ChildOf;
use crate::effect::{Class, Effect, ToolResult, Usage};
use crate::event::{Event, RunOutcome, Settled};
use crate::fallback::{Unanswered, WhenUncertain};
use crate::input::{Decision, EffectFailure, Input, Rejected, Signal};
use crate::reply::ModelReply;
use crate::rules::Rules;

/// After this many worker deaths during one step, the step itself is suspected and a human decides. The first rules
/// count all attempts.
const WORKER_DEATHS_MAX: u32 = 20;

impl Run {
    /// The events that an input causes. An empty list means that there was nothing to do, for example for a
    /// duplicate.
    pub fn decide(&self, now: Timestamp, input: &Input) -> Result<Vec<Event>, Rejected> {
        if let Input::Start { run, agent, child_of } = input {
            return self.decide_start(now, run, agent, child_of.as_ref());
        }
        let born = self.born.as_ref().ok_or(Rejected::NotStarted)?;
        if let Input::Fork { run, generation, message, is_logical_only, does_again, files } = input {
            let undecided = self.open.iter().find(|open| *does_again && open.is_undecided());
            return match undecided {
                Some(open) => Err(Rejected::Undecided { step: open.step }),
                None => Ok(vec![Event::Forked {
                    run: run.clone(),
                    parent: born.id.clone(),
                    generation: *generation,
                    message: message.clone(),
                    is_logical_only: *is_logical_only,
                    does_again: *does_again,
                    files: files.clone(),
                    at: now,
                }]),
            };
        }
        if self.outcome.is_some() {
            return Err(Rejected::Finished);
        }
        match input {
            Input::Start { .. } | Input::Fork { .. } => Err(Rejected::NotStarted),
            Input::Claim { epoch, rules } => self.decide_claim(now, born, *epoch, *rules),
            Input::Priced(tariff) if self.tariff.as_ref() == Some(tariff) => Ok(Vec::new()),
            Input::Priced(tariff) => Ok(vec![Event::Priced { tariff: tariff.clone(), at: now }]),
            Input::SandboxCalled(calls) if self.sandbox_calls == *calls => Ok(Vec::new()),
            Input::SandboxCalled(calls) => Ok(vec![Event::SandboxCalled { calls: calls.clone(), at: now }]),
            Input::Reported { epoch, step, attempt, report, chance } => {
                if *epoch != self.epoch {
                    return Err(Rejected::Stale { given: *epoch, current: self.epoch });
                }
                let open = self.open_at(*step).filter(|open| open.attempt == *attempt);
                let open = open.ok_or(Rejected::NotAwaited)?;
                self.decide_report(now, born, open, report, *chance)
            }
            Input::RollBack { step, message } => self.decide_roll_back(now, born, *step, message),
            Input::Tick => self.decide_tick(now, born),
            Input::Signal(signal) => self.decide_signal(now, born, signal),
            Input::Raise { id, more } => self.decide_raise(now, born, id, *more),
            Input::Pause if self.is_paused => Ok(Vec::new()),
            Input::Pause => Ok(vec![Event::Paused { at: now }]),
            Input::Resume if !self.is_paused => Ok(Vec::new()),
            Input::Resume => Ok(self.decide_resume(now, born)),
            Input::Cancel => Ok(self.finish(now, RunOutcome::Cancelled)),
            Input::Decide { step, attempt, decision } => self.decide_decision(now, born, (*step, *attempt), decision),
            Input::ChildEnded(end) => {
                let is_its =
                    |open: &&OpenStep| matches!(&open.effect, Effect::Delegate { child, .. } if *child == end.child);
                let open = self.open.iter().find(is_its).ok_or(Rejected::NotAwaited)?;
                Ok(self.settle_and_go_on(now, born, open, Settled::Ended(end.clone()), Usage::default(), None))
            }
        }
    }

    fn decide_start(
        &self,
        now: Timestamp,
        run: &RunId,
        agent: &AgentSpec,
        child_of: Option<&ChildOf>,
    ) -> Result<Vec<Event>, Rejected> {
        if self.born.is_some() {
            return Err(Rejected::NotStarted);
        }
        if agent.name.is_empty() || agent.repeats_max == 0 {
            return Err(Rejected::InvalidAgent("it needs a name, and repeats_max of at least 1".to_owned()));
        }
        let (run, agent) = (run.clone(), Box::new(agent.clone()));
        Ok(vec![Event::RunStarted { run, agent, child_of: child_of.cloned(), at: now }])
    }

    /// Only the holder of the lease starts effects. So a run that was never claimed has no open step, and an open
    /// step was left by a worker. It is settled by its class, and never silently redone if that could do harm.
    fn decide_claim(&self, now: Timestamp, born: &Born, epoch: u64, rules: Rules) -> Result<Vec<Event>, Rejected> {
        if epoch <= self.epoch {
            return Err(Rejected::Stale { given: epoch, current: self.epoch });
        }
        let mut events = vec![Event::Claimed { epoch, rules, at: now }];
        for open in &self.open {
            let Some(event) = self.take_over(open, rules, now) else { continue };
            let is_unknown = matches!(event, Event::StepUnknown { .. });
            events.push(event);
            if is_unknown && self.abandons(born) {
                events.extend(self.abandon(open.step, now));
                return Ok(events);
            }
        }
        if !self.is_paused && (self.open.is_empty() || rules.allow_several_steps()) {
            events.extend(Planner::by(rules, self, born, now).plan());
        }
        Ok(events)
    }

    /// What becomes of a step that is open when a worker takes the run over.
    fn take_over(&self, open: &OpenStep, rules: Rules, now: Timestamp) -> Option<Event> {
        match &open.phase {
            Attempt::Doing => {}
            // A worker claims a run that waits for capacity because there may be some now.
            Attempt::Delayed { .. } if !self.is_paused => return Some(begin(open, now)),
            Attempt::Probing
            | Attempt::Backoff { .. }
            | Attempt::Delayed { .. }
            | Attempt::Interrupted
            | Attempt::Unknown { .. } => return None,
        }
        match &open.effect {
            Effect::Wait { .. } | Effect::AskHuman { .. } | Effect::Delegate { .. } => return None,
            Effect::CallModel { .. } | Effect::Summarize { .. } | Effect::CallTool { .. } | Effect::TakeSnapshot => {}
        }
        let unknown = |reason: &str| {
            let network = Vec::new();
            Event::StepUnknown { step: open.step, reason: reason.to_owned(), network, at: now }
        };
        let is_poison = match rules.count_deaths_apart() {
            true => open.deaths.saturating_add(1) >= WORKER_DEATHS_MAX,
            false => open.attempt >= WORKER_DEATHS_MAX && open.class != Class::Probeable,
        };
        let is_held_back = self.is_paused && rules.hold_back_while_paused();
        Some(match open.class {
            Class::Pure | Class::Model | Class::Keyed | Class::Probeable if is_poison => {
                unknown("every worker that tried it was lost")
            }
            Class::Pure | Class::Model | Class::Keyed | Class::Probeable if is_held_back => {
                Event::StepInterrupted { step: open.step, at: now }
            }
            Class::Pure | Class::Model | Class::Keyed | Class::Probeable => self.redo(open, now),
            Class::Once => {
                unknown("the worker was lost while it was being done, and nobody can be asked whether it was")
            }
        })
    }

    fn decide_resume(&self, now: Timestamp, born: &Born) -> Vec<Event> {
        let again = self.open.iter().filter_map(|open| match &open.phase {
            Attempt::Interrupted => Some(self.redo(open, now)),
            Attempt::Delayed { .. } => Some(begin(open, now)),
            Attempt::Doing | Attempt::Probing | Attempt::Backoff { .. } | Attempt::Unknown { .. } => None,
        });
        let mut events: Vec<Event> = [Event::Resumed { at: now }].into_iter().chain(again).collect();
        if self.open.is_empty() || self.rules.allow_several_steps() {
            events.extend(Planner::new(self, born, now).plan());
        }
        events
    }

    fn decide_tick(&self, now: Timestamp, born: &Born) -> Result<Vec<Event>, Rejected> {
        if is_late(&born.agent, born.started_at, now) {
            return Ok(self.finish(now, RunOutcome::BudgetExceeded { budget: BudgetName::WallMs, answer: None }));
        }
        let due = self.open.iter().find_map(|open| Some((open, self.due(open, now)?)));
        Ok(match due {
            None if self.is_between_steps() => Planner::new(self, born, now).plan(),
            None => Vec::new(),
            Some((open, Due::Again)) => vec![self.intend_again(open, now)],
            Some((open, Due::Begin)) => vec![begin(open, now)],
            Some((open, Due::Unanswered(rule))) => self.go_on_unanswered(now, born, open, rule),
            Some((open, Due::Passed)) => {
                let passed = match &open.effect {
                    Effect::Wait { signal: Some(name), .. } => {
                        format!("the time has passed, and no signal {name:?} has arrived")
                    }
                    _ => "the time has passed".to_owned(),
                };
                let result = ToolResult::new(Body::text(passed), false);
                self.settle_and_go_on(now, born, open, Settled::Returned(result), Usage::default(), None)
            }
        })
    }

    /// What a tick does with a step; `None` if it isn't its time. Each tick does one thing: another follows while
    /// there is more.
    fn due(&self, open: &OpenStep, now: Timestamp) -> Option<Due<'_>> {
        match (&open.phase, &open.effect) {
            (Attempt::Backoff { until }, _) if now >= *until && !self.is_paused => Some(Due::Again),
            (Attempt::Delayed { until }, _) if now >= *until && !self.is_paused => Some(Due::Begin),
            (Attempt::Doing, Effect::Wait { until, .. }) if now >= *until => Some(Due::Passed),
            (Attempt::Doing, Effect::AskHuman { .. }) => {
                let (until, rule) = self.unanswered_at(open)?;
                (now >= until && !self.is_paused).then_some(Due::Unanswered(rule))
            }
            (
                Attempt::Doing
                | Attempt::Probing
                | Attempt::Backoff { .. }
                | Attempt::Interrupted
                | Attempt::Delayed { .. }
                | Attempt::Unknown { .. },
                _,
            ) => None,
        }
    }

    /// Nobody has answered in time.
    fn go_on_unanswered(&self, now: Timestamp, born: &Born, open: &OpenStep, rule: &Unanswered) -> Vec<Event> {
        if let Some(answer) = &rule.answer {
            let result = Settled::Returned(ToolResult::new(answer.clone(), false));
            return self.settle_and_go_on(now, born, open, result, Usage::default(), None);
        }
        let seconds = rule.after_ms / 1000;
        let failure = EffectFailure::new("unanswered", format!("nobody has answered within {seconds} seconds"), false);
        let result = Settled::GaveUp(failure.clone());
        let usage = Usage::default();
        let mut events = vec![Event::StepSettled { step: open.step, result, usage, snapshot: None, at: now }];
        events.extend(self.finish_without(Some(open.step), now, RunOutcome::Failed { failure }));
        events
    }

    /// Whether a step with an unknown outcome ends the run.
    pub(super) fn abandons(&self, born: &Born) -> bool {
        born.agent.on.uncertain == WhenUncertain::Abandon
    }

    /// Ends the run at a step whose outcome is unknown, as a person could.
    pub(super) fn abandon(&self, step: u64, now: Timestamp) -> Vec<Event> {
        let decided = Event::StepDecided { step, decision: Decision::Abandon, at: now };
        [decided].into_iter().chain(self.finish(now, RunOutcome::Abandoned { step })).collect()
    }

    fn decide_signal(&self, now: Timestamp, born: &Born, signal: &Signal) -> Result<Vec<Event>, Rejected> {
        if self.known_signals.contains(&signal.id) {
            return Ok(Vec::new());
        }
        let is_answer = signal.name == ANSWER;
        if is_answer && self.rules.answers_name_their_question() {
            let question = signal.question.ok_or(Rejected::UnnamedQuestion)?;
            if !self.open_questions().any(|open| open == question) {
                // A client that got no response repeats its answer: the same answer is harmless.
                return match self.answered.iter().find(|(step, _)| *step == question) {
                    Some((_, answer)) if *answer == signal.body => Ok(Vec::new()),
                    Some(_) => Err(Rejected::AlreadyAnswered { question }),
                    None => Err(Rejected::NotOpen { question }),
                };
            }
        } else if self.answers.len() >= SIGNALS_MAX && !self.rules.answers_name_their_question() {
            return Err(Rejected::TooManySignals(SIGNALS_MAX));
        }
        let Signal { id, name, body, question } = signal.clone();
        let mut events = vec![Event::SignalReceived { id, name, body: body.clone(), question, at: now }];
        // Under the first rules an answer names no question, and at most one is open.
        let ends = match is_answer {
            true => self.open_questions().find(|step| question.is_none_or(|question| question == *step)),
            false => self.waits_for(&signal.name),
        };
        if let Some(open) = ends.and_then(|step| self.open_at(step)) {
            let result = Settled::Returned(ToolResult::new(body, false));
            events.extend(self.settle_and_go_on(now, born, open, result, Usage::default(), None));
        }
        Ok(events)
    }

    fn decide_decision(
        &self,
        now: Timestamp,
        born: &Born,
        (step, attempt): (u64, Option<u32>),
        decision: &Decision,
    ) -> Result<Vec<Event>, Rejected> {
        // A step may park again. A decision about one attempt says nothing about the next.
        let is_parked = |open: &&OpenStep| {
            open.step == step
                && attempt.is_none_or(|attempt| attempt == open.attempt)
                && matches!(open.phase, Attempt::Unknown { .. })
        };
        let open = self.open.iter().find(is_parked).ok_or(Rejected::NotAwaited)?;
        let mut events = vec![Event::StepDecided { step, decision: decision.clone(), at: now }];
        match decision {
            Decision::Retry => events.push(self.intend_again_or_wait(open, now)),
            Decision::Done(body) => {
                let settled = match &open.effect {
                    Effect::CallModel { .. } | Effect::Summarize { .. } => {
                        Settled::Replied(ModelReply::new(body.clone(), Vec::new()))
                    }
                    Effect::CallTool { .. }
                    | Effect::Wait { .. }
                    | Effect::AskHuman { .. }
                    | Effect::Delegate { .. } => Settled::Returned(ToolResult::new(body.clone(), false)),
                    Effect::TakeSnapshot => Settled::Kept,
                };
                events.extend(self.settle_and_go_on(now, born, open, settled, Usage::default(), None));
            }
            Decision::Abandon => events.extend(self.finish(now, RunOutcome::Abandoned { step })),
        }
        Ok(events)
    }

    /// The step that was in progress when its worker was lost: if the executor can be probed, it is probed first.
    fn redo(&self, open: &OpenStep, now: Timestamp) -> Event {
        match open.class {
            Class::Probeable => Event::StepProbed { step: open.step, network: Vec::new(), at: now },
            Class::Pure | Class::Model | Class::Keyed | Class::Once => self.intend_again(open, now),
        }
    }

    /// Retries the step, or does so when the run is resumed.
    pub(super) fn intend_again_or_wait(&self, open: &OpenStep, now: Timestamp) -> Event {
        match self.is_paused && self.rules.hold_back_while_paused() {
            true => Event::StepInterrupted { step: open.step, at: now },
            false => self.intend_again(open, now),
        }
    }

    /// Retries the step with the same key. The attempt is recorded and counted.
    pub(super) fn intend_again(&self, open: &OpenStep, now: Timestamp) -> Event {
        let mut reserved = open.reserved;
        // If money is reserved, a failed attempt may have shown that the call costs more.
        if reserved.micros > 0 {
            reserved.micros = reserved.micros.max(self.dearest);
        }
        if let (true, Some(born), Some(_)) = (open.effect.is_of_model(), &self.born, &self.tariff) {
            reserved = self.reservation_of_a_call(&open.effect, &born.agent, self.dearest);
        }
        Event::StepIntended {
            step: open.step,
            attempt: open.attempt.saturating_add(1),
            effect: open.effect.clone(),
            class: open.class,
            reserved,
            at: now,
        }
    }

    pub(super) fn finish(&self, now: Timestamp, outcome: RunOutcome) -> Vec<Event> {
        self.finish_without(None, now, outcome)
    }

    /// The same after that step has been settled.
    pub(super) fn finish_without(&self, settled: Option<u64>, now: Timestamp, outcome: RunOutcome) -> Vec<Event> {
        let left = self.open.iter().map(|open| open.step).filter(|step| settled != Some(*step));
        let abandoned = left.map(|step| Event::StepAbandoned { step, at: now });
        abandoned.chain([Event::RunFinished { outcome, at: now }]).collect()
    }
}

enum Due<'a> {
    /// Its retry.
    Again,
    /// Another try to get the capacity that it needs.
    Begin,
    /// The end of a wait.
    Passed,
    /// The end of the time that an answer may take.
    Unanswered(&'a Unanswered),
}

/// Starts a step that waited for capacity. It is the same attempt, because it had not started before.
fn begin(open: &OpenStep, now: Timestamp) -> Event {
    Event::StepIntended {
        step: open.step,
        attempt: open.attempt,
        effect: open.effect.clone(),
        class: open.class,
        reserved: open.reserved,
        at: now,
    }
}
