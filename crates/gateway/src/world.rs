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
    pub fn project(project: ProjectId) -> Self {
        Self { project, run: None, sandbox: None, models: ModelAccess::All }
    }
}

/// An amount that is set aside before a call.
#[derive(Clone, Debug)]
pub struct Reservation {
    /// New for each call.
    pub call: String,
    pub project: ProjectId,
    pub amount: Micros,
    /// What may be spent in all, from the first day of the period on.
    pub limit: Micros,
    pub first_day: u64,
    /// Days since 1970.
    pub day: u64,
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
    Broken(String),
}

pub trait World: Send + Sync + 'static {
    fn way_out(&self) -> BoxFuture<'_, Result<WayOut, String>>;

    /// The current value of a secret. An error says what to do, and nothing about the value.
    fn key<'a>(&'a self, project: &'a ProjectId, name: &'a SecretName) -> BoxFuture<'a, Result<ProviderKey, String>>;

    /// Sets an amount aside, durably, if it fits. Amounts of calls that are never settled stay spent.
    fn reserve(&self, reservation: Reservation) -> BoxFuture<'_, Result<(), ReserveError>>;

    /// Replaces what was set aside by what it cost.
    fn settle(&self, bill: Bill) -> BoxFuture<'_, Result<(), String>>;

    /// Days since 1970, and seconds.
    fn now(&self) -> (u64, u64);
}
