//! The scripted model: a list of turns, each the answer to one question, whoever asks and however often.
//!
//! ```json
//! {"turns": [{"text": "I look.", "calls": [{"tool": "shell", "arguments": {"command": "ls"}}]}, {"text": "Done."}]}
//! ```

use saggar_engine::{Body, ModelReply, Report, ToolCall, Usage};
use serde::Deserialize;

use super::failed;

/// A model that says what was written down for it.
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
    /// What the turn costs.
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

/// Not a script.
#[derive(Debug, thiserror::Error)]
#[error("the script can't be read: {0}")]
pub struct ScriptError(serde_json::Error);

impl Script {
    pub(super) fn parse(text: &str) -> Result<Self, ScriptError> {
        serde_json::from_str(text).map_err(ScriptError)
    }

    /// The turn after so many.
    pub(super) fn reply(&self, replies: u64) -> Report {
        let turn = usize::try_from(replies).ok().and_then(|index| self.turns.get(index));
        let Some(turn) = turn else {
            return failed("script_ended", format!("the script has {} turns, and no more", self.turns.len()), false);
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

/// Whether a text is a script, before a run is begun with it.
pub(in crate::runs) fn check(text: &str) -> Result<(), ScriptError> {
    Script::parse(text).map(drop)
}
