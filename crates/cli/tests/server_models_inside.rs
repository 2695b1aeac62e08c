//! Models inside of sandboxes, as `model.internal`: called without a key, by the sandbox's own token alone, through egress alone.

mod http;
mod provider;

use std::fmt::Write as _;

use http::{Server, eventually};
use provider::{COST, KEY, Provider};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const JSON: &str = "content-type: application/json";

/// A server with the provider's models, and the provider's key in its vault.
fn serving(provider: &Provider, more: &str) -> Server {
    let root = http::new_directory();
    let file = provider.models_file(&root, more);
    let server = Server::start_in(root, &["--models-file", file.to_str().expect("plain")]);
    let binding = json!({"rules": ["api.example.com"], "slot": "bearer"});
    let secret = json!({"value": KEY, "binding": binding}).to_string();
    let stored =
        server.request("PUT", "/api/v1/secrets/provider", &["Content-Type: application/json"], secret.as_bytes());
    assert_eq!(stored.status, 201, "{}", stored.text());
    server
}

fn with_models(server: &Server, models: &Value) -> String {
    server.sandbox_with(&json!({"network": "proxied", "models": models}))
}

/// Status and body of a request from inside. `how` is what a shell puts between `curl` and the body.
fn curl(server: &Server, sandbox: &str, how: &str) -> (u16, String) {
    let done = server.sh(sandbox, &format!("curl -s -m 30 -w '\\n%{{http_code}}' {how}"));
    let out = done["stdout"].as_str().expect("text").to_owned();
    let (body, status) = out.rsplit_once('\n').unwrap_or_else(|| panic!("{done}"));
    (status.parse().expect("a number"), body.to_owned())
}

fn chat(model: &str, url: &str, credentials: &str) -> String {
    format!(
        "{url}/chat/completions -H '{JSON}' -H \"{credentials}\" \
         -d '{{\"model\": \"{model}\", \"messages\": [{{\"role\": \"user\", \"content\": \"hi\"}}]}}'"
    )
}

const OWN: &str = "Authorization: Bearer $OPENAI_API_KEY";
const PLAIN: &str = "http://model.internal/v1";

fn spending(server: &Server) -> Value {
    server.get("/v1/models").expect(200)["saggar"].clone()
}

#[test]
fn programs_call_models_without_a_key_of_their_own() {
    let provider = Provider::start();
    let server = serving(&provider, "");
    let sandbox = with_models(&server, &json!(["cheap"]));
    assert_eq!(server.get(&sandbox).expect(200)["models"], json!(["cheap"]));
    // By DNS and by the proxy, plain and encrypted.
    for url in [PLAIN, "https://model.internal/v1"] {
        for way in ["", "--noproxy '*' "] {
            let (status, body) = curl(&server, &sandbox, &format!("{way}{}", chat("cheap", url, OWN)));
            assert!(status == 200 && body.contains("Hello there"), "{url} {way}: {status} {body}");
        }
    }
    assert_eq!(provider.seen(), vec![format!("Bearer {KEY}"); 4]);
    let spent = spending(&server);
    assert_eq!((&spent["spent_micros"], &spent["routes"]["cheap"]["calls"]), (&json!(4 * COST), &json!(4)));
    // As clients of Anthropic send the token; and streams.
    let as_anthropic = "X-Api-Key: $ANTHROPIC_API_KEY";
    let (status, body) = curl(&server, &sandbox, &chat("cheap", "$ANTHROPIC_BASE_URL", as_anthropic));
    assert!(status == 200 && body.contains("Hello there"), "{status} {body}");
    let stream = "$OPENAI_BASE_URL/chat/completions -H \"Authorization: Bearer $OPENAI_API_KEY\" \
                  -d '{\"model\": \"cheap\", \"stream\": true, \"messages\": []}'";
    let (status, body) = curl(&server, &sandbox, stream);
    assert!(status == 200 && body.ends_with("data: [DONE]\n\n"), "{status} {body}");
    // Recorded as every other access.
    eventually("six accesses are recorded", || {
        let hosts = server.get(&format!("{sandbox}/network")).expect(200)["hosts"].clone();
        let of_models = hosts.as_array().expect("a list").iter().filter(|host| host["host"] == "model.internal");
        of_models.filter_map(|host| host["allowed"].as_u64()).sum::<u64>() == 6
    });
    // Nowhere inside: neither the provider's key nor the server's.
    let search =
        "cat /proc/*/environ 2>/dev/null; env; grep -rsa 'cana''ry\\|sg''r_' /home /tmp /etc /run 2>/dev/null; true";
    let found = server.sh(&sandbox, search).to_string();
    assert!(found.contains("sgm_") && !found.contains("canary") && !found.contains("sgr_"), "{found}");
}

