//! The scripted model: a list of turns, each the reply to one call, however often it is repeated.
//!
//! ```json
//! {"turns": [{"text": "I look.", "calls": [{"tool": "shell", "arguments": {"command": "ls"}}]}, {"text": "Done."}]}
//! ```

use saggar_engine::{Body, ModelReply, Report, ToolCall, Usage};
use serde::Deserialize;

use super::failed;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Script {
    turns: Vec<Turn>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<Call>,
    /// The cost of the turn.
    #[serde(default)]
    tokens: u64,
    #[serde(default)]
    micros: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    tool: String,
    #[serde(default)]
    arguments: serde_json::Value,
}

#[derive(Debug, thiserror::Error)]
#[error("the script is invalid: {0}")]
pub struct ScriptError(serde_json::Error);

impl Script {
    pub(super) fn parse(text: &str) -> Result<Self, ScriptError> {
        serde_json::from_str(text).map_err(ScriptError)
    }

    /// The turn after this many.
    pub(super) fn reply(&self, replies: u64) -> Report {
        let turn = usize::try_from(replies).ok().and_then(|index| self.turns.get(index));
        let Some(turn) = turn else {
            return failed("script_ended", format!("the script has only {} turns", self.turns.len()), false);
        };
        let call = |(index, call): (usize, &Call)| ToolCall {
            id: format!("call_{replies}_{index}"),
            tool: call.tool.clone(),
            arguments: Body::text(call.arguments.to_string()),
            read: None,
        };
        let calls = turn.calls.iter().enumerate().map(call).collect();
        let reply = ModelReply { text: Body::text(&turn.text), calls };
        Report::Replied { reply, usage: Usage { tokens: turn.tokens, micros: turn.micros } }
    }
}

/// Validates a script before a run is started with it.
pub(in crate::runs) fn check(text: &str) -> Result<(), ScriptError> {
    Script::parse(text).map(drop)
}
