//! Servers that show what they got, in all the ways in which servers do.

use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{self, Message, handshake::derive_accept_key, protocol::Role};

use crate::server::Body;

/// By path: `/shown/plain`, `bytes` (one byte at a time), `header`, `trailer`, `moved`, `gzip`, `websocket`, `begun` (one whose only message ends like the
/// beginning of a value), `split` (its message comes in frames of three bytes, with pings between them) and `deflate` (one that is compressed, asked
/// or not); `name` shows a header's value in the name of another, and `part` answers with a part, asked or not.
pub async fn answer(mut request: Request<Incoming>) -> Response<Body> {
    let text = shown(&request);
    let credential = request.headers().get("authorization").cloned().unwrap_or(HeaderValue::from_static("none"));
    match request.uri().path() {
        "/shown/bytes" => {
            let frames: Vec<_> = text.bytes().map(|byte| Ok(Frame::data(Bytes::copy_from_slice(&[byte])))).collect();
            Response::new(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames))))
        }
        "/shown/name" => {
            let key = request.headers().get("x-key").map_or("none", |key| key.to_str().unwrap());
            let mut response = Response::new(full(""));
            let name = http::HeaderName::try_from(format!("x-has-{key}")).unwrap();
            response.headers_mut().insert(name, HeaderValue::from_static("1"));
            with_header(response, "x-kept", HeaderValue::from_static("1"))
        }
        "/shown/part" => {
            let range = request.headers().get("range").map_or("none", |range| range.to_str().unwrap());
            let mut response = Response::new(full(&format!("asked for {range}, got {text}")));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            with_header(response, "content-range", HeaderValue::from_static("bytes 0-99/100"))
        }
        "/shown/header" => with_header(Response::new(full("")), "x-shown", credential),
        "/shown/trailer" => {
            let trailers = HeaderMap::from_iter([("x-shown".parse().unwrap(), credential)]);
            let frames = [Ok(Frame::data(Bytes::from(text))), Ok(Frame::trailers(trailers))];
            let body = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
            with_header(Response::new(body), "trailer", HeaderValue::from_static("x-shown"))
        }
        "/shown/moved" => {
            let query = request.uri().query().unwrap_or_default();
            let to = format!("https://other.test/?{query}&a={}", String::from_utf8_lossy(credential.as_bytes()));
            let to = HeaderValue::from_bytes(to.as_bytes()).unwrap();
            let mut response = with_header(Response::new(full("")), "location", to);
            *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
            response
        }
        "/shown/gzip" => with_header(Response::new(full("x")), "content-encoding", HeaderValue::from_static("gzip")),
        path @ ("/shown/websocket" | "/shown/begun" | "/shown/split" | "/shown/deflate") => {
            let message = if path == "/shown/begun" { "it ends with ca".to_owned() } else { text };
            let accept = derive_accept_key(request.headers()["sec-websocket-key"].as_bytes());
            let (is_compressed, is_split) = (path == "/shown/deflate", path == "/shown/split");
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(upgraded) = upgrade.await else { return };
                let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
                if is_split {
                    for message in pieces(&message) {
                        // The client may have been refused.
                        let _ = socket.send(message).await;
                    }
                } else {
                    // The client may have been refused.
                    let _ = socket.send(Message::text(message)).await;
                }
                // Until the client leaves.
                while socket.next().await.is_some_and(|message| message.is_ok()) {}
            });
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            for (name, value) in [("connection", "Upgrade"), ("upgrade", "websocket")] {
                response.headers_mut().insert(name, HeaderValue::from_static(value));
            }
            if is_compressed {
                let deflate = HeaderValue::from_static("permessage-deflate");
                response.headers_mut().insert("sec-websocket-extensions", deflate);
            }
            with_header(response, "sec-websocket-accept", accept.parse().unwrap())
        }
        _ => Response::new(full(&text)),
    }
}

/// A message in small frames, each with a ping before it.
fn pieces(message: &str) -> Vec<Message> {
    let chunks: Vec<&[u8]> = message.as_bytes().chunks(3).collect();
    let frame = |(index, chunk): (usize, &&[u8])| {
        let kind = if index == 0 { Data::Text } else { Data::Continue };
        let is_last = index + 1 == chunks.len();
        let frame = tungstenite::protocol::frame::Frame::message(chunk.to_vec(), OpCode::Data(kind), is_last);
        [Message::Ping(Bytes::from_static(b"are you there")), Message::Frame(frame)]
    };
    chunks.iter().enumerate().flat_map(frame).collect()
}

fn shown(request: &Request<Incoming>) -> String {
    let mut text = format!("{}\n", request.uri());
    for (name, value) in request.headers() {
        text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    }
    text
}

fn with_header(mut response: Response<Body>, name: &'static str, value: HeaderValue) -> Response<Body> {
    response.headers_mut().insert(name, value);
    response
}

fn full(text: &str) -> Body {
    Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed()
}
