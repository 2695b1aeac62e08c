//! Reads a provider's stream: bytes become events, and events a reply. Knows whether it was complete.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use saggar_domain::model::{TokenUsage, Wire};
use saggar_domain::secret::SecretValue;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::catalogue::Target;
use crate::failure::{Failure, FailureKind};
use crate::pool::{InUse, Pool};
use crate::reply::{Fold, ReplyEvent};
use crate::sse::{SseEvent, SseParser};
use crate::wire::{Decoder, KEY_REMOVED, without_key};

/// Maximum size of a whole stream, in bytes.
const STREAM_BYTES_MAX: u64 = 256 << 20;
/// How long the end of a body is waited for when everything has been said, so that the connection can be used again.
const END_PATIENCE: Duration = Duration::from_millis(200);

/// One event of the provider, and what it means.
#[derive(Debug)]
pub(crate) struct Heard {
    pub event: SseEvent,
    /// Null for the mark at the end.
    pub data: Value,
    pub means: Vec<ReplyEvent>,
}

pub(crate) struct Reading {
    pub target: Arc<Target>,
    body: Incoming,
    connection: Option<InUse>,
    pool: Arc<Pool>,
    parser: SseParser,
    decoder: Decoder,
    /// What no failure repeats, even if the provider does.
    key: Option<SecretValue>,
    pub fold: Fold,
    ready: VecDeque<Heard>,
    /// A failure that comes after what is ready.
    failure: Option<Failure>,
    bytes: u64,
    has_ended: bool,
    deadline: Instant,
}

impl Reading {
    pub(crate) fn new(
        target: &Arc<Target>,
        body: Incoming,
        connection: InUse,
        pool: Arc<Pool>,
        key: Option<SecretValue>,
    ) -> Self {
        Self {
            target: Arc::clone(target),
            body,
            connection: Some(connection),
            pool,
            parser: SseParser::default(),
            decoder: Decoder::new(target.wire, target.origin()),
            key,
            fold: Fold::default(),
            ready: VecDeque::new(),
            failure: None,
            bytes: 0,
            has_ended: false,
            deadline: Instant::now() + target.provider.timeout,
        }
    }

    /// Reads the first event. Fails if it is a failure, or if there is none.
    pub(crate) async fn first(&mut self) -> Result<(), Failure> {
        while self.ready.is_empty() {
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            if self.has_ended {
                return Err(self.torn());
            }
            self.more().await;
        }
        Ok(())
    }

    /// The next events, at least one; `None` at the end of a complete stream. May be cancelled at any await and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Heard>>, Failure> {
        loop {
            if !self.ready.is_empty() {
                let ready: Vec<Heard> = self.ready.drain(..).collect();
                return Ok(Some(ready));
            }
            if let Some(failure) = self.failure.take() {
                self.has_ended = true;
                self.connection = None;
                return Err(failure);
            }
            if self.has_ended {
                return if self.decoder.is_complete() { Ok(None) } else { Err(self.torn()) };
            }
            self.more().await;
        }
    }

    /// Reads once. What goes wrong is kept for after the events that came before it.
    async fn more(&mut self) {
        let provider = &self.target.provider;
        let until = self.deadline.min(Instant::now() + provider.idle_timeout);
        let frame = match timeout_at(until, self.body.frame()).await {
            Err(_) => {
                let message = format!("provider {} stopped in the middle of its answer", provider.name);
                self.failure = Some(Failure::new(FailureKind::Timeout, message));
                return;
            }
            Ok(None) => {
                self.has_ended = true;
                if let Some(connection) = self.connection.take() {
                    self.pool.give_back(connection);
                }
                return;
            }
            Ok(Some(Err(_))) => {
                self.failure = Some(self.torn());
                return;
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(bytes) = frame.into_data() else { return };
        self.bytes += bytes.len() as u64;
        if self.bytes > STREAM_BYTES_MAX {
            let message = format!("the answer of provider {} is larger than {STREAM_BYTES_MAX} bytes", provider.name);
            self.failure = Some(Failure::new(FailureKind::Upstream, message));
            return;
        }
        self.parser.push(&bytes);
        if let Err(failure) = self.parse() {
            self.failure = Some(failure);
        }
    }

    fn parse(&mut self) -> Result<(), Failure> {
        while let Some(mut event) = self.parser.next().map_err(|error| {
            Failure::new(FailureKind::Upstream, format!("provider {}: {error}", self.target.provider.name))
        })? {
            // Nothing counts after the end.
            if self.has_ended {
                break;
            }
            if event.data.trim() == "[DONE]" {
                self.has_ended = true;
                self.ready.push_back(Heard { event, data: Value::Null, means: Vec::new() });
                break;
            }
            // Some servers send empty events to keep a connection alive.
            if event.data.trim().is_empty() {
                continue;
            }
            if let Some(clean) = self.key.as_ref().and_then(|key| without_key(&event.data, key.expose())) {
                event.data = clean;
            }
            let data: Value = serde_json::from_str(&event.data).map_err(|_| {
                let message =
                    format!("the stream of provider {} has an event that is not JSON", self.target.provider.name);
                Failure::new(FailureKind::Upstream, message)
            })?;
            let mut means = Vec::new();
            if let Err(failure) = self.decoder.event(&data, &mut means) {
                return Err(self.without_key(failure, data));
            }
            for event in &means {
                self.fold.event(event);
            }
            // Usage comes after the end of chat completions, and each event of Gemini's may be the last.
            if self.decoder.is_complete() && matches!(self.target.wire, Wire::Anthropic | Wire::Responses) {
                self.has_ended = true;
            }
            self.ready.push_back(Heard { event, data, means });
        }
        Ok(())
    }

    /// The failure that an event means, read again from the event without the key: of a long text only the beginning is in a message,
    /// and it may end inside of the key.
    fn without_key(&mut self, failure: Failure, mut data: Value) -> Failure {
        let Some(key) = &self.key else { return failure };
        let key = key.expose();
        remove(&mut data, key);
        match self.decoder.event(&data, &mut Vec::new()) {
            Err(failure) => failure,
            Ok(()) => Failure { message: failure.message.replace(key, KEY_REMOVED), ..failure },
        }
    }

    /// Reads the end of the body, so that the connection can be used again.
    pub(crate) async fn finish(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let drained = tokio::time::timeout(END_PATIENCE, async { while let Some(Ok(_)) = self.body.frame().await {} });
        if drained.await.is_ok() {
            self.pool.give_back(connection);
        }
    }

    /// What it has used: the provider's own count if the stream is complete, an estimate otherwise.
    pub(crate) fn usage(&self, input_estimate: u64) -> TokenUsage {
        let counted = self.fold.counted();
        let complete = if self.decoder.is_complete() { counted.complete() } else { None };
        let mut usage = complete.unwrap_or_else(|| counted.estimated(input_estimate, self.fold.written()));
        usage.cost = self.target.prices.cost(&usage);
        usage
    }

    fn torn(&self) -> Failure {
        Failure::new(
            FailureKind::Torn,
            format!("provider {} ended its answer in the middle", self.target.provider.name),
        )
    }
}

/// Removes a key from all texts of an event.
fn remove(data: &mut Value, key: &str) {
    match data {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => {
            if text.contains(key) {
                *text = text.replace(key, KEY_REMOVED);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| remove(item, key)),
        Value::Object(fields) => fields.values_mut().for_each(|value| remove(value, key)),
    }
}
