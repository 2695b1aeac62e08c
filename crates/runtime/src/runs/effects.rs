//! Effects: everything that a worker does to the world, or learns from it, on behalf of runs.
//!
//! There are two implementations: the real world, and the simulator's. Time and random numbers come from here too, so
//! that a simulated worker has no other source.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::model::{ModelRequest, Tariff};
use saggar_domain::{ProjectId, RunId, SandboxId, Timestamp, Uptime};
use saggar_engine::{AgentSpec, Class, EffectKey, Report, Restored};

/// The world, for a worker.
pub trait Effects: Clone + Send + Sync + 'static {
    /// The state of one run while a worker holds it.
    type Session: Session;

    fn now(&self) -> Timestamp;
    /// The clock of leases. It is the same for every worker of a data directory.
    fn uptime(&self) -> Uptime;
    /// A random number.
    fn chance(&self) -> u64;
    /// The number of sandboxes for which there is capacity now.
    fn room(&self) -> impl Future<Output = u32> + Send;
    /// Starts to work for a run.
    fn session(&self, about: About) -> Self::Session;
    /// Wraps every task of a worker: the simulator stops and wakes workers here.
    fn within<F: Future + Send>(&self, work: F) -> impl Future<Output = F::Output> + Send;
}

/// What an executor needs to know about a run.
#[derive(Clone, Debug)]
pub struct About {
    pub run: RunId,
    /// The branch of its tree.
    pub generation: u32,
    /// Those that it had before it was rolled back: their sandboxes are to be ended.
    pub earlier_generations: Vec<u32>,
    /// The sandbox that it had when it was rolled back, as far as known. The request for it is forgotten after a day.
    pub earlier_sandbox: Option<SandboxId>,
    pub project: ProjectId,
    pub agent: AgentSpec,
    /// Its sandbox, if it has one.
    pub sandbox: Option<SandboxId>,
}

/// The world, for one run while a worker holds it.
pub trait Session: Send + Sync + 'static {
    /// Executes an effect, or probes whether it was done. Cancelling it interrupts the effect if possible; it may
    /// also continue.
    fn perform(self: Arc<Self>, task: Task) -> impl Future<Output = Report> + Send + 'static;
    /// What calls of its model may come to; `None` if nobody knows.
    fn tariff(&self) -> Option<Tariff>;
    /// The run's current sandbox.
    fn sandbox(&self) -> Option<SandboxId>;
    /// The run is idle for a while: its sandbox may be paused.
    fn rest(&self) -> impl Future<Output = ()> + Send;
    /// The run was rolled back: ends what it held before.
    fn end_earlier(&self) -> impl Future<Output = ()> + Send;
    /// Whether the run may have resources that must be released when it is over.
    fn may_hold(&self) -> bool;
    /// The run is over: releases its resources. `false` if that failed and may be retried.
    fn end(&self, over: Over) -> impl Future<Output = bool> + Send;
}

/// How a run is over, for what may be made of the files that it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// It did what it was asked for.
    Completed { last_step: u64 },
    /// It was cancelled, failed, ran out of budget, or can't be read.
    Otherwise,
}

/// An effect to execute. Its intent is durable.
#[derive(Clone, Debug)]
pub struct Task {
    pub step: u64,
    pub attempt: u32,
    /// The idempotency key.
    pub key: EffectKey,
    /// What happens after a crash: decides whether it may be sent twice.
    pub class: Class,
    pub work: Work,
    pub timeout: Duration,
    /// What a sandbox starts with, if the run has none.
    pub files: Restored,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Ask the model for the next reply.
    CallModel {
        /// Number of earlier replies.
        replies: u64,
        /// What to ask; `None` if the replies are written in advance.
        request: Option<Box<ModelRequest>>,
    },
    /// Ask the model to sum up a part of the conversation.
    Summarize {
        /// What to ask; `None` if the replies are written in advance.
        request: Option<Box<ModelRequest>>,
    },
    CallTool {
        tool: String,
        /// JSON text.
        arguments: String,
    },
    /// Take a snapshot of the run's sandbox.
    TakeSnapshot,
    /// Probe whether that call was done.
    Probe { tool: String, arguments: String },
}
