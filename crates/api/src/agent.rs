//! The definition of an agent, as it starts a run.

use std::collections::BTreeMap;

use saggar_domain::model::{Millionths, ReasoningEffort, Sampling};
use saggar_domain::net::EgressDraft;
use saggar_domain::secret::SecretName;
use saggar_domain::{AgentHash, AgentSandbox, HttpEndpoint, Schema, Timeout};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::agent_bounds::{AgentContext, AgentOutput, WhenOutOfBudget};
use crate::object::only_from_an_object;
use crate::run_files::AgentSnapshots;
use crate::schema;

/// An agent's definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Agent {
    /// The format; absent means the only one there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "saggar.agent/v1")]
    pub schema: Option<String>,
    /// Display name; concurrency limits count by it.
    #[schema(example = "mender")]
    pub name: String,
    /// The author's version of it. Kept with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "1.2.0")]
    pub version: Option<String>,
    /// System prompt. `instructions` is another name for it.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "instructions")]
    pub system: Option<String>,
    /// First user message.
    #[serde(default)]
    #[schema(required = true)]
    pub task: String,
    /// The model it uses.
    pub model: AgentModel,
    /// The tools it may use: `shell`, `files`, `http`, `wait`, `ask_human`, `delegate`.
    #[serde(default)]
    pub tools: BTreeMap<String, AgentTool>,
    /// The sandbox that `shell` and `files` work in.
    #[serde(default, skip_serializing_if = "AgentSandbox::is_empty")]
    #[schema(value_type = schema::AgentSandboxShape)]
    pub sandbox: AgentSandbox,
    /// Its budget; a missing value means unlimited.
    #[serde(default)]
    pub budget: RunBudget,
    /// This many identical calls in a row count as a loop, which ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_max: Option<u32>,
    /// How many replies in a row that are of no use are answered with what is wrong: cut off, empty, with a wrong answer or with
    /// wrong calls only. By default 5; one more ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrections_max: Option<u32>,
    /// The form of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<AgentOutput>,
    /// When its conversation is summed up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<AgentContext>,
    /// Maximum number of steps that are open at once, 1 to 64. By default 1: the calls of a reply are made one after the
    /// other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub parallel: Option<u32>,
    /// What happens where a run would stop for a person.
    #[serde(default, skip_serializing_if = "AgentFallbacks::is_empty")]
    pub on: AgentFallbacks,
    /// When snapshots of its sandbox are taken.
    #[serde(default, skip_serializing_if = "AgentSnapshots::is_empty")]
    pub snapshots: AgentSnapshots,
    /// Other agents that it and its children may start with `delegate`, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, SubAgent>,
}

/// An agent that others start with `delegate`, which provides its task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SubAgent {
    /// System prompt. `instructions` is another name for it.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "instructions")]
    pub system: Option<String>,
    /// The model it uses.
    pub model: AgentModel,
    /// The tools it may use; at most those of the agent that starts it.
    #[serde(default)]
    pub tools: BTreeMap<String, AgentTool>,
    /// Its sandbox; at most the network and the secrets of the agent that starts it.
    #[serde(default, skip_serializing_if = "AgentSandbox::is_empty")]
    #[schema(value_type = schema::AgentSandboxShape)]
    pub sandbox: AgentSandbox,
    /// Its budget; at most what is left to the run that starts it.
    #[serde(default)]
    pub budget: RunBudget,
    /// This many identical calls in a row count as a loop, which ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_max: Option<u32>,
    /// How many replies in a row that are of no use are answered with what is wrong: cut off, empty, with a wrong answer or with
    /// wrong calls only. By default 5; one more ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrections_max: Option<u32>,
    /// The form of its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<AgentOutput>,
    /// When its conversation is summed up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<AgentContext>,
    /// Maximum number of steps that are open at once, 1 to 64. By default 1: the calls of a reply are made one after the
    /// other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub parallel: Option<u32>,
    /// What happens where a run would stop for a person.
    #[serde(default, skip_serializing_if = "AgentFallbacks::is_empty")]
    pub on: AgentFallbacks,
    /// When snapshots of its sandbox are taken.
    #[serde(default, skip_serializing_if = "AgentSnapshots::is_empty")]
    pub snapshots: AgentSnapshots,
}

