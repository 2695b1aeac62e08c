//! What is asked of a model.

use serde::{Deserialize, Serialize};

use super::message::Message;
use super::number::Millionths;
use super::route::RouteName;
use super::tool::{JsonSchema, ToolChoice, ToolDefinition};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRequest<T = String> {
    pub route: RouteName,
    pub messages: Vec<Message<T>>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDefinition>,
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// Whether a reply may have several tool calls; `None` leaves it to the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_calls: Option<bool>,
    #[serde(default)]
    pub sampling: Sampling,
    #[serde(default)]
    pub output: OutputFormat,
}

/// How a reply is generated. `None` leaves each to the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Tokens of the reply, reasoning included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Millionths>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<Millionths>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<Millionths>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<Millionths>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// The reply ends before any of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningEffort>,
    /// Tokens that it may think for, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens_max: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningEffort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    /// Written `xhigh` by providers.
    Xhigh,
    Max,
}

impl ReasoningEffort {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::None, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::Xhigh, Self::Max]
            .into_iter()
            .find(|effort| effort.as_str() == text)
    }
}

/// The form of the answer's text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    #[default]
    Text,
    /// Any JSON object.
    Json,
    Schema {
        name: String,
        schema: JsonSchema,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        strict: Option<bool>,
    },
}

impl<T> ModelRequest<T> {
    /// A plain question to a route.
    pub fn new(route: RouteName, messages: Vec<Message<T>>) -> Self {
        Self {
            route,
            messages,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_calls: None,
            sampling: Sampling::default(),
            output: OutputFormat::Text,
        }
    }

    /// The same request with other text, as [`super::Part::try_map`].
    pub fn try_map<U, E>(self, f: &mut impl FnMut(T) -> Result<U, E>) -> Result<ModelRequest<U>, E> {
        let Self { route, messages, tools, tool_choice, parallel_calls, sampling, output } = self;
        let messages = messages.into_iter().map(|message| message.try_map(f)).collect::<Result<_, E>>()?;
        Ok(ModelRequest { route, messages, tools, tool_choice, parallel_calls, sampling, output })
    }
}
