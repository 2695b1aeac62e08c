//! Checks trees of runs: no child exists twice, each child's end is reported to its parent once, and every limit
//! holds for the whole tree.
//!
//! Spending is summed from the journals, event by event, and not taken from the ledgers under test.

use std::collections::BTreeMap;

use saggar_domain::RunId;
use saggar_domain::model::CallAmount;
use saggar_engine::{Budget, Effect, Event, Run, Settled, Spending};

use crate::memory::Memory;

/// All runs of a simulation with their parents.
pub(crate) struct Family {
    runs: BTreeMap<RunId, Member>,
}

struct Member {
    run: Run,
    events: Vec<Event>,
    row_child_of: Option<RunId>,
    /// What calls of models in its sandboxes came to, as the store has it.
    inside: CallAmount,
}

impl Family {
    pub(crate) fn of(memory: &Memory) -> Self {
        let member = |id: RunId| {
            let events = memory.events(&id, <[Event]>::to_vec);
            let row_child_of = memory.row(&id).and_then(|row| row.child_of).map(|(parent, _)| parent);
            let inside = memory.sandbox_calls(&id).settled();
            (id, Member { run: Run::from_events(&events), events, row_child_of, inside })
        };
        Self { runs: memory.ids().into_iter().map(member).collect() }
    }

    /// The number of child runs.
    pub(crate) fn children(&self) -> usize {
        self.runs.values().filter(|member| member.row_child_of.is_some()).count()
    }

    /// The violations.
    pub(crate) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (id, member) in &self.runs {
            if member.run.child_of().map(|of| &of.run) != member.row_child_of.as_ref() {
                wrong.push(format!("{id}: its row and its journal name different parents"));
            }
            match &member.row_child_of {
                Some(parent) => wrong.extend(self.check_child(id, member, parent)),
                None => wrong.extend(self.check_limits(id, member)),
            }
            for child in started(&member.events) {
                if self.runs.get(child).is_none_or(|found| found.row_child_of.as_ref() != Some(id)) {
                    wrong.push(format!("{id} intended {child}, and there is no such child"));
                }
            }
        }
        wrong
    }

    /// A child must be intended once, and its end reported once unless its parent ended first.
    fn check_child(&self, id: &RunId, child: &Member, parent: &RunId) -> Option<String> {
        let Some(parent) = self.runs.get(parent) else { return Some(format!("{id} has no parent")) };
        let intended = started(&parent.events).filter(|child| *child == id).count();
        let ends: Vec<_> = parent
            .events
            .iter()
            .filter_map(|event| match event {
                Event::StepSettled { result: Settled::Ended(end), .. } if end.child == *id => Some(end),
                _ => None,
            })
            .collect();
        let is_given_up = parent.events.iter().any(|event| {
            matches!(event, Event::StepAbandoned { step, .. }
            if child.run.child_of().is_some_and(|of| of.step == *step))
        });
        if intended != 1 || ends.len() != usize::from(!is_given_up) {
            return Some(format!("{id} was intended {intended} times, and its end told {} times", ends.len()));
        }
        let own = child.run.end_for_parent().map(|(_, end)| end);
        (!is_given_up && ends.first() != own.as_ref().as_ref()).then(|| format!("{id} ended otherwise than was told"))
    }

    /// The spending of a whole tree must be within the limits of its first run, and must match that run's ledger.
    fn check_limits(&self, id: &RunId, first: &Member) -> Option<String> {
        let tree: Vec<&Member> = self.below(id);
        let total = tree
            .iter()
            .map(|member| spent(&member.events).plus(member.inside.into()))
            .fold(Spending::default(), Spending::plus);
        let (limit, ledger) = (first.run.ledger().limit(), first.run.ledger());
        // A reply costs 1, which is what the first call reserves, so no limit is exceeded.
        if let Some(what) = past(&limit, total) {
            return Some(format!("{id}: its tree has spent {what}: {total:?} of {limit:?}"));
        }
        let is_given_up =
            |member: &&Member| member.events.iter().any(|event| matches!(event, Event::StepAbandoned { .. }));
        let most = ledger.spent_at_most();
        let has_calls = tree.iter().any(|member| !member.inside.is_zero());
        // Calls that ended after their run may have come to less than was set aside. Those of a first run are told to nobody.
        let told = tree.iter().map(|member| member.run.sandbox_calls().at_most());
        let told = told.fold(CallAmount::default(), CallAmount::plus);
        let all = tree.iter().map(|member| member.inside).fold(CallAmount::default(), CallAmount::plus);
        let unseen = Spending::from(all).minus(told.into());
        let is_right = if has_calls {
            covers(&limit, most.plus(unseen), total)
        } else if tree.iter().any(is_given_up) {
            covers(&limit, most, total)
        } else {
            most == total
        };
        (!is_right).then(|| format!("{id}: its ledger says {most:?}, and its tree has spent {total:?}"))
    }

    /// A run and all its descendants.
    fn below(&self, id: &RunId) -> Vec<&Member> {
        let mut tree: Vec<&Member> = self.runs.get(id).into_iter().collect();
        let children = self.runs.iter().filter(|(_, member)| member.row_child_of.as_ref() == Some(id));
        tree.extend(children.flat_map(|(child, _)| self.below(child)));
        tree
    }
}

