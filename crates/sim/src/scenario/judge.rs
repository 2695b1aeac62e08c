//! Judges a simulation that is over: what must hold for every journal, row and effect, whatever happened.

use std::collections::BTreeMap;

use saggar_domain::RunId;
use saggar_engine::{Body, Effect, EffectKey, Event, Run, RunFiles, Settled};

use super::{ScenarioOutcome, Simulation, answer_to};
use crate::ends::Ends;
use crate::family::Family;
use crate::world::check_replay;

impl Simulation {
    pub(super) fn judge(mut self) -> ScenarioOutcome {
        for worker in 0..self.workers.len() {
            self.kill(worker);
        }
        let mut taken_over_amid_several = 0;
        let mut rollbacks = 0;
        let mut waited_for_calls = 0;
        let (_, _, _, ledger) = self.world.close();
        for id in self.memory.ids() {
            let events = self.memory.events(&id, <[Event]>::to_vec);
            if let Err(what) = check_replay(&events) {
                self.world.violation(format!("{id}: {what}"));
            }
            taken_over_amid_several += taken_over(&events);
            waited_for_calls += waited(&events);
            for (run, letter) in self.told.iter().filter(|(run, _)| *run == id) {
                let is_it = |event: &&Event| matches!(event, Event::SignalReceived { id, .. } if id == letter);
                let times = events.iter().filter(is_it).count();
                // A run that has ended needs no letter any more; every letter is received at most once.
                if times > 1 || (times == 0 && !self.is_over(run)) {
                    self.world.violation(format!("{run}: {letter} was heard {times} times"));
                }
            }
            rollbacks += events.iter().filter(|event| matches!(event, Event::RolledBack { .. })).count();
            for what in self.world.check_files(&id, &events) {
                self.world.violation(what);
            }
            self.check_row(&id, &events);
            self.check_effects(&id, &events, &ledger);
            self.check_answers(&id, &events);
            self.check_pauses(&id, &events);
        }
        for what in self.inside.check() {
            self.world.violation(what);
        }
        for run in self.world.sandboxes() {
            self.world.violation(format!("the sandbox of {run} lives on"));
        }
        let family = Family::of(&self.memory);
        for what in family.check() {
            self.world.violation(what);
        }
        let (snapshots, losses) = self.world.snapshots();
        let children = family.children();
        let (trace, violations, calls, ledger) = self.world.close();
        let ends = Ends::of(&self.memory);
        ScenarioOutcome {
            trace,
            violations,
            calls,
            ledger: ends.ledger(&ledger),
            ends: ends.all(),
            summaries: ends.summaries(),
            children,
            taken_over_amid_several,
            snapshots,
            losses,
            rollbacks,
            calls_inside: self.inside.begun,
            calls_refused: self.inside.refused,
            waited_for_calls,
        }
    }

    /// The row names the snapshots that the journal does: they are kept by it.
    fn check_row(&self, id: &RunId, events: &[Event]) {
        let run = Run::from_events(events);
        let row = self.memory.row(id);
        let stored: RunFiles = row.as_ref().and_then(|row| row.files.as_ref()?.to_value().ok()).unwrap_or_default();
        if stored != *run.files() || row.is_some_and(|row| row.generation != run.generation()) {
            self.world.violation(format!("{id}: its row has {stored:?}, and its journal {:?}", run.files()));
        }
    }

    /// Each question must have the answer that was given to it, even if other answers were repeated.
    fn check_answers(&self, id: &RunId, events: &[Event]) {
        let asked = events.iter().filter_map(|event| match event {
            Event::StepIntended { step, effect: Effect::AskHuman { .. }, .. } => Some(*step),
            _ => None,
        });
        for asked in asked {
            let expected = Body::text(answer_to(asked));
            let is_other = |event: &&Event| matches!(event, Event::StepSettled { step, result: Settled::Returned(given), .. } if *step == asked && given.content != expected);
            if let Some(other) = events.iter().find(is_other) {
                self.world.violation(format!("{id}: question {asked} was given the answer of another: {other:?}"));
            }
        }
    }

    /// Nothing may start or be redone while a run is paused.
    fn check_pauses(&self, id: &RunId, events: &[Event]) {
        let mut is_paused = false;
        for event in events {
            match event {
                Event::Paused { .. } => is_paused = true,
                Event::Resumed { .. } => is_paused = false,
                Event::StepIntended { step, attempt, .. } if is_paused => {
                    self.world.violation(format!("{id}: attempt {attempt} of step {step} began while it was paused"));
                }
                _ => {}
            }
        }
    }

    /// Checks the outside ledger: no effect done twice unless its class allows it, and none recorded as done that
    /// wasn't.
    fn check_effects(&self, id: &RunId, events: &[Event], ledger: &BTreeMap<String, u64>) {
        let mut generation = 0;
        for event in events {
            if let Event::RolledBack { generation: next, .. } = event {
                generation = *next;
            }
            let Event::StepIntended { step, effect, attempt: 1, .. } = event else { continue };
            let is_done_here = |tool: &str| matches!(tool, "wait" | "ask_human" | "delegate");
            let Some(call) = effect.call().filter(|call| !is_done_here(&call.tool)) else { continue };
            let key = EffectKey::of(id, generation, *step);
            let times = ledger.get(key.as_str()).copied().unwrap_or(0);
            let is_it = |event: &Event| matches!(event, Event::StepSettled { step: of, result: Settled::Returned(result), .. } if of == step && result.restored.is_none());
            // An abandoned effect may or may not have been done.
            let least = u64::from(events.iter().any(is_it));
            let is_right = match call.tool.as_str() {
                "pure" => times >= least,
                _ => (least..=1).contains(&times),
            };
            if !is_right {
                self.world.violation(format!("{} ({}) was done {times} times", key.as_str(), call.tool));
            }
        }
    }
}

/// How many workers claimed a run while several of its steps were open.
fn taken_over(events: &[Event]) -> usize {
    let mut run = Run::new();
    let mut count = 0;
    for event in events {
        count += usize::from(matches!(event, Event::Claimed { .. }) && run.open_steps().len() > 1);
        run.apply(event);
    }
    count
}

/// How often a run waited for calls in its sandboxes.
fn waited(events: &[Event]) -> usize {
    let mut run = Run::new();
    let waits = events.iter().map(|event| {
        run.apply(event);
        run.waits_for_sandboxes()
    });
    let waits: Vec<bool> = waits.collect();
    waits.windows(2).filter(|two| *two == [false, true]).count()
}
