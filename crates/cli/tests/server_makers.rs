//! A worker dies while creating a sandbox: any server or worker can recover the row it left, without a restart of the
//! server.

mod http;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use http::{Server, command, eventually};
use serde_json::{Value, json};

/// A server that executes no runs itself, and one run for a worker.
fn with_run() -> (Server, String) {
    let server = Server::start_with(&["--runs-max", "0", "--pool-max", "0"]);
    let call = json!({ "tool": "shell", "arguments": { "command": "echo done" } });
    let run = server.post(
        "/api/v1/runs",
        &json!({ "agent": {
            "name": "tester",
            "task": "test",
            "model": { "provider": "scripted", "script": { "turns": [{ "calls": [call] }, { "text": "finished" }] } },
            "tools": { "shell": {} },
        } }),
    );
    let run = run.expect(201)["id"].as_str().expect("it has an id").to_owned();
    (server, run)
}

/// A worker that ends with its test, however that ends.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // It may already be dead.
        let _ = self.0.kill().and_then(|()| self.0.wait().map(drop));
    }
}

fn worker(server: &Server, fails_at: &str) -> Worker {
    worker_with(server, fails_at, None)
}

/// With a pipe by which it is held.
fn worker_with(server: &Server, fails_at: &str, pipe: Option<&Path>) -> Worker {
    let mut worker = command(&["worker", "--pool-max", "0", "--data-dir"]);
    worker.arg(server.data()).env("FAIL_AT", fails_at).stdout(Stdio::null());
    worker.envs(pipe.map(|pipe| ("FAIL_UNTIL", pipe)));
    Worker(worker.spawn().expect("the binary was built"))
}

/// A worker claims the run and dies at this point. Returns the row that it leaves.
fn after_death(server: &Server, point: &str) -> String {
    let died = worker(server, &format!("kill {point}")).0.wait().expect("our own child");
    assert_eq!(died.signal(), Some(9), "{point}");
    let rows = server.get("/api/v1/sandboxes?state=creating").expect(200);
    format!("/api/v1/sandboxes/{}", rows["items"][0]["id"].as_str().expect("it left one"))
}

/// A live worker finishes the run.
fn check_finished(server: &Server, run: &str) -> Value {
    let _living = worker(server, "");
    let mut shown = Value::Null;
    eventually("the run is finished", || {
        shown = server.get(&format!("/api/v1/runs/{run}")).expect(200);
        shown["state"] == "finished"
    });
    assert_eq!(shown["outcome"]["outcome"], "completed", "{shown}");
    shown
}

#[test]
fn the_next_worker_does_not_wait_for_one_that_died() {
    let (server, run) = with_run();
    let left = after_death(&server, "create/row");
    let shown = check_finished(&server, &run);
    assert!(!left.ends_with(shown["sandbox_id"].as_str().expect("it had one")), "{shown}");
    let row = server.get(&left).expect(200);
    assert_eq!((&row["state"], &row["ended"]["reason"]), (&json!("ended"), &json!("start_failed")));
}

#[test]
fn what_nobody_asks_for_again_is_settled_by_the_server() {
    let ((first, _), (second, run)) = (with_run(), with_run());
    let (without, with) = (after_death(&first, "create/row"), after_death(&second, "create/ready"));
    eventually("one without a supervisor has ended", || first.get(&without).expect(200)["state"] == "ended");
    eventually("one with a supervisor runs", || second.get(&with).expect(200)["state"] == "running");
    let shown = check_finished(&second, &run);
    assert!(with.ends_with(shown["sandbox_id"].as_str().expect("it had one")), "{shown}");
}

#[test]
fn a_server_that_starts_leaves_alone_what_a_worker_is_making() {
    let (mut server, run) = with_run();
    let pipe = server.data().join("held");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it is installed").success());
    // Held while it creates a sandbox, it keeps its lock.
    let _slow = worker_with(&server, "wait create/ready", Some(&pipe));
    assert_eq!(std::fs::read_to_string(&pipe).expect("it is there"), "reached");
    let rows = server.get("/api/v1/sandboxes?state=creating").expect(200);
    let left = rows["items"][0]["id"].as_str().expect("it is at it").to_owned();
    server.kill();
    server.begin();
    let row = format!("/api/v1/sandboxes/{left}");
    assert_eq!(server.get(&row).expect(200)["state"], "creating");
    std::fs::write(&pipe, "go on").expect("the worker reads it");
    let mut shown = Value::Null;
    eventually("the run is finished", || {
        shown = server.get(&format!("/api/v1/runs/{run}")).expect(200);
        shown["state"] == "finished"
    });
    assert_eq!(shown["sandbox_id"], left.as_str());
}
