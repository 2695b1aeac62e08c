//! What people tell a run, as it waits in its inbox. Versioned: a letter may be read by a later program than the one that took it.

use saggar_engine::{ANSWER, Body, ChildEnd, Decision, Input, Run, Signal};
use saggar_store::{JsonText, Letter};
use serde::{Deserialize, Serialize};

/// The newest version that is known. 2 knows child runs, 3 answers that name their question.
const VERSION: u32 = 3;

/// Something to tell a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum Instruction {
    /// Say something; `answer` is for a question of the run's.
    Signal {
        name: String,
        body: Body,
        /// The question that an answer is for: the number of the step that asks it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        question: Option<u64>,
    },
    /// No new effects.
    Pause,
    Resume,
    /// Stop for good.
    Cancel,
    /// What to do about a step that nobody knows of.
    Decide {
        step: u64,
        decision: Decision,
    },
    /// The child that it waits for has ended. Only runs say so.
    ChildEnded(ChildEnd),
}

#[derive(Serialize, Deserialize)]
struct Written {
    v: u32,
    #[serde(flatten)]
    instruction: Instruction,
}

impl Instruction {
    /// As a letter holds it; `None` when it is too long for one.
    pub fn encode(&self) -> Option<JsonText> {
        JsonText::of(&Written { v: self.version(), instruction: self.clone() })
    }

    /// The oldest version that has it.
    fn version(&self) -> u32 {
        match self {
            Self::Signal { question: Some(_), .. } => 3,
            Self::Signal { question: None, .. } | Self::Pause | Self::Resume | Self::Cancel | Self::Decide { .. } => 1,
            Self::ChildEnded(_) => 2,
        }
    }

    /// Reads a letter; `None` when a newer program wrote it.
    pub fn decode(letter: &Letter) -> Option<Self> {
        let written: Written = letter.body.to_value().ok()?;
        (written.v <= VERSION).then_some(written.instruction)
    }

    /// Whether it is something said, and not something that steers the run.
    pub(super) fn is_data(&self) -> bool {
        match self {
            Self::Signal { .. } => true,
            Self::Pause | Self::Resume | Self::Cancel | Self::Decide { .. } | Self::ChildEnded(_) => false,
        }
    }

    /// What it is to the engine, for a run in this state. The letter's id makes the same signal twice one.
    pub(super) fn into_input(self, letter: &Letter, run: &Run) -> Input {
        match self {
            Self::Signal { name, body, question } => {
                // A letter of version 1 names no question. It is for the one that was open when it came.
                let was_open = || run.open_step().is_some_and(|open| open.since <= letter.at);
                let is_unnamed = name == ANSWER && question.is_none();
                let question = if is_unnamed { run.open_question().filter(|_| was_open()) } else { question };
                Input::Signal(Signal { id: letter.id.clone(), name, body, question })
            }
            Self::Pause => Input::Pause,
            Self::Resume => Input::Resume,
            Self::Cancel => Input::Cancel,
            Self::Decide { step, decision } => Input::Decide { step, decision },
            Self::ChildEnded(end) => Input::ChildEnded(end),
        }
    }
}
