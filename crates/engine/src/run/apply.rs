//! How events change a run. Nothing is validated here, so that stored journals always stay readable.

use saggar_domain::{RunId, SnapshotId, Timestamp};

use super::{ANSWER, ANSWERED_MAX, Attempt, Born, MESSAGE, Message, OpenStep, Run, SIGNAL_IDS_MAX, Short};
use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::{Ledger, Spending};
use crate::child::ChildOf;
use crate::effect::{Effect, ToolCall, ToolResult, Usage};
use crate::event::{Event, RunOutcome, Settled};
use crate::snapshots::{Restored, RunFiles};

impl Run {
    /// Applies an event. Every event that `decide` returned for this state, and every prefix of a journal, can be
    /// applied.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::RunStarted { run, agent, child_of, at } => self.start(run, agent, child_of.as_ref(), *at),
            Event::Forked { run, generation, message, is_logical_only, does_again, files, at, .. } => {
                if let Some(born) = &mut self.born {
                    born.id = run.clone();
                    born.generation = *generation;
                    born.started_at = *at;
                    born.is_logical_only = *is_logical_only;
                    born.child_of = None;
                    // It was opened in the name of who started the run. A fork may be another's.
                    born.agent.directory = None;
                }
                self.epoch = 0;
                for open in std::mem::take(&mut self.open) {
                    match does_again {
                        true => self.put_back(open),
                        false => self.drop_open(open),
                    }
                }
                self.is_paused = false;
                self.final_answer = None;
                self.earlier_generations.clear();
                self.short = None;
                self.ledger.release_all();
                self.sandbox_calls = Default::default();
                self.fork_files(files.as_ref());
                self.mark();
                if let Some(message) = message {
                    self.tell(message.clone());
                }
            }
            Event::RolledBack { to, generation, message, files, .. } => {
                self.roll_back(*to, *generation, message.as_ref(), files);
            }
            Event::Claimed { epoch, rules, .. } => {
                self.epoch = *epoch;
                self.rules = *rules;
                // The worker that was doing this has lost its lease.
                for open in self.open.iter_mut().filter(|open| open.is_being_done()) {
                    open.deaths = open.deaths.saturating_add(1);
                }
            }
            Event::Priced { tariff, .. } => self.tariff = Some(tariff.clone()),
            Event::SandboxCalled { calls, .. } => {
                self.ledger.sandbox_called(calls);
                self.sandbox_calls = calls.clone();
            }
            Event::StepIntended { .. } => self.intend(event),
            Event::StepSettled { step, result, usage, snapshot, .. } => {
                self.settle(*step, result, *usage, snapshot.as_deref());
                self.mark();
            }
            Event::Corrected { note, .. } => {
                self.conversation.say(Message::User(note.clone()));
                // The note belongs to the step: a way back to it doesn't leave the model's reply as the last message.
                self.mark();
            }
            Event::StepFailed { step, usage, retry_at, .. } => {
                self.dearest = self.dearest.max(usage.micros);
                let cost = Spending { tokens: usage.tokens, micros: usage.micros, ..Spending::default() };
                self.ledger.settle(Spending::default(), cost);
                self.set_phase(*step, Attempt::Backoff { until: *retry_at });
            }
            Event::StepDelayed { step, retry_at, at, .. } => {
                self.set_phase(*step, Attempt::Delayed { until: *retry_at });
                if let Some(open) = self.open.iter_mut().find(|open| open.step == *step) {
                    open.delayed_since.get_or_insert(*at);
                }
            }
            Event::StepUnknown { step, reason, .. } => {
                self.set_phase(*step, Attempt::Unknown { reason: reason.clone() });
            }
            Event::StepProbed { step, .. } => self.set_phase(*step, Attempt::Probing),
            Event::StepInterrupted { step, .. } => self.set_phase(*step, Attempt::Interrupted),
            // The next event has the decision.
            Event::StepDecided { .. } => {}
            Event::SignalReceived { id, name, body, question, .. } => self.hear(id, name, body, *question),
            Event::BudgetReached { budget, note, .. } => {
                self.short = Some(Short { budget: *budget, is_closing: note.is_some() });
                if let Some(note) = note {
                    // The calls that are left are not made.
                    self.conversation.end();
                    self.conversation.say(Message::User(note.clone()));
                }
            }
            Event::BudgetRaised { id, more, .. } => {
                self.know(id);
                self.short = None;
                self.ledger.raise(*more);
                if let Some(born) = &mut self.born {
                    born.agent.budget = born.agent.budget.raised(*more);
                }
            }
            Event::Paused { .. } => self.is_paused = true,
            Event::Resumed { .. } => self.is_paused = false,
            // The reservation stays, because the parent has to account for it.
            Event::StepAbandoned { step, .. } => {
                if let Some(at) = self.open.iter().position(|open| open.step == *step) {
                    let open = self.open.remove(at);
                    self.drop_open(open);
                }
            }
            Event::RunFinished { outcome, .. } => self.finish_with(outcome),
        }
    }

    fn start(&mut self, run: &RunId, agent: &AgentSpec, child_of: Option<&ChildOf>, at: Timestamp) {
        self.ledger = Ledger::new(agent.budget);
        if let Some(system) = &agent.system {
            self.conversation.say(Message::System(system.clone()));
        }
        self.conversation.say(Message::User(agent.task.clone()));
        let agent = Box::new(agent.clone());
        self.born = Some(Born {
            id: run.clone(),
            agent,
            generation: 0,
            started_at: at,
            is_logical_only: false,
            child_of: child_of.cloned(),
            depth: child_of.map_or(0, |child_of| child_of.depth),
        });
        self.mark();
    }

    fn finish_with(&mut self, outcome: &RunOutcome) {
        self.open.clear();
        self.conversation.end();
        self.outcome = Some(outcome.clone());
    }

    fn intend(&mut self, event: &Event) {
        let Event::StepIntended { step, attempt, effect, class, reserved, at } = event else { return };
        let (step, attempt) = (*step, *attempt);
        let at_index = self.open.iter().position(|open| open.step == step);
        let same = at_index.map(|index| &self.open[index]);
        let mut place = same.map_or(0, |open| open.place);
        if step > self.last_step {
            self.last_step = step;
            if let Some(call) = effect.call() {
                self.repeats.note(call);
                place = self.conversation.take_call();
            }
            match effect {
                Effect::TakeSnapshot => self.snapshots.note_try(step),
                _ if self.agent().is_some_and(|agent| effect.uses_sandbox(agent)) => self.snapshots.note_use(step),
                _ => {}
            }
        }
        // A step keeps its place in the capacity queue through all of its attempts: one that failed, or whose worker died, has not
        // used its turn.
        let delayed_since = same.and_then(|open| open.delayed_since);
        let deaths = same.map_or(0, |open| open.deaths);
        // An attempt that was waiting for capacity starts only now.
        let is_retry = attempt > 1 && same.is_none_or(|open| open.attempt != attempt);
        let before = same.map_or_else(Spending::default, |open| open.reserved);
        let lost = same.filter(|open| is_retry && self.is_lost(open)).map_or_else(Spending::default, |open| Spending {
            tokens: open.reserved.tokens,
            micros: open.reserved.micros,
            ..Spending::default()
        });
        let is_free = matches!(effect, Effect::TakeSnapshot);
        self.ledger.settle(before, Spending { retries: u64::from(is_retry && !is_free), ..lost });
        self.ledger.reserve(*reserved);
        let open = OpenStep {
            step,
            attempt,
            effect: effect.clone(),
            class: *class,
            phase: Attempt::Doing,
            since: *at,
            deaths,
            delayed_since,
            reserved: *reserved,
            place,
        };
        match at_index {
            Some(index) => self.open[index] = open,
            None => self.open.push(open),
        }
    }

    /// Whether an attempt ended without a word, so that all that was set aside for it may have been billed.
    fn is_lost(&self, open: &OpenStep) -> bool {
        let is_priced = open.effect.is_of_model() && self.tariff.is_some();
        is_priced && matches!(open.phase, Attempt::Doing | Attempt::Interrupted | Attempt::Unknown { .. })
    }

    /// Drops a step that was open. A child belongs to the run that started it, so a fork starts its own.
    fn drop_open(&mut self, open: OpenStep) {
        match &open.effect {
            Effect::Delegate { .. } => self.put_back(open),
            Effect::CallModel { .. } | Effect::Summarize { .. } | Effect::TakeSnapshot => {}
            Effect::CallTool { .. } | Effect::Wait { .. } | Effect::AskHuman { .. } => {
                self.conversation.result(open.place, None);
            }
        }
    }

    /// Makes the call of a step that was open one of the next again.
    fn put_back(&mut self, open: OpenStep) {
        if let Some(call) = open.effect.call() {
            self.conversation.put_back(open.place, call.clone());
            self.repeats.take_back();
        }
    }

    fn settle(&mut self, step: u64, result: &Settled, usage: Usage, snapshot: Option<&str>) {
        let Some(at) = self.open.iter().position(|open| open.step == step) else { return };
        let open = self.open.remove(at);
        self.ledger.settle(open.reserved, open.effect.cost(result, usage));
        self.dearest = self.dearest.max(usage.micros);
        let mut is_useful = true;
        if let Settled::Replied(reply) = result {
            let is_useless = self.flaw_of(&open.effect, reply).is_some();
            is_useful = !is_useless;
            self.useless = if is_useless { self.useless.saturating_add(1) } else { 0 };
            if let (Effect::Summarize { through }, false) = (&open.effect, is_useless) {
                self.conversation.sum_up(*through, &reply.text);
                // What was before isn't there to go back to.
                self.marks = Default::default();
            }
        }
        match (result, open.effect.call()) {
            (Settled::Replied(_), _) if matches!(open.effect, Effect::Summarize { .. }) => {}
            (Settled::Replied(reply), _) => {
                self.replies += 1;
                self.conversation.reply(reply);
                let is_answer = is_useful
                    && !self.is_closing()
                    && reply.calls.is_empty()
                    && !self.conversation.has_more()
                    && self.takes_snapshot_at_end();
                self.final_answer = is_answer.then(|| reply.text.clone());
            }
            (Settled::Kept, _) => {
                if let Some(snapshot) = snapshot.and_then(SnapshotId::parse) {
                    self.snapshots.note_taken(step, snapshot);
                }
            }
            (result, Some(call)) => {
                let message = told(call, result).map(|result| Message::Tool { call: call.id.clone(), result });
                self.conversation.result(open.place, message);
            }
            // If a model call gave up, the next event ends the run.
            (Settled::Returned(_) | Settled::GaveUp(_) | Settled::Ended(_), None) => {}
        }
        if let Settled::Returned(ToolResult { restored: Some(files), .. }) = result {
            self.restore(files, step);
        }
        if let (Effect::Wait { signal: Some(name), .. }, Settled::Returned(result)) = (&open.effect, result) {
            self.kept.take(name, &result.content);
            self.conversation.unsay_later(&Message::User(result.content.clone()));
        }
        if self.open.is_empty() {
            self.conversation.rest();
            if !self.conversation.has_more() {
                self.kept.forget_messages();
            }
        }
        if matches!(open.effect, Effect::AskHuman { .. })
            && let Settled::Returned(result) = result
        {
            // An answer that was kept for its question has been used.
            if self.answers.front() == Some(&result.content) {
                self.answers.pop_front();
            }
            if self.answered.len() == ANSWERED_MAX {
                self.answered.pop_front();
            }
            self.answered.push_back((step, result.content.clone()));
        }
    }

    fn know(&mut self, id: &str) {
        if self.signal_ids.len() == SIGNAL_IDS_MAX
            && let Some(oldest) = self.signal_ids.pop_front()
        {
            self.known_signals.remove(&oldest);
        }
        self.signal_ids.push_back(id.to_owned());
        self.known_signals.insert(id.to_owned());
    }

    fn hear(&mut self, id: &str, name: &str, body: &Body, question: Option<u64>) {
        self.know(id);
        match (name, question) {
            // The next event is the step that it settles.
            (ANSWER, Some(_)) => {}
            (ANSWER, None) => self.answers.push_back(body.clone()),
            _ => {
                let is_awaited = self.waits_for(name).is_some();
                let is_told = !is_awaited && self.tell(body.clone());
                if self.rules.wait_for_signals() && !(is_told && name == MESSAGE) {
                    self.kept.keep(name, body);
                }
            }
        }
    }

    /// Whether a snapshot must be taken before it may end with an answer.
    pub(super) fn takes_snapshot_at_end(&self) -> bool {
        self.snapshots.is_used && self.agent().is_some_and(|agent| agent.snapshots.at_end)
    }

    /// A fork keeps the snapshot that it begins with, and no other of its parent's.
    fn fork_files(&mut self, files: Option<&Restored>) {
        self.snapshots.files = RunFiles::default();
        self.snapshots.tried_at = self.last_step;
        if let Some(files) = files {
            self.snapshots.files.kept.extend(files.from.clone());
            self.snapshots.restore(files.clone(), self.last_step, None);
        }
    }

    /// The run goes on in another sandbox. Steps that are still open may use it.
    fn restore(&mut self, files: &Restored, after: u64) {
        let agent = self.agent();
        let uses = |open: &&OpenStep| agent.is_some_and(|agent| open.effect.uses_sandbox(agent));
        let changed_since = self.open.iter().find(uses).map(|open| open.step);
        self.snapshots.restore(files.clone(), after, changed_since);
    }

    /// A person's message. Whether the model has been told, or will be with its next call.
    pub(super) fn tell(&mut self, message: Body) -> bool {
        let is_in_a_turn = !self.open.is_empty() || self.conversation.calls().next().is_some();
        let is_later = is_in_a_turn && self.rules.keep_turns_together();
        self.final_answer = None;
        match is_later {
            true => self.conversation.say_later(Message::User(message)),
            false => self.conversation.say(Message::User(message)),
        }
        !is_later
    }

    fn set_phase(&mut self, step: u64, phase: Attempt) {
        if let Some(open) = self.open.iter_mut().find(|open| open.step == step) {
            open.phase = phase;
        }
    }
}

