//! Input for programs, from calls other than the one that follows them.
//!
//! One connection at a time feeds a program, and it isn't the one that follows it. The first call with input
//! connects, and keeps the connection open for a moment, so that the next call can reuse it. Input is not buffered
//! here: a call waits until it is passed on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::request::Parts;
use saggar_domain::{Beginning, ExecId};
use saggar_http::access::Insider;
use saggar_runtime::{Action, Fault, Feeding, Followed, Following};
use saggar_supervisor::control::ExecDescription;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::message::{Input, InputRequest, Selected, Selector, StreamedInput};
use super::{no_process, select};
use crate::connect::{self, Envelopes};
use crate::failure::{CallFailure, Code};
use crate::object::Object;
use crate::state::Shared;

/// How long a call waits for another client that feeds the program.
const TURN_PATIENCE: Duration = Duration::from_secs(10);
/// Polling interval meanwhile.
const TURN_POLL: Duration = Duration::from_millis(20);
/// How long a call waits for the program to read.
const READ_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of calls that wait to feed one program: each has its input in memory.
const WAITING_MAX: usize = 64;
/// How long an unused connection stays open: this many ticks of this length.
const LINGER_TICK: Duration = Duration::from_millis(500);
const LINGER_TICKS: u32 = 4;

/// A connection to a program's input.
#[derive(Debug)]
struct Way {
    /// `None` once it is unusable.
    feeding: tokio::sync::Mutex<Option<Feeding>>,
    /// Notified to close it at once.
    closing: Notify,
}

/// The open input connections: in use, or used a moment ago. At most one per exec.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    open: Mutex<HashMap<ExecId, Arc<Way>>>,
}

impl Inputs {
    fn lock(&self) -> MutexGuard<'_, HashMap<ExecId, Arc<Way>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &ExecId) -> Option<Arc<Way>> {
        self.lock().get(id).cloned()
    }

    /// Closes the unused connection to this program, for a client that wants its own.
    pub(crate) fn yield_way(&self, id: &ExecId) {
        let mut open = self.lock();
        // Besides the list, the lingering task holds it.
        if open.get(id).is_some_and(|way| Arc::strong_count(way) <= 2)
            && let Some(way) = open.remove(id)
        {
            way.closing.notify_one();
        }
    }

    fn forget(&self, id: &ExecId, way: &Arc<Way>) {
        let mut open = self.lock();
        if open.get(id).is_some_and(|open| Arc::ptr_eq(open, way)) {
            open.remove(id);
        }
    }
}

/// The result of using a connection.
enum Passed {
    Through,
    /// The connection was abandoned by a call that was cancelled while using it.
    Closed,
    /// The program no longer reads.
    Refused,
}

impl Way {
    /// Shares this connection with other calls.
    fn open(server: &Shared, id: ExecId, feeding: Feeding, following: Following) -> Arc<Self> {
        let way = Arc::new(Self { feeding: tokio::sync::Mutex::new(Some(feeding)), closing: Notify::new() });
        server.inputs.lock().insert(id.clone(), Arc::clone(&way));
        let (server, lingering) = (server.clone(), Arc::clone(&way));
        tokio::spawn(async move {
            linger(&lingering, following).await;
            server.inputs.forget(&id, &lingering);
        });
        way
    }

    /// Passes bytes on, or the end of input.
    ///
    /// May be cancelled: the connection is taken out while it is used, so that no other call finds half a frame.
    async fn pass(&self, bytes: Option<&[u8]>) -> Passed {
        let mut kept = self.feeding.lock().await;
        let Some(feeding) = kept.take() else { return Passed::Closed };
        let mut using = Using { way: self, feeding: Some(feeding) };
        let Some(feeding) = &mut using.feeding else { return Passed::Closed };
        let passed = match bytes {
            Some(bytes) => feeding.stdin(bytes).await,
            None => feeding.end().await,
        };
        if passed.is_err() {
            return Passed::Refused;
        }
        *kept = using.feeding.take();
        Passed::Through
    }
}

/// A connection in use. If it is dropped in use, it is unusable.
struct Using<'a> {
    way: &'a Way,
    feeding: Option<Feeding>,
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        if self.feeding.is_some() {
            self.way.closing.notify_one();
        }
    }
}

/// Keeps a connection until it was unused for a while. The program's output on it is ignored.
async fn linger(way: &Arc<Way>, mut following: Following) {
    let mut ticks = tokio::time::interval(LINGER_TICK);
    let mut unused = 0;
    while unused < LINGER_TICKS {
        tokio::select! {
            event = following.next() => if event.is_none() { return },
            () = way.closing.notified() => return,
            // Besides this task and the list, a call that uses it holds it.
            _ = ticks.tick() => unused = if Arc::strong_count(way) > 2 { 0 } else { unused + 1 },
        }
    }
}

