//! The scripted model: a list of turns, each the reply to one call, however often it is repeated.
//!
//! ```json
//! {"turns": [{"text": "I look.", "calls": [{"tool": "shell", "arguments": {"command": "ls"}}]}, {"text": "Done."}]}
//! ```

use std::collections::BTreeSet;

use saggar_domain::model::{Origin, Stop, TokenUsage};
use saggar_engine::{Body, ModelReply, Report, Said, SaidPart, ToolCall, Usage};
use serde::Deserialize;

use crate::runs::tools::failed;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Script {
    turns: Vec<Turn>,
    /// What it answers when it is asked to sum up the conversation.
    #[serde(default = "no_summary")]
    summary: String,
}

fn no_summary() -> String {
    "The script says nothing about this part.".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turn {
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<Call>,
    /// Why it ends, as a provider would say it.
    #[serde(default)]
    stop: Option<Stop>,
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
#[error("the script is not of the form {{\"turns\": [...]}}: {0}")]
pub struct ScriptError(serde_json::Error);

impl Script {
    pub(super) fn parse(text: &str) -> Result<Self, ScriptError> {
        serde_json::from_str(text).map_err(ScriptError)
    }

    /// The turn after this many.
    pub(super) fn reply(&self, replies: u64) -> Report {
        let turn = usize::try_from(replies).ok().and_then(|index| self.turns.get(index));
        let Some(turn) = turn else {
            let message = match self.turns.len() {
                1 => "the script has only 1 turn".to_owned(),
                turns => format!("the script has only {turns} turns"),
            };
            return failed("script_ended", message, false);
        };
        let call = |(index, call): (usize, &Call)| ToolCall {
            id: format!("call_{replies}_{index}"),
            tool: call.tool.clone(),
            arguments: Body::text(call.arguments.to_string()),
            read: None,
            invalid: None,
            class: None,
        };
        let calls: Vec<ToolCall> = turn.calls.iter().enumerate().map(call).collect();
        let said = turn.stop.map(|stop| {
            let text = (!turn.text.is_empty()).then_some(SaidPart::Text { verbatim: None });
            let parts = text.into_iter().chain(calls.iter().map(|_| SaidPart::Call { verbatim: None })).collect();
            let origin = Origin { provider: "scripted".to_owned(), model: String::new() };
            Box::new(Said { parts, stop, usage: TokenUsage::default(), origin })
        });
        let reply = ModelReply { said, ..ModelReply::new(Body::text(&turn.text), calls) };
        Report::Replied { reply, usage: Usage { tokens: turn.tokens, micros: turn.micros } }
    }
}

impl Script {
    pub(super) fn summary(&self) -> Report {
        Report::Replied { reply: ModelReply::new(Body::text(&self.summary), Vec::new()), usage: Usage::default() }
    }
}

/// Validates a script before a run is started with it. Returns the tools that it calls.
pub(in crate::runs) fn check(text: &str) -> Result<BTreeSet<String>, ScriptError> {
    let calls = Script::parse(text)?.turns.into_iter().flat_map(|turn| turn.calls);
    Ok(calls.map(|call| call.tool).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_is_over_says_how_long_it_was() {
        for (turns, expected) in [(r#"[{}]"#, "only 1 turn"), (r#"[{}, {}]"#, "only 2 turns")] {
            let script = Script::parse(&format!(r#"{{"turns": {turns}}}"#)).unwrap();
            let Report::Failed { failure, .. } = script.reply(2) else { panic!("it goes on") };
            assert!(failure.message.ends_with(expected), "{}", failure.message);
        }
    }

    #[test]
    fn anything_but_turns_is_refused_with_the_form_that_is_expected() {
        for wrong in [r#"[{"text": "a"}]"#, "[]", "{}", r#"{"turns": {}}"#, r#"{"turns": [{"txt": "a"}]}"#] {
            let error = Script::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(r#"{"turns": [...]}"#), "{wrong}: {error}");
        }
    }
}
