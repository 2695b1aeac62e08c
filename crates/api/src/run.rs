//! Runs: agents executed durably. Started, looked at, told things, forked, replayed.

use std::collections::BTreeMap;

use saggar_domain::{ProjectId, RunId, RunState, SandboxId, Timeout};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::name::{Label, Labels};
use crate::object::only_from_an_object;
use crate::schema;
use crate::time::Timestamp;

/// A run to begin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct StartRun {
    /// What it is.
    pub agent: Agent,
    /// For finding it again.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Agent {
    /// What people call it; concurrency limits go by it.
    #[schema(example = "mender")]
    pub name: String,
    /// What it is told before anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// What it is asked to do.
    pub task: String,
    /// Who thinks for it.
    pub model: AgentModel,
    /// What it may use: `shell`, `files`, `http`, `wait`, `ask_human`, `delegate`.
    #[serde(default)]
    pub tools: BTreeMap<String, AgentTool>,
    /// What it may spend; what is absent is without limit.
    #[serde(default)]
    pub budget: RunBudget,
    /// So many times the same call with the same arguments in a row is a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_max: Option<u32>,
    /// Whom it and its children may start with `delegate` besides themselves, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, SubAgent>,
}

/// An agent that others start with `delegate`, which says what its task is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SubAgent {
    /// What it is told before anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Who thinks for it.
    pub model: AgentModel,
    /// What it may use, of what whoever starts it may.
    #[serde(default)]
    pub tools: BTreeMap<String, AgentTool>,
    /// What it may spend, of what is left to whoever starts it.
    #[serde(default)]
    pub budget: RunBudget,
    /// So many times the same call with the same arguments in a row is a loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_max: Option<u32>,
}

/// Who thinks for an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct AgentModel {
    /// Which provider. This version supports `scripted` only.
    #[schema(example = "scripted")]
    pub provider: String,
    /// For `scripted`: what it says, turn by turn.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object, example = json!({"turns": [{"calls": [{"tool": "shell", "arguments": {"command": "ls"}}]}, {"text": "Done."}]}))]
    pub script: Value,
    /// The most tokens of one reply, which is what is set aside for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_tokens_max: Option<u64>,
    /// The most that one reply costs, in millionths, which is what is set aside for it. Without it, the most that a reply has cost before is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_micros_max: Option<u64>,
}

impl AgentModel {
    /// The providers there are.
    pub const PROVIDERS: [&str; 1] = ["scripted"];

    /// What is wrong with a provider, and what to do about it. Asked before anything else is read: what belongs to a provider that isn't
    /// supported would only be a puzzle.
    pub fn wrong_provider(provider: &str) -> Option<(String, String)> {
        if Self::PROVIDERS.contains(&provider) {
            return None;
        }
        let supported = Self::PROVIDERS.map(|provider| format!("{provider:?}")).join(", ");
        let message = format!("the model provider {provider:?} is not supported: this version supports {supported}");
        let help =
            "set model.provider to \"scripted\" and model.script to the turns it says; docs/agent.md shows an agent";
        Some((message, help.to_owned()))
    }
}

/// A tool an agent may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct AgentTool {
    /// What a crash in the middle of it means; each tool has its own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<EffectClass>,
    /// How long a call may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub timeout: Option<Timeout>,
    /// Attempts of one call, the first included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
}

/// What a crash in the middle of an effect means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// It changes nothing: it is done again.
    Pure,
    /// Whoever does it knows its key: it is done again with the same one.
    Keyed,
    /// Whoever does it is asked whether it was done.
    Probeable,
    /// Anything else: the run parks, and a person decides.
    Once,
}

/// What a run may spend, with every run that it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct RunBudget {
    /// Steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Time from its start, paused or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub time: Option<Timeout>,
    /// Tokens of models, read and written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money, in millionths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micros: Option<u64>,
    /// Calls of tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// Attempts after the first, of all steps together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
    /// Runs started by it, and by those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<u64>,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Its id.
    #[schema(value_type = schema::RunId)]
    pub id: RunId,
    /// Whose it is.
    #[schema(value_type = schema::ProjectId)]
    pub project_id: ProjectId,
    /// What its agent is called.
    pub agent: String,
    /// For finding it again.
    #[serde(default)]
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
    /// What it does.
    #[schema(value_type = schema::RunState)]
    pub state: RunState,
    /// When it was begun.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// When something last happened to it.
    #[schema(value_type = schema::Instant)]
    pub updated_at: Timestamp,
    /// When it goes on by itself, where it waits for a time; the end of its time, where it waits for a run that it started.
    #[schema(value_type = Option<schema::Instant>)]
    pub wake_at: Option<Timestamp>,
    /// What it waits for besides a time: `sandbox` while there is no room for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// The number of its last entry.
    pub entries: u64,
    /// Which branch of its tree.
    pub generation: u32,
    /// Whose past it has, where it is a fork.
    pub parent: Option<RunParent>,
    /// Who started it and waits for its end, where a run did.
    #[serde(default)]
    pub child_of: Option<RunChildOf>,
    /// The question it asks, while it is `asking`. Only where one run is looked at, not in lists.
    #[serde(default)]
    pub question: Option<RunQuestion>,
    /// The step that a person has to decide about, while it is `parked`. Only where one run is looked at, not in lists.
    #[serde(default)]
    pub parked: Option<RunParked>,
    /// The sandbox it works in.
    #[schema(value_type = Option<schema::SandboxId>)]
    pub sandbox_id: Option<SandboxId>,
    /// How it ended: `{"outcome": "completed", …}`, or another word and what belongs to it.
    #[schema(value_type = Option<Object>)]
    pub outcome: Option<Value>,
    /// Why nobody drives it, where that is so. It goes on when somebody resumes it, and ends when somebody cancels it.
    #[serde(default)]
    pub blocked: Option<RunBlock>,
}

