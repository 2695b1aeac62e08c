//! A shell that a page's commands are typed into, with a home and a data directory of its own.
//!
//! `saggar serve` and `saggar worker` are started beside it, as a reader does in another terminal, and stopped when the page ends. A server
//! listens on a free port of the loopback; in the page it is 7420.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, Place};
use crate::shown::{Names, agrees, real};

/// The port in the pages.
const PAGE_PORT: &str = "7420";
/// The data directory in the pages.
const PAGE_DATA: &str = "/var/lib/saggar";
/// Between what one command printed and the next.
const MARK: &str = "--8<-- status";

/// What a command did.
#[derive(Debug)]
pub struct Printed {
    pub status: i32,
    pub lines: Vec<String>,
}

pub struct Shell {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    place: Place,
    /// Where the last server listens.
    port: Option<String>,
    /// Processes beside the shell, with what they print.
    beside: Vec<Beside>,
    pub names: Names,
}

struct Beside {
    pid: String,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Shell {
    /// A shell in an empty directory, or in a copy of one.
    pub fn start(copied: Option<&Path>) -> Self {
        let place = Place::new();
        let work = place.path("work");
        match copied {
            Some(directory) => copy(directory, &work),
            None => std::fs::create_dir(&work).expect("ours"),
        }
        std::fs::create_dir(place.path("home")).expect("ours");
        let program = Path::new(env!("CARGO_BIN_EXE_saggar")).parent().expect("it is in a directory");
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
        let mut child = Command::new("/bin/bash")
            .args(["--noprofile", "--norc"])
            .env_clear()
            .envs([("PATH", path.as_str()), ("LANG", "C.UTF-8"), ("SAGGAR_PORT", "0")])
            .env("HOME", place.path("home"))
            .env("SAGGAR_DATA_DIR", place.path("data"))
            .env("SAGGAR_SECRETS_KEY_FILE", place.path("secrets.key"))
            .current_dir(&work)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("bash is there");
        let stdin = child.stdin.take().expect("a pipe");
        let lines = follow(child.stdout.take().expect("a pipe"));
        Self { child, stdin, lines, place, port: None, beside: Vec::new(), names: Names::new() }
    }

    pub fn write(&self, name: &str, content: &str) {
        let path = self.place.path("work").join(name);
        std::fs::create_dir_all(path.parent().expect("below the directory")).expect("ours");
        std::fs::write(path, self.in_place(content)).expect("ours");
    }

    /// Runs a command of a page and gives what it printed, in the page's words.
    pub fn run(&mut self, command: &str) -> Printed {
        let command = self.in_place(command);
        // A group keeps variables and the directory. Its stdin is not this script.
        let typed = format!("{{ {command}\n}} </dev/null 2>&1\nprintf '\\n%s %s\\n' '{MARK}' \"$?\"\n");
        self.stdin.write_all(typed.as_bytes()).expect("the shell reads");
        let mut lines = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|error| {
                panic!("{command}\nended the shell or hangs ({error}); it printed {lines:#?}\n{}", self.logs())
            });
            if let Some(status) = line.strip_prefix(MARK) {
                let status = status.trim().parse().expect("a status");
                // The line end before the mark is ours, and pages don't show empty lines at the end.
                while lines.last().is_some_and(|line: &String| line.is_empty()) {
                    lines.pop();
                }
                return Printed { status, lines };
            }
            lines.push(self.on_page(&line));
        }
    }

    /// Starts a server or a worker beside the shell, and waits until it has printed what the page shows.
    pub fn run_beside(&mut self, command: &str, shown: &[String]) {
        let is_server = command.starts_with("saggar serve");
        if is_server {
            self.stop();
        }
        let number = self.beside.len();
        let (pipe, log) = (self.place.path(&format!("pipe{number}")), self.place.path(&format!("log{number}")));
        // A server prints for people on stdout and logs on stderr; a worker only logs.
        let streams = if is_server {
            format!(">'{}' 2>'{}'", pipe.display(), log.display())
        } else {
            format!("2>'{}' >'{}'", pipe.display(), log.display())
        };
        let started = self.run(&format!("rm -f '{0}'; mkfifo '{0}'; {command} {streams} & echo $!", pipe.display()));
        let pid = started.lines.last().expect("the shell says its number").clone();
        let lines = follow(std::fs::File::open(&pipe).expect("ours"));
        self.beside.push(Beside { pid, lines, log });
        let mut printed: Vec<String> = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let received = self.beside.last().expect("just begun").lines.recv_timeout(left);
            let line = received.unwrap_or_else(|error: RecvTimeoutError| {
                panic!(
                    "{command}\ndidn't print what is shown ({error}):\n{shown:#?}\nbut {printed:#?}\n{}",
                    self.logs()
                )
            });
            if let Some(url) = line.strip_prefix("listening on ") {
                self.port = url.rsplit(':').next().map(str::to_owned);
                let port = self.port.clone().expect("a URL has a port");
                printed = printed.iter().map(|line: &String| line.replace(&port, PAGE_PORT)).collect();
                self.run(&format!("export SAGGAR_URL=http://127.0.0.1:{port}"));
            }
            printed.push(self.on_page(&line));
            let mut names = self.names.clone();
            if (!is_server || self.port.is_some()) && agrees(shown, &printed, &mut names) {
                self.names = names;
                return;
            }
        }
    }

    /// Stops everything beside the shell, in the opposite order, and waits for it.
    pub fn stop(&mut self) {
        let mut beside = std::mem::take(&mut self.beside);
        while let Some(last) = beside.pop() {
            let stopped = self.run(&format!("kill {0} && wait {0}", last.pid));
            assert_eq!(stopped.status, 0, "{stopped:?}: {}", std::fs::read_to_string(&last.log).unwrap_or_default());
        }
        self.port = None;
    }

    /// Stops everything, the sandboxes too.
    pub fn end(mut self) {
        self.stop();
        drop(self.stdin);
        self.child.wait().expect("our own child");
        crate::sweep::now(&self.place.path(""));
    }

    /// A text of the page with what is true here.
    fn in_place(&self, text: &str) -> String {
        let port = self.port.as_deref().unwrap_or("0");
        real(text, &self.names)
            .replace(PAGE_PORT, port)
            .replace(PAGE_DATA, &self.place.path("data").display().to_string())
    }

    /// And the other way round.
    fn on_page(&self, text: &str) -> String {
        let text = text.trim_end().replace(&self.place.path("data").display().to_string(), PAGE_DATA);
        match &self.port {
            Some(port) => text.replace(port.as_str(), PAGE_PORT),
            None => text,
        }
    }

    fn logs(&self) -> String {
        self.beside.iter().map(|beside| std::fs::read_to_string(&beside.log).unwrap_or_default()).collect()
    }
}

/// How many lines a program may be ahead of its reader before it has to wait.
const LINES_AHEAD: usize = 10_000;

/// The lines of a stream, read beside us until its end.
fn follow(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = sync_channel(LINES_AHEAD);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            // Once the receiver is gone, reading on keeps the writer from stalling.
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
        }
    });
    receiver
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("ours");
    let mut waiting = VecDeque::from([(from.to_owned(), to.to_owned())]);
    while let Some((from, to)) = waiting.pop_front() {
        for entry in std::fs::read_dir(&from).expect("a directory of the repository").map(|entry| entry.expect("ours"))
        {
            let target = to.join(entry.file_name());
            if entry.file_type().expect("ours").is_dir() {
                std::fs::create_dir(&target).expect("ours");
                waiting.push_back((entry.path(), target));
            } else {
                std::fs::copy(entry.path(), target).expect("ours");
            }
        }
    }
}

/// How long a command is repeated until it shows what the page does.
pub const REPEATED: Duration = PATIENCE;