impl Agent {
    /// The only format.
    pub const SCHEMA: &str = "saggar.agent/v1";
    /// Maximum length of an author's version, in bytes.
    const VERSION_LEN_MAX: usize = 64;

    /// Identifies the definition: everything but the task, and but the format, which may be left out.
    pub fn hash(&self) -> AgentHash {
        AgentHash::of(&Self { task: String::new(), schema: None, ..self.clone() })
    }

    /// The error and the remedy for a wrong format, version, task or model, which the types allow.
    pub fn wrong(&self) -> Option<(String, String)> {
        let wrong = |message: String, help: &str| Some((message, help.to_owned()));
        if let Some(other) = self.schema.as_deref().filter(|schema| *schema != Self::SCHEMA) {
            let message =
                format!("schema: the agent is of the format {other:?}, and this version reads {:?}", Self::SCHEMA);
            return wrong(message, "leave `schema` out, or use a version of saggar that reads that format");
        }
        let is_version = |version: &str| {
            (1..=Self::VERSION_LEN_MAX).contains(&version.len()) && version.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if let Some(version) = self.version.as_deref().filter(|version| !is_version(version)) {
            let most = Self::VERSION_LEN_MAX;
            let message = format!("version: {version:?} is not a version: 1 to {most} visible ASCII characters");
            return wrong(message, "write it like \"1.2.0\"");
        }
        let others = self.agents.iter().map(|(name, other)| (format!("agents.{name}."), &other.tools));
        for (at, tools) in [(String::new(), &self.tools)].into_iter().chain(others) {
            for (name, tool) in tools {
                if let Err((message, help)) = tool.endpoint(name) {
                    return Some((format!("{at}{message}"), help));
                }
            }
        }
        let others = self.agents.iter().map(|(name, other)| (format!("agents.{name}."), &other.snapshots));
        for (at, snapshots) in [(String::new(), &self.snapshots)].into_iter().chain(others) {
            if let Some((message, help)) = snapshots.wrong() {
                return Some((format!("{at}{message}"), help));
            }
        }
        let others = self.agents.iter().map(|(name, other)| (format!("agents.{name}."), &other.output, &other.context));
        let bounds = [(String::new(), &self.output, &self.context)].into_iter().chain(others);
        for (at, output, context) in bounds {
            let wrong = output.as_ref().and_then(AgentOutput::wrong).or(context.as_ref().and_then(AgentContext::wrong));
            if let Some((message, help)) = wrong {
                return Some((format!("{at}{message}"), help));
            }
        }
        let others = self.agents.values().map(|other| &other.model);
        [&self.model].into_iter().chain(others).find_map(AgentModel::wrong)
    }
}

/// The model of an agent: a route of the server, or a script.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct AgentModel {
    /// A route of the server's models file, which names the provider, its model and the prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "gpt-5")]
    pub route: Option<String>,
    /// `scripted`: the replies are written in advance. Left out with a route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// For `scripted`: its replies, turn by turn.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schema(value_type = Object, example = json!({"turns": [{"calls": [{"tool": "shell", "arguments": {"command": "ls"}}]}, {"text": "Done."}]}))]
    pub script: Value,
    /// Maximum tokens of one reply, reasoning included. This much is reserved for each call. By default 8192, and 4096 for a script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_tokens_max: Option<u64>,
    /// Maximum cost of one reply, in millionths, reserved for each call. For a route it is not needed: its prices say what a call may
    /// cost. For a script, the highest cost of a reply so far is reserved by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_micros_max: Option<u64>,
    /// How much chance there is in a reply. Left to the provider by default, as are the following.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Only the most likely tokens that together have this probability are considered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// A reply ends before any of these texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// How much a model thinks that can: `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
}

impl AgentModel {
    /// Maximum number of texts that end a reply.
    const STOPS_MAX: usize = 16;
    /// Default limit of a reply's tokens.
    const REPLY_TOKENS: u64 = 8192;
    /// The same for a script.
    const REPLY_TOKENS_SCRIPTED: u64 = 4096;

