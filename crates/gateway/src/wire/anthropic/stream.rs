//! Reads streams of messages.

use std::collections::BTreeMap;

use saggar_domain::model::{Origin, Verbatim, Wire};
use serde_json::{Value, json};

use crate::failure::{Failure, FailureKind};
use crate::reply::{Counted, PartKind, ReplyEvent};
use crate::wire::numbering::Numbering;
use crate::wire::{said, stop};

#[derive(Debug)]
pub(crate) struct AnthropicStream {
    origin: Origin,
    numbering: Numbering,
    blocks: BTreeMap<u64, Block>,
    is_complete: bool,
}

#[derive(Debug)]
struct Block {
    part: usize,
    kind: BlockKind,
    signature: String,
    /// What it has written, for blocks that go back as they came.
    text: String,
}

#[derive(Debug)]
enum BlockKind {
    Text,
    Thinking,
    Call,
    /// Kept as it began, with what was streamed of its input.
    Opaque(Value),
}

impl AnthropicStream {
    pub(crate) fn new(origin: Origin) -> Self {
        Self { origin, numbering: Numbering::default(), blocks: BTreeMap::new(), is_complete: false }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(crate) fn event(&mut self, data: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        match data["type"].as_str().unwrap_or_default() {
            "message_start" => events.extend(counted(&data["message"]["usage"]).map(ReplyEvent::Used)),
            "content_block_start" => self.start(data, events)?,
            "content_block_delta" => self.delta(data, events),
            "content_block_stop" => self.stop(data, events),
            "message_delta" => {
                events.extend(counted(&data["usage"]).map(ReplyEvent::Used));
                if let Some(reason) = data["delta"]["stop_reason"].as_str() {
                    events.push(ReplyEvent::Stopped(stop::from_anthropic(reason)));
                }
            }
            "message_stop" => self.is_complete = true,
            "error" => {
                let error = &data["error"];
                let kind = match error["type"].as_str() {
                    Some("overloaded_error") => FailureKind::Overloaded,
                    Some("rate_limit_error") => FailureKind::RateLimited,
                    Some("timeout_error") => FailureKind::Timeout,
                    _ => FailureKind::Upstream,
                };
                let text = said(error["message"].as_str().unwrap_or_default());
                return Err(Failure::new(kind, format!("the provider failed while it answered{text}")));
            }
            // `ping`, and what is new.
            _ => {}
        }
        Ok(())
    }

    fn start(&mut self, data: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        let (index, block) = (data["index"].as_u64().unwrap_or(0), &data["content_block"]);
        let part = self.numbering.part()?;
        let (kind, begins) = match block["type"].as_str() {
            Some("text") => (BlockKind::Text, Some((PartKind::Text, block["text"].as_str()))),
            Some("thinking") => (BlockKind::Thinking, Some((PartKind::Reasoning, block["thinking"].as_str()))),
            Some("tool_use") => {
                let id = self.numbering.id(block["id"].as_str())?;
                let name = block["name"].as_str().unwrap_or_default().to_owned();
                (BlockKind::Call, Some((PartKind::Call { id, name, verbatim: None }, None)))
            }
            _ => (BlockKind::Opaque(block.clone()), None),
        };
        let mut begun = Block { part, kind, signature: String::new(), text: String::new() };
        if let Some((kind, text)) = begins {
            events.push(ReplyEvent::Began { part, kind });
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                begun.text.push_str(text);
                events.push(ReplyEvent::Delta { part, text: text.to_owned() });
            }
            // Some servers send the whole input at once.
            if let Some(input) = block["input"].as_object().filter(|input| !input.is_empty()) {
                events.push(ReplyEvent::Delta { part, text: Value::Object(input.clone()).to_string() });
            }
        }
        self.blocks.insert(index, begun);
        Ok(())
    }

