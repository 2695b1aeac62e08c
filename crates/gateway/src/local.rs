//! Models that need no network: `scripted` answers by a list of turns, `replay` by what a journal has recorded.
//!
//! The turn is chosen by how many replies the conversation already has, so that repeating a request repeats its answer.

use saggar_domain::model::{Message, ModelReply, ModelRequest, Origin, Part, Role, Stop, TokenUsage, ToolCall};
use serde::Deserialize;
use serde_json::Value;

use crate::failure::{Failure, FailureKind};

/// ```json
/// {"turns": [{"text": "I look.", "calls": [{"tool": "shell", "arguments": {"command": "ls"}}]}, {"text": "Done."}]}
/// ```
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    turns: Vec<Turn>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<Call>,
    /// Why it ends; without it, that follows from its calls.
    #[serde(default)]
    stop: Option<Stop>,
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    tool: String,
    #[serde(default = "no_arguments")]
    arguments: Value,
}

fn no_arguments() -> Value {
    Value::Object(serde_json::Map::new())
}

#[derive(Debug, thiserror::Error)]
#[error("the script is not of the form {{\"turns\": [...]}}: {0}")]
pub struct ScriptError(serde_json::Error);

impl Script {
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        serde_json::from_str(text).map_err(ScriptError)
    }

    pub fn reply(&self, request: &ModelRequest, origin: Origin) -> Result<ModelReply, Failure> {
        let replies = replies_in(&request.messages);
        let turn = self.turns.get(replies).ok_or_else(|| over("script", self.turns.len()))?;
        let mut parts = Vec::new();
        if !turn.text.is_empty() {
            parts.push(Part::text(turn.text.clone()));
        }
        for (index, call) in turn.calls.iter().enumerate() {
            parts.push(Part::ToolCall(ToolCall {
                id: format!("call_{replies}_{index}"),
                name: call.tool.clone(),
                arguments: call.arguments.to_string(),
                verbatim: None,
            }));
        }
        let stop = turn.stop.unwrap_or(if turn.calls.is_empty() { Stop::End } else { Stop::ToolCalls });
        let usage = TokenUsage { input: turn.input_tokens, output: turn.output_tokens, ..TokenUsage::default() };
        Ok(ModelReply { parts, stop, usage, origin })
    }
}

/// Recorded replies: `{"replies": [{"parts": [...], "stop": "end", ...}]}`, each as a journal has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    replies: Vec<ModelReply>,
}

#[derive(Debug, thiserror::Error)]
#[error("the recording is not of the form {{\"replies\": [...]}}: {0}")]
pub struct ReplayError(serde_json::Error);

impl Replay {
    pub fn parse(text: &str) -> Result<Self, ReplayError> {
        serde_json::from_str(text).map_err(ReplayError)
    }

    /// The recorded reply, with what it cost when it was recorded. The caller decides whether that counts again.
    pub fn reply(&self, request: &ModelRequest) -> Result<ModelReply, Failure> {
        self.replies.get(replies_in(&request.messages)).cloned().ok_or_else(|| over("recording", self.replies.len()))
    }
}

fn replies_in(messages: &[Message]) -> usize {
    messages.iter().filter(|message| message.role == Role::Assistant).count()
}

fn over(what: &str, turns: usize) -> Failure {
    let message = match turns {
        1 => format!("the {what} has only 1 turn"),
        turns => format!("the {what} has only {turns} turns"),
    };
    Failure::new(FailureKind::InvalidRequest, message)
}
