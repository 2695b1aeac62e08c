//! What an agent is, as far as its run needs to know. Fixed when the run starts: a journal means the same for ever.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::budget::Budget;
use crate::effect::Class;
use crate::retry::RetryPolicy;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// What people call it; concurrency limits go by it.
    pub name: String,
    /// What it is told before anything else.
    #[serde(default)]
    pub system: Option<Body>,
    /// What it is asked to do.
    pub task: Body,
    /// Who thinks for it.
    pub model: ModelRef,
    /// What it may use, by name.
    #[serde(default)]
    pub tools: BTreeMap<String, ToolSpec>,
    /// What it may spend.
    #[serde(default)]
    pub budget: Budget,
    /// So many times the same call with the same arguments in a row is a loop.
    #[serde(default = "default_repeats_max")]
    pub repeats_max: u32,
    /// Whom it and its children may start besides themselves, by name. Their own `agents` are those of whoever starts them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, AgentSpec>,
}

/// Who thinks for an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRef {
    pub provider: String,
    /// Which model of it, or for `scripted` which script.
    pub model: String,
    /// The most tokens of one reply, which is what is reserved for it.
    #[serde(default = "default_reply_tokens")]
    pub reply_tokens_max: u64,
    /// The most that one reply costs, in millionths, which is what is set aside for it; `None` where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_micros_max: Option<u64>,
    /// How a failed call is tried again.
    #[serde(default)]
    pub retry: RetryPolicy,
}

/// A tool an agent may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    /// What a crash in the middle of it means. The operator says so; what a tool says of itself is not believed.
    pub class: Class,
    /// How a failed call is tried again.
    #[serde(default)]
    pub retry: RetryPolicy,
    /// Milliseconds that a call may take.
    #[serde(default = "default_timeout")]
    pub timeout_ms: u64,
}

fn default_repeats_max() -> u32 {
    8
}

fn default_reply_tokens() -> u64 {
    4096
}

fn default_timeout() -> u64 {
    10 * 60 * 1000
}
