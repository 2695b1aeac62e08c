//! Writes answers as responses.

use saggar_domain::model::{ModelReply, Part, Stop, TokenUsage};
use serde_json::{Value, json};

use crate::reply::{PartKind, ReplyEvent};
use crate::sse::written;
use crate::wire::carried;

pub(crate) fn reply(id: &str, model: &str, created: u64, reply: &ModelReply) -> Value {
    let output: Vec<Value> = reply
        .parts
        .iter()
        .enumerate()
        .filter_map(|(index, part)| item(part, &item_id(id, index), "completed"))
        .collect();
    let (status, incomplete) = match reply.stop {
        Stop::MaxTokens | Stop::ContextFull => ("incomplete", json!({"reason": "max_output_tokens"})),
        Stop::ContentFilter => ("incomplete", json!({"reason": "content_filter"})),
        Stop::End | Stop::Sequence | Stop::ToolCalls | Stop::Refusal | Stop::Paused | Stop::Other => {
            ("completed", Value::Null)
        }
    };
    frame(id, model, created, status, incomplete, output, usage(&reply.usage))
}

fn frame(
    id: &str,
    model: &str,
    created: u64,
    status: &str,
    incomplete: Value,
    output: Vec<Value>,
    usage: Value,
) -> Value {
    json!({
        "id": id,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": null,
        "incomplete_details": incomplete,
        "instructions": null,
        "model": model,
        "output": output,
        "parallel_tool_calls": true,
        "tool_choice": "auto",
        "tools": [],
        "temperature": null,
        "top_p": null,
        "metadata": {},
        "usage": usage,
    })
}

fn item_id(response: &str, index: usize) -> String {
    format!("item_{}_{index}", response.trim_start_matches("resp_"))
}

fn item(part: &Part, id: &str, status: &str) -> Option<Value> {
    Some(match part {
        Part::Text { text, .. } => {
            let content = json!([{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]);
            json!({"type": "message", "id": id, "role": "assistant", "status": status, "content": content})
        }
        Part::Refusal { text } => {
            let content = json!([{"type": "refusal", "refusal": text}]);
            json!({"type": "message", "id": id, "role": "assistant", "status": status, "content": content})
        }
        Part::Reasoning { text, verbatim } => {
            let summary = if text.is_empty() { json!([]) } else { json!([{"type": "summary_text", "text": text}]) };
            let mut written = json!({"type": "reasoning", "id": id, "summary": summary});
            if let Some(verbatim) = verbatim {
                written["encrypted_content"] = json!(carried::with("", Some(verbatim)));
            }
            written
        }
        Part::ToolCall(call) => json!({
            "type": "function_call",
            "id": id,
            "call_id": carried::with(&call.id, call.verbatim.as_ref()),
            "name": call.name,
            "arguments": call.arguments,
            "status": status,
        }),
        Part::Provider { verbatim } => {
            json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": carried::with("", Some(verbatim))})
        }
        Part::Image(_) | Part::ToolResult(_) => return None,
    })
}

fn usage(usage: &TokenUsage) -> Value {
    json!({
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached_read},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.tokens(),
    })
}

/// A stream of events, each with a rising number; an item is added before its content, and is repeated whole when it is done.
#[derive(Debug)]
pub(crate) struct ResponsesTelling {
    id: String,
    model: String,
    created: u64,
    sequence: u64,
    /// The parts so far, with whether each has ended.
    parts: Vec<(Part, bool)>,
}

impl ResponsesTelling {
    pub(crate) fn new(id: &str, model: &str, created: u64) -> Self {
        Self { id: id.to_owned(), model: model.to_owned(), created, sequence: 0, parts: Vec::new() }
    }

    pub(crate) fn begin(&mut self) -> String {
        let response = frame(&self.id, &self.model, self.created, "in_progress", Value::Null, Vec::new(), Value::Null);
        let created = self.event("response.created", json!({"response": response}));
        created + &self.event("response.in_progress", json!({"response": response}))
    }

    pub(crate) fn event_of(&mut self, told: &ReplyEvent) -> String {
        match told {
            ReplyEvent::Began { part, kind } => {
                let content = match kind {
                    PartKind::Text => Part::text(""),
                    PartKind::Refusal => Part::Refusal { text: String::new() },
                    PartKind::Reasoning => Part::Reasoning { text: String::new(), verbatim: None },
                    PartKind::Call { id, name, verbatim } => Part::ToolCall(saggar_domain::model::ToolCall {
                        id: id.clone(),
                        name: name.clone(),
                        arguments: String::new(),
                        verbatim: verbatim.clone(),
                    }),
                };
                self.start(*part, content)
            }
            ReplyEvent::Delta { part, text } => self.delta(*part, text),
            ReplyEvent::Ended { part, verbatim } => {
                if let (Some((Part::Reasoning { verbatim: of, .. }, _)), Some(verbatim)) =
                    (self.parts.get_mut(*part), verbatim)
                {
                    *of = Some(verbatim.clone());
                }
                self.stop(*part)
            }
            ReplyEvent::Opaque { part, verbatim } => {
                let begun = self.start(*part, Part::Provider { verbatim: verbatim.clone() });
                begun + &self.stop(*part)
            }
            ReplyEvent::Used(_) | ReplyEvent::Stopped(_) => String::new(),
        }
    }

