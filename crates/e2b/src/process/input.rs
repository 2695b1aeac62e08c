//! Input for programs, from calls that are not the one that follows them.
//!
//! One connection at a time feeds a program, and it isn't the one that follows it. The first call that brings input connects, and leaves the
//! way open for a moment, so that the next goes the same way. Nothing is kept here of what was sent: a call waits until it is passed on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::request::Parts;
use saggar_domain::ExecId;
use saggar_http::access::Insider;
use saggar_runtime::{Action, Fault, Feeding, Followed, Following, Message};
use saggar_supervisor::control::{ExecState, From, Op, Reply};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::message::{Input, InputRequest, Selected, Selector, StreamedInput};
use super::{no_process, select};
use crate::connect::{self, Envelopes};
use crate::failure::{Code, Failure};
use crate::object::Object;
use crate::state::Shared;

/// How long a call waits until nobody else feeds the program.
const TURN_PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks.
const TURN_POLL: Duration = Duration::from_millis(20);
/// How long a call waits for the program to read.
const READ_PATIENCE: Duration = Duration::from_secs(60);
/// Most calls that wait at once to feed one program: each has its input in memory.
const WAITING_MAX: usize = 64;
/// How long a way that nobody uses stays open: so many times so long.
const LINGER_TICK: Duration = Duration::from_millis(500);
const LINGER_TICKS: u32 = 4;

/// The way to a program's input.
#[derive(Debug)]
struct Way {
    /// `None` once it can't be used any more.
    feeding: tokio::sync::Mutex<Option<Feeding>>,
    /// Told when it is to be closed at once.
    closing: Notify,
}

/// The ways that are open because somebody feeds, or did a moment ago. One for an exec at most.
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

    /// Closes the way to this program that nobody uses just now, for who wants one of their own.
    pub(crate) fn yield_way(&self, id: &ExecId) {
        let mut open = self.lock();
        // Beside the list, the task that lingers has it.
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

/// What became of something that was to go a way.
enum Passed {
    Through,
    /// The way was given up by somebody who went away while using it.
    Closed,
    /// The program reads no more.
    Refused,
}

impl Way {
    /// Lets others feed the program over this connection too.
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

    /// Passes bytes on, or that there are no more.
    ///
    /// May be cancelled: the connection is taken out while it is used, so that half a frame is left to nobody.
    async fn pass(&self, bytes: Option<&[u8]>) -> Passed {
        let mut kept = self.feeding.lock().await;
        let Some(feeding) = kept.take() else { return Passed::Closed };
        let mut using = Using { way: self, feeding: Some(feeding) };
        let Some(feeding) = &mut using.feeding else { return Passed::Closed };
        let passed = match bytes {
            Some(bytes) => feeding.stdin(bytes).await,
            None => feeding.say(Op::StdinEnd { exec_id: None }).await,
        };
        if passed.is_err() {
            return Passed::Refused;
        }
        *kept = using.feeding.take();
        Passed::Through
    }
}

/// A connection that is being used. If it is dropped as it is, its way is of no use any more.
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

/// Keeps a connection until it wasn't used for a while. What the program prints meanwhile is for nobody here.
async fn linger(way: &Arc<Way>, mut following: Following) {
    let mut ticks = tokio::time::interval(LINGER_TICK);
    let mut unused = 0;
    while unused < LINGER_TICKS {
        tokio::select! {
            message = following.next() => match message {
                Ok(Some(Message::Reply(Reply::Exited(_) | Reply::Error(_))) | None) | Err(_) => return,
                Ok(Some(_)) => {}
            },
            () = way.closing.notified() => return,
            // Beside this task and the list, somebody who uses it has it.
            _ = ticks.tick() => unused = if Arc::strong_count(way) > 2 { 0 } else { unused + 1 },
        }
    }
}

pub(super) async fn send(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, Failure> {
    let InputRequest { process, input } = connect::unary(parts, body).await?;
    let exec = select::running(server, insider, &process).await?;
    let bytes = bytes(&input, &exec)?;
    // The program may take its time: until then, this is all that is kept.
    drop(input);
    pass(server, insider, &exec, &process, Some(&bytes)).await?;
    Ok(json!({}))
}

pub(super) async fn close(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, Failure> {
    let Selected { process } = connect::unary(parts, body).await?;
    let exec = select::running(server, insider, &process).await?;
    if exec.has_terminal {
        return Err(Failure::invalid("a terminal has no input to be closed; send it the character for the end, 4"));
    }
    pass(server, insider, &exec, &process, None).await?;
    Ok(json!({}))
}

/// Many pieces by one call.
pub(super) async fn stream(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Response, Failure> {
    let mut envelopes = Envelopes::over(parts, body)?;
    let mut to: Option<(ExecState, Selector)> = None;
    while let Some(StreamedInput { start, data }) = envelopes.read().await? {
        if let Some(Object(Selected { process })) = start {
            to = Some((select::running(server, insider, &process).await?, process.0));
        }
        if let Some(data) = data {
            let Some((exec, selector)) = &to else {
                return Err(Failure::invalid("the stream must begin by saying which process it is for"));
            };
            pass(server, insider, exec, selector, Some(&bytes(&data.input, exec)?)).await?;
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

/// Passes bytes on to a program, or that there are no more.
async fn pass(
    server: &Shared,
    insider: &Insider,
    exec: &ExecState,
    selector: &Selector,
    bytes: Option<&[u8]>,
) -> Result<(), Failure> {
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
        Err(Failure::new(Code::DeadlineExceeded, "the process has not read what it was sent before; it goes on"))
    })
}

async fn way(server: &Shared, insider: &Insider, exec: &ExecState, selector: &Selector) -> Result<Arc<Way>, Failure> {
    let permit = insider.may(Action::Exec)?;
    let until = Instant::now() + TURN_PATIENCE;
    loop {
        if let Some(way) = server.inputs.get(&exec.exec_id) {
            if Arc::strong_count(&way) > WAITING_MAX {
                return Err(Failure::new(Code::ResourceExhausted, "too many calls wait to feed this process"));
            }
            return Ok(way);
        }
        match server.sandboxes.attach(&permit, &exec.exec_id, From::Now, true).await {
            Ok(Followed { feeding, following, .. }) => {
                return Ok(Way::open(server, exec.exec_id.clone(), feeding, following));
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
