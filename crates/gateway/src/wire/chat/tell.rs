//! Writes answers as chat completions.

use saggar_domain::model::{ModelReply, Part, TokenUsage};
use serde_json::{Value, json};

use crate::failure::{Failure, FailureKind};
use crate::reply::{PartKind, ReplyEvent};
use crate::sse::written;
use crate::wire::{carried, stop};

pub(crate) fn reply(id: &str, model: &str, created: u64, reply: &ModelReply) -> Value {
    let (mut text, mut reasoning, mut refusal, mut calls) = (String::new(), String::new(), None::<String>, Vec::new());
    for part in &reply.parts {
        match part {
            Part::Text { text: more, .. } => text.push_str(more),
            Part::Reasoning { text: more, .. } => reasoning.push_str(more),
            Part::Refusal { text } => refusal = Some(text.clone()),
            Part::ToolCall(call) => calls.push(json!({
                "id": carried::with(&call.id, call.verbatim.as_ref()),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })),
            // There is no field for them.
            Part::Provider { .. } | Part::Image(_) | Part::ToolResult(_) => {}
        }
    }
    let is_empty = text.is_empty() && (!calls.is_empty() || refusal.is_some());
    let mut message =
        json!({"role": "assistant", "content": if is_empty { Value::Null } else { json!(text) }, "refusal": refusal});
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = json!(reasoning);
    }
    json!({
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": stop::to_chat(reply.stop)}],
        "usage": usage(&reply.usage),
    })
}

fn usage(usage: &TokenUsage) -> Value {
    json!({
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.tokens(),
        "prompt_tokens_details": {"cached_tokens": usage.cached_read},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}

/// OpenAI's form of an error, for both of its wires.
pub(crate) fn error(failure: &Failure) -> Value {
    let (kind, code) = match failure.kind {
        FailureKind::InvalidRequest | FailureKind::TooLarge => ("invalid_request_error", Value::Null),
        FailureKind::Unauthorized => ("invalid_request_error", json!("invalid_api_key")),
        FailureKind::Forbidden => ("permission_error", Value::Null),
        FailureKind::NotFound => ("invalid_request_error", json!("model_not_found")),
        FailureKind::RateLimited => ("rate_limit_error", json!("rate_limit_exceeded")),
        FailureKind::Budget => ("insufficient_quota", json!("insufficient_quota")),
        FailureKind::Overloaded
        | FailureKind::Timeout
        | FailureKind::Upstream
        | FailureKind::Torn
        | FailureKind::Cancelled
        | FailureKind::Internal => ("server_error", json!(failure.kind.as_str())),
    };
    json!({"error": {"message": failure.message, "type": kind, "param": failure.field, "code": code}})
}

/// A stream of chunks, in the order that clients' helpers need: role first, each id and name once, usage last.
#[derive(Debug)]
pub(crate) struct ChatTelling {
    id: String,
    model: String,
    created: u64,
    wants_usage: bool,
    /// Parts that are calls, in order; the place of one is its index.
    calls: Vec<usize>,
    kinds: Vec<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
    Refusal,
    Call,
    Unseen,
}

impl ChatTelling {
    pub(crate) fn new(id: &str, model: &str, created: u64, wants_usage: bool) -> Self {
        let (id, model) = (id.to_owned(), model.to_owned());
        Self { id, model, created, wants_usage, calls: Vec::new(), kinds: Vec::new() }
    }

    pub(crate) fn begin(&mut self) -> String {
        self.chunk(json!({"role": "assistant", "content": ""}), Value::Null)
    }

    pub(crate) fn event(&mut self, event: &ReplyEvent) -> String {
        match event {
            ReplyEvent::Began { part, kind } => {
                let seen = match kind {
                    PartKind::Text => Kind::Text,
                    PartKind::Reasoning => Kind::Reasoning,
                    PartKind::Refusal => Kind::Refusal,
                    PartKind::Call { .. } => Kind::Call,
                };
                self.kinds.push(seen);
                let PartKind::Call { id, name, verbatim } = kind else { return String::new() };
                let id = carried::with(id, verbatim.as_ref());
                self.calls.push(*part);
                let index = self.calls.len() - 1;
                let function = json!({"name": name, "arguments": ""});
                self.chunk(
                    json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}),
                    Value::Null,
                )
            }
            ReplyEvent::Opaque { .. } => {
                self.kinds.push(Kind::Unseen);
                String::new()
            }
            ReplyEvent::Delta { part, text } => match self.kinds.get(*part) {
                Some(Kind::Text) => self.chunk(json!({"content": text}), Value::Null),
                Some(Kind::Reasoning) => self.chunk(json!({"reasoning_content": text}), Value::Null),
                Some(Kind::Refusal) => self.chunk(json!({"refusal": text}), Value::Null),
                Some(Kind::Call) => {
                    let index = self.calls.iter().position(|call| call == part).unwrap_or(0);
                    self.chunk(json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}), Value::Null)
                }
                Some(Kind::Unseen) | None => String::new(),
            },
            // Data that comes after the id was sent has no place.
            ReplyEvent::Ended { .. } | ReplyEvent::Used(_) | ReplyEvent::Stopped(_) => String::new(),
        }
    }

    pub(crate) fn end(&mut self, reply: &ModelReply) -> String {
        let mut text = self.chunk(json!({}), json!(stop::to_chat(reply.stop)));
        if self.wants_usage {
            let mut last = self.frame(Value::Array(Vec::new()));
            last["usage"] = usage(&reply.usage);
            text.push_str(&written("", &last.to_string()));
        }
        text.push_str("data: [DONE]\n\n");
        text
    }

    fn chunk(&self, delta: Value, reason: Value) -> String {
        let choices = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]);
        written("", &self.frame(choices).to_string())
    }

    fn frame(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}
