//! A server for each test, and a plain HTTP client that works on raw bytes, so that tests can also break the
//! protocol.
//!
//! Every wait is bounded. A dropped server ends its sandboxes, then stops; leftovers of a failed test are swept.

// Each test file links its own copy and uses a part of it.
#![allow(dead_code)]

pub mod archive;
#[allow(clippy::duplicate_mod, reason = "a test file may link both kinds of helpers, or one")]
#[path = "../sweep/mod.rs"]
mod sweep;
pub mod websocket;
pub mod world;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

/// Time limit of every operation.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running server in its own directory.
pub struct Server {
    root: PathBuf,
    /// The binary of the next start.
    pub program: PathBuf,
    /// A process in the server's mount namespace, if it isn't ours.
    within: Option<u32>,
    child: Option<Child>,
    stdout: Option<BufReader<ChildStdout>>,
    flags: Vec<String>,
    /// The fail point and its action; empty for none.
    pub fails_at: String,
    /// The named pipe by which a fail point that waits is held.
    pub fails_until: Option<PathBuf>,
    /// Where its log goes; `None` means to ours.
    pub log: Option<PathBuf>,
    /// Its output until it listened.
    pub printed: String,
    /// `127.0.0.1:PORT`.
    pub address: String,
    /// The key of the first start.
    pub key: String,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        Self::start_in(new_directory(), flags)
    }

    /// From another binary than the one under test.
    pub fn start_from(program: PathBuf, flags: &[&str]) -> Self {
        Self::start_at(program, new_directory(), None, flags)
    }

    /// In an existing directory, which is removed at the end.
    pub fn start_in(root: PathBuf, flags: &[&str]) -> Self {
        Self::start_at(env!("CARGO_BIN_EXE_saggar").into(), root, None, flags)
    }

    /// The same in the mount namespace of a process.
    pub fn start_within(process: u32, root: PathBuf, flags: &[&str]) -> Self {
        Self::start_at(env!("CARGO_BIN_EXE_saggar").into(), root, Some(process), flags)
    }

    fn start_at(program: PathBuf, root: PathBuf, within: Option<u32>, flags: &[&str]) -> Self {
        let mut server = Self {
            program,
            root,
            within,
            child: None,
            stdout: None,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            fails_at: String::new(),
            fails_until: None,
            log: None,
            printed: String::new(),
            address: String::new(),
            key: String::new(),
        };
        server.begin();
        server
    }

    pub fn command(&self) -> Command {
        let mut command = match self.within {
            None => without_settings(Command::new(&self.program)),
            Some(process) => within(process, env!("CARGO_BIN_EXE_saggar")),
        };
        command.args(["serve", "--port", "0", "--default-ttl", "60s"]);
        command.arg("--data-dir").arg(self.root.join("data")).args(&self.flags).env("FAIL_AT", &self.fails_at);
        command.envs(self.fails_until.as_ref().map(|pipe| ("FAIL_UNTIL", pipe)));
        // An earlier version refuses a setting that it doesn't know.
        if self.program == std::path::Path::new(env!("CARGO_BIN_EXE_saggar")) {
            command.env("SAGGAR_SECRETS_KEY_FILE", self.key_file());
        }
        command
    }

    /// The file with its sealing keys.
    pub fn key_file(&self) -> PathBuf {
        self.root.join("keys/secrets.key")
    }

    /// Starts on the existing data.
    pub fn begin(&mut self) {
        let log = self.log.as_ref().map(|path| {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            Stdio::from(file.expect("ours"))
        });
        let spawned = self.command().stdout(Stdio::piped()).stderr(log.unwrap_or_else(Stdio::inherit)).spawn();
        let mut child = spawned.expect("the binary was built");
        let mut stdout = BufReader::new(child.stdout.take().expect("it has a pipe"));
        self.printed.clear();
        loop {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).expect("a pipe of ours") > 0, "it ended: {}", self.printed);
            self.printed.push_str(&line);
            if let Some(url) = line.trim_end().strip_prefix("listening on ") {
                self.address = url.split("//").nth(1).expect("it is a URL").to_owned();
                break;
            }
        }
        if let Some(at) = self.printed.find("sgr_") {
            self.key = self.printed[at..].split_whitespace().next().expect("there is one").to_owned();
        }
        (self.child, self.stdout) = (Some(child), Some(stdout));
    }

    /// Starts on the existing data, with other flags.
    pub fn begin_with(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.begin();
    }

    /// Its data directory, as seen from here.
    pub fn data(&self) -> PathBuf {
        let data = self.root.join("data");
        match self.within {
            None => data,
            Some(process) => PathBuf::from(format!("/proc/{process}/root{}", data.display())),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Stops it as an operator does, and returns its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM)
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        let child = self.child.as_ref().expect("it runs");
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).expect("our own child");
        self.ended().code()
    }

    /// How it ended, if it has.
    pub fn ended_now(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut().expect("it was started").try_wait().expect("our own child")
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let begin = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("our own child") {
                return status;
            }
            if begin.elapsed() > PATIENCE {
                child.kill().expect("our own child");
                panic!("the server did not stop");
            }
            pause();
        }
    }

    pub fn authorization(&self) -> String {
        format!("Authorization: Bearer {}", self.key)
    }

    /// Sends a request with the key, and reads the whole response.
    pub fn request(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        let authorization = self.authorization();
        let headers: Vec<&str> = headers.iter().copied().chain([authorization.as_str()]).collect();
        self.request_without_key(method, path, &headers, body)
    }

    pub fn request_without_key(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Answer {
        let mut connection = self.connect();
        send(&mut connection, method, path, headers, body);
        read_answer(&mut BufReader::new(connection))
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    pub fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.request("DELETE", path, &[], b"")
    }

    pub fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.request("PUT", path, &[], body)
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, &["Content-Type: application/json"], body.to_string().as_bytes())
    }

    /// Creates a sandbox and returns its path: `/api/v1/sandboxes/sbx_…`.
    pub fn sandbox(&self) -> String {
        self.sandbox_with(&serde_json::json!({}))
    }

    pub fn sandbox_with(&self, create: &Value) -> String {
        let created = self.post("/api/v1/sandboxes", create).expect(201);
        format!("/api/v1/sandboxes/{}", created["id"].as_str().expect("it has an id"))
    }

    /// Runs a line of shell to its end.
    pub fn sh(&self, sandbox: &str, line: &str) -> Value {
        self.post(&format!("{sandbox}/execs"), &serde_json::json!({ "command": line })).expect(200)
    }

    /// Follows server-sent events.
    pub fn follow(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Events {
        let authorization = self.authorization();
        let all: Vec<&str> =
            headers.iter().copied().chain([authorization.as_str(), "Accept: text/event-stream"]).collect();
        let mut connection = self.connect();
        send(&mut connection, method, path, &all, body);
        let mut reader = BufReader::new(connection);
        let (status, headers) = read_head(&mut reader);
        assert_eq!(status, 200, "{headers:?}");
        Events { reader, text: String::new() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.is_some() && !std::thread::panicking() {
            let list = self.get("/api/v1/sandboxes?limit=1000");
            let items = serde_json::from_slice::<Value>(&list.body).unwrap_or_default();
            for item in items["items"].as_array().into_iter().flatten() {
                self.delete(&format!("/api/v1/sandboxes/{}", item["id"].as_str().unwrap_or_default()));
            }
            self.stop();
            // A live sandbox has a socket here, also one in the pool.
            eventually("no sandbox is left", || {
                std::fs::read_dir(self.data().join("control")).is_ok_and(|sockets| sockets.count() == 0)
            });
            // A sandbox whose supervisor the test killed has a record; the next start removes both.
            let has_records =
                || std::fs::read_dir(self.data().join("sandboxes")).is_ok_and(|records| records.count() > 0);
            if self.within.is_none() && has_records() {
                let reaped = command(&["run", "--data-dir"]).arg(self.data()).args(["--", "/bin/true"]).status();
                assert!(reaped.is_ok_and(|status| status.success()), "what is left can't be removed");
            }
        } else {
            if let Some(mut child) = self.child.take() {
                // The failure that led here is what matters.
                let _ = child.kill().and_then(|()| child.wait().map(drop));
            }
            if std::thread::panicking() {
                return sweep::now(&self.root);
            }
        }
        // If this fails, it is swept when the process ends. For a server in another namespace this is the directory
        // below its disk.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

impl Answer {
    /// The JSON of a response with this status.
    #[track_caller]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        if self.body.is_empty() {
            return Value::Null;
        }
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }

    /// Checks for a problem with this status and code, in its complete form.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.expect(status);
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(problem["status"], status);
        for field in ["type", "title", "detail", "instance"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {problem}");
        }
        problem
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub struct Events {
    reader: BufReader<TcpStream>,
    text: String,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub id: String,
    pub name: String,
    pub data: Value,
}

impl Events {
    /// The next event; `None` at the end.
    pub fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(end) = self.text.find("\n\n") {
                let block: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                        .unwrap_or_default()
                        .to_owned()
                };
                if !field("data").is_empty() {
                    let data = serde_json::from_str(&field("data")).expect("its data is JSON");
                    return Some(Event { id: field("id"), name: field("event"), data });
                }
            }
            let chunk = read_chunk(&mut self.reader)?;
            self.text.push_str(std::str::from_utf8(&chunk).expect("events are text"));
        }
    }

    /// All events up to and including the next with this name.
    pub fn until(&mut self, name: &str) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.next().unwrap_or_else(|| panic!("no {name} came after {events:?}"));
            let is_last = event.name == name;
            events.push(event);
            if is_last {
                return events;
            }
        }
    }
}

