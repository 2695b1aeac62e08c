//! A server with scripted responses that records its requests. One request per connection.

// Each test file links its own copy and uses a part of it.
#![allow(dead_code)]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// A recorded request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Such as `GET /health`.
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// The server; it runs until the test's process ends.
pub struct Scripted {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scripted {
    /// Answers every request with this function, in its own thread.
    pub fn new(answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, record) = (Arc::new(answer), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, record) = (Arc::clone(&answer), Arc::clone(&record));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let Some(request) = read_request(&mut stream) else { return };
                    record.lock().unwrap().push(request.clone());
                    answer(&request, &mut stream);
                });
            }
        });
        Self { url, asked }
    }

    /// A server with one response for each request line.
    pub fn table(rows: Vec<(&'static str, Vec<u8>)>) -> Self {
        Self::new(move |asked, stream| {
            let row = rows.iter().find(|(line, _)| *line == asked.line);
            let bytes = row.map_or_else(
                || problem(404, "not_found", &format!("no script for {}", asked.line)),
                |(_, bytes)| bytes.clone(),
            );
            // A client may go away before it has read everything.
            let _ = stream.write_all(&bytes);
        })
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub fn find(&self, line: &str) -> Asked {
        let asked = self.asked();
        asked.iter().find(|asked| asked.line == line).unwrap_or_else(|| panic!("no {line} among {asked:?}")).clone()
    }
}

fn read_request(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let mut piece = [0; 65536];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        match stream.read(&mut piece).ok()? {
            0 => return None,
            count => bytes.extend_from_slice(&piece[..count]),
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let line = lines.next()?.trim_end_matches(" HTTP/1.1").to_owned();
    let headers = lines.filter_map(|line| line.split_once(": ")).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let mut asked = Asked { line, headers, body: bytes[end + 4..].to_vec() };
    if asked.header("transfer-encoding").is_some() {
        while !asked.body.ends_with(b"0\r\n\r\n") {
            let count = stream.read(&mut piece).ok()?;
            asked.body.extend_from_slice(&piece[..count]);
        }
        asked.body = unchunked(&asked.body);
    } else {
        let length: usize = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
        while asked.body.len() < length {
            match stream.read(&mut piece).ok()? {
                0 => return None,
                count => asked.body.extend_from_slice(&piece[..count]),
            }
        }
    }
    Some(asked)
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return whole;
        }
        whole.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 2 + length + 2..];
    }
}

pub fn answer(status: u16, media_type: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {media_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

pub fn value(value: &Value) -> Vec<u8> {
    answer(200, "application/json", value.to_string().as_bytes())
}

pub fn problem(status: u16, code: &str, detail: &str) -> Vec<u8> {
    let body = json!({"type": format!("https://saggar.dev/problems/{code}"), "title": "t", "status": status, "code": code, "detail": detail, "help": "do this"});
    answer(status, "application/problem+json", body.to_string().as_bytes())
}

/// The beginning of a stream of events that ends with the connection.
pub const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

pub fn event(id: &str, data: &Value) -> Vec<u8> {
    format!("id: {id}\nevent: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default()).into_bytes()
}

pub fn stream(events: &[(&str, Value)]) -> Vec<u8> {
    let mut bytes = STREAM.to_vec();
    events.iter().for_each(|(id, data)| bytes.extend(event(id, data)));
    bytes
}

pub const SANDBOX: &str = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa";
pub const EXEC: &str = "exec_aaaaaaaaaaaaaaaaaaaaaaaaaa";

/// A sandbox as a server sends it.
pub fn sandbox(state: &str) -> Value {
    json!({
        "id": SANDBOX, "project_id": "prj_aaaaaaaaaaaaaaaaaaaaaaaaaa", "state": state, "template": "base",
        "labels": {"team": "red"}, "tier": "namespace", "network": "none", "network_managed": true, "user": "user",
        "limits": {"memory": "2G", "cpus": "2", "pids": "512", "disk": "1G", "files": "4096", "output": "8M"},
        "unenforced": [], "policy_hash": null, "created_at": "2026-11-15T12:00:00.000Z", "started_at": null,
        "deadline": null, "on_timeout": "kill", "idle_timeout": null, "auto_resume": false, "ports": {"public": []},
        "ended": null
    })
}

pub fn started() -> Value {
    json!({"type": "started", "exec_id": EXEC, "pid": 2})
}

/// The end of an exec, with its status and exit code or signal.
pub fn exited(status: &str, exit_code: Option<u8>, signal: Option<u8>) -> Value {
    json!({"type": "exited", "exec": exec(status, exit_code, signal)})
}

pub fn exec(status: &str, exit_code: Option<u8>, signal: Option<u8>) -> Value {
    json!({
        "id": EXEC, "sandbox_id": SANDBOX, "command": ["x"], "user": "user", "tty": false, "status": status, "pid": null,
        "exit_code": exit_code, "signal": signal, "started_at": "2026-11-15T12:00:00.000Z",
        "ended_at": "2026-11-15T12:00:01.000Z", "elapsed_ms": 1000, "usage": null, "denials": [], "error": null
    })
}