/// What the model is told about a call; `None` if nothing.
pub(super) fn told(call: &ToolCall, result: &Settled) -> Option<ToolResult> {
    match result {
        Settled::Returned(result) => Some(result.clone()),
        Settled::GaveUp(failure) => {
            Some(ToolResult::new(Body::text(format!("{}: {}", failure.code, failure.message)), true))
        }
        Settled::Ended(end) => Some(end.result()),
        Settled::Replied(_) | Settled::Kept => {
            debug_assert!(false, "this is no result of {}", call.tool);
            None
        }
    }
}

impl Effect {
    /// The tool call that the step comes from.
    pub fn call(&self) -> Option<&ToolCall> {
        match self {
            Self::CallModel { .. } | Self::Summarize { .. } | Self::TakeSnapshot => None,
            Self::CallTool { call }
            | Self::Wait { call, .. }
            | Self::AskHuman { call, .. }
            | Self::Delegate { call, .. } => Some(call),
        }
    }

    /// Whether it may change the files of the run's sandbox.
    pub(super) fn uses_sandbox(&self, agent: &AgentSpec) -> bool {
        let Self::CallTool { call } = self else { return false };
        agent.tools.get(&call.tool).is_some_and(|tool| tool.uses_sandbox)
    }

    /// Its cost, including child runs.
    pub(super) fn cost(&self, result: &Settled, usage: Usage) -> Spending {
        if matches!(self, Self::TakeSnapshot) {
            return Spending::default();
        }
        let own = Spending {
            steps: 1,
            tokens: usage.tokens,
            micros: usage.micros,
            tool_calls: u64::from(self.call().is_some()),
            retries: 0,
            children: u64::from(matches!(self, Self::Delegate { .. })),
        };
        match result {
            Settled::Ended(end) => own.plus(end.spent),
            Settled::Replied(_) | Settled::Returned(_) | Settled::GaveUp(_) | Settled::Kept => own,
        }
    }
}
