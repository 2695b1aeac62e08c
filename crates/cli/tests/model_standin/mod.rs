//! A provider of models on loopback that speaks the real wires: OpenAI's two and Anthropic's.
//!
//! What it says is chosen by how many replies a request's conversation has, so that a request that is made again gets
//! the same answer. Everything that it was asked is kept.

// Each test file links its own copy and uses a part of it.
#![allow(dead_code)]

pub mod serving;
pub mod wires;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::http::{PATIENCE, eventually};

/// One reply.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    pub text: String,
    /// Name and arguments, as the model writes them.
    pub calls: Vec<(String, String)>,
    /// As this wire says it; by default what fits the calls.
    pub stop: Option<String>,
    pub input: u64,
    /// Of the input, read from a cache.
    pub cached: u64,
    pub output: u64,
    /// Of the output.
    pub reasoning: u64,
    /// An answer of another kind: a status, header lines, and a body.
    pub instead: Option<(u16, String, String)>,
    /// The answer ends in the middle.
    pub is_torn: bool,
    /// Nothing is answered; the client has to leave.
    pub is_silent: bool,
    /// The calls have the same id.
    pub is_ambiguous: bool,
}

impl Turn {
    pub fn says(text: &str) -> Self {
        Self { text: text.to_owned(), input: 100, output: 10, ..Self::default() }
    }

    pub fn calls(calls: &[(&str, &str)]) -> Self {
        let calls = calls.iter().map(|(name, arguments)| ((*name).to_owned(), (*arguments).to_owned())).collect();
        Self { calls, ..Self::says("I look.") }
    }

    pub fn stopped(self, stop: &str) -> Self {
        Self { stop: Some(stop.to_owned()), ..self }
    }

    pub fn refused(status: u16, headers: &str, body: &str) -> Self {
        Self { instead: Some((status, headers.to_owned(), body.to_owned())), ..Self::default() }
    }

    /// A stream with these bytes.
    pub fn streams(bytes: &str) -> Self {
        Self::refused(200, "content-type: text/event-stream\r\n", bytes)
    }

    pub fn torn(self) -> Self {
        Self { is_torn: true, ..self }
    }

    pub fn silent() -> Self {
        Self { is_silent: true, ..Self::default() }
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    /// The key, wherever the wire has it.
    pub key: String,
    pub body: Value,
}

type Says = dyn Fn(usize, &Asked) -> Turn + Send + Sync;

#[derive(Clone)]
pub struct Standin {
    pub port: u16,
    inner: Arc<Inner>,
}

struct Inner {
    says: Box<Says>,
    asked: Mutex<Vec<Asked>>,
    /// The number of requests.
    times: AtomicUsize,
    /// Whether only the last request is kept.
    is_forgetful: AtomicBool,
    /// Whether answers stop after their first event, until this is over or the client leaves.
    is_held: AtomicBool,
    /// Clients that left while they were held.
    left: AtomicUsize,
    /// Clients that are held now.
    waiting: AtomicUsize,
}

impl Standin {
    /// The replies of every conversation, in this order.
    pub fn of(turns: Vec<Turn>) -> Self {
        Self::saying(move |replies, _| turns.get(replies).cloned().unwrap_or_else(|| Turn::says("There is no more.")))
    }

