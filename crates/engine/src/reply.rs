//! A model's reply as journals keep it: its text, its calls, and what its provider needs back with the next request.
//!
//! Nothing is kept twice: a part that is the reply's text, or one of its calls, is only named by [`SaidPart`].

use std::collections::BTreeSet;

use saggar_domain::model::{self, Message, Origin, Part, Role, Stop, TokenUsage, Verbatim, text_tokens};
use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::effect::ToolCall;

/// Tokens of what a request has around a message, and around each part of it.
const AROUND_TOKENS: u64 = 32;
/// The same around a provider's own data.
const AROUND_VERBATIM_TOKENS: u64 = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReply {
    /// All of its text.
    pub text: Body,
    /// Requested tool calls; an empty list means that the agent is finished.
    #[serde(default)]
    pub calls: Vec<ToolCall>,
    /// `None` for scripted replies, for what a human decided, and before version 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Box<Said>>,
    /// What is wrong with its text as the agent's answer, if that was found when the reply arrived. The model is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
}

/// How a model of a provider replied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// In the model's order. They go back as they are with the next request.
    pub parts: Vec<SaidPart>,
    pub stop: Stop,
    pub usage: TokenUsage,
    /// Who really answered.
    pub origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaidPart {
    /// The reply's text, if it is in one part.
    Text {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verbatim: Option<Verbatim<Body>>,
    },
    /// The next of the reply's calls.
    Call {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verbatim: Option<Verbatim<Body>>,
    },
    Part(Part<Body>),
}

impl ModelReply {
    /// A reply that no provider has to get back as it was.
    pub fn new(text: Body, calls: Vec<ToolCall>) -> Self {
        Self { text, calls, said: None, invalid: None }
    }

    /// A provider's reply. Ids of calls that are missing or there twice are replaced, because results name their call
    /// by its id.
    pub fn of(reply: model::ModelReply) -> Self {
        let model::ModelReply { parts, stop, usage, origin } = reply;
        let texts = || parts.iter().filter_map(text_of);
        let is_one = texts().count() == 1;
        let text = Body::text(texts().collect::<String>());
        let (mut calls, mut ids, mut said) = (Vec::new(), BTreeSet::new(), Vec::with_capacity(parts.len()));
        for part in parts {
            said.push(match part {
                Part::Text { verbatim, .. } if is_one => SaidPart::Text { verbatim: verbatim.map(kept) },
                Part::ToolCall(call) => {
                    let model::ToolCall { id, name, arguments, verbatim } = call;
                    let id = unique(id, calls.len(), &mut ids);
                    let arguments = Body::text(arguments);
                    calls.push(ToolCall { id, tool: name, arguments, read: None, invalid: None, class: None });
                    SaidPart::Call { verbatim: verbatim.map(kept) }
                }
                other => SaidPart::Part(into_bodies(other)),
            });
        }
        Self { text, calls, said: Some(Box::new(Said { parts: said, stop, usage, origin })), invalid: None }
    }

    /// Why it ended; `None` if nobody said.
    pub fn stop(&self) -> Option<Stop> {
        self.said.as_ref().map(|said| said.stop)
    }

    /// The reason that the model gave for not answering, if it gave one as such.
    pub(crate) fn refusal(&self) -> Option<&Body> {
        let parts = self.said.iter().flat_map(|said| &said.parts);
        parts.into_iter().find_map(|part| match part {
            SaidPart::Part(Part::Refusal { text }) => Some(text),
            SaidPart::Part(_) | SaidPart::Text { .. } | SaidPart::Call { .. } => None,
        })
    }

