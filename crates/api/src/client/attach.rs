//! A WebSocket to an exec, split into two halves that can be used concurrently.

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::header::HeaderName;
use hyper::upgrade::Upgraded;
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use saggar_domain::OutputStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use super::answer::problem;
use super::connect::failure;
use super::error::Error;
use super::execs::ExecHandle;
use crate::attach::{ATTACH_MESSAGE_BYTES_MAX, AttachQuery, AttachReply, AttachRequest, split_output};
use crate::route;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Both halves.
pub struct Attached {
    /// Receives from the exec.
    pub reader: AttachReader,
    /// Sends to the exec.
    pub writer: AttachWriter,
}

/// The receiving half.
pub struct AttachReader(SplitStream<Socket>);

/// The sending half.
pub struct AttachWriter(SplitSink<Socket, Message>);

/// One message from the server.
#[derive(Debug)]
pub enum AttachMessage {
    /// Output of the program.
    Output(OutputStream, Bytes),
    /// Any other message.
    Reply(AttachReply),
}

impl Attached {
    pub(crate) async fn open(exec: &ExecHandle, query: AttachQuery) -> Result<Self, Error> {
        let client = exec.sandbox().client();
        let key = generate_key();
        let request = exec.call(Method::GET, route::EXEC_ATTACH).query(&query).upgrade(&key)?;
        let response = client.pools().upgrades.request(request).await.map_err(|error| failure(error, client.url()))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (parts, body) = response.into_parts();
            return Err(problem(parts.status, &parts.headers, body).await);
        }
        let accept = response.headers().get(HeaderName::from_static("sec-websocket-accept"));
        if accept.is_none_or(|accept| accept.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(Error::Answer("not a WebSocket".to_owned()));
        }
        let stream = hyper::upgrade::on(response).await.map_err(|error| Error::broken("attaching", error))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(ATTACH_MESSAGE_BYTES_MAX))
            .max_frame_size(Some(ATTACH_MESSAGE_BYTES_MAX));
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Client, Some(config)).await;
        let (writer, reader) = socket.split();
        Ok(Self { reader: AttachReader(reader), writer: AttachWriter(writer) })
    }
}

impl AttachReader {
    /// The next message; `None` after a clean close by the server.
    pub async fn next(&mut self) -> Result<Option<AttachMessage>, Error> {
        while let Some(message) = self.0.next().await {
            match message.map_err(broken)? {
                Message::Binary(bytes) => {
                    if let Some((stream, _)) = split_output(&bytes) {
                        return Ok(Some(AttachMessage::Output(stream, bytes.slice(1..))));
                    }
                }
                Message::Text(text) => {
                    let reply = serde_json::from_str(&text).map_err(|error| Error::Answer(error.to_string()))?;
                    return Ok(Some(AttachMessage::Reply(reply)));
                }
                Message::Close(_) => return Ok(None),
                // The library answers pings; the others have no meaning here.
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
        Ok(None)
    }
}

impl AttachWriter {
    /// Sends bytes to the program's stdin.
    pub async fn send_stdin(&mut self, bytes: impl Into<Bytes>) -> Result<(), Error> {
        self.0.send(Message::Binary(bytes.into())).await.map_err(broken)
    }

    /// Sends any other message.
    pub async fn send(&mut self, request: &AttachRequest) -> Result<(), Error> {
        let text = serde_json::to_string(request).expect("our own types have only text keys");
        self.0.send(Message::Text(text.into())).await.map_err(broken)
    }

    /// Closes the connection. The exec keeps running.
    pub async fn close(mut self) -> Result<(), Error> {
        self.0.close().await.map_err(broken)
    }
}

fn broken(error: tungstenite::Error) -> Error {
    Error::broken("attached to an exec", error)
}
