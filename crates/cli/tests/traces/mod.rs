//! Observes a running `saggar` and its traces on the host: events through a pipe, processes by their command line.
//!
//! Every wait is for an event and ends after [`PATIENCE`]. Nothing sleeps.

// Each test file links its own copy and uses a part of it.
#![allow(dead_code)]

pub mod terminal;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::harness::{PATIENCE, Place, cgroups_of};

/// The event stream of one `saggar`, read as it happens.
pub struct Events {
    fifo: OwnedFd,
    path: PathBuf,
    unread: Vec<u8>,
}

impl Events {
    /// A named pipe, open at both ends, so that neither side waits for the other.
    pub fn pipe(place: &Place) -> Self {
        let path = place.path("events.fifo");
        rustix::fs::mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).expect("the place is ours");
        let fifo = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
            .expect("just made");
        Self { fifo, path, unread: Vec::new() }
    }

    /// The argument of `--events`.
    pub fn path(&self) -> &str {
        self.path.to_str().expect("places have plain names")
    }

    /// The next event of this type; earlier ones are skipped.
    pub fn wait_for(&mut self, kind: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).expect("an event is one line of JSON");
                if event["type"] == kind {
                    return event;
                }
            }
            assert!(is_ready(&self.fifo, deadline), "no event {kind:?}");
            let mut bytes = [0u8; 4096];
            let length = rustix::io::read(&self.fifo, &mut bytes).expect("polled ready");
            self.unread.extend_from_slice(&bytes[..length]);
        }
    }
}

/// Reads until `needle` has come; returns everything read so far.
pub fn read_until(stream: &impl AsFd, needle: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&seen).into_owned();
        if text.contains(needle) {
            return text;
        }
        assert!(is_ready(stream, deadline), "{needle:?} never came, only {text:?}");
        let mut bytes = [0u8; 4096];
        match rustix::io::read(stream, &mut bytes) {
            Ok(0) | Err(_) => panic!("the stream ended before {needle:?}: {text:?}"),
            Ok(length) => seen.extend_from_slice(&bytes[..length]),
        }
    }
}

/// Waits until something can be read; false if the deadline comes first.
pub fn is_ready(stream: &impl AsFd, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = timespec(left);
    let mut polls = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut polls, Some(&timeout)).expect("a descriptor of ours") > 0
}

/// Lets a process run for this time, or until it ends.
pub fn let_run(child: &Child, time: Duration) {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("our own child");
    let mut polls = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut polls, Some(&timespec(time))).expect("a pidfd can be polled");
}

pub fn signal(child: &Child, signal: Signal) {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("our own child");
    pidfd_send_signal(&pidfd, signal).expect("not reaped yet");
}

/// A number of seconds that no other test sleeps for: an argument to find processes by.
pub fn marker() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("4321.{}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Processes of this host with this word in their command line. Zombies have no command line.
pub fn processes(marker: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|line| line.contains(marker)).collect()
}

/// Waits until no process has this word in its command line. A process killed while the kernel creates a namespace
/// for it ends only when the kernel has finished that, which takes a while on a busy machine.
pub fn check_all_end(marker: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !processes(marker).is_empty() {
        assert!(Instant::now() < deadline, "these live on: {:?}", processes(marker));
        std::thread::yield_now();
    }
}

/// Asserts that nothing of a sandbox is left: no record, no cgroup. The workspace must be as empty as before.
pub fn check_nothing_left(place: &Place, sandbox: &str) {
    assert_eq!(place.records(), Vec::<String>::new(), "records are left");
    let left: Vec<PathBuf> = cgroups_of(sandbox);
    assert_eq!(left, Vec::<PathBuf>::new(), "cgroups are left");
    assert_eq!(names(&place.workspace()), Vec::<String>::new(), "something is left in the workspace");
}

/// Names in a directory, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory of ours");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("ours").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Events that a finished `saggar` wrote to a file.
pub fn events_in(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the events file was written");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("not an event ({error}): {line}")))
        .collect()
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}
