//! E2B's process service: programs started, followed, fed, signalled and listed, by the number they have inside.
//!
//! A number is looked up among the execs that the sandbox's supervisor remembers, each time: so it means the same after a restart of the
//! server. Numbers are used again; the newest exec that has it is meant, a running one before one that has ended.

mod input;
mod message;
mod select;
mod start;

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use message::{SignalRequest, UpdateRequest};
use saggar_http::access::Insider;
use saggar_runtime::Action;
use saggar_supervisor::control::{ExecState, Scope, WindowSize};
use serde_json::{Value, json};

use super::connect;
use super::envd::{answered, no_such_call, streamed};
use super::failure::{Code, Failure};
use crate::state::Shared;

pub(crate) use input::Inputs;

const SIGTERM: u8 = 15;
/// How long the processes of a killed program may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Answers a call.
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

async fn list(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, Failure> {
    let _says_nothing: message::Nothing = connect::unary(parts, body).await?;
    let execs = select::execs(server, insider).await?;
    let processes: Vec<Value> = execs.iter().filter(|exec| select::runs(exec)).map(shown).collect();
    Ok(json!({ "processes": processes }))
}

/// A process as it is listed. Its environment is not told: it may hold secrets.
fn shown(exec: &ExecState) -> Value {
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

async fn update(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, Failure> {
    let request: UpdateRequest = connect::unary(parts, body).await?;
    let exec = select::running(server, insider, &request.process).await?;
    if let Some(size) = request.pty.and_then(|pty| pty.size) {
        let permit = insider.may(Action::Exec)?;
        server.sandboxes.resize(&permit, &exec.exec_id, size.window()?).await?;
    }
    Ok(json!({}))
}

async fn signal(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, Failure> {
    let request: SignalRequest = connect::unary(parts, body).await?;
    let is_kill = match request.signal.as_str() {
        "SIGNAL_SIGTERM" => false,
        "SIGNAL_SIGKILL" => true,
        other => {
            let other: String = other.chars().take(64).collect();
            return Err(Failure::invalid(format!("invalid signal: {other}")));
        }
    };
    let exec = select::running(server, insider, &request.process).await?;
    let permit = insider.may(Action::Exec)?;
    if is_kill {
        // Nothing that it started is left behind, and whoever hears of it finds nothing of it any more.
        let killed = server.sandboxes.kill_exec(&permit, &exec.exec_id);
        tokio::time::timeout(KILL_PATIENCE, killed).await.map_err(|_| unkillable(&request.process))??;
    } else {
        server.sandboxes.signal(&permit, &exec.exec_id, SIGTERM, Scope::Group).await?;
    }
    Ok(json!({}))
}

fn unkillable(selector: &message::Selector) -> Failure {
    let message = format!("process with {selector} was sent SIGKILL and has not ended yet; ask again");
    Failure::new(Code::DeadlineExceeded, message)
}

/// How a stream says that the process is not there.
fn no_process(selector: &message::Selector) -> Failure {
    Failure::new(Code::NotFound, format!("process with {selector} not found"))
}

impl message::Size {
    fn window(&self) -> Result<WindowSize, Failure> {
        let number = |value: u32| {
            u16::try_from(value).map_err(|_| Failure::invalid("a terminal has at most 65535 rows and columns"))
        };
        Ok(WindowSize { rows: number(self.rows)?, cols: number(self.cols)? })
    }
}
