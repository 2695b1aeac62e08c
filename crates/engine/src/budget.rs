//! Budgets: reserved before an effect, settled after it, so that what is spent is never more than one reservation past a limit.

use serde::{Deserialize, Serialize};

/// What a run may spend; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
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

impl Budget {
    /// The lesser of both, for each.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        let lesser = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            steps: lesser(self.steps, other.steps),
            wall_ms: lesser(self.wall_ms, other.wall_ms),
            tokens: lesser(self.tokens, other.tokens),
            micros: lesser(self.micros, other.micros),
            tool_calls: lesser(self.tool_calls, other.tool_calls),
            retries: lesser(self.retries, other.retries),
            children: lesser(self.children, other.children),
        }
    }

    /// All of it, for whoever sets it aside. Of what has no limit nothing is: nobody has to be kept from it.
    pub fn whole(&self) -> Spending {
        Spending {
            steps: self.steps.unwrap_or(0),
            tokens: self.tokens.unwrap_or(0),
            micros: self.micros.unwrap_or(0),
            tool_calls: self.tool_calls.unwrap_or(0),
            retries: self.retries.unwrap_or(0),
            children: self.children.unwrap_or(0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetName {
    Steps,
    WallMs,
    Tokens,
    Micros,
    /// Calls of tools.
    ToolCalls,
    /// Attempts after the first.
    Retries,
    /// Runs started by it.
    Children,
}

impl BudgetName {
    /// Its name, as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::WallMs => "wall_ms",
            Self::Tokens => "tokens",
            Self::Micros => "micros",
            Self::ToolCalls => "tool_calls",
            Self::Retries => "retries",
            Self::Children => "children",
        }
    }
}

/// So much of everything but time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spending {
    pub steps: u64,
    pub tokens: u64,
    /// Money, in millionths.
    pub micros: u64,
    /// Calls of tools.
    pub tool_calls: u64,
    /// Attempts after the first.
    pub retries: u64,
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

    /// What has been spent, or may have been: an effect that was given up may have cost what was set aside for it.
    pub fn spent_at_most(&self) -> Spending {
        self.spent.plus(self.reserved)
    }

    /// What may still be spent, of everything but time.
    pub fn left(&self) -> Budget {
        let all = self.spent_at_most();
        let left = |limit: Option<u64>, gone: u64| limit.map(|limit| limit.saturating_sub(gone));
        Budget {
            steps: left(self.limit.steps, all.steps),
            wall_ms: None,
            tokens: left(self.limit.tokens, all.tokens),
            micros: left(self.limit.micros, all.micros),
            tool_calls: left(self.limit.tool_calls, all.tool_calls),
            retries: left(self.limit.retries, all.retries),
            children: left(self.limit.children, all.children),
        }
    }

    /// Which budget doesn't allow this on top, if one doesn't. A limit is reached when nothing is left of it: so the last
    /// reservation may overshoot what it was made for by what it turns out to cost, and no second one is made.
    pub fn refuses(&self, wanted: Spending) -> Option<BudgetName> {
        let all = self.spent_at_most().plus(wanted);
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
    fn what_is_left_goes_to_a_child_and_no_more() {
        let mut ledger = Ledger::new(Budget { tokens: Some(100), steps: Some(10), ..Budget::default() });
        ledger.settle(tokens(30));
        ledger.reserve(Spending { steps: 1, ..Spending::default() });
        let own = Budget { tokens: Some(1000), steps: Some(3), retries: Some(5), ..Budget::default() };
        let given = own.within(ledger.left());
        assert_eq!((given.tokens, given.steps, given.retries, given.micros), (Some(70), Some(3), Some(5), None));
        ledger.reserve(given.whole());
        assert_eq!(ledger.refuses(tokens(1)), Some(BudgetName::Tokens), "all of it is set aside");
        assert_eq!((ledger.left().tokens, ledger.left().steps), (Some(0), Some(6)));
    }

    #[test]
    fn counting_stops_at_the_most_there_is() {
        let mut ledger = Ledger::new(Budget { tokens: Some(5), ..Budget::default() });
        ledger.settle(tokens(u64::MAX));
        ledger.settle(tokens(u64::MAX));
        assert_eq!(ledger.refuses(tokens(1)), Some(BudgetName::Tokens));
    }
}