    /// What it says after so many replies.
    pub fn saying(says: impl Fn(usize, &Asked) -> Turn + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let port = listener.local_addr().expect("it is bound").port();
        let inner = Arc::new(Inner {
            says: Box::new(says),
            asked: Mutex::default(),
            times: AtomicUsize::new(0),
            is_forgetful: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
            left: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&inner);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = Arc::clone(&serving);
                // A connection that breaks has nothing more to say.
                std::thread::spawn(move || drop(serving.serve(stream)));
            }
        });
        Self { port, inner }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.inner.asked.lock().expect("no test panics inside").clone()
    }

    /// The number of requests so far.
    pub fn times_asked(&self) -> usize {
        self.inner.times.load(Ordering::SeqCst)
    }

    /// From now on, only the last request is kept.
    pub fn forget(&self) {
        self.inner.is_forgetful.store(true, Ordering::SeqCst);
    }

    /// Stops answers after their first event, or lets them go on.
    pub fn hold(&self, is_held: bool) {
        self.inner.is_held.store(is_held, Ordering::SeqCst);
    }

    /// Waits until so many clients are in the middle of an answer.
    pub fn until_held(&self, count: usize) {
        eventually("an answer has begun", || self.inner.waiting.load(Ordering::SeqCst) >= count);
    }

    /// Waits until so many clients have left in the middle of an answer.
    pub fn until_left(&self, count: usize) {
        eventually("the client leaves", || self.inner.left.load(Ordering::SeqCst) >= count);
    }

    pub fn left(&self) -> usize {
        self.inner.left.load(Ordering::SeqCst)
    }

    /// A file of models with the routes `chat`, `responses` and `anthropic` to it. Prices are $3 and $15.
    pub fn models_file(&self, more: &str) -> String {
        let port = self.port;
        let prices = "prices = { input = \"3\", output = \"15\", cached_read = \"0.3\" }";
        format!(
            r#"
[providers.openai]
kind = "openai"
url = "http://127.0.0.1:{port}/v1"
keys = ["openai"]
[providers.anthropic]
kind = "anthropic"
url = "http://127.0.0.1:{port}"
keys = ["anthropic"]
[models.chat]
retries = 0
targets = [{{ provider = "openai", model = "real-chat", {prices} }}]
[models.responses]
retries = 0
targets = [{{ provider = "openai", model = "real-responses", wire = "responses", {prices} }}]
[models.anthropic]
retries = 0
targets = [{{ provider = "anthropic", model = "real-claude", {prices} }}]
{more}
"#
        )
    }
}

impl Inner {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        loop {
            let Some(asked) = read(&mut reader)? else { return Ok(()) };
            let turn = (self.says)(wires::replies_in(&asked.body), &asked);
            let path = asked.path.clone();
            let mut all = self.asked.lock().expect("no test panics inside");
            if self.is_forgetful.load(Ordering::SeqCst) {
                all.clear();
            }
            all.push(asked);
            drop(all);
            self.times.fetch_add(1, Ordering::SeqCst);
            if turn.is_silent {
                return self.until_gone(&stream);
            }
            if let Some((status, headers, body)) = turn.instead {
                let length = body.len();
                write!(stream, "HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\n\r\n{body}")?;
                continue;
            }
            let mut events = wires::events(&path, &turn);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")?;
            let rest = events.split_off(events.len().min(2));
            stream.write_all(events.concat().as_bytes())?;
            stream.flush()?;
            if !self.wait(&stream) {
                return Ok(());
            }
            let cut = if turn.is_torn { rest.len() / 2 } else { rest.len() };
            return stream.write_all(rest[..cut].concat().as_bytes());
        }
    }

    /// Says nothing until the client leaves.
    fn until_gone(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let gone = stream.peek(&mut [0])?;
        assert_eq!(gone, 0, "it says more than its request");
        self.left.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Whether the client is still there when answers may go on.
    fn wait(&self, stream: &TcpStream) -> bool {
        if !self.is_held.load(Ordering::SeqCst) {
            return true;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let begun = std::time::Instant::now();
        let is_there = loop {
            if !self.is_held.load(Ordering::SeqCst) || begun.elapsed() > PATIENCE {
                break true;
            }
            stream.set_read_timeout(Some(std::time::Duration::from_millis(5))).expect("a socket");
            match stream.peek(&mut [0]) {
                Ok(0) => break false,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break false,
                // It says nothing, and is there.
                Ok(_) | Err(_) => {}
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if !is_there {
            self.left.fetch_add(1, Ordering::SeqCst);
        }
        is_there
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Asked>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut length, mut key) = (0, String::new());
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "authorization" => key = value.trim().trim_start_matches("Bearer ").to_owned(),
            "x-api-key" => key = value.trim().to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Asked { path, key, body: serde_json::from_slice(&body).unwrap_or(Value::Null) }))
}
