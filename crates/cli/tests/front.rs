//! One file, two programs: the front that starts, and the full program that it carries.

mod harness;
#[allow(clippy::duplicate_mod, reason = "the helpers of servers and of the command line are apart")]
mod http;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use harness::{Place, finish, is_root, not_here};
use http::{Server, eventually};
use rustix::fs::{MemfdFlags, memfd_create};

const FRONT: &str = env!("CARGO_BIN_EXE_saggar");
const FULL: &str = env!("CARGO_BIN_EXE_saggar-full");

/// As `make build` leaves it.
fn packed() -> Vec<u8> {
    let read = |path: &str| std::fs::read(path).expect("it was built");
    saggar_payload::pack(&read(FRONT), &read(FULL)).expect("both are ours")
}

fn write_program(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("there is room");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("ours");
}

fn saggar(place: &Place, program: &Path, arguments: &[&str]) -> harness::Done {
    let mut command = Command::new(program);
    command.args(arguments).env("SAGGAR_DATA_DIR", place.path("data")).current_dir(place.path(""));
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(piped.spawn().expect("it was written"))
}

#[test]
fn the_one_file_does_everything_wherever_it_is_copied_and_whatever_it_is_called() {
    let place = Place::new();
    std::fs::create_dir(place.path("elsewhere")).expect("ours");
    let program = place.path("elsewhere/tool");
    write_program(&program, &packed());
    symlink(&program, place.path("link")).expect("ours");
    for name in [&program, &place.path("link")] {
        let version = saggar(&place, name, &["--version"]);
        assert_eq!((version.code, version.stdout), (0, format!("saggar {}\n", env!("CARGO_PKG_VERSION"))));
        let inside = saggar(&place, name, &["run", "--", "/bin/echo", "inside"]);
        assert_eq!((inside.code, inside.stdout.as_str()), (0, "inside\n"), "{}", inside.stderr);
        let completions = saggar(&place, name, &["completions", "bash"]);
        assert!(completions.code == 0 && completions.stdout.contains("--workspace"), "{}", completions.stderr);
        let kept = saggar(&place, name, &["changes", "list"]);
        assert_eq!((kept.code, kept.stdout.as_str()), (0, ""), "{}", kept.stderr);
    }
    // Found by PATH, under a name that has nothing to do with the file's.
    let mut command = Command::new("tool");
    command.arg0("whatever").arg("completions").arg("fish").env("PATH", place.path("elsewhere"));
    let output = command.stdin(Stdio::null()).output().expect("it is on the PATH");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("complete -c saggar"));
}

#[test]
fn a_server_of_the_one_file_starts_supervisors_from_it() {
    let place = Place::new();
    let program = place.path("saggar");
    write_program(&program, &packed());
    let mut command = Command::new(&program);
    command.args(["serve", "--port", "0", "--default-ttl", "60s", "--pool-max", "0", "--data-dir"]);
    command.arg(place.path("data")).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Ended(command.spawn().expect("it was written"));
    let mut lines = BufReader::new(server.0.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let mut key = String::new();
    let url = loop {
        let line = lines.next().expect("it listens");
        if let Some((_, shown)) = line.split_once("API key (shown this once): ") {
            key = shown.trim().to_owned();
        }
        if let Some(url) = line.strip_prefix("listening on ") {
            break url.trim().to_owned();
        }
    };
    let client_of = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).env("SAGGAR_URL", &url).env("SAGGAR_API_KEY", &key).stdin(Stdio::null());
        let done = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was written"));
        assert_eq!(done.code, 0, "{arguments:?}: {}", done.stderr);
        done.stdout.trim().to_owned()
    };
    let client = |arguments: &[&str]| client_of(&program, arguments);
    let id = client(&["sandbox", "create"]);
    assert_eq!(client(&["sandbox", "exec", &id, "--", "/bin/echo", "inside"]), "inside");
    let supervisors = children_of(server.0.id());
    assert!(!supervisors.is_empty());
    for process in supervisors.iter().chain([&server.0.id()]) {
        assert_eq!(std::fs::read_link(format!("/proc/{process}/exe")).expect("ours"), program);
        assert_eq!(std::fs::read_to_string(format!("/proc/{process}/comm")).expect("ours"), "saggar\n");
    }
    client(&["sandbox", "kill", &id]);
    // An upgrade replaces the file. The server goes on with the one that it was started from.
    std::fs::copy(&program, place.path("old")).expect("there is room");
    std::fs::remove_file(&program).expect("ours");
    write_program(&program, b"#!/bin/false\n");
    let client = |arguments: &[&str]| client_of(&place.path("old"), arguments);
    let id = client(&["sandbox", "create"]);
    assert_eq!(client(&["sandbox", "exec", &id, "--", "/bin/echo", "still"]), "still");
    client(&["sandbox", "kill", &id]);
}

/// A process that doesn't outlive its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It has ended already, or does now.
        let _ = self.0.kill().and_then(|()| self.0.wait().map(drop));
    }
}

#[test]
fn a_cut_or_damaged_file_says_so_and_still_runs_a_program() {
    let place = Place::new();
    let whole = packed();
    let mut changed = whole.clone();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    let cut = &whole[..whole.len() - 4096];
    let front = std::fs::read(FRONT).expect("it was built");
    for (name, bytes, why) in [
        ("cut", cut, "its end is missing"),
        ("front", &front, "its end is missing"),
        ("changed", &changed, "its bytes have changed"),
    ] {
        let program = place.path(name);
        write_program(&program, bytes);
        for arguments in [&["serve"][..], &["--help"], &["run", "--help"], &["run", "--no-such-flag"], &[]] {
            let done = saggar(&place, &program, arguments);
            assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{name} {arguments:?}");
            let expected =
                format!("error: this file of saggar is incomplete or damaged: {why} (setup_failed)\n  help: copy");
            assert!(done.stderr.starts_with(&expected), "{name} {arguments:?}: {}", done.stderr);
            assert!(!done.stderr.contains("/proc/"), "{}", done.stderr);
        }
        let inside = saggar(&place, &program, &["run", "--", "/bin/echo", "inside"]);
        assert_eq!((inside.code, inside.stdout.as_str()), (0, "inside\n"), "{}", inside.stderr);
    }
}

