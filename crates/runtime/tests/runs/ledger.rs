//! The outside ledger: an HTTP service that does each request once per key, and records all requests.
//!
//! `/do` responds; `/hang` never responds; `/flood` sends an endless response.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;

/// A service on a port of this machine.
pub struct Ledger {
    /// The URL that responds.
    pub url: String,
    listener: TcpListener,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// Number of requests per key.
    asked: BTreeMap<String, u64>,
    is_holding: bool,
    connections: BTreeMap<u64, Connection>,
}

struct Connection {
    stream: TcpStream,
    /// Whether a request is being read and is not in `asked` yet.
    is_read: bool,
}

impl Ledger {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/do", listener.local_addr().unwrap());
        let state: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let (shared, incoming) = (Arc::clone(&state), listener.try_clone().unwrap());
        thread::spawn(move || {
            for number in 0.. {
                wait_readable(&incoming, None);
                // Accepted and noted in one step: at no moment is a connection in neither place.
                let mut state = shared.0.lock().unwrap();
                let Ok((stream, _)) = incoming.accept() else { continue };
                let known = Connection { stream: stream.try_clone().unwrap(), is_read: false };
                state.connections.insert(number, known);
                drop(state);
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    answer_all(stream, number, &shared);
                    shared.0.lock().unwrap().connections.remove(&number);
                });
            }
        });
        Self { url, listener, state }
    }

    /// Whether everything that was sent to it so far is counted. What a dead worker has sent may still lie in a queue.
    pub fn has_read_all(&self) -> bool {
        let state = self.state.0.lock().unwrap();
        let is_behind = |connection: &Connection| {
            connection.is_read || ioctl_fionread(&connection.stream).is_ok_and(|bytes| bytes > 0)
        };
        !wait_readable(&self.listener, Some(Timespec::default())) && !state.connections.values().any(is_behind)
    }

    /// Another URL of it.
    pub fn at(&self, path: &str) -> String {
        self.url.replace("/do", path)
    }

    /// Number of requests per key.
    pub fn asked(&self) -> BTreeMap<String, u64> {
        self.state.0.lock().unwrap().asked.clone()
    }

    pub fn has(&self, key: &str) -> bool {
        self.state.0.lock().unwrap().asked.contains_key(key)
    }

    /// Holds all responses until told otherwise.
    pub fn hold(&self, is_holding: bool) {
        self.state.0.lock().unwrap().is_holding = is_holding;
        self.state.1.notify_all();
    }
}

/// The service's result for a key.
pub fn result(key: &str) -> String {
    format!("done {key}")
}

fn wait_readable(listener: &TcpListener, patience: Option<Timespec>) -> bool {
    poll(&mut [PollFd::new(listener, PollFlags::IN)], patience.as_ref()).is_ok_and(|ready| ready > 0)
}

fn answer_all(stream: TcpStream, number: u64, shared: &(Mutex<State>, Condvar)) {
    stream.set_nodelay(true).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    let (lock, changed) = shared;
    // Noted before the first byte is taken from the socket.
    while reader.get_ref().peek(&mut [0]).is_ok_and(|bytes| bytes > 0) {
        lock.lock().unwrap().connections.get_mut(&number).unwrap().is_read = true;
        // A worker that was killed may end its connection anywhere.
        let Some((path, key)) = read_request(&mut reader) else { return };
        let mut state = lock.lock().unwrap();
        *state.asked.entry(key.clone()).or_default() += 1;
        state.connections.get_mut(&number).unwrap().is_read = false;
        drop(changed.wait_while(state, |state| state.is_holding).unwrap());
        match path.as_str() {
            // Until the client disconnects.
            "/hang" => return drop(reader.read(&mut [0])),
            "/flood" => return flood(&mut writer),
            _ => {}
        }
        let body = result(&key);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if writer.write_all(head.as_bytes()).is_err() {
            return;
        }
    }
}

fn flood(writer: &mut TcpStream) {
    let line = format!("{}\n", "z".repeat(64 * 1024 - 1));
    let mut sent = writer.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
    while sent.is_ok() {
        sent = writer.write_all(line.as_bytes());
    }
}

/// The path and the key of the next request.
fn read_request(reader: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut key, mut length) = (None, 0);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(": ") else { continue };
        match name.to_ascii_lowercase().as_str() {
            "idempotency-key" => key = Some(value.to_owned()),
            "content-length" => length = value.parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, key?))
}
