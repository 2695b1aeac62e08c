//! Runs over HTTP: begun once for each request, followed, told things, forked, replayed, and not harmed by the server's death.

mod http;

use http::{Server, command, eventually};
use serde_json::{Value, json};

fn agent(turns: Value) -> Value {
    json!({ "agent": {
        "name": "tester",
        "task": "test",
        "model": { "provider": "scripted", "script": { "turns": turns } },
        "tools": { "shell": {}, "files": {}, "wait": {}, "ask_human": {} },
    } })
}

fn shell(line: &str) -> Value {
    json!({ "tool": "shell", "arguments": { "command": line } })
}

fn start(server: &Server, turns: Value) -> String {
    let run = server.post("/api/v1/runs", &agent(turns)).expect(201);
    run["id"].as_str().expect("it has an id").to_owned()
}

fn show(server: &Server, run: &str) -> Value {
    server.get(&format!("/api/v1/runs/{run}")).expect(200)
}

fn until_state(server: &Server, run: &str, state: &str) -> Value {
    let mut shown = Value::Null;
    eventually(&format!("the run is {state}"), || {
        shown = show(server, run);
        shown["state"] == state
    });
    shown
}

/// What tools gave, in order. A page may be short (a fork's first ones are its parent's), and the last is empty.
fn results(server: &Server, run: &str) -> Vec<String> {
    let (mut given, mut after) = (Vec::new(), 0);
    loop {
        let page = server.get(&format!("/api/v1/runs/{run}/journal?after={after}")).expect(200);
        let entries = page["items"].as_array().expect("a list");
        if entries.is_empty() {
            return given;
        }
        after = page["last_seq"].as_u64().expect("a number");
        let texts = entries.iter().filter_map(|entry| entry["result"]["returned"]["content"]["text"].as_str());
        given.extend(texts.map(str::to_owned));
    }
}

#[test]
fn a_program_under_way_when_the_server_is_killed_is_found_again_and_not_run_twice() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let run = start(
        &server,
        json!([
            { "calls": [
                shell("echo once >> /tmp/ledger; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo went"),
                shell("cat /tmp/ledger"),
            ] },
            { "text": "finished" },
        ]),
    );
    let mut sandbox = String::new();
    eventually("the program runs", || {
        // The sandbox is in the list before the run's row names it.
        let list = server.get("/api/v1/sandboxes").expect(200);
        sandbox = list["items"][0]["id"].as_str().unwrap_or_default().to_owned();
        list["items"][0]["state"] == "running"
            && server.sh(&format!("/api/v1/sandboxes/{sandbox}"), "cat /tmp/ledger")["exit_code"] == 0
    });
    server.kill();
    server.begin();
    server.sh(&format!("/api/v1/sandboxes/{sandbox}"), "touch /tmp/go");
    let finished = until_state(&server, &run, "finished");
    assert_eq!(finished["outcome"]["outcome"], "completed", "{finished}");
    assert_eq!(finished["sandbox_id"], sandbox);
    let given = results(&server, &run);
    let said: Vec<Value> = given.iter().map(|text| serde_json::from_str(text).expect("JSON")).collect();
    assert_eq!((&said[0]["stdout"], &said[1]["stdout"]), (&json!("went\n"), &json!("once\n")));
    let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!((&report["agreed"], &report["divergence"]), (&report["entries"], &Value::Null));
    eventually("its sandbox ends with it", || {
        server.get(&format!("/api/v1/sandboxes/{sandbox}")).expect(200)["state"] == "ended"
    });
}

