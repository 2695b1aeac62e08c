//! A stream of events that is resumed after a lost connection. The caller provides the position.

use super::error::Error;
use super::events::Events;
use super::retry;
use crate::sse::ServerSentEvent;

/// Maximum number of reconnections in a row without an event.
const RESUMES_MAX: u32 = 10;

/// A stream across connections.
pub(crate) struct Resuming {
    what: &'static str,
    events: Option<Events>,
    failures: u32,
}

impl Resuming {
    /// Starts with a connection. `what` is the activity, for error messages.
    pub(crate) fn from(events: Events, what: &'static str) -> Self {
        Self { what, events: Some(events), failures: 0 }
    }

    /// The next event; `None` if the connection was lost, possibly because the stream is complete. The next call
    /// reconnects with `connect`, after a delay. Without `connect` a loss is an error. May be cancelled at its await.
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
