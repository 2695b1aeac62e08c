//! Reasons for the end of a reply, in the words of each wire.

use saggar_domain::model::Stop;

pub(super) fn from_chat(reason: &str) -> Stop {
    match reason {
        "stop" => Stop::End,
        "length" => Stop::MaxTokens,
        "tool_calls" | "function_call" => Stop::ToolCalls,
        "content_filter" => Stop::ContentFilter,
        _ => Stop::Other,
    }
}

pub(super) fn to_chat(stop: Stop) -> &'static str {
    match stop {
        Stop::End | Stop::Sequence | Stop::Refusal | Stop::Paused | Stop::Other => "stop",
        Stop::MaxTokens | Stop::ContextFull => "length",
        Stop::ToolCalls => "tool_calls",
        Stop::ContentFilter => "content_filter",
    }
}

pub(super) fn from_anthropic(reason: &str) -> Stop {
    match reason {
        "end_turn" => Stop::End,
        "stop_sequence" => Stop::Sequence,
        "max_tokens" => Stop::MaxTokens,
        "model_context_window_exceeded" => Stop::ContextFull,
        "tool_use" => Stop::ToolCalls,
        "refusal" => Stop::Refusal,
        "pause_turn" => Stop::Paused,
        _ => Stop::Other,
    }
}

pub(super) fn to_anthropic(stop: Stop) -> &'static str {
    match stop {
        Stop::End | Stop::Other => "end_turn",
        Stop::Sequence => "stop_sequence",
        Stop::MaxTokens => "max_tokens",
        Stop::ContextFull => "model_context_window_exceeded",
        Stop::ToolCalls => "tool_use",
        Stop::Refusal | Stop::ContentFilter => "refusal",
        Stop::Paused => "pause_turn",
    }
}

pub(super) fn from_gemini(reason: &str) -> Stop {
    match reason {
        "STOP" => Stop::End,
        "MAX_TOKENS" => Stop::MaxTokens,
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "IMAGE_SAFETY" | "LANGUAGE" => {
            Stop::ContentFilter
        }
        "CONTINUATION" => Stop::Paused,
        _ => Stop::Other,
    }
}
