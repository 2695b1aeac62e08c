//! Letters in a run's inbox. Versioned: a letter may be read by a later version than the one that accepted it.

use saggar_engine::{ANSWER, Body, Budget, ChildEnd, Decision, Input, OpenStep, Run, Signal};
use saggar_store::{JsonText, Letter};
use serde::{Deserialize, Serialize};

/// The newest known version. Version 2 added child runs, version 3 added answers that name their question, version 4
/// decisions that name their attempt, version 5 rollbacks and raised budgets, version 6 rollbacks that name their generation.
const VERSION: u32 = 6;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum Instruction {
    /// A message; `answer` answers a question of the run.
    Signal {
        name: String,
        body: Body,
        /// The question that an answer is for: the number of the step that asks it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        question: Option<u64>,
    },
    /// Add this to the limits of the budget.
    Raise {
        more: Budget,
    },
    /// Start no new effects.
    Pause,
    Resume,
    Cancel,
    /// A decision about a step whose outcome is unknown.
    Decide {
        step: u64,
        /// The attempt whose outcome is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        decision: Decision,
    },
    /// Go on from the end of an earlier step.
    RollBack {
        step: u64,
        /// The generation that goes back. In another one it has gone back already.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u32>,
        /// A message to the agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Body>,
    },
    /// The child that the run waits for has ended. Only runs send this.
    ChildEnded(ChildEnd),
}

#[derive(Serialize, Deserialize)]
struct Written {
    v: u32,
    #[serde(flatten)]
    instruction: Instruction,
}

impl Instruction {
    /// The letter's text; `None` if it is too long.
    pub fn encode(&self) -> Option<JsonText> {
        JsonText::of(&Written { v: self.version(), instruction: self.clone() })
    }

    /// The oldest version that has it.
    fn version(&self) -> u32 {
        match self {
            Self::Signal { question: Some(_), .. } => 3,
            Self::Decide { attempt: Some(_), .. } => 4,
            Self::Signal { question: None, .. }
            | Self::Pause
            | Self::Resume
            | Self::Cancel
            | Self::Decide { attempt: None, .. } => 1,
            Self::ChildEnded(_) => 2,
            Self::RollBack { generation: None, .. } | Self::Raise { .. } => 5,
            Self::RollBack { generation: Some(_), .. } => 6,
        }
    }

    /// Decodes a letter; `None` if a newer version wrote it.
    pub fn decode(letter: &Letter) -> Option<Self> {
        let written: Written = letter.body.to_value().ok()?;
        (written.v <= VERSION).then_some(written.instruction)
    }

    /// Whether it is for an earlier generation of the run: it has had its effect.
    pub(super) fn is_outdated(&self, run: &Run) -> bool {
        matches!(self, Self::RollBack { generation: Some(generation), .. } if *generation != run.generation())
    }

    /// Whether it is a message, and not a control letter.
    pub(super) fn is_data(&self) -> bool {
        match self {
            Self::Signal { .. } => true,
            Self::Raise { .. }
            | Self::Pause
            | Self::Resume
            | Self::Cancel
            | Self::Decide { .. }
            | Self::RollBack { .. }
            | Self::ChildEnded(_) => false,
        }
    }

    /// The engine's input for a run in this state. The letter's id deduplicates signals.
    pub(super) fn into_input(self, letter: &Letter, run: &Run) -> Input {
        match self {
            Self::Signal { name, body, question } => {
                // A letter of version 1 names no question. It is for the one that was open when it arrived.
                let was_open =
                    |step: &u64| run.open_steps().iter().any(|open| open.step == *step && open.since <= letter.at);
                let is_unnamed = name == ANSWER && question.is_none();
                let question = if is_unnamed { run.open_questions().find(was_open) } else { question };
                Input::Signal(Signal { id: letter.id.clone(), name, body, question })
            }
            Self::Raise { more } => Input::Raise { id: letter.id.clone(), more },
            Self::Pause => Input::Pause,
            Self::Resume => Input::Resume,
            Self::Cancel => Input::Cancel,
            Self::Decide { step, attempt, decision } => {
                // Before version 4 it names no attempt. It is for the one that was made when it arrived.
                let was_open = |open: &OpenStep| open.since <= letter.at;
                let open = run.open_steps().iter().find(|open| open.step == step);
                let attempt = attempt.or_else(|| open.map(|open| if was_open(open) { open.attempt } else { 0 }));
                Input::Decide { step, attempt, decision }
            }
            Self::RollBack { step, message, generation: _ } => Input::RollBack { step, message },
            Self::ChildEnded(end) => Input::ChildEnded(end),
        }
    }
}
