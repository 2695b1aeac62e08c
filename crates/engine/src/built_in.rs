//! The tools that the engine does itself: `wait`, `ask_human` and `delegate`. Nobody executes them, so the engine has to read their arguments.
//!
//! Arguments that are too long for a record are a blob, which the engine can't read. Whoever puts them beside the journal reads them first, and
//! keeps what was read in the call.

use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::effect::ToolCall;

/// The longest a run waits by its own wish.
const WAIT_SECONDS_MAX: u64 = 366 * 24 * 60 * 60;

/// What a call of one of these tools asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuiltIn {
    /// Let time pass.
    Wait {
        /// At most a year.
        seconds: u64,
    },
    /// Ask a person.
    AskHuman { question: Body },
    /// Start a run, and wait for its end.
    Delegate {
        /// What it is asked to do.
        task: Body,
        /// Which of the agents; `None` is the same agent once more.
        agent: Option<String>,
    },
}

impl BuiltIn {
    /// The tools there are, with the names of their arguments.
    pub const TOOLS: [(&str, &[&str]); 3] =
        [("wait", &["seconds"]), ("ask_human", &["question"]), ("delegate", &["task", "agent"])];

    /// Reads the arguments of a tool: `None` where the tool isn't one of these, and what the model is told where they can't be meant.
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

    /// What a call asks for, as it was read, or as it can be read here.
    pub(crate) fn of(call: &ToolCall) -> Option<Result<Self, String>> {
        match &call.read {
            Some(read) if read.tool() == call.tool => Some(Ok(BuiltIn::clone(read))),
            _ => Self::parse(&call.tool, call.arguments.as_text().unwrap_or_default()),
        }
    }

    /// The text in it, which may be long.
    pub fn body(&self) -> Option<&Body> {
        match self {
            Self::Wait { .. } => None,
            Self::AskHuman { question: body } | Self::Delegate { task: body, .. } => Some(body),
        }
    }

    /// The same with another body, where it has one.
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
