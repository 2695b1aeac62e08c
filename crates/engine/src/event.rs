//! Events: what has happened to a run. They are its journal; all state follows from them.
//!
//! Events are readable forever: a new field has a default, no field is renamed, and none changes its meaning.
//! `journals/` has a golden journal of every version, and a test that reads them.

use saggar_domain::model::{SandboxCalls, Tariff};
use saggar_domain::net::NetDecision;
use saggar_domain::{RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::{Budget, BudgetName, Spending};
use crate::child::{ChildEnd, ChildOf};
use crate::effect::{Class, Effect, ToolResult, Usage};
use crate::input::{Decision, EffectFailure};
use crate::reply::ModelReply;
use crate::rules::Rules;
use crate::snapshots::Restored;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    RunStarted {
        run: RunId,
        agent: Box<AgentSpec>,
        /// The parent run, which waits for the end, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        child_of: Option<ChildOf>,
        at: Timestamp,
    },
    /// The run continues from another run's history, as a new generation.
    Forked {
        /// The new run.
        run: RunId,
        parent: RunId,
        /// A generation that no other branch of this tree has, so that every later key is new.
        generation: u32,
        /// A message given with the fork.
        message: Option<Body>,
        /// Whether files were not restored with the conversation.
        is_logical_only: bool,
        /// Whether the open call is done again, with a key of the fork's own. Before version 3 it was dropped.
        #[serde(default, skip_serializing_if = "is_false")]
        does_again: bool,
        /// The files that it begins with; `None` if they were not restored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        files: Option<Restored>,
        at: Timestamp,
    },
    /// The run goes on from an earlier step, as a new generation. What has been spent stays spent, and what was done to
    /// the outside world stays done.
    RolledBack {
        /// The last step that counts. Numbers of steps go on, so each stays unique.
        to: u64,
        /// Higher than the one before, so that every later key is new.
        generation: u32,
        /// A message given with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Body>,
        /// The files that it goes on with.
        files: Restored,
        at: Timestamp,
    },
    /// A worker has taken the lease.
    Claimed {
        /// Higher than every earlier epoch.
        epoch: u64,
        /// The rules by which it decides until the next claim.
        #[serde(default, skip_serializing_if = "Rules::is_first")]
        rules: Rules,
        at: Timestamp,
    },
    /// What calls of the model may come to from now on.
    Priced {
        tariff: Box<Tariff>,
        at: Timestamp,
    },
    /// What programs in the run's sandboxes have asked of models so far, in all. It replaces what was said before.
    SandboxCalled {
        calls: SandboxCalls,
        at: Timestamp,
    },
    /// The intent of an effect. The effect starts only after this is durable.
    StepIntended {
        /// Number of the step within the run: 1, 2, 3 …, continued across generations.
        step: u64,
        attempt: u32,
        effect: Effect,
        /// What happens after a crash in the middle of it.
        class: Class,
        /// The budget reserved for it.
        reserved: Spending,
        at: Timestamp,
    },
    /// An effect has ended with a result.
    StepSettled {
        step: u64,
        result: Settled,
        #[serde(default)]
        usage: Usage,
        /// The snapshot that the step took.
        #[serde(default)]
        snapshot: Option<String>,
        at: Timestamp,
    },
    /// A model's reply is of no use: the model is told why, and asked again.
    Corrected {
        /// The step of the reply.
        step: u64,
        /// A message of the conversation.
        note: Body,
        at: Timestamp,
    },
    /// An effect failed and will be retried.
    StepFailed {
        step: u64,
        attempt: u32,
        failure: EffectFailure,
        /// The cost of the failed attempt.
        #[serde(default)]
        usage: Usage,
        retry_at: Timestamp,
        at: Timestamp,
    },
    /// An effect can't start yet, because the capacity it needs is missing. The same attempt starts later.
    StepDelayed {
        step: u64,
        /// The missing capacity.
        reason: String,
        /// The latest time of the next try. A worker that claims the run earlier tries at once.
        retry_at: Timestamp,
        at: Timestamp,
    },
    /// It can't be determined whether an effect was done: a human decides.
    StepUnknown {
        step: u64,
        /// Why it can't be determined.
        reason: String,
        /// What the attempt asked of the network, as far as we made its connections.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        network: Vec<NetDecision>,
        at: Timestamp,
    },
    /// The executor is being asked whether the effect was done.
    StepProbed {
        step: u64,
        /// As in `StepUnknown`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        network: Vec<NetDecision>,
        at: Timestamp,
    },
    /// An effect must be redone but the run is paused: it is redone when the run is resumed.
    StepInterrupted {
        step: u64,
        at: Timestamp,
    },
    /// A human decided about an effect whose outcome was unknown.
    StepDecided {
        step: u64,
        decision: Decision,
        at: Timestamp,
    },
    /// A message to the run was received.
    SignalReceived {
        /// The sender's id, for deduplication.
        id: String,
        name: String,
        body: Body,
        /// The step whose question it answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        question: Option<u64>,
        at: Timestamp,
    },
    /// What comes next exceeds a budget.
    BudgetReached {
        budget: BudgetName,
        /// What the model is told with its last call, which the next event starts; `None` if the run waits until a person
        /// raises the budget.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<Body>,
        at: Timestamp,
    },
    /// A person has raised the budget.
    BudgetRaised {
        /// The sender's id, for deduplication.
        id: String,
        /// What is added to each limit. A limit that doesn't exist stays so.
        more: Budget,
        at: Timestamp,
    },
    /// No new effect starts until the run is resumed.
    Paused {
        at: Timestamp,
    },
    Resumed {
        at: Timestamp,
    },
    /// The effect in progress is abandoned: its result is no longer recorded.
    StepAbandoned {
        step: u64,
        at: Timestamp,
    },
    RunFinished {
        outcome: RunOutcome,
        at: Timestamp,
    },
}

