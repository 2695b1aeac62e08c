//! Runs: durable executions of agents. Start, read, signal, fork, replay.

use saggar_domain::{HostPath, ProjectId, RunId, RunState, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::agent::{Agent, RunBudget};
use crate::name::{Label, Labels};
use crate::object::only_from_an_object;
use crate::run_files::{RunBeganWith, RunFiles};
use crate::run_models::RunSandboxModel;
use crate::schema;
use crate::time::Timestamp;

/// A run to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct StartRun {
    /// The agent.
    pub agent: Agent,
    /// A directory of the server's host, copy-on-write at /workspace in the sandboxes of the run and of its children: only
    /// for a user of that host, through the server's Unix socket. It is opened with that user's rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::HostDirectory>)]
    pub directory: Option<HostPath>,
    /// Labels for finding it again.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// The run's id.
    #[schema(value_type = schema::RunId)]
    pub id: RunId,
    /// The project it belongs to.
    #[schema(value_type = schema::ProjectId)]
    pub project_id: ProjectId,
    /// The agent's name.
    pub agent: String,
    /// Labels for finding it again.
    #[serde(default)]
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
    /// Its current state.
    #[schema(value_type = schema::RunState)]
    pub state: RunState,
    /// When it was started.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// When it last changed.
    #[schema(value_type = schema::Instant)]
    pub updated_at: Timestamp,
    /// When it continues, if it waits for a time; its deadline, if it waits for a child run.
    #[schema(value_type = Option<schema::Instant>)]
    pub wake_at: Option<Timestamp>,
    /// What it waits for besides a time: `sandbox` while there is no capacity for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// The number of its last journal entry.
    pub entries: u64,
    /// The branch of its tree: 0 for the original, a unique number for each fork.
    pub generation: u32,
    /// For a fork, the run whose history it shares.
    pub parent: Option<RunParent>,
    /// For a child run, the run that started it.
    #[serde(default)]
    pub child_of: Option<RunChildOf>,
    /// The open question, while it is `asking`. Only in responses about a single run, not in lists.
    #[serde(default)]
    pub question: Option<RunQuestion>,
    /// The step that needs a decision, while it is `parked`. Only in responses about a single run, not in lists.
    #[serde(default)]
    pub parked: Option<RunParked>,
    /// The budget that has to be raised with `raiseBudget` so that it goes on, while it is `parked` for that: `steps`, `tokens`,
    /// `micros`, `tool_calls`, `retries` or `children`. Only in responses about a single run, not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_budget: Option<String>,
    /// The steps that are open, in their order. Only in responses about a single run, not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(ignore)]
    pub open_steps: Vec<RunOpenStep>,
    /// What programs in its sandboxes have asked of models: it counts against its budget. Absent if they have asked nothing, and in
    /// lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sandbox_models: Vec<RunSandboxModel>,
    /// Its sandbox.
    #[schema(value_type = Option<schema::SandboxId>)]
    pub sandbox_id: Option<SandboxId>,
    /// Its snapshots, and where its files come from. Absent if it has taken none and is no fork of one that has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub files: Option<RunFiles>,
    /// The files of an earlier run of the agent that its sandbox began with. Absent if it began with none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub began_with: Option<RunBeganWith>,
    /// How it ended: `{"outcome": "completed", …}`, or another outcome with its details.
    #[schema(value_type = Option<Object>)]
    pub outcome: Option<Value>,
    /// Why it is blocked, if it is. It continues when it is resumed, and ends when it is cancelled.
    #[serde(default)]
    pub blocked: Option<RunBlock>,
}

/// Why a run is blocked until a human has decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunBlock {
    /// `restored`: the store was restored from a backup, and the run may have continued elsewhere. `damaged`: its
    /// journal can't be read.
    #[schema(example = "restored")]
    pub kind: String,
    /// The reason, for people.
    pub reason: String,
}

/// A run's question to a human.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunQuestion {
    /// The number that an answer must name: the step that asks.
    pub id: u64,
    /// The question.
    #[schema(example = "Which colour?")]
    pub text: String,
    /// When it was asked.
    #[schema(value_type = schema::Instant)]
    pub asked_at: Timestamp,
}

/// A step whose outcome is unknown. Decide about it with `decideStep`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunParked {
    /// The number of the step.
    pub step: u64,
    /// The attempt whose outcome is unknown. A step that is retried may park again, with the next attempt.
    #[serde(default)]
    pub attempt: u32,
    /// The tool that was called, or `model`.
    pub tool: String,
    /// Why the outcome is unknown.
    pub reason: String,
    /// When it parked.
    #[schema(value_type = schema::Instant)]
    pub since: Timestamp,
}

/// A step that is open: intended, and without an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunOpenStep {
    /// The number of the step. For a question it is what an answer must name.
    pub step: u64,
    /// Its newest attempt.
    pub attempt: u32,
    /// The tool that was called, or `model`.
    pub tool: String,
    /// What it does.
    pub state: OpenStepState,
    /// Since when.
    #[schema(value_type = schema::Instant)]
    pub since: Timestamp,
    /// When it goes on, if it waits for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Instant>)]
    pub until: Option<Timestamp>,
    /// The question that it asks, why it can't start, or why its outcome is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The child run that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::RunId>)]
    pub child: Option<RunId>,
}

