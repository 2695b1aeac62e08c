//! Answers of the gateway as responses.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use saggar_gateway::{Answer, ClientWire};
use tokio::sync::mpsc::Receiver;

/// Maximum silence of a stream: Node gives up after five minutes.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Who answered, and what it cost in micro-dollars.
const ANSWERED_BY: &str = "saggar-answered-by";
const COST: &str = "saggar-cost-micros";

pub(super) fn answer(wire: ClientWire, answer: Answer) -> Response {
    let (mut response, by) = match answer {
        Answer::Whole { body, by, cost } => {
            let mut response = body.into_response();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response.headers_mut().insert(COST, HeaderValue::from(cost.0));
            (response, by)
        }
        Answer::Stream { pieces, by } => (streamed(wire, pieces), by),
    };
    if let Ok(by) = HeaderValue::from_str(&by) {
        response.headers_mut().insert(ANSWERED_BY, by);
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Each piece is whole events, so something can be sent between two of them.
fn streamed(wire: ClientWire, pieces: Receiver<Bytes>) -> Response {
    let alive: &'static str = match wire {
        ClientWire::Chat | ClientWire::Responses => ": keep-alive\n\n",
        ClientWire::Anthropic => "event: ping\ndata: {\"type\": \"ping\"}\n\n",
    };
    let pieces = stream::unfold(pieces, move |mut pieces| async move {
        let piece = match tokio::time::timeout(KEEP_ALIVE, pieces.recv()).await {
            Ok(piece) => piece?,
            Err(_elapsed) => Bytes::from_static(alive.as_bytes()),
        };
        Some((Ok::<_, Infallible>(piece), pieces))
    });
    let mut response = Body::from_stream(pieces).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    // For proxies that would otherwise buffer.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
