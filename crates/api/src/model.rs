//! Models as the list on the clients' wires shows them, with what only our own clients read.

use std::collections::BTreeMap;

use saggar_domain::model::{Micros, Prices, RouteName, Wire};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelList {
    pub data: Vec<Model>,
    #[serde(rename = "saggar")]
    pub spending: ModelSpending,
}

/// A route: what clients name as their model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Model {
    pub id: RouteName,
    #[serde(rename = "saggar")]
    pub details: ModelDetails,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelDetails {
    pub targets: Vec<ModelTarget>,
}

/// A model of a provider that a route leads to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelTarget {
    pub provider: String,
    pub model: String,
    pub wire: Wire,
    pub weight: u32,
    pub prices: Prices,
}

/// What the project has spent on models.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelSpending {
    pub budget_micros: Option<Micros>,
    pub spent_today_micros: Micros,
    pub spent_micros: Micros,
    /// Of calls under way.
    pub set_aside_micros: Micros,
    pub routes: BTreeMap<String, RouteSpending>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct RouteSpending {
    pub calls: u64,
    pub input: u64,
    pub cached: u64,
    pub output: u64,
    pub micros: Micros,
}

/// What came of a request that tries a route.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelTrial {
    /// The provider's name of the model that answered.
    pub model: String,
    pub usage: TrialUsage,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TrialUsage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
}
