//! Starts a program and follows it, or follows a running one. The program keeps running if the client disconnects.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::request::Parts;
use saggar_domain::{Beginning, ExecSpec, ExecStatus, OutputStream, SandboxId, Timeout};
use saggar_http::access::Insider;
use saggar_runtime::{Action, ExecEvent, Fault, Followed, Following};
use saggar_supervisor::control::ExecDescription;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::message::{Selected, StartRequest};
use super::{no_process, select};
use crate::connect::{self, Actor, Source};
use crate::failure::{CallFailure, Code};
use crate::id;
use crate::state::Shared;

pub(super) async fn start(
    server: Shared,
    insider: &Insider,
    parts: &Parts,
    body: Body,
) -> Result<Response, CallFailure> {
    let request: StartRequest = connect::asked(parts, body).await?;
    let name = connect::user_name(&parts.headers)?;
    let timeout = connect::timeout(&parts.headers)?;
    let process = request.process.0;
    if process.cmd.is_empty() {
        return Err(CallFailure::invalid("the request has no command"));
    }
    let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    if !process.envs.iter().all(|(name, value)| is_name(name) && !value.contains('\0')) {
        return Err(CallFailure::invalid("an environment variable has an invalid name or value"));
    }
    let permit = insider.may(Action::Exec)?;
    let actor = Actor::of(&server, &permit, name.as_deref())?;
    let tty = request.pty.map(|pty| pty.size.unwrap_or_default().window()).transpose()?;
    let has_stdin = tty.is_some() || request.stdin.unwrap_or(true);
    let cwd = match process.cwd.filter(|cwd| !cwd.is_empty()) {
        None => None,
        Some(cwd) => Some(crate::filesystem::place(&cwd, &actor.home)?.to_string()),
    };
    let spec = ExecSpec {
        argv: std::iter::once(process.cmd).chain(process.args).collect(),
        env: environment(insider.id(), server.sandboxes.template_of(&permit).name(), process.envs),
        cwd: cwd.clone(),
        user: name.map(|_| actor.user),
        stdin: has_stdin,
        tty,
        timeout: timeout.map(Timeout::from),
        limits: None,
        output_bytes: None,
        tag: request.tag,
    };
    let followed = match server.sandboxes.follow_exec(&permit, spec).await {
        Ok(followed) => followed,
        Err(Fault::Refused(problem)) if problem.code == saggar_domain::Code::InvalidCwd => {
            return Err(CallFailure::invalid(format!("cwd '{}' does not exist", cwd.unwrap_or_default())));
        }
        Err(fault) => return Err(fault.into()),
    };
    Ok(connect::answer(server, &parts.headers, Events::of(insider, followed, timeout)))
}

/// The variables that E2B's sandboxes give to their programs; the request's own take precedence.
pub(crate) fn environment(
    sandbox: &SandboxId,
    template: &str,
    asked: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let own = [("E2B_SANDBOX", "true"), ("E2B_SANDBOX_ID", id::short(sandbox)), ("E2B_TEMPLATE_ID", template)];
    let mut env: BTreeMap<String, String> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    env.extend(asked);
    env
}

/// Follows a program from now on.
pub(super) async fn connect(
    server: Shared,
    insider: &Insider,
    parts: &Parts,
    body: Body,
) -> Result<Response, CallFailure> {
    let Selected { process } = connect::asked(parts, body).await?;
    let timeout = connect::timeout(&parts.headers)?;
    let exec = select::any(&server, insider, &process).await?;
    let permit = insider.may(Action::Exec)?;
    let followed = match server.sandboxes.attach(&permit, &exec.exec_id, Beginning::Now, false).await {
        Err(Fault::NotFound { what: "exec", .. }) => return Err(no_process(&process)),
        other => other?,
    };
    Ok(connect::answer(server, &parts.headers, Events::of(insider, followed, timeout)))
}

/// The events of a program.
struct Events {
    following: Following,
    facts: Facts,
}

impl Events {
    fn of(insider: &Insider, followed: Followed, timeout: Option<Duration>) -> Self {
        let facts = Facts::of(insider, &followed.exec, timeout);
        Self { following: followed.into_following(), facts }
    }
}

