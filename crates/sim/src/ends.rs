//! What runs have done and how they ended, in a form in which two simulations can be compared.
//!
//! Summaries and snapshots are steps, and when they come depends on when people send messages. So numbers of steps, ids of children and
//! keys, which contain such numbers, differ between two simulations that did the same. Here a step is named by its place among the other
//! steps of its run, and a child by the step that started it. Each result is compared with what its own key should have given.
//!
//! It says what each step asked for and what it got, and leaves out times, attempts and the text of summaries.

use std::collections::{BTreeMap, BTreeSet};

use saggar_domain::RunId;
use saggar_engine::{Body, Effect, EffectKey, Event, Run, Settled};
use saggar_store::BlobHash;

use crate::agents;
use crate::memory::Memory;
use crate::scenario::answer_to;

/// All runs of a simulation, by names that don't depend on faults.
pub(crate) struct Ends {
    runs: BTreeMap<RunId, Told>,
}

struct Told {
    name: String,
    events: Vec<Event>,
    /// Steps that have no place.
    beside: BTreeSet<u64>,
}

impl Ends {
    pub(crate) fn of(memory: &Memory) -> Self {
        let mut ends = Self { runs: BTreeMap::new() };
        for id in memory.ids() {
            if memory.row(&id).is_some_and(|row| row.child_of.is_none()) {
                ends.add(memory, id.clone(), id.to_string());
            }
        }
        ends
    }

    fn add(&mut self, memory: &Memory, id: RunId, name: String) {
        let events = memory.events(&id, <[Event]>::to_vec);
        let beside = intended(&events).filter(|(_, effect)| is_beside(effect)).map(|(step, _)| step).collect();
        let told = Told { name, events, beside };
        let children = intended(&told.events).filter_map(|(step, effect)| match effect {
            Effect::Delegate { child, .. } => Some((child.clone(), format!("{}/{}", told.name, told.place(step)))),
            _ => None,
        });
        let children: Vec<(RunId, String)> = children.collect();
        self.runs.insert(id, told);
        for (child, name) in children {
            if memory.row(&child).is_some() {
                self.add(memory, child, name);
            }
        }
    }

    /// What each run has done and how it ended.
    pub(crate) fn all(&self) -> BTreeMap<String, Vec<String>> {
        self.runs.iter().map(|(id, told)| (told.name.clone(), told.done(id))).collect()
    }

    /// The ledger by names of steps. What is no step's keeps its key.
    pub(crate) fn ledger(&self, ledger: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
        let mut names = BTreeMap::new();
        for (id, told) in &self.runs {
            let mut generation = 0;
            for event in &told.events {
                match event {
                    Event::RolledBack { generation: next, .. } => generation = *next,
                    Event::StepIntended { step, .. } => {
                        let key = EffectKey::of(id, generation, *step);
                        let name = format!("{} {generation} {}", told.name, told.place(*step));
                        names.insert(key.as_str().to_owned(), name);
                    }
                    _ => {}
                }
            }
        }
        ledger.iter().map(|(key, times)| (names.get(key).unwrap_or(key).clone(), *times)).collect()
    }

    /// The number of summaries that were written.
    pub(crate) fn summaries(&self) -> usize {
        let is_one = |told: &Told, event: &Event| match event {
            Event::StepSettled { step, result: Settled::Replied(_), .. } => told.beside.contains(step),
            _ => false,
        };
        self.runs.values().map(|told| told.events.iter().filter(|event| is_one(told, event)).count()).sum()
    }
}

impl Told {
    /// The number of a step without those that have no place.
    fn place(&self, step: u64) -> u64 {
        step - self.beside.range(..step).count() as u64
    }

    fn done(&self, id: &RunId) -> Vec<String> {
        let run = Run::from_events(&self.events);
        let mut results = BTreeMap::new();
        for event in &self.events {
            if let Event::StepSettled { step, result, .. } = event {
                results.insert(*step, result);
            }
        }
        let asked: BTreeMap<u64, &Effect> = intended(&self.events).collect();
        let with_a_place = asked.into_iter().filter(|(step, _)| !self.beside.contains(step));
        let said = with_a_place.map(|(step, effect)| {
            let got = match results.get(&step) {
                Some(result) => got(id, run.generation(), step, effect, result),
                None => "nothing".to_owned(),
            };
            format!("{}: {got}", asked_for(effect))
        });
        let mut said: Vec<String> = said.chain([format!("{:?}", run.outcome())]).collect();
        // A note that arrives during the last call makes the model say its end again.
        said.dedup();
        said
    }
}

fn intended(events: &[Event]) -> impl Iterator<Item = (u64, &Effect)> {
    events.iter().filter_map(|event| match event {
        Event::StepIntended { step, effect, .. } => Some((*step, effect)),
        _ => None,
    })
}

/// Whether it comes when there is occasion for it, and not because the model asked for it.
fn is_beside(effect: &Effect) -> bool {
    matches!(effect, Effect::Summarize { .. } | Effect::TakeSnapshot)
}

fn asked_for(effect: &Effect) -> String {
    match effect.call() {
        Some(call) => format!("{} {} {:?}", call.id, call.tool, call.arguments),
        None => "the model".to_owned(),
    }
}

fn got(id: &RunId, generation: u32, step: u64, effect: &Effect, result: &Settled) -> String {
    let expected = match effect {
        Effect::CallTool { call } => Some(agents::result(&call.tool, EffectKey::of(id, generation, step).as_str())),
        Effect::AskHuman { .. } => Some(answer_to(step)),
        _ => None,
    };
    match (result, expected) {
        (Settled::Returned(given), Some(expected)) if is(&given.content, &expected) && !given.is_error => {
            "its own result".to_owned()
        }
        (Settled::Ended(end), _) => format!("{:?}", end.outcome),
        (result, _) => format!("{result:?}"),
    }
}

fn is(body: &Body, text: &str) -> bool {
    match body {
        Body::Text(given) => given == text,
        Body::Blob { hash, .. } => *hash == BlobHash::of(text.as_bytes()).to_hex(),
    }
}
