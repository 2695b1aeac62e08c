//! What people tell a run, as it waits in its inbox. Versioned: a letter may be read by a later program than the one that took it.

use saggar_engine::{Body, ChildEnd, Decision, Input, Signal};
use saggar_store::{JsonText, Letter};
use serde::{Deserialize, Serialize};

/// The newest version that is known.
const VERSION: u32 = 2;

/// Something to tell a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum Instruction {
    /// Say something; `answer` is for a question of the run's.
    Signal {
        /// What kind.
        name: String,
        /// What.
        body: Body,
    },
    /// No new effects.
    Pause,
    /// Effects again.
    Resume,
    /// Stop for good.
    Cancel,
    /// What to do about a step that nobody knows of.
    Decide {
        /// Which step.
        step: u64,
        /// How.
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
            Self::Signal { .. } | Self::Pause | Self::Resume | Self::Cancel | Self::Decide { .. } => 1,
            Self::ChildEnded(_) => 2,
        }
    }

    /// Reads a letter; `None` when a newer program wrote it.
    pub fn decode(letter: &Letter) -> Option<Self> {
        let written: Written = letter.body.to_value().ok()?;
        (written.v <= VERSION).then_some(written.instruction)
    }

    /// What it is to the engine. The letter's id makes the same signal twice one.
    pub(super) fn into_input(self, id: &str) -> Input {
        match self {
            Self::Signal { name, body } => Input::Signal(Signal { id: id.to_owned(), name, body }),
            Self::Pause => Input::Pause,
            Self::Resume => Input::Resume,
            Self::Cancel => Input::Cancel,
            Self::Decide { step, decision } => Input::Decide { step, decision },
            Self::ChildEnded(end) => Input::ChildEnded(end),
        }
    }
}
