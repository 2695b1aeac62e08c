//! Budgets: reserved before an effect and settled after it, so that spending exceeds a limit by at most one
//! reservation.

use saggar_domain::model::{CallAmount, SandboxCalls};
use serde::{Deserialize, Serialize};

/// Limits of what a run may spend; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    pub steps: Option<u64>,
    /// Milliseconds since its start, pauses included.
    pub wall_ms: Option<u64>,
    /// Model tokens, input and output.
    pub tokens: Option<u64>,
    /// Money, in millionths.
    pub micros: Option<u64>,
    pub tool_calls: Option<u64>,
    /// Attempts after the first, summed over all steps.
    pub retries: Option<u64>,
    /// Child runs.
    pub children: Option<u64>,
}

impl Budget {
    /// The lower of both limits, for each field.
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

    /// The limits with so much more. A limit that doesn't exist stays so.
    #[must_use]
    pub fn raised(self, more: Self) -> Self {
        let sum = |limit: Option<u64>, more: Option<u64>| limit.map(|limit| limit.saturating_add(more.unwrap_or(0)));
        Self {
            steps: sum(self.steps, more.steps),
            wall_ms: sum(self.wall_ms, more.wall_ms),
            tokens: sum(self.tokens, more.tokens),
            micros: sum(self.micros, more.micros),
            tool_calls: sum(self.tool_calls, more.tool_calls),
            retries: sum(self.retries, more.retries),
            children: sum(self.children, more.children),
        }
    }

    /// One of so many equal shares.
    #[must_use]
    pub fn shared(self, shares: u64) -> Self {
        let share = |limit: Option<u64>| limit.map(|limit| limit / shares.max(1));
        Self {
            steps: share(self.steps),
            wall_ms: self.wall_ms,
            tokens: share(self.tokens),
            micros: share(self.micros),
            tool_calls: share(self.tool_calls),
            retries: share(self.retries),
            children: share(self.children),
        }
    }

    /// The whole budget as a reservation. Unlimited fields reserve nothing, because they can't run out.
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
    ToolCalls,
    Retries,
    Children,
}

impl BudgetName {
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

/// Amounts of everything except time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spending {
    pub steps: u64,
    pub tokens: u64,
    /// Money, in millionths.
    pub micros: u64,
    pub tool_calls: u64,
    /// Attempts after the first.
    pub retries: u64,
    pub children: u64,
}

impl Spending {
    /// The sum. An overflow saturates, which exceeds every limit.
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

    /// The rest; nothing becomes negative.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            steps: self.steps.saturating_sub(other.steps),
            tokens: self.tokens.saturating_sub(other.tokens),
            micros: self.micros.saturating_sub(other.micros),
            tool_calls: self.tool_calls.saturating_sub(other.tool_calls),
            retries: self.retries.saturating_sub(other.retries),
            children: self.children.saturating_sub(other.children),
        }
    }
}

impl From<CallAmount> for Spending {
    fn from(CallAmount { tokens, micros }: CallAmount) -> Self {
        Self { tokens, micros, ..Self::default() }
    }
}

/// A run's limits, its spending, and the reservations for the effects in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    limit: Budget,
    spent: Spending,
    reserved: Spending,
    /// Of programs in the run's sandboxes: what their calls of models came to, and what is set aside for those under way.
    sandbox_spent: CallAmount,
    sandbox_reserved: CallAmount,
}

impl Ledger {
    pub fn new(limit: Budget) -> Self {
        Self { limit, ..Self::default() }
    }

    pub fn spent(&self) -> Spending {
        self.spent.plus(self.sandbox_spent.into())
    }

    /// Of its own effects.
    pub fn reserved(&self) -> Spending {
        self.reserved
    }

    pub fn limit(&self) -> Budget {
        self.limit
    }

    /// An upper bound of the spending: an abandoned effect may have cost all that was reserved for it.
    pub fn spent_at_most(&self) -> Spending {
        self.spent().plus(self.reserved).plus(self.sandbox_reserved.into())
    }

