//! Runs on a server under test: scripted agents, their results, and the processes that they depend on.

// Each test file links its own copy and uses a part of it.
#![allow(dead_code)]

#[path = "../../../runtime/tests/runs/ledger.rs"]
#[allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]
pub mod ledger;
pub mod rounds;

use rustix::process::{Pid, Signal, kill_process};
use saggar_supervisor::control::{Client, Op, Reply};
use serde_json::{Value, json};

use crate::http::{PATIENCE, Server, eventually};

/// An agent with every tool; each has its own settings.
pub fn agent_with(tools: Value, turns: Value) -> Value {
    let mut all = json!({ "shell": {}, "files": {}, "http": {}, "wait": {}, "ask_human": {} });
    for (name, tool) in tools.as_object().expect("tools by name") {
        all[name] = tool.clone();
    }
    json!({ "agent": {
        "name": "tester",
        "task": "test",
        "model": { "provider": "scripted", "script": { "turns": turns } },
        "tools": all,
    } })
}

pub fn agent(turns: Value) -> Value {
    agent_with(json!({}), turns)
}

pub fn shell(line: &str) -> Value {
    json!({ "tool": "shell", "arguments": { "command": line } })
}

pub fn http(url: &str, body: impl Into<Value>) -> Value {
    json!({ "tool": "http", "arguments": { "url": url, "body": body.into() } })
}

pub fn write_file(path: &str, content: &str) -> Value {
    json!({ "tool": "files", "arguments": { "op": "write", "path": path, "content": content } })
}

/// A line of shell that reports its start in a file, and continues when `/tmp/go` exists.
pub fn gated() -> Value {
    shell("echo begun >> /tmp/ledger; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo went")
}

pub fn begin(server: &Server, agent: &Value) -> String {
    let run = server.post("/api/v1/runs", agent).expect(201);
    run["id"].as_str().expect("it has an id").to_owned()
}

pub fn start(server: &Server, turns: Value) -> String {
    begin(server, &agent(turns))
}

pub fn show(server: &Server, run: &str) -> Value {
    server.get(&format!("/api/v1/runs/{run}")).expect(200)
}

pub fn until_state(server: &Server, run: &str, state: &str) -> Value {
    let mut shown = Value::Null;
    eventually(&format!("{run} is {state}"), || {
        shown = show(server, run);
        // These states need an action that the waiting test doesn't take.
        let is_stuck = shown["state"] == "parked" || shown["state"] == "finished";
        assert!(!is_stuck || shown["state"] == state, "{shown} {:#?}", journal(server, run));
        shown["state"] == state
    });
    shown
}

/// Waits for the end of a run, which must be completion.
pub fn until_completed(server: &Server, run: &str) -> Value {
    let finished = until_state(server, run, "finished");
    assert_eq!(finished["outcome"]["outcome"], "completed", "{finished} {:#?}", journal(server, run));
    finished
}

/// Decides about a parked step, and waits until the run has received it.
pub fn decide(server: &Server, run: &str, step: u64, decision: &Value) {
    let told = server.post(&format!("/api/v1/runs/{run}/steps/{step}/decide"), decision);
    assert_eq!(told.status, 202, "{}", told.text());
    eventually(&format!("{run} goes on"), || show(server, run)["state"] != "parked");
}

/// A run's whole journal. A page may be short (a fork's first ones are its parent's), and the last is empty.
pub fn journal(server: &Server, run: &str) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let page = server.get(&format!("/api/v1/runs/{run}/journal?after={after}")).expect(200);
        let entries = page["items"].as_array().expect("a list");
        if entries.is_empty() {
            return all;
        }
        after = page["last_seq"].as_u64().expect("a number");
        all.extend(entries.iter().cloned());
    }
}

/// The entries of one kind.
pub fn events(server: &Server, run: &str, kind: &str) -> Vec<Value> {
    journal(server, run).into_iter().filter(|entry| entry["event"] == kind).collect()
}

/// Tool results, in order.
pub fn results(server: &Server, run: &str) -> Vec<String> {
    let text = |entry: &Value| entry["result"]["returned"]["content"]["text"].as_str().map(str::to_owned);
    journal(server, run).iter().filter_map(text).collect()
}

/// The result of a `shell` step.
pub fn said(result: &str) -> Value {
    serde_json::from_str(result).unwrap_or_else(|error| panic!("not JSON ({error}): {result}"))
}

/// Waits until the program of [`gated`] runs, and returns its sandbox's path.
pub fn until_gated(server: &Server) -> String {
    let mut sandbox = String::new();
    eventually("the program runs", || {
        // The sandbox is in the list before the run's row names it.
        let list = server.get("/api/v1/sandboxes").expect(200);
        let first = &list["items"][0];
        sandbox = format!("/api/v1/sandboxes/{}", first["id"].as_str().unwrap_or_default());
        first["state"] == "running" && server.sh(&sandbox, "cat /tmp/ledger")["exit_code"] == 0
    });
    sandbox
}

/// A sandbox's supervisor.
pub fn supervisor_of(server: &Server, sandbox: &str) -> Pid {
    let id = sandbox.rsplit('/').next().expect("an address has a last part");
    let mut client = Client::connect(&server.data().join(format!("control/{id}.sock"))).expect("it lives");
    client.set_patience(PATIENCE).expect("a socket");
    let Reply::Described(description) = client.request(Op::Describe).expect("it answers") else {
        panic!("it says something else");
    };
    Pid::from_raw(i32::try_from(description.pid).expect("a pid")).expect("not zero")
}

/// A sandbox's PID 1, with which all its processes die.
pub fn first_process_of(supervisor: Pid) -> Pid {
    let mut family = vec![supervisor.as_raw_nonzero().get()];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        at += 1;
        for (pid, status) in processes() {
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            if field("PPid:").trim().parse() == Ok(parent) {
                family.push(pid);
                if field("NSpid:").split_whitespace().last() == Some("1") {
                    return Pid::from_raw(pid).expect("not zero");
                }
            }
        }
    }
    panic!("the sandbox of {supervisor:?} has no first process");
}

fn processes() -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc").expect("there is one").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // A process that has just ended has no status.
    pids.filter_map(|pid| Some((pid, std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?))).collect()
}

pub fn kill_now(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("a process of ours");
}
