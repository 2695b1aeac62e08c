//! The tool `shell`: runs a program in the run's sandbox, once per step; or a command in a session, which `session` is about.
//!
//! The exec's id is derived from the step's key. So the next worker of a run asks the sandbox's supervisor, which
//! outlives every worker: a running program is followed, an ended one has its result, and one that was never started
//! is known not to have been. Two workers that start the same step share one program.

mod session;

use std::collections::BTreeMap;
use std::time::Duration;

use saggar_domain::{Beginning, Code, CommandLine, EndReason, ExecId, ExecSpec, ExecStatus, SandboxId};
use saggar_engine::{Class, Report};
use saggar_store::{ExecProgress, Life};
use serde::Deserialize;
use serde_json::{Value, json};

use super::hands::Hands;
use super::report::{failed, not_begun, read, returned};
use super::sandbox::RunSandbox;
use super::tool::{Needs, Performer, Performing, Tool};
use crate::fault::Fault;
use crate::following::{Finished, Followed};
use crate::permit::Action;
use crate::runs::effects::Task;
use crate::sandboxes::ExecView;

/// How long to wait for the last words of an ended sandbox.
const WORDS_MAX: Duration = Duration::from_secs(20);
/// Bytes of each stream that the agent gets: the last ones.
const OUTPUT_MAX: usize = 64 * 1024;

pub(super) const TOOL: Tool = Tool {
    name: "shell",
    description: "Runs a program in the sandbox and returns its exit code, stdout and stderr. \
        Each call is a process of its own: directory and variables don't carry over, files do. With a session, \
        calls of the same session share one bash, which keeps its directory, variables and functions.",
    schema: r#"{
        "type": "object",
        "properties": {
            "command": {
                "description": "A line for /bin/sh -c, or a list: the program and its arguments.",
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
            },
            "cwd": {"type": "string", "description": "The directory to run it in."},
            "env": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Environment variables, added to the sandbox's."
            },
            "session": {
                "type": ["string", "null"], "minLength": 1, "maxLength": 64,
                "description": "The name of a session, of your choice: a bash that is kept for later calls."
            }
        },
        "required": ["command"],
        "additionalProperties": false
    }"#,
    // The supervisor knows whether it was started, and its result.
    class: Class::Probeable,
    class_of: Some(class_of),
    is_parallel: true,
    risk: 50,
    timeout: Duration::from_secs(10 * 60),
    needs: Needs::Sandbox,
    performer: Performer::Executor { call: perform, probe: Some(perform_probe) },
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    command: CommandLine,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    session: Option<String>,
}

/// Nobody can be asked about a command of a session.
fn class_of(arguments: &Value) -> Option<Class> {
    arguments["session"].is_string().then_some(Class::Once)
}

fn perform<'a>(hands: &'a Hands, task: &'a Task, arguments: &'a str) -> Performing<'a> {
    Box::pin(call(&hands.sandbox, task, arguments))
}

fn perform_probe<'a>(hands: &'a Hands, task: &'a Task, _: &'a str) -> Performing<'a> {
    Box::pin(probe(&hands.sandbox, task))
}

/// Runs the program, or follows it if it is running.
async fn call(sandbox: &RunSandbox, task: &Task, arguments: &str) -> Report {
    let arguments: Arguments = match read(TOOL.name, arguments) {
        Ok(arguments) => arguments,
        Err(report) => return report,
    };
    if let Some(name) = arguments.session.clone() {
        return match session::is_name(&name) {
            true => session::call(sandbox, task, &name, arguments).await,
            false => returned("the name of a session is 1 to 64 visible ASCII characters", true),
        };
    }
    let id = match sandbox.ready(task).await {
        Ok(id) => id,
        Err(report) => return report,
    };
    let spec = ExecSpec {
        argv: arguments.command.into_words(),
        env: arguments.env,
        cwd: arguments.cwd,
        timeout: Some(task.timeout.into()),
        ..ExecSpec::default()
    };
    let permit = match sandbox.permit(Action::Exec(id.clone())) {
        Ok(permit) => permit,
        Err(fault) => return not_begun(&fault),
    };
    let exec_id = exec_id(task);
    match sandbox.sandboxes().follow_exec_as(&permit, exec_id.clone(), spec).await {
        Ok(followed) => follow(sandbox, followed, &id).await,
        // Perhaps because the id exists: then it is this program.
        Err(Fault::Refused(problem)) if problem.code == Code::InvalidValue => {
            match sandbox.sandboxes().attach(&permit, &exec_id, Beginning::Start, false).await {
                Ok(followed) => follow(sandbox, followed, &id).await,
                Err(_) => returned(problem.message, true),
            }
        }
        // The sandbox's limit of programs is reached.
        Err(Fault::Capacity { what, .. }) => failed("sandbox_unavailable", what, true),
        Err(fault @ (Fault::Refused(_) | Fault::Paused { .. })) => not_begun(&fault),
        // The request was sent, and it is unknown whether it was carried out.
        Err(fault) => Report::unknown(fault.to_string()),
    }
}

