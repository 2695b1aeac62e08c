//! Starting a program and following it, or following one that runs already. Whoever follows may go away: the program goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::request::Parts;
use saggar_domain::{ExecStatus, SandboxId};
use saggar_http::access::Insider;
use saggar_runtime::{Action, Fault, Feeding, Followed, Following, Message, NewExec};
use saggar_supervisor::control::{ExecState, From, Reply};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::message::{Selected, StartRequest};
use super::{no_process, select};
use crate::connect::{self, Source};
use crate::failure::{Code, Failure};
use crate::id;
use crate::state::Shared;

/// Starts a program.
pub(super) async fn start(server: Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Response, Failure> {
    let request: StartRequest = connect::asked(parts, body).await?;
    let user = connect::user(&parts.headers)?;
    let timeout = connect::timeout(&parts.headers)?;
    let process = request.process.0;
    if process.cmd.is_empty() {
        return Err(Failure::invalid("the request names no command"));
    }
    let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    if !process.envs.iter().all(|(name, value)| is_name(name) && !value.contains('\0')) {
        return Err(Failure::invalid("a variable of the environment has a name or a value that can't be one"));
    }
    let permit = insider.may(Action::Exec)?;
    let tty = request.pty.map(|pty| pty.size.unwrap_or_default().window()).transpose()?;
    let has_stdin = tty.is_some() || request.stdin.unwrap_or(true);
    let cwd = match process.cwd.filter(|cwd| !cwd.is_empty()) {
        None => None,
        Some(cwd) => {
            let user = user.unwrap_or_else(|| server.sandboxes.default_user(&permit));
            Some(crate::filesystem::place(&cwd, user)?.to_string())
        }
    };
    let new = NewExec {
        argv: std::iter::once(process.cmd).chain(process.args).collect(),
        env: environment(insider.id(), process.envs),
        cwd: cwd.clone(),
        user,
        stdin: has_stdin,
        tty,
        timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        limits: None,
        output_bytes: None,
        tag: request.tag,
    };
    let followed = match server.sandboxes.follow_exec(&permit, new).await {
        Ok(followed) => followed,
        Err(Fault::Refused(problem)) if problem.code == saggar_domain::Code::InvalidCwd => {
            return Err(Failure::invalid(format!("cwd '{}' does not exist", cwd.unwrap_or_default())));
        }
        Err(fault) => return Err(fault.into()),
    };
    let Followed { state, following, feeding } = followed;
    let events = Events { following, _feeding: feeding, facts: Facts::of(insider, &state, timeout) };
    Ok(connect::answer(server, &parts.headers, events))
}

/// What E2B's sandboxes tell their programs, below what this one is told.
fn environment(sandbox: &SandboxId, asked: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = [("E2B_SANDBOX", "true"), ("E2B_SANDBOX_ID", id::short(sandbox)), ("E2B_TEMPLATE_ID", "base")];
    let mut env: BTreeMap<String, String> = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    env.extend(asked);
    env
}

/// Follows a program from now on.
pub(super) async fn connect(server: Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Response, Failure> {
    let Selected { process } = connect::asked(parts, body).await?;
    let timeout = connect::timeout(&parts.headers)?;
    let exec = select::any(&server, insider, &process).await?;
    let permit = insider.may(Action::Exec)?;
    let followed = server.sandboxes.attach(&permit, &exec.exec_id, From::Now, false).await;
    let Followed { state, following, feeding } = match followed {
        Err(Fault::NotFound { what: "exec", .. }) => return Err(no_process(&process)),
        other => other?,
    };
    let events = Events { following, _feeding: feeding, facts: Facts::of(insider, &state, timeout) };
    Ok(connect::answer(server, &parts.headers, events))
}

/// What a program does, as it does it.
struct Events {
    following: Following,
    // Half of the connection: dropped, the other half would end.
    _feeding: Feeding,
    facts: Facts,
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
    fn of(insider: &Insider, state: &ExecState, timeout: Option<Duration>) -> Self {
        Self {
            id: id::short(insider.id()).to_owned(),
            has_terminal: state.has_terminal,
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            started: Some(json!({ "event": { "start": { "pid": state.pid } } })),
            is_over: false,
        }
    }

    /// The last word, and nothing after it.
    fn last(&mut self, failure: &Failure) -> Option<Bytes> {
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
        loop {
            let message = match self.facts.deadline {
                None => self.following.next().await,
                Some(deadline) => match tokio::time::timeout_at(deadline, self.following.next()).await {
                    Ok(message) => message,
                    Err(_) => return self.facts.last(&too_long()),
                },
            };
            match message {
                Ok(Some(Message::Output { stream, bytes, .. })) => {
                    let name = match (self.facts.has_terminal, stream) {
                        (true, _) => "pty",
                        (false, 2) => "stderr",
                        (false, _) => "stdout",
                    };
                    return Some(connect::envelope(&json!({ "event": { "data": { name: STANDARD.encode(bytes) } } })));
                }
                Ok(Some(Message::Reply(Reply::Gap { bytes, .. }))) => {
                    let message =
                        format!("{bytes} bytes of output were not read in time, and are lost; the process goes on");
                    return self.facts.last(&Failure::new(Code::DataLoss, message));
                }
                Ok(Some(Message::Reply(Reply::Exited(state)))) => {
                    self.facts.is_over = true;
                    return Some(match ended(&state, &self.facts.id) {
                        Ok(event) => [connect::envelope(&event), connect::end(None)].concat().into(),
                        Err(failure) => failure.end(),
                    });
                }
                Ok(Some(Message::Reply(Reply::Error(problem)))) => {
                    return self.facts.last(&Failure::from(Fault::Refused(problem)));
                }
                Ok(Some(Message::Reply(_))) => {}
                Ok(None) | Err(_) => return self.facts.last(&broken_off(&self.facts.id)),
            }
        }
    }
}

fn too_long() -> Failure {
    Failure::new(Code::DeadlineExceeded, "the process took longer than its timeout")
}

/// Clients that hear this ask whether the sandbox still runs, and say what became of it by the answer.
fn broken_off(sandbox: &str) -> Failure {
    let message = format!("the connection to sandbox {sandbox} ended before the stream completed");
    Failure::new(Code::Unavailable, message)
}

/// How a program ended, as Go would say it. One that went with its sandbox has no end of its own.
fn ended(state: &ExecState, sandbox: &str) -> Result<Value, Failure> {
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
