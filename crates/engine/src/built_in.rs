//! The tools that the engine implements itself: `wait`, `ask_human`, `delegate` and `finish`. No executor handles them,
//! so the engine has to parse their arguments.
//!
//! Arguments that are too long for a record are stored as a blob, which the engine can't read. The code that stores
//! the blob parses them first and keeps the result in the call.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::body::Body;
use crate::effect::{Class, ToolCall};
use crate::run::ANSWER;

/// Maximum duration of the `wait` tool, in seconds.
const WAIT_SECONDS_MAX: u64 = 366 * 24 * 60 * 60;
/// Maximum length of the name of a signal that `wait` waits for, in characters.
const SIGNAL_NAME_MAX: usize = 128;

/// A parsed call of one of these tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuiltIn {
    Wait {
        /// At most one year.
        seconds: u64,
        /// The name of the signal that ends it earlier.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<String>,
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
    /// End the run.
    Finish {
        answer: Body,
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
    /// The tool that ends the run.
    pub const FINISH: &str = "finish";

    pub const TOOLS: [BuiltInTool; 4] = [
        BuiltInTool {
            name: "wait",
            description: "Waits that long, or until a signal arrives, and returns the signal's text. Nothing is used \
                meanwhile. A signal that arrived before and that no wait has returned is returned at once.",
            schema: r#"{
                "type": "object",
                "properties": {
                    "seconds": {
                        "type": "integer", "minimum": 0, "maximum": 31622400,
                        "description": "The longest time to wait."
                    },
                    "signal": {
                        "type": ["string", "null"], "minLength": 1, "maxLength": 128,
                        "description": "The name of the signal; without it, only the time is waited for."
                    }
                },
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
        BuiltInTool {
            name: Self::FINISH,
            description: "Ends your work with an answer. Calls after it in the same reply are not made.",
            schema: r#"{
                "type": "object",
                "properties": {
                    "answer": {"type": ["string", "null"], "description": "The answer, as text."},
                    "output": {"type": ["object", "null"], "description": "The answer, as a JSON object instead."}
                },
                "additionalProperties": false
            }"#,
            class: Class::Pure,
            read: read_finish,
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
            Self::AskHuman { question: body } | Self::Delegate { task: body, .. } | Self::Finish { answer: body } => {
                Some(body)
            }
        }
    }

    /// Replaces the text, if it has one.
    #[must_use]
    pub fn with_body(self, body: Body) -> Self {
        match self {
            Self::Wait { .. } => self,
            Self::AskHuman { .. } => Self::AskHuman { question: body },
            Self::Delegate { agent, .. } => Self::Delegate { task: body, agent },
            Self::Finish { .. } => Self::Finish { answer: body },
        }
    }

    fn tool(&self) -> &'static str {
        match self {
            Self::Wait { .. } => "wait",
            Self::AskHuman { .. } => "ask_human",
            Self::Delegate { .. } => Self::DELEGATE,
            Self::Finish { .. } => Self::FINISH,
        }
    }
}

fn text(arguments: &Value, name: &str) -> Option<Body> {
    arguments.get(name).and_then(Value::as_str).map(Body::text)
}

fn read_wait(arguments: &Value) -> Result<BuiltIn, String> {
    let seconds = arguments.get("seconds").and_then(Value::as_u64).filter(|seconds| *seconds <= WAIT_SECONDS_MAX);
    let seconds = seconds.ok_or("wait needs \"seconds\": a whole number of at most a year")?;
    match arguments.get("signal") {
        None | Some(Value::Null) => Ok(BuiltIn::Wait { seconds, signal: None }),
        Some(Value::String(name)) if name != ANSWER && (1..=SIGNAL_NAME_MAX).contains(&name.chars().count()) => {
            Ok(BuiltIn::Wait { seconds, signal: Some(name.clone()) })
        }
        Some(_) => Err(format!("\"signal\" is a name of 1 to {SIGNAL_NAME_MAX} characters, and not {ANSWER:?}")),
    }
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

fn read_finish(arguments: &Value) -> Result<BuiltIn, String> {
    let wrong = "finish needs either \"answer\": a text, or \"output\": a JSON object";
    let given = |name: &str| arguments.get(name).filter(|value| !value.is_null());
    let answer = match (given("answer"), given("output")) {
        (Some(Value::String(answer)), None) => Body::text(answer),
        (None, Some(output @ Value::Object(_))) => Body::text(output.to_string()),
        _ => return Err(wrong.to_owned()),
    };
    Ok(BuiltIn::Finish { answer })
}
