//! A failing test leaves no process, cgroup or directory, whether it panics or is killed.

mod harness;
mod http;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use harness::{Place, cgroups_of, held};
use http::{Server, eventually};
use serde_json::json;

/// Set for the process that fails on purpose, to the way in which it fails.
const HOW: &str = "LEFTOVERS_OF";

/// Starts what tests start, prints where it is, and fails.
fn fail(how: &str) {
    let server = Server::start_with(&["--pool-min", "1", "--pool-max", "1"]);
    let sandbox = server.sandbox_with(&json!({ "ttl": "1h" }));
    let place = Place::new();
    let supervisor = held::held(&place);
    println!(
        "\nleft {} {} {} {} end",
        server.data().display(),
        sandbox.rsplit('/').next().expect("an id"),
        place.path("data").display(),
        supervisor.sandbox
    );
    if how == "panic" {
        panic!("on purpose");
    }
    loop {
        std::thread::park();
    }
}

fn check_nothing_is_left(name: &str, how: &str) {
    if let Ok(how) = std::env::var(HOW) {
        return fail(&how);
    }
    let mut command = Command::new(std::env::current_exe().expect("ours"));
    command.args([name, "--exact", "--nocapture"]).env(HOW, how);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("ours");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("left ")).expect("it says what it left");
    let words: Vec<&str> = line.split(' ').collect();
    let [_, server, sandbox, place, held, "end"] = words[..] else { panic!("{line}") };
    assert!(!cgroups_of(sandbox).is_empty() || !harness::is_root(), "it made nothing");
    if how == "kill" {
        child.kill().expect("ours");
    }
    assert!(!child.wait().expect("ours").success(), "it did not fail");
    for data in [server, place] {
        eventually("its directory is gone", || !std::path::Path::new(data).exists());
        let processes = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
        let is_left = |text: Vec<u8>| String::from_utf8_lossy(&text).contains(data);
        let mut left = processes.filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(is_left));
        assert!(left.next().is_none(), "a server is left");
    }
    for sandbox in [sandbox, held] {
        assert_eq!(cgroups_of(sandbox), Vec::<std::path::PathBuf>::new());
    }
}

#[test]
fn a_test_that_panics_leaves_nothing() {
    check_nothing_is_left("a_test_that_panics_leaves_nothing", "panic");
}

#[test]
fn a_test_that_is_killed_leaves_nothing() {
    check_nothing_is_left("a_test_that_is_killed_leaves_nothing", "kill");
}
