//! Effects: everything that a worker does to the world, or learns from it, on behalf of runs.
//!
//! Two things are behind this: the real world, and the simulator's. Time and chance come from here too, so that a simulated worker has no
//! other way to meet them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::{ProjectId, RunId, SandboxId, Timestamp, Uptime};
use saggar_engine::{AgentSpec, Class, EffectKey, Report};

/// The world, for a worker.
pub trait Effects: Clone + Send + Sync + 'static {
    /// What belongs to one run while a worker holds it.
    type Session: Session;

    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// The clock that leases are judged by. Every worker of a data directory has the same.
    fn uptime(&self) -> Uptime;
    /// A random number.
    fn chance(&self) -> u64;
    /// For how many more sandboxes there is room now.
    fn room(&self) -> impl Future<Output = u32> + Send;
    /// Begins to work for a run.
    fn session(&self, about: About) -> Self::Session;
    /// What every task of a worker runs within: the simulator stops and wakes workers here.
    fn within<F: Future + Send>(&self, work: F) -> impl Future<Output = F::Output> + Send;
}

/// What there is to know of a run that is worked for.
#[derive(Clone, Debug)]
pub struct About {
    pub run: RunId,
    /// Which branch of its tree.
    pub generation: u32,
    /// Whose it is.
    pub project: ProjectId,
    /// What it is.
    pub agent: AgentSpec,
    /// The sandbox it works in, where it has one.
    pub sandbox: Option<SandboxId>,
}

/// The world, for one run while a worker holds it.
pub trait Session: Send + Sync + 'static {
    /// Does something, or asks whether it was done. Dropped, it is broken off where it can be; what was begun may go on.
    fn perform(self: Arc<Self>, task: Task) -> impl Future<Output = Report> + Send + 'static;
    /// The sandbox that the run works in by now.
    fn sandbox(&self) -> Option<SandboxId>;
    /// The run needs nothing for a while: what it holds may sleep.
    fn rest(&self) -> impl Future<Output = ()> + Send;
    /// Whether the run may hold something that has to be let go of when it is over.
    fn may_hold(&self) -> bool;
    /// The run is over: what it holds is let go of. `false` where that failed, and may be tried again.
    fn end(&self) -> impl Future<Output = bool> + Send;
}

/// Something to do. Its intent is durable.
#[derive(Clone, Debug)]
pub struct Task {
    /// For which step.
    pub step: u64,
    pub attempt: u32,
    /// The name by which whoever does it knows that it is the same one.
    pub key: EffectKey,
    /// What a crash in the middle of it means: whether it may be sent twice.
    pub class: Class,
    pub work: Work,
    /// How long it may take.
    pub timeout: Duration,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Ask the model what to do next.
    CallModel {
        /// How often it has answered.
        replies: u64,
    },
    /// Use a tool.
    CallTool {
        tool: String,
        /// Its arguments, as JSON text.
        arguments: String,
    },
    /// Ask whether that call was done.
    Probe { tool: String, arguments: String },
}
