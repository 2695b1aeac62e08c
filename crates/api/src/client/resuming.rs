//! A stream of events that is taken up again when its connection breaks: where to go on is for whoever follows it to say.

use super::error::Error;
use super::events::Events;
use super::retry;
use crate::sse::ServerSentEvent;

/// How often in a row a stream is taken up again without hearing anything.
const RESUMES_MAX: u32 = 10;

/// A stream, whatever connections it takes.
pub(crate) struct Resuming {
    what: &'static str,
    events: Option<Events>,
    failures: u32,
}

impl Resuming {
    /// Goes on from a connection. `what` is being done, for who is told that it can't be.
    pub(crate) fn from(events: Events, what: &'static str) -> Self {
        Self { what, events: Some(events), failures: 0 }
    }

    /// The next event; `None` when the connection is lost, which may mean that all is told: asked again, it is made again by `connect`, after a
    /// while. Without that a loss is an error. May be cancelled at its await.
    pub(crate) async fn next<C>(&mut self, connect: Option<C>) -> Result<Option<ServerSentEvent>, Error>
    where
        C: AsyncFnOnce() -> Result<Events, Error>,
    {
        let is_resumable = connect.is_some();
        let outcome = match (&mut self.events, connect) {
            (Some(events), _) => events.next().await,
            (None, Some(connect)) => {
                tokio::time::sleep(retry::delay(self.failures)).await;
                match connect().await {
                    Ok(events) => self.events.insert(events).next().await,
                    Err(error) => Err(error),
                }
            }
            (None, None) => Ok(None),
        };
        let closed = || Error::broken(self.what, "the server closed the stream");
        let error = match outcome {
            Ok(Some(event)) => {
                self.failures = 0;
                return Ok(Some(event));
            }
            Ok(None) => closed(),
            Err(error) => error,
        };
        self.events = None;
        self.failures += 1;
        if is_resumable && error.is_lost_connection() && self.failures <= RESUMES_MAX { Ok(None) } else { Err(error) }
    }
}
