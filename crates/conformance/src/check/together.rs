//! Concurrency: sandboxes that share a workspace, and a sandbox beside its host.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::Scene;
use super::told::own_program;
use crate::enact::members;
use crate::expect::{AttemptOutcome, Observation};
use crate::fixture::manifest;

/// An attempt in its own sandbox, run by the command line, that waits for a go-ahead.
struct Companion {
    child: Child,
    said: BufReader<ChildStdout>,
    text: String,
}

impl Companion {
    /// Starts it, and waits until it reports that it is ready.
    fn start(mut command: Command) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?);
        let mut companion = Self { child, said, text: String::new() };
        while companion.said.read_line(&mut companion.text)? > 0 {
            if companion.text.contains("\"ready\"") {
                return Ok(companion);
            }
        }
        Err(std::io::Error::other("it ended before it was ready"))
    }

    /// Gives the go-ahead, and returns the attempts that succeeded.
    fn go_on(mut self) -> std::io::Result<Vec<String>> {
        drop(self.child.stdin.take());
        self.said.read_to_string(&mut self.text)?;
        self.child.wait()?;
        let seen = members(self.text.as_bytes());
        if seen.len() < 2 {
            return Err(std::io::Error::other("it attempted nothing"));
        }
        let is_open =
            |member: &&Observation| member.outcome == AttemptOutcome::Allowed && member.member != "unprotected";
        Ok(seen.iter().filter(is_open).map(|member| member.member.clone()).collect())
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // One that has ended already can't be killed, which is fine.
        let _ = self.child.kill();
        // It is waited for in either case.
        let _ = self.child.wait();
    }
}

/// `saggar run` of an attempt in this workspace.
fn run(scene: &Scene<'_>, workspace: &Path, flags: &[&str], attempt: &[&str]) -> std::io::Result<Command> {
    let mut command = own_program().ok_or(std::io::ErrorKind::NotFound)?;
    command.arg("run").arg("--data-dir").arg(scene.directory.join("data")).arg("--workspace").arg(workspace);
    command.arg("--mount").arg(format!("{}:/probe", scene.bench.attacker().display()));
    command.args(["--timeout", "30s", "--stdin", "-"]).args(flags).args(["--", "/probe/saggar-attacker"]).args(attempt);
    Ok(command)
}

/// The same, with the workspace under another name that only this run sees: a mount that ends with it.
fn under_alias(inner: &Command, workspace: &Path, alias: &Path) -> Command {
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(workspace).arg(alias);
    command.arg(inner.get_program()).args(inner.get_args());
    command
}

pub(super) fn held_together(scene: &Scene<'_>) -> Vec<Observation> {
    let (outer, alias) = (&scene.workspace, scene.directory.join("alias"));
    let inner = outer.join("inner");
    // A failure shows below: nothing starts then.
    let _ = fs::create_dir(&inner).and_then(|()| fs::create_dir(&alias));
    // Absent paths are protected in a workspace with files in it, and in `.git` if there is one.
    let _ = fs::create_dir(outer.join(".git")).and_then(|()| fs::write(inner.join("kept"), ""));
    let absent = ["change-when-told", ".saggar/", ".git/hooks/", ".git/config"];
    let one = || run(scene, outer, &[], &absent);
    let within = || run(scene, &inner, &[], &["change-when-told", ".saggar/"]);
    let around = || run(scene, outer, &["--protect", "inner/.saggar/"], &["change-when-told", "inner/.saggar/"]);
    let named = || run(scene, &alias, &[], &absent).map(|command| under_alias(&command, outer, &alias));
    type Start<'a> = &'a dyn Fn() -> std::io::Result<Command>;
    let mut pairs: Vec<(&str, Start<'_>, Start<'_>)> =
        vec![("one workspace twice", &one, &one), ("a workspace in another", &within, &around)];
    if scene.bench.is_root {
        // Only root can bind-mount a directory.
        pairs.push(("a workspace by another name", &named, &one));
    }
    let mut observations = Vec::new();
    for (member, first, second) in pairs {
        for (order, ends_first) in [("first", true), ("last", false)] {
            let open = both(first, second, ends_first).unwrap_or_else(|error| vec![error.to_string()]);
            let name = format!("{member}: the first to start ends {order}");
            observations.push(Observation::examined(name, open.is_empty(), open.join(", ")));
        }
    }
    let left: Vec<String> = manifest(outer).keys().map(|path| path.display().to_string()).collect();
    let is_clean = left
        .iter()
        .all(|path| matches!(path.as_str(), ".git" | "inner" | "inner/kept" | "unprotected" | "inner/unprotected"));
    observations.push(Observation::examined("on the host: no placeholder is left", is_clean, left.join(" ")));
    observations
}

/// Attempts that succeeded in either, when the first to start is the first or the last to end.
fn both(
    first: &dyn Fn() -> std::io::Result<Command>,
    second: &dyn Fn() -> std::io::Result<Command>,
    ends_first: bool,
) -> std::io::Result<Vec<String>> {
    let (one, other) = (Companion::start(first()?)?, Companion::start(second()?)?);
    let (early, late) = if ends_first { (one, other) } else { (other, one) };
    let mut open = early.go_on()?;
    open.extend(late.go_on()?);
    Ok(open)
}

/// Queued signals of this user's processes, by the kernel's count.
fn queued_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("SigQ:")).unwrap_or_default();
    field.split('/').next().and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

pub(super) fn host_counters_untouched(scene: &Scene<'_>) -> Vec<Observation> {
    /// Fewer than a sandbox queues, and more than a host usually has.
    const SIGNALS_MAX: u64 = 1000;
    let before = queued_signals();
    let started = run(scene, &scene.workspace, &["--files", "8192"], &["hold-counters"]).and_then(Companion::start);
    let companion = match started {
        Ok(companion) => companion,
        Err(error) => {
            return vec![Observation::examined("a sandbox that takes all there is", false, error.to_string())];
        }
    };
    let instance = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC);
    let signals = queued_signals().saturating_sub(before);
    let taken = members(companion.text.as_bytes());
    let taken = taken.iter().find(|member| member.member == "taken").map(|member| member.detail.clone());
    let ended = companion.go_on();
    let taken = taken.unwrap_or_default();
    vec![
        Observation::examined("a sandbox that takes all there is", ended.is_ok(), taken),
        Observation::examined("on the host: one more inotify instance", instance.is_ok(), ""),
        Observation::examined("on the host: no signal of it is counted", signals < SIGNALS_MAX, signals.to_string()),
    ]
}