/// All stdout among events.
/// Creates a second project with a key, as an operator does.
pub fn other_project(server: &mut Server) -> String {
    assert_eq!(server.stop(), Some(0));
    let made = command(&["key", "create", "theirs", "--project", "other", "--data-dir"])
        .arg(server.data())
        .output()
        .expect("the binary was built");
    assert!(made.status.success(), "{made:?}");
    server.begin();
    format!("Authorization: Bearer {}", String::from_utf8(made.stdout).expect("it prints text").trim())
}

pub fn stdout_of(events: &[Event]) -> String {
    events.iter().filter(|event| event.name == "stdout").filter_map(|event| event.data["text"].as_str()).collect()
}

pub fn send(connection: &mut TcpStream, method: &str, path: &str, headers: &[&str], body: &[u8]) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    let is_chunked = headers.iter().any(|header| header.to_ascii_lowercase().starts_with("transfer-encoding"));
    if !body.is_empty() && !is_chunked {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    // A server that refuses a request may close before it has read everything.
    let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(body));
}

/// Reads a response with a known length.
pub fn read_answer(reader: &mut BufReader<TcpStream>) -> Answer {
    let (status, headers) = read_head(reader);
    let header = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let mut body = Vec::new();
    if header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(reader) {
            body.extend_from_slice(&chunk);
        }
    } else if let Some(length) = header("content-length") {
        body.resize(length.parse().expect("a number"), 0);
        reader.read_exact(&mut body).expect("as long as was said");
    }
    Answer { status, headers, body }
}

