//! Inputs: what is asked of a run, or reported to it. Whatever is not the run's own doing comes in here.

use saggar_domain::RunId;
use serde::{Deserialize, Serialize};

use crate::agent::AgentSpec;
use crate::body::Body;
use crate::child::{ChildEnd, ChildOf};
use crate::effect::{ModelReply, ToolResult, Usage};
use crate::rules::Rules;

/// Something is asked or reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    Start {
        run: RunId,
        /// What it is.
        agent: Box<AgentSpec>,
        /// Who starts it, where a run does.
        child_of: Option<ChildOf>,
    },
    /// Go on from here as another run.
    Fork {
        /// The new run.
        run: RunId,
        /// The generation, which no other branch has.
        generation: u32,
        /// Something to say at the fork.
        message: Option<Body>,
        /// Whether files are not restored with the conversation.
        is_logical_only: bool,
        /// Whether the call that is open is done again.
        does_again: bool,
    },
    /// A worker holds it now. What the last one left unfinished is settled by its class.
    Claim {
        /// Higher than any before.
        epoch: u64,
        /// How it decides from here on.
        rules: Rules,
    },
    /// What came of an attempt.
    Reported {
        /// The epoch of whoever did it.
        epoch: u64,
        step: u64,
        attempt: u32,
        report: Report,
        /// A random number, for the wait before the next try.
        chance: u64,
    },
    /// Time has passed.
    Tick,
    /// Somebody says something.
    Signal(Signal),
    /// No new effects, please.
    Pause,
    Resume,
    /// Stop for good.
    Cancel,
    /// What to do about an effect that nobody knows of.
    Decide {
        step: u64,
        decision: Decision,
    },
    /// The child that it waits for has ended.
    ChildEnded(ChildEnd),
}

impl Input {
    /// A claim by a worker of this version.
    pub fn claim(epoch: u64) -> Self {
        Self::Claim { epoch, rules: Rules::NEWEST }
    }
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The model answered.
    Replied {
        reply: ModelReply,
        /// What it cost.
        usage: Usage,
    },
    /// The tool answered, or complained.
    Returned {
        result: ToolResult,
        /// A frozen state of the sandbox after it.
        snapshot: Option<String>,
    },
    /// It failed, and certainly did nothing.
    Failed {
        failure: Failure,
        /// What it cost all the same.
        usage: Usage,
    },
    /// It did not begin: there is no room for what it needs, and there will be. This is no attempt.
    Delayed {
        /// What there is no room for.
        reason: String,
    },
    /// Nobody can say whether it was done.
    Unknown { reason: String },
    /// Asked whether it was done: it never was.
    NeverDone,
}

/// Why an effect failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A word for programs.
    pub code: String,
    pub message: String,
    /// Whether trying again may help.
    pub is_passing: bool,
}

/// Something said to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The sender's name for it: the same id twice is once.
    pub id: String,
    /// What kind; `answer` is for a question of the run's.
    pub name: String,
    pub body: Body,
    /// The question that an answer is for: the number of the step that asks it.
    pub question: Option<u64>,
}

/// What a person decides about an effect that nobody knows of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Do it again, knowing that it may be the second time.
    Retry,
    /// It was done, and this came of it.
    Done(Body),
    /// Give the run up.
    Abandon,
}

/// Why an input changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It comes from a worker that no longer holds the run.
    #[error("epoch {given} is not the current one, which is {current}")]
    Stale { given: u64, current: u64 },
    /// It is not what the run waits for; perhaps it came twice.
    #[error("the run doesn't wait for that")]
    NotAwaited,
    /// An answer doesn't say which question it is for.
    #[error("an answer names its question, which is the number of the step that asks it")]
    UnnamedQuestion,
    /// The question isn't open.
    #[error("question {question} is not open")]
    NotOpen {
        /// The one that was answered.
        question: u64,
    },
    /// The question has another answer.
    #[error("question {question} already has another answer")]
    AlreadyAnswered { question: u64 },
    /// A fork would have to do again what may be done once.
    #[error("step {step} may have been done, and a person decides about it: a fork can't go on from there")]
    Undecided {
        /// Which step is open.
        step: u64,
    },
    /// The run is over.
    #[error("the run has finished")]
    Finished,
    /// The run has not begun, or has already.
    #[error("a run begins once, with its start")]
    NotStarted,
    /// As many signals as a run keeps are waiting.
    #[error("more than {0} signals wait for the run")]
    TooManySignals(usize),
    /// The agent can't be one.
    #[error("the agent can't be run: {0}")]
    InvalidAgent(String),
}
