//! What a call used.

use serde::{Deserialize, Serialize};

use super::money::Micros;

/// Tokens and money of one call, in one sense for all providers.
///
/// INVARIANT: `cached_read + cache_write <= input`, `cache_write_long <= cache_write`, `reasoning <= output`; see [`TokenUsage::normal`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenUsage {
    /// All tokens of the prompt, cached ones included.
    pub input: u64,
    /// Of the input: read from the provider's cache.
    pub cached_read: u64,
    /// Of the input: written to the provider's cache.
    pub cache_write: u64,
    /// Of those: to be kept for long (Anthropic's hour, OpenAI's 12 hours).
    pub cache_write_long: u64,
    /// All tokens of the reply, reasoning included.
    pub output: u64,
    /// Of the output.
    pub reasoning: u64,
    pub cost: Micros,
    pub source: UsageSource,
}

/// Where the numbers come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageSource {
    /// The provider's own count.
    #[default]
    Provider,
    /// Counted by us, because the provider's count didn't come.
    Estimated,
}

impl TokenUsage {
    /// Input and output.
    pub fn tokens(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// The same within the invariant: a provider's numbers may contradict each other, and then the totals count.
    #[must_use]
    pub fn normal(self) -> Self {
        let cached_read = self.cached_read.min(self.input);
        let cache_write = self.cache_write.min(self.input - cached_read);
        Self {
            cached_read,
            cache_write,
            cache_write_long: self.cache_write_long.min(cache_write),
            reasoning: self.reasoning.min(self.output),
            ..self
        }
    }

    /// The sum; estimated if either is.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let source = match (self.source, other.source) {
            (UsageSource::Provider, UsageSource::Provider) => UsageSource::Provider,
            (UsageSource::Estimated, _) | (_, UsageSource::Estimated) => UsageSource::Estimated,
        };
        Self {
            input: self.input.saturating_add(other.input),
            cached_read: self.cached_read.saturating_add(other.cached_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            cache_write_long: self.cache_write_long.saturating_add(other.cache_write_long),
            output: self.output.saturating_add(other.output),
            reasoning: self.reasoning.saturating_add(other.reasoning),
            cost: self.cost.plus(other.cost),
            source,
        }
    }
}
