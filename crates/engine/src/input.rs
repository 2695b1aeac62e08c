//! Inputs: requests and reports to a run. Everything from outside the run enters here.

use saggar_domain::model::{SandboxCalls, Tariff};
use saggar_domain::net::NetDecision;
use saggar_domain::{RunId, SnapshotId};
use serde::{Deserialize, Serialize};

use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::Budget;
use crate::child::{ChildEnd, ChildOf};
use crate::effect::{ToolResult, Usage};
use crate::reply::ModelReply;
use crate::rules::Rules;
use crate::snapshots::Restored;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Start {
        run: RunId,
        agent: Box<AgentSpec>,
        /// The parent, if a run starts it.
        child_of: Option<ChildOf>,
    },
    /// Continue from here as another run.
    Fork {
        run: RunId,
        /// A generation that no other branch has.
        generation: u32,
        /// A message given with the fork.
        message: Option<Body>,
        /// Whether files are not restored with the conversation.
        is_logical_only: bool,
        /// Whether the open call is done again.
        does_again: bool,
        /// The files that it begins with; `None` if they are not restored.
        files: Option<Restored>,
    },
    /// Go on from the end of an earlier step.
    RollBack {
        step: u64,
        /// A message given with it.
        message: Option<Body>,
    },
    /// A worker has taken the lease. A step that the previous worker left open is settled by its class.
    Claim {
        /// Higher than every earlier epoch.
        epoch: u64,
        /// The rules by which it decides from now on.
        rules: Rules,
    },
    /// What calls of the model may come to. Without a change it does nothing.
    Priced(Box<Tariff>),
    /// What programs in its sandboxes have asked of models so far, in all. Without a change it does nothing.
    SandboxCalled(SandboxCalls),
    /// The report about an attempt.
    Reported {
        /// The epoch of the worker that executed it.
        epoch: u64,
        step: u64,
        attempt: u32,
        report: Report,
        /// A random number, used for the backoff.
        chance: u64,
    },
    /// Time has passed.
    Tick,
    /// A message to the run.
    Signal(Signal),
    /// Raise the budget.
    Raise {
        /// The sender's id, for deduplication.
        id: String,
        /// What is added to each limit.
        more: Budget,
    },
    /// Start no new effects.
    Pause,
    Resume,
    Cancel,
    /// A decision about an effect whose outcome is unknown.
    Decide {
        step: u64,
        /// The attempt whose outcome is unknown; `None` in journals and letters that don't say.
        attempt: Option<u32>,
        decision: Decision,
    },
    /// The child that the run is waiting for has ended.
    ChildEnded(ChildEnd),
}

impl Input {
    /// A claim by a worker of this version.
    pub fn claim(epoch: u64) -> Self {
        Self::Claim { epoch, rules: Rules::NEWEST }
    }
}

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    Replied {
        reply: ModelReply,
        usage: Usage,
    },
    /// The tool returned a result or an error.
    Returned {
        result: ToolResult,
        /// A snapshot of the sandbox after the call.
        snapshot: Option<String>,
    },
    /// The snapshot was taken; `None` if there is no sandbox.
    Kept {
        snapshot: Option<SnapshotId>,
    },
    /// It failed, and certainly had no effect.
    Failed {
        failure: EffectFailure,
        /// The cost of the failed attempt.
        usage: Usage,
    },
    /// It did not start, because the capacity it needs is missing for now. This doesn't count as an attempt.
    Delayed {
        /// The missing capacity.
        reason: String,
    },
    /// It can't be determined whether the effect was done.
    Unknown {
        reason: String,
        /// What the attempt asked of the network, as far as we made its connections.
        network: Vec<NetDecision>,
    },
    /// The probe says that the effect was never done.
    NeverDone,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectFailure {
    /// A machine-readable code.
    pub code: String,
    pub message: String,
    /// Whether a retry may help.
    pub is_passing: bool,
    /// What the attempt asked of the network, as far as we made its connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<NetDecision>,
    /// How long the other side asked to wait, in milliseconds. A retry isn't earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl Report {
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown { reason: reason.into(), network: Vec::new() }
    }
}

impl EffectFailure {
    pub fn new(code: impl Into<String>, message: impl Into<String>, is_passing: bool) -> Self {
        Self { code: code.into(), message: message.into(), is_passing, network: Vec::new(), retry_after_ms: None }
    }
}

/// A message to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The sender's id, for deduplication.
    pub id: String,
    /// The kind of message; `answer` answers a question of the run.
    pub name: String,
    pub body: Body,
    /// The question that an answer is for: the number of the step that asks it.
    pub question: Option<u64>,
}

/// What a human decides about an effect whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Do it again, although it may have been done already.
    Retry,
    /// It was done, with this result.
    Done(Body),
    /// Abandon the run.
    Abandon,
}

/// Why an input was rejected. A rejected input changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The worker no longer holds the lease.
    #[error("epoch {given} is not the current one, which is {current}")]
    Stale { given: u64, current: u64 },
    /// The run isn't waiting for this; it may be a duplicate.
    #[error("the run is not waiting for this")]
    NotAwaited,
    /// The answer doesn't name its question.
    #[error("an answer must name its question, which is the number of the step that asks it")]
    UnnamedQuestion,
    #[error("question {question} is not open")]
    NotOpen { question: u64 },
    #[error("question {question} already has another answer")]
    AlreadyAnswered { question: u64 },
    /// The budget of a child run is part of its parent's.
    #[error("the budget of a child run is part of its parent's, and can't be raised")]
    ChildsBudget,
    /// A fork would redo an effect that may be done only once.
    #[error("the outcome of step {step} is unknown and needs a human's decision: a fork can't continue from there")]
    Undecided { step: u64 },
    /// Steps were open at its end, it is not settled, or an earlier rollback has undone it.
    #[error("the run can't go back to step {step}: it isn't over, other steps were open at its end, or it was undone before{}", before(*nearest))]
    NoWayBack { step: u64, nearest: Option<u64> },
    #[error("the files of step {step} can't be restored: no snapshot that the run keeps was taken before it{}", before(*nearest))]
    NoFiles { step: u64, nearest: Option<u64> },
    #[error("the run has finished")]
    Finished,
    /// An input came before the run's start, or the run was started twice.
    #[error("a run must be started, and only once")]
    NotStarted,
    /// The queue of unread signals is full.
    #[error("more than {0} signals are waiting for the run")]
    TooManySignals(usize),
    /// The agent's definition is invalid.
    #[error("the agent is invalid: {0}")]
    InvalidAgent(String),
}

fn before(nearest: Option<u64>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; it can go back to step {nearest}"))
}