pub fn read_head(reader: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).expect("an answer");
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().expect("a number");
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
            None => return (status, headers),
        }
    }
}

/// The next chunk; `None` at the end, whether announced or not.
pub fn read_chunk(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let length = usize::from_str_radix(line.trim_end(), 16).ok()?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    if length == 0 { None } else { Some(chunk) }
}

/// Polls until the condition holds.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        pause();
    }
}

/// Yields between two checks.
fn pause() {
    pause_for(Duration::from_millis(5));
}

/// Sleeps for a while, for kills at arbitrary moments.
pub fn pause_for(span: Duration) {
    let span = rustix::event::Timespec { tv_sec: span.as_secs() as i64, tv_nsec: i64::from(span.subsec_nanos()) };
    // If interrupted, the pause is just shorter.
    let _ = rustix::event::poll(&mut [], Some(&span));
}

/// A `saggar` without the settings of our environment.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = without_settings(Command::new(env!("CARGO_BIN_EXE_saggar")));
    command.args(arguments);
    command
}

/// A program in the mount namespace of a process.
pub fn within(process: u32, program: &str) -> Command {
    let mut command = without_settings(Command::new("nsenter"));
    command.arg(format!("--target={process}"));
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--preserve-credentials"]);
    }
    command.args(["--mount", program]);
    command
}

fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SAGGAR_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

pub fn new_directory() -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    let root = std::env::temp_dir().join(format!("saggar-server-{}-{unique}", std::process::id()));
    std::fs::create_dir_all(&root).expect("the temporary directory is writable");
    sweep::when_gone(&root);
    root
}

/// A signature or secret in base64 with one letter changed. The letter before the last is used, because all its bits
/// count.
pub fn altered(text: &str) -> String {
    let (at, end) = (text.len() - 2, text.len() - 1);
    let letter = if &text[at..end] == "A" { "B" } else { "A" };
    format!("{}{letter}{}", &text[..at], &text[end..])
}
