//! What a model call may come to, which is set aside before it starts.
//!
//! With a tariff: all tokens of the request, as they are counted, and the longest reply, at the prices of the most
//! expensive target. Without one: the limits of the agent's definition, and what calls have cost so far.

use saggar_domain::model::Tariff;

use super::Run;
use super::summary::SUMMARIZE_TOKENS;
use crate::agent::AgentSpec;
use crate::budget::Spending;
use crate::effect::Effect;
use crate::rules::Rules;

/// Bytes of conversation per token, without a tariff.
const BYTES_PER_TOKEN: u64 = 4;

/// What a reservation is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate<'a> {
    pub agent: &'a AgentSpec,
    pub tariff: Option<&'a Tariff>,
    pub rules: Rules,
    /// Whether money is limited.
    pub is_limited: bool,
    /// The highest cost of a call so far, in millionths.
    pub dearest: u64,
    /// Of the conversation.
    pub bytes: u64,
    pub tokens: u64,
}

impl Estimate<'_> {
    pub(super) fn reservation(self) -> Spending {
        let model = &self.agent.model;
        let (tokens, micros) = match self.tariff {
            Some(tariff) => {
                let input = self.tokens.saturating_add(tariff.fixed_tokens);
                let most = tariff.at_most(input, model.reply_tokens_max);
                let micros = most.cost.0.max(model.reply_micros_max.unwrap_or(0));
                (input.saturating_add(most.output_tokens), micros)
            }
            None => {
                let tokens = model.reply_tokens_max.saturating_add(self.bytes / BYTES_PER_TOKEN);
                // Without a spec, the cost of the first call is unknown, so it only requires that something is left.
                (tokens, model.reply_micros_max.unwrap_or(1).max(self.dearest).max(1))
            }
        };
        let micros = if self.is_limited && self.rules.reserve_money() { micros } else { 0 };
        Spending { steps: 1, tokens, micros, ..Spending::default() }
    }
}

impl Run {
    /// What the next call of the model would set aside, if nothing is open beside it.
    pub(super) fn reservation_of_a_call(&self, call: &Effect, agent: &AgentSpec, dearest: u64) -> Spending {
        let more = if matches!(call, Effect::Summarize { .. }) { SUMMARIZE_TOKENS } else { 0 };
        let estimate = Estimate {
            agent,
            tariff: self.tariff.as_deref(),
            rules: self.rules,
            is_limited: self.ledger.limit().micros.is_some(),
            dearest,
            bytes: self.conversation.bytes(),
            tokens: self.conversation.tokens().saturating_add(more),
        };
        estimate.reservation()
    }
}
