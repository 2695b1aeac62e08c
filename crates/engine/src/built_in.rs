//! The tools that the engine implements itself: `wait`, `ask_human` and `delegate`. No executor handles them, so the
//! engine has to parse their arguments.
//!
//! Arguments that are too long for a record are stored as a blob, which the engine can't read. The code that stores
//! the blob parses them first and keeps the result in the call.

use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::effect::ToolCall;

/// Maximum duration of the `wait` tool, in seconds.
const WAIT_SECONDS_MAX: u64 = 366 * 24 * 60 * 60;

/// A parsed call of one of these tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuiltIn {
    Wait {
        /// At most one year.
        seconds: u64,
    },
    AskHuman {
        question: Body,
    },
    /// Start a child run and wait for its end.
    Delegate {
        task: Body,
        /// Name of the agent; `None` starts the same agent again.
        agent: Option<String>,
    },
}

impl BuiltIn {
    /// The built-in tools with the names of their arguments.
    pub const TOOLS: [(&str, &[&str]); 3] =
        [("wait", &["seconds"]), ("ask_human", &["question"]), ("delegate", &["task", "agent"])];

    /// Parses a tool's arguments. `None` if the tool isn't built in; `Err` with a message for the model if they are
    /// invalid.
    pub fn parse(tool: &str, arguments: &str) -> Option<Result<Self, String>> {
        let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap_or_default();
        let text = |name: &str| arguments.get(name).and_then(|value| value.as_str()).map(Body::text);
        Some(match tool {
            "wait" => {
                let seconds = arguments.get("seconds").and_then(|value| value.as_u64());
                let seconds = seconds.filter(|seconds| *seconds <= WAIT_SECONDS_MAX);
                let seconds = seconds.map(|seconds| Self::Wait { seconds });
                seconds.ok_or_else(|| "wait needs \"seconds\": a whole number of at most a year".to_owned())
            }
            "ask_human" => {
                let asked = text("question").map(|question| Self::AskHuman { question });
                asked.ok_or_else(|| "ask_human needs \"question\": a text".to_owned())
            }
            "delegate" => text("task")
                .ok_or_else(|| "delegate needs \"task\": a text, and may have \"agent\": a name".to_owned())
                .and_then(|task| match arguments.get("agent") {
                    None | Some(serde_json::Value::Null) => Ok(Self::Delegate { task, agent: None }),
                    Some(serde_json::Value::String(name)) => Ok(Self::Delegate { task, agent: Some(name.clone()) }),
                    Some(_) => Err("\"agent\" is a name".to_owned()),
                }),
            _ => return None,
        })
    }

    /// The parsed arguments: those kept in the call, or else parsed from its text.
    pub(crate) fn of(call: &ToolCall) -> Option<Result<Self, String>> {
        match &call.read {
            Some(read) if read.tool() == call.tool => Some(Ok(BuiltIn::clone(read))),
            _ => Self::parse(&call.tool, call.arguments.as_text().unwrap_or_default()),
        }
    }

    /// Its text, which may be long.
    pub fn body(&self) -> Option<&Body> {
        match self {
            Self::Wait { .. } => None,
            Self::AskHuman { question: body } | Self::Delegate { task: body, .. } => Some(body),
        }
    }

    /// Replaces the text, if it has one.
    #[must_use]
    pub fn with_body(self, body: Body) -> Self {
        match self {
            Self::Wait { .. } => self,
            Self::AskHuman { .. } => Self::AskHuman { question: body },
            Self::Delegate { agent, .. } => Self::Delegate { task: body, agent },
        }
    }

    fn tool(&self) -> &'static str {
        match self {
            Self::Wait { .. } => "wait",
            Self::AskHuman { .. } => "ask_human",
            Self::Delegate { .. } => "delegate",
        }
    }
}
