//! Rules: how a run decides, by version.
//!
//! A journal is derived again for ever, so a change of behaviour must not change what an old journal means. Each claim records the rules that
//! its worker follows, and everything up to the next claim is decided by them. A worker always follows the newest rules it knows.

use serde::{Deserialize, Serialize};

/// A version of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rules(u32);

impl Rules {
    /// The rules of journals that don't name any.
    pub const FIRST: Self = Self(1);
    /// The rules that a worker follows today.
    pub const NEWEST: Self = Self(2);

    pub(crate) fn is_first(&self) -> bool {
        *self == Self::FIRST
    }

    /// From 2: an answer is taken only by the question that it names. Before, any answer was kept for the next question.
    pub(crate) fn answers_name_their_question(self) -> bool {
        self.0 >= 2
    }
}

impl Rules {
    /// From 2: nothing is done again while the run is paused. Before, a worker that took a paused run redid what the last one had left open.
    pub(crate) fn hold_back_while_paused(self) -> bool {
        self.0 >= 2
    }

    /// From 2: an attempt that ended with its worker is no failed attempt.
    pub(crate) fn count_deaths_apart(self) -> bool {
        self.0 >= 2
    }

    /// From 2: money is set aside before a model is called, and checked before it is called again.
    pub(crate) fn reserve_money(self) -> bool {
        self.0 >= 2
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::FIRST
    }
}
