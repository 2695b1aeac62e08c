//! Targets: one model of one provider, with its prices.

use std::sync::Arc;

use saggar_domain::model::{Origin, Prices, Wire};

use super::provider::{Endpoint, Provider};

/// Tokens that are reserved for a reply if neither the request nor the catalogue says how many it may have.
const OUTPUT_TOKENS: u64 = 32_768;

#[derive(Debug)]
pub struct Target {
    pub provider: Arc<Provider>,
    /// The provider's name of the model; for `scripted` and `replay`, the text itself.
    pub model: String,
    pub wire: Wire,
    pub weight: u32,
    pub prices: Prices,
    /// The most that a reply may have. Longer replies are not requested.
    pub output_tokens_max: Option<u64>,
}

impl Target {
    pub fn origin(&self) -> Origin {
        let model = match self.provider.endpoint {
            Endpoint::Remote { .. } => self.model.clone(),
            Endpoint::Scripted => "scripted".to_owned(),
            Endpoint::Replay => "replay".to_owned(),
        };
        Origin { provider: self.provider.name.clone(), model }
    }

    /// The tokens that a reply is held to, given what the request asks for.
    pub fn output_tokens(&self, asked: Option<u64>) -> u64 {
        let most = self.output_tokens_max;
        asked.or(most).unwrap_or(OUTPUT_TOKENS).min(most.unwrap_or(u64::MAX))
    }

    /// Names it in messages and metrics.
    pub fn label(&self) -> String {
        let Origin { provider, model } = self.origin();
        format!("{provider}/{model}")
    }
}