/// Probes whether the program was run.
async fn probe(sandbox: &RunSandbox, task: &Task) -> Report {
    // The sandbox is unknown if the previous holder died before recording it; requesting it again returns the same
    // one.
    let id = match sandbox.id() {
        Some(id) => id,
        None => match sandbox.ready(task).await {
            Ok(id) => id,
            // There is none, and none is created before there is capacity: so nothing was run in it.
            Err(Report::Delayed { .. }) => return Report::NeverDone,
            Err(_) => {
                return Report::unknown("the sandbox is unavailable, so it can't be probed");
            }
        },
    };
    let exec_id = exec_id(task);
    let attached = match sandbox.permit(Action::Exec(id.clone())) {
        Ok(permit) => sandbox.sandboxes().attach(&permit, &exec_id, Beginning::Start, false).await,
        Err(fault) => Err(fault),
    };
    match attached {
        Ok(followed) => follow(sandbox, followed, &id).await,
        Err(Fault::NotFound { what: "exec", .. }) => Report::NeverDone,
        Err(Fault::Ended { .. }) => last_words(sandbox, &id, &exec_id).await,
        Err(fault) => Report::unknown(format!("the sandbox can't be probed: {fault}")),
    }
}

/// What an ended sandbox has left about an exec.
async fn last_words(sandbox: &RunSandbox, id: &SandboxId, exec_id: &ExecId) -> Report {
    let lost = || Report::unknown(format!("sandbox {id} ended meanwhile and left no record of it"));
    let Ok(permit) = sandbox.permit(Action::ReadSandbox(id.clone())) else { return lost() };
    let sandboxes = sandbox.sandboxes();
    // Its supervisor ends before its last words are stored. If they don't arrive in time, there are none.
    let _ = tokio::time::timeout(WORDS_MAX, sandboxes.ended(&permit)).await;
    match sandboxes.exec(&permit, exec_id).await {
        Ok(ExecView::Stored(stored)) => match stored.exec.progress {
            ExecProgress::Ended(end) => {
                let (stdout, stderr) = (stored.output.stdout.bytes(), stored.output.stderr.bytes());
                let dropped = stored.output.stdout.dropped().saturating_add(stored.output.stderr.dropped());
                let ended = ending_of(sandbox, id).await;
                result(end.status, end.exit_code, end.signal, (stdout, stderr, dropped), ended)
            }
            ExecProgress::Running | ExecProgress::Lost { .. } => lost(),
        },
        // Last words name every program that was started.
        Err(Fault::NotFound { what: "exec", .. }) => match sandboxes.get(&permit).await.map(|row| row.life) {
            Ok(Life::Ended { ending, .. }) if has_last_words(ending.reason) => Report::NeverDone,
            Ok(_) | Err(_) => lost(),
        },
        Ok(ExecView::Live(_)) | Err(_) => lost(),
    }
}

/// Whether a sandbox that ended for this reason has reported on its programs.
fn has_last_words(reason: EndReason) -> bool {
    match reason {
        EndReason::Killed
        | EndReason::TimedOut
        | EndReason::Idle
        | EndReason::OutOfMemory
        | EndReason::AgentLost
        | EndReason::StartFailed
        | EndReason::Unclaimed => true,
        EndReason::SupervisorLost | EndReason::HostRebooted | EndReason::Unknown => false,
    }
}

async fn follow(sandbox: &RunSandbox, followed: Followed, id: &SandboxId) -> Report {
    match followed.finish(OUTPUT_MAX).await {
        Ok(Finished { exec, stdout, stderr }) => {
            let status = exec.status.unwrap_or(ExecStatus::Exited);
            let dropped = exec.stdout_dropped.saturating_add(exec.stderr_dropped);
            let ended = match status {
                ExecStatus::Signaled | ExecStatus::Cancelled | ExecStatus::OutOfMemory => ending_of(sandbox, id).await,
                ExecStatus::Exited | ExecStatus::TimedOut | ExecStatus::Refused | ExecStatus::SetupFailed => None,
            };
            result(status, exec.exit_code, exec.signal, (&stdout, &stderr, dropped), ended)
        }
        Err(Fault::Ended { .. }) => {
            let why = ending_of(sandbox, id).await.map_or_else(String::new, |reason| format!(" ({})", reason.as_str()));
            Report::unknown(format!("sandbox {id} ended meanwhile{why}"))
        }
        Err(fault) => Report::unknown(fault.to_string()),
    }
}

/// Why the sandbox is ending or has ended; `None` if it is live.
async fn ending_of(sandbox: &RunSandbox, id: &SandboxId) -> Option<EndReason> {
    let permit = sandbox.permit(Action::ReadSandbox(id.clone())).ok()?;
    let sandboxes = sandbox.sandboxes();
    if sandboxes.is_going_on(&permit).await {
        return None;
    }
    // If the reason isn't recorded in time, it stays unknown.
    let _ = tokio::time::timeout(WORDS_MAX, sandboxes.ended(&permit)).await;
    match sandboxes.get(&permit).await.ok()?.life {
        Life::Ended { ending, .. } => Some(ending.reason),
        Life::Creating | Life::Running { .. } | Life::Paused { .. } => Some(EndReason::Unknown),
    }
}

fn result(
    status: ExecStatus,
    exit_code: Option<u8>,
    signal: Option<u8>,
    (stdout, stderr, dropped): (&[u8], &[u8], u64),
    ended: Option<EndReason>,
) -> Report {
    let is_error = !(status == ExecStatus::Exited && exit_code == Some(0));
    let mut said = json!({
        "status": status.as_str(),
        "stdout": String::from_utf8_lossy(stdout),
        "stderr": String::from_utf8_lossy(stderr),
    });
    if let Some(exit_code) = exit_code {
        said["exit_code"] = json!(exit_code);
    }
    if let Some(signal) = signal {
        said["signal"] = json!(signal);
    }
    if dropped > 0 {
        said["bytes_dropped"] = json!(dropped);
    }
    if let Some(reason) = ended {
        said["sandbox_ended"] = json!(reason.as_str());
    }
    returned(said.to_string(), is_error)
}

fn exec_id(task: &Task) -> ExecId {
    ExecId::from_random(task.key.bits())
}
