//! Access control: keys, guessed ids, contradictions, manipulated paths.

mod http;

use http::Server;
use serde_json::{Value, json};

const UNKNOWN: &str = "/api/v1/sandboxes/sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa";

#[test]
fn without_a_good_key_nothing_is_told() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let wrong = format!("Authorization: Bearer {}", http::altered(&server.key));
    let long = format!("Authorization: Bearer sgr_{}", "a".repeat(5000));
    let injected = "Authorization: Bearer sgr_' OR 1=1 --";
    let none = "Authorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.";
    for headers in [
        &[][..],
        &[wrong.as_str()],
        &[long.as_str()],
        &[injected],
        &[none],
        &["Authorization: Basic c2dyOng="],
        &["X-API-Key: ../../etc/passwd"],
    ] {
        for (method, path) in [
            ("GET", sandbox.as_str()),
            ("GET", UNKNOWN),
            ("GET", "/api/v1/sandboxes"),
            ("POST", "/api/v1/sandboxes"),
            ("DELETE", sandbox.as_str()),
            ("GET", "/api/v1/keys"),
            ("GET", "/api/v1/capabilities"),
        ] {
            let answer = server.request_without_key(method, path, headers, b"");
            let problem = answer.problem(401, "unauthorized");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{method} {path}");
            assert!(!problem.to_string().contains("sbx_"), "{problem}");
        }
    }
    let by_header = format!("X-API-Key: {}", server.key);
    server.request_without_key("GET", &sandbox, &[&by_header], b"").expect(200);
}

#[test]
fn a_revoked_key_stops_at_once_and_an_expired_one_by_itself() {
    let server = Server::start();
    let created = server.post("/api/v1/keys", &json!({ "name": "ci" })).expect(201);
    let bearer = format!("Authorization: Bearer {}", created["secret"].as_str().unwrap());
    // Twice, so that the cached result is covered too.
    for _ in 0..2 {
        server.request_without_key("GET", "/api/v1/sandboxes", &[&bearer], b"").expect(200);
    }
    let key = format!("/api/v1/keys/{}", created["id"].as_str().unwrap());
    server.delete(&key).expect(204);
    server.request_without_key("GET", "/api/v1/sandboxes", &[&bearer], b"").problem(401, "unauthorized");
    server.delete(&key).expect(204);
    let listed = server.get("/api/v1/keys").expect(200);
    assert!(!listed.to_string().contains(created["secret"].as_str().unwrap()));
    assert!(listed["items"][0]["revoked_at"].is_string(), "{listed}");

    let brief = server.post("/api/v1/keys", &json!({ "name": "brief", "expires": "1ms" })).expect(201);
    let bearer = format!("Authorization: Bearer {}", brief["secret"].as_str().unwrap());
    http::eventually("the key expires", || {
        server.request_without_key("GET", "/api/v1/sandboxes", &[&bearer], b"").status == 401
    });
}

/// What a response reveals about an inaccessible object: everything except the requested id.
fn told(answer: &http::Answer) -> (String, Value, Value) {
    let problem = answer.problem(404, "not_found");
    let detail = problem["detail"].as_str().and_then(|detail| detail.split('"').next()).expect("it has one").to_owned();
    (detail, problem["help"].clone(), problem["title"].clone())
}

