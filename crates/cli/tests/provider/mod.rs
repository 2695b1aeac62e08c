//! A provider stand-in on loopback that speaks chat completions. The name of the model says what it does.

// Each test file links its own copy and uses a part of it.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// The provider's key, which nothing but the provider may see.
pub const KEY: &str = "canary-provider-4f7a10c6";
/// What each answer used: 1,000 tokens at $3 and 20 at $15 per million.
pub const COST: u64 = 3_300;

pub struct Provider {
    port: u16,
    /// The credentials of each request.
    seen: Arc<Mutex<Vec<String>>>,
    /// Streams that have begun and not ended.
    open: Arc<AtomicUsize>,
}

impl Provider {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let port = listener.local_addr().expect("it is bound").port();
        let (seen, open) = (Arc::default(), Arc::default());
        let this = Self { port, seen: Arc::clone(&seen), open: Arc::clone(&open) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, open) = (Arc::clone(&seen), Arc::clone(&open));
                // A connection that breaks has nothing more to say.
                thread::spawn(move || serve(&stream, &seen, &open).is_ok());
            }
        });
        this
    }

    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().expect("no thread panics").clone()
    }

    pub fn open_streams(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// A file of models in that directory: `cheap`, `dear`, and `endless`, whose streams end only when nobody reads them.
    pub fn models_file(&self, directory: &Path, more: &str) -> PathBuf {
        let route = |name: &str| {
            format!(
                "[models.{name}]\ntargets = [{{ provider = \"stand-in\", model = \"{name}\", prices = {{ input = \"3\", output = \"15\" }} }}]\n"
            )
        };
        let routes: String = ["cheap", "dear", "endless"].map(route).concat();
        let provider = format!(
            "[providers.stand-in]\nkind = \"compatible\"\nurl = \"http://127.0.0.1:{}/v1\"\nkeys = [\"provider\"]\n",
            self.port
        );
        let path = directory.join("models.toml");
        std::fs::write(&path, format!("{provider}{routes}{more}")).expect("a directory of ours");
        path
    }
}

fn serve(stream: &TcpStream, seen: &Mutex<Vec<String>>, open: &AtomicUsize) -> std::io::Result<()> {
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone()?), stream);
    loop {
        let (mut length, mut credentials) = (0, String::new());
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap_or(0)
                }
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => value.clone_into(&mut credentials),
                Some(_) => {}
                None if line.trim_end().is_empty() => break,
                None => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        seen.lock().expect("no thread panics").push(credentials);
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let usage = json!({"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020});
        if body["stream"] != true {
            let choice = json!({"index": 0, "message": {"role": "assistant", "content": "Hello there"}, "finish_reason": "stop"});
            let answer = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage});
            let answer = answer.to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            );
            writer.write_all((head + &answer).as_bytes())?;
            continue;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        writer.write_all((head.to_owned() + &event(&json!({"content": "Hello there"}), &Value::Null)).as_bytes())?;
        if body["model"] == "endless" {
            open.fetch_add(1, Ordering::SeqCst);
            // Until the other side closes.
            let closed = reader.read(&mut [0]);
            open.fetch_sub(1, Ordering::SeqCst);
            return closed.map(drop);
        }
        writer.write_all((event(&json!({}), &usage) + "data: [DONE]\n\n").as_bytes())?;
        return Ok(());
    }
}

fn event(delta: &Value, usage: &Value) -> String {
    let stop = if usage.is_null() { Value::Null } else { json!("stop") };
    let choice = json!({"index": 0, "delta": delta, "finish_reason": stop});
    let chunk = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], "usage": usage});
    format!("data: {chunk}\n\n")
}
