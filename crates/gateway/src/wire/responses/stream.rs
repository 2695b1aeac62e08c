//! Reads streams of responses.

use std::collections::BTreeMap;

use saggar_domain::model::{Origin, Stop, Verbatim, Wire};
use serde_json::Value;

use crate::failure::{Failure, FailureKind};
use crate::reply::{Counted, PartKind, ReplyEvent};
use crate::wire::numbering::Numbering;
use crate::wire::said;

#[derive(Debug)]
pub(crate) struct ResponsesStream {
    origin: Origin,
    numbering: Numbering,
    /// Parts by their item and their place in it.
    open: BTreeMap<(u64, Place), usize>,
    is_complete: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Content(u64),
    Refusal(u64),
    Reasoning,
    Call,
}

impl ResponsesStream {
    pub(crate) fn new(origin: Origin) -> Self {
        Self { origin, numbering: Numbering::default(), open: BTreeMap::new(), is_complete: false }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(crate) fn event(&mut self, data: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        let item = data["output_index"].as_u64().unwrap_or(0);
        let content = data["content_index"].as_u64().unwrap_or(0);
        let delta = data["delta"].as_str().unwrap_or_default();
        match data["type"].as_str().unwrap_or_default() {
            "response.output_text.delta" => self.write(item, Place::Content(content), PartKind::Text, delta, events)?,
            "response.refusal.delta" => self.write(item, Place::Refusal(content), PartKind::Refusal, delta, events)?,
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                self.write(item, Place::Reasoning, PartKind::Reasoning, delta, events)?;
            }
            "response.output_item.added" if data["item"]["type"] == "function_call" => {
                self.call(item, &data["item"], events)?;
            }
            "response.function_call_arguments.delta" => {
                if let Some(part) = self.open.get(&(item, Place::Call)) {
                    events.push(ReplyEvent::Delta { part: *part, text: delta.to_owned() });
                }
            }
            "response.output_item.done" => self.done(item, &data["item"], events)?,
            "response.completed" => {
                let response = &data["response"];
                events.extend(counted(&response["usage"]).map(ReplyEvent::Used));
                let stop = if self.numbering.has_calls() { Stop::ToolCalls } else { Stop::End };
                events.push(ReplyEvent::Stopped(stop));
                self.is_complete = true;
            }
            "response.incomplete" => {
                let response = &data["response"];
                events.extend(counted(&response["usage"]).map(ReplyEvent::Used));
                events.push(ReplyEvent::Stopped(match response["incomplete_details"]["reason"].as_str() {
                    Some("max_output_tokens") => Stop::MaxTokens,
                    Some("content_filter") => Stop::ContentFilter,
                    _ => Stop::Other,
                }));
                self.is_complete = true;
            }
            "response.failed" => {
                events.extend(counted(&data["response"]["usage"]).map(ReplyEvent::Used));
                return Err(failed(&data["response"]["error"]));
            }
            "error" => return Err(failed(if data["error"].is_object() { &data["error"] } else { data })),
            _ => {}
        }
        Ok(())
    }

    fn write(
        &mut self,
        item: u64,
        place: Place,
        kind: PartKind,
        text: &str,
        events: &mut Vec<ReplyEvent>,
    ) -> Result<(), Failure> {
        let part = match self.open.get(&(item, place)) {
            Some(part) => *part,
            None => {
                let part = self.begin(kind, events)?;
                self.open.insert((item, place), part);
                part
            }
        };
        if !text.is_empty() {
            events.push(ReplyEvent::Delta { part, text: text.to_owned() });
        }
        Ok(())
    }

    fn begin(&mut self, kind: PartKind, events: &mut Vec<ReplyEvent>) -> Result<usize, Failure> {
        let part = self.numbering.part()?;
        events.push(ReplyEvent::Began { part, kind });
        Ok(part)
    }

    fn call(&mut self, item: u64, call: &Value, events: &mut Vec<ReplyEvent>) -> Result<usize, Failure> {
        let id = self.numbering.id(call["call_id"].as_str())?;
        let name = call["name"].as_str().unwrap_or_default().to_owned();
        let part = self.begin(PartKind::Call { id, name, verbatim: None }, events)?;
        self.open.insert((item, Place::Call), part);
        Ok(part)
    }

    /// The item as it is complete. What was not streamed of it comes now.
    fn done(&mut self, index: u64, item: &Value, events: &mut Vec<ReplyEvent>) -> Result<(), Failure> {
        let verbatim =
            |data: &Value| Verbatim { wire: Wire::Responses, origin: self.origin.clone(), data: data.to_string() };
        match item["type"].as_str().unwrap_or_default() {
            "reasoning" => {
                let verbatim = item["encrypted_content"].is_string().then(|| verbatim(item));
                let part = match self.open.remove(&(index, Place::Reasoning)) {
                    Some(part) => part,
                    None if verbatim.is_some() => self.begin(PartKind::Reasoning, events)?,
                    None => return Ok(()),
                };
                events.push(ReplyEvent::Ended { part, verbatim });
            }
            "function_call" => {
                let part = match self.open.remove(&(index, Place::Call)) {
                    Some(part) => part,
                    None => {
                        let part = self.call(index, item, events)?;
                        self.open.remove(&(index, Place::Call));
                        let text = item["arguments"].as_str().unwrap_or_default().to_owned();
                        events.push(ReplyEvent::Delta { part, text });
                        part
                    }
                };
                events.push(ReplyEvent::Ended { part, verbatim: None });
            }
            "message" => {
                let places = (index, Place::Content(0))..=(index, Place::Call);
                let of_item: Vec<_> = self.open.range(places).map(|(key, _)| *key).collect();
                for key in of_item {
                    if let Some(part) = self.open.remove(&key) {
                        events.push(ReplyEvent::Ended { part, verbatim: None });
                    }
                }
            }
            _ => {
                let verbatim = verbatim(item);
                let part = self.numbering.part()?;
                events.push(ReplyEvent::Opaque { part, verbatim });
            }
        }
        Ok(())
    }
}

fn failed(error: &Value) -> Failure {
    let kind = match error["code"].as_str() {
        Some("rate_limit_exceeded") => FailureKind::RateLimited,
        Some("server_is_overloaded" | "slow_down") => FailureKind::Overloaded,
        _ => FailureKind::Upstream,
    };
    Failure::new(
        kind,
        format!("the provider failed while it answered{}", said(error["message"].as_str().unwrap_or_default())),
    )
}

pub(crate) fn counted(usage: &Value) -> Option<Counted> {
    usage.as_object()?;
    let input = &usage["input_tokens_details"];
    let write = |name: &str| input["cache_write_tokens"][name].as_u64();
    Some(Counted {
        input: usage["input_tokens"].as_u64(),
        output: usage["output_tokens"].as_u64(),
        cached_read: input["cached_tokens"].as_u64(),
        cache_write: input["cache_write_tokens"]
            .as_u64()
            .or_else(|| Some(write("30m")?.saturating_add(write("12h").unwrap_or(0)))),
        cache_write_long: write("12h"),
        reasoning: usage["output_tokens_details"]["reasoning_tokens"].as_u64(),
    })
}