    /// The error and the remedy for a provider that isn't `scripted`. Checked before anything else, because errors in another
    /// provider's fields would only confuse.
    pub fn wrong_provider(provider: &str) -> Option<(String, String)> {
        if provider == "scripted" {
            return None;
        }
        let message =
            format!("model.provider is {provider:?}, and an agent names no provider: it names a route of its server");
        let help = "replace model.provider by model.route, such as route = \"gpt-5\"; `saggar models list` prints the routes, and \
                    docs/models.md shows how a route leads to a provider";
        Some((message, help.to_owned()))
    }

    /// The error and the remedy for what the types allow and no model may have.
    pub fn wrong(&self) -> Option<(String, String)> {
        let wrong = |message: &str, help: &str| Some((message.to_owned(), help.to_owned()));
        if let Some(wrong) = self.provider.as_deref().and_then(Self::wrong_provider) {
            return Some(wrong);
        }
        let is_sampled = self.temperature.is_some()
            || self.top_p.is_some()
            || !self.stop.is_empty()
            || self.reasoning_effort.is_some();
        match (&self.route, &self.provider) {
            (Some(_), Some(_)) => {
                return wrong(
                    "the agent's model has both a route and a provider",
                    "leave model.provider out: the route leads to one",
                );
            }
            (None, None) => {
                return wrong(
                    "the agent's model has no route",
                    "set model.route to a route of the server, or model.provider = \"scripted\" and model.script",
                );
            }
            (Some(_), None) if !self.script.is_null() => {
                return wrong("the agent's model has both a route and a script", "leave one of them out");
            }
            (None, Some(_)) if is_sampled => {
                return wrong(
                    "temperature, top_p, stop and reasoning_effort have no meaning for a script",
                    "leave them out, or set model.route instead of a script",
                );
            }
            (Some(_), None) | (None, Some(_)) => {}
        }
        match self.sampling() {
            Ok(_) if self.reply_tokens_max == Some(0) => {
                wrong("model.reply_tokens_max is 0", "set it to at least 1, or leave it out")
            }
            Ok(_) => None,
            Err(message) => wrong(&message, "correct it, or leave it out"),
        }
    }

    /// How replies are generated.
    pub fn sampling(&self) -> Result<Sampling, String> {
        let number = |name: &str, value: Option<f64>, most: f64| match value {
            None => Ok(None),
            Some(value) if (0.0..=most).contains(&value) => Ok(Millionths::from_f64(value)),
            Some(value) => Err(format!("model.{name} is {value}: use 0 to {most}")),
        };
        if self.stop.len() > Self::STOPS_MAX || self.stop.iter().any(String::is_empty) {
            return Err(format!("model.stop has an empty text, or more than {}", Self::STOPS_MAX));
        }
        let reasoning = self.reasoning_effort.as_deref().map(|effort| {
            ReasoningEffort::parse(effort).ok_or_else(|| {
                format!("model.reasoning_effort is {effort:?}: use none, minimal, low, medium, high, xhigh or max")
            })
        });
        Ok(Sampling {
            temperature: number("temperature", self.temperature, 2.0)?,
            top_p: number("top_p", self.top_p, 1.0)?,
            stop: self.stop.clone(),
            reasoning: reasoning.transpose()?,
            ..Sampling::default()
        })
    }

    /// The most tokens of a reply.
    pub fn reply_tokens(&self) -> u64 {
        let default = if self.route.is_some() { Self::REPLY_TOKENS } else { Self::REPLY_TOKENS_SCRIPTED };
        self.reply_tokens_max.unwrap_or(default)
    }
}

/// A tool that an agent may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct AgentTool {
    /// What happens after a crash in the middle of a call; each tool has its own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<EffectClass>,
    /// Time limit of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub timeout: Option<Timeout>,
    /// Maximum number of attempts of a call, including the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// For `http`: where it may go, beside what the operator allows. Without it, wherever the operator allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::EgressShape>)]
    pub egress: Option<EgressDraft>,
    /// Whether its calls may be made beside other calls of the same reply; each tool has its own default. A tool of
    /// class `once` is always alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub parallel: Option<bool>,
    /// `http` declares a tool: an HTTP endpoint. The following fields describe it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<ToolKind>,
    /// What it does, for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Where it is: `https://host/path`. `{name}` in the path stands for an argument.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "https://api.example.com/v1/items/{id}")]
    pub url: Option<String>,
    /// The method; `POST` if absent. Arguments become a JSON body, or for GET, HEAD, DELETE and OPTIONS the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The JSON Schema of its arguments, which describes an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Headers of every request. Credentials go into a secret.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The header that gets the idempotency key of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "Idempotency-Key")]
    pub idempotency_header: Option<String>,
    /// A secret of the project that every request gets. Its binding says where it may go, and into which slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub secret: Option<SecretName>,
}

