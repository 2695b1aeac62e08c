//! Events: what has happened to a run. They are its journal; everything else follows from them.
//!
//! An event that is written once is read for ever: fields are added with a default, none is renamed, none changes its meaning.
//! `journals/` has a golden journal of every version, and a test that reads them.

use saggar_domain::{RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::{BudgetName, Spending};
use crate::child::{ChildEnd, ChildOf};
use crate::effect::{Class, Effect, ModelReply, ToolResult, Usage};
use crate::input::{Decision, Failure};
use crate::rules::Rules;

/// Something has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run exists.
    RunStarted {
        run: RunId,
        /// What it is.
        agent: Box<AgentSpec>,
        /// Who started it and waits for its end, where a run did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        child_of: Option<ChildOf>,
        at: Timestamp,
    },
    /// The run goes on from another's past, as a new generation.
    Forked {
        /// The new run.
        run: RunId,
        parent: RunId,
        /// A generation that no other branch of this tree has: every key after it is new.
        generation: u32,
        /// Something said at the fork.
        message: Option<Body>,
        /// Whether files were not restored with the conversation.
        is_logical_only: bool,
        /// Whether the call that was open is done again, by a key of the fork's own. Before version 3 it was dropped.
        #[serde(default, skip_serializing_if = "is_false")]
        does_again: bool,
        at: Timestamp,
    },
    /// A worker holds it from here on.
    Claimed {
        /// Higher than any before.
        epoch: u64,
        /// How the worker decides, up to the next claim.
        #[serde(default, skip_serializing_if = "Rules::is_first")]
        rules: Rules,
        at: Timestamp,
    },
    /// An effect is about to be done. It is not begun before this is durable.
    StepIntended {
        /// Its number: 1, 2, 3 … within a run, whatever generation.
        step: u64,
        attempt: u32,
        effect: Effect,
        /// What a crash in the middle of it means.
        class: Class,
        /// What is set aside for it.
        reserved: Spending,
        at: Timestamp,
    },
    /// An effect was done.
    StepSettled {
        step: u64,
        /// What came of it.
        result: Settled,
        /// What it cost.
        #[serde(default)]
        usage: Usage,
        /// A frozen state of the sandbox that belongs to this position, where there is one.
        #[serde(default)]
        snapshot: Option<String>,
        at: Timestamp,
    },
    /// An effect failed, and is tried again later.
    StepFailed {
        step: u64,
        attempt: u32,
        failure: Failure,
        /// What it cost all the same.
        #[serde(default)]
        usage: Usage,
        /// When the next try is.
        retry_at: Timestamp,
        at: Timestamp,
    },
    /// An effect can't begin yet, because there is no room for what it needs. The same attempt begins later.
    StepDelayed {
        step: u64,
        /// What there is no room for.
        reason: String,
        /// When it is tried again at the latest. Whoever takes the run before that tries at once.
        retry_at: Timestamp,
        at: Timestamp,
    },
    /// Nobody knows whether an effect was done: a person decides.
    StepUnknown {
        step: u64,
        /// Why nobody knows.
        reason: String,
        at: Timestamp,
    },
    /// Whoever did an effect is being asked whether it was done.
    StepProbed {
        step: u64,
        at: Timestamp,
    },
    /// An effect is to be done again, and the run is paused: it is when the run is resumed.
    StepInterrupted {
        step: u64,
        at: Timestamp,
    },
    /// A person decided about an effect that nobody knew of.
    StepDecided {
        step: u64,
        decision: Decision,
        at: Timestamp,
    },
    /// Somebody said something to the run.
    SignalReceived {
        /// Their name for it: the same id twice is once.
        id: String,
        name: String,
        body: Body,
        /// The step whose question it answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        question: Option<u64>,
        at: Timestamp,
    },
    /// No new effect until it is resumed.
    Paused {
        at: Timestamp,
    },
    Resumed {
        at: Timestamp,
    },
    /// The effect under way is given up: what came or comes of it is no longer recorded.
    StepAbandoned {
        step: u64,
        at: Timestamp,
    },
    /// It is over.
    RunFinished {
        outcome: Outcome,
        at: Timestamp,
    },
}

/// What came of an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settled {
    /// The model answered.
    Replied(ModelReply),
    /// The tool answered, or complained.
    Returned(ToolResult),
    /// It failed for the last time: the model is told why.
    GaveUp(Failure),
    /// The child run ended.
    Ended(ChildEnd),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The agent said that it is finished.
    Completed {
        /// Its last words.
        answer: Body,
    },
    /// Somebody asked for it.
    Cancelled,
    /// A budget was used up.
    BudgetExceeded { budget: BudgetName },
    /// The agent did the same thing over and over.
    Loop { tool: String, times: u32 },
    /// The model could not be had.
    Failed { failure: Failure },
    /// A person gave it up at a step that nobody knew of.
    Abandoned { step: u64 },
}

impl Event {
    /// When it happened.
    pub fn at(&self) -> Timestamp {
        match self {
            Self::RunStarted { at, .. }
            | Self::Forked { at, .. }
            | Self::Claimed { at, .. }
            | Self::StepIntended { at, .. }
            | Self::StepSettled { at, .. }
            | Self::StepFailed { at, .. }
            | Self::StepDelayed { at, .. }
            | Self::StepUnknown { at, .. }
            | Self::StepProbed { at, .. }
            | Self::StepInterrupted { at, .. }
            | Self::StepDecided { at, .. }
            | Self::SignalReceived { at, .. }
            | Self::Paused { at }
            | Self::Resumed { at }
            | Self::StepAbandoned { at, .. }
            | Self::RunFinished { at, .. } => *at,
        }
    }

    /// The step that it is about.
    pub fn step(&self) -> Option<u64> {
        match self {
            Self::StepIntended { step, .. }
            | Self::StepSettled { step, .. }
            | Self::StepFailed { step, .. }
            | Self::StepDelayed { step, .. }
            | Self::StepUnknown { step, .. }
            | Self::StepProbed { step, .. }
            | Self::StepInterrupted { step, .. }
            | Self::StepDecided { step, .. }
            | Self::StepAbandoned { step, .. } => Some(*step),
            Self::RunStarted { .. }
            | Self::Forked { .. }
            | Self::Claimed { .. }
            | Self::SignalReceived { .. }
            | Self::Paused { .. }
            | Self::Resumed { .. }
            | Self::RunFinished { .. } => None,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "run_started",
            Self::Forked { .. } => "forked",
            Self::Claimed { .. } => "claimed",
            Self::StepIntended { .. } => "step_intended",
            Self::StepSettled { .. } => "step_settled",
            Self::StepFailed { .. } => "step_failed",
            Self::StepDelayed { .. } => "step_delayed",
            Self::StepUnknown { .. } => "step_unknown",
            Self::StepProbed { .. } => "step_probed",
            Self::StepInterrupted { .. } => "step_interrupted",
            Self::StepDecided { .. } => "step_decided",
            Self::SignalReceived { .. } => "signal_received",
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