struct Facts {
    id: String,
    has_terminal: bool,
    deadline: Option<Instant>,
    /// The first message, until it is sent.
    started: Option<Value>,
    is_over: bool,
}

impl Facts {
    fn of(insider: &Insider, state: &ExecDescription, timeout: Option<Duration>) -> Self {
        Self {
            id: id::short(insider.id()).to_owned(),
            has_terminal: state.has_terminal,
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            started: Some(json!({ "event": { "start": { "pid": state.pid } } })),
            is_over: false,
        }
    }

    /// The last message.
    fn last(&mut self, failure: &CallFailure) -> Option<Bytes> {
        self.is_over = true;
        Some(failure.end())
    }
}

impl Source for Events {
    const KEEP_ALIVE: &'static str = r#"{"event":{"keepalive":{}}}"#;

    async fn next(&mut self) -> Option<Bytes> {
        if self.facts.is_over {
            return None;
        }
        if let Some(started) = self.facts.started.take() {
            return Some(connect::envelope(&started));
        }
        let event = match self.facts.deadline {
            None => self.following.next().await?,
            Some(deadline) => match tokio::time::timeout_at(deadline, self.following.next()).await {
                Ok(event) => event?,
                Err(_) => return self.facts.last(&too_long()),
            },
        };
        match event {
            ExecEvent::Output { stream, bytes } => {
                let name = match (self.facts.has_terminal, stream) {
                    (true, _) => "pty",
                    (false, OutputStream::Stderr) => "stderr",
                    (false, OutputStream::Stdout) => "stdout",
                };
                Some(connect::envelope(&json!({ "event": { "data": { name: STANDARD.encode(bytes) } } })))
            }
            ExecEvent::Gap { bytes, .. } => {
                let message = format!(
                    "{bytes} bytes of output were not read in time and were dropped; the process keeps running"
                );
                self.facts.last(&CallFailure::new(Code::DataLoss, message))
            }
            ExecEvent::Exited(exec) => {
                self.facts.is_over = true;
                Some(match ended(&exec, &self.facts.id) {
                    Ok(event) => [connect::envelope(&event), connect::end(None)].concat().into(),
                    Err(failure) => failure.end(),
                })
            }
            ExecEvent::Failed(Fault::Refused(problem)) => self.facts.last(&CallFailure::from(Fault::Refused(problem))),
            ExecEvent::Failed(_) => self.facts.last(&broken_off(&self.facts.id)),
        }
    }
}

fn too_long() -> CallFailure {
    CallFailure::new(Code::DeadlineExceeded, "the process took longer than its timeout")
}

/// On this error clients check whether the sandbox still runs, and report that.
fn broken_off(sandbox: &str) -> CallFailure {
    let message = format!("the connection to sandbox {sandbox} ended before the stream completed");
    CallFailure::new(Code::Unavailable, message)
}

/// How a program ended, in the words of Go. One that ended with its sandbox has no end of its own.
fn ended(state: &ExecDescription, sandbox: &str) -> Result<Value, CallFailure> {
    let message =
        |message: &str| state.error.as_ref().map_or_else(|| message.to_owned(), |problem| problem.message.clone());
    let (exit_code, is_exit, status, error) = match (state.status, state.exit_code, state.signal) {
        (Some(ExecStatus::TimedOut), ..) => return Err(too_long()),
        (_, None, None) => return Err(broken_off(sandbox)),
        (_, Some(code), _) => (i32::from(code), true, format!("exit status {code}"), None),
        (status, None, Some(signal)) => {
            let text = format!("signal: {}", name(signal));
            let error = if status == Some(ExecStatus::OutOfMemory) { message("out of memory") } else { text.clone() };
            (-1, false, text, Some(error))
        }
    };
    let mut end = json!({ "exitCode": exit_code, "exited": is_exit, "status": status });
    if let Some(error) = error {
        end["error"] = json!(error);
    }
    Ok(json!({ "event": { "end": end } }))
}

fn name(signal: u8) -> &'static str {
    match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        6 => "aborted",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        15 => "terminated",
        _ => "other",
    }
}
