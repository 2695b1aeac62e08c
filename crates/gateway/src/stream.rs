//! Pumps a provider's stream to a client, and books it at its end, however that comes.
//!
//! The client leaves: the provider's connection is closed at once, because whoever waits for the provider waits for the client too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use saggar_domain::model::{Micros, ModelReply, TokenUsage, text_tokens};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::attempt::Started;
use crate::cache::{CacheKey, ENTRY_BYTES_MAX};
use crate::catalogue::{Endpoint, Target};
use crate::failure::{Failure, FailureKind};
use crate::gateway::Call;
use crate::reading::{Heard, Reading};
use crate::reply::events_of;
use crate::sse::written;
use crate::wire::{ClientWire, Encoder};

/// A provider that writes this many times what it was allowed to is cut off. Our own count is an estimate, and may be too high.
const OVERRUN: u64 = 2;
/// How long a client has to make room for the error that ends its stream.
const ERROR_WAIT: Duration = Duration::from_secs(2);

pub(crate) struct Pump {
    pub call: Call,
    pub wire: ClientWire,
    pub sender: mpsc::Sender<Bytes>,
    pub how: PumpAs,
    pub cache: Option<(CacheKey, Duration)>,
}

pub(crate) enum PumpAs {
    /// As the provider has sent it.
    Same {
        /// The client did not ask for the usage at the end.
        drops_usage: bool,
    },
    Translated {
        id: String,
        model: String,
        created: u64,
        wants_usage: bool,
    },
}

/// How a stream ended.
enum Ended {
    Whole,
    ClientLeft,
    Failed(Failure),
}

impl Call {
    /// Fails if a provider has written far more than it was allowed to.
    pub(crate) fn held(&self, reading: &Reading) -> Result<(), Failure> {
        let (target, asked) = (&reading.target, self.asked.output_tokens());
        let is_limited = asked.is_some() || target.output_tokens_max.is_some() || self.is_limited;
        let most = target.output_tokens(asked).saturating_mul(OVERRUN);
        if is_limited && text_tokens(reading.fold.written()) / OVERRUN > most {
            let message = "the provider writes far more than it was allowed to, and was cut off";
            return Err(Failure::new(FailureKind::Budget, message));
        }
        Ok(())
    }
}

impl Pump {
    pub(crate) async fn run(self, target: Arc<Target>, started: Started) {
        match started {
            Started::Stream(reading) => Box::pin(self.remote(*reading, &target)).await,
            Started::Local(reply) => Box::pin(self.local(*reply, &target)).await,
            Started::Whole { .. } => {}
        }
    }

    async fn remote(mut self, mut reading: Reading, target: &Target) {
        let mut sent = Sent::new(self.cache.is_some());
        let mut encoder = self.encoder();
        if let Some(encoder) = &mut encoder {
            let begin = Bytes::from(encoder.begin(self.call.input));
            self.send(begin, &mut sent).await;
        }
        let over = self.call.gateway.0.world.over(&self.call.caller);
        let ended = tokio::select! {
            ended = self.pass_on(&mut reading, encoder.as_mut(), &mut sent) => ended,
            // Also while a client that doesn't read holds the stream up.
            why = over => Ended::Failed(Failure::new(FailureKind::Cancelled, why)),
        };
        match ended {
            Ended::Whole => {
                let usage = reading.usage(self.call.input);
                self.call.settle(usage, "ok").await;
                if let Some(encoder) = &mut encoder {
                    let reply = std::mem::take(&mut reading.fold).finish(usage, target.origin());
                    let end = Bytes::from(encoder.end(&reply));
                    self.send(end, &mut sent).await;
                }
                self.remember(sent);
                drop(self);
                reading.finish().await;
            }
            Ended::ClientLeft => {
                let usage = reading.usage(self.call.input);
                // First of all the provider stops.
                drop(reading);
                self.call.settle(usage, FailureKind::Cancelled.as_str()).await;
            }
            Ended::Failed(failure) => {
                let usage = reading.usage(self.call.input);
                drop(reading);
                self.call.settle(usage, failure.kind.as_str()).await;
                let error = self.wire.stream_error(&failure, &self.call.id);
                // A client that is gone needs no error, and one that doesn't read must not hold its call up.
                let _ = timeout(ERROR_WAIT, self.sender.send(error)).await;
            }
        }
    }

