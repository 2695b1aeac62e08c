//! The operator's catalogue: providers, routes to their models, prices, budgets and limits. Read from one TOML file.
//!
//! ```toml
//! [providers.openai]
//! kind = "openai"
//! keys = ["openai"]
//!
//! [models."gpt-5"]
//! targets = [{ provider = "openai", model = "gpt-5", prices = { input = "1.25", output = "10" } }]
//! ```
//! Strict: what is unknown or contradicts itself is refused, with its place.

mod dollars;
mod file;
mod provider;
mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::ProjectId;
use saggar_domain::model::{Micros, RouteName};

use crate::rate::RateLimits;

pub use provider::{Dialect, Endpoint, Provider};
pub use target::Target;

/// Maximum size of the file, in bytes.
pub const CATALOGUE_BYTES_MAX: usize = 1 << 20;

/// Why a catalogue can't be used. The text names the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CatalogueError(pub String);

#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    pub(crate) routes: BTreeMap<RouteName, Arc<Route>>,
    /// The project whose secrets hold the providers' keys. Without one, each project uses its own.
    pub(crate) keys_project: Option<ProjectId>,
    budgets: BTreeMap<ProjectId, Budget>,
    default_budget: Option<Budget>,
    limits: BTreeMap<ProjectId, RateLimits>,
    default_limits: RateLimits,
}

/// What clients call a model: where requests for it go.
#[derive(Debug)]
pub struct Route {
    pub name: RouteName,
    /// One is chosen by weight; the others are tried after it.
    pub targets: Vec<Arc<Target>>,
    /// Tried in this order when no target answers.
    pub fallbacks: Vec<Arc<Target>>,
    /// Attempts after the first, over all targets.
    pub retries: u32,
    /// How long an answer is kept for the same request of the same project.
    pub cache: Option<Duration>,
    /// After this time without an answer, a second target is asked too.
    pub hedge_after: Option<Duration>,
}

/// What a project may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub limit: Micros,
    pub period: Period,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    /// From midnight UTC.
    Day,
    /// 30 days, from the first day of 1970 on.
    #[default]
    Month,
    /// For ever.
    Total,
}

impl Period {
    /// The first day of the period that this day is in; days since 1970.
    pub fn first_day(self, day: u64) -> u64 {
        match self {
            Self::Day => day,
            Self::Month => day - day % 30,
            Self::Total => 0,
        }
    }
}

impl Catalogue {
    pub fn parse(text: &str) -> Result<Self, CatalogueError> {
        file::read(text)
    }

    pub fn route(&self, name: &str) -> Option<&Arc<Route>> {
        self.routes.get(&RouteName::parse(name)?)
    }

    /// The names of all routes.
    pub fn names(&self) -> BTreeSet<RouteName> {
        self.routes().map(|route| route.name.clone()).collect()
    }

    pub fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.values()
    }

    pub fn budget(&self, project: &ProjectId) -> Option<Budget> {
        self.budgets.get(project).copied().or(self.default_budget)
    }

    pub(crate) fn limits(&self, project: &ProjectId) -> RateLimits {
        self.limits.get(project).copied().unwrap_or(self.default_limits)
    }
}

impl Route {
    /// Every target, those that requests are distributed over first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.targets.iter().chain(&self.fallbacks)
    }

    /// How many targets may answer the same call at once, and bill it.
    pub fn at_once(&self) -> u32 {
        if self.hedge_after.is_some() { 2 } else { 1 }
    }
}
