//! Answers clients in their own wire.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use saggar_domain::model::{Micros, ModelReply, TokenUsage};
use serde_json::Value;
use std::time::Instant;
use tokio::sync::mpsc;

use crate::attempt::{Means, Purpose, Started};
use crate::cache::{Cache, CacheKey};
use crate::catalogue::{Endpoint, Target};
use crate::count::prompt_tokens;
use crate::failure::{Failure, FailureKind};
use crate::gateway::{Begun, Call, Gateway, new_id};
use crate::prepare::{Asked, prepare};
use crate::stream::{Pump, PumpAs};
use crate::wire::{ClientWire, anthropic, chat, responses};
use crate::world::Caller;

/// Headers of a client that a provider of the same wire gets too.
const PASSED: &[&str] = &["anthropic-version", "anthropic-beta", "openai-beta"];
/// Maximum number of values in a request, counted by its commas and brackets, those of texts too.
const VALUES_MAX: usize = 1 << 20;
/// Pieces of a stream that wait for a slow client.
const PIECES_MAX: usize = 16;

/// A client's request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub wire: ClientWire,
    pub headers: HeaderMap,
    pub body: Bytes,
}

#[derive(Debug)]
pub enum Answer {
    Whole {
        body: Bytes,
        /// Who answered.
        by: String,
        cost: Micros,
    },
    /// Pieces of an event stream. Dropping the receiver ends the provider's stream.
    Stream { pieces: mpsc::Receiver<Bytes>, by: String },
}

impl Gateway {
    /// Answers a request. A stream is answered when its first event has come. May be cancelled, as it is when the run is over whose
    /// sandbox asks: the provider's connection is closed, and what it may bill is booked.
    pub async fn answer(&self, caller: Caller, ask: Ask) -> Result<Answer, Failure> {
        let over = self.0.world.over(&caller);
        tokio::select! {
            answer = Box::pin(self.begin_answer(caller, ask)) => answer,
            why = over => Err(Failure::new(FailureKind::Cancelled, why)),
        }
    }

    async fn begin_answer(&self, caller: Caller, ask: Ask) -> Result<Answer, Failure> {
        let Ask { wire, headers, body } = ask;
        let body = object(&body)?;
        let name = body["model"].as_str().ok_or_else(|| Failure::invalid("model is missing").about("model"))?;
        let route = self.route(&caller.models, name)?;
        let is_stream = match &body["stream"] {
            Value::Null => false,
            Value::Bool(is_stream) => *is_stream,
            _ => return Err(Failure::invalid("stream is neither true nor false").about("stream")),
        };
        let headers = passed(&headers);
        let key = route.cache.map(|life| (CacheKey::new(&caller.project, wire, &body, &headers), life));
        if let Some((key, _)) = key
            && let Some(bytes) = self.cached(&key)
        {
            return Ok(cached_answer(bytes, is_stream));
        }
        let wants_usage = body["stream_options"]["include_usage"] == true;
        let input = prompt_tokens(&body);
        let asked = Asked::Client { wire, body, is_stream, headers };
        asked.check()?;
        let mut call = Box::pin(self.open(caller, route, asked, input)).await?;
        let begun = match Box::pin(call.begin()).await {
            Ok(begun) => begun,
            Err(failure) => {
                call.settle(TokenUsage::default(), failure.kind.as_str()).await;
                return Err(failure);
            }
        };
        let by = begun.target.label();
        let Begun { target, started } = begun;
        let as_is = call.asked.passes(&target);
        let (_, created) = self.0.world.now();
        let model = target.origin().model;
        match started {
            Started::Whole { bytes, value } => {
                let mut usage = whole_usage(wire, &value, input, bytes.len());
                usage.cost = target.prices.cost(&usage);
                let cost = call.total(&usage);
                call.settle(usage, "ok").await;
                self.remember(key, &bytes);
                Ok(Answer::Whole { body: bytes, by, cost })
            }
            started if is_stream => {
                let (sender, pieces) = mpsc::channel(PIECES_MAX);
                let how = if as_is {
                    PumpAs::Same { drops_usage: wire == ClientWire::Chat && !wants_usage }
                } else {
                    PumpAs::Translated { id: id_of(wire), model, created, wants_usage }
                };
                let pump = Pump { call, wire, sender, how, cache: key };
                tokio::spawn(pump.run(target, started));
                Ok(Answer::Stream { pieces, by })
            }
            started => {
                let reply = match Box::pin(self.whole_reply(&mut call, started, &target)).await {
                    Ok(reply) => reply,
                    Err(failure) => return Err(failure),
                };
                let cost = call.total(&reply.usage);
                call.settle(reply.usage, "ok").await;
                let body = Bytes::from(wire.reply(&id_of(wire), &model, created, &reply).to_string());
                self.remember(key, &body);
                Ok(Answer::Whole { body, by, cost })
            }
        }
    }

