//! Programs in the sandboxes of runs: they call models whenever they like, and know nothing of workers.
//!
//! It keeps its own books of what each call came to, which journals and budgets are compared with.

use std::collections::BTreeMap;

use saggar_domain::model::{CallAmount, Micros, TokenUsage};
use saggar_domain::{RunId, RunState};
use saggar_engine::{Event, Run};

use crate::chance::Chance;
use crate::memory::Memory;

#[derive(Debug)]
pub(crate) struct Inside {
    memory: Memory,
    chance: Chance,
    /// Whether new calls begin. Those under way end in any case.
    pub(crate) begins_more: bool,
    under_way: Vec<(RunId, CallAmount)>,
    /// What calls of each run came to.
    spent: BTreeMap<RunId, u64>,
    pub(crate) begun: u64,
    pub(crate) refused: u64,
}

impl Inside {
    pub(crate) fn new(seed: u64, memory: Memory) -> Self {
        Self {
            memory,
            chance: Chance::new(seed ^ 0x1_4513),
            begins_more: true,
            under_way: Vec::new(),
            spent: BTreeMap::new(),
            begun: 0,
            refused: 0,
        }
    }

    /// Some call begins, and some other ends.
    pub(crate) fn turn(&mut self) {
        let ids = self.memory.ids();
        let run = &ids[self.chance.below(ids.len() as u64) as usize];
        // A run has no sandbox before its first worker has recorded something.
        let has_sandbox = self.memory.row(run).is_some_and(|row| row.state != RunState::Finished && row.head > 1);
        // A journal has as many copies of what they came to as it has commits, so there are not too many.
        if self.begins_more && has_sandbox && self.chance.per_mille(500) {
            let most = 1 + self.chance.below(4);
            let amount = CallAmount { tokens: most, micros: most };
            match self.memory.begin_call(run, amount) {
                true => {
                    self.begun += 1;
                    self.under_way.push((run.clone(), amount));
                }
                false => self.refused += 1,
            }
        }
        if !self.under_way.is_empty() && (!self.begins_more || self.chance.per_mille(200)) {
            let at = self.chance.below(self.under_way.len() as u64) as usize;
            let (run, amount) = self.under_way.swap_remove(at);
            let cost = self.chance.below(amount.micros + 1);
            let usage = TokenUsage { input: cost, cost: Micros(cost), ..TokenUsage::default() };
            self.memory.end_call(&run, amount, &usage);
            *self.spent.entry(run).or_default() += cost;
        }
    }

    /// The violations: what a journal has is what the calls came to when it was written, and the end of a child is at least that.
    pub(crate) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (run, spent) in &self.spent {
            let own = self.memory.sandbox_calls(run);
            if own.settled().micros != *spent {
                wrong.push(format!("{run}: its sandboxes spent {spent}, and the store says {own:?}"));
            }
            let journal = self.memory.events(run, |events: &[Event]| Run::from_events(events));
            if journal.sandbox_calls().settled().micros > *spent {
                let told = journal.sandbox_calls();
                wrong.push(format!("{run}: its sandboxes spent {spent}, and its journal says {told:?}"));
            }
            if journal.child_of().is_some() && journal.sandbox_calls().at_most().micros < *spent {
                wrong.push(format!("{run}: its sandboxes spent {spent}, and its parent was told of less"));
            }
        }
        wrong
    }
}
