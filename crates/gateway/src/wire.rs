//! The wires: how providers and clients write requests, replies, streams and errors.
//!
//! Each wire has a folder with the same files: `ask.rs` reads a client's request, `put.rs` writes a provider's, `stream.rs` reads a
//! provider's stream, `tell.rs` writes a client's answer. Gemini is spoken to providers only.

pub(crate) mod anthropic;
pub(crate) mod carried;
pub(crate) mod chat;
pub(crate) mod gemini;
mod numbering;
mod provider_error;
pub(crate) mod responses;
mod stop;

use bytes::Bytes;
use saggar_domain::model::{ModelReply, ModelRequest, Origin, Wire};
use serde_json::Value;

use crate::catalogue::Dialect;
use crate::failure::Failure;
use crate::reply::ReplyEvent;

pub(crate) use provider_error::{KEY_REMOVED, provider_error, said, without_key};

/// A wire that clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientWire {
    Chat,
    Responses,
    Anthropic,
}

impl ClientWire {
    pub fn wire(self) -> Wire {
        match self {
            Self::Chat => Wire::Chat,
            Self::Responses => Wire::Responses,
            Self::Anthropic => Wire::Anthropic,
        }
    }

    /// Reads a request. What can't be translated is refused.
    pub(crate) fn read(self, body: Value, origin: &Origin) -> Result<ModelRequest, Failure> {
        match self {
            Self::Chat => chat::ask::read(body, origin),
            Self::Responses => responses::ask::read(body, origin),
            Self::Anthropic => anthropic::ask::read(body, origin),
        }
    }

    /// The whole answer.
    pub(crate) fn reply(self, id: &str, model: &str, created: u64, reply: &ModelReply) -> Value {
        match self {
            Self::Chat => chat::tell::reply(id, model, created, reply),
            Self::Responses => responses::tell::reply(id, model, created, reply),
            Self::Anthropic => anthropic::tell::reply(id, model, reply),
        }
    }

    /// The body of an answer that says why there is none.
    pub fn error(self, failure: &Failure, request_id: &str) -> Value {
        match self {
            Self::Chat | Self::Responses => chat::tell::error(failure),
            Self::Anthropic => anthropic::tell::error(failure, request_id),
        }
    }

    /// The same inside of a stream that has begun.
    pub(crate) fn stream_error(self, failure: &Failure, request_id: &str) -> Bytes {
        let body = self.error(failure, request_id).to_string();
        let name = match self {
            Self::Chat => "",
            Self::Responses | Self::Anthropic => "error",
        };
        Bytes::from(crate::sse::written(name, &body))
    }
}

/// Writes the body for a provider.
pub(crate) fn put(wire: Wire, request: &ModelRequest, to: &PutTo) -> Result<Value, Failure> {
    match wire {
        Wire::Chat => chat::put::body(request, to),
        Wire::Responses => responses::put::body(request, to),
        Wire::Anthropic => anthropic::put::body(request, to),
        Wire::Gemini => gemini::put::body(request, to),
    }
}

/// Where a request is written for.
pub(crate) struct PutTo<'a> {
    pub origin: &'a Origin,
    pub dialect: Dialect,
    /// The most that the reply may have.
    pub output_tokens: u64,
    /// Whether the limit must be in the request although the client gave none.
    pub is_limited: bool,
}

/// Reads a provider's stream.
#[derive(Debug)]
pub(crate) enum Decoder {
    Chat(Box<chat::stream::ChatStream>),
    Responses(Box<responses::stream::ResponsesStream>),
    Anthropic(Box<anthropic::stream::AnthropicStream>),
    Gemini(Box<gemini::stream::GeminiStream>),
}

impl Decoder {
    pub(crate) fn new(wire: Wire, origin: Origin) -> Self {
        match wire {
            Wire::Chat => Self::Chat(Box::default()),
            Wire::Responses => Self::Responses(Box::new(responses::stream::ResponsesStream::new(origin))),
            Wire::Anthropic => Self::Anthropic(Box::new(anthropic::stream::AnthropicStream::new(origin))),
            Wire::Gemini => Self::Gemini(Box::new(gemini::stream::GeminiStream::new(origin))),
        }
    }

    pub(crate) fn event(&mut self, data: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        let known = events.len();
        match self {
            Self::Chat(stream) => stream.event(data, events),
            Self::Responses(stream) => stream.event(data, events),
            Self::Anthropic(stream) => stream.event(data, events),
            Self::Gemini(stream) => stream.event(data, events),
        }?;
        events[known..].iter().try_for_each(numbering::check_names)
    }

    /// Whether the stream has said that it is complete. One that ends without saying so was cut.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Self::Chat(stream) => stream.is_complete(),
            Self::Responses(stream) => stream.is_complete(),
            Self::Anthropic(stream) => stream.is_complete(),
            Self::Gemini(stream) => stream.is_complete(),
        }
    }
}

/// Writes a client's stream.
#[derive(Debug)]
pub(crate) enum Encoder {
    Chat(Box<chat::tell::ChatTelling>),
    Responses(Box<responses::tell::ResponsesTelling>),
    Anthropic(Box<anthropic::tell::AnthropicTelling>),
}

impl Encoder {
    pub(crate) fn new(wire: ClientWire, id: &str, model: &str, created: u64, wants_usage: bool) -> Self {
        match wire {
            ClientWire::Chat => Self::Chat(Box::new(chat::tell::ChatTelling::new(id, model, created, wants_usage))),
            ClientWire::Responses => {
                Self::Responses(Box::new(responses::tell::ResponsesTelling::new(id, model, created)))
            }
            ClientWire::Anthropic => Self::Anthropic(Box::new(anthropic::tell::AnthropicTelling::new(id, model))),
        }
    }

    pub(crate) fn begin(&mut self, input_tokens: u64) -> String {
        match self {
            Self::Chat(telling) => telling.begin(),
            Self::Responses(telling) => telling.begin(),
            Self::Anthropic(telling) => telling.begin(input_tokens),
        }
    }

    pub(crate) fn event(&mut self, event: &ReplyEvent) -> String {
        match self {
            Self::Chat(telling) => telling.event(event),
            Self::Responses(telling) => telling.event_of(event),
            Self::Anthropic(telling) => telling.event(event),
        }
    }

    pub(crate) fn end(&mut self, reply: &ModelReply) -> String {
        match self {
            Self::Chat(telling) => telling.end(reply),
            Self::Responses(telling) => telling.end(reply),
            Self::Anthropic(telling) => telling.end(reply),
        }
    }
}
