//! The output of an exec as it comes, whatever happens to the connection.
//!
//! Every event tells the place after it; when the connection is lost, the stream is asked for again from the last place. So each byte
//! comes once and in order, unless the server no longer has it: then there is a gap, and it is told.

use hyper::Method;
use saggar_domain::ExecId;

use super::error::Error;
use super::events::{Events, RESUMES_MAX, parse};
use super::execs::ExecHandle;
use super::retry;
use super::sandboxes::SandboxHandle;
use crate::exec::StartExec;
use crate::route;
use crate::stream::{ExecEvent, Offsets, StreamQuery};

/// The events of one exec, up to its end.
pub struct ExecStream {
    sandbox: SandboxHandle,
    exec: Option<ExecId>,
    query: StreamQuery,
    events: Option<Events>,
    /// The id of the last event: where to go on.
    place: Option<String>,
    offsets: Offsets,
    failures: u32,
    has_ended: bool,
}

impl ExecStream {
    /// Starts an exec and follows it.
    pub(crate) async fn start(sandbox: SandboxHandle, exec: &StartExec) -> Result<Self, Error> {
        let events = Events::open(sandbox.call(Method::POST, route::EXECS).json(exec)).await?;
        Ok(Self::new(sandbox, None, StreamQuery::default(), Some(events)))
    }

    /// Follows one that runs, or has run.
    pub(crate) async fn attach(exec: &ExecHandle, query: StreamQuery) -> Result<Self, Error> {
        let mut stream = Self::new(exec.sandbox().clone(), Some(exec.id().clone()), query, None);
        stream.events = Some(stream.connect(exec.id().clone()).await?);
        Ok(stream)
    }

    fn new(sandbox: SandboxHandle, exec: Option<ExecId>, query: StreamQuery, events: Option<Events>) -> Self {
        Self { sandbox, exec, query, events, place: None, offsets: Offsets::default(), failures: 0, has_ended: false }
    }

    /// The exec, once the stream has told it.
    pub fn exec(&self) -> Option<ExecHandle> {
        self.exec.clone().map(|id| self.sandbox.exec(id))
    }

    /// The next event; `None` after the last one. `Started` comes once, however often the connection is made.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, Error> {
        while !self.has_ended {
            let outcome = match (&mut self.events, self.exec.clone()) {
                (Some(events), _) => events.next().await,
                (None, Some(exec)) => match self.connect(exec).await {
                    Ok(events) => {
                        self.events = Some(events);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                // Nothing was told before it broke off, not even which exec it is.
                (None, None) => Err(Error::Answer("the stream ended before it began".to_owned())),
            };
            let event = match outcome {
                Ok(Some(event)) => event,
                Ok(None) => {
                    self.lost(Error::broken("following an exec", "the server closed the stream")).await?;
                    continue;
                }
                Err(error) => {
                    self.lost(error).await?;
                    continue;
                }
            };
            let told: ExecEvent = parse(&event)?;
            self.failures = 0;
            self.offsets = self.offsets.after(&told);
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

    async fn connect(&self, exec: ExecId) -> Result<Events, Error> {
        let handle = self.sandbox.exec(exec);
        let call = handle.call(Method::GET, route::EXEC_STREAM).query(&self.query);
        let call = match &self.place {
            Some(place) => call.header(route::header::LAST_EVENT_ID, place),
            None => call,
        };
        Events::open(call).await
    }

    async fn lost(&mut self, error: Error) -> Result<(), Error> {
        self.events = None;
        self.failures += 1;
        if self.exec.is_none() || !error.is_lost_connection() || self.failures > RESUMES_MAX {
            return Err(error);
        }
        tokio::time::sleep(retry::delay(self.failures)).await;
        Ok(())
    }
}
