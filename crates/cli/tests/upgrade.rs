//! An upgrade: a server of an earlier version is replaced by this one over the same data directory, while its sandboxes, programs and runs
//! go on; and the binary of a server is replaced while it runs.
//!
//! The environment variable `OLD_SAGGAR` names the earlier binary; `make test-upgrade` builds one and sets it. Without it there is
//! nothing to upgrade from, and these tests say so and do nothing.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod http;
mod runs;

use std::path::PathBuf;

use http::{Server, eventually, stdout_of};
use serde_json::{Value, json};

/// The fields of a sandbox's spec and life, as many as a request has.
fn everything() -> Value {
    json!({
        "template": "base",
        "labels": { "team": "red", "kind": "whole" },
        "env": { "A": "1", "B": "two words" },
        "limits": { "memory": "512M", "cpus": 0.5, "pids": 64, "disk": "100M", "files": 256, "output": "64K" },
        "ttl": "10m",
        "on_timeout": "pause",
        "idle_timeout": "5m",
        "network": "none",
        "user": "root",
        "auto_resume": true,
        "ports": { "public": [8080] },
    })
}

fn new_program() -> PathBuf {
    env!("CARGO_BIN_EXE_saggar").into()
}

/// The earlier binary, if there is one.
fn old_program() -> Option<PathBuf> {
    let old = std::env::var_os("OLD_SAGGAR").map(PathBuf::from);
    if old.is_none() {
        eprintln!("not tried: OLD_SAGGAR names no earlier binary; `make test-upgrade` does all of it");
    }
    old
}

/// Everything that a server holds at the moment of the upgrade.
struct Held {
    whole: String,
    paused: String,
    busy: String,
    /// What is followed of the busy one.
    stream: String,
    seen: Vec<http::Event>,
    run: String,
    run_sandbox: String,
    /// As the old server showed them.
    shown: Vec<Value>,
    /// Made ahead, without an owner.
    pooled: Vec<String>,
}

const ONCE: &str = "Idempotency-Key: the-one";

fn create_once(server: &Server) -> Value {
    let body = everything().to_string();
    server.request("POST", "/api/v1/sandboxes", &["Content-Type: application/json", ONCE], body.as_bytes()).expect(201)
}

fn address(created: &Value) -> String {
    format!("/api/v1/sandboxes/{}", created["id"].as_str().expect("it has an id"))
}

/// Sandboxes that have a supervisor.
fn held_ids(server: &Server) -> Vec<String> {
    let entries = std::fs::read_dir(server.data().join("control")).expect("there is one").flatten();
    let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".sock")?.to_owned()));
    names.filter(|name| name.starts_with("sbx_")).collect()
}

