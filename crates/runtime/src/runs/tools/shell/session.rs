//! Sessions of the tool `shell`: a bash that keeps its directory, variables and functions from call to call.
//!
//! A session is a code context whose id follows from the run and the session's name, so the next worker of the run
//! finds it in the sandbox. Nobody can be asked afterwards whether a command ran to its end, so a call in a session is
//! of class `once`, whatever class the tool has.

use saggar_domain::{CodeLanguage, CodeStatus, CommandLine, ContextId};
use saggar_engine::Report;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{Arguments, OUTPUT_MAX};
use crate::code::{CodeEvent, Found, Place, RunCode, Running};
use crate::following::Tails;
use crate::permit::Action;
use crate::runs::effects::Task;
use crate::runs::tools::code::INTERRUPT_TIME;
use crate::runs::tools::report::{not_begun, returned};
use crate::runs::tools::sandbox::RunSandbox;

/// Maximum length of a session's name, in bytes.
pub(super) const NAME_LEN_MAX: usize = 64;

/// Runs the command in the session of that name.
pub(super) async fn call(sandbox: &RunSandbox, task: &Task, name: &str, arguments: Arguments) -> Report {
    let Arguments { command, cwd, env, session: _ } = arguments;
    let id = match sandbox.ready(task).await {
        Ok(id) => id,
        Err(report) => return report,
    };
    let permit = match sandbox.permit(Action::Exec(id)) {
        Ok(permit) => permit,
        Err(fault) => return not_begun(&fault),
    };
    let context = context_of(&sandbox.branch(), name);
    let found = match sandbox.sandboxes().context_by_id(&permit, context.clone(), CodeLanguage::Bash).await {
        Ok(found) => found,
        Err(fault) => return not_begun(&fault),
    };
    let change = cwd.map(|cwd| format!("cd -- {} && ", quoted(&cwd))).unwrap_or_default();
    let command = match command {
        CommandLine::Shell(line) => line,
        CommandLine::Words(words) => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    };
    // Before the call's own deadline, so that there is an answer: an interrupt takes a moment.
    let timeout = task.timeout.saturating_sub(INTERRUPT_TIME).max(task.timeout / 2);
    let code = if change.is_empty() { command } else { format!("{change}{{ {command}\n}}") };
    let run = RunCode { code, place: Place::Context(context), env, timeout: Some(timeout) };
    match sandbox.sandboxes().run_code(&permit, run).await {
        Ok(running) => follow(running, found).await,
        Err(fault) => not_begun(&fault),
    }
}

async fn follow(mut running: Running, found: Found) -> Report {
    let mut tails = Tails::new(OUTPUT_MAX);
    let (mut written, mut exit_code) = (0, None);
    loop {
        match running.next().await {
            Some(CodeEvent::Output { stream, text }) => {
                written += text.len();
                tails.push(stream, text.as_bytes());
            }
            // The exit code of the last command, if it isn't 0.
            Some(CodeEvent::Error(error)) => exit_code = error.value.parse::<i32>().ok(),
            Some(CodeEvent::Result(_)) => {}
            Some(CodeEvent::Ended { status, .. }) => {
                let (stdout, stderr) = tails.cut();
                let dropped = written.saturating_sub(stdout.len() + stderr.len());
                let is_exited = matches!(status, CodeStatus::Ok | CodeStatus::Error);
                let mut said = json!({
                    "status": if is_exited { "exited" } else { status.as_str() },
                    "stdout": String::from_utf8_lossy(&stdout),
                    "stderr": String::from_utf8_lossy(&stderr),
                    "session": match (status, found) {
                        (CodeStatus::Died, _) => "ended: the next call begins a new one",
                        (_, Found::New) => "new",
                        (_, Found::Kept) => "kept",
                        (_, Found::Replaced) => "new: the one before had ended, with its variables and its directory",
                    },
                });
                if is_exited {
                    said["exit_code"] = json!(if status == CodeStatus::Ok { 0 } else { exit_code.unwrap_or(1) });
                }
                if dropped > 0 {
                    said["bytes_dropped"] = json!(dropped);
                }
                return returned(said.to_string(), status != CodeStatus::Ok);
            }
            Some(CodeEvent::Failed(fault)) => return Report::unknown(fault.to_string()),
            None => return Report::unknown("the command was given up"),
        }
    }
}

/// The context of a session: no other run or branch has it.
fn context_of(branch: &str, name: &str) -> ContextId {
    let mut digest = Sha256::new();
    digest.update(b"saggar shell session\0");
    digest.update(branch);
    digest.update(b"\0");
    digest.update(name);
    let bytes: [u8; 32] = digest.finalize().into();
    let mut bits = [0; 16];
    bits.copy_from_slice(&bytes[..16]);
    ContextId::from_random(bits)
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Whether a name may be one of a session.
pub(super) fn is_name(name: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}
