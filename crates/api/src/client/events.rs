//! Streams of server-sent events: a sandbox's, and those of watched files.

use std::collections::VecDeque;
use std::time::Duration;

use hyper::Method;
use serde::de::DeserializeOwned;

use super::body::Download;
use super::error::Error;
use super::retry;
use super::sandboxes::SandboxHandle;
use super::send::Call;
use crate::event::{EventsQuery, SandboxEvent, SandboxEventBody};
use crate::file::{FileEvent, WatchQuery};
use crate::route;
use crate::sse::{SSE_MEDIA_TYPE, ServerSentEvent, SseDecoder};

/// Silence after which a connection is taken for dead. Servers send something, a comment at least, far more often.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// How often in a row a stream is taken up again without hearing anything.
pub(crate) const RESUMES_MAX: u32 = 10;

/// One connection's worth of events.
pub(crate) struct Events {
    body: Download,
    decoder: SseDecoder,
    waiting: VecDeque<ServerSentEvent>,
}

impl Events {
    pub(crate) async fn open(call: Call) -> Result<Self, Error> {
        let answer = call.accept(SSE_MEDIA_TYPE).answer().await?;
        if !answer.is(SSE_MEDIA_TYPE) {
            return Err(Error::Answer("not a stream of events".to_owned()));
        }
        Ok(Self { body: answer.into_download(), decoder: SseDecoder::default(), waiting: VecDeque::new() })
    }

    /// The next event; `None` when the server closed the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<ServerSentEvent>, Error> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            let piece = tokio::time::timeout(SILENCE_MAX, self.body.next()).await;
            match piece.unwrap_or(Err(Error::Timeout(SILENCE_MAX.as_secs())))? {
                None => return Ok(None),
                Some(piece) => {
                    let events = self.decoder.push(&piece).map_err(|error| Error::Answer(error.to_string()))?;
                    self.waiting.extend(events);
                }
            }
        }
    }
}

pub(crate) fn parse<T: DeserializeOwned>(event: &ServerSentEvent) -> Result<T, Error> {
    serde_json::from_str(&event.data).map_err(|error| Error::Answer(error.to_string()))
}

/// A sandbox's events as they happen. Taken up again where it broke off.
pub struct SandboxEvents {
    sandbox: SandboxHandle,
    query: EventsQuery,
    events: Option<Events>,
    failures: u32,
    is_ending: bool,
    has_ended: bool,
}

impl SandboxEvents {
    pub(crate) async fn open(sandbox: SandboxHandle, query: EventsQuery) -> Result<Self, Error> {
        let mut stream = Self { sandbox, query, events: None, failures: 0, is_ending: false, has_ended: false };
        stream.events = Some(stream.connect().await?);
        Ok(stream)
    }

    /// The next event; `None` after the sandbox's last one.
    pub async fn next(&mut self) -> Result<Option<SandboxEvent>, Error> {
        while !self.has_ended {
            let outcome = match &mut self.events {
                Some(events) => events.next().await,
                None => match self.connect().await {
                    Ok(events) => {
                        self.events = Some(events);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match outcome {
                Ok(Some(event)) => {
                    let event: SandboxEvent = parse(&event)?;
                    self.failures = 0;
                    self.query.after = Some(event.seq);
                    self.is_ending |= matches!(event.body, SandboxEventBody::Ending { .. });
                    self.has_ended = matches!(event.body, SandboxEventBody::Ended { .. });
                    return Ok(Some(event));
                }
                Ok(None) if self.is_ending => self.has_ended = true,
                Ok(None) => self.lost(Error::broken("following events", "the server closed the stream")).await?,
                Err(error) => self.lost(error).await?,
            }
        }
        Ok(None)
    }

    async fn connect(&self) -> Result<Events, Error> {
        let call = self.sandbox.call(Method::GET, route::EVENTS).query(&self.query);
        let call = match self.query.after {
            Some(seq) => call.header(route::header::LAST_EVENT_ID, &seq.to_string()),
            None => call,
        };
        Events::open(call).await
    }

    async fn lost(&mut self, error: Error) -> Result<(), Error> {
        self.events = None;
        self.failures += 1;
        if !error.is_lost_connection() || self.failures > RESUMES_MAX {
            return Err(error);
        }
        tokio::time::sleep(retry::delay(self.failures)).await;
        Ok(())
    }
}

/// What happens to watched files. Not taken up again when it breaks: what happened meanwhile nobody knows.
pub struct FileWatch {
    events: Events,
}

impl FileWatch {
    pub(crate) async fn open(sandbox: &SandboxHandle, query: &WatchQuery) -> Result<Self, Error> {
        let call = sandbox.call(Method::GET, route::FILES_WATCH).query(query);
        Ok(Self { events: Events::open(call).await? })
    }

    /// The next event; `None` when the sandbox has ended.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, Error> {
        match self.events.next().await? {
            Some(event) => parse(&event).map(Some),
            None => Ok(None),
        }
    }
}
