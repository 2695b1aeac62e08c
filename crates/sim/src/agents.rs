//! Agents to simulate: what they are, what their model says, and what their tools give. All of it follows from names, never from time.

use std::collections::BTreeMap;

use saggar_engine::{AgentSpec, Body, Budget, Class, ModelRef, ModelReply, RetryPolicy, ToolCall, ToolSpec};

use crate::chance::Chance;

/// Turns in which an agent's model asks for something; then it is done.
const TURNS: u64 = 5;
/// Patient enough for every fault of a simulation: who gives up has another end.
const RETRY: RetryPolicy = RetryPolicy { attempts_max: 1000, first_ms: 50, most_ms: 500 };

/// The tools of every agent, one for each class.
const TOOLS: [(&str, Class); 6] = [
    ("pure", Class::Pure),
    ("keyed", Class::Keyed),
    ("probeable", Class::Probeable),
    ("once", Class::Once),
    ("wait", Class::Pure),
    ("ask_human", Class::Pure),
];

/// An agent whose model follows from a seed.
pub(crate) fn agent(name: &str, seed: u64) -> AgentSpec {
    let tool = |(name, class): (&str, Class)| (name.to_owned(), ToolSpec { class, retry: RETRY, timeout_ms: 2000 });
    AgentSpec {
        name: name.to_owned(),
        system: None,
        task: Body::text("simulate"),
        model: ModelRef {
            provider: "simulated".to_owned(),
            model: seed.to_string(),
            reply_tokens_max: 10,
            retry: RETRY,
        },
        tools: TOOLS.map(tool).into_iter().collect::<BTreeMap<_, _>>(),
        budget: Budget::default(),
        repeats_max: 1000,
    }
}

/// What the model of a seed says after so many replies. Some of it is too long for a journal.
pub(crate) fn reply(seed: &str, replies: u64) -> ModelReply {
    let mut chance = Chance::new(seed.parse::<u64>().unwrap_or_default() ^ (replies << 32));
    if replies >= TURNS {
        return ModelReply { text: Body::text(format!("finished after {replies}")), calls: Vec::new() };
    }
    let calls = (0..=chance.below(3)).map(|index| {
        let (tool, _) = TOOLS[chance.below(TOOLS.len() as u64) as usize];
        let arguments = match tool {
            "wait" => format!("{{\"seconds\": {}}}", chance.below(5)),
            "ask_human" => format!("{{\"question\": \"{replies}.{index}?\"}}"),
            _ if chance.per_mille(100) => format!("{{\"long\": \"{}\"}}", "x".repeat(20_000)),
            _ => format!("{{\"n\": {index}}}"),
        };
        ToolCall { id: format!("{replies}.{index}"), tool: tool.to_owned(), arguments: Body::text(arguments) }
    });
    ModelReply { text: Body::text(format!("turn {replies}")), calls: calls.collect() }
}

/// What a tool gives for a key.
pub(crate) fn result(tool: &str, key: &str) -> String {
    let sum = key.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    if Chance::new(sum).per_mille(50) {
        format!("{tool} {key} {}", "y".repeat(20_000))
    } else {
        format!("{tool} {key}")
    }
}