#[test]
fn a_sandbox_reaches_the_models_it_was_given_and_nothing_else_of_the_server() {
    let provider = Provider::start();
    let server = serving(&provider, "");
    let (one, other) = (with_models(&server, &json!(["cheap"])), with_models(&server, &json!(true)));
    let token = server.sh(&other, "printf %s $OPENAI_API_KEY")["stdout"].as_str().expect("text").to_owned();
    for (what, how, status, told) in [
        ("another model", chat("dear", PLAIN, OWN), 404, "there are: cheap"),
        (
            "the token of another sandbox",
            chat("cheap", PLAIN, &format!("Authorization: Bearer {token}")),
            401,
            "not the token",
        ),
        (
            "a key of the server",
            chat("cheap", PLAIN, &format!("Authorization: Bearer {}", server.key)),
            401,
            "not the token",
        ),
        ("no token", chat("cheap", PLAIN, "X-Other: x"), 401, "not the token"),
        (
            "the API",
            format!("http://model.internal/api/v1/sandboxes -H 'Authorization: Bearer {}'", server.key),
            404,
            "nothing else",
        ),
        ("another method", format!("-X DELETE {PLAIN}/models"), 404, "nothing else"),
        ("another port", "http://model.internal:8080/v1/models".to_owned(), 403, "egress/models"),
        ("another name", "http://models.model.internal/v1/models".to_owned(), 403, "egress/default"),
        // Egress says whose a connection is, whatever a request claims.
        (
            "a claim",
            format!("-H 'Host: model.internal' -H 'X-Forwarded-For: 127.0.0.1' {PLAIN}/models"),
            401,
            "not the token",
        ),
    ] {
        let (got, body) = curl(&server, &one, &how);
        assert!(got == status && body.contains(told), "{what}: {got} {body}");
    }
    assert!(provider.seen().is_empty(), "{:?}", provider.seen());
    let listed = |sandbox: &str| {
        let (status, body) = curl(&server, sandbox, &format!("{PLAIN}/models -H \"{OWN}\""));
        assert_eq!(status, 200, "{body}");
        let list: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(list.get("saggar"), None, "what the project spends is not its business");
        list["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (listed(&one), listed(&other)),
        (vec!["cheap".to_owned()], vec!["cheap".into(), "dear".into(), "endless".into()])
    );
    // A token of a sandbox is no key of the server.
    let bearer = format!("Authorization: Bearer {token}");
    assert_eq!(server.request_without_key("GET", "/v1/models", &[&bearer], b"").status, 401);
    // Without models there is neither a way nor a token, whatever its rules allow.
    let none = server.sandbox_with(&json!({"network": "proxied", "egress": {"allow": ["model.internal", "*"]}}));
    let (status, body) = curl(&server, &none, &chat("cheap", PLAIN, &bearer));
    assert!(status == 403 && body.contains("egress/models"), "{status} {body}");
    assert_eq!(server.sh(&none, "echo $OPENAI_API_KEY$ANTHROPIC_BASE_URL")["stdout"], "\n");
    // A deny rule comes before.
    let denied =
        server.sandbox_with(&json!({"network": "proxied", "models": true, "egress": {"deny": ["*.internal"]}}));
    let (status, body) = curl(&server, &denied, &chat("cheap", PLAIN, OWN));
    assert!(status == 403 && body.contains("egress/deny"), "{status} {body}");
}

#[test]
fn models_that_are_not_there_and_networks_without_a_way_to_them_are_refused() {
    let provider = Provider::start();
    let server = serving(&provider, "");
    for (create, status, told) in [
        (
            json!({"network": "proxied", "models": ["cheap", "cheep"]}),
            400,
            "the model cheep, which this server doesn't have; it has cheap, dear",
        ),
        (json!({"models": true}), 400, "its network mode is none"),
        (json!({"models": ["cheap"], "network": "none"}), 400, "its network mode is none"),
        (json!({"network": "proxied", "models": "cheap"}), 400, "true, false, or a list"),
    ] {
        let answer = server.post("/api/v1/sandboxes", &create);
        assert!(answer.status == status && answer.text().contains(told), "{create}: {}", answer.text());
    }
    let without = Server::start();
    let answer = without.post("/api/v1/sandboxes", &json!({"network": "proxied", "models": true}));
    assert!(answer.status == 400 && answer.text().contains("this server has none"), "{}", answer.text());
    // What its owner sets comes before.
    let own = json!({"network": "proxied", "models": true, "env": {"OPENAI_BASE_URL": "http://else.test"}});
    let own = server.sandbox_with(&own);
    let shown = server.sh(&own, "echo $OPENAI_BASE_URL $ANTHROPIC_BASE_URL");
    assert_eq!(shown["stdout"], "http://else.test http://model.internal\n");
}

/// Calls again and again, and writes each status down.
fn caller(server: &Server, sandbox: &str) {
    let mut line = String::from("while :; do curl -s -m 20 -o /tmp/last -w '%{http_code}\\n' ");
    write!(line, "{} >> /tmp/statuses; sleep 0.1; done", chat("cheap", PLAIN, OWN)).expect("a string");
    let begun = server.post(&format!("{sandbox}/execs"), &json!({"command": line, "wait": false}));
    assert!([200, 201, 202].contains(&begun.status), "{}", begun.text());
}

/// Its last status, and how many there are.
fn statuses(server: &Server, sandbox: &str) -> Vec<String> {
    let out = server.sh(sandbox, "cat /tmp/statuses 2>/dev/null; true")["stdout"].as_str().expect("text").to_owned();
    out.lines().map(str::to_owned).collect()
}

fn works_again(server: &Server, sandbox: &str) -> Vec<String> {
    let before = statuses(server, sandbox).len();
    let mut all = Vec::new();
    eventually("calls work again", || {
        all = statuses(server, sandbox);
        all[before..].iter().any(|status| status == "200")
    });
    all
}

#[test]
fn calls_fail_with_503_while_the_server_or_egress_is_away_and_then_work_again() {
    let provider = Provider::start();
    let mut server = serving(&provider, "");
    let sandbox = with_models(&server, &json!(true));
    caller(&server, &sandbox);
    works_again(&server, &sandbox);
    for kill in [true, false] {
        let before = provider.seen().len();
        if kill {
            server.kill();
        } else {
            server.stop();
        }
        // Meanwhile the sandbox goes on; only a file that it shares with nobody tells how.
        http::pause_for(std::time::Duration::from_millis(700));
        server.begin();
        let all = works_again(&server, &sandbox);
        assert!(all.contains(&"503".to_owned()), "{all:?}");
        assert!(all.iter().all(|status| ["200", "503"].contains(&status.as_str())), "{all:?}");
        assert!(provider.seen().len() > before);
        server.sh(&sandbox, "rm /tmp/statuses");
    }
    let (_, told) = {
        let egress = egress_of(&server);
        kill_process(Pid::from_raw(egress.cast_signed()).expect("a process"), Signal::KILL).expect("ours");
        eventually("another egress process", || egress_of_any(&server).is_some_and(|other| other != egress));
        curl(&server, &sandbox, &format!("--retry 20 --retry-all-errors --retry-delay 1 {}", chat("cheap", PLAIN, OWN)))
    };
    assert!(told.contains("Hello there"), "{told}");
}

fn egress_of_any(server: &Server) -> Option<u32> {
    let wanted = format!("__egress\0service\0{}\0", server.data().display());
    std::fs::read_dir("/proc").expect("proc").flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).ends_with(&wanted).then_some(pid)
    })
}

