//! Secrets of a server in use: programs in its sandboxes make requests with values that they never had.
//!
//! Each test runs itself again inside of a small internet of our own (tests/network/world.py), whose servers log what they
//! receive and send it back.

mod http;

use std::path::Path;
use std::process::Command;

use http::{Server, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const WORLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/network/world.py");
/// Set inside of the world, to the path of its log.
const LOG: &str = "WORLD_LOG";
const SECRET: &str = "/api/v1/secrets/api";
const FIRST: &str = "canary-first-5c81f0e7";
const SECOND: &str = "canary-second-9b2d44a1";

/// Runs the body in the world. `name` is the test's own name.
fn in_world(name: &str, body: impl FnOnce()) {
    if std::env::var_os(LOG).is_some() {
        return body();
    }
    let log = std::env::temp_dir().join(format!("saggar-world-{}-{name}.log", std::process::id()));
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", WORLD]).arg(&log).arg(std::env::current_exe().expect("a test"));
    let status = command.args(["--exact", name, "--nocapture"]).env(LOG, &log).status();
    let seen = std::fs::read_to_string(&log).unwrap_or_default();
    std::fs::remove_file(&log).expect("the world wrote it");
    assert!(status.expect("unshare is part of every Linux").success(), "servers saw: {seen}");
}

/// The requests that servers saw, as path and credentials.
fn seen() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(std::env::var_os(LOG).expect("in the world")).expect("the world writes it");
    let entry = |line: &str| {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (word(&entry["path"]), word(&entry["headers"]["authorization"]))
    };
    text.lines().map(entry).collect()
}

fn last_seen() -> (String, String) {
    seen().pop().expect("a request arrived")
}

fn bearer(path: &str, value: &str) -> (String, String) {
    (path.to_owned(), format!("Bearer {value}"))
}

fn put(server: &Server, body: &Value) -> Value {
    let answer = server.request("PUT", SECRET, &["Content-Type: application/json"], body.to_string().as_bytes());
    assert!([200, 201].contains(&answer.status), "{}", answer.text());
    answer.expect(answer.status)
}

fn store(server: &Server, value: &str) -> Value {
    let binding = json!({ "rules": ["good.test/v1/**"], "slot": "bearer", "placeholder_prefix": "sk-" });
    put(server, &json!({ "value": value, "binding": binding }))
}

/// A sandbox whose programs find the placeholder in `KEY`.
fn user(server: &Server) -> String {
    server.sandbox_with(&json!({
        "network": "proxied", "egress": { "allow": ["good.test"] }, "secrets": [{ "name": "api", "env": "KEY" }],
    }))
}

/// Asks the bound host, with the placeholder as a client would send it. Returns what was printed.
fn ask(server: &Server, sandbox: &str, path: &str) -> String {
    let line = format!("curl -sS -m 20 -H \"Authorization: Bearer $KEY\" https://good.test{path}");
    server.sh(sandbox, &line)["stdout"].as_str().expect("text").to_owned()
}

fn id_of(sandbox: &str) -> &str {
    sandbox.rsplit('/').next().expect("a path")
}

/// Whether any file below contains the text.
fn is_in(text: &str, below: &Path) -> bool {
    std::fs::read_dir(below).expect("it is there").flatten().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => is_in(text, &entry.path()),
        Ok(kind) if kind.is_file() => {
            let bytes = std::fs::read(entry.path()).unwrap_or_default();
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        }
        _ => false,
    })
}

#[test]
fn a_program_uses_a_secret_that_it_never_had() {
    in_world("a_program_uses_a_secret_that_it_never_had", || {
        let mut server = Server::start_with(&["--log", "trace"]);
        server.stop();
        server.log = Some(server.data().with_file_name("log"));
        server.begin();
        store(&server, FIRST);
        // The second one comes from the pool, if it has been filled by then; both work alike.
        for round in 0..2 {
            let sandbox = user(&server);
            let shown = server.get(&sandbox).expect(200);
            assert_eq!(shown["secrets"], json!([{ "name": "api", "env": "KEY" }]));
            let placeholder = server.sh(&sandbox, "echo $KEY")["stdout"].as_str().expect("text").trim().to_owned();
            assert!(placeholder.starts_with("sk-saggar-") && placeholder.len() == 42, "{placeholder}");
            let echoed = ask(&server, &sandbox, "/v1/one");
            assert_eq!(last_seen(), bearer("/v1/one", FIRST), "{echoed}");
            assert!(echoed.contains("/v1/one") && !echoed.contains(FIRST), "what comes back is scrubbed: {echoed}");
            // A path that it isn't bound to gets what the program sent.
            ask(&server, &sandbox, "/other");
            assert_eq!(last_seen(), bearer("/other", &placeholder));
            let everywhere =
                "cat /proc/*/environ 2>/dev/null; env; grep -rs can''ary /home /tmp /etc /run 2>/dev/null; true";
            assert!(!server.sh(&sandbox, everywhere).to_string().contains("canary"));
            if round == 0 {
                server.delete(&sandbox).expect(200);
            }
        }
        let text = |path: &str| server.get(path).text();
        assert!(!text("/api/v1/sandboxes").contains("canary") && !text(SECRET).contains("canary"));
        let root = server.data().parent().expect("it is below one").to_owned();
        assert!(is_in("good.test", &root) && !is_in("canary", &root));
    });
}