    /// Passes a stream on until it ends.
    async fn pass_on(&self, reading: &mut Reading, mut encoder: Option<&mut Encoder>, sent: &mut Sent) -> Ended {
        loop {
            let heard = tokio::select! {
                heard = reading.next() => heard,
                () = self.sender.closed() => return Ended::ClientLeft,
            };
            let bytes = match heard {
                Ok(Some(heard)) => self.write(&heard, encoder.as_deref_mut()),
                Ok(None) => return Ended::Whole,
                Err(failure) => return Ended::Failed(failure),
            };
            if !self.send(bytes, sent).await {
                return Ended::ClientLeft;
            }
            if let Err(failure) = self.call.held(reading) {
                return Ended::Failed(failure);
            }
        }
    }

    async fn local(mut self, mut reply: ModelReply, target: &Target) {
        reply.usage.cost = match target.provider.endpoint {
            Endpoint::Replay => Micros::ZERO,
            Endpoint::Scripted | Endpoint::Remote { .. } => target.prices.cost(&reply.usage),
        };
        let usage: TokenUsage = reply.usage;
        let mut sent = Sent::new(self.cache.is_some());
        let mut encoder = self.encoder();
        let mut pieces = VecDeque::new();
        if let Some(encoder) = &mut encoder {
            pieces.push_back(encoder.begin(usage.input));
            pieces.extend(events_of(&reply).iter().map(|event| encoder.event(event)));
            pieces.push_back(encoder.end(&reply));
        }
        self.call.settle(usage, "ok").await;
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            if !self.send(Bytes::from(piece), &mut sent).await {
                return;
            }
        }
        self.remember(sent);
    }

    fn encoder(&self) -> Option<Encoder> {
        match &self.how {
            PumpAs::Same { .. } => None,
            PumpAs::Translated { id, model, created, wants_usage } => {
                Some(Encoder::new(self.wire, id, model, *created, *wants_usage))
            }
        }
    }

    /// What the client gets for what was heard.
    fn write(&self, heard: &[Heard], encoder: Option<&mut Encoder>) -> Bytes {
        let mut bytes = BytesMut::new();
        match (&self.how, encoder) {
            (PumpAs::Same { drops_usage }, _) => {
                for heard in heard.iter().filter(|heard| !(*drops_usage && is_usage(&heard.data))) {
                    bytes.extend_from_slice(written(&heard.event.name, &heard.event.data).as_bytes());
                }
            }
            (PumpAs::Translated { .. }, Some(encoder)) => {
                for event in heard.iter().flat_map(|heard| &heard.means) {
                    bytes.extend_from_slice(encoder.event(event).as_bytes());
                }
            }
            (PumpAs::Translated { .. }, None) => {}
        }
        bytes.freeze()
    }

    /// `false` if the client is gone.
    async fn send(&self, bytes: Bytes, sent: &mut Sent) -> bool {
        if bytes.is_empty() {
            return true;
        }
        sent.add(&bytes);
        self.sender.send(bytes).await.is_ok()
    }

    fn remember(&self, sent: Sent) {
        if let (Some((key, life)), Some(all)) = (self.cache, sent.all) {
            self.call.gateway.cache().put(key, all.freeze(), life, Instant::now());
        }
    }
}

/// The last chunk of chat completions, which has nothing but the usage.
fn is_usage(data: &Value) -> bool {
    data["usage"].is_object() && data["choices"].as_array().is_some_and(Vec::is_empty)
}

/// What was sent, as far as it may be cached.
struct Sent {
    all: Option<BytesMut>,
}

impl Sent {
    fn new(is_wanted: bool) -> Self {
        Self { all: is_wanted.then(BytesMut::new) }
    }

    fn add(&mut self, bytes: &Bytes) {
        if let Some(all) = &mut self.all {
            if all.len() + bytes.len() > ENTRY_BYTES_MAX {
                self.all = None;
            } else {
                all.extend_from_slice(bytes);
            }
        }
    }
}