pub(super) async fn send(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let InputRequest { process, input } = connect::unary(parts, body).await?;
    let exec = select::running(server, insider, &process).await?;
    let bytes = bytes(&input, &exec)?;
    // The program may take its time: until then, only the decoded bytes are kept.
    drop(input);
    pass(server, insider, &exec, &process, Some(&bytes)).await?;
    Ok(json!({}))
}

pub(super) async fn close(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let Selected { process } = connect::unary(parts, body).await?;
    let exec = select::running(server, insider, &process).await?;
    if exec.has_terminal {
        return Err(CallFailure::invalid("a terminal has no input to be closed; send it the character for the end, 4"));
    }
    pass(server, insider, &exec, &process, None).await?;
    Ok(json!({}))
}

/// Many pieces in one call.
pub(super) async fn stream(
    server: &Shared,
    insider: &Insider,
    parts: &Parts,
    body: Body,
) -> Result<Response, CallFailure> {
    let mut envelopes = Envelopes::over(parts, body)?;
    let mut to: Option<(ExecDescription, Selector)> = None;
    while let Some(StreamedInput { start, data }) = envelopes.read().await? {
        if let Some(Object(Selected { process })) = start {
            to = Some((select::running(server, insider, &process).await?, process.0));
        }
        if let Some(data) = data {
            let Some((exec, selector)) = &to else {
                return Err(CallFailure::invalid("the stream must begin by saying which process it is for"));
            };
            pass(server, insider, exec, selector, Some(&bytes(&data.input, exec)?)).await?;
        }
    }
    Ok(connect::single(&json!({})))
}

fn bytes(input: &Input, exec: &ExecDescription) -> Result<Vec<u8>, CallFailure> {
    let text = match (&input.stdin, &input.pty, exec.has_terminal) {
        (Some(text), None, false) | (None, Some(text), true) => text,
        (None, Some(_), false) => return Err(CallFailure::invalid("tty not assigned to process")),
        (Some(_), None, true) => return Err(CallFailure::invalid("the process has a terminal: send input to its pty")),
        (Some(_), Some(_), _) | (None, None, _) => {
            return Err(CallFailure::invalid("send input to either stdin or pty"));
        }
    };
    STANDARD.decode(text).map_err(|_| CallFailure::invalid("the input is not base64"))
}

/// Passes bytes on to a program, or the end of input.
async fn pass(
    server: &Shared,
    insider: &Insider,
    exec: &ExecDescription,
    selector: &Selector,
    bytes: Option<&[u8]>,
) -> Result<(), CallFailure> {
    let passing = async {
        loop {
            match way(server, insider, exec, selector).await?.pass(bytes).await {
                Passed::Through => return Ok(()),
                Passed::Closed => tokio::time::sleep(TURN_POLL).await,
                Passed::Refused => return Err(no_process(selector)),
            }
        }
    };
    tokio::time::timeout(READ_PATIENCE, passing).await.unwrap_or_else(|_| {
        Err(CallFailure::new(Code::DeadlineExceeded, "the process has not read its earlier input; it keeps running"))
    })
}

async fn way(
    server: &Shared,
    insider: &Insider,
    exec: &ExecDescription,
    selector: &Selector,
) -> Result<Arc<Way>, CallFailure> {
    let permit = insider.may(Action::Exec)?;
    let until = Instant::now() + TURN_PATIENCE;
    loop {
        if let Some(way) = server.inputs.get(&exec.exec_id) {
            if Arc::strong_count(&way) > WAITING_MAX {
                return Err(CallFailure::new(Code::ResourceExhausted, "too many calls wait to feed this process"));
            }
            return Ok(way);
        }
        match server.sandboxes.attach(&permit, &exec.exec_id, Beginning::Now, true).await {
            Ok(Followed { feeding, following, .. }) => {
                return Ok(Way::open(server, exec.exec_id.clone(), feeding, following));
            }
            // Another client feeds it.
            Err(Fault::Capacity { .. }) if Instant::now() < until => tokio::time::sleep(TURN_POLL).await,
            Err(Fault::NotFound { what: "exec", .. }) => return Err(no_process(selector)),
            Err(Fault::Refused(problem)) if problem.code == saggar_domain::Code::InvalidStdin => {
                return Err(CallFailure::invalid("stdin not enabled or closed"));
            }
            Err(fault) => return Err(fault.into()),
        }
    }
}
