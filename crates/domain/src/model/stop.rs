//! Why a reply ended.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The model had said what it wanted to say.
    End,
    /// One of the request's stop sequences.
    Sequence,
    /// The request's limit of tokens.
    MaxTokens,
    /// The model's context is full.
    ContextFull,
    /// It calls tools, and waits for their results.
    ToolCalls,
    /// The model declined to answer.
    Refusal,
    /// The provider's filter blocked the prompt or the answer.
    ContentFilter,
    /// The provider wants the same conversation again, to continue.
    Paused,
    /// A reason that we don't know.
    Other,
}

impl Stop {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Sequence => "sequence",
            Self::MaxTokens => "max_tokens",
            Self::ContextFull => "context_full",
            Self::ToolCalls => "tool_calls",
            Self::Refusal => "refusal",
            Self::ContentFilter => "content_filter",
            Self::Paused => "paused",
            Self::Other => "other",
        }
    }
}