/// Every operation of the API that names an object: another project's object looks the same as a missing one.
#[test]
fn nothing_of_another_project_is_there_for_any_operation() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let other = http::other_project(&mut server);
    let sandbox = server.sandbox();
    let exec = server.sh(&sandbox, "true")["id"].as_str().unwrap().to_owned();
    let agent = json!({ "agent": {
        "name": "tester",
        "task": "test",
        "model": { "provider": "scripted", "script": { "turns": [{ "text": "finished" }] } },
    } });
    let run = server.post("/api/v1/runs", &agent).expect(201)["id"].as_str().unwrap().to_owned();
    let key = server.get("/api/v1/keys").expect(200)["items"][0]["id"].as_str().unwrap().to_owned();
    let sandbox_id = sandbox.rsplit('/').next().unwrap();
    let theirs = [sandbox_id, &run, &exec, &key];
    let nobodys = ["sbx_", "run_", "exec_", "key_"].map(|prefix| format!("{prefix}{}", "a".repeat(26)));
    let nobodys = [nobodys[0].as_str(), nobodys[1].as_str(), nobodys[2].as_str(), nobodys[3].as_str()];
    let document = server.get("/api/v1/openapi.json").expect(200);
    let mut count = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        if !["{id}", "{key}"].iter().any(|name| path.contains(name)) {
            continue;
        }
        for method in item.as_object().unwrap().keys() {
            let ask = |[sandbox, run, exec, key]: [&str; 4]| {
                let id = if path.starts_with("/api/v1/runs") { run } else { sandbox };
                let path = path.replace("{id}", id).replace("{exec}", exec).replace("{key}", key);
                let path = path.replace("{context}", &format!("ctx_{}", "a".repeat(26)));
                let path = path.replace("{port}", "80").replace("{step}", "1").replace("{path}", "x");
                let query =
                    if path.contains("/files") && !["/move", "/mkdir", "/sign"].iter().any(|end| path.ends_with(end)) {
                        "?path=/tmp/x"
                    } else {
                        ""
                    };
                let mut headers = vec![other.as_str(), "Content-Type: application/json"];
                if path.ends_with("/attach") {
                    headers.extend(["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]);
                    headers.push("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==");
                }
                let body = body_of(&path).to_string();
                server.request_without_key(&method.to_uppercase(), &format!("{path}{query}"), &headers, body.as_bytes())
            };
            let (foreign, unknown) = (ask(theirs), ask(nobodys));
            assert_eq!((foreign.status, unknown.status), (404, 404), "{method} {path}: {}", foreign.text());
            assert_eq!(told(&foreign), told(&unknown), "{method} {path}");
            count += 1;
        }
    }
    assert!(count > 25, "{count}");
    // None of this had an effect.
    assert_eq!(server.get(&sandbox).expect(200)["state"], "running");
    server.get(&format!("/api/v1/runs/{run}")).expect(200);
    for list in ["sandboxes?state=creating,running,paused,ended", "runs"] {
        let theirs = server.request_without_key("GET", &format!("/api/v1/{list}"), &[&other], b"").expect(200);
        assert_eq!(theirs["items"], json!([]), "{list}");
    }
    let keys = server.request_without_key("GET", "/api/v1/keys", &[&other], b"").expect(200);
    assert_eq!(keys["items"].as_array().unwrap().iter().map(|key| &key["name"]).collect::<Vec<_>>(), ["theirs"]);
}

/// A body that an operation would accept, so that only the object is refused.
fn body_of(path: &str) -> Value {
    match path.rsplit('/').next().unwrap_or_default() {
        "execs" => json!({ "command": "true" }),
        "timeout" => json!({ "ttl": "1m" }),
        "signal" if path.contains("/runs/") => json!({ "name": "note", "body": "x" }),
        "signal" => json!({ "signal": "TERM" }),
        "resize" => json!({ "rows": 24, "cols": 80 }),
        "move" => json!({ "from": "/tmp/a", "to": "/tmp/b" }),
        "mkdir" => json!({ "path": "/tmp/x" }),
        "sign" => json!({ "path": "/tmp/x", "method": "get" }),
        "metadata" => json!({ "metadata": {} }),
        "decide" => json!({ "decision": "retry" }),
        "run" => json!({ "code": "1" }),
        "fork" if path.contains("/runs/") => json!({ "at_step": 1 }),
        "rollback" if path.contains("/runs/") => json!({ "at_step": 1 }),
        "budget" => json!({ "more": { "steps": 1 } }),
        "rollback" => json!({ "snapshot": format!("snap_{}", "a".repeat(26)) }),
        _ => json!({}),
    }
}