    pub(crate) fn end(&mut self, reply: &ModelReply) -> String {
        let mut text: String = (0..self.parts.len()).map(|part| self.stop(part)).collect();
        let parts = self.parts.iter().map(|(part, _)| part.clone()).collect();
        let whole = self::reply(&self.id, &self.model, self.created, &ModelReply { parts, ..reply.clone() });
        let name = if whole["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        text.push_str(&self.event(name, json!({"response": whole})));
        text
    }

    fn event(&mut self, name: &str, mut data: Value) -> String {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        written(name, &data.to_string())
    }

    fn start(&mut self, part: usize, content: Part) -> String {
        let id = item_id(&self.id, part);
        let mut added = item(&content, &id, "in_progress").unwrap_or_default();
        if added["content"].is_array() {
            added["content"] = json!([]);
        }
        let inner = match &content {
            Part::Text { .. } => Some(("content_part", json!({"type": "output_text", "text": "", "annotations": []}))),
            Part::Refusal { .. } => Some(("content_part", json!({"type": "refusal", "refusal": ""}))),
            Part::Reasoning { .. } => Some(("reasoning_summary_part", json!({"type": "summary_text", "text": ""}))),
            Part::ToolCall(_) | Part::Provider { .. } | Part::Image(_) | Part::ToolResult(_) => None,
        };
        self.parts.push((content, false));
        let mut text = self.event("response.output_item.added", json!({"output_index": part, "item": added}));
        if let Some((kind, inner)) = inner {
            text.push_str(&self.inner(&format!("response.{kind}.added"), part, json!({"part": inner})));
        }
        text
    }

    /// An event inside of an item.
    fn inner(&mut self, name: &str, part: usize, mut data: Value) -> String {
        data["item_id"] = json!(item_id(&self.id, part));
        data["output_index"] = json!(part);
        let index = if name.contains("reasoning_summary") { "summary_index" } else { "content_index" };
        if !name.contains("function_call") {
            data[index] = json!(0);
        }
        self.event(name, data)
    }

    fn delta(&mut self, part: usize, text: &str) -> String {
        let name = match self.parts.get_mut(part) {
            Some((Part::Text { text: all, .. }, _)) => {
                all.push_str(text);
                "response.output_text.delta"
            }
            Some((Part::Refusal { text: all }, _)) => {
                all.push_str(text);
                "response.refusal.delta"
            }
            Some((Part::Reasoning { text: all, .. }, _)) => {
                all.push_str(text);
                "response.reasoning_summary_text.delta"
            }
            Some((Part::ToolCall(call), _)) => {
                call.arguments.push_str(text);
                "response.function_call_arguments.delta"
            }
            Some((Part::Provider { .. } | Part::Image(_) | Part::ToolResult(_), _)) | None => return String::new(),
        };
        let data = if name == "response.output_text.delta" {
            json!({"delta": text, "logprobs": []})
        } else {
            json!({"delta": text})
        };
        self.inner(name, part, data)
    }

    fn stop(&mut self, part: usize) -> String {
        let content = match self.parts.get_mut(part) {
            Some((content, has_ended)) if !*has_ended => {
                *has_ended = true;
                content.clone()
            }
            Some(_) | None => return String::new(),
        };
        let mut text = String::new();
        match &content {
            Part::Text { text: all, .. } => {
                let whole = json!({"type": "output_text", "text": all, "annotations": [], "logprobs": []});
                text.push_str(&self.inner("response.output_text.done", part, json!({"text": all, "logprobs": []})));
                text.push_str(&self.inner("response.content_part.done", part, json!({"part": whole})));
            }
            Part::Refusal { text: all } => {
                text.push_str(&self.inner("response.refusal.done", part, json!({"refusal": all})));
                let whole = json!({"type": "refusal", "refusal": all});
                text.push_str(&self.inner("response.content_part.done", part, json!({"part": whole})));
            }
            Part::Reasoning { text: all, .. } => {
                text.push_str(&self.inner("response.reasoning_summary_text.done", part, json!({"text": all})));
                let whole = json!({"type": "summary_text", "text": all});
                text.push_str(&self.inner("response.reasoning_summary_part.done", part, json!({"part": whole})));
            }
            Part::ToolCall(call) => {
                let data = json!({"arguments": call.arguments, "name": call.name});
                text.push_str(&self.inner("response.function_call_arguments.done", part, data));
            }
            Part::Provider { .. } | Part::Image(_) | Part::ToolResult(_) => {}
        }
        let done = item(&content, &item_id(&self.id, part), "completed").unwrap_or_default();
        text.push_str(&self.event("response.output_item.done", json!({"output_index": part, "item": done})));
        text
    }
}
