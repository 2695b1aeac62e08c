//! What a program sees of a refusal.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use http::StatusCode;
use saggar_domain::net::{Protocol, Verdict};

use crate::client::{HTTP1, get, https1, https2, plain, raw, request, send1, send2, tls, with_body};
use crate::sandbox::Sandbox;
use crate::world::World;

#[tokio::test]
async fn a_denied_host_answers_403_inside_tls_with_rule_and_remedy() {
    let world = World::new();
    let server = world.https("denied.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test"]).await;

    let answer = send1(&mut https1(&sandbox, "denied.test").await, get("denied.test", "/secret?token=1")).await;

    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert_eq!(answer.rule(), "egress/default");
    assert!(answer.text().contains("denied.test") && answer.text().contains("help: "), "{}", answer.text());
    assert!(answer.phrase.contains("denied.test") && answer.phrase.contains("egress/default"), "{}", answer.phrase);
    assert_eq!(server.connections(), 0);

    let decision = sandbox.decision().await;
    assert_eq!((decision.host.as_str(), decision.port, decision.protocol), ("denied.test", 443, Protocol::Https));
    assert_eq!((decision.method.as_deref(), decision.path.as_deref()), (Some("GET"), Some("/secret")));
    assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/default"));
    assert_eq!((decision.address, decision.bytes_up, decision.bytes_down), (None, 0, 0));
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn a_denied_host_answers_403_by_http_2_and_by_plain_http() {
    let world = World::new();
    let mut sandbox = Sandbox::allowing(&world, &[]).await;

    let answer = send2(&mut https2(&sandbox, "denied.test").await, request("GET", "https://denied.test/", "")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/default"));
    let answer = send1(&mut plain(&sandbox, "denied.test").await, get("denied.test", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/default"));

    assert_eq!(sandbox.decision().await.protocol, Protocol::Https);
    assert_eq!(sandbox.decision().await.protocol, Protocol::Http);
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn a_refusal_is_json_for_programs_that_speak_json() {
    let world = World::new();
    let sandbox = Sandbox::allowing(&world, &[]).await;
    let mut request = with_body("POST", "/v1/messages", "api.test", "{}");
    request.headers_mut().insert("accept", "application/json".parse().unwrap());

    let answer = send1(&mut https1(&sandbox, "api.test").await, request).await;

    let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(json["error"]["type"], "saggar_egress_denied");
    assert_eq!(json["error"]["rule"], "egress/default");
    assert!(json["error"]["message"].as_str().unwrap().contains("api.test"));
}

#[tokio::test]
async fn a_refusal_reaches_a_program_that_is_still_sending_its_body() {
    let world = World::new();
    let sandbox = Sandbox::allowing(&world, &[]).await;
    let body = "x".repeat(500_000);
    let mut sender = https1(&sandbox, "denied.test").await;
    for _ in 0..2 {
        let answer = send1(&mut sender, with_body("POST", "/", "denied.test", &body)).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
    }
    let mut sender = https2(&sandbox, "denied.test").await;
    for _ in 0..2 {
        let answer = send2(&mut sender, with_body("POST", "https://denied.test/", "", &body)).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn a_refused_upload_that_waits_for_100_continue_is_not_asked_for() {
    let world = World::new();
    let sandbox = Sandbox::allowing(&world, &[]).await;
    let head = "POST / HTTP/1.1\r\nHost: denied.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";

    let answer = raw(sandbox.dial("denied.test", 80).await, head.as_bytes()).await;

    assert!(answer.starts_with("HTTP/1.1 403 saggar: "), "{answer}");
}

#[tokio::test]
async fn a_denied_destination_that_speaks_neither_tls_nor_http_is_closed_and_recorded() {
    let world = World::new();
    let server = world.echo("denied.test:22").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test"]).await;

    assert_eq!(raw(sandbox.dial("denied.test", 22).await, b"\x00\x01binary").await, "");

    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/default"));
    assert_eq!((decision.host.as_str(), decision.port), ("denied.test", 22));
    assert_eq!(server.connections(), 0);
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn a_denied_host_that_is_asked_nothing_is_recorded_once() {
    let world = World::new();
    let mut sandbox = Sandbox::allowing(&world, &[]).await;
    drop(tls(sandbox.dial("denied.test", 443).await, "denied.test", &sandbox.ca_pem, HTTP1).await.unwrap());
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.host.as_str()), (Verdict::Denied, "denied.test"));
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn http_to_a_denied_port_is_told_which_rule_to_add_and_not_to_use_tls() {
    let world = World::new();
    let mut sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    for (host, port, remedy) in
        [("good.test", 7000, "--allow good.test:7000"), ("denied.test", 443, "--allow denied.test")]
    {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n");
        let answer = raw(sandbox.dial(host, port).await, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(remedy), "{answer}");
        assert_eq!(sandbox.decision().await.rule, "egress/default");
    }
}

#[test]
fn every_refusal_is_in_the_documentation() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let documentation = fs::read_to_string(crates.parent().unwrap().join("docs/network.md")).unwrap();
    let mut folders: Vec<PathBuf> =
        ["domain", "egress", "sandbox", "supervisor"].map(|name| crates.join(name).join("src")).to_vec();
    let mut codes = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            for found in fs::read_to_string(entry).unwrap().split("\"egress/").skip(1) {
                let code = found.split(|c: char| !(c.is_ascii_lowercase() || c == '-')).next().unwrap();
                codes.insert(format!("`egress/{code}"));
            }
        }
    }
    assert!(codes.len() > 25, "{codes:?}");
    let missing: Vec<_> = codes.iter().filter(|code| !documentation.contains(code.as_str())).collect();
    assert!(missing.is_empty(), "docs/network.md lacks {missing:?}");
}

#[tokio::test]
async fn a_method_without_end_is_refused_and_recorded_in_short() {
    let world = World::new();
    let mut sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
    let long = request(&"X".repeat(20_000), "/", "good.test");
    let answer = send1(&mut https1(&sandbox, "good.test").await, long).await;
    assert_eq!(answer.rule(), "egress/method");
    let decision = sandbox.decision().await;
    let method = decision.method.unwrap();
    assert!(method.len() < 100 && method.ends_with("X…"), "{method}");
    assert!(decision.reason.is_some_and(|reason| reason.len() < 200));
}
