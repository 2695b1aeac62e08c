//! Simulated agents: their definitions, their models' replies and their tools' results. All are derived from names,
//! never from time.

use std::collections::BTreeMap;

use saggar_domain::model::ModelAccess;
use saggar_domain::{AgentSandbox, NetworkMode};
use saggar_engine::{
    AgentSpec, Body, Budget, Class, ContextLimit, ModelRef, ModelReply, RetryPolicy, SnapshotRules, ToolCall, ToolSpec,
};

use crate::chance::Chance;

/// Number of turns in which an agent's model requests something; then it finishes.
const TURNS: u64 = 5;
/// The same for an agent that other agents start.
const HELPER_TURNS: u64 = 1;
/// The agent that other agents start.
const HELPER: &str = "helper";
/// Enough attempts for every fault of a simulation: a run that gave up would end differently.
const RETRY: RetryPolicy = RetryPolicy { attempts_max: 1000, first_ms: 50, most_ms: 500 };

/// What a model answers when it is asked to sum up.
pub(crate) const SUMMARY: &str = "what happened";
/// Fewer than a reply may have calls.
pub(crate) const OPEN_MAX: u32 = 4;
/// Some replies have one more than this.
const MANY_CALLS: u64 = 8;

/// The tools of every agent, one for each class and kind.
const TOOLS: [(&str, Class); 7] = [
    ("pure", Class::Pure),
    ("keyed", Class::Keyed),
    ("probeable", Class::Probeable),
    ("once", Class::Once),
    ("wait", Class::Pure),
    ("ask_human", Class::Pure),
    ("delegate", Class::Keyed),
];

/// An agent whose model is derived from a seed, and a helper that it may start.
pub(crate) fn agent(name: &str, seed: u64, limits: Budget, models: ModelAccess) -> AgentSpec {
    let sandbox = AgentSandbox { network: Some(NetworkMode::Proxied), models, ..AgentSandbox::default() };
    let helper = AgentSpec { sandbox: sandbox.clone(), ..spec(HELPER, seed.rotate_left(7), Budget::default()) };
    AgentSpec { agents: [(HELPER.to_owned(), helper)].into(), sandbox, ..spec(name, seed, limits) }
}

fn spec(name: &str, seed: u64, budget: Budget) -> AgentSpec {
    let tool = |(name, class): (&str, Class)| {
        (
            name.to_owned(),
            ToolSpec {
                class,
                retry: RETRY,
                timeout_ms: 2000,
                egress: None,
                endpoint: None,
                is_parallel: class != Class::Once,
                uses_sandbox: crate::world::IN_A_SANDBOX.contains(&name),
            },
        )
    };
    AgentSpec {
        name: name.to_owned(),
        identity: None,
        directory: None,
        system: None,
        task: Body::text("simulate"),
        model: ModelRef {
            provider: "simulated".to_owned(),
            model: seed.to_string(),
            sampling: Default::default(),
            reply_tokens_max: 10,
            reply_micros_max: None,
            retry: RETRY,
        },
        tools: TOOLS.map(tool).into_iter().collect::<BTreeMap<_, _>>(),
        sandbox: Default::default(),
        budget,
        repeats_max: 1000,
        corrections_max: saggar_engine::CORRECTIONS_DEFAULT,
        output: None,
        context: context(seed),
        open_max: OPEN_MAX,
        on: Default::default(),
        snapshots: snapshots(seed),
        agents: BTreeMap::new(),
    }
}

/// Most agents want snapshots, at any of the occasions that there are.
fn snapshots(seed: u64) -> SnapshotRules {
    let mut chance = Chance::new(seed ^ 0x5a45);
    if chance.per_mille(300) {
        return SnapshotRules::default();
    }
    SnapshotRules {
        every: chance.per_mille(600).then(|| 1 + chance.below(5)),
        before: if chance.per_mille(500) { [Class::Once].into() } else { Default::default() },
        at_end: chance.per_mille(500),
    }
}

/// Most agents sum up, some of them several times in their few turns.
fn context(seed: u64) -> Option<ContextLimit> {
    let mut chance = Chance::new(seed ^ 0xc0_47e7);
    let tokens_max = 100 + chance.below(400);
    chance.per_mille(700).then_some(ContextLimit { tokens_max, keep_tokens: tokens_max / 4 })
}

/// The model's reply after this many replies. Some are too long for a journal.
pub(crate) fn reply(agent: &AgentSpec, replies: u64) -> ModelReply {
    let task = agent.task.as_text().unwrap_or_default();
    let seed = agent.model.model.parse::<u64>().unwrap_or_default() ^ sum(task);
    let mut chance = Chance::new(seed ^ (replies << 32));
    if replies >= if agent.name == HELPER { HELPER_TURNS } else { TURNS } {
        return ModelReply::new(Body::text("finished"), Vec::new());
    }
    let most = if chance.per_mille(30) { MANY_CALLS } else { chance.below(4) };
    let calls: Vec<ToolCall> = (0..=most)
        .map(|index| {
            let (tool, _) = TOOLS[chance.below(TOOLS.len() as u64) as usize];
            let arguments = match tool {
                "wait" => format!("{{\"seconds\": {}}}", chance.below(5)),
                "ask_human" if chance.per_mille(100) => format!("{{\"question\": \"{}?\"}}", "q".repeat(20_000)),
                "ask_human" => format!("{{\"question\": \"{replies}.{index}?\"}}"),
                // Sometimes it starts the same agent again.
                "delegate" if chance.per_mille(100) => format!("{{\"task\": \"{}\"}}", chance.number()),
                "delegate" => format!("{{\"task\": \"{}\", \"agent\": \"{HELPER}\"}}", chance.number()),
                _ if chance.per_mille(100) => format!("{{\"long\": \"{}\"}}", "x".repeat(20_000)),
                _ => format!("{{\"n\": {index}}}"),
            };
            let (id, tool, arguments) = (format!("{replies}.{index}"), tool.to_owned(), Body::text(arguments));
            ToolCall { id, tool, arguments, read: None, invalid: None, class: None }
        })
        .collect();
    let text = if chance.per_mille(30) { "z".repeat(20_000) } else { format!("turn {replies}") };
    ModelReply::new(Body::text(text), calls)
}

pub(crate) fn result(tool: &str, key: &str) -> String {
    if Chance::new(sum(key)).per_mille(50) {
        format!("{tool} {key} {}", "y".repeat(20_000))
    } else {
        format!("{tool} {key}")
    }
}

fn sum(text: &str) -> u64 {
    text.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)))
}