/// The result of an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settled {
    Replied(ModelReply),
    /// The tool returned a result or an error.
    Returned(ToolResult),
    /// The last attempt failed: the model gets the reason.
    GaveUp(EffectFailure),
    Ended(ChildEnd),
    /// The files of the sandbox are kept in a snapshot; in none if there is no sandbox.
    Kept,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum RunOutcome {
    /// The model replied without a tool call.
    Completed {
        /// The last reply.
        answer: Body,
    },
    /// Cancelled on request.
    Cancelled,
    BudgetExceeded {
        budget: BudgetName,
        /// What the model said when it was asked to sum up; `None` if it wasn't, or said nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<Body>,
    },
    /// The agent repeated the same call, or the same few calls in turn, too often.
    Loop {
        /// The tool of the last of them.
        tool: String,
        times: u32,
        /// Number of calls that came again and again.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        calls: u32,
    },
    /// The model was unavailable, or gave no answer that could be used.
    Failed { failure: EffectFailure },
    /// A human abandoned the run at a step whose outcome was unknown.
    Abandoned { step: u64 },
}

impl Event {
    pub fn at(&self) -> Timestamp {
        match self {
            Self::RunStarted { at, .. }
            | Self::Forked { at, .. }
            | Self::RolledBack { at, .. }
            | Self::Claimed { at, .. }
            | Self::Priced { at, .. }
            | Self::SandboxCalled { at, .. }
            | Self::StepIntended { at, .. }
            | Self::StepSettled { at, .. }
            | Self::Corrected { at, .. }
            | Self::StepFailed { at, .. }
            | Self::StepDelayed { at, .. }
            | Self::StepUnknown { at, .. }
            | Self::StepProbed { at, .. }
            | Self::StepInterrupted { at, .. }
            | Self::StepDecided { at, .. }
            | Self::SignalReceived { at, .. }
            | Self::BudgetReached { at, .. }
            | Self::BudgetRaised { at, .. }
            | Self::Paused { at }
            | Self::Resumed { at }
            | Self::StepAbandoned { at, .. }
            | Self::RunFinished { at, .. } => *at,
        }
    }

    /// The step that the event concerns.
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::StepIntended { step, .. }
            | Self::StepSettled { step, .. }
            | Self::Corrected { step, .. }
            | Self::StepFailed { step, .. }
            | Self::StepDelayed { step, .. }
            | Self::StepUnknown { step, .. }
            | Self::StepProbed { step, .. }
            | Self::StepInterrupted { step, .. }
            | Self::StepDecided { step, .. }
            | Self::StepAbandoned { step, .. } => Some(*step),
            Self::RunStarted { .. }
            | Self::Forked { .. }
            | Self::RolledBack { .. }
            | Self::Claimed { .. }
            | Self::Priced { .. }
            | Self::SandboxCalled { .. }
            | Self::SignalReceived { .. }
            | Self::BudgetReached { .. }
            | Self::BudgetRaised { .. }
            | Self::Paused { .. }
            | Self::Resumed { .. }
            | Self::RunFinished { .. } => None,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "run_started",
            Self::Forked { .. } => "forked",
            Self::RolledBack { .. } => "rolled_back",
            Self::Claimed { .. } => "claimed",
            Self::Priced { .. } => "priced",
            Self::SandboxCalled { .. } => "sandbox_called",
            Self::StepIntended { .. } => "step_intended",
            Self::StepSettled { .. } => "step_settled",
            Self::Corrected { .. } => "corrected",
            Self::StepFailed { .. } => "step_failed",
            Self::StepDelayed { .. } => "step_delayed",
            Self::StepUnknown { .. } => "step_unknown",
            Self::StepProbed { .. } => "step_probed",
            Self::StepInterrupted { .. } => "step_interrupted",
            Self::StepDecided { .. } => "step_decided",
            Self::SignalReceived { .. } => "signal_received",
            Self::BudgetReached { .. } => "budget_reached",
            Self::BudgetRaised { .. } => "budget_raised",
            Self::Paused { .. } => "paused",
            Self::Resumed { .. } => "resumed",
            Self::StepAbandoned { .. } => "step_abandoned",
            Self::RunFinished { .. } => "run_finished",
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_one(value: &u32) -> bool {
    *value == 1
}
