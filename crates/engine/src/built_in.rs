//! The tools that the engine implements itself: `wait`, `ask_human` and `delegate`. No executor handles them, so the
//! engine has to parse their arguments.
//!
//! Arguments that are too long for a record are stored as a blob, which the engine can't read. The code that stores
//! the blob parses them first and keeps the result in the call.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::body::Body;
use crate::effect::{Class, ToolCall};

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

/// One of these tools, as the catalogue of tools describes it.
#[derive(Clone, Copy, Debug)]
pub struct BuiltInTool {
    pub name: &'static str,
    pub description: &'static str,
    /// The schema of its arguments: JSON Schema.
    pub schema: &'static str,
    /// What a crash while it is open means.
    pub class: Class,
    read: fn(&Value) -> Result<BuiltIn, String>,
}

impl BuiltIn {
    /// The tool that starts other agents.
    pub const DELEGATE: &str = "delegate";

    pub const TOOLS: [BuiltInTool; 3] = [
        BuiltInTool {
            name: "wait",
            description: "Waits that long, and returns. Nothing is used meanwhile.",
            schema: r#"{
                "type": "object",
                "properties": {"seconds": {"type": "integer", "minimum": 0, "maximum": 31622400}},
                "required": ["seconds"],
                "additionalProperties": false
            }"#,
            class: Class::Pure,
            read: read_wait,
        },
        BuiltInTool {
            name: "ask_human",
            description: "Asks a person and waits for the answer, which it returns.",
            schema: r#"{
                "type": "object",
                "properties": {"question": {"type": "string", "description": "What to ask."}},
                "required": ["question"],
                "additionalProperties": false
            }"#,
            class: Class::Pure,
            read: read_question,
        },
        BuiltInTool {
            name: Self::DELEGATE,
            description: "Lets another agent do a task, and returns its answer. It knows nothing but the task.",
            schema: r#"{
                "type": "object",
                "properties": {
                    "task": {"type": "string", "description": "Everything that the other agent needs to know."},
                    "agent": {
                        "type": ["string", "null"],
                        "description": "The name of the agent; without it, one like you."
                    }
                },
                "required": ["task"],
                "additionalProperties": false
            }"#,
            // The child's id is derived from the key.
            class: Class::Keyed,
            read: read_task,
        },
    ];

    /// Parses a tool's arguments. `None` if the tool isn't built in; `Err` with a message for the model if they are
    /// invalid. It ignores unknown ones, as old journals need: new calls have been checked against the schema.
    pub fn parse(tool: &str, arguments: &str) -> Option<Result<Self, String>> {
        let tool = Self::TOOLS.iter().find(|built_in| built_in.name == tool)?;
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        Some((tool.read)(&arguments))
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
            Self::Delegate { .. } => Self::DELEGATE,
        }
    }
}

fn text(arguments: &Value, name: &str) -> Option<Body> {
    arguments.get(name).and_then(Value::as_str).map(Body::text)
}

fn read_wait(arguments: &Value) -> Result<BuiltIn, String> {
    let seconds = arguments.get("seconds").and_then(Value::as_u64).filter(|seconds| *seconds <= WAIT_SECONDS_MAX);
    let seconds = seconds.ok_or("wait needs \"seconds\": a whole number of at most a year")?;
    Ok(BuiltIn::Wait { seconds })
}

fn read_question(arguments: &Value) -> Result<BuiltIn, String> {
    let question = text(arguments, "question").ok_or("ask_human needs \"question\": a text")?;
    Ok(BuiltIn::AskHuman { question })
}

fn read_task(arguments: &Value) -> Result<BuiltIn, String> {
    let task = text(arguments, "task").ok_or("delegate needs \"task\": a text, and may have \"agent\": a name")?;
    match arguments.get("agent") {
        None | Some(Value::Null) => Ok(BuiltIn::Delegate { task, agent: None }),
        Some(Value::String(name)) => Ok(BuiltIn::Delegate { task, agent: Some(name.clone()) }),
        Some(_) => Err("\"agent\" is a name".to_owned()),
    }
}
