//! The tool `code`: runs code in the default context of its language in the run's sandbox, which keeps what it defines.
//!
//! Nobody can be asked afterwards whether a piece of code ran to its end, so a crash in the middle of a call parks the
//! run, as for every tool of class `once`.

use std::collections::BTreeMap;
use std::time::Duration;

use saggar_domain::{CodeLanguage, CodeStatus};
use saggar_engine::{Class, Report};
use serde::Deserialize;
use serde_json::{Value, json};

use super::hands::Hands;
use super::report::{not_begun, read, returned};
use super::sandbox::RunSandbox;
use super::tool::{Needs, Performer, Performing, Tool};
use crate::code::{CodeEvent, CodeResult, Place, RunCode, Running};
use crate::following::Tails;
use crate::permit::Action;
use crate::runs::effects::Task;

/// Bytes of each stream that the agent gets: the last ones.
const OUTPUT_MAX: usize = 64 * 1024;
/// How long an interrupt may take.
pub(super) const INTERRUPT_TIME: Duration = Duration::from_secs(8);
/// Characters of the text and the names of formats of all results together.
const RESULTS_MAX: usize = 64 * 1024;
/// What each result counts besides, so that empty ones are bounded too.
const RESULT_CHARS: usize = 64;

pub(super) const TOOL: Tool = Tool {
    name: "code",
    description: "Runs code in the sandbox, and returns what it prints, the value of its last expression, and its error. \
        Variables, imports and functions are kept for later calls of the same language.",
    schema: r#"{
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "The code."},
            "language": {
                "type": "string",
                "enum": ["python", "javascript", "typescript", "bash"],
                "description": "Its language; without it, python."
            }
        },
        "required": ["code"],
        "additionalProperties": false
    }"#,
    class: Class::Once,
    // Executions of one context take turns, and each sees what the one before it left.
    class_of: None,
    is_parallel: false,
    risk: 50,
    timeout: Duration::from_secs(10 * 60),
    needs: Needs::Sandbox,
    performer: Performer::Executor { call: perform, probe: None },
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    code: String,
    #[serde(default)]
    language: Option<CodeLanguage>,
}

fn perform<'a>(hands: &'a Hands, task: &'a Task, arguments: &'a str) -> Performing<'a> {
    Box::pin(call(&hands.sandbox, task, arguments))
}

async fn call(sandbox: &RunSandbox, task: &Task, arguments: &str) -> Report {
    let Arguments { code, language } = match read(TOOL.name, arguments) {
        Ok(arguments) => arguments,
        Err(report) => return report,
    };
    let id = match sandbox.ready(task).await {
        Ok(id) => id,
        Err(report) => return report,
    };
    let permit = match sandbox.permit(Action::Exec(id)) {
        Ok(permit) => permit,
        Err(fault) => return not_begun(&fault),
    };
    let place = Place::Default(language.unwrap_or(CodeLanguage::Python), BTreeMap::new());
    // Before the call's own deadline, so that there is an answer: an interrupt takes a moment.
    let timeout = task.timeout.saturating_sub(INTERRUPT_TIME).max(task.timeout / 2);
    let run = RunCode { code, place, env: BTreeMap::new(), timeout: Some(timeout) };
    match sandbox.sandboxes().run_code(&permit, run).await {
        Ok(running) => follow(running).await,
        Err(fault) => not_begun(&fault),
    }
}

async fn follow(mut running: Running) -> Report {
    let mut tails = Tails::new(OUTPUT_MAX);
    let (mut written, mut results, mut room, mut error) = (0, Vec::new(), RESULTS_MAX, Value::Null);
    loop {
        match running.next().await {
            Some(CodeEvent::Output { stream, text }) => {
                written += text.len();
                tails.push(stream, text.as_bytes());
            }
            Some(CodeEvent::Result(result)) => results.extend(shown(&result, &mut room)),
            Some(CodeEvent::Error(raised)) => {
                error = json!({ "name": cut(&raised.name), "value": cut(&raised.value), "traceback": cut(&raised.traceback) });
            }
            Some(CodeEvent::Ended { status, .. }) => {
                let (stdout, stderr) = tails.cut();
                let dropped = written.saturating_sub(stdout.len() + stderr.len());
                let mut said = json!({
                    "status": status.as_str(),
                    "stdout": String::from_utf8_lossy(&stdout),
                    "stderr": String::from_utf8_lossy(&stderr),
                    "results": results,
                });
                if !error.is_null() {
                    said["error"] = error;
                }
                if dropped > 0 {
                    said["bytes_dropped"] = json!(dropped);
                }
                return returned(said.to_string(), status != CodeStatus::Ok);
            }
            Some(CodeEvent::Failed(fault)) => return Report::unknown(fault.to_string()),
            None => return Report::unknown("the execution was given up"),
        }
    }
}

/// The text of a result and the names of its other formats, as far as there is room. The code decides how much there is of both.
fn shown(result: &CodeResult, room: &mut usize) -> Option<Value> {
    *room = room.checked_sub(RESULT_CHARS)?;
    let mut take = |text: &str| -> String {
        let taken: String = text.chars().take(*room).collect();
        *room -= taken.chars().count();
        taken
    };
    let text = result.formats.get("text/plain");
    let text: String = text.and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default();
    let text = take(&text);
    let others: Vec<String> =
        result.formats.keys().filter(|kind| *kind != "text/plain").map(|kind| take(kind)).collect();
    Some(json!({ "main": result.is_main, "text": text, "formats": others }))
}

fn cut(text: &str) -> String {
    text.chars().take(OUTPUT_MAX / 4).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn results_without_text_and_with_long_names_are_bounded_too() {
        let value = || RawValue::from_string("1".to_owned()).unwrap();
        let long = (0..64).map(|at| (format!("{at:0256}"), value())).collect();
        for formats in [BTreeMap::new(), long] {
            let result = CodeResult { is_main: false, formats };
            let mut room = RESULTS_MAX;
            let all: Vec<Value> = (0..100_000).map_while(|_| shown(&result, &mut room)).collect();
            let length = json!(all).to_string().len();
            assert!(length < 2 * RESULTS_MAX, "{} results of {length} bytes", all.len());
        }
    }
}