fn started(events: &[Event]) -> impl Iterator<Item = &RunId> {
    events.iter().filter_map(|event| match event {
        Event::StepIntended { effect: Effect::Delegate { child, .. }, .. } => Some(child),
        _ => None,
    })
}

/// What one run spent itself.
fn spent(events: &[Event]) -> Spending {
    let mut all = Spending::default();
    let mut begun: BTreeMap<u64, (u32, &Effect)> = BTreeMap::new();
    for event in events {
        match event {
            Event::StepIntended { step, attempt, effect, .. } => {
                // A step that waited for capacity starts again as the same attempt.
                let before = begun.insert(*step, (*attempt, effect)).map(|(attempt, _)| attempt);
                let is_free = matches!(effect, Effect::TakeSnapshot);
                all.retries += u64::from(*attempt > 1 && before != Some(*attempt) && !is_free);
            }
            Event::StepSettled { step, usage, .. } => {
                let effect = begun.get(step).map(|(_, effect)| *effect);
                all.steps += u64::from(!matches!(effect, Some(Effect::TakeSnapshot)));
                all.tokens += usage.tokens;
                all.micros += usage.micros;
                all.tool_calls += u64::from(effect.is_some_and(|effect| effect.call().is_some()));
                all.children += u64::from(matches!(effect, Some(Effect::Delegate { .. })));
            }
            Event::StepFailed { usage, .. } => {
                all.tokens += usage.tokens;
                all.micros += usage.micros;
            }
            _ => {}
        }
    }
    all
}

/// The first limit that is exceeded. A retry after a lost worker is never refused, so retries are not checked.
fn past(limit: &Budget, spent: Spending) -> Option<&'static str> {
    let is_past = |limit: Option<u64>, spent: u64| limit.is_some_and(|limit| spent > limit);
    [
        ("too many steps", is_past(limit.steps, spent.steps)),
        ("too many tokens", is_past(limit.tokens, spent.tokens)),
        ("too much money", is_past(limit.micros, spent.micros)),
        ("too many calls", is_past(limit.tool_calls, spent.tool_calls)),
        ("too many children", is_past(limit.children, spent.children)),
    ]
    .into_iter()
    .find_map(|(what, is_past)| is_past.then_some(what))
}

/// Whether the ledger's upper bound covers the actual spending, for everything that has a limit.
fn covers(limit: &Budget, most: Spending, spent: Spending) -> bool {
    let covers = |limit: Option<u64>, most: u64, spent: u64| limit.is_none() || most >= spent;
    covers(limit.steps, most.steps, spent.steps)
        && covers(limit.tokens, most.tokens, spent.tokens)
        && covers(limit.micros, most.micros, spent.micros)
        && covers(limit.tool_calls, most.tool_calls, spent.tool_calls)
        && covers(limit.children, most.children, spent.children)
}
