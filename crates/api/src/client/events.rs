//! Streams of server-sent events: of a sandbox, and of watched files.

use std::collections::VecDeque;
use std::time::Duration;

use hyper::Method;
use serde::de::DeserializeOwned;

use super::body::Download;
use super::error::Error;
use super::resuming::Resuming;
use super::sandboxes::SandboxHandle;
use super::send::Call;
use crate::event::{EventsQuery, SandboxEvent, SandboxEventBody};
use crate::file::{FileEvent, WatchQuery};
use crate::route;
use crate::sse::{SSE_MEDIA_TYPE, ServerSentEvent, SseDecoder};

/// A connection without any data for this long is considered dead. Servers send at least a comment far more often.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// The events of one connection.
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

    /// The next event; `None` if the server closed the stream.
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

/// A sandbox's events as they happen. Resumed after a lost connection.
pub struct SandboxEvents {
    sandbox: SandboxHandle,
    query: EventsQuery,
    stream: Resuming,
    is_ending: bool,
    has_ended: bool,
}

impl SandboxEvents {
    pub(crate) async fn open(sandbox: SandboxHandle, query: EventsQuery) -> Result<Self, Error> {
        let stream = Resuming::from(connect(&sandbox, &query).await?, "following events");
        Ok(Self { sandbox, query, stream, is_ending: false, has_ended: false })
    }

    /// The next event; `None` after the sandbox's last one.
    pub async fn next(&mut self) -> Result<Option<SandboxEvent>, Error> {
        while !self.has_ended {
            match self.stream.next(Some(async || connect(&self.sandbox, &self.query).await)).await? {
                Some(event) => {
                    let event: SandboxEvent = parse(&event)?;
                    self.query.after = Some(event.seq);
                    self.is_ending |= matches!(event.body, SandboxEventBody::Ending { .. });
                    self.has_ended = matches!(event.body, SandboxEventBody::Ended { .. });
                    return Ok(Some(event));
                }
                None => self.has_ended = self.is_ending,
            }
        }
        Ok(None)
    }
}

async fn connect(sandbox: &SandboxHandle, query: &EventsQuery) -> Result<Events, Error> {
    let call = sandbox.call(Method::GET, route::EVENTS).query(query);
    let call = match query.after {
        Some(seq) => call.header(route::header::LAST_EVENT_ID, &seq.to_string()),
        None => call,
    };
    Events::open(call).await
}

/// Changes to watched files. Not resumed after a lost connection, because the changes in between are unknown.
pub struct FileWatch {
    events: Events,
}

impl FileWatch {
    pub(crate) async fn open(sandbox: &SandboxHandle, query: &WatchQuery) -> Result<Self, Error> {
        let call = sandbox.call(Method::GET, route::FILES_WATCH).query(query);
        Ok(Self { events: Events::open(call).await? })
    }

    /// The next event; `None` if the sandbox has ended.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, Error> {
        match self.events.next().await? {
            Some(event) => parse(&event).map(Some),
            None => Ok(None),
        }
    }
}