    /// Reads a stream to its end. On failure the call is settled.
    pub(crate) async fn whole_reply(
        &self,
        call: &mut Call,
        started: Started,
        target: &Target,
    ) -> Result<ModelReply, Failure> {
        let mut reading = match started {
            Started::Local(mut reply) => {
                reply.usage.cost = match target.provider.endpoint {
                    // What was recorded was paid for then.
                    Endpoint::Replay => Micros::ZERO,
                    Endpoint::Scripted | Endpoint::Remote { .. } => target.prices.cost(&reply.usage),
                };
                return Ok(*reply);
            }
            Started::Whole { .. } => {
                return Err(Failure::new(FailureKind::Internal, "a whole answer was not asked for"));
            }
            Started::Stream(reading) => reading,
        };
        loop {
            match reading.next().await.and_then(|heard| call.held(&reading).map(|()| heard)) {
                Ok(Some(_)) => call.so_far = Some(reading.usage(call.input)),
                Ok(None) => break,
                Err(failure) => {
                    let usage = reading.usage(call.input);
                    call.settle(usage, failure.kind.as_str()).await;
                    return Err(failure.billed(call.with_lost(usage)));
                }
            }
        }
        reading.finish().await;
        let usage = reading.usage(call.input);
        Ok(std::mem::take(&mut reading.fold).finish(usage, target.origin()))
    }

    /// Counts the tokens of a request: by the provider if it can, and by an estimate otherwise.
    pub async fn count_tokens(&self, caller: Caller, ask: Ask) -> Result<u64, Failure> {
        let Ask { wire, headers, body } = ask;
        let body = object(&body)?;
        let name = body["model"].as_str().ok_or_else(|| Failure::invalid("model is missing").about("model"))?;
        let route = self.route(&caller.models, name)?;
        let estimate = prompt_tokens(&body);
        let asked = Asked::Client { wire, body, is_stream: false, headers: passed(&headers) };
        let Some(target) = route.all().find(|target| asked.passes(target)) else { return Ok(estimate) };
        // The provider is asked with the operator's key, as it is for an answer. Nothing is written, so no tokens are set aside.
        let _under_way = self.count(&caller.project, 0)?;
        let keys_project = self.catalogue().keys_project.clone().unwrap_or(caller.project);
        let prepared = prepare(&asked, target, false, Purpose::CountTokens)?;
        let means = Means { world: &*self.0.world, pool: &self.0.pool, keys_project: &keys_project };
        match Box::pin(crate::attempt::remote(means, target, &prepared, target.provider.keys.first())).await {
            Ok(Started::Whole { value, .. }) => Ok(value["input_tokens"].as_u64().unwrap_or(estimate)),
            Ok(Started::Stream(_) | Started::Local(_)) => Ok(estimate),
            // Many servers of this wire can't count.
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(estimate),
            Err(failure) => Err(failure),
        }
    }

    fn cached(&self, key: &CacheKey) -> Option<Bytes> {
        self.cache().get(key, Instant::now())
    }

    fn remember(&self, key: Option<(CacheKey, std::time::Duration)>, answer: &Bytes) {
        if let Some((key, life)) = key {
            self.cache().put(key, answer.clone(), life, Instant::now());
        }
    }

    pub(crate) fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.0.cache.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn cached_answer(bytes: Bytes, is_stream: bool) -> Answer {
    let by = "cache".to_owned();
    if !is_stream {
        return Answer::Whole { body: bytes, by, cost: Micros::ZERO };
    }
    let (sender, pieces) = mpsc::channel(1);
    // There is room for one.
    let _ = sender.try_send(bytes);
    Answer::Stream { pieces, by }
}

fn object(body: &Bytes) -> Result<Value, Failure> {
    // Each value takes many times the room of its two bytes, and the body is copied for each attempt.
    let values = body.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).take(VALUES_MAX + 1).count();
    if values > VALUES_MAX {
        let message = format!("the body has more than {VALUES_MAX} values");
        return Err(Failure::new(FailureKind::TooLarge, message));
    }
    let value: Value =
        serde_json::from_slice(body).map_err(|error| Failure::invalid(format!("the body is not JSON: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(Failure::invalid("the body is not a JSON object")) }
}

fn passed(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let found = PASSED.iter().filter_map(|name| Some((HeaderName::from_static(name), headers.get(*name)?.clone())));
    found.collect()
}

/// The usage of a whole answer of the client's wire; an estimate if it has none.
fn whole_usage(wire: ClientWire, value: &Value, input: u64, bytes: usize) -> TokenUsage {
    let counted = match wire {
        ClientWire::Chat => chat::stream::counted(&value["usage"]),
        ClientWire::Responses => responses::stream::counted(&value["usage"]),
        ClientWire::Anthropic => anthropic::stream::counted(&value["usage"]),
    };
    let counted = counted.unwrap_or_default();
    counted.complete().unwrap_or_else(|| counted.estimated(input, bytes as u64))
}

fn id_of(wire: ClientWire) -> String {
    let prefix = match wire {
        ClientWire::Chat => "chatcmpl-",
        ClientWire::Responses => "resp_",
        ClientWire::Anthropic => "msg_",
    };
    format!("{prefix}{}", new_id())
}
