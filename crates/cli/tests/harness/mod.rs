//! Drives the real binary on the real kernel, in its own data directory and workspace.
//!
//! Every wait is bounded: a `saggar` that hangs fails its test after [`PATIENCE`] and is killed.

// Each test file links its own copy and uses a part of it.
#![allow(dead_code)]

pub mod git;
pub mod held;
pub mod image;
pub mod probe;
#[allow(clippy::duplicate_mod, reason = "a test file may link both kinds of helpers, or one")]
#[path = "../sweep/mod.rs"]
mod sweep;
pub mod tree;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Time limit of a single `saggar`.
pub const PATIENCE: Duration = Duration::from_secs(100);

/// A directory to run `saggar` in, removed on drop with everything in it.
pub struct Place {
    root: PathBuf,
}

/// Copies a built `saggar` to where every user may execute it, with the full program that builds for tests have beside it.
pub fn copy_program(built: impl AsRef<Path>, to: &Path) {
    let built = built.as_ref();
    std::fs::copy(built, to).expect("there is room");
    let (full, beside) = (built.with_file_name("saggar-full"), to.with_file_name("saggar-full"));
    if full.exists() && std::fs::hard_link(&full, &beside).is_err() {
        std::fs::copy(&full, &beside).expect("there is room");
    }
}

/// The result of a finished `saggar`.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Place {
    /// A new directory under the system's temporary directory, not world-readable.
    pub fn new() -> Self {
        let root = PathBuf::from(format!(
            "{}/saggar-test-{}-{}",
            std::env::temp_dir().display(),
            std::process::id(),
            unique()
        ));
        std::fs::create_dir_all(root.join("workspace")).expect("the temporary directory is writable");
        let root = root.canonicalize().expect("just made");
        sweep::when_gone(&root);
        Self { root }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A directory for `--workspace`, empty at first.
    pub fn workspace(&self) -> PathBuf {
        self.path("workspace")
    }

    /// Writes a file, creating its directories.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("names are relative")).expect("ours");
        std::fs::write(&path, content).expect("ours");
        path
    }

    /// A `saggar` with its own data directory and only PATH of our environment.
    pub fn command(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saggar"));
        command.args(arguments).env("SAGGAR_DATA_DIR", self.path("data")).current_dir(&self.root);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `saggar run FLAGS -- PROGRAM`, waited for.
    pub fn run(&self, flags: &[&str], program: &[&str]) -> Done {
        finish(self.spawn(flags, program))
    }

    /// `saggar run FLAGS -- /bin/sh -c SCRIPT`, waited for.
    pub fn sh(&self, flags: &[&str], script: &str) -> Done {
        self.run(flags, &["/bin/sh", "-c", script])
    }

    /// `saggar run --json FLAGS -- PROGRAM`, waited for and read.
    pub fn json(&self, flags: &[&str], program: &[&str]) -> Value {
        let flags: Vec<&str> = ["--json"].iter().chain(flags).copied().collect();
        self.run(&flags, program).json()
    }

    /// `saggar run FLAGS -- PROGRAM`, started.
    pub fn spawn(&self, flags: &[&str], program: &[&str]) -> Child {
        let arguments = ["run"].iter().chain(flags).chain(["--"].iter()).chain(program);
        self.command(arguments).spawn().expect("the binary was built")
    }

    /// The records of live sandboxes in this place's data directory.
    pub fn records(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path("data/sandboxes")) else { return Vec::new() };
        entries.map(|entry| entry.expect("ours").file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return sweep::now(&self.root);
        }
        // If this fails, the rest is swept when the process ends.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

impl Done {
    pub fn json(&self) -> Value {
        serde_json::from_str(self.stdout.trim_end()).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }
}

/// Reads a `saggar`'s output until it ends, and kills it after a time limit.
pub fn finish(mut child: Child) -> Done {
    let read = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                stream.read_to_end(&mut bytes).expect("a pipe of ours");
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(child.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = read(child.stderr.take().map(|stream| Box::new(stream) as _));
    let pid = rustix::process::Pid::from_child(&child);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("our own child");
    let timeout = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut polls = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let ready = rustix::event::poll(&mut polls, Some(&timeout)).expect("a pidfd can be polled");
    if ready == 0 {
        child.kill().expect("it still runs");
    }
    let status = child.wait().expect("our own child");
    let (stdout, stderr) = (stdout.join().expect("reader"), stderr.join().expect("reader"));
    assert!(ready > 0, "saggar hung; stdout {stdout:?}, stderr {stderr:?}");
    let code = std::os::unix::process::ExitStatusExt::signal(&status)
        .map_or_else(|| status.code().expect("no signal, so a code"), |signal| -signal);
    Done { code, stdout, stderr }
}

/// Writes a `saggar`'s stdin and closes it.
pub fn feed(child: &mut Child, bytes: &[u8]) {
    child.stdin.take().expect("spawned with a pipe").write_all(bytes).expect("it reads");
}

/// Whether we are root: the kernel allows different things, and some tests are about the difference.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reports that a test can't run here.
pub fn not_here(why: &str) {
    eprintln!("NOT RUN HERE: {why}");
}

/// Lets real time pass, for tests that depend on the age of a file.
pub fn wait_for_clock(time: Duration) {
    let end = std::time::Instant::now() + time;
    while let Some(left) = end.checked_duration_since(std::time::Instant::now()).filter(|left| !left.is_zero()) {
        let left = rustix::event::Timespec::try_from(left).expect("a few seconds");
        rustix::event::poll(&mut [], Some(&left)).expect("nothing to wait for but time");
    }
}

/// Every cgroup directory of ours on this host.
pub fn cgroups() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        {
            if entry.file_name().to_string_lossy().starts_with("saggar-") {
                found.push(entry.path());
            }
            waiting.push(entry.path());
        }
    }
    found
}

/// The cgroup directories of one sandbox, which are named by a hash of its id; empty if the id is invalid.
pub fn cgroups_of(sandbox: &str) -> Vec<PathBuf> {
    let Some(id) = saggar_domain::SandboxId::parse(sandbox) else { return Vec::new() };
    let name = format!("saggar-{}", id.alias());
    cgroups().into_iter().filter(|path| path.file_name().is_some_and(|last| last == name.as_str())).collect()
}

fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A path as text, for messages.
pub fn show(path: &Path) -> String {
    path.display().to_string()
}
