//! The definition of an agent, as far as its run needs it. It is fixed when the run starts, so that a journal never
//! changes its meaning.

use std::collections::BTreeMap;

use saggar_domain::model::Sampling;
use saggar_domain::net::EgressDraft;
use saggar_domain::{AgentHash, AgentSandbox, HostPath, HostUser, HttpEndpoint, Schema};
use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::budget::Budget;
use crate::effect::Class;
use crate::fallback::Fallbacks;
use crate::retry::RetryPolicy;
use crate::snapshots::SnapshotRules;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// Display name; concurrency limits count by it.
    pub name: String,
    /// Which definition it was started from. Says nothing about how it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<AgentIdentity>,
    /// A directory of a user of the host, copy-on-write in the sandboxes of the run and of its children. Set by the
    /// server, which knows who asked; no definition has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<OwnDirectory>,
    /// System prompt.
    #[serde(default)]
    pub system: Option<Body>,
    /// First user message.
    pub task: Body,
    pub model: ModelRef,
    /// Tools it may use, by name.
    #[serde(default)]
    pub tools: BTreeMap<String, ToolSpec>,
    /// The sandbox that its tools work in.
    #[serde(default, skip_serializing_if = "AgentSandbox::is_empty")]
    pub sandbox: AgentSandbox,
    #[serde(default)]
    pub budget: Budget,
    /// This many identical calls in a row count as a loop, which ends the run.
    #[serde(default = "default_repeats_max")]
    pub repeats_max: u32,
    /// This many replies in a row that are of no use are answered with what is wrong; one more ends the run.
    #[serde(default = "default_corrections_max", skip_serializing_if = "is_default_corrections_max")]
    pub corrections_max: u32,
    /// The form of its answer, if it has one: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<Schema>>,
    /// When its conversation is summed up; `None` for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextLimit>,
    /// Maximum number of steps that are open at once; at most [`OPEN_STEPS_MAX`].
    #[serde(default = "default_open_max", skip_serializing_if = "is_default_open_max")]
    pub open_max: u32,
    /// What happens where the run would stop for a person.
    #[serde(default, skip_serializing_if = "Fallbacks::is_default")]
    pub on: Fallbacks,
    /// When snapshots of its sandbox are taken.
    #[serde(default, skip_serializing_if = "SnapshotRules::is_empty")]
    pub snapshots: SnapshotRules,
    /// Other agents that it and its children may start, by name. A started agent inherits this map; its own is
    /// ignored.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, AgentSpec>,
}

/// When a conversation is summed up, by the tokens that it has at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextLimit {
    /// A longer request isn't made before its older turns have been summed up.
    pub tokens_max: u64,
    /// The newest turns are kept as they are, as many as have at most so many tokens together; the last one always.
    pub keep_tokens: u64,
}

/// A directory of the host, and the user in whose name it is opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnDirectory {
    pub path: HostPath,
    pub user: HostUser,
}

/// Which definition a run was started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentIdentity {
    /// As its author calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub hash: AgentHash,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRef {
    /// [`ModelRef::ROUTE`], or `scripted`.
    pub provider: String,
    /// The name of the route; for `scripted`, the script itself.
    pub model: String,
    /// How replies are generated. Its limit of tokens doesn't count: [`Self::reply_tokens_max`] does.
    #[serde(default, skip_serializing_if = "is_plain")]
    pub sampling: Box<Sampling>,
    /// Maximum tokens of one reply. This much is reserved for each call.
    #[serde(default = "default_reply_tokens")]
    pub reply_tokens_max: u64,
    /// Maximum cost of one reply, in millionths, reserved for each call; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_micros_max: Option<u64>,
    #[serde(default)]
    pub retry: RetryPolicy,
}

impl ModelRef {
    /// The provider of models that the server's model gateway leads to.
    pub const ROUTE: &str = "route";

    /// The route that it names; `None` if its replies are written in advance.
    pub fn route(&self) -> Option<&str> {
        (self.provider == Self::ROUTE).then_some(self.model.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    /// What happens after a crash in the middle of a call. Set by the operator; a tool's own hints are not trusted.
    pub class: Class,
    #[serde(default)]
    pub retry: RetryPolicy,
    /// Maximum duration of a call, in milliseconds.
    #[serde(default = "default_timeout")]
    pub timeout_ms: u64,
    /// Where a tool with a network may go, beside what the operator allows. Without it, wherever the operator allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressDraft>,
    /// The endpoint that performs it; `None` for a tool that every agent may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Box<HttpEndpoint>>,
    /// Whether calls of one reply may be made beside each other. A tool of class `once` is always alone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_parallel: bool,
    /// Whether its calls may change the files of the run's sandbox. Set by the server, which knows its tools.
    #[serde(default, skip_serializing_if = "is_false")]
    pub uses_sandbox: bool,
}

/// Maximum breadth of a run, whatever its agent says.
pub const OPEN_STEPS_MAX: u32 = 64;
/// The breadth of an agent that says nothing: its calls are made one after the other, because later ones may rely on
/// earlier ones.
pub const OPEN_STEPS_DEFAULT: u32 = 1;

fn default_open_max() -> u32 {
    OPEN_STEPS_DEFAULT
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_default_open_max(value: &u32) -> bool {
    *value == OPEN_STEPS_DEFAULT
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

fn is_plain(sampling: &Sampling) -> bool {
    *sampling == Sampling::default()
}

/// Useless replies in a row that are answered, of an agent that says nothing.
pub const CORRECTIONS_DEFAULT: u32 = 5;

fn default_corrections_max() -> u32 {
    CORRECTIONS_DEFAULT
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_default_corrections_max(value: &u32) -> bool {
    *value == CORRECTIONS_DEFAULT
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
