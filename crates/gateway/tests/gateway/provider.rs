//! A provider stand-in on loopback: answers each request as a test says, and tells what it got.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// What is sent for one request, in this order.
#[derive(Clone, Debug)]
pub enum Act {
    Send(String),
    /// Until the other side closes; tells when it did.
    WaitForClose,
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub head: String,
    pub body: Value,
}

pub struct Provider {
    pub port: u16,
    answers: Arc<Mutex<VecDeque<Vec<Act>>>>,
    /// For every request that has no answer of its own.
    default: Arc<Mutex<Vec<Act>>>,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    pub closed: mpsc::UnboundedReceiver<tokio::time::Instant>,
}

impl Provider {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
        let port = listener.local_addr().expect("it is bound").port();
        let (tell, closed) = mpsc::unbounded_channel();
        let (answers, default, seen) = (Arc::default(), Arc::default(), Arc::default());
        let this = Self { port, answers, default, seen, closed };
        let (answers, default, seen) = (Arc::clone(&this.answers), Arc::clone(&this.default), Arc::clone(&this.seen));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answers, default, seen, tell) =
                    (Arc::clone(&answers), Arc::clone(&default), Arc::clone(&seen), tell.clone());
                tokio::spawn(async move {
                    // A connection that breaks has nothing more to say.
                    let _ = serve(stream, &answers, &default, &seen, &tell).await;
                });
            }
        });
        this
    }

    pub fn answer(&self, acts: Vec<Act>) {
        self.answers.lock().expect("no test panics inside").push_back(acts);
    }

    pub fn always(&self, acts: Vec<Act>) {
        *self.default.lock().expect("no test panics inside") = acts;
    }

    pub fn requests(&self) -> Vec<Seen> {
        self.seen.lock().expect("no test panics inside").clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    answers: &Mutex<VecDeque<Vec<Act>>>,
    default: &Mutex<Vec<Act>>,
    seen: &Mutex<Vec<Seen>>,
    tell: &mpsc::UnboundedSender<tokio::time::Instant>,
) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let mut more = [0; 4096];
            match stream.read(&mut more).await? {
                0 => return Ok(()),
                length => buffer.extend_from_slice(&more[..length]),
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let length: usize = head
            .lines()
            .find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length:").map(|value| value.trim().to_owned())
            })
            .and_then(|value| value.parse().ok())
            .unwrap_or(0);
        while buffer.len() < end + length {
            let mut more = [0; 4096];
            match stream.read(&mut more).await? {
                0 => return Ok(()),
                length => buffer.extend_from_slice(&more[..length]),
            }
        }
        let body = serde_json::from_slice(&buffer[end..end + length]).unwrap_or(Value::Null);
        buffer.drain(..end + length);
        seen.lock().expect("no test panics inside").push(Seen { head, body });
        let acts = answers.lock().expect("no test panics inside").pop_front();
        let acts = acts.unwrap_or_else(|| default.lock().expect("no test panics inside").clone());
        let mut is_open = false;
        for act in acts {
            match act {
                Act::Send(text) => {
                    is_open |= text.contains("connection: keep-alive");
                    stream.write_all(text.as_bytes()).await?;
                    // What is sent after this is another piece.
                    tokio::task::yield_now().await;
                }
                Act::WaitForClose => {
                    let mut rest = [0; 16];
                    // Whatever it ends with.
                    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut rest)).await;
                    // The test may have ended.
                    let _ = tell.send(tokio::time::Instant::now());
                    return Ok(());
                }
            }
        }
        if !is_open {
            return Ok(());
        }
    }
}

/// A stream that ends with the connection.
pub fn sse(events: &str) -> Act {
    Act::Send(format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{events}"))
}

pub fn json(body: &str) -> Act {
    status(200, "", body)
}

/// `headers`: lines that end with CRLF.
pub fn status(status: u16, headers: &str, body: &str) -> Act {
    Act::Send(format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\nconnection: keep-alive\r\n\r\n{body}",
        body.len()
    ))
}
