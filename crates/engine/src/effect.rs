//! Effects: what is done to the world on a run's behalf, and what comes back.

use saggar_domain::{RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::budget::Budget;
use crate::built_in::BuiltIn;

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Effect {
    /// Ask the model what to do next.
    CallModel {
        /// How many messages of the conversation it is asked about: all there are, and no copy of them.
        messages: u64,
    },
    /// Use a tool.
    CallTool {
        /// Which, and how.
        call: ToolCall,
    },
    /// Let time pass. Nobody executes it: the clock does.
    Wait {
        /// The call that asked for it.
        call: ToolCall,
        until: Timestamp,
    },
    /// Ask a person. Nobody executes it: their signal does.
    AskHuman {
        /// The call that asked for it.
        call: ToolCall,
        question: Body,
    },
    /// Start a child run, and wait for its end. Nobody executes it: the commit that has its intent makes the child, and the
    /// one that has the child's end tells of it.
    Delegate {
        /// The call that asked for it.
        call: ToolCall,
        /// The child. Its id follows from the step's key, so there is one of it.
        child: RunId,
        /// Which of the agents; `None` is the same agent once more.
        agent: Option<String>,
        /// What it is asked to do.
        task: Body,
        /// What it may spend, its own children included: all of it is set aside.
        budget: Budget,
    },
}

/// What a crash in the middle of an effect means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// It changes nothing: do it again.
    Pure,
    /// A model's answer: ask again, and pay again.
    Model,
    /// Whoever does it knows its key: doing it again with the same key is doing it once.
    Keyed,
    /// Whoever does it can be asked whether it was done.
    Probeable,
    /// Anything else: nobody can know, so a person decides.
    Once,
}

/// A model wants a tool to be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The model's name for the call.
    pub id: String,
    pub tool: String,
    /// Its arguments, as JSON text.
    pub arguments: Body,
    /// What they ask for, where they are too long for a record and the tool is one of the engine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Box<BuiltIn>>,
}

/// What a tool gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// What it said.
    pub content: Body,
    /// Whether that is a complaint: the model is told, and the run goes on.
    #[serde(default)]
    pub is_error: bool,
}

/// What a model said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReply {
    pub text: Body,
    /// What it wants done; nothing means that it is finished.
    #[serde(default)]
    pub calls: Vec<ToolCall>,
}

/// What an effect cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub tokens: u64,
    /// Money, in millionths.
    pub micros: u64,
}