/// What an open step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OpenStepState {
    /// It is in progress.
    Running,
    /// It waits for a person's answer.
    Asking,
    /// It waits for a time.
    Waiting,
    /// It waits for the end of a child run.
    Delegating,
    /// Its executor is being asked whether it was done.
    Probing,
    /// It failed, and will be tried again.
    Retrying,
    /// It can't start yet.
    Delayed,
    /// It goes on when the run is resumed.
    Interrupted,
    /// Its outcome is unknown: a person decides.
    Parked,
}

impl OpenStepState {
    /// Its name, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Asking => "asking",
            Self::Waiting => "waiting",
            Self::Delegating => "delegating",
            Self::Probing => "probing",
            Self::Retrying => "retrying",
            Self::Delayed => "delayed",
            Self::Interrupted => "interrupted",
            Self::Parked => "parked",
        }
    }
}

/// The origin of a fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunParent {
    /// The original run.
    #[schema(value_type = schema::RunId)]
    pub run_id: RunId,
    /// The last entry that the fork includes.
    pub through: u64,
    /// The call that was open there, which the fork repeats with its own key. Only in the response to `forkRun`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub does_again: Option<RunOpenCall>,
    /// All calls that were open there, which the fork repeats. Only in the response to `forkRun`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(ignore)]
    pub open_calls: Vec<RunOpenCall>,
}

/// A call that was open at the fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunOpenCall {
    /// The number of the step in the original run.
    pub step: u64,
    /// The tool that was called, or `model`.
    pub tool: String,
}

/// The parent of a child run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunChildOf {
    /// The parent run.
    #[schema(value_type = schema::RunId)]
    pub run_id: RunId,
    /// The parent's step that waits for it.
    pub step: u64,
}

/// A page of runs, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    /// The runs.
    pub items: Vec<Run>,
    /// The cursor of the next page; absent on the last page.
    pub next_cursor: Option<String>,
}

/// Which runs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListRuns {
    /// Only runs in this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, example = "parked")]
    pub state: Option<RunState>,
    /// Only runs of the agent with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(example = "mender")]
    pub agent: Option<String>,
    /// Only runs with this label, as `name=value`; may be repeated, and then all must match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[param(value_type = Vec<String>, example = json!(["team=red"]))]
    pub label: Vec<Label>,
    /// Only runs started at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::Instant>)]
    pub since: Option<Timestamp>,
    /// Only runs started before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::Instant>)]
    pub before: Option<Timestamp>,
    /// Only child runs of this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::RunId>)]
    pub child_of: Option<RunId>,
    /// Maximum number of runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// The cursor of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Which entries to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct JournalQuery {
    /// Only entries after this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// With a stream: also what its model says while it says it, as events of the type `said`. They are not kept: one who comes
    /// late or is slow misses some, and the entry has the whole reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<bool>,
}

/// A piece of a reply that is being written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunSaid {
    /// The step of the model's call.
    pub step: u64,
    /// Its attempt. What an earlier one said doesn't count.
    pub attempt: u32,
    /// What it is.
    pub kind: SaidKind,
    /// The piece, or the name of a tool that it begins to call.
    pub text: String,
}

/// What a piece of a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaidKind {
    /// Its text.
    Text,
    /// What the model thinks, as far as its provider shows it.
    Reasoning,
    /// It begins to call a tool.
    Call,
}

/// Entries of a run, oldest first, including its parents' history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JournalPage {
    /// The entries, as they were written.
    #[schema(value_type = Vec<Object>)]
    pub items: Vec<Value>,
    /// The number of the last entry on this page.
    pub last_seq: u64,
}

/// A message to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SignalRun {
    /// The sender's id, for deduplication. It must not begin with `@`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The kind of message: `answer` answers a question of the run, anything else is given to the agent.
    #[schema(example = "answer")]
    pub name: String,
    /// The text.
    pub body: String,
    /// The question that an `answer` is for; required for one: `question.id` of the run. An answer to any question
    /// other than the open one is refused; repeating the same answer to the same question is accepted and changes
    /// nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 2)]
    pub question: Option<u64>,
}

/// A decision about a step whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct DecideStep {
    /// The decision.
    pub decision: StepDecision,
    /// The attempt that it is about; by default the one that is parked when the request arrives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The result of the step, with `done`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// What a human decides about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepDecision {
    /// Do it again, although it may have been done already.
    Retry,
    /// It was done, with `result`.
    Done,
    /// Abandon the run.
    Abandon,
}

/// More budget for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct RaiseBudget {
    /// The request's id: the same id is effective once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What is added to each limit. A limit that the run doesn't have stays so.
    pub more: RunBudget,
}

/// Where to fork.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct ForkRun {
    /// After this step; by default after the last entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_step: Option<u64>,
    /// After this entry instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_entry: Option<u64>,
    /// A message to the fork's agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayReport {
    /// Number of entries in the journal.
    pub entries: u64,
    /// Number of entries that agreed.
    pub agreed: u64,
    /// The first difference.
    pub divergence: Option<ReplayDivergence>,
}

/// A difference between a recorded entry and its replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplayDivergence {
    /// Number of the entry, from 1.
    pub entry: u64,
    /// The recorded event.
    #[schema(value_type = Option<Object>)]
    pub recorded: Option<Value>,
    /// The event that the replay derived.
    #[schema(value_type = Option<Object>)]
    pub derived: Option<Value>,
}

only_from_an_object!(StartRun, SignalRun, DecideStep, RaiseBudget, ForkRun);
