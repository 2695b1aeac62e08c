//! Calls of models through the gateway, in the name of a run.

use std::time::Duration;

use saggar_domain::RunId;
use saggar_domain::model::{ModelRequest, RouteName, Tariff, TokenUsage};
use saggar_engine::{EffectFailure, ModelReply, Report, Usage};
use saggar_gateway::{Caller, Failure, Gateway, Streamed};

use crate::runs::effects::{About, Task};
use crate::runs::live::{Live, Said, SaidWhat};
use crate::runs::request::{frame, route_of};

/// The longest wait that a provider is granted before the next attempt.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// The model of one run.
#[derive(Debug)]
pub(super) struct Model {
    gateway: Gateway,
    caller: Caller,
    route: Option<RouteName>,
    /// Tokens of what every request has beside its messages.
    fixed_tokens: u64,
    run: RunId,
    live: Live,
}

impl Model {
    pub(super) fn new(gateway: Gateway, about: &About, live: Live) -> Self {
        let caller = Caller { run: Some(about.run.clone()), ..Caller::project(about.project.clone()) };
        let fixed_tokens = frame(&about.agent).map_or(0, |request| Gateway::input_tokens(&request));
        let run = about.run.clone();
        Self { gateway, caller, route: route_of(&about.agent.model), fixed_tokens, run, live }
    }

    /// What its calls may come to; `None` if its replies are written in advance, or if its route is gone.
    pub(super) fn tariff(&self) -> Option<Tariff> {
        let tariff = self.gateway.tariff(self.route.as_ref()?).ok()?;
        Some(Tariff { fixed_tokens: self.fixed_tokens, ..tariff })
    }

    /// Cancelling it closes the provider's connection at once.
    pub(super) async fn call(&self, request: ModelRequest, task: &Task) -> Report {
        let tell = |streamed| {
            let what = match streamed {
                Streamed::Text(text) => SaidWhat::Text(text),
                Streamed::Reasoning(text) => SaidWhat::Reasoning(text),
                Streamed::Call { name } => SaidWhat::Call(name),
            };
            self.live.say(&self.run, Said { step: task.step, attempt: task.attempt, what });
        };
        match Box::pin(self.gateway.call(self.caller.clone(), request, tell)).await {
            Ok(reply) => {
                let usage = usage_of(&reply.usage);
                Report::Replied { reply: ModelReply::of(reply), usage }
            }
            Err(failure) => failed(&failure),
        }
    }
}

fn failed(failure: &Failure) -> Report {
    let usage = failure.usage.as_deref().map(usage_of).unwrap_or_default();
    let wait = failure.retry_after.map(|wait| wait.min(RETRY_AFTER_MAX).as_millis());
    let retry_after_ms = wait.map(|wait| u64::try_from(wait).unwrap_or(u64::MAX));
    let told = EffectFailure::new(failure.kind.as_str(), failure.message.clone(), failure.kind.is_passing());
    Report::Failed { failure: EffectFailure { retry_after_ms, ..told }, usage }
}

fn usage_of(usage: &TokenUsage) -> Usage {
    Usage { tokens: usage.tokens(), micros: usage.cost.0 }
}
