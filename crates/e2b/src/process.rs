//! E2B's process service: programs are started, followed, fed, signalled and listed, by their pid inside the sandbox.
//!
//! A pid is looked up among the execs known to the sandbox's supervisor, each time: so it keeps its meaning across
//! restarts of the server. Pids are reused; the newest exec with it counts, a running one before an ended one.

mod input;
mod message;
mod select;
mod start;

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use message::{SignalRequest, UpdateRequest};
use saggar_domain::{Signal, SignalScope, TerminalSize};
use saggar_http::access::Insider;
use saggar_runtime::Action;
use saggar_supervisor::control::ExecDescription;
use serde_json::{Value, json};

use super::connect;
use super::envd::{answered, no_such_call, streamed};
use super::failure::{CallFailure, Code};
use crate::state::Shared;

pub(crate) use input::Inputs;
pub(crate) use start::environment;

/// How long the processes of a killed program may take to end.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn call(server: Shared, insider: Insider, parts: Parts, body: Body, rpc: &str) -> Response {
    match rpc {
        "Start" => streamed(start::start(server, &insider, &parts, body).await),
        "Connect" => streamed(start::connect(server, &insider, &parts, body).await),
        "StreamInput" => streamed(input::stream(&server, &insider, &parts, body).await),
        "List" => answered(list(&server, &insider, &parts, body).await),
        "Update" => answered(update(&server, &insider, &parts, body).await),
        "SendInput" => answered(input::send(&server, &insider, &parts, body).await),
        "CloseStdin" => answered(input::close(&server, &insider, &parts, body).await),
        "SendSignal" => answered(signal(&server, &insider, &parts, body).await),
        _ => no_such_call().unary(),
    }
}

async fn list(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let _says_nothing: message::Nothing = connect::unary(parts, body).await?;
    let execs = select::execs(server, insider).await?;
    let processes: Vec<Value> = execs.iter().filter(|exec| select::runs(exec)).map(shown).collect();
    Ok(json!({ "processes": processes }))
}

/// A process in a list. Its environment is left out, because it may contain secrets.
fn shown(exec: &ExecDescription) -> Value {
    let mut argv = exec.argv.iter();
    let cmd = argv.next().cloned().unwrap_or_default();
    let mut process = json!({
        "config": { "cmd": cmd, "args": argv.collect::<Vec<_>>(), "envs": {}, "cwd": exec.cwd },
        "pid": exec.pid,
    });
    if let Some(tag) = &exec.tag {
        process["tag"] = json!(tag);
    }
    process
}

async fn update(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let request: UpdateRequest = connect::unary(parts, body).await?;
    let exec = select::running(server, insider, &request.process).await?;
    if let Some(size) = request.pty.and_then(|pty| pty.size) {
        let permit = insider.may(Action::Exec)?;
        server.sandboxes.resize(&permit, &exec.exec_id, size.window()?).await?;
    }
    Ok(json!({}))
}

async fn signal(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let request: SignalRequest = connect::unary(parts, body).await?;
    let is_kill = match request.signal.as_str() {
        "SIGNAL_SIGTERM" => false,
        "SIGNAL_SIGKILL" => true,
        other => {
            let other: String = other.chars().take(64).collect();
            return Err(CallFailure::invalid(format!("invalid signal: {other}")));
        }
    };
    let exec = select::running(server, insider, &request.process).await?;
    let permit = insider.may(Action::Exec)?;
    if is_kill {
        // All its descendants are killed, and gone before the client gets the response.
        let killed = server.sandboxes.kill_exec(&permit, &exec.exec_id);
        tokio::time::timeout(KILL_PATIENCE, killed).await.map_err(|_| unkillable(&request.process))??;
    } else {
        server.sandboxes.signal(&permit, &exec.exec_id, Signal::TERM, SignalScope::Group).await?;
    }
    Ok(json!({}))
}

fn unkillable(selector: &message::Selector) -> CallFailure {
    let message = format!("process with {selector} was sent SIGKILL and has not ended yet; ask again");
    CallFailure::new(Code::DeadlineExceeded, message)
}

/// The error of a stream for a missing process.
fn no_process(selector: &message::Selector) -> CallFailure {
    CallFailure::new(Code::NotFound, format!("process with {selector} not found"))
}

impl message::Size {
    fn window(&self) -> Result<TerminalSize, CallFailure> {
        let number = |value: u32| {
            u16::try_from(value).map_err(|_| CallFailure::invalid("a terminal has at most 65535 rows and columns"))
        };
        Ok(TerminalSize { rows: number(self.rows)?, cols: number(self.cols)? })
    }
}
