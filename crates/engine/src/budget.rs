//! Budgets: reserved before an effect, settled after it, so that what is spent is never more than one reservation past a limit.

use serde::{Deserialize, Serialize};

/// What a run may spend; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Steps.
    pub steps: Option<u64>,
    /// Milliseconds from its start, paused or not.
    pub wall_ms: Option<u64>,
    /// Tokens of models, read and written.
    pub tokens: Option<u64>,
    /// Money, in millionths.
    pub micros: Option<u64>,
    /// Calls of tools.
    pub tool_calls: Option<u64>,
    /// Attempts after the first, of all steps together.
    pub retries: Option<u64>,
    /// Runs started by it.
    pub children: Option<u64>,
}

/// Which budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetName {
    /// Steps.
    Steps,
    /// Time.
    WallMs,
    /// Tokens.
    Tokens,
    /// Money.
    Micros,
    /// Calls of tools.
    ToolCalls,
    /// Attempts after the first.
    Retries,
    /// Runs started by it.
    Children,
}

/// So much of everything but time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spending {
    /// Steps.
    pub steps: u64,
    /// Tokens.
    pub tokens: u64,
    /// Money, in millionths.
    pub micros: u64,
    /// Calls of tools.
    pub tool_calls: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Runs started.
    pub children: u64,
}

impl Spending {
    /// Both together. What can't be counted any more stays at the most there is, and over every limit.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps.saturating_add(other.steps),
            tokens: self.tokens.saturating_add(other.tokens),
            micros: self.micros.saturating_add(other.micros),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
            retries: self.retries.saturating_add(other.retries),
            children: self.children.saturating_add(other.children),
        }
    }
}

/// What a run may spend, has spent, and has set aside for the effect under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    limit: Budget,
    spent: Spending,
    reserved: Spending,
}

impl Ledger {
    /// A ledger with nothing spent.
    pub fn new(limit: Budget) -> Self {
        Self { limit, ..Self::default() }
    }

    /// What has been spent.
    pub fn spent(&self) -> Spending {
        self.spent
    }

    /// What is set aside.
    pub fn reserved(&self) -> Spending {
        self.reserved
    }

    /// What may be spent.
    pub fn limit(&self) -> Budget {
        self.limit
    }

    /// Which budget doesn't allow this on top, if one doesn't. A limit is reached when nothing is left of it: so the last
    /// reservation may overshoot what it was made for by what it turns out to cost, and no second one is made.
    pub fn refuses(&self, wanted: Spending) -> Option<BudgetName> {
        let all = self.spent.plus(self.reserved).plus(wanted);
        let limit = &self.limit;
        [
            (BudgetName::Steps, all.steps, limit.steps),
            (BudgetName::Tokens, all.tokens, limit.tokens),
            (BudgetName::Micros, all.micros, limit.micros),
            (BudgetName::ToolCalls, all.tool_calls, limit.tool_calls),
            (BudgetName::Retries, all.retries, limit.retries),
            (BudgetName::Children, all.children, limit.children),
        ]
        .into_iter()
        .find_map(|(name, wanted, limit)| limit.is_some_and(|limit| wanted > limit).then_some(name))
    }

    /// Sets aside.
    pub fn reserve(&mut self, wanted: Spending) {
        self.reserved = self.reserved.plus(wanted);
    }

    /// What was set aside turned out to cost this.
    pub fn settle(&mut self, cost: Spending) {
        self.reserved = Spending::default();
        self.spent = self.spent.plus(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(tokens: u64) -> Spending {
        Spending { tokens, ..Spending::default() }
    }

    #[test]
    fn a_reservation_past_a_limit_is_refused_by_name() {
        let mut ledger = Ledger::new(Budget { tokens: Some(100), steps: Some(10), ..Budget::default() });
        assert_eq!(ledger.refuses(tokens(100)), None);
        ledger.reserve(tokens(60));
        assert_eq!(ledger.refuses(tokens(60)), Some(BudgetName::Tokens));
        // It cost more than was set aside: that is the most a budget is overshot by.
        ledger.settle(tokens(130));
        assert_eq!(ledger.spent().tokens, 130);
        assert_eq!(ledger.refuses(tokens(0)), Some(BudgetName::Tokens));
        assert_eq!(ledger.refuses(tokens(1)), Some(BudgetName::Tokens));
    }

    #[test]
    fn counting_stops_at_the_most_there_is() {
        let mut ledger = Ledger::new(Budget { tokens: Some(5), ..Budget::default() });
        ledger.settle(tokens(u64::MAX));
        ledger.settle(tokens(u64::MAX));
        assert_eq!(ledger.refuses(tokens(1)), Some(BudgetName::Tokens));
    }
}