#[test]
fn a_run_asks_is_answered_forked_exported_and_tested() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let ask = json!({ "tool": "ask_human", "arguments": { "question": "Which?" } });
    let write =
        json!({ "tool": "files", "arguments": { "op": "write", "path": "/tmp/a", "content": "x".repeat(20_000) } });
    let read = json!({ "tool": "files", "arguments": { "op": "read", "path": "/tmp/a" } });
    let run = start(&server, json!([{ "calls": [write, read, ask] }, { "text": "finished" }]));
    let asking = until_state(&server, &run, "asking");
    let sandbox = asking["sandbox_id"].as_str().expect("it has one").to_owned();
    eventually("its sandbox sleeps while nothing is to be done", || {
        server.get(&format!("/api/v1/sandboxes/{sandbox}")).expect(200)["state"] == "paused"
    });
    let decide = json!({ "decision": "retry" });
    server.post(&format!("/api/v1/runs/{run}/steps/1/decide"), &decide).problem(409, "conflict");
    let signal = json!({ "id": "one", "name": "answer", "body": "This." });
    for _ in 0..2 {
        assert_eq!(server.post(&format!("/api/v1/runs/{run}/signal"), &signal).status, 202);
    }
    let mut events = server.follow("GET", &format!("/api/v1/runs/{run}/journal"), &["Accept: text/event-stream"], b"");
    let mut last = Value::Null;
    while let Some(event) = events.next() {
        last = event.data;
    }
    assert_eq!(last["outcome"], json!({ "outcome": "completed", "answer": { "text": "finished" } }), "{last}");
    assert_eq!(results(&server, &run), ["20000 bytes written", "This."], "what is long is beside the journal");
    server.post(&format!("/api/v1/runs/{run}/signal"), &signal).problem(409, "conflict");

    let fork =
        server.post(&format!("/api/v1/runs/{run}/fork"), &json!({ "at_step": 3, "message": "Again." })).expect(201);
    assert_eq!((&fork["generation"], &fork["parent"]["run_id"]), (&json!(1), &json!(run)));
    let fork = fork["id"].as_str().expect("it has an id");
    until_state(&server, fork, "asking");
    server.post(&format!("/api/v1/runs/{fork}/signal"), &json!({ "name": "answer", "body": "That." }));
    until_state(&server, fork, "finished");
    assert_eq!(results(&server, fork), ["20000 bytes written", "That."]);
    server.post(&format!("/api/v1/runs/{run}/fork"), &json!({ "at_step": 99 })).problem(409, "conflict");

    let fixture = server.get(&format!("/api/v1/runs/{fork}/export")).expect(200);
    let path = server.data().join("fixture.json");
    std::fs::write(&path, fixture.to_string()).expect("a file of ours");
    let tested = command(&["test"]).arg(&path).output().expect("the binary was built");
    assert!(tested.status.success(), "{tested:?}");
    let mut edited = fixture;
    edited["entries"][3]["at"] = json!(1);
    std::fs::write(&path, edited.to_string()).expect("a file of ours");
    let tested = command(&["test"]).arg(&path).output().expect("the binary was built");
    assert_eq!(tested.status.code(), Some(1), "{tested:?}");
}

#[test]
fn the_same_request_is_one_run_and_anothers_is_not_there() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let body = agent(json!([{ "text": "finished" }])).to_string();
    let headers = ["Idempotency-Key: one", "Content-Type: application/json"];
    let first = server.request("POST", "/api/v1/runs", &headers, body.as_bytes()).expect(201);
    let again = server.request("POST", "/api/v1/runs", &headers, body.as_bytes()).expect(201);
    assert_eq!(first["id"], again["id"]);
    let other = agent(json!([{ "text": "other" }])).to_string();
    server.request("POST", "/api/v1/runs", &headers, other.as_bytes()).problem(409, "idempotency_mismatch");
    until_state(&server, first["id"].as_str().expect("it has an id"), "finished");
    let listed = server.get("/api/v1/runs?state=finished").expect(200);
    assert_eq!(listed["items"].as_array().expect("a list").len(), 1);
    server.get("/api/v1/runs/run_aaaaaaaaaaaaaaaaaaaaaaaaaa").problem(404, "not_found");
    let mut wrong = agent(json!([]));
    wrong["agent"]["tools"]["telephone"] = json!({});
    server.post("/api/v1/runs", &wrong).problem(400, "invalid_value");
}
