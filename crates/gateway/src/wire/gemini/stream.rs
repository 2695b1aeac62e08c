//! Reads streams of generateContent: each event is a response with new parts.

use saggar_domain::model::{Origin, Stop, Verbatim, Wire};
use serde_json::{Value, json};

use crate::failure::{Failure, FailureKind};
use crate::reply::{Counted, PartKind, ReplyEvent};
use crate::wire::numbering::Numbering;
use crate::wire::{said, stop};

#[derive(Debug)]
pub(crate) struct GeminiStream {
    origin: Origin,
    numbering: Numbering,
    /// The text or thought that is being written.
    open: Option<(PartKind, usize)>,
    is_complete: bool,
}

impl GeminiStream {
    pub(crate) fn new(origin: Origin) -> Self {
        Self { origin, numbering: Numbering::default(), open: None, is_complete: false }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(crate) fn event(&mut self, data: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        if data["error"].is_object() {
            let text = said(data["error"]["message"].as_str().unwrap_or_default());
            let kind = match data["error"]["code"].as_u64() {
                Some(429) => FailureKind::RateLimited,
                Some(503) => FailureKind::Overloaded,
                _ => FailureKind::Upstream,
            };
            return Err(Failure::new(kind, format!("the provider failed while it answered{text}")));
        }
        let candidate = &data["candidates"][0];
        for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
            self.part(part, events)?;
        }
        events.extend(counted(&data["usageMetadata"]).map(ReplyEvent::Used));
        let reason = match candidate["finishReason"].as_str() {
            // It also says so when it calls functions.
            Some("STOP") if self.numbering.has_calls() => Some(Stop::ToolCalls),
            Some(reason) => Some(stop::from_gemini(reason)),
            None if data["promptFeedback"]["blockReason"].is_string() => Some(Stop::ContentFilter),
            None => None,
        };
        if let Some(reason) = reason {
            self.close(None, events);
            events.push(ReplyEvent::Stopped(reason));
            self.is_complete = true;
        }
        Ok(())
    }

    fn part(&mut self, part: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        let signature = part["thoughtSignature"].as_str().map(|signature| {
            let data = json!({"thoughtSignature": signature}).to_string();
            Verbatim { wire: Wire::Gemini, origin: self.origin.clone(), data }
        });
        if let Some(text) = part["text"].as_str() {
            let kind = if part["thought"] == true { PartKind::Reasoning } else { PartKind::Text };
            let number = match &self.open {
                Some((open, number)) if *open == kind => *number,
                _ => {
                    self.close(None, events);
                    let number = self.begin(kind.clone(), events)?;
                    self.open = Some((kind, number));
                    number
                }
            };
            if !text.is_empty() {
                events.push(ReplyEvent::Delta { part: number, text: text.to_owned() });
            }
            // A signed part is never merged with another.
            if signature.is_some() {
                self.close(signature, events);
            }
        } else if part["functionCall"].is_object() {
            self.close(None, events);
            let call = &part["functionCall"];
            let id = self.numbering.id(call["id"].as_str())?;
            let name = call["name"].as_str().unwrap_or_default().to_owned();
            let number = self.begin(PartKind::Call { id, name, verbatim: signature.clone() }, events)?;
            let args = if call["args"].is_object() { call["args"].to_string() } else { "{}".to_owned() };
            events.push(ReplyEvent::Delta { part: number, text: args });
            events.push(ReplyEvent::Ended { part: number, verbatim: signature });
        } else if part.as_object().is_some_and(|part| !part.is_empty()) {
            self.close(None, events);
            let number = self.numbering.part()?;
            let verbatim = Verbatim { wire: Wire::Gemini, origin: self.origin.clone(), data: part.to_string() };
            events.push(ReplyEvent::Opaque { part: number, verbatim });
        }
        Ok(())
    }

    fn begin(&mut self, kind: PartKind, events: &mut Vec<ReplyEvent>) -> Result<usize, Failure> {
        let part = self.numbering.part()?;
        events.push(ReplyEvent::Began { part, kind });
        Ok(part)
    }

    fn close(&mut self, verbatim: Option<Verbatim>, events: &mut Vec<ReplyEvent>) {
        if let Some((_, part)) = self.open.take() {
            events.push(ReplyEvent::Ended { part, verbatim });
        }
    }
}

/// Thoughts stand beside the candidates' tokens here, unless the total says that they are in them.
pub(crate) fn counted(usage: &Value) -> Option<Counted> {
    usage.as_object()?;
    let prompt = usage["promptTokenCount"].as_u64();
    let tool_use = usage["toolUsePromptTokenCount"].as_u64().unwrap_or(0);
    let candidates = usage["candidatesTokenCount"].as_u64();
    let thoughts = usage["thoughtsTokenCount"].as_u64();
    let input = prompt.map(|prompt| prompt.saturating_add(tool_use));
    let without_thoughts = input.unwrap_or(0).saturating_add(candidates.unwrap_or(0));
    let are_inside = usage["totalTokenCount"].as_u64() == Some(without_thoughts);
    let output = match (candidates, thoughts) {
        (None, None) => None,
        (Some(candidates), _) if are_inside => Some(candidates),
        (candidates, thoughts) => Some(candidates.unwrap_or(0).saturating_add(thoughts.unwrap_or(0))),
    };
    Some(Counted {
        input,
        output,
        cached_read: usage["cachedContentTokenCount"].as_u64(),
        cache_write: None,
        cache_write_long: None,
        reasoning: thoughts,
    })
}
