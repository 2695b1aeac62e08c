//! The output of an exec as it comes, across lost connections.
//!
//! Every event has the position after it. After a lost connection the stream is requested again from the last
//! position. So each byte comes once and in order, unless the server no longer has it: then there is a gap event.

use hyper::Method;
use saggar_domain::{ExecId, Offsets};

use super::error::Error;
use super::events::{Events, parse};
use super::execs::ExecHandle;
use super::resuming::Resuming;
use super::sandboxes::SandboxHandle;
use crate::exec::StartExec;
use crate::route;
use crate::stream::{ExecEvent, StreamQuery};

/// The events of one exec, up to its end.
pub struct ExecStream {
    sandbox: SandboxHandle,
    exec: Option<ExecId>,
    query: StreamQuery,
    stream: Resuming,
    /// The id of the last event: the position to resume from.
    place: Option<String>,
    offsets: Offsets,
    has_ended: bool,
}

impl ExecStream {
    /// Starts an exec and follows it.
    pub(crate) async fn start(sandbox: SandboxHandle, exec: &StartExec) -> Result<Self, Error> {
        let events = Events::open(sandbox.call(Method::POST, route::EXECS).json(exec)).await?;
        Ok(Self::new(sandbox, None, StreamQuery::default(), events))
    }

    /// Follows a running or ended exec.
    pub(crate) async fn attach(exec: &ExecHandle, query: StreamQuery) -> Result<Self, Error> {
        let events = connect(exec, &query, None).await?;
        Ok(Self::new(exec.sandbox().clone(), Some(exec.id().clone()), query, events))
    }

    fn new(sandbox: SandboxHandle, exec: Option<ExecId>, query: StreamQuery, events: Events) -> Self {
        let stream = Resuming::from(events, "following an exec");
        Self { sandbox, exec, query, stream, place: None, offsets: Offsets::default(), has_ended: false }
    }

    /// The exec, once the stream has named it.
    pub fn exec(&self) -> Option<ExecHandle> {
        self.exec.clone().map(|id| self.sandbox.exec(id))
    }

    /// The next event; `None` after the last one. `Started` comes once, even if the connection is re-established.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, Error> {
        while !self.has_ended {
            // A stream that broke before it named its exec can't be resumed.
            let connect = self.exec.clone().map(|id| {
                let (sandbox, query, place) = (&self.sandbox, &self.query, self.place.as_deref());
                async move || connect(&sandbox.exec(id), query, place).await
            });
            let Some(event) = self.stream.next(connect).await? else { continue };
            let told: ExecEvent = parse(&event)?;
            self.offsets = told.place_after(self.offsets);
            self.place = Some(event.id).filter(|id| !id.is_empty()).or_else(|| Some(self.offsets.to_string()));
            match &told {
                ExecEvent::Started { exec_id, .. } => {
                    let is_first = self.exec.replace(exec_id.clone()).is_none();
                    if !is_first {
                        continue;
                    }
                }
                ExecEvent::Other => continue,
                ExecEvent::Exited { .. } | ExecEvent::Failed { .. } => self.has_ended = true,
                ExecEvent::Stdout { .. } | ExecEvent::Stderr { .. } | ExecEvent::Gap { .. } => {}
            }
            return Ok(Some(told));
        }
        Ok(None)
    }
}

async fn connect(exec: &ExecHandle, query: &StreamQuery, place: Option<&str>) -> Result<Events, Error> {
    let call = exec.call(Method::GET, route::EXEC_STREAM).query(query);
    let call = match place {
        Some(place) => call.header(route::header::LAST_EVENT_ID, place),
        None => call,
    };
    Events::open(call).await
}