#[test]
fn by_the_e2b_wire_a_foreign_sandbox_is_no_sandbox_either() {
    let mut server = Server::start();
    let other = http::other_project(&mut server);
    let live = server.sandbox();
    let (ours, unknown) = (live.rsplit('_').next().unwrap(), "a".repeat(26));
    let told = |id: &str, method: &str, suffix: &str| {
        let (path, headers) = (format!("/sandboxes/{id}{suffix}"), [&other, "Content-Type: application/json"]);
        let answer = server.request_without_key(method, &path, &headers, br#"{"timeout":1}"#);
        assert_eq!((answer.status, &answer.expect(404)["code"]), (404, &json!(404)), "{method} {suffix}");
        answer.text().replace(id, "ID")
    };
    for (method, suffix) in [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/connect"),
        ("POST", "/timeout"),
        ("POST", "/refreshes"),
        ("POST", "/snapshots"),
        ("POST", "/fork"),
        ("PUT", "/network"),
        ("GET", "/metrics"),
        ("GET", "/logs"),
    ] {
        assert_eq!(told(ours, method, suffix), told(&unknown, method, suffix), "{method} {suffix}");
    }
    let listed = server.request_without_key("GET", "/v2/sandboxes", &[&other], b"").expect(200);
    assert_eq!(listed, json!([]));
    assert_eq!(server.get(&live).expect(200)["state"], "running");
}

#[test]
fn unknown_foreign_and_malformed_ids_answer_alike() {
    let mut server = Server::start();
    let other = http::other_project(&mut server);
    let live = server.sandbox();
    let ended = server.sandbox();
    let exec = server.sh(&live, "true")["id"].as_str().unwrap().to_owned();
    server.delete(&ended).expect(200);
    let told = |path: &str, method: &str| {
        told(&server.request_without_key(method, path, &[&other, "Content-Type: application/json"], b"{}"))
    };
    for (suffix, method) in [
        ("", "GET"),
        ("", "DELETE"),
        ("/pause", "POST"),
        ("/resume", "POST"),
        ("/metrics", "GET"),
        ("/events", "GET"),
        ("/logs", "GET"),
        ("/execs", "GET"),
        ("/files/list?path=/", "GET"),
        ("/files?path=/etc/hostname", "GET"),
        ("/files/tree?path=/", "GET"),
        ("/ports/80/", "GET"),
    ] {
        let unknown = told(&format!("{UNKNOWN}{suffix}"), method);
        for path in [&live, &ended] {
            assert_eq!(told(&format!("{path}{suffix}"), method), unknown, "{method} {suffix}");
        }
    }
    assert_eq!(told(&format!("{live}/execs/{exec}"), "GET"), told(&format!("{UNKNOWN}/execs/{exec}"), "GET"));
    for id in [
        "x",
        "sbx_",
        "sbx_AAAAAAAAAAAAAAAAAAAAAAAAAA",
        "..%2f..%2fetc%2fpasswd",
        "%00",
        "%ff%fe",
        "sbx_%E2%80%AE",
        "1%20OR%201=1",
    ] {
        server.get(&format!("/api/v1/sandboxes/{id}")).problem(404, "not_found");
    }
    let list = server.request_without_key("GET", "/api/v1/sandboxes?state=running,ended", &[&other], b"").expect(200);
    assert_eq!(list["items"], json!([]));
    server
        .request_without_key("DELETE", &format!("/api/v1/keys/{}", "key_aaaaaaaaaaaaaaaaaaaaaaaaaa"), &[&other], b"")
        .problem(404, "not_found");
    // None of this had an effect.
    server.get(&live).expect(200);
}

#[test]
fn nobody_says_whose_a_sandbox_is_but_the_key() {
    let server = Server::start();
    for body in [
        json!({ "project_id": "prj_bbbbbbbbbbbbbbbbbbbbbbbbbb" }),
        json!({ "state": "ended" }),
        json!({ "limits": { "cost": "0" } }),
        json!({ "access_token": "mine" }),
    ] {
        let problem = server.post("/api/v1/sandboxes", &body).problem(400, "invalid_request");
        let field = body.as_object().unwrap().keys().next().unwrap().clone();
        let named = if field == "limits" { "cost" } else { &field };
        assert!(problem["detail"].as_str().unwrap().contains(named), "{problem}");
    }
    server.get("/api/v1/sandboxes?project_id=x").problem(400, "invalid_request");
    let bent = server.request("GET", "/api/v1/sandboxes", &["X-Project-Id: prj_bbbbbbbbbbbbbbbbbbbbbbbbbb"], b"");
    assert_eq!(bent.expect(200)["items"], json!([]));
}

#[test]
fn a_bent_address_or_verb_leads_nowhere() {
    let server = Server::start();
    let sandbox = server.sandbox();
    for path in [
        format!("{sandbox}/"),
        sandbox.replace("/api", "//api"),
        sandbox.replace("sandboxes", "Sandboxes"),
        sandbox.replace("/v1", "/v1/./"),
        format!("{sandbox};x=1"),
        sandbox.replace("sandboxes", "%73andboxes%2f.."),
        "/api/v2/sandboxes".to_owned(),
        "/metrics".to_owned(),
        "/debug/pprof".to_owned(),
        "/admin".to_owned(),
    ] {
        server.get(&path).problem(404, "not_found");
    }
    for (method, path) in [
        ("PUT", sandbox.as_str()),
        ("TRACE", "/api/v1/sandboxes"),
        ("BREW", "/health"),
        ("DELETE", "/api/v1/sandboxes"),
    ] {
        let answer = server.request(method, path, &[], b"");
        answer.problem(405, "method_not_allowed");
        assert!(answer.header("allow").is_some(), "{method} {path}");
    }
    let overridden = server.request("GET", &sandbox, &["X-HTTP-Method-Override: DELETE"], b"");
    assert_eq!(overridden.expect(200)["state"], "running");
}

#[test]
fn health_says_nothing_that_a_stranger_may_not_know() {
    let server = Server::start();
    server.sandbox();
    let health = server.request_without_key("GET", "/health", &[], b"").expect(200);
    assert_eq!(health, json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }));
    assert!(server.address.starts_with("127.0.0.1:"), "{}", server.address);
}