    fn delta(&mut self, data: &Value, events: &mut Vec<ReplyEvent>) {
        let Some(block) = self.blocks.get_mut(&data["index"].as_u64().unwrap_or(0)) else { return };
        let delta = &data["delta"];
        let text = match delta["type"].as_str() {
            Some("text_delta") => delta["text"].as_str(),
            Some("thinking_delta") => delta["thinking"].as_str(),
            Some("input_json_delta") => delta["partial_json"].as_str(),
            Some("signature_delta") => {
                block.signature.push_str(delta["signature"].as_str().unwrap_or_default());
                None
            }
            // Citations and what is new.
            _ => None,
        };
        let Some(text) = text.filter(|text| !text.is_empty()) else { return };
        block.text.push_str(text);
        match block.kind {
            BlockKind::Text | BlockKind::Thinking | BlockKind::Call => {
                events.push(ReplyEvent::Delta { part: block.part, text: text.to_owned() });
            }
            BlockKind::Opaque(_) => {}
        }
    }

    fn stop(&mut self, data: &Value, events: &mut Vec<ReplyEvent>) {
        let Some(block) = self.blocks.remove(&data["index"].as_u64().unwrap_or(0)) else { return };
        let verbatim =
            |data: Value| Verbatim { wire: Wire::Anthropic, origin: self.origin.clone(), data: data.to_string() };
        events.push(match block.kind {
            BlockKind::Text | BlockKind::Call => ReplyEvent::Ended { part: block.part, verbatim: None },
            BlockKind::Thinking => {
                let whole = json!({"type": "thinking", "thinking": block.text, "signature": block.signature});
                let verbatim = (!block.signature.is_empty()).then(|| verbatim(whole));
                ReplyEvent::Ended { part: block.part, verbatim }
            }
            BlockKind::Opaque(mut whole) => {
                // Only an object has fields; a provider may send anything.
                if whole.is_object()
                    && let Ok(input) = serde_json::from_str::<Value>(&block.text)
                {
                    whole["input"] = input;
                }
                ReplyEvent::Opaque { part: block.part, verbatim: verbatim(whole) }
            }
        });
    }
}

/// Cached tokens stand beside the input here, and count as part of it everywhere else.
pub(crate) fn counted(usage: &Value) -> Option<Counted> {
    usage.as_object()?;
    let (cached_read, cache_write) =
        (usage["cache_read_input_tokens"].as_u64(), usage["cache_creation_input_tokens"].as_u64());
    let input = usage["input_tokens"]
        .as_u64()
        .map(|input| input.saturating_add(cached_read.unwrap_or(0)).saturating_add(cache_write.unwrap_or(0)));
    Some(Counted {
        input,
        cached_read,
        cache_write,
        cache_write_long: usage["cache_creation"]["ephemeral_1h_input_tokens"].as_u64(),
        output: usage["output_tokens"].as_u64(),
        reasoning: usage["output_tokens_details"]["thinking_tokens"].as_u64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_any_form_is_kept_as_it_came() {
        let check = |block: Value, expected: Value| {
            let origin = Origin { provider: "p".to_owned(), model: "m".to_owned() };
            let (mut stream, mut events) = (AnthropicStream::new(origin), Vec::new());
            let delta = json!({"type": "input_json_delta", "partial_json": "{\"a\":1}"});
            for event in [
                json!({"type": "content_block_start", "index": 0, "content_block": block}),
                json!({"type": "content_block_delta", "index": 0, "delta": delta}),
                json!({"type": "content_block_stop", "index": 0}),
            ] {
                stream.event(&event, &mut events).unwrap();
            }
            let [ReplyEvent::Opaque { verbatim, .. }] = events.as_slice() else { panic!("{events:?}") };
            assert_eq!(serde_json::from_str::<Value>(&verbatim.data).unwrap(), expected);
        };
        check(json!({"type": "new"}), json!({"type": "new", "input": {"a": 1}}));
        check(json!("x"), json!("x"));
        check(json!([1]), json!([1]));
        check(json!(7), json!(7));
        check(Value::Null, Value::Null);
    }
}
