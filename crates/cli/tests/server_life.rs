//! Sandboxes over HTTP: created once per request, listed, changed, paused, ended, with many concurrent clients.

mod http;

use http::{Server, eventually};
use serde_json::{Value, json};

#[test]
fn the_same_key_makes_one_sandbox_and_another_request_is_a_conflict() {
    let server = Server::start();
    let create = |key: &str, body: &Value| {
        let key = format!("Idempotency-Key: {key}");
        server.request(
            "POST",
            "/api/v1/sandboxes",
            &[&key, "Content-Type: application/json"],
            body.to_string().as_bytes(),
        )
    };
    let first = create("one", &json!({ "labels": { "a": "1" } })).expect(201);
    // The same meaning, written differently.
    let again = server.request(
        "POST",
        "/api/v1/sandboxes",
        &["Idempotency-Key: one", "Content-Type: application/json"],
        b" { \"template\":\"base\",  \"labels\" : {\"a\":\"1\"} } ",
    );
    assert_eq!(again.expect(201)["id"], first["id"]);
    create("one", &json!({ "labels": { "a": "2" } })).problem(409, "idempotency_mismatch");
    assert_ne!(create("two", &json!({ "labels": { "a": "1" } })).expect(201)["id"], first["id"]);
    let empty = "Idempotency-Key: ".to_owned();
    let long = format!("Idempotency-Key: {}", "x".repeat(256));
    for header in [empty.as_str(), long.as_str()] {
        server.request("POST", "/api/v1/sandboxes", &[header], b"").problem(400, "invalid_request");
    }
    assert_eq!(server.get("/api/v1/sandboxes").expect(200)["items"].as_array().unwrap().len(), 2);
}

