//! Numbers the parts of a reply and names its calls. A provider decides how many there are, so both have a bound.

use std::collections::HashSet;

use crate::failure::{Failure, FailureKind};
use crate::reply::{PartKind, ReplyEvent};

/// Maximum number of parts of one reply.
const PARTS_MAX: usize = 16_384;
/// Maximum number of tool calls of one reply.
const CALLS_MAX: usize = 1_024;
/// Maximum length of a called tool's name, in bytes; providers take 64 to 128.
const NAME_LEN_MAX: usize = 256;
/// Maximum length of a call's id, in bytes. Another gateway may carry what a provider wants back in it.
const ID_LEN_MAX: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Numbering {
    parts: usize,
    ids: HashSet<String>,
}

impl Numbering {
    /// The number of a new part.
    pub(crate) fn part(&mut self) -> Result<usize, Failure> {
        if self.parts >= PARTS_MAX {
            return Err(too_many(PARTS_MAX, "parts"));
        }
        self.parts += 1;
        Ok(self.parts - 1)
    }

    /// The id of a new call: the provider's, unless it is absent or was used before.
    pub(crate) fn id(&mut self, id: Option<&str>) -> Result<String, Failure> {
        if self.ids.len() >= CALLS_MAX {
            return Err(too_many(CALLS_MAX, "tool calls"));
        }
        let wanted = id.filter(|id| !id.is_empty()).map_or_else(minted, str::to_owned);
        let mut id = wanted.clone();
        let mut number = self.ids.len() + 1;
        while !self.ids.insert(id.clone()) {
            id = format!("{wanted}_{number}");
            number += 1;
        }
        Ok(id)
    }

    pub(crate) fn has_calls(&self) -> bool {
        !self.ids.is_empty()
    }
}

/// Names and ids are kept wherever a call is told of, so none may be as long as a text.
pub(crate) fn check_names(event: &ReplyEvent) -> Result<(), Failure> {
    let ReplyEvent::Began { kind: PartKind::Call { id, name, .. }, .. } = event else { return Ok(()) };
    for (text, most, what) in [(name, NAME_LEN_MAX, "the name of a tool"), (id, ID_LEN_MAX, "the id of a call")] {
        if text.len() > most {
            let message = format!("in the provider's reply {what} has more than {most} bytes");
            return Err(Failure::new(FailureKind::Upstream, message));
        }
    }
    Ok(())
}

fn too_many(most: usize, what: &str) -> Failure {
    Failure::new(FailureKind::Upstream, format!("the provider's reply has more than {most} {what}"))
}

fn minted() -> String {
    let mut bytes = [0; 12];
    // It need not be hard to guess, only new.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().fold("call_".to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use saggar_domain::model::{Origin, Wire};
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::Decoder;

    /// What comes of as many of the same event.
    fn heard(wire: Wire, count: usize, event: impl Fn(usize) -> Value) -> Result<Vec<ReplyEvent>, Failure> {
        let mut decoder = Decoder::new(wire, Origin { provider: "p".to_owned(), model: "m".to_owned() });
        let mut events = Vec::new();
        for number in 0..count {
            decoder.event(&event(number), &mut events)?;
        }
        Ok(events)
    }

    fn call(wire: Wire, number: usize) -> Value {
        call_of(wire, number, "same", "f")
    }

    fn call_of(wire: Wire, number: usize, id: &str, name: &str) -> Value {
        match wire {
            Wire::Chat => json!({"choices": [{"index": 0, "delta": {"tool_calls": [
                {"index": number, "id": id, "function": {"name": name, "arguments": "{}"}}
            ]}, "finish_reason": "tool_calls"}]}),
            Wire::Responses => json!({"type": "response.output_item.added", "output_index": number,
                "item": {"type": "function_call", "call_id": id, "name": name}}),
            Wire::Anthropic => json!({"type": "content_block_start", "index": number,
                "content_block": {"type": "tool_use", "id": id, "name": name}}),
            Wire::Gemini => json!({"candidates": [{"content": {"parts": [
                {"functionCall": {"id": id, "name": name, "args": {}}}
            ]}}]}),
        }
    }

    fn part(wire: Wire, number: usize) -> Value {
        match wire {
            Wire::Chat => json!({"choices": [{"index": 0, "delta": {
                (if number.is_multiple_of(2) { "content" } else { "reasoning" }): "x"
            }}]}),
            Wire::Responses => {
                json!({"type": "response.output_text.delta", "output_index": number, "content_index": 0, "delta": "x"})
            }
            Wire::Anthropic => {
                json!({"type": "content_block_start", "index": number, "content_block": {"type": "text", "text": "x"}})
            }
            Wire::Gemini => json!({"candidates": [{"content": {"parts": [{"news": number}]}}]}),
        }
    }

    #[test]
    fn a_reply_has_so_many_calls_and_parts_and_no_more_on_any_wire() {
        for wire in [Wire::Chat, Wire::Responses, Wire::Anthropic, Wire::Gemini] {
            let events = heard(wire, CALLS_MAX, |number| call(wire, number)).unwrap();
            let ids: HashSet<&str> = events
                .iter()
                .filter_map(|event| match event {
                    ReplyEvent::Began { kind: PartKind::Call { id, .. }, .. } => Some(id.as_str()),
                    _ => None,
                })
                .collect();
            assert_eq!(ids.len(), CALLS_MAX, "{wire:?}: each call has an id of its own");
            let failure = heard(wire, CALLS_MAX + 1, |number| call(wire, number)).unwrap_err();
            assert!(failure.message.contains("more than 1024 tool calls"), "{wire:?}: {failure}");
            assert!(heard(wire, PARTS_MAX, |number| part(wire, number)).is_ok(), "{wire:?}");
            let failure = heard(wire, PARTS_MAX + 1, |number| part(wire, number)).unwrap_err();
            assert!(failure.message.contains("more than 16384 parts"), "{wire:?}: {failure}");
        }
        let failure = heard(Wire::Chat, 1025, |number| json!({"choices": [{"index": number}]})).unwrap_err();
        assert!(failure.message.contains("more than 1024 choices"), "{failure}");
    }

    #[test]
    fn no_name_or_id_is_as_long_as_a_text() {
        for wire in [Wire::Chat, Wire::Responses, Wire::Anthropic, Wire::Gemini] {
            let of = |id: usize, name: usize| {
                heard(wire, 1, |_| call_of(wire, 0, &"i".repeat(id), &"n".repeat(name)))
                    .map_err(|failure| failure.message)
            };
            assert!(of(ID_LEN_MAX, NAME_LEN_MAX).is_ok(), "{wire:?}");
            let said = of(ID_LEN_MAX, NAME_LEN_MAX + 1).unwrap_err();
            assert!(said.contains("the name of a tool has more than 256 bytes"), "{wire:?}: {said}");
            let said = of(ID_LEN_MAX + 1, NAME_LEN_MAX).unwrap_err();
            assert!(said.contains("the id of a call has more than 16384 bytes"), "{wire:?}: {said}");
        }
    }

    #[test]
    fn a_call_with_the_highest_index_of_all_harms_nothing() {
        let calls = json!([
            {"index": u64::MAX, "id": "a", "function": {"name": "f", "arguments": "{"}},
            {"id": "b", "function": {"name": "g", "arguments": "}"}},
        ]);
        let events = heard(Wire::Chat, 1, |_| json!({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]}));
        assert!(!events.unwrap().is_empty());
    }
}