    /// Whether calls of programs in its sandboxes are under way that may leave some of this budget.
    pub fn may_come_back(&self, budget: BudgetName) -> bool {
        match budget {
            BudgetName::Tokens => self.sandbox_reserved.tokens > 0,
            BudgetName::Micros => self.sandbox_reserved.micros > 0,
            BudgetName::Steps
            | BudgetName::WallMs
            | BudgetName::ToolCalls
            | BudgetName::Retries
            | BudgetName::Children => false,
        }
    }

    /// What is left for programs in its sandboxes, without what they have asked of models so far: that is counted where
    /// they ask.
    pub fn left_for_sandboxes(&self) -> Budget {
        Self { sandbox_spent: CallAmount::default(), sandbox_reserved: CallAmount::default(), ..*self }.left()
    }

    /// The remaining budget, except for time.
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

    /// The first budget that doesn't allow this amount in addition, if any. A limit is reached when nothing is left
    /// of it. So the last effect may cost more than was reserved for it, but no further reservation is made.
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

    /// Replaces a reservation by the actual cost.
    pub fn settle(&mut self, reserved: Spending, cost: Spending) {
        self.reserved = self.reserved.minus(reserved);
        self.spent = self.spent.plus(cost);
    }

    /// What programs in its sandboxes have asked of models so far.
    pub fn sandbox_called(&mut self, calls: &SandboxCalls) {
        (self.sandbox_spent, self.sandbox_reserved) = (calls.settled(), calls.under_way);
    }

    /// The limits become higher.
    pub fn raise(&mut self, more: Budget) {
        self.limit = self.limit.raised(more);
    }

    /// Nothing is in progress, and no sandbox is left. What has been spent stays spent.
    pub fn release_all(&mut self) {
        *self = Self { spent: self.spent(), ..Self::new(self.limit) };
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
        // The actual cost exceeded the reservation: this is the largest possible overshoot.
        ledger.settle(tokens(60), tokens(130));
        assert_eq!(ledger.spent().tokens, 130);
        assert_eq!(ledger.refuses(tokens(0)), Some(BudgetName::Tokens));
        assert_eq!(ledger.refuses(tokens(1)), Some(BudgetName::Tokens));
    }

    #[test]
    fn what_is_left_goes_to_a_child_and_no_more() {
        let mut ledger = Ledger::new(Budget { tokens: Some(100), steps: Some(10), ..Budget::default() });
        ledger.settle(Spending::default(), tokens(30));
        ledger.reserve(Spending { steps: 1, ..Spending::default() });
        let own = Budget { tokens: Some(1000), steps: Some(3), retries: Some(5), ..Budget::default() };
        let given = own.within(ledger.left());
        assert_eq!((given.tokens, given.steps, given.retries, given.micros), (Some(70), Some(3), Some(5), None));
        ledger.reserve(given.whole());
        assert_eq!(ledger.refuses(tokens(1)), Some(BudgetName::Tokens), "all of it is set aside");
        assert_eq!((ledger.left().tokens, ledger.left().steps), (Some(0), Some(6)));
    }

    #[test]
    fn each_effect_in_progress_has_its_own_reservation() {
        let mut ledger = Ledger::new(Budget { tokens: Some(100), ..Budget::default() });
        ledger.reserve(tokens(40));
        ledger.reserve(tokens(50));
        assert_eq!(ledger.refuses(tokens(11)), Some(BudgetName::Tokens));
        ledger.settle(tokens(40), tokens(5));
        assert_eq!((ledger.reserved().tokens, ledger.spent().tokens, ledger.left().tokens), (50, 5, Some(45)));
        assert_eq!((ledger.refuses(tokens(45)), ledger.refuses(tokens(46))), (None, Some(BudgetName::Tokens)));
    }

    #[test]
    fn counting_stops_at_the_most_there_is() {
        let mut ledger = Ledger::new(Budget { tokens: Some(5), ..Budget::default() });
        ledger.settle(Spending::default(), tokens(u64::MAX));
        ledger.settle(Spending::default(), tokens(u64::MAX));
        assert_eq!(ledger.refuses(tokens(1)), Some(BudgetName::Tokens));
    }
}
