//! Models that programs in a run's sandboxes have called.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All calls of one model by programs in a run's sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunSandboxModel {
    /// The model as the programs named it.
    #[schema(example = "cheap")]
    pub model: String,
    /// Calls that have ended.
    pub calls: u64,
    /// Those whose tokens are in part an estimate, because the provider's count didn't come.
    pub estimated: u64,
    /// Tokens of the prompts, cached ones included.
    pub input: u64,
    /// Of these, read from the provider's cache.
    pub cached: u64,
    /// Of these, written to the provider's cache.
    pub written: u64,
    /// Tokens of the replies, reasoning included.
    pub output: u64,
    /// Of these, reasoning.
    pub reasoning: u64,
    /// What they cost, in millionths.
    pub micros: u64,
}