/// Why a run is not driven until a person has decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunBlock {
    /// `restored`: the store was restored from a backup, and the run may have gone on elsewhere. `damaged`: its journal can't be read.
    #[schema(example = "restored")]
    pub kind: String,
    /// The same in words.
    pub reason: String,
}

/// What a run asks a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunQuestion {
    /// What an answer names: the number of the step that asks.
    pub id: u64,
    /// What is asked.
    #[schema(example = "Which colour?")]
    pub text: String,
    /// When it was asked.
    #[schema(value_type = schema::Instant)]
    pub asked_at: Timestamp,
}

/// A step of which nobody knows whether it was done. Decide about it with `decideStep`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunParked {
    /// The number of the step.
    pub step: u64,
    /// The tool that was called, or `model`.
    pub tool: String,
    /// Why nobody knows.
    pub reason: String,
    /// When it parked.
    #[schema(value_type = schema::Instant)]
    pub since: Timestamp,
}

/// Whose past a fork has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunParent {
    /// Which run.
    #[schema(value_type = schema::RunId)]
    pub run_id: RunId,
    /// Up to which entry.
    pub through: u64,
    /// The call that was open there, which the fork makes again with a key of its own. Only in the answer to `forkRun`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub does_again: Option<RunOpenCall>,
}

/// A call that was open where a run was forked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunOpenCall {
    /// The step, in the run that was forked.
    pub step: u64,
    /// The tool, or `model`.
    pub tool: String,
}

/// Who started a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunChildOf {
    /// Which run.
    #[schema(value_type = schema::RunId)]
    pub run_id: RunId,
    /// Which step of it.
    pub step: u64,
}

/// A page of runs, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    /// The runs.
    pub items: Vec<Run>,
    /// Where the next page begins; absent after the last.
    pub next_cursor: Option<String>,
}

/// Which runs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListRuns {
    /// Only those in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, example = "parked")]
    pub state: Option<RunState>,
    /// Only those of the agent of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(example = "mender")]
    pub agent: Option<String>,
    /// Only those with this label, as `name=value`; may be given several times, and then all must be there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[param(value_type = Vec<String>, example = json!(["team=red"]))]
    pub label: Vec<Label>,
    /// Only those begun at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::Instant>)]
    pub since: Option<Timestamp>,
    /// Only those begun before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::Instant>)]
    pub before: Option<Timestamp>,
    /// Only those that this run started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::RunId>)]
    pub child_of: Option<RunId>,
    /// How many at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Where the page before said to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Which entries to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct JournalQuery {
    /// Only those after this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// Entries of a run, oldest first, its parents' past included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JournalPage {
    /// The entries, as they were written.
    #[schema(value_type = Vec<Object>)]
    pub items: Vec<Value>,
    /// The number of the last of them, to go on after.
    pub last_seq: u64,
}

/// Something to say to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SignalRun {
    /// The sender's name for it: the same id twice is once. It doesn't begin with `@`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What kind: `answer` is for a question of the run's, anything else is said to the agent.
    #[schema(example = "answer")]
    pub name: String,
    /// What.
    pub body: String,
    /// The question that an `answer` is for, which it has to name: `question.id` of the run. An answer to any other question than the open one
    /// is refused; the same answer to the same question again is accepted and changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 2)]
    pub question: Option<u64>,
}

/// What to do about a step of which nobody knows whether it was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct DecideStep {
    /// How.
    pub decision: StepDecision,
    /// What came of it, where it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// What a person decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepDecision {
    /// Do it again, knowing that it may be the second time.
    Retry,
    /// It was done, and `result` came of it.
    Done,
    /// Give the run up.
    Abandon,
}

/// Where to fork.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct ForkRun {
    /// After this step; without it, after everything there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_step: Option<u64>,
    /// After this entry instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_entry: Option<u64>,
    /// Something to say to the fork.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayReport {
    /// Entries there are.
    pub entries: u64,
    /// Entries that agreed.
    pub agreed: u64,
    /// Where it first doesn't agree.
    pub divergence: Option<ReplayDivergence>,
}

/// Where what is decided now isn't what was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayDivergence {
    /// The entry, from 1.
    pub entry: u64,
    /// What was recorded.
    #[schema(value_type = Option<Object>)]
    pub recorded: Option<Value>,
    /// What would be decided now.
    #[schema(value_type = Option<Object>)]
    pub derived: Option<Value>,
}

only_from_an_object!(StartRun, Agent, SubAgent, AgentModel, AgentTool, RunBudget, SignalRun, DecideStep, ForkRun);