    /// The reply as a model gets it back.
    pub fn message(&self) -> Message<Body> {
        let mut calls = self.calls.iter();
        let call = |call: &ToolCall, verbatim: Option<Verbatim<Body>>| {
            let (id, name, arguments) = (call.id.clone(), call.tool.clone(), call.arguments.clone());
            Part::ToolCall(model::ToolCall { id, name, arguments, verbatim })
        };
        let mut parts = Vec::new();
        match &self.said {
            Some(said) => parts.extend(said.parts.iter().filter_map(|part| match part {
                SaidPart::Text { verbatim } => Some(Part::Text { text: self.text.clone(), verbatim: verbatim.clone() }),
                SaidPart::Call { verbatim } => calls.next().map(|next| call(next, verbatim.clone())),
                SaidPart::Part(part) => Some(part.clone()),
            })),
            None if self.text.length() > 0 => parts.push(Part::Text { text: self.text.clone(), verbatim: None }),
            None => {}
        }
        parts.extend(calls.map(|rest| call(rest, None)));
        Message::new(Role::Assistant, parts)
    }

    /// Every body of it, in a fixed order.
    pub fn bodies(&self) -> Vec<&Body> {
        let mut bodies = vec![&self.text];
        for call in &self.calls {
            bodies.push(&call.arguments);
            bodies.extend(call.read.as_deref().and_then(crate::BuiltIn::body));
        }
        for part in self.said.iter().flat_map(|said| &said.parts) {
            match part {
                SaidPart::Text { verbatim } | SaidPart::Call { verbatim } => {
                    bodies.extend(verbatim.as_ref().map(|verbatim| &verbatim.data));
                }
                SaidPart::Part(part) => of_part(part, &mut bodies),
            }
        }
        bodies
    }

    /// The tokens that it adds to a request, at most.
    pub(crate) fn tokens(&self) -> u64 {
        let mut tokens = AROUND_TOKENS.saturating_add(text_tokens(self.text.length()));
        for call in &self.calls {
            let named = text_tokens((call.id.len() + call.tool.len()) as u64);
            tokens = tokens.saturating_add(AROUND_TOKENS + named + text_tokens(call.arguments.length()));
        }
        for part in self.said.iter().flat_map(|said| &said.parts) {
            let mut bodies = Vec::new();
            match part {
                SaidPart::Text { verbatim } | SaidPart::Call { verbatim } => {
                    bodies.extend(verbatim.as_ref().map(|verbatim| &verbatim.data));
                }
                SaidPart::Part(part) => of_part(part, &mut bodies),
            }
            tokens = tokens.saturating_add(AROUND_VERBATIM_TOKENS);
            tokens = bodies.into_iter().fold(tokens, |sum, body| sum.saturating_add(text_tokens(body.length())));
        }
        tokens
    }
}

/// The tokens that a text of so many bytes adds to a request as a message of its own, at most.
pub(crate) fn message_tokens(bytes: u64) -> u64 {
    (2 * AROUND_TOKENS).saturating_add(text_tokens(bytes))
}

fn text_of(part: &Part) -> Option<&str> {
    match part {
        Part::Text { text, .. } => Some(text),
        Part::Image(_)
        | Part::ToolCall(_)
        | Part::ToolResult(_)
        | Part::Reasoning { .. }
        | Part::Refusal { .. }
        | Part::Provider { .. } => None,
    }
}

fn kept(verbatim: Verbatim) -> Verbatim<Body> {
    let Verbatim { wire, origin, data } = verbatim;
    Verbatim { wire, origin, data: Body::Text(data) }
}

fn into_bodies(part: Part) -> Part<Body> {
    match part.try_map(&mut |text| Ok::<_, std::convert::Infallible>(Body::Text(text))) {
        Ok(part) => part,
        Err(never) => match never {},
    }
}

fn unique(id: String, place: usize, ids: &mut BTreeSet<String>) -> String {
    let given = if id.is_empty() { format!("call_{place}") } else { id };
    let others = (2_u64..).map(|number| format!("{given}_{number}"));
    let found = std::iter::once(given.clone()).chain(others).find(|id| !ids.contains(id));
    let found = found.unwrap_or(given);
    ids.insert(found.clone());
    found
}

