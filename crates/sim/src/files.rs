//! The files of sandboxes: each effect in one leaves its key there. A snapshot is a copy, and a sandbox that is lost is
//! replaced by one with the copy that the run's journal names.
//!
//! The invariants: a snapshot has what the settled steps before it left, and nothing of a step that isn't settled; every
//! snapshot that an entry names exists, and is that step's.

use std::collections::{BTreeMap, BTreeSet};

use saggar_domain::{RunId, SnapshotId};
use saggar_engine::{EffectKey, Event, Restored, Settled, ToolResult};

/// The keys of the effects that were done in it.
type Content = BTreeSet<String>;

#[derive(Debug, Default)]
pub(crate) struct Files {
    /// By run and generation.
    sandboxes: BTreeMap<(RunId, u32), Content>,
    snapshots: BTreeMap<SnapshotId, (EffectKey, Content)>,
    /// What was in sandboxes that were lost: their steps may be settled later.
    lost: Content,
    /// How many were lost.
    pub(crate) losses: u64,
}

impl Files {
    /// An effect is done in the sandbox, which is made with those files if there is none.
    pub(crate) fn change(&mut self, run: &RunId, generation: u32, from: &Restored, key: &str) {
        let content = self.content(from);
        self.sandboxes.entry((run.clone(), generation)).or_insert(content).insert(key.to_owned());
    }

    /// The sandbox is lost if there is one, and replaced by one with those files.
    pub(crate) fn lose(&mut self, run: &RunId, generation: u32, from: &Restored) -> bool {
        let content = self.content(from);
        let Some(lost) = self.sandboxes.get_mut(&(run.clone(), generation)) else { return false };
        self.lost.extend(std::mem::replace(lost, content));
        self.losses += 1;
        true
    }

    /// Takes a snapshot, or finds the one that the same step took.
    pub(crate) fn take(&mut self, run: &RunId, generation: u32, key: &EffectKey) -> Option<SnapshotId> {
        let content = self.sandboxes.get(&(run.clone(), generation))?.clone();
        let id = SnapshotId::from_random(key.bits());
        self.snapshots.entry(id.clone()).or_insert_with(|| (key.clone(), content));
        Some(id)
    }

    fn content(&self, from: &Restored) -> Content {
        let kept = from.from.as_ref().and_then(|kept| self.snapshots.get(&kept.snapshot));
        kept.map(|(_, content)| content.clone()).unwrap_or_default()
    }

    /// The violations of a run's journal.
    pub(crate) fn check(&self, run: &RunId, events: &[Event]) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut generation = 0;
        // What the journal says that the sandbox has.
        let mut expected = Content::new();
        let mut uses: BTreeMap<u64, bool> = BTreeMap::new();
        for event in events {
            match event {
                Event::StepIntended { step, effect, .. } => {
                    let tool = effect.call().map(|call| call.tool.as_str());
                    uses.insert(*step, tool.is_some_and(|tool| crate::world::IN_A_SANDBOX.contains(&tool)));
                }
                Event::RolledBack { generation: next, files, .. } => {
                    generation = *next;
                    expected = self.content(files);
                }
                Event::StepSettled { step, result, snapshot, .. } => match (result, snapshot) {
                    (Settled::Returned(ToolResult { restored: Some(files), .. }), _) => expected = self.content(files),
                    (Settled::Returned(_), _) if uses.get(step) == Some(&true) => {
                        expected.insert(EffectKey::of(run, generation, *step).as_str().to_owned());
                    }
                    (Settled::Kept, Some(id)) => {
                        let key = EffectKey::of(run, generation, *step);
                        let found = SnapshotId::parse(id).and_then(|id| self.snapshots.get(&id));
                        let Some((_, content)) = found.filter(|(of, _)| *of == key) else {
                            wrong.push(format!("{run}: step {step} names a snapshot that isn't its own: {id}"));
                            continue;
                        };
                        let missing: Vec<_> =
                            expected.difference(content).filter(|key| !self.lost.contains(*key)).collect();
                        let unsettled: Vec<_> = content.difference(&expected).collect();
                        if !missing.is_empty() || !unsettled.is_empty() {
                            wrong.push(format!(
                                "{run}: snapshot of step {step} lacks {missing:?} and has {unsettled:?}"
                            ));
                        }
                        expected.clone_from(content);
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        wrong
    }

    /// Number of snapshots.
    pub(crate) fn taken(&self) -> usize {
        self.snapshots.len()
    }
}
