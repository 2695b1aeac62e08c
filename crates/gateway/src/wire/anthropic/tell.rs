//! Writes answers as messages.

use saggar_domain::model::{ModelReply, Part, TokenUsage, Verbatim};
use serde_json::{Value, json};

use crate::failure::{Failure, FailureKind};
use crate::reply::{PartKind, ReplyEvent};
use crate::sse::written;
use crate::wire::{carried, stop};

pub(crate) fn reply(id: &str, model: &str, reply: &ModelReply) -> Value {
    let content: Vec<Value> = reply.parts.iter().filter_map(block).collect();
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop::to_anthropic(reply.stop),
        "stop_sequence": null,
        "usage": usage(&reply.usage),
    })
}

fn block(part: &Part) -> Option<Value> {
    Some(match part {
        Part::Text { text, .. } | Part::Refusal { text } => json!({"type": "text", "text": text}),
        Part::Reasoning { text, verbatim } => {
            json!({"type": "thinking", "thinking": text, "signature": signature(verbatim.as_ref())})
        }
        Part::ToolCall(call) => {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            json!({"type": "tool_use", "id": carried::with(&call.id, call.verbatim.as_ref()), "name": call.name, "input": input})
        }
        Part::Provider { verbatim } => json!({"type": "redacted_thinking", "data": carried::with("", Some(verbatim))}),
        Part::Image(_) | Part::ToolResult(_) => return None,
    })
}

/// Who made it is carried along, so that it goes back to nobody else.
fn signature(verbatim: Option<&Verbatim>) -> String {
    carried::with("", verbatim)
}

/// Cached tokens stand beside the input here.
fn usage(usage: &TokenUsage) -> Value {
    let usage = usage.normal();
    json!({
        "input_tokens": usage.input - usage.cached_read - usage.cache_write,
        "cache_read_input_tokens": usage.cached_read,
        "cache_creation_input_tokens": usage.cache_write,
        "output_tokens": usage.output,
    })
}

pub(crate) fn error(failure: &Failure, request_id: &str) -> Value {
    let kind = match failure.kind {
        FailureKind::InvalidRequest => "invalid_request_error",
        FailureKind::TooLarge => "request_too_large",
        FailureKind::Unauthorized => "authentication_error",
        FailureKind::Forbidden => "permission_error",
        FailureKind::NotFound => "not_found_error",
        FailureKind::RateLimited => "rate_limit_error",
        FailureKind::Budget => "billing_error",
        FailureKind::Overloaded => "overloaded_error",
        FailureKind::Timeout => "timeout_error",
        FailureKind::Upstream | FailureKind::Torn | FailureKind::Cancelled | FailureKind::Internal => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": failure.message}, "request_id": request_id})
}

/// A stream of events. Blocks are numbered without gaps.
#[derive(Debug)]
pub(crate) struct AnthropicTelling {
    id: String,
    model: String,
    /// What each part is, and whether its block has ended. A part's number is its block's.
    blocks: Vec<(Kind, bool)>,
}

impl AnthropicTelling {
    pub(crate) fn new(id: &str, model: &str) -> Self {
        Self { id: id.to_owned(), model: model.to_owned(), blocks: Vec::new() }
    }

    pub(crate) fn begin(&mut self, input_tokens: u64) -> String {
        let message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": {"input_tokens": input_tokens, "output_tokens": 0},
        });
        event("message_start", json!({"type": "message_start", "message": message}))
    }

    pub(crate) fn event(&mut self, told: &ReplyEvent) -> String {
        match told {
            ReplyEvent::Began { part, kind } => {
                let block = match kind {
                    PartKind::Text | PartKind::Refusal => json!({"type": "text", "text": ""}),
                    PartKind::Reasoning => json!({"type": "thinking", "thinking": "", "signature": ""}),
                    PartKind::Call { id, name, verbatim } => {
                        json!({"type": "tool_use", "id": carried::with(id, verbatim.as_ref()), "name": name, "input": {}})
                    }
                };
                self.start(*part, block, kind)
            }
            ReplyEvent::Delta { part, text } => {
                let delta = match self.kind_of(*part) {
                    Some(Kind::Text) => json!({"type": "text_delta", "text": text}),
                    Some(Kind::Thinking) => json!({"type": "thinking_delta", "thinking": text}),
                    Some(Kind::Call) => json!({"type": "input_json_delta", "partial_json": text}),
                    None => return String::new(),
                };
                self.delta(*part, delta)
            }
            ReplyEvent::Ended { part, verbatim } => {
                let mut text = String::new();
                if let (Some(Kind::Thinking), Some(verbatim)) = (self.kind_of(*part), verbatim) {
                    let delta = json!({"type": "signature_delta", "signature": signature(Some(verbatim))});
                    text = self.delta(*part, delta);
                }
                text + &self.stop(*part)
            }
            ReplyEvent::Opaque { part, verbatim } => {
                let block = json!({"type": "redacted_thinking", "data": carried::with("", Some(verbatim))});
                let begun = self.start(*part, block, &PartKind::Reasoning);
                begun + &self.stop(*part)
            }
            ReplyEvent::Used(_) | ReplyEvent::Stopped(_) => String::new(),
        }
    }

    pub(crate) fn end(&mut self, reply: &ModelReply) -> String {
        let closed: String = (0..self.blocks.len()).map(|part| self.stop(part)).collect();
        let delta = json!({"stop_reason": stop::to_anthropic(reply.stop), "stop_sequence": null});
        let last = json!({"type": "message_delta", "delta": delta, "usage": usage(&reply.usage)});
        closed + &event("message_delta", last) + &event("message_stop", json!({"type": "message_stop"}))
    }

    fn kind_of(&self, part: usize) -> Option<Kind> {
        self.blocks.get(part).map(|(kind, _)| *kind)
    }

    fn start(&mut self, part: usize, block: Value, kind: &PartKind) -> String {
        let kind = match kind {
            PartKind::Text | PartKind::Refusal => Kind::Text,
            PartKind::Reasoning => Kind::Thinking,
            PartKind::Call { .. } => Kind::Call,
        };
        self.blocks.push((kind, false));
        event("content_block_start", json!({"type": "content_block_start", "index": part, "content_block": block}))
    }

    fn delta(&self, part: usize, delta: Value) -> String {
        event("content_block_delta", json!({"type": "content_block_delta", "index": part, "delta": delta}))
    }

    fn stop(&mut self, part: usize) -> String {
        match self.blocks.get_mut(part) {
            Some((_, has_ended)) if !*has_ended => {
                *has_ended = true;
                event("content_block_stop", json!({"type": "content_block_stop", "index": part}))
            }
            Some(_) | None => String::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

fn event(name: &str, data: Value) -> String {
    written(name, &data.to_string())
}