fn of_part<'a>(part: &'a Part<Body>, bodies: &mut Vec<&'a Body>) {
    let data = |verbatim: &'a Option<Verbatim<Body>>| verbatim.as_ref().map(|verbatim| &verbatim.data);
    match part {
        Part::Text { text, verbatim } | Part::Reasoning { text, verbatim } => {
            bodies.push(text);
            bodies.extend(data(verbatim));
        }
        Part::Refusal { text } => bodies.push(text),
        Part::Provider { verbatim } => bodies.push(&verbatim.data),
        Part::ToolCall(call) => {
            bodies.push(&call.arguments);
            bodies.extend(data(&call.verbatim));
        }
        Part::Image(image) => of_image(image, bodies),
        Part::ToolResult(result) => {
            for part in &result.content {
                match part {
                    model::ResultPart::Text { text } => bodies.push(text),
                    model::ResultPart::Image(image) => of_image(image, bodies),
                }
            }
        }
    }
}

fn of_image<'a>(image: &'a model::Image<Body>, bodies: &mut Vec<&'a Body>) {
    match &image.source {
        model::ImageSource::Data { data, .. } => bodies.push(data),
        model::ImageSource::Url(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::model::Wire;

    use super::*;

    fn origin() -> Origin {
        Origin { provider: "anthropic".to_owned(), model: "claude".to_owned() }
    }

    fn verbatim(data: &str) -> Verbatim {
        Verbatim { wire: Wire::Anthropic, origin: origin(), data: data.to_owned() }
    }

    fn reply(parts: Vec<Part>) -> model::ModelReply {
        model::ModelReply { parts, stop: Stop::ToolCalls, usage: TokenUsage::default(), origin: origin() }
    }

    fn call(id: &str, arguments: &str) -> Part {
        let (id, name, arguments) = (id.to_owned(), "shell".to_owned(), arguments.to_owned());
        Part::ToolCall(model::ToolCall { id, name, arguments, verbatim: Some(verbatim("{\"signature\":1}")) })
    }

    #[test]
    fn a_reply_goes_back_as_it_came() {
        let thought = Part::Reasoning { text: "hm".to_owned(), verbatim: Some(verbatim("{\"signature\":\"s\"}")) };
        let opaque = Part::Provider { verbatim: verbatim("{\"type\":\"redacted_thinking\"}") };
        for parts in [
            vec![thought.clone(), opaque.clone(), Part::text("I look."), call("a", "{}"), call("b", "[")],
            vec![Part::text("one"), thought, Part::text("two"), call("a", "{}")],
            vec![Part::Refusal { text: "no".to_owned() }],
            vec![],
        ] {
            let kept = ModelReply::of(reply(parts.clone()));
            let stored: ModelReply = serde_json::from_str(&serde_json::to_string(&kept).unwrap()).unwrap();
            assert_eq!(stored, kept);
            let back = stored.message().try_map(&mut |body| body.as_text().map(str::to_owned).ok_or(()));
            assert_eq!(back.unwrap(), Message::new(Role::Assistant, parts));
        }
    }

    #[test]
    fn what_is_the_text_or_a_call_is_kept_once() {
        let kept = ModelReply::of(reply(vec![Part::text("some text"), call("a", "{\"command\":\"ls\"}")]));
        let stored = serde_json::to_string(&kept).unwrap();
        for once in ["some text", "command"] {
            assert_eq!(stored.matches(once).count(), 1, "{stored}");
        }
    }

    #[test]
    fn calls_with_the_same_id_or_none_get_ids_of_their_own() {
        let kept =
            ModelReply::of(reply(vec![call("a", ""), call("a", ""), call("", ""), call("a_2", ""), call("", "")]));
        let ids: Vec<&str> = kept.calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["a", "a_2", "call_2", "a_2_2", "call_4"]);
        let told: Vec<String> = kept
            .message()
            .parts
            .into_iter()
            .filter_map(|part| if let Part::ToolCall(call) = part { Some(call.id) } else { None })
            .collect();
        assert_eq!(told, ids, "the model is told the same");
    }
}