#[test]
fn a_change_reaches_live_sandboxes_before_it_is_answered() {
    in_world("a_change_reaches_live_sandboxes_before_it_is_answered", || {
        let server = Server::start();
        store(&server, FIRST);
        let (one, two) = (user(&server), user(&server));
        assert_eq!(server.get(SECRET).expect(200)["used_by"], json!([id_of(&one), id_of(&two)]));
        ask(&server, &one, "/v1/before");
        assert_eq!(last_seen(), bearer("/v1/before", FIRST));
        store(&server, SECOND);
        for sandbox in [&one, &two] {
            ask(&server, sandbox, "/v1/after");
            assert_eq!(last_seen(), bearer("/v1/after", SECOND));
        }
        // Where it is used can change, too.
        put(
            &server,
            &json!({ "binding": { "rules": ["good.test/v2/**"], "slot": { "header": { "name": "x-api-key" } } } }),
        );
        let placeholder = server.sh(&one, "echo $KEY")["stdout"].as_str().expect("text").trim().to_owned();
        ask(&server, &one, "/v1/moved");
        assert_eq!(last_seen(), bearer("/v1/moved", &placeholder));

        let problem = server.delete(SECRET).problem(409, "conflict");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(id_of(&one))), "{problem}");
        server.delete(&two).expect(200);
        assert_eq!(server.get(SECRET).expect(200)["used_by"], json!([id_of(&one)]));
        store(&server, SECOND);
        server.delete(&format!("{SECRET}?force=true")).expect(204);
        ask(&server, &one, "/v1/removed");
        assert_eq!(last_seen(), bearer("/v1/removed", &placeholder), "the egress process has forgotten it");
    });
}

#[test]
fn secrets_outlive_the_server_and_the_egress_process() {
    in_world("secrets_outlive_the_server_and_the_egress_process", || {
        let mut server = Server::start();
        store(&server, FIRST);
        let sandbox = user(&server);
        server.kill();
        server.begin();
        ask(&server, &sandbox, "/v1/next-server");
        assert_eq!(last_seen(), bearer("/v1/next-server", FIRST));

        // A server that dies between storing a value and handing it on: the next one does that.
        server.stop();
        server.fails_at = "kill secret/written".to_owned();
        server.begin();
        let body = json!({ "value": SECOND }).to_string();
        let mut connection = server.connect();
        let authorization = server.authorization();
        http::send(
            &mut connection,
            "PUT",
            SECRET,
            &["Content-Type: application/json", &authorization],
            body.as_bytes(),
        );
        server.ended();
        ask_later(&mut server, &sandbox);

        let wanted = format!("__egress\0service\0{}\0", server.data().display());
        let processes = std::fs::read_dir("/proc").expect("proc").flatten().filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            String::from_utf8_lossy(&line).ends_with(&wanted).then_some(pid)
        });
        let processes: Vec<i32> = processes.collect();
        assert_eq!(processes.len(), 1, "{processes:?}");
        kill_process(Pid::from_raw(processes[0]).expect("a process"), Signal::KILL).expect("ours");
        eventually("another egress process has the secret", || {
            ask(&server, &sandbox, "/v1/next-process");
            last_seen() == bearer("/v1/next-process", SECOND)
        });
        // Neither did any request before leave without it.
        let placeholders =
            seen().into_iter().filter(|(path, sent)| path == "/v1/next-process" && !sent.ends_with(SECOND));
        assert_eq!(placeholders.collect::<Vec<_>>(), []);
    });
}

fn ask_later(server: &mut Server, sandbox: &str) {
    server.fails_at = String::new();
    server.begin();
    ask(server, sandbox, "/v1/adopted");
    assert_eq!(last_seen(), bearer("/v1/adopted", SECOND));
}

#[test]
fn a_sandbox_is_refused_a_secret_that_is_not_there_or_has_no_use() {
    in_world("a_sandbox_is_refused_a_secret_that_is_not_there_or_has_no_use", || {
        let server = Server::start();
        let create = |spec: Value| server.post("/api/v1/sandboxes", &spec);
        let spec = json!({ "network": "proxied", "secrets": [{ "name": "api" }] });
        let problem = create(spec.clone()).problem(404, "not_found");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("secret api")), "{problem}");
        assert!(problem["help"].as_str().is_some_and(|help| help.contains("saggar secret set api")), "{problem}");
        store(&server, FIRST);
        create(json!({ "secrets": [{ "name": "api" }] })).problem(400, "contradiction");
        create(json!({ "network": "proxied", "secrets": [{ "name": "api", "env": "K" }], "env": { "K": "1" } }))
            .problem(400, "contradiction");
        create(json!({ "network": "proxied", "secrets": ["api"] })).problem(400, "invalid_request");
        assert_eq!(server.get("/api/v1/sandboxes").expect(200)["items"], json!([]));

        // Without the sealing key no sandbox is made that would need it.
        let kept = server.key_file().with_extension("kept");
        std::fs::rename(server.key_file(), &kept).expect("ours");
        create(spec.clone()).problem(503, "sealing_key");
        std::fs::rename(kept, server.key_file()).expect("ours");
        assert_eq!(server.get("/api/v1/sandboxes").expect(200)["items"], json!([]));
        create(spec).expect(201);
    });
}

