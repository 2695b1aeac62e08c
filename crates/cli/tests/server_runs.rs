//! Runs over HTTP: begun once for each request, followed, told things, forked, replayed, and not harmed by the server's death.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod http;
mod runs;

use http::{Server, command, eventually};
use runs::{agent, gated, results, said, shell, start, until_completed, until_gated, until_state};
use serde_json::{Value, json};

#[test]
fn a_program_under_way_when_the_server_is_killed_is_found_again_and_not_run_twice() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let run = start(&server, json!([{ "calls": [gated(), shell("cat /tmp/ledger")] }, { "text": "finished" }]));
    let sandbox = until_gated(&server);
    server.kill();
    server.begin();
    server.sh(&sandbox, "touch /tmp/go");
    let finished = until_completed(&server, &run);
    assert!(sandbox.ends_with(finished["sandbox_id"].as_str().expect("it has one")));
    let given = results(&server, &run);
    assert_eq!((&said(&given[0])["stdout"], &said(&given[1])["stdout"]), (&json!("went\n"), &json!("begun\n")));
    let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!((&report["agreed"], &report["divergence"]), (&report["entries"], &Value::Null));
    eventually("its sandbox ends with it", || server.get(&sandbox).expect(200)["state"] == "ended");
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

#[test]
fn a_run_is_found_by_its_agent_labels_and_time_and_removed_once_it_is_over() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let ask = json!({ "tool": "ask_human", "arguments": { "question": "Which?" } });
    let mut labelled = agent(json!([{ "calls": [ask] }, { "text": "finished" }]));
    labelled["labels"] = json!({ "team": "red" });
    let run = runs::begin(&server, &labelled);
    let other = start(&server, json!([{ "text": "finished" }]));
    until_completed(&server, &other);
    let listed = |query: &str| -> Vec<String> {
        let page = server.get(&format!("/api/v1/runs?{query}")).expect(200);
        page["items"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed("label=team%3Dred"), [run.clone()]);
    assert_eq!(listed("agent=tester"), [other.clone(), run.clone()]);
    for none in ["agent=other", "label=team%3Dblue", "since=9999-01-01T00:00:00Z", "before=1970-01-02T00:00:00Z"] {
        assert_eq!(listed(none), [String::new(); 0], "{none}");
    }
    server.get("/api/v1/runs?since=yesterday").problem(400, "invalid_value");
    let asking = until_state(&server, &run, "asking");
    assert_eq!(asking["labels"], json!({ "team": "red" }));
    server.delete(&format!("/api/v1/runs/{run}")).problem(409, "conflict");
    let removed = server.delete(&format!("/api/v1/runs/{other}"));
    assert_eq!((removed.status, removed.text()), (204, String::new()));
    for path in ["", "/journal", "/replay"] {
        server.get(&format!("/api/v1/runs/{other}{path}")).problem(404, "not_found");
    }
    server.delete(&format!("/api/v1/runs/{other}")).problem(404, "not_found");
    assert_eq!(listed("agent=tester"), [run]);
}
