//! What a model is asked: the run's conversation, its tools, and how to reply.
//!
//! Everything follows from the journal and the catalogue of tools, so that any worker asks the same.
//!
//! INVARIANT: in a request, every call of the model has one result, ids of calls are unique, and results directly follow
//! their calls. Providers refuse anything else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use saggar_domain::model::{
    JsonSchema, Message, ModelRequest, Part, ResultPart, Role, RouteName, ToolChoice, ToolDefinition, ToolResult,
};
use saggar_engine::{AgentSpec, Body, BuiltIn, Message as Told, ModelRef, Run, SUMMARIZE, SUMMARY};
use saggar_store::Error;

use super::bodies::fetch;
use super::journal::Journal;
use super::output;
use super::tools::{described, presented};

/// The result of a call that a fork or a person's decision left without one.
const NO_RESULT: &str = "this call has no result";

/// What a model is told whose sandbox may start with files of earlier runs.
const REUSED: &str = "Your sandbox may have files that earlier runs left there. Their programs don't run any more. Don't take those \
                      files for your own work.";

/// The request of a run's next call; `None` if its model isn't reached by a route.
pub(super) fn request_of(run: &Run) -> Option<ModelRequest<Body>> {
    let agent = run.agent()?;
    let mut request = frame(agent)?;
    let told = messages(run.conversation());
    // First what the author says, then what the runtime does.
    let after = usize::from(told.first().is_some_and(|message| message.role == Role::System));
    let own = std::mem::take(&mut request.messages);
    request.messages = told;
    request.messages.splice(after..after, own);
    request.sampling.max_tokens = Some(agent.model.reply_tokens_max);
    if run.is_closing() {
        request.tool_choice = ToolChoice::None;
    }
    Some(request)
}

/// The request that asks the model to sum up the messages before `through`.
pub(super) fn summary_request_of(run: &Run, through: u64) -> Option<ModelRequest<Body>> {
    let mut request = request_of(run)?;
    let older = &run.conversation()[..usize::try_from(through).unwrap_or(usize::MAX).min(run.conversation().len())];
    request.messages = messages(older);
    request.messages.push(Message::new(Role::User, vec![text_part(&Body::text(SUMMARIZE))]));
    // The definitions stay, because some providers refuse calls in a conversation without them.
    request.tool_choice = ToolChoice::None;
    Some(request)
}

/// The same without the conversation: what every request of the agent has.
pub(super) fn frame<T: From<String>>(agent: &AgentSpec) -> Option<ModelRequest<T>> {
    let form = agent.output.as_deref().map(|schema| {
        let told = output::told(schema, agent.tools.contains_key(BuiltIn::FINISH));
        Message::new(Role::System, vec![Part::Text { text: T::from(told), verbatim: None }])
    });
    let is_reused = !agent.sandbox.reuse.is_never() && agent.tools.values().any(|tool| tool.uses_sandbox);
    let reused = is_reused
        .then(|| Message::new(Role::System, vec![Part::Text { text: T::from(REUSED.to_owned()), verbatim: None }]));
    let mut request = ModelRequest::new(route_of(&agent.model)?, form.into_iter().chain(reused).collect());
    request.tools = agent.tools.keys().filter_map(|name| definition(name, agent)).collect();
    request.sampling = (*agent.model.sampling).clone();
    Some(request)
}

pub(super) fn route_of(model: &ModelRef) -> Option<RouteName> {
    model.route().and_then(RouteName::parse)
}

fn definition(name: &str, agent: &AgentSpec) -> Option<ToolDefinition> {
    let tool = described(agent, name)?;
    let mut description = tool.description.to_owned();
    if name == BuiltIn::DELEGATE && !agent.agents.is_empty() {
        let names: Vec<&str> = agent.agents.keys().map(String::as_str).collect();
        description.push_str(&format!(" The agents are: {}.", names.join(", ")));
    }
    let parameters = JsonSchema(tool.arguments.as_value().clone());
    Some(ToolDefinition { name: name.to_owned(), description, parameters, strict: None })
}

/// The conversation as a provider accepts it.
fn messages(told: &[Told]) -> Vec<Message<Body>> {
    let mut messages: Vec<Message<Body>> = Vec::with_capacity(told.len());
    let mut turn = Turn::default();
    let mut known = BTreeSet::new();
    for message in told {
        match message {
            Told::Tool { call, result } => turn.result(call, &result.content, result.is_error),
            Told::System(text) | Told::User(text) => {
                turn.end(&mut messages);
                let role = if matches!(message, Told::System(_)) { Role::System } else { Role::User };
                messages.push(Message::new(role, vec![text_part(text)]));
            }
            Told::Summary(text) => {
                turn.end(&mut messages);
                messages.push(Message::new(Role::User, vec![text_part(&Body::text(SUMMARY)), text_part(text)]));
            }
            Told::Assistant(reply) => {
                turn.end(&mut messages);
                let mut message = reply.message();
                turn = Turn::of(&mut message, &mut known);
                // A reply of nothing says nothing, and many providers refuse it.
                if !message.parts.is_empty() {
                    messages.push(message);
                }
            }
        }
    }
    turn.end(&mut messages);
    messages
}

/// The calls of one reply, whose results follow it together.
#[derive(Default)]
struct Turn {
    /// The ids in the request, in the model's order.
    calls: Vec<String>,
    /// From the ids that the journal has.
    named: BTreeMap<String, String>,
    results: BTreeMap<String, ToolResult<Body>>,
}