#[test]
fn without_keys_a_web_page_is_still_refused() {
    let server = Server::start_with(&["--auth", "off"]);
    server.request_without_key("GET", "/api/v1/sandboxes", &[], b"").expect(200);
    let page = server.request_without_key("GET", "/api/v1/sandboxes", &["Origin: https://evil.example"], b"");
    page.problem(403, "forbidden");
    for (host, status) in [
        ("[::1]", 200),
        ("[::1]:7420", 200),
        ("127.0.0.1", 200),
        ("localhost:1", 200),
        ("evil.example", 403),
        ("[::2]", 403),
    ] {
        let mut connection = server.connect();
        let request = format!("GET /api/v1/sandboxes HTTP/1.1\r\nHost: {host}\r\n\r\n");
        std::io::Write::write_all(&mut connection, request.as_bytes()).unwrap();
        assert_eq!(http::read_answer(&mut std::io::BufReader::new(connection)).status, status, "{host}");
    }
}

#[test]
fn every_documented_operation_is_there_and_needs_a_key() {
    let server = Server::start();
    let document = server.request_without_key("GET", "/api/v1/openapi.json", &[], b"").expect(200);
    let mut count = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let path =
                path.replace("{id}", "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa").replace("{exec}", "x").replace("{key}", "x");
            let status = server.request_without_key(&method.to_uppercase(), &path, &[], b"").status;
            assert_eq!(status, if path == "/health" { 200 } else { 401 }, "{method} {path}");
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
}
