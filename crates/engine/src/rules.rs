//! Rules: versioned behaviour of the engine.
//!
//! Journals can be replayed forever, so a change of behaviour must not change the meaning of an old journal. Each
//! claim records the rules that its worker follows, and everything up to the next claim is decided by them. A worker
//! always follows the newest rules it knows.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rules(u32);

impl Rules {
    /// The rules of journals that don't name any.
    pub const FIRST: Self = Self(1);
    /// The rules that workers of this version follow.
    pub const NEWEST: Self = Self(3);

    pub(crate) fn is_first(&self) -> bool {
        *self == Self::FIRST
    }

    /// From version 2, an answer is accepted only for the question that it names. Before, any answer was kept for the
    /// next question.
    pub(crate) fn answers_name_their_question(self) -> bool {
        self.0 >= 2
    }

    /// From version 2, nothing is redone while the run is paused. Before, a worker that claimed a paused run redid
    /// the open step.
    pub(crate) fn hold_back_while_paused(self) -> bool {
        self.0 >= 2
    }

    /// From version 2, an attempt that ended because its worker died doesn't count as a failed attempt.
    pub(crate) fn count_deaths_apart(self) -> bool {
        self.0 >= 2
    }

    /// From version 2, money is reserved before a model call and checked before the next.
    pub(crate) fn reserve_money(self) -> bool {
        self.0 >= 2
    }

    /// From version 3, several steps may be open at once. Before, the calls of a reply were made one after the other.
    pub(crate) fn allow_several_steps(self) -> bool {
        self.0 >= 3
    }

    /// From version 3, a message that arrives between a call of the model and its result comes after the result, and
    /// one that the model has not seen keeps the run from ending. Before, it stood where it arrived.
    pub(crate) fn keep_turns_together(self) -> bool {
        self.0 >= 3
    }

    /// From version 3, a reply that is cut off, empty or wrong is answered with what is wrong, and a refusal isn't an
    /// answer. Before, any reply without calls was the answer.
    pub(crate) fn correct_replies(self) -> bool {
        self.0 >= 3
    }

    /// From version 3, the same few calls in turn are a loop too. Before, only the same call was.
    pub(crate) fn see_cycles(self) -> bool {
        self.0 >= 3
    }

    /// From version 3, `wait` can be ended by a signal. Before, an argument of that name was ignored.
    pub(crate) fn wait_for_signals(self) -> bool {
        self.0 >= 3
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::FIRST
    }
}
