//! Calls of runs: a request in our own form, and a whole reply. Whoever follows the run may see its text as it comes.

use std::sync::Arc;

use saggar_domain::model::{ModelAccess, ModelReply, ModelRequest, Rate, RouteName, Tariff, TokenUsage};

use crate::attempt::Started;
use crate::count::prompt_tokens;
use crate::failure::Failure;
use crate::gateway::{Begun, Gateway};
use crate::prepare::Asked;
use crate::reply::{PartKind, ReplyEvent};
use crate::world::Caller;

/// Text of a reply that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Streamed {
    Text(String),
    Reasoning(String),
    /// A tool call has begun; its arguments come with the reply.
    Call {
        name: String,
    },
}

impl Gateway {
    /// Calls a model for a run. May be cancelled at any await: the provider's connection is closed at once, and what it may bill is
    /// booked.
    pub async fn call(
        &self,
        caller: Caller,
        request: ModelRequest,
        mut follower: impl FnMut(Streamed) + Send,
    ) -> Result<ModelReply, Failure> {
        let route = self.route(&caller.models, request.route.as_str())?;
        let body = serde_json::to_value(&request).unwrap_or_default();
        let input = prompt_tokens(&body);
        let mut call = Box::pin(self.open(caller, route, Asked::Ours(Arc::new(request)), input)).await?;
        let Begun { target, started } = match Box::pin(call.begin()).await {
            Ok(begun) => begun,
            Err(failure) => {
                call.settle(TokenUsage::default(), failure.kind.as_str()).await;
                let lost = call.lost;
                return Err(if lost.tokens() > 0 { failure.billed(lost) } else { failure });
            }
        };
        let mut reading = match started {
            Started::Stream(reading) => reading,
            local => {
                let mut reply = self.whole_reply(&mut call, local, &target).await?;
                call.settle(reply.usage, "ok").await;
                reply.usage.cost = call.total(&reply.usage);
                return Ok(reply);
            }
        };
        let mut kinds: Vec<PartKind> = Vec::new();
        loop {
            let heard = match reading.next().await.and_then(|heard| call.held(&reading).map(|()| heard)) {
                Ok(Some(heard)) => heard,
                Ok(None) => break,
                Err(failure) => {
                    let usage = reading.usage(call.input);
                    call.settle(usage, failure.kind.as_str()).await;
                    return Err(failure.billed(call.with_lost(usage)));
                }
            };
            call.so_far = Some(reading.usage(call.input));
            for event in heard.into_iter().flat_map(|heard| heard.means) {
                tell(event, &mut kinds, &mut follower);
            }
        }
        reading.finish().await;
        let usage = reading.usage(call.input);
        let mut reply = std::mem::take(&mut reading.fold).finish(usage, target.origin());
        call.settle(usage, "ok").await;
        // What was lost on the way belongs to the same call.
        reply.usage.cost = call.total(&usage);
        Ok(reply)
    }

    /// What calls of a route may come to.
    pub fn tariff(&self, route: &RouteName) -> Result<Tariff, Failure> {
        let route = self.route(&ModelAccess::All, route.as_str())?;
        let rates =
            route.all().map(|target| Rate { prices: target.prices, output_tokens_max: target.output_tokens_max });
        let mut tariff =
            Tariff { rates: Vec::new(), at_once: route.at_once(), retries: route.retries, fixed_tokens: 0 };
        for rate in rates {
            if !tariff.rates.contains(&rate) {
                tariff.rates.push(rate);
            }
        }
        Ok(tariff)
    }

    /// The tokens of a request's input, as they are set aside for it.
    pub fn input_tokens(request: &ModelRequest) -> u64 {
        prompt_tokens(&serde_json::to_value(request).unwrap_or_default())
    }
}

fn tell(event: ReplyEvent, kinds: &mut Vec<PartKind>, follower: &mut (impl FnMut(Streamed) + Send)) {
    match event {
        ReplyEvent::Began { kind, .. } => {
            if let PartKind::Call { name, .. } = &kind {
                follower(Streamed::Call { name: name.clone() });
            }
            kinds.push(kind);
        }
        ReplyEvent::Opaque { .. } => kinds.push(PartKind::Refusal),
        ReplyEvent::Delta { part, text } => match kinds.get(part) {
            Some(PartKind::Text | PartKind::Refusal) => follower(Streamed::Text(text)),
            Some(PartKind::Reasoning) => follower(Streamed::Reasoning(text)),
            Some(PartKind::Call { .. }) | None => {}
        },
        ReplyEvent::Ended { .. } | ReplyEvent::Used(_) | ReplyEvent::Stopped(_) => {}
    }
}
