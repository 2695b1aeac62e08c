//! Models as the list on the clients' wires shows them, with what only our own clients read.

use std::collections::BTreeMap;

use saggar_domain::model::{Micros, Prices, RouteName, Wire};
use serde::{Deserialize, Serialize};

/// The models that a project may call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelList {
    /// Every route.
    pub data: Vec<Model>,
    /// What the project has spent.
    #[serde(rename = "saggar")]
    pub spending: ModelSpending,
}

/// A route: what clients name as their model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Model {
    /// Its name.
    pub id: RouteName,
    /// What other clients don't read.
    #[serde(rename = "saggar")]
    pub details: ModelDetails,
}

/// Where a route leads to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelDetails {
    /// Those that requests are spread over, then the fallbacks.
    pub targets: Vec<ModelTarget>,
}

/// A model of a provider that a route leads to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelTarget {
    /// The operator's name of the provider.
    pub provider: String,
    /// The provider's name of the model.
    pub model: String,
    /// The protocol that is spoken to it.
    pub wire: Wire,
    /// Its share of the requests.
    pub weight: u32,
    /// What its tokens cost.
    pub prices: Prices,
}

/// What the project has spent on models.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelSpending {
    /// The limit of a period, if there is one.
    pub budget_micros: Option<Micros>,
    /// Since midnight UTC.
    pub spent_today_micros: Micros,
    /// In all.
    pub spent_micros: Micros,
    /// Of calls under way.
    pub set_aside_micros: Micros,
    /// By route.
    pub routes: BTreeMap<String, RouteSpending>,
}

/// Sums of all calls of a route.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct RouteSpending {
    /// Their number.
    pub calls: u64,
    /// Calls whose tokens are in part an estimate, because the provider's count didn't come.
    #[serde(default)]
    pub estimated: u64,
    /// Tokens of prompts.
    pub input: u64,
    /// Of those, read from a provider's cache.
    pub cached: u64,
    /// Of those, written to a provider's cache.
    #[serde(default)]
    pub written: u64,
    /// Tokens of replies.
    pub output: u64,
    /// Of those, of reasoning.
    #[serde(default)]
    pub reasoning: u64,
    /// Their cost.
    pub micros: Micros,
}

/// What came of a request that tries a route.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelTrial {
    /// The provider's name of the model that answered.
    pub model: String,
    /// What it used.
    pub usage: TrialUsage,
}

/// Tokens of a trial.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TrialUsage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of the reply.
    pub completion_tokens: u64,
}