impl Turn {
    /// Gives calls whose id an earlier reply used already one of their own: ids are unique in a journal only within a
    /// reply.
    fn of(message: &mut Message<Body>, known: &mut BTreeSet<String>) -> Self {
        let mut turn = Self::default();
        for part in &mut message.parts {
            let Part::ToolCall(call) = part else { continue };
            let recorded = call.id.clone();
            let mut number = 2_u64;
            while !known.insert(call.id.clone()) {
                call.id = format!("{recorded}_{number}");
                number += 1;
            }
            turn.calls.push(call.id.clone());
            turn.named.insert(recorded, call.id.clone());
        }
        turn
    }

    fn result(&mut self, call: &str, content: &Body, is_error: bool) {
        // A result of no call can't be told to any provider. Only an edited journal has one.
        let Some(call) = self.named.get(call) else { return };
        let content = vec![ResultPart::Text { text: content.clone() }];
        self.results.insert(call.clone(), ToolResult { call: call.clone(), content, is_error });
    }

    fn end(&mut self, messages: &mut Vec<Message<Body>>) {
        let Self { calls, mut results, .. } = std::mem::take(self);
        if calls.is_empty() {
            return;
        }
        let parts = calls.into_iter().map(|call| {
            let none = || ToolResult {
                call: call.clone(),
                content: vec![ResultPart::Text { text: Body::text(NO_RESULT) }],
                is_error: true,
            };
            Part::ToolResult(results.remove(&call).unwrap_or_else(none))
        });
        messages.push(Message::new(Role::User, parts.collect()));
    }
}

fn text_part(text: &Body) -> Part<Body> {
    Part::Text { text: text.clone(), verbatim: None }
}

/// The request with the texts that are stored as blobs.
pub(super) async fn fetched<J: Journal>(
    journal: &J,
    request: &ModelRequest<Body>,
) -> Result<ModelRequest<String>, Error> {
    // Every text comes once, in a fixed order: they are fetched first and put back after.
    let mut bodies = Vec::new();
    let frame = request.clone().try_map(&mut |body| {
        bodies.push(body);
        Ok::<_, Error>(())
    })?;
    let mut texts = VecDeque::with_capacity(bodies.len());
    for body in bodies {
        texts.push_back(match body {
            Body::Text(text) => text,
            Body::Blob { .. } => fetch(journal, &body).await?,
        });
    }
    let mut request = frame.try_map(&mut |()| Ok::<_, Error>(texts.pop_front().expect("one for each")))?;
    mark_results(&mut request);
    Ok(request)
}

/// Puts the results of tools between marks: what they say is data, and no instruction.
fn mark_results(request: &mut ModelRequest<String>) {
    let mut tools = BTreeMap::new();
    for part in request.messages.iter_mut().flat_map(|message| &mut message.parts) {
        match part {
            Part::ToolCall(call) => drop(tools.insert(call.id.clone(), call.name.clone())),
            Part::ToolResult(result) => {
                let tool = tools.get(&result.call).map_or("a tool", String::as_str);
                for part in &mut result.content {
                    if let ResultPart::Text { text } = part {
                        *text = presented(tool, text);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::model::{self, Origin, Stop, TokenUsage};
    use saggar_engine::{ModelReply, ToolResult as Result};

    use super::*;

    fn reply(ids: &[&str]) -> Told {
        let parts = ids.iter().map(|id| {
            Part::ToolCall(model::ToolCall {
                id: (*id).to_owned(),
                name: "shell".to_owned(),
                arguments: "{}".to_owned(),
                verbatim: None,
            })
        });
        let origin = Origin { provider: "p".to_owned(), model: "m".to_owned() };
        let (parts, usage) = (parts.collect(), TokenUsage::default());
        Told::Assistant(ModelReply::of(model::ModelReply { parts, stop: Stop::ToolCalls, usage, origin }))
    }

    fn result(call: &str, text: &str) -> Told {
        Told::Tool { call: call.to_owned(), result: Result::new(Body::text(text), false) }
    }

    /// `role: ids` of each message; results have what they say.
    fn shape(messages: &[Message<Body>]) -> Vec<String> {
        let of = |message: &Message<Body>| {
            let parts: Vec<String> = message
                .parts
                .iter()
                .map(|part| match part {
                    Part::Text { text, .. } => text.as_text().unwrap().to_owned(),
                    Part::ToolCall(call) => format!("call {}", call.id),
                    Part::ToolResult(result) => match &result.content[..] {
                        [ResultPart::Text { text }] => format!("{} = {}", result.call, text.as_text().unwrap()),
                        other => panic!("{other:?}"),
                    },
                    other => panic!("{other:?}"),
                })
                .collect();
            format!("{:?}: {}", message.role, parts.join(", "))
        };
        messages.iter().map(of).collect()
    }

    #[test]
    fn every_call_has_one_result_and_an_id_of_its_own() {
        let told = [
            Told::System(Body::text("s")),
            Told::User(Body::text("t")),
            reply(&["a", "b"]),
            result("a", "1"),
            // A person's decision left the other without a result.
            Told::User(Body::text("go on")),
            // Some servers number their calls anew in every reply.
            reply(&["a", "b"]),
            result("a", "2"),
            result("b", "3"),
            Told::Assistant(ModelReply::new(Body::text(""), Vec::new())),
            Told::User(Body::text("and?")),
            reply(&["a_2"]),
        ];
        assert_eq!(
            shape(&messages(&told)),
            [
                "System: s",
                "User: t",
                "Assistant: call a, call b",
                "User: a = 1, b = this call has no result",
                "User: go on",
                "Assistant: call a_2, call b_2",
                "User: a_2 = 2, b_2 = 3",
                "User: and?",
                "Assistant: call a_2_2",
                "User: a_2_2 = this call has no result",
            ]
        );
    }
}