fn listed_ids(server: &Server) -> Vec<String> {
    let list = server.get("/api/v1/sandboxes").expect(200);
    list["items"].as_array().expect("a list").iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

fn fill(server: &Server) -> Held {
    let whole = address(&create_once(server));
    server.put(&format!("{whole}/files?path=/root/kept"), b"kept").expect(200);
    let paused = server.sandbox_with(&json!({ "labels": { "kind": "paused" }, "ttl": "10m" }));
    server.sh(&paused, "echo kept > kept");
    server.post(&format!("{paused}/pause"), &json!({})).expect(200);
    let busy = server.sandbox_with(&json!({ "ttl": "10m" }));
    let script = "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo line $i; sleep 0.05; done; echo last";
    let started = server.post(&format!("{busy}/execs"), &json!({ "command": script, "wait": false })).expect(201);
    let stream = format!("{busy}/execs/{}/stream", started["id"].as_str().unwrap());
    let mut read = server.follow("GET", &stream, &[], b"");
    let seen = vec![read.until("started").remove(0), read.next().expect("some output")];
    let run = runs::start(server, json!([{ "calls": [runs::gated()] }, { "text": "finished" }]));
    let run_sandbox = runs::until_gated(server);
    let mut pooled = Vec::new();
    eventually("one is made ahead", || {
        let listed = listed_ids(server);
        pooled = held_ids(server).into_iter().filter(|id| !listed.contains(id)).collect();
        pooled.len() == 1
    });
    let shown = [&whole, &paused, &busy].map(|sandbox| server.get(sandbox).expect(200)).into();
    Held { whole, paused, busy, stream, seen, run, run_sandbox, shown, pooled }
}

/// What the new server must find, and be able to do.
fn check(server: &Server, mut held: Held) {
    let shown: Vec<Value> =
        [&held.whole, &held.paused, &held.busy].map(|sandbox| server.get(sandbox).expect(200)).into();
    assert_eq!(shown, held.shown, "each is as it was");
    assert_eq!(address(&create_once(server)), held.whole, "the request that made it is remembered");

    assert_eq!(server.get(&format!("{}/files?path=/root/kept", held.whole)).body, b"kept");
    server.put(&format!("{}/files?path=/root/more", held.whole), b"more").expect(200);
    let said = server.sh(&held.whole, "cat kept more; echo; echo $A-$B; id -u; ulimit -n");
    assert_eq!(said["stdout"], "keptmore\n1-two words\n0\n256\n", "{said}");

    // The program that was followed goes on, also over a pause by the new server; nothing is missed and nothing comes twice.
    let resume = |seen: &[http::Event]| format!("Last-Event-ID: {}", seen.last().unwrap().id);
    let mut read = server.follow("GET", &held.stream, &[&resume(&held.seen)], b"");
    read.until("started");
    held.seen.push(read.next().expect("more output"));
    assert_eq!(server.post(&format!("{}/pause", held.busy), &json!({})).expect(200)["state"], "paused");
    assert_eq!(server.post(&format!("{}/resume", held.busy), &json!({})).expect(200)["state"], "running");
    server.sh(&held.busy, "touch /tmp/stop");
    held.seen.extend(server.follow("GET", &held.stream, &[&resume(&held.seen)], b"").until("exited"));
    let text = stdout_of(&held.seen);
    let lines: Vec<&str> = text.lines().collect();
    let expected: Vec<String> = (1..lines.len()).map(|line| format!("line {line}")).chain(["last".into()]).collect();
    assert_eq!(lines, expected);

    assert_eq!(server.post(&format!("{}/resume", held.paused), &json!({})).expect(200)["state"], "running");
    assert_eq!(server.sh(&held.paused, "cat kept")["stdout"], "kept\n");

    server.sh(&held.run_sandbox, "touch /tmp/go");
    runs::until_completed(server, &held.run);
    assert_eq!(runs::said(&runs::results(server, &held.run)[0])["stdout"], "went\n");

    // Ends are recorded: of one that is asked to end, and of one whose supervisor is killed.
    runs::kill_now(runs::supervisor_of(server, &held.paused));
    eventually("its end is noticed", || server.get(&held.paused).expect(200)["state"] == "ended");
    assert_eq!(server.get(&held.paused).expect(200)["ended"]["reason"], "supervisor_lost");
    for sandbox in [&held.whole, &held.busy] {
        assert_eq!(server.delete(sandbox).expect(200)["ended"]["reason"], "killed");
    }
    let exec = server.get(held.stream.trim_end_matches("/stream")).expect(200);
    assert_eq!((&exec["status"], &exec["exit_code"]), (&json!("exited"), &json!(0)), "{exec}");
}

const FLAGS: [&str; 4] = ["--pool-min", "1", "--pool-max", "1"];

#[test]
fn a_new_server_takes_over_from_an_old_one_that_was_stopped() {
    let Some(old) = old_program() else { return };
    let mut server = Server::start_from(old, &FLAGS);
    let held = fill(&server);
    assert_eq!(server.stop(), Some(0));
    server.program = new_program();
    server.begin();
    check(&server, held);
}

#[test]
fn a_new_server_takes_over_from_an_old_one_that_was_killed() {
    let Some(old) = old_program() else { return };
    let mut server = Server::start_from(old, &FLAGS);
    let held = fill(&server);
    server.kill();
    server.program = new_program();
    server.begin();
    // A pool sandbox of the old server serves the next plain request.
    let given = server.sandbox_with(&json!({ "env": { "C": "3" } }));
    assert_eq!([given.rsplit('/').next().unwrap()], *held.pooled);
    assert_eq!(server.sh(&given, "echo $C")["stdout"], "3\n");
    check(&server, held);
}

/// A package manager replaces the file; the server goes on, and starts supervisors from what is there now.
#[test]
fn an_old_server_whose_binary_was_replaced_makes_sandboxes_with_the_new_one() {
    let Some(old) = old_program() else { return };
    let place = http::new_directory();
    let program = place.join("saggar");
    std::fs::copy(&old, &program).unwrap();
    let mut server = Server::start_from(program.clone(), &["--pool-min", "0", "--pool-max", "0"]);
    std::fs::copy(new_program(), place.join("next")).unwrap();
    std::fs::rename(place.join("next"), &program).unwrap();
    let sandbox = address(&create_once(&server));
    assert_eq!(server.sh(&sandbox, "echo $A-$B; id -u; ulimit -n")["stdout"], "1-two words\n0\n256\n");
    let shown = server.get(&sandbox).expect(200);
    assert_eq!(server.stop(), Some(0));
    server.begin();
    assert_eq!(server.get(&sandbox).expect(200), shown);
    assert_eq!(server.post(&format!("{sandbox}/pause"), &json!({})).expect(200)["state"], "paused");
    assert_eq!(server.delete(&sandbox).expect(200)["ended"]["reason"], "killed");
    drop(server);
    std::fs::remove_dir_all(place).unwrap();
}

/// Going back is refused where the store has a newer version; where it has not, the old server takes over. Nothing in between.
#[test]
fn going_back_is_refused_or_loses_nothing() {
    let Some(old) = old_program() else { return };
    let mut server = Server::start_with(&FLAGS);
    let held = fill(&server);
    assert_eq!(server.stop(), Some(0));
    let version = |program: &PathBuf| {
        let place = http::new_directory();
        let mut fresh = Server::start_from(program.clone(), &[]);
        let database = fresh.data().join("saggar.db");
        fresh.stop();
        // Bytes 60 to 63 of a database are its `user_version`.
        let bytes = std::fs::read(database).unwrap();
        std::fs::remove_dir_all(place).unwrap();
        u32::from_be_bytes(bytes[60..64].try_into().unwrap())
    };
    server.program = old.clone();
    if version(&old) < version(&new_program()) {
        let refused = server.command().output().expect("the old binary runs");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(125) && said.contains("version"), "{said}");
        server.program = new_program();
    }
    server.begin();
    check(&server, held);
}