fn egress_of(server: &Server) -> u32 {
    egress_of_any(server).expect("an egress process")
}

#[test]
fn the_end_of_a_sandbox_cuts_its_streams_and_settles_them() {
    let provider = Provider::start();
    let budget = "[budgets.default]\ndollars = 1\nperiod = \"total\"\n";
    let server = serving(&provider, budget);
    let sandbox = with_models(&server, &json!(true));
    let line = format!(
        "curl -sN {PLAIN}/chat/completions -H \"{OWN}\" -d '{{\"model\": \"endless\", \"stream\": true, \"max_tokens\": 1000, \"messages\": []}}'"
    );
    for _ in 0..3 {
        let begun = server.post(&format!("{sandbox}/execs"), &json!({"command": line, "wait": false}));
        assert!([200, 201, 202].contains(&begun.status), "{}", begun.text());
    }
    eventually("three streams", || provider.open_streams() == 3);
    assert!(spending(&server)["set_aside_micros"].as_u64() > Some(3 * 15_000 - 1));
    server.delete(&sandbox).expect(200);
    eventually("no stream", || provider.open_streams() == 0);
    eventually("all are settled", || spending(&server)["set_aside_micros"] == 0);
    let spent = spending(&server);
    assert_eq!(spent["routes"]["endless"]["calls"], 3, "{spent}");
    assert!(spent["spent_micros"].as_u64() > Some(0), "an estimate is booked: {spent}");
}
