//! What must be new in a sandbox that continues another one: what identifies it, what it may do elsewhere, and its clock. And what must not be
//! there: anything of the sandbox that had its memory or its disk before.

mod harness;
mod http;

use std::time::{SystemTime, UNIX_EPOCH};

use harness::image::Image;
use harness::{is_root, not_here};
use http::Server;
use serde_json::{Value, json};

const SANDBOXES: &str = "/api/v1/sandboxes";

/// The machine, the certificate authority of its network, the placeholder of a secret.
const IDENTITY: [&str; 3] = ["cat /etc/machine-id", "cat /etc/ssl/certs/saggar-egress.pem", "echo $KEY"];
const PROGRAMS: &[&str] = &["date", "fallocate", "grep", "head", "sync", "tr", "wc", "yes"];

fn as_root(server: &Server, sandbox: &str, line: &str) -> String {
    let answer = server.post(&format!("{sandbox}/execs"), &json!({ "command": line, "user": "root" })).expect(200);
    answer["stdout"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn path_of(sandbox: &Value) -> String {
    format!("{SANDBOXES}/{}", sandbox["id"].as_str().unwrap_or_else(|| panic!("{sandbox}")))
}

fn identity(server: &Server, sandbox: &str) -> [String; 3] {
    let values = IDENTITY.map(|line| as_root(server, sandbox, line));
    assert!(values.iter().all(|value| !value.trim().is_empty()), "{values:?}");
    values
}

fn publish(server: &Server) {
    let image = Image::in_project(&server.data(), "local").system();
    let image = image.layer(|top| {
        PROGRAMS.iter().for_each(|name| top.program(name));
        top.write("etc/machine-id", "of the image");
        top.write("srv/below", "below");
    });
    image.named("shared");
}

/// Milliseconds since 1970.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("later").as_millis()
}

fn check_clock(server: &Server, sandbox: &str) {
    let before = now();
    let inside: u128 = as_root(server, sandbox, "date +%s%3N").trim().parse().expect("a time");
    assert!((before..=now()).contains(&inside), "{inside}");
}

#[test]
fn what_identifies_a_sandbox_is_its_own_after_every_way_to_continue_one() {
    if !is_root() {
        return not_here("only root has several users inside");
    }
    let server = Server::start_with(&["--public-templates", "shared", "--pool-max", "0"]);
    publish(&server);
    let binding = json!({ "rules": ["good.test/**"], "slot": "bearer", "placeholder_prefix": "sk-" });
    let secret = json!({ "value": "canary-value", "binding": binding }).to_string();
    let stored = server.request("PUT", "/api/v1/secrets/api", &["Content-Type: application/json"], secret.as_bytes());
    assert_eq!(stored.status, 201, "{}", stored.text());
    let wish = |template: &Value| {
        json!({
            "template": template, "ttl": "10m", "network": "proxied", "egress": { "allow": ["good.test"] },
            "secrets": [{ "name": "api", "env": "KEY" }],
        })
    };
    let parent = server.post(SANDBOXES, &wish(&json!("shared"))).expect(201);
    let path = path_of(&parent);
    let mut before = identity(&server, &path);
    // Also where a program has written it down.
    as_root(&server, &path, "echo $KEY > /srv/noted");

    let snapshot = server.post(&format!("{path}/snapshots"), &json!({})).expect(201);
    let restored = server.post(SANDBOXES, &wish(&snapshot["id"])).expect(201);
    let forked = server.post(&format!("{path}/fork"), &json!({ "count": 2 })).expect(201);
    let others = [&restored, &forked["items"][0]["sandbox"], &forked["items"][1]["sandbox"]];
    let mut identities = vec![before.clone()];
    let mut tokens = vec![parent["access_token"].as_str().expect("a token").to_owned()];
    for other in others {
        let path = path_of(other);
        identities.push(identity(&server, &path));
        check_clock(&server, &path);
        // What it noted there is not its own placeholder here.
        assert_eq!(as_root(&server, &path, "cat /srv/noted"), before[2]);
        let token = other["access_token"].as_str().expect("a token").to_owned();
        assert!(!tokens.contains(&token), "each has a token of its own");
        tokens.push(token);
    }
    for field in 0..3 {
        let values: std::collections::BTreeSet<&String> = identities.iter().map(|values| &values[field]).collect();
        assert_eq!(values.len(), identities.len(), "{field}: {identities:?}");
    }
    // In place it keeps its placeholders, and nothing else.
    let back = || drop(server.post(&format!("{path}/rollback"), &json!({ "snapshot": snapshot["id"] })).expect(200));
    let rest = || {
        server.post(&format!("{path}/pause"), &json!({ "memory": false })).expect(200);
        server.post(&format!("{path}/resume"), &json!({})).expect(200);
    };
    for again in [&back as &dyn Fn(), &rest] {
        again();
        let after = identity(&server, &path);
        assert!(after[0] != before[0] && after[1] != before[1] && after[2] == before[2], "{before:?} {after:?}");
        check_clock(&server, &path);
        before = after;
    }
}

#[test]
fn nothing_of_a_previous_tenant_is_in_new_memory_or_on_a_new_disk() {
    if !is_root() {
        return not_here("storage on disk and volumes need root");
    }
    let server = Server::start_with(&[
        "--public-templates",
        "shared",
        "--disk-storage-max",
        "64M",
        "--volumes-bytes-max",
        "64M",
        "--pool-max",
        "0",
    ]);
    publish(&server);
    // All of what there is, one tenant after the other.
    let fill = "cd /data 2>/dev/null || cd /srv; yes canary-of-a-tenant | head -c 24M > all; sync; grep -c canary all";
    let look = "cd /data 2>/dev/null || cd /srv; fallocate -l 24M all; stat -c %s all; grep -c canary all; tr -d '\\0' < all | wc -c";
    for kind in ["memory", "disk", "volume"] {
        let new = || {
            let mut wish = json!({ "template": "shared", "ttl": "10m", "limits": { "disk": "32M", "memory": "256M" } });
            match kind {
                "disk" => wish["storage"] = json!("disk"),
                "volume" => {
                    server.post("/api/v1/volumes", &json!({ "name": "next", "size": "40M" })).expect(201);
                    wish["volumes"] = json!([{ "name": "next", "at": "/data", "mode": "rw" }]);
                }
                _ => {}
            }
            server.sandbox_with(&wish)
        };
        let gone = |sandbox: &str| {
            assert_eq!(server.delete(sandbox).status, 200);
            if kind == "volume" {
                let removed = server.delete("/api/v1/volumes/next");
                assert!((200..300).contains(&removed.status), "{}", removed.text());
            }
        };
        let first = new();
        let filled = server.post(&format!("{first}/execs"), &json!({ "command": fill, "user": "root" })).expect(200);
        let lines = filled["stdout"].as_str().and_then(|text| text.trim().parse::<u64>().ok());
        assert!(lines.is_some_and(|lines| lines > 1_000_000), "{kind}: {filled}");
        gone(&first);
        let second = new();
        assert_eq!(as_root(&server, &second, look), format!("{}\n0\n0\n", 24 << 20), "{kind}");
        gone(&second);
    }
}