#[test]
fn many_with_the_same_key_at_once_make_one_sandbox() {
    let server = Server::start();
    let ids: Vec<Option<String>> = std::thread::scope(|scope| {
        let ask = || {
            let mut id = None;
            eventually("an answer", || {
                let answer = server.request("POST", "/api/v1/sandboxes", &["Idempotency-Key: same"], b"");
                // While the first is in progress the others are told to retry.
                match answer.status {
                    201 => id = Some(answer.expect(201)["id"].as_str().unwrap().to_owned()),
                    _ => {
                        answer.problem(409, "conflict");
                    }
                }
                id.is_some()
            });
            id
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(server.get("/api/v1/sandboxes").expect(200)["items"].as_array().unwrap().len(), 1);
}

#[test]
fn past_the_capacity_it_is_429_and_nothing_is_half_made() {
    let server = Server::start_with(&["--capacity", "2", "--pool-max", "0"]);
    let first = server.sandbox();
    server.sandbox();
    let refused = server.post("/api/v1/sandboxes", &json!({}));
    let problem = refused.problem(429, "capacity");
    assert_eq!(refused.header("retry-after"), Some(problem["retry_after_seconds"].to_string().as_str()));
    assert_eq!(
        server.get("/api/v1/sandboxes?state=creating,running,paused,ended").expect(200)["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    server.delete(&first).expect(200);
    server.sandbox();
}

#[test]
fn an_ended_sandbox_says_how_it_ended_and_does_nothing_more() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let exec = server.sh(&sandbox, "echo kept; echo too >&2; exit 7");
    let ended = server.delete(&sandbox).expect(200);
    assert_eq!((&ended["state"], &ended["ended"]["reason"]), (&json!("ended"), &json!("killed")));
    assert_eq!(server.delete(&sandbox).expect(200), ended);
    for (method, path) in [("POST", "execs"), ("POST", "pause"), ("POST", "resume"), ("GET", "metrics")] {
        let body = if path == "execs" { r#"{"command":"true"}"# } else { "{}" };
        let answer =
            server.request(method, &format!("{sandbox}/{path}"), &["Content-Type: application/json"], body.as_bytes());
        answer.problem(409, "sandbox_ended");
    }
    server.get(&format!("{sandbox}/files?path=/etc/hostname")).problem(409, "sandbox_ended");
    // Its output is still there, to be read and followed.
    let path = format!("{sandbox}/execs/{}", exec["id"].as_str().unwrap());
    let stored = server.get(&path).expect(200);
    assert_eq!(
        (&stored["stdout"], &stored["stderr"], &stored["exit_code"]),
        (&json!("kept\n"), &json!("too\n"), &json!(7))
    );
    let events = server.follow("GET", &format!("{path}/stream"), &[], b"").until("exited");
    assert_eq!(http::stdout_of(&events), "kept\n");
    let rest = server.follow("GET", &format!("{path}/stream"), &["Last-Event-ID: 2-0"], b"").until("exited");
    assert_eq!(http::stdout_of(&rest), "pt\n");
}

#[test]
fn pausing_freezes_and_resuming_goes_on() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let paused = server.post(&format!("{sandbox}/pause"), &json!({}));
    if paused.status == 422 {
        eprintln!("NOT RUN HERE: this host has no freezer");
        return;
    }
    assert_eq!(paused.expect(200)["state"], "paused");
    server.post(&format!("{sandbox}/execs"), &json!({ "command": "true" })).problem(409, "sandbox_paused");
    let resumed = server.post(&format!("{sandbox}/resume"), &json!({ "ttl": "50s" })).expect(200);
    assert_eq!((&resumed["state"], resumed["deadline"].is_string()), (&json!("running"), true));
    assert_eq!(server.sh(&sandbox, "echo on")["stdout"], "on\n");
    let waking = server.sandbox_with(&json!({ "auto_resume": true }));
    server.post(&format!("{waking}/pause"), &json!({})).expect(200);
    assert_eq!(server.sh(&waking, "echo awake")["stdout"], "awake\n");
}

#[test]
fn what_was_answered_is_what_is_read_however_often_it_changes() {
    let server = Server::start();
    let sandbox = server.sandbox();
    for round in 0..20 {
        for (verb, state) in [("pause", "paused"), ("resume", "running")] {
            assert_eq!(server.post(&format!("{sandbox}/{verb}"), &json!({})).expect(200)["state"], state);
            for _ in 0..5 {
                assert_eq!(server.get(&sandbox).expect(200)["state"], state, "round {round}, after {verb}");
            }
        }
    }
}

#[test]
fn no_time_at_all_is_no_lifetime() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox();
    for (method, path, body) in [
        ("POST", "/api/v1/sandboxes".to_owned(), json!({ "ttl": "0s" })),
        ("POST", "/api/v1/sandboxes".to_owned(), json!({ "idle_timeout": "0ms" })),
        ("POST", format!("{sandbox}/timeout"), json!({ "ttl": "0s" })),
        ("POST", format!("{sandbox}/resume"), json!({ "ttl": "0s" })),
        ("PATCH", sandbox.clone(), json!({ "ttl": "0s" })),
        ("PATCH", sandbox.clone(), json!({ "idle_timeout": "0s" })),
    ] {
        let answer = server.request(method, &path, &["Content-Type: application/json"], body.to_string().as_bytes());
        let problem = answer.problem(400, "invalid_value");
        assert!(problem["help"].as_str().is_some_and(|help| help.contains("5m")), "{problem}");
    }
    assert_eq!(server.get(&sandbox).expect(200)["state"], "running");
    assert_eq!(server.get("/api/v1/sandboxes").expect(200)["items"].as_array().unwrap().len(), 1);
}

#[test]
fn a_lifetime_can_be_changed_and_holds() {
    let server = Server::start_with(&["--ttl-max", "1h"]);
    let sandbox = server.sandbox_with(&json!({ "ttl": "30s", "labels": { "a": "1" } }));
    let changed = server.request(
        "PATCH",
        &sandbox,
        &["Content-Type: application/json"],
        br#"{"ttl":"40m","labels":{"b":"2"},"on_timeout":"pause","idle_timeout":"30m"}"#,
    );
    let changed = changed.expect(200);
    assert_eq!(
        (&changed["labels"], &changed["on_timeout"], &changed["idle_timeout"]),
        (&json!({ "b": "2" }), &json!("pause"), &json!("30m"))
    );
    let both = server.request(
        "PATCH",
        &sandbox,
        &["Content-Type: application/json"],
        br#"{"ttl":"1m","deadline":"2030-01-01T00:00:00Z"}"#,
    );
    both.problem(400, "contradiction");
    server.post(&format!("{sandbox}/timeout"), &json!({ "ttl": "2h" })).problem(400, "invalid_value");
    server.post(&format!("{sandbox}/timeout"), &json!({ "ttl": "50ms" })).expect(200);
    let brief = server.sandbox_with(&json!({ "ttl": "100ms" }));
    eventually("its time is up", || server.get(&brief).expect(200)["ended"]["reason"] == "timed_out");
}

#[test]
fn deleting_while_programs_start_ends_in_one_state() {
    let server = Server::start();
    for _ in 0..5 {
        let sandbox = server.sandbox();
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let exec = || server.post(&format!("{sandbox}/execs"), &json!({ "command": "sleep 60" })).status;
            let execs: Vec<_> = (0..4).map(|_| scope.spawn(exec)).collect();
            let ends: Vec<_> = (0..3).map(|_| scope.spawn(|| server.delete(&sandbox).status)).collect();
            assert!(ends.into_iter().all(|end| end.join().unwrap() == 200));
            execs.into_iter().map(|exec| exec.join().unwrap()).collect()
        });
        assert!(statuses.iter().all(|status| [200, 409].contains(status)), "{statuses:?}");
        assert_eq!(server.get(&sandbox).expect(200)["state"], "ended");
    }
}

#[test]
fn a_client_that_leaves_while_a_sandbox_is_made_leaves_none_half_made() {
    let server = Server::start();
    for _ in 0..10 {
        let mut connection = server.connect();
        http::send(&mut connection, "POST", "/api/v1/sandboxes", &[&server.authorization()], b"");
        drop(connection);
    }
    // A request may arrive after the others are served, so each one is waited for.
    eventually("none is being made", || {
        server.get("/api/v1/sandboxes?state=creating").expect(200)["items"] == json!([])
    });
    for item in server.get("/api/v1/sandboxes").expect(200)["items"].as_array().unwrap() {
        let sandbox = format!("/api/v1/sandboxes/{}", item["id"].as_str().unwrap());
        eventually("it is made", || server.get(&sandbox).expect(200)["state"] != "creating");
        assert_eq!(server.sh(&sandbox, "echo whole")["stdout"], "whole\n");
    }
}

#[test]
fn events_can_be_read_followed_and_gone_on_with() {
    let server = Server::start();
    let sandbox = server.sandbox();
    server.sh(&sandbox, "true");
    let mut live = server.follow("GET", &format!("{sandbox}/events"), &[], b"");
    let begun = live.until("exec_ended");
    server.sh(&sandbox, "printf '\\n\\nid: 99\\ndata: {\"type\":\"forged\"}\\n\\n'");
    live.until("exec_ended");
    server.delete(&sandbox).expect(200);
    let last = live.until("ended").pop().unwrap();
    assert!(live.next().is_none(), "it ends with the sandbox");
    let after = format!("Last-Event-ID: {}", begun.last().unwrap().id);
    let rest = server.follow("GET", &format!("{sandbox}/events"), &[&after], b"").until("ended");
    assert_eq!(rest.first().unwrap().id.parse::<u64>().unwrap(), begun.last().unwrap().id.parse::<u64>().unwrap() + 1);
    assert_eq!(rest.last().unwrap().data, last.data);
    for forged in ["-1", "1e3", "99999999999999999999999", "a", "1%0adata"] {
        let header = format!("Last-Event-ID: {forged}");
        let answer = server.request("GET", &format!("{sandbox}/events"), &["Accept: text/event-stream", &header], b"");
        answer.problem(400, "invalid_request");
    }
    let beyond = server.request("GET", &format!("{sandbox}/events?after=1000000"), &[], b"").expect(200);
    assert_eq!(beyond["items"], json!([]));
    let logs = server.get(&format!("{sandbox}/logs"));
    assert!(logs.text().contains("ended"), "{}", logs.text());
}

#[test]
fn what_the_host_can_give_is_told() {
    let server = Server::start();
    let capabilities = server.get("/api/v1/capabilities").expect(200);
    assert_eq!(capabilities["schema"], "saggar.capabilities/v1");
    let metrics = server.get(&format!("{}/metrics", server.sandbox())).expect(200);
    assert!(metrics["now"]["processes"].as_u64().is_some_and(|count| count >= 1), "{metrics}");
}
