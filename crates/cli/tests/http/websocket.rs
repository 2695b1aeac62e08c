//! A minimal WebSocket client that can also break the protocol.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use super::{Server, read_head, send};

pub struct WebSocket {
    reader: BufReader<TcpStream>,
}

/// A message, or the end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Text(String),
    Binary(Vec<u8>),
    Ping,
    Pong,
    Close,
    Gone,
}

impl WebSocket {
    /// Opens a connection, or returns the status of the refusal.
    pub fn open(server: &Server, path: &str, headers: &[&str]) -> Result<Self, u16> {
        let mut connection = server.connect();
        let mut all = vec![
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ];
        all.extend_from_slice(headers);
        send(&mut connection, "GET", path, &all, b"");
        let mut reader = BufReader::new(connection);
        match read_head(&mut reader) {
            (101, headers) => {
                let accept = headers.iter().find(|(name, _)| name == "sec-websocket-accept");
                assert_eq!(accept.map(|(_, value)| value.as_str()), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
                Ok(Self { reader })
            }
            (status, _) => Err(status),
        }
    }

    /// Sends one frame. The mask is zero, which is valid.
    pub fn send(&mut self, opcode: u8, payload: &[u8]) {
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            0..=125 => frame.push(0x80 | payload.len() as u8),
            126..=65535 => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(payload.len() as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        // The server may close the connection on its own.
        let _ = self.reader.get_mut().write_all(&frame);
    }

    pub fn text(&mut self, text: &str) {
        self.send(1, text.as_bytes());
    }

    pub fn binary(&mut self, bytes: &[u8]) {
        self.send(2, bytes);
    }

    pub fn next(&mut self) -> Message {
        let mut head = [0; 2];
        if self.reader.read_exact(&mut head).is_err() {
            return Message::Gone;
        }
        let length = match head[1] & 0x7f {
            126 => {
                let mut length = [0; 2];
                self.reader.read_exact(&mut length).expect("a length");
                usize::from(u16::from_be_bytes(length))
            }
            127 => {
                let mut length = [0; 8];
                self.reader.read_exact(&mut length).expect("a length");
                u64::from_be_bytes(length) as usize
            }
            length => usize::from(length),
        };
        let mut payload = vec![0; length];
        self.reader.read_exact(&mut payload).expect("a payload");
        match head[0] & 0x0f {
            1 => Message::Text(String::from_utf8(payload).expect("text")),
            2 => Message::Binary(payload),
            9 => Message::Ping,
            10 => Message::Pong,
            8 => Message::Close,
            other => panic!("opcode {other}"),
        }
    }

    /// Reads until a text message of this type, collecting output.
    pub fn until(&mut self, kind: &str) -> (Vec<u8>, serde_json::Value) {
        let mut output = Vec::new();
        loop {
            match self.next() {
                Message::Text(text) => {
                    let value: serde_json::Value = serde_json::from_str(&text).expect("text is JSON");
                    if value["type"] == kind {
                        return (output, value);
                    }
                }
                Message::Binary(bytes) => output.extend_from_slice(&bytes[1..]),
                Message::Ping | Message::Pong => {}
                end @ (Message::Close | Message::Gone) => {
                    panic!("{end:?} before {kind}; output {:?}", String::from_utf8_lossy(&output))
                }
            }
        }
    }
}
