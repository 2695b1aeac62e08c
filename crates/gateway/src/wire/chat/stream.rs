//! Reads streams of chat completions, as OpenAI, vLLM, Ollama and llama.cpp send them. Only the first choice is understood.

use std::collections::BTreeMap;

use saggar_domain::model::Stop;
use serde_json::Value;

use crate::failure::{Failure, FailureKind};
use crate::reply::{Counted, PartKind, ReplyEvent};
use crate::wire::numbering::Numbering;
use crate::wire::{said, stop};

/// Maximum number of choices of one reply.
const CHOICES_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct ChatStream {
    numbering: Numbering,
    /// The text, reasoning or refusal that is being written, with its part.
    open: Option<(PartKind, usize)>,
    /// Calls by their index, with their parts.
    calls: BTreeMap<u64, usize>,
    /// Choices that have begun and not ended.
    unfinished: BTreeMap<u64, bool>,
}

impl ChatStream {
    pub(crate) fn is_complete(&self) -> bool {
        !self.unfinished.is_empty() && self.unfinished.values().all(|is_open| !is_open)
    }

    pub(crate) fn event(&mut self, data: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        if let Some(error) = data.get("error").filter(|error| !error.is_null()) {
            let text = error["message"].as_str().or(error.as_str()).unwrap_or_default();
            return Err(Failure::new(
                FailureKind::Upstream,
                format!("the provider failed while it answered{}", said(text)),
            ));
        }
        for choice in data["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().unwrap_or(0);
            if self.unfinished.len() >= CHOICES_MAX && !self.unfinished.contains_key(&index) {
                let message = format!("the provider's reply has more than {CHOICES_MAX} choices");
                return Err(Failure::new(FailureKind::Upstream, message));
            }
            let is_open = self.unfinished.entry(index).or_insert(true);
            let reason = choice["finish_reason"].as_str();
            if reason.is_some() {
                *is_open = false;
            }
            if index == 0 {
                self.delta(&choice["delta"], events)?;
                if let Some(reason) = reason {
                    self.close(events);
                    let ended = std::mem::take(&mut self.calls);
                    events.extend(ended.into_values().map(|part| ReplyEvent::Ended { part, verbatim: None }));
                    let reason = match stop::from_chat(reason) {
                        Stop::End if self.numbering.has_calls() => Stop::ToolCalls,
                        reason => reason,
                    };
                    events.push(ReplyEvent::Stopped(reason));
                }
            }
        }
        if let Some(counted) = counted(&data["usage"]) {
            events.push(ReplyEvent::Used(counted));
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        for (name, kind) in [
            ("reasoning", PartKind::Reasoning),
            ("reasoning_content", PartKind::Reasoning),
            ("content", PartKind::Text),
            ("refusal", PartKind::Refusal),
        ] {
            if let Some(text) = delta[name].as_str()
                && !text.is_empty()
            {
                self.write(kind, text, events)?;
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(call, events)?;
        }
        Ok(())
    }

    fn write(&mut self, kind: PartKind, text: &str, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        let part = match &self.open {
            Some((open, part)) if *open == kind => *part,
            _ => {
                self.close(events);
                let part = self.begin(kind.clone(), events)?;
                self.open = Some((kind, part));
                part
            }
        };
        events.push(ReplyEvent::Delta { part, text: text.to_owned() });
        Ok(())
    }

    fn call(&mut self, call: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        let function = &call["function"];
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        // Without an index a name begins a new call, and everything else belongs to the last one.
        let index = call["index"].as_u64().unwrap_or_else(|| {
            let last = self.calls.last_key_value().map(|(index, _)| *index);
            match (name, last) {
                (Some(_), Some(last)) => last.saturating_add(1),
                (None, Some(last)) => last,
                (_, None) => 0,
            }
        });
        let part = match (self.calls.get(&index), name) {
            (Some(part), _) => *part,
            (None, None) => {
                return Err(Failure::new(
                    FailureKind::Upstream,
                    "the provider's stream continues a tool call that never began",
                ));
            }
            (None, Some(name)) => {
                self.close(events);
                let id = self.numbering.id(call["id"].as_str())?;
                let part = self.begin(PartKind::Call { id, name: name.to_owned(), verbatim: None }, events)?;
                self.calls.insert(index, part);
                part
            }
        };
        let text = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            // Some servers send the object itself.
            other => other.to_string(),
        };
        if !text.is_empty() {
            events.push(ReplyEvent::Delta { part, text });
        }
        Ok(())
    }

    fn begin(&mut self, kind: PartKind, events: &mut Vec<ReplyEvent>) -> Result<usize, Failure> {
        let part = self.numbering.part()?;
        events.push(ReplyEvent::Began { part, kind });
        Ok(part)
    }

    fn close(&mut self, events: &mut Vec<ReplyEvent>) {
        if let Some((_, part)) = self.open.take() {
            events.push(ReplyEvent::Ended { part, verbatim: None });
        }
    }
}

pub(crate) fn counted(usage: &Value) -> Option<Counted> {
    usage.as_object()?;
    let prompt = &usage["prompt_tokens_details"];
    Some(Counted {
        input: usage["prompt_tokens"].as_u64(),
        output: usage["completion_tokens"].as_u64(),
        cached_read: prompt["cached_tokens"].as_u64(),
        cache_write: prompt["cache_write_tokens"].as_u64(),
        cache_write_long: None,
        reasoning: usage["completion_tokens_details"]["reasoning_tokens"].as_u64(),
    })
}