/// Changes the network as E2B's clients do.
fn update(server: &Server, sandbox: &str, network: &Value) -> http::Answer {
    let (path, key) = update_of(server, sandbox);
    let headers = [key.as_str(), "Content-Type: application/json"];
    server.request_without_key("PUT", &path, &headers, network.to_string().as_bytes())
}

fn update_of(server: &Server, sandbox: &str) -> (String, String) {
    let short = sandbox.rsplit('_').next().expect("an id");
    let key = server.authorization().replace("Authorization: Bearer ", "X-API-Key: ");
    (format!("/sandboxes/{short}/network"), key)
}

/// A sandbox whose requests to good.test get a header by a rule.
fn with_header(server: &Server) -> String {
    let sandbox = server.sandbox_with(&json!({ "network": "proxied", "egress": { "allow": ["good.test"] } }));
    let headers = json!({ "Authorization": format!("Bearer {FIRST}") });
    let rules = json!({ "rules": { "good.test": [{ "transform": { "headers": headers } }] } });
    assert_eq!(update(server, &sandbox, &rules).status, 204);
    fetch(server, &sandbox, "/with");
    assert_eq!(last_seen(), bearer("/with", FIRST));
    sandbox
}

/// Asks without any credentials of its own.
fn fetch(server: &Server, sandbox: &str, path: &str) {
    server.sh(sandbox, &format!("curl -sS -m 20 https://good.test{path}"));
}

#[test]
fn a_server_that_is_killed_while_a_header_is_taken_away_leaves_that_to_the_next() {
    in_world("a_server_that_is_killed_while_a_header_is_taken_away_leaves_that_to_the_next", || {
        let mut server = Server::start();
        let sandbox = with_header(&server);
        server.stop();
        server.fails_at = "kill egress/row".to_owned();
        server.begin();
        let (path, key) = update_of(&server, &sandbox);
        let mut connection = server.connect();
        http::send(&mut connection, "PUT", &path, &["Content-Type: application/json", &key], b"{}");
        server.ended();
        server.fails_at = String::new();
        server.begin();
        fetch(&server, &sandbox, "/without");
        assert_eq!(last_seen(), ("/without".to_owned(), String::new()));
    });
}

#[test]
fn header_rules_are_replaced_beside_the_other_secrets_of_a_sandbox() {
    in_world("header_rules_are_replaced_beside_the_other_secrets_of_a_sandbox", || {
        let server = Server::start();
        store(&server, FIRST);
        let sandbox = user(&server);
        let used = |network: Value| {
            assert_eq!(update(&server, &sandbox, &network).status, 204);
            let secrets = server.get(&sandbox).expect(200)["secrets"].clone();
            let secrets = secrets.as_array().expect("a list").clone();
            let name = |secret: &Value| secret["name"].as_str().expect("text").to_owned();
            let (headers, others): (Vec<_>, Vec<_>) =
                secrets.iter().partition(|secret| name(secret).starts_with("e2b-header-"));
            assert_eq!(others, [&json!({ "name": "api", "env": "KEY" })]);
            ask(&server, &sandbox, "/v1/kept");
            assert_eq!(last_seen(), bearer("/v1/kept", FIRST));
            headers.into_iter().map(name).collect::<Vec<_>>()
        };
        let rules =
            |value: &str| json!({ "rules": { "good.test": [{ "transform": { "headers": { "X-Key": value } } }] } });
        let (first, second) = (used(rules(FIRST)), used(rules(SECOND)));
        assert!(first.len() == 1 && second.len() == 1 && first != second, "{first:?} {second:?}");
        assert_eq!(used(json!({})), Vec::<String>::new());
    });
}

#[test]
fn a_header_is_taken_away_also_if_the_supervisor_does_not_confirm_the_rules() {
    in_world("a_header_is_taken_away_also_if_the_supervisor_does_not_confirm_the_rules", || {
        let server = Server::start();
        let sandbox = with_header(&server);
        let supervisor = supervisor_of(&server, &sandbox);
        kill_process(supervisor, Signal::STOP).expect("ours");
        let answer = update(&server, &sandbox, &json!({}));
        kill_process(supervisor, Signal::CONT).expect("ours");
        assert_ne!(answer.status, 204, "it can't have confirmed them");
        fetch(&server, &sandbox, "/without");
        assert_eq!(last_seen(), ("/without".to_owned(), String::new()));
    });
}

/// The process that listens for the sandbox's control connections.
fn supervisor_of(server: &Server, sandbox: &str) -> Pid {
    use std::os::unix::net::UnixStream;
    let socket = server.data().join("control").join(format!("{}.sock", id_of(sandbox)));
    let stream = UnixStream::connect(socket).expect("its supervisor lives");
    rustix::net::sockopt::socket_peercred(&stream).expect("a socket").pid
}
