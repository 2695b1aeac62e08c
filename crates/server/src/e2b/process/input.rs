//! Input for programs, from calls that are not the one that follows them.
//!
//! One connection at a time feeds a program, and it isn't the one that follows it. The first call that brings input connects, and leaves the
//! way open for a moment, so that the next goes the same way and what is still under way is not lost with its connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::request::Parts;
use saggar_domain::ExecId;
use saggar_runtime::control::{ExecState, From, Op, Reply};
use saggar_runtime::{Action, Fault, Feeding, Followed, Following, Message};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::message::{Input, InputRequest, Selected, Selector, StreamedInput};
use super::{no_process, select};
use crate::e2b::connect::{self, Envelopes};
use crate::e2b::failure::Failure;
use crate::permitted::Insider;
use crate::server::Shared;

/// How long a call waits until nobody else feeds the program.
const TURN_PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks.
const TURN_POLL: Duration = Duration::from_millis(20);
/// How long a way that nobody uses stays open: so many times so long.
const LINGER_TICK: Duration = Duration::from_secs(1);
const LINGER_TICKS: u32 = 10;

/// The way to a program's input.
type Feeder = Arc<tokio::sync::Mutex<Feeding>>;

/// The ways that are open because somebody feeds, or did a moment ago. One for an exec at most.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    open: Mutex<HashMap<ExecId, Feeder>>,
}

impl Inputs {
    fn get(&self, id: &ExecId) -> Option<Feeder> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}

/// Keeps a way open, and its connection, until dropped.
struct Lease {
    server: Shared,
    id: ExecId,
    feeder: Feeder,
}

impl Lease {
    /// Lets others feed the program over this connection.
    fn open(server: &Shared, id: ExecId, feeding: Feeding) -> Self {
        let feeder = Arc::new(tokio::sync::Mutex::new(feeding));
        let open = &server.inputs.open;
        open.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), Arc::clone(&feeder));
        Self { server: server.clone(), id, feeder }
    }

    /// Stays open until it wasn't used for a while. What the program prints meanwhile is for nobody here.
    fn linger(self, mut following: Following) {
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(LINGER_TICK);
            let mut unused = 0;
            while unused < LINGER_TICKS {
                tokio::select! {
                    message = following.next() => match message {
                        Ok(Some(Message::Reply(Reply::Exited(_) | Reply::Error(_))) | None) | Err(_) => return,
                        Ok(Some(_)) => {}
                    },
                    // Beside this one and the list, somebody who uses it has it.
                    _ = ticks.tick() => unused = if Arc::strong_count(&self.feeder) > 2 { 0 } else { unused + 1 },
                }
            }
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.server.inputs.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

pub(super) async fn send(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, Failure> {
    let request: InputRequest = connect::unary(parts, body).await?;
    let exec = select::running(server, insider, &request.process).await?;
    let bytes = bytes(&request.input, &exec)?;
    let feeder = feeder(server, insider, &exec, &request.process).await?;
    feed(feeder, bytes).await.map_err(|()| no_process(&request.process))?;
    Ok(json!({}))
}

pub(super) async fn close(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, Failure> {
    let Selected { process } = connect::unary(parts, body).await?;
    let exec = select::running(server, insider, &process).await?;
    if exec.has_terminal {
        return Err(Failure::invalid("a terminal has no input to be closed; send it the character for the end, 4"));
    }
    let feeder = feeder(server, insider, &exec, &process).await?;
    let told = feeder.lock().await.say(Op::StdinEnd { exec_id: None }).await;
    told.map_err(|_| no_process(&process))?;
    Ok(json!({}))
}

/// Many pieces by one call.
pub(super) async fn stream(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Response, Failure> {
    let mut envelopes = Envelopes::over(parts, body)?;
    let mut to: Option<(Feeder, ExecState, Selector)> = None;
    while let Some(StreamedInput { start, data }) = envelopes.read().await? {
        if let Some(Selected { process }) = start {
            let exec = select::running(server, insider, &process).await?;
            let feeder = feeder(server, insider, &exec, &process).await?;
            to = Some((feeder, exec, process));
        }
        if let Some(data) = data {
            let Some((feeder, exec, selector)) = &to else {
                return Err(Failure::invalid("the stream must begin by saying which process it is for"));
            };
            feed(Arc::clone(feeder), bytes(&data.input, exec)?).await.map_err(|()| no_process(selector))?;
        }
    }
    Ok(connect::single(&json!({})))
}

fn bytes(input: &Input, exec: &ExecState) -> Result<Vec<u8>, Failure> {
    let text = match (&input.stdin, &input.pty, exec.has_terminal) {
        (Some(text), None, false) | (None, Some(text), true) => text,
        (None, Some(_), false) => return Err(Failure::invalid("tty not assigned to process")),
        (Some(_), None, true) => return Err(Failure::invalid("the process has a terminal: send input to its pty")),
        (Some(_), Some(_), _) | (None, None, _) => return Err(Failure::invalid("send input to either stdin or pty")),
    };
    STANDARD.decode(text).map_err(|_| Failure::invalid("the input is not base64"))
}

async fn feeder(server: &Shared, insider: &Insider, exec: &ExecState, selector: &Selector) -> Result<Feeder, Failure> {
    let permit = insider.may(Action::Exec)?;
    let until = Instant::now() + TURN_PATIENCE;
    loop {
        if let Some(feeder) = server.inputs.get(&exec.exec_id) {
            return Ok(feeder);
        }
        match server.sandboxes.attach(&permit, &exec.exec_id, From::Now, true).await {
            Ok(Followed { feeding, following, .. }) => {
                let lease = Lease::open(server, exec.exec_id.clone(), feeding);
                let feeder = Arc::clone(&lease.feeder);
                lease.linger(following);
                return Ok(feeder);
            }
            // Somebody else is at it.
            Err(Fault::Capacity { .. }) if Instant::now() < until => tokio::time::sleep(TURN_POLL).await,
            Err(Fault::NotFound { what: "exec", .. }) => return Err(no_process(selector)),
            Err(Fault::Refused(problem)) if problem.code == saggar_domain::Code::InvalidStdin => {
                return Err(Failure::invalid("stdin not enabled or closed"));
            }
            Err(fault) => return Err(fault.into()),
        }
    }
}

/// Passes bytes on, to the end: a client that goes away meanwhile must not leave half a frame to whoever comes next.
async fn feed(feeder: Feeder, bytes: Vec<u8>) -> Result<(), ()> {
    let passing = tokio::spawn(async move { feeder.lock().await.stdin(&bytes).await });
    match passing.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(()),
    }
}
