//! What programs in a run's sandboxes have asked of models: sums by model, and what is set aside for calls under way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::usage::{TokenUsage, UsageSource};

/// Sums of calls of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallSum {
    pub calls: u64,
    /// Calls whose tokens are in part our own estimate.
    pub estimated: u64,
    pub input: u64,
    pub cached: u64,
    pub written: u64,
    pub output: u64,
    pub reasoning: u64,
    pub micros: u64,
}

impl CallSum {
    pub fn add(&mut self, usage: &TokenUsage) {
        let is_estimated = usage.source == UsageSource::Estimated;
        self.merge(&Self {
            calls: 1,
            estimated: u64::from(is_estimated),
            input: usage.input,
            cached: usage.cached_read,
            written: usage.cache_write,
            output: usage.output,
            reasoning: usage.reasoning,
            micros: usage.cost.0,
        });
    }

    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.calls, other.calls),
            (&mut self.estimated, other.estimated),
            (&mut self.input, other.input),
            (&mut self.cached, other.cached),
            (&mut self.written, other.written),
            (&mut self.output, other.output),
            (&mut self.reasoning, other.reasoning),
            (&mut self.micros, other.micros),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    pub fn amount(&self) -> CallAmount {
        CallAmount { tokens: self.input.saturating_add(self.output), micros: self.micros }
    }
}

/// Tokens and money of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallAmount {
    pub tokens: u64,
    /// Money, in millionths.
    pub micros: u64,
}

impl CallAmount {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(other.tokens), micros: self.micros.saturating_add(other.micros) }
    }

    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// All calls of programs in the sandboxes of one run so far. A newer state replaces an older one: nothing is added up twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxCalls {
    /// Calls that have ended, by the name that the program used.
    pub models: BTreeMap<String, CallSum>,
    /// What is set aside for calls under way.
    #[serde(skip_serializing_if = "CallAmount::is_zero")]
    pub under_way: CallAmount,
}

impl SandboxCalls {
    /// What the calls that have ended came to.
    pub fn settled(&self) -> CallAmount {
        self.models.values().fold(CallAmount::default(), |sum, model| sum.plus(model.amount()))
    }

    /// The most that all of them can have come to.
    pub fn at_most(&self) -> CallAmount {
        self.settled().plus(self.under_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Micros;

    #[test]
    fn calls_are_summed_by_model_and_what_is_under_way_counts_in_full() {
        let mut calls = SandboxCalls::default();
        let usage = TokenUsage { input: 100, output: 20, cost: Micros(7), ..TokenUsage::default() };
        calls.models.entry("a".to_owned()).or_default().add(&usage);
        let usage = TokenUsage { source: UsageSource::Estimated, ..usage };
        calls.models.entry("a".to_owned()).or_default().add(&usage);
        calls.models.entry("b".to_owned()).or_default().add(&usage);
        calls.under_way = CallAmount { tokens: 1_000, micros: u64::MAX };
        assert_eq!((calls.models["a"].calls, calls.models["a"].estimated), (2, 1));
        assert_eq!(calls.settled(), CallAmount { tokens: 360, micros: 21 });
        assert_eq!(calls.at_most(), CallAmount { tokens: 1_360, micros: u64::MAX });
    }
}
