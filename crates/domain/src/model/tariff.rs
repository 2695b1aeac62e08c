//! Tariffs: what a call of a route may come to, before it is made.

use serde::{Deserialize, Serialize};

use super::money::Micros;
use super::price::Prices;

/// Bytes of text that are counted as one token. Text of any language has about a token per three bytes or fewer.
const BYTES_PER_TOKEN: u64 = 3;

/// The tokens of a text, without the provider's tokenizer. An estimate.
pub fn text_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// The prices of everybody who may answer a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tariff {
    /// Of each target, in no particular order.
    pub rates: Vec<Rate>,
    /// How many targets may answer the same call at once, and bill it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub at_once: u32,
    /// How many attempts may be billed for their prompt alone before the one that answers.
    #[serde(default, skip_serializing_if = "is_none")]
    pub retries: u32,
    /// Tokens that every request has beside its messages, such as the definitions of tools.
    #[serde(default)]
    pub fixed_tokens: u64,
}

/// What one target bills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub prices: Prices,
    /// The most tokens that a reply of the target may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<u64>,
}

/// The most that a call may come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtMost {
    pub output_tokens: u64,
    pub cost: Micros,
}

impl Tariff {
    /// The most expensive outcome of a call with so many tokens of input and a reply of at most so many.
    pub fn at_most(&self, input_tokens: u64, reply_tokens: u64) -> AtMost {
        let mut most = AtMost::default();
        let mut prompt = Micros::ZERO;
        for rate in &self.rates {
            let output_tokens = reply_tokens.min(rate.output_tokens_max.unwrap_or(u64::MAX));
            let cost = rate.prices.cost_at_most(input_tokens, output_tokens);
            most.output_tokens = most.output_tokens.max(output_tokens);
            most.cost = most.cost.max(cost);
            prompt = prompt.max(rate.prices.cost_at_most(input_tokens, 0));
        }
        let lost = prompt.0.saturating_mul(u64::from(self.retries));
        most.cost = Micros(most.cost.0.saturating_add(lost).saturating_mul(u64::from(self.at_once)));
        most
    }

    /// The longest reply that any target gives; `None` if one has no limit of its own.
    pub fn longest_reply(&self) -> Option<u64> {
        self.rates.iter().map(|rate| rate.output_tokens_max).reduce(|one, other| Some(one?.max(other?))).flatten()
    }
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_one(value: &u32) -> bool {
    *value == 1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_none(value: &u32) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::super::price::Price;
    use super::*;

    fn rate(input: u64, output: u64, output_tokens_max: Option<u64>) -> Rate {
        let prices = Prices { input: Price(input), output: Price(output), ..Prices::default() };
        Rate { prices, output_tokens_max }
    }

    #[test]
    fn the_most_expensive_target_counts_even_if_its_replies_are_shorter() {
        let rates = vec![rate(1_000_000, 1_000_000, None), rate(5_000_000, 5_000_000, Some(100))];
        let tariff = Tariff { rates, at_once: 1, retries: 0, fixed_tokens: 0 };
        assert_eq!(tariff.at_most(1_000, 200), AtMost { output_tokens: 200, cost: Micros(5_500) });
        assert_eq!(tariff.at_most(1_000, 50_000), AtMost { output_tokens: 50_000, cost: Micros(51_000) });
        assert_eq!(Tariff { at_once: 2, ..tariff.clone() }.at_most(1_000, 200).cost, Micros(11_000));
        // The prompt alone is 5,000 at the dearest.
        assert_eq!(Tariff { retries: 2, ..tariff.clone() }.at_most(1_000, 200).cost, Micros(15_500));
        assert_eq!(Tariff { retries: 2, at_once: 2, ..tariff.clone() }.at_most(1_000, 200).cost, Micros(31_000));
        assert_eq!(tariff.longest_reply(), None);
        let limited = Tariff { rates: vec![rate(0, 0, Some(7)), rate(0, 0, Some(9))], ..tariff };
        assert_eq!(limited.longest_reply(), Some(9));
    }
}
