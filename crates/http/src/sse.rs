//! Server-sent events from any source of events.
//!
//! Nothing is buffered here: the next event is requested when the client has taken the last. While there is none, a
//! comment every few seconds keeps proxies from closing the connection, and shows when the client is gone.

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

/// Maximum silence of a stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A source of events.
pub trait Source: Send + 'static {
    /// The next event; `None` at the end. May be cancelled at any await and called again.
    fn next(&mut self) -> impl Future<Output = Option<ServerSentEvent>> + Send;
}

/// The response that streams events. It ends with the source, or with the server.
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
    // For proxies that would otherwise buffer.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// An event whose data is JSON.
pub fn json(id: String, event: &str, data: &impl Serialize) -> ServerSentEvent {
    let data = serde_json::to_string(data).unwrap_or_default();
    ServerSentEvent { id, event: event.to_owned(), data }
}
