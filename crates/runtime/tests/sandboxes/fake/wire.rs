//! Frames of JSON over a stream, as both sides of the control protocol send them.

use saggar_supervisor::control::{Decoder, Frame, Reply, encode_json};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

pub(super) struct Wire {
    stream: UnixStream,
    decoder: Decoder,
}

impl Wire {
    pub(super) fn over(stream: UnixStream) -> Self {
        Self { stream, decoder: Decoder::new() }
    }

    pub(super) async fn read<T: DeserializeOwned>(&mut self) -> Option<T> {
        let mut piece = [0; 4096];
        loop {
            match self.decoder.next_frame().expect("the server speaks the protocol") {
                Some(Frame::Json(json)) => {
                    return Some(serde_json::from_slice(&json).expect("the server speaks the protocol"));
                }
                Some(other) => panic!("{other:?} instead of a request"),
                None => {}
            }
            match self.stream.read(&mut piece).await {
                Ok(length @ 1..) => self.decoder.push(&piece[..length]),
                Ok(0) | Err(_) => return None,
            }
        }
    }

    /// Whether there is still a reader.
    pub(super) async fn write(&mut self, reply: &Reply) -> bool {
        let mut wire = Vec::new();
        encode_json(&mut wire, reply).expect("short enough");
        self.stream.write_all(&wire).await.is_ok()
    }
}