#[test]
fn a_file_in_memory_does_everything() {
    let place = Place::new();
    let memory = memfd_create("tool", MemfdFlags::CLOEXEC).expect("there is room");
    let mut memory = std::fs::File::from(memory);
    memory.write_all(&packed()).expect("there is room");
    // A file that is open for writing can't be executed.
    let program = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()));
    let reader = std::fs::File::open(&program).expect("ours");
    drop(memory);
    let program = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd()));
    for (arguments, expected) in [(&["completions", "bash"][..], "--workspace"), (&["run", "echo", "inside"], "inside")]
    {
        let done = saggar(&place, &program, arguments);
        assert!(done.code == 0 && done.stdout.contains(expected), "{arguments:?}: {}", done.stderr);
    }
}

#[test]
fn an_ordinary_user_needs_to_read_the_file_for_what_is_behind_the_front() {
    if !is_root() {
        return not_here("only root can make a file that another user may execute and not read");
    }
    const NOBODY: u32 = 65534;
    let place = Place::new();
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let program = place.path("saggar");
    write_program(&program, &packed());
    let by_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").env_remove("SAGGAR_DATA_DIR");
        finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it is there"))
    };
    let readable = by_nobody(&["completions", "bash"]);
    assert!(readable.code == 0 && readable.stdout.contains("--workspace"), "{}", readable.stderr);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o711)).expect("ours");
    assert_eq!(by_nobody(&["--version"]).stdout, format!("saggar {}\n", env!("CARGO_PKG_VERSION")));
    let unreadable = by_nobody(&["completions", "bash"]);
    let expected = "error: this command is in a part of saggar's file that can't be read: permission denied (setup_failed)\n  help: let this user read the file";
    assert_eq!((unreadable.code, unreadable.stdout.as_str()), (125, ""));
    assert!(unreadable.stderr.starts_with(expected), "{}", unreadable.stderr);
}

#[test]
fn the_front_carries_nothing_of_the_server() {
    // Names of functions, which a build for tests has.
    for heavy in ["sqlite3_open_v2", "tokio7runtime", "rustls", "hyper", "utoipa", "saggar_api", "saggar_http", "axum"]
    {
        let is_in = |path: &str| {
            let found = Command::new("grep").args(["--quiet", "--text", "--fixed-strings", heavy, path]).status();
            found.expect("grep is there").success()
        };
        assert!(is_in(FULL) && !is_in(FRONT), "{heavy}");
    }
}

#[test]
fn each_start_of_run_server_and_supervisor_is_at_another_address() {
    if std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").is_ok_and(|word| word.trim() != "2") {
        return not_here("this host does not randomise addresses");
    }
    let run = || {
        let place = Place::new();
        let child = place.spawn(&[], &["/bin/cat"]);
        let process = child.id();
        let found = front_of(process);
        finish(child);
        found
    };
    check_apart("saggar run", &[run(), run()]);
    let mut servers = Vec::new();
    for _ in 0..2 {
        let server = Server::start_with(&["--pool-max", "0"]);
        servers.extend([FRONT, FULL].map(|program| first_mapping(server.pid(), program).expect("it is mapped")));
        server.sandbox();
        server.sandbox();
        let supervisors: Vec<u64> = children_of(server.pid()).into_iter().map(front_of).collect();
        assert_eq!(supervisors.len(), 2);
        check_apart("supervisors", &supervisors);
    }
    check_apart("servers", &servers);
}

#[test]
fn the_full_program_may_begin_at_any_page() {
    if std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").is_ok_and(|word| word.trim() != "2") {
        return not_here("this host does not randomise addresses");
    }
    // The kernel puts large mappings at multiples of a huge page, so all that it draws is the huge page. The page within it is drawn by us:
    // that fewer than five of eight differ has a probability below one in ten million.
    const HUGE_PAGE: u64 = 2 << 20;
    let page = |_| {
        let server = Server::start_with(&["--pool-max", "0"]);
        first_mapping(server.pid(), FULL).expect("it is mapped") % HUGE_PAGE
    };
    let pages: BTreeSet<u64> = (0..8).map(page).collect();
    assert!(pages.len() >= 5, "{pages:x?}");
}

fn check_apart(what: &str, addresses: &[u64]) {
    let distinct: BTreeSet<&u64> = addresses.iter().collect();
    assert_eq!(distinct.len(), addresses.len(), "{what}: {addresses:x?}");
}

/// Where the front is in a process that is nothing else.
fn front_of(process: u32) -> u64 {
    eventually("it runs", || first_mapping(process, FRONT).is_some());
    assert_eq!(first_mapping(process, FULL), None, "the full program is in {process}");
    first_mapping(process, FRONT).expect("it is mapped")
}

/// Where the first page of a program is.
fn first_mapping(process: u32, program: &str) -> Option<u64> {
    let name = Path::new(program).canonicalize().ok()?;
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).ok()?;
    let line = maps.lines().find(|line| line.split_whitespace().nth(5).map(PathBuf::from) == Some(name.clone()))?;
    u64::from_str_radix(line.split('-').next()?, 16).ok()
}

/// Processes that a process has started, in any of its threads.
fn children_of(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let children = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    children.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}
