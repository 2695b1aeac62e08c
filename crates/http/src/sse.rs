//! Server-sent events out of anything that gives one after the other.
//!
//! Nothing is buffered here: the next event is asked for when the client has taken the last. While there is none, a comment every few
//! seconds keeps what lies between from closing the connection, and tells us when the client is gone.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use saggar_api::{SSE_MEDIA_TYPE, ServerSentEvent};
use serde::Serialize;

use crate::gate::Shared;

/// How long a stream may be silent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Something that gives events.
pub trait Source: Send + 'static {
    /// The next one; `None` at the end. May be cancelled at any await and asked again.
    fn next(&mut self) -> impl Future<Output = Option<ServerSentEvent>> + Send;
}

/// The answer that gives them to a client. It ends with the source, or with the server.
pub fn answer(server: Shared, source: impl Source) -> Response {
    let pieces = stream::unfold((server, source), |(server, mut source)| async move {
        let text = tokio::select! {
            event = source.next() => event?.to_text(),
            () = tokio::time::sleep(KEEP_ALIVE) => ": keep-alive\n\n".to_owned(),
            () = server.stops() => return None,
        };
        Some((Ok::<_, Infallible>(Bytes::from(text)), (server, source)))
    });
    let mut response = Body::from_stream(pieces).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(SSE_MEDIA_TYPE));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // For proxies that would otherwise wait for more.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// An event whose data is JSON.
pub fn json(id: String, event: &str, data: &impl Serialize) -> ServerSentEvent {
    let data = serde_json::to_string(data).unwrap_or_default();
    ServerSentEvent { id, event: event.to_owned(), data }
}