/// The kinds of tools that an agent can declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// An HTTP endpoint.
    Http,
}

impl AgentFallbacks {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl AgentTool {
    /// The endpoint that it declares; `None` for a tool that every agent may have. The error and the remedy otherwise.
    pub fn endpoint(&self, name: &str) -> Result<Option<HttpEndpoint>, (String, String)> {
        let Self { kind, description, url, method, schema, headers, idempotency_header, secret, .. } = self;
        let wrong = |message: String, help: &str| Err((message, help.to_owned()));
        let Some(ToolKind::Http) = kind else {
            let given = [
                ("description", description.is_some()),
                ("url", url.is_some()),
                ("method", method.is_some()),
                ("schema", schema.is_some()),
                ("headers", !headers.is_empty()),
                ("idempotency_header", idempotency_header.is_some()),
                ("secret", secret.is_some()),
            ];
            return match given.iter().find(|(_, is_given)| *is_given) {
                None => Ok(None),
                Some((field, _)) => wrong(
                    format!("tools.{name}.{field}: it is for a tool that the agent declares"),
                    "add kind = \"http\" to declare one, or remove the field",
                ),
            };
        };
        let (Some(url), Some(description), Some(schema)) = (url, description, schema) else {
            return wrong(
                format!("tools.{name}: it has no url, no description or no schema"),
                "a tool of kind \"http\" needs all three; docs/tools.md shows one",
            );
        };
        let schema = match Schema::new(schema.clone()) {
            Ok(schema) => schema,
            Err(error) => return wrong(format!("tools.{name}.schema: {error}"), "correct the schema"),
        };
        Ok(Some(HttpEndpoint {
            description: description.clone(),
            url: url.clone(),
            method: method.clone().unwrap_or_else(|| "POST".to_owned()),
            schema,
            headers: headers.clone(),
            idempotency_header: idempotency_header.clone(),
            secret: secret.clone(),
        }))
    }
}

/// What happens where a run would stop for a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct AgentFallbacks {
    /// When it can't be determined whether a call was done: `park` (the default) for a person's decision, `retry`, or
    /// `abandon`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncertain: Option<WhenUncertain>,
    /// When the last attempt of a call failed: `fail` (the default), or `ask` for a person's decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<WhenFailing>,
    /// When nobody answers a question; absent, it waits without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<WhenUnanswered>,
    /// When its budget is used up: `end` (the default), `finish` with one last call of the model, or `ask` for more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<WhenOutOfBudget>,
}

/// When it can't be determined whether a call was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenUncertain {
    /// A person decides.
    Park,
    /// It is done again, although it may have been done.
    Retry,
    /// The run ends.
    Abandon,
}

/// When the last attempt of a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenFailing {
    /// The model is told; without a model the run fails.
    Fail,
    /// A person decides.
    Ask,
}

/// When nobody answers a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct WhenUnanswered {
    /// The time for an answer.
    #[schema(value_type = schema::TimeSpan)]
    pub after: Timeout,
    /// The answer that the model gets then. Without one, the run fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// What happens after a crash in the middle of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// No side effects: it is repeated.
    Pure,
    /// The target deduplicates by idempotency key: it is repeated with the same key.
    Keyed,
    /// The target is asked whether it was done.
    Probeable,
    /// Anything else: the run parks, and a human decides.
    Once,
}

/// The budget of a run, including its child runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct RunBudget {
    /// Steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Wall-clock time since its start, pauses included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub time: Option<Timeout>,
    /// Model tokens, input and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money, in millionths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micros: Option<u64>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// Attempts after the first, summed over all steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
    /// Child runs, at any depth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<u64>,
}

only_from_an_object!(Agent, SubAgent, AgentModel, AgentTool, AgentFallbacks, WhenUnanswered, RunBudget);
