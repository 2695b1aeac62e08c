//! What the gateway needs from its surroundings: a way to providers, their keys, and a durable ledger.

use std::net::IpAddr;
use std::sync::Arc;

pub use futures_util::future::BoxFuture;
use saggar_domain::model::{Micros, ModelAccess, Origin, RouteName, TokenUsage};
use saggar_domain::secret::{Binding, SecretName, SecretValue};
use saggar_domain::{ProjectId, RunId, SandboxId};
use saggar_egress::outside::Outside;

/// Connections to the outside, and this host's own addresses, which are not part of it.
#[derive(Clone)]
pub struct WayOut {
    pub outside: Arc<Outside>,
    pub own: Vec<IpAddr>,
}

/// A provider's key, with what it may be used for.
pub struct ProviderKey {
    pub binding: Binding,
    pub value: SecretValue,
}

/// Who calls what, and who pays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub project: ProjectId,
    pub run: Option<RunId>,
    pub sandbox: Option<SandboxId>,
    pub models: ModelAccess,
}

impl Caller {
    /// The run that pays, for a program in one of its sandboxes. Calls of the run itself are counted by the run.
    pub fn run_of_sandbox(&self) -> Option<&RunId> {
        self.run.as_ref().filter(|_| self.sandbox.is_some())
    }

    pub fn project(project: ProjectId) -> Self {
        Self { project, run: None, sandbox: None, models: ModelAccess::All }
    }
}

/// What is set aside before a call: the most that it may come to.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// New for each call.
    pub call: String,
    pub caller: Caller,
    pub route: RouteName,
    /// Tokens.
    pub input: u64,
    pub output: u64,
    pub amount: Micros,
    /// The project's budget, if it has one.
    pub limit: Option<SpendingLimit>,
    /// Days since 1970.
    pub day: u64,
}

/// What may be spent in all, from the first day of the period on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpendingLimit {
    pub limit: Micros,
    pub first_day: u64,
}

/// What was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Whether a budget of the caller's run limits the call.
    pub by_run: bool,
}

/// What a call came to.
#[derive(Clone, Debug)]
pub struct Bill {
    pub call: String,
    pub caller: Caller,
    pub route: RouteName,
    /// Who answered, or was asked last.
    pub origin: Option<Origin>,
    pub usage: TokenUsage,
    /// `ok`, or the kind of failure.
    pub outcome: &'static str,
    pub day: u64,
    /// Whether an amount was set aside for it.
    pub is_reserved: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveError {
    /// It doesn't fit. What has been spent and set aside so far.
    Exhausted {
        gone: Micros,
    },
    /// It doesn't fit what the budget of the caller's run leaves: which one, what is left of it, and what the call may come to.
    RunExhausted {
        budget: &'static str,
        left: String,
        wanted: String,
    },
    /// The caller's run is over.
    RunOver,
    Broken(String),
}

pub trait World: Send + Sync + 'static {
    fn way_out(&self) -> BoxFuture<'_, Result<WayOut, String>>;

    /// The current value of a secret. An error says what to do, and nothing about the value.
    fn key<'a>(&'a self, project: &'a ProjectId, name: &'a SecretName) -> BoxFuture<'a, Result<ProviderKey, String>>;

    /// Sets an amount aside, durably, if it fits the project's budget and what the caller's run leaves. Amounts of calls that are
    /// never settled stay spent.
    fn reserve(&self, reservation: Reservation) -> BoxFuture<'_, Result<Reserved, ReserveError>>;

    /// Waits until the caller's run is over, and says so; forever for other callers.
    fn over(&self, caller: &Caller) -> BoxFuture<'static, String>;

    /// Replaces what was set aside by what it cost.
    fn settle(&self, bill: Bill) -> BoxFuture<'_, Result<(), String>>;

    /// Days since 1970, and seconds.
    fn now(&self) -> (u64, u64);
}
