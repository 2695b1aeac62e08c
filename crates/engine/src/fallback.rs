//! What happens where a run would otherwise stop for a person, as its agent's author wants it.
//!
//! Each is decided from the journal and the agent alone, so a replay decides the same. None makes an effect of class
//! `once` happen twice: only a person may do that.

use serde::{Deserialize, Serialize};

use crate::body::Body;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fallbacks {
    #[serde(skip_serializing_if = "is_default")]
    pub uncertain: WhenUncertain,
    #[serde(skip_serializing_if = "is_default")]
    pub failing: WhenFailing,
    /// `None` waits for an answer without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<Unanswered>,
    #[serde(skip_serializing_if = "is_default")]
    pub budget: WhenOutOfBudget,
}

/// When it can't be determined whether an effect was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenUncertain {
    /// A person decides.
    #[default]
    Park,
    /// It is done again, although it may have been done, as often as its tool may be attempted. Not for class `once`.
    Retry,
    /// The run ends.
    Abandon,
}

/// When the last attempt of a model or tool call has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFailing {
    /// The model is told about a tool; without a model the run fails.
    #[default]
    Fail,
    /// A person decides, as about a step whose outcome is unknown.
    Ask,
}

/// When the budget doesn't allow what comes next. Time always ends the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenOutOfBudget {
    /// The run ends.
    #[default]
    End,
    /// The model is called once more, without tools, to sum up. What that may come to is set aside before.
    Finish,
    /// The run waits until a person raises its budget. A child's budget is part of its parent's, so it ends.
    Ask,
}

/// When nobody answers a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unanswered {
    /// From the question, in milliseconds. While the run is paused, the time passes and nothing follows.
    pub after_ms: u64,
    /// The answer that the model gets then; `None` fails the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Body>,
}

impl Fallbacks {
    pub(crate) fn is_default(&self) -> bool {
        is_default(self)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
