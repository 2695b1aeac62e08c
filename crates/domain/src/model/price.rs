//! Prices: what a call's tokens cost.

use serde::{Deserialize, Serialize};

use super::money::Micros;
use super::usage::TokenUsage;

/// Tokens that a price is for.
const PER: u128 = 1_000_000;

/// Micro-dollars per million tokens: $3 is 3,000,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Price(pub u64);

/// The prices of one model at one provider. Cached tokens without a price of their own cost as much as others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    pub input: Price,
    pub output: Price,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_read: Option<Price>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<Price>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_long: Option<Price>,
    /// If reasoning is billed apart from other output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Price>,
    /// For each request, whatever its size.
    #[serde(default, skip_serializing_if = "is_free")]
    pub request: Micros,
    /// The whole request has other prices if its prompt is long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_prompt: Option<LongPrompt>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongPrompt {
    /// Input tokens up to which the ordinary prices hold.
    pub above: u64,
    pub input: Price,
    pub output: Price,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_read: Option<Price>,
}

impl Prices {
    /// The cost of a usage; its own `cost` doesn't count. Rounded up to a whole micro-dollar, once.
    pub fn cost(&self, usage: &TokenUsage) -> Micros {
        let usage = usage.normal();
        let long = self.long_prompt.filter(|long| usage.input > long.above);
        let (input, output) = long.map_or((self.input, self.output), |long| (long.input, long.output));
        let cached_read = long.map_or(self.cached_read, |long| long.cached_read).unwrap_or(input);
        let cache_write = self.cache_write.unwrap_or(input);
        let cache_write_long = self.cache_write_long.unwrap_or(cache_write);
        let reasoning = self.reasoning.unwrap_or(output);
        let plain = usage.input - usage.cached_read - usage.cache_write;
        let sum: u128 = [
            (plain, input),
            (usage.cached_read, cached_read),
            (usage.cache_write - usage.cache_write_long, cache_write),
            (usage.cache_write_long, cache_write_long),
            (usage.output - usage.reasoning, output),
            (usage.reasoning, reasoning),
        ]
        .into_iter()
        .map(|(tokens, price)| u128::from(tokens) * u128::from(price.0))
        .fold(0, u128::saturating_add);
        Micros(u64::try_from(sum.div_ceil(PER)).unwrap_or(u64::MAX)).plus(self.request)
    }

    /// The most that a call can cost: nothing cached, or all of it written to a cache, whichever costs more.
    pub fn cost_at_most(&self, input: u64, output: u64) -> Micros {
        let written = [(0, 0), (input, 0), (input, input)].into_iter();
        let usages = written.flat_map(|(cache_write, cache_write_long)| {
            [0, output].map(|reasoning| TokenUsage {
                input,
                output,
                cache_write,
                cache_write_long,
                reasoning,
                ..TokenUsage::default()
            })
        });
        usages.map(|usage| self.cost(&usage)).max().unwrap_or_default()
    }
}

fn is_free(micros: &Micros) -> bool {
    *micros == Micros::ZERO
}
