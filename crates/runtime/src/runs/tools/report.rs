//! Reports of executors. Every result is bounded before it is kept.

use saggar_engine::{Body, EffectFailure, Report, ToolResult, Usage};
use serde::de::DeserializeOwned;

use super::tool::or_none;
use crate::fault::Fault;

/// Reads a call's arguments. The report tells the model what is wrong with them.
pub(super) fn read<T: DeserializeOwned>(tool: &str, arguments: &str) -> Result<T, Report> {
    serde_json::from_str(or_none(arguments))
        .map_err(|error| returned(format!("the arguments of {tool} are invalid: {error}"), true))
}

pub(in crate::runs) fn returned(content: impl Into<String>, is_error: bool) -> Report {
    Report::Returned { result: ToolResult::new(Body::text(content), is_error), snapshot: None }
}

/// The beginning of a tool's result, with a note if there is more.
pub(super) fn cut(mut bytes: Vec<u8>, most: usize) -> String {
    let is_longer = bytes.len() > most;
    bytes.truncate(most);
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_longer {
        text.push_str(&format!("\n(truncated after {most} bytes)"));
    }
    text
}

pub(in crate::runs) fn failed(code: &str, message: impl Into<String>, is_passing: bool) -> Report {
    let failure = EffectFailure::new(code, message, is_passing);
    Report::Failed { failure, usage: Usage::default() }
}

/// Translates a fault that occurred before anything was started.
pub(super) fn not_begun(fault: &Fault) -> Report {
    match fault {
        Fault::Capacity { what, .. } => Report::Delayed { reason: format!("waiting for a sandbox: {what}") },
        Fault::InProgress
        | Fault::Busy { .. }
        | Fault::Internal { .. }
        | Fault::SealingKey { .. }
        | Fault::StoreUnwritable { .. } => failed("sandbox_unavailable", fault.to_string(), true),
        Fault::Paused { .. } => failed("sandbox_paused", fault.to_string(), true),
        Fault::NotFound { .. }
        | Fault::Ended { .. }
        | Fault::IdempotencyMismatch
        | Fault::NoSuchSecret(_)
        | Fault::NoSuchTemplate(_)
        | Fault::Refused(_)
        | Fault::Forbidden { .. }
        | Fault::File(_)
        | Fault::PortClosed { .. }
        | Fault::PortNotAllowed { .. }
        | Fault::Conflict { .. }
        | Fault::RunDamaged { .. }
        | Fault::WrongPermit => returned(fault.to_string(), true),
    }
}
