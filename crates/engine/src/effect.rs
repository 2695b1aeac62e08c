//! Effects: what is done to the world on a run's behalf, and its results.

use saggar_domain::net::NetDecision;
use saggar_domain::{RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::budget::Budget;
use crate::built_in::BuiltIn;
use crate::snapshots::Restored;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Effect {
    /// Ask the model for the next reply.
    CallModel {
        /// Length of the conversation that it gets: all messages so far. The messages themselves are not copied.
        messages: u64,
    },
    /// Ask the model to sum up the older turns. The summary takes their place in what it gets from then on.
    Summarize {
        /// The messages before this one are summed up, except those that begin the conversation.
        through: u64,
    },
    CallTool {
        call: ToolCall,
    },
    /// Wait. No executor is involved: a tick after the deadline settles it.
    Wait {
        /// The call that requested it.
        call: ToolCall,
        until: Timestamp,
        /// The name of the signal that ends it earlier.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<String>,
    },
    /// Ask a human. No executor is involved: an answer settles it.
    AskHuman {
        /// The call that requested it.
        call: ToolCall,
        question: Body,
    },
    /// Start a child run and wait for its end. No executor is involved: the commit of the intent creates the child,
    /// and the commit of the child's end reports it.
    Delegate {
        /// The call that requested it.
        call: ToolCall,
        /// The child's id. It is derived from the step's key, so the child is created only once.
        child: RunId,
        /// Name of the agent; `None` starts the same agent again.
        agent: Option<String>,
        task: Body,
        /// The child's budget, which covers its own children. All of it is reserved.
        budget: Budget,
    },
    /// Take a snapshot of the run's sandbox.
    TakeSnapshot,
}

/// What happens after a crash in the middle of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// No side effects: redo it.
    Pure,
    /// A model call: redo it, at additional cost.
    Model,
    /// The executor deduplicates by idempotency key: redo it with the same key.
    Keyed,
    /// The executor can be asked whether the effect was done.
    Probeable,
    /// Anything else: the outcome can't be determined, so a human decides.
    Once,
}

/// A model's request to use a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The model's id for the call.
    pub id: String,
    pub tool: String,
    /// Arguments, as JSON text.
    pub arguments: Body,
    /// The parsed arguments, if the tool is built in and the text is too long for a record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Box<BuiltIn>>,
    /// What is wrong with the call, if it was found to be malformed when the reply arrived. The model gets it as the
    /// call's result, and nothing is performed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
    /// What a crash in the middle of it means, if that is more harm than of its tool's other calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    pub content: Body,
    /// Whether the tool reported an error. The model gets it, and the run continues.
    #[serde(default)]
    pub is_error: bool,
    /// What the call asked of the network, as far as we made its connections. Not shown to the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<NetDecision>,
    /// Nothing was done, because the sandbox had been lost. The one that replaces it has these files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Box<Restored>>,
}

impl ToolResult {
    pub fn new(content: Body, is_error: bool) -> Self {
        Self { content, is_error, network: Vec::new(), restored: None }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub tokens: u64,
    /// Money, in millionths.
    pub micros: u64,
}

impl Effect {
    /// Whether it asks the model.
    pub fn is_of_model(&self) -> bool {
        match self {
            Self::CallModel { .. } | Self::Summarize { .. } => true,
            Self::CallTool { .. }
            | Self::Wait { .. }
            | Self::AskHuman { .. }
            | Self::Delegate { .. }
            | Self::TakeSnapshot => false,
        }
    }
}
