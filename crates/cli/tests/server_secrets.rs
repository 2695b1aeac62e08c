//! Secrets of a server: stored and changed over the API and from the command line, and in the clear nowhere.

mod harness;
mod http;
mod traces;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use http::{Answer, Server, command};
use rustix::termios::LocalModes;
use serde_json::{Value, json};
use traces::terminal::Terminal;

const OPENAI: &str = "/api/v1/secrets/openai";
/// Occurs nowhere by chance.
const CANARY: &str = "sk-canary-51c0de7f00d5";

fn put(server: &Server, path: &str, body: &str) -> Answer {
    server.request("PUT", path, &["Content-Type: application/json"], body.as_bytes())
}

fn bound(value: &str) -> String {
    json!({ "value": value, "binding": { "rules": ["POST api.openai.com/v1/**"], "slot": "bearer" } }).to_string()
}

/// Runs a command against the server with this stdin. Returns exit status, stdout, stderr.
fn run(server: &Server, arguments: &[&str], stdin: &[u8]) -> (i32, String, String) {
    let mut child = command(arguments)
        .env("SAGGAR_URL", format!("http://{}", server.address))
        .env("SAGGAR_API_KEY", &server.key)
        .env("SAGGAR_SECRETS_KEY_FILE", server.key_file())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    // A command that doesn't read its stdin may be gone already.
    let _ = child.stdin.take().expect("it has a pipe").write_all(stdin);
    let output = child.wait_with_output().expect("our own child");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

/// Whether any file below contains the text.
fn is_in(text: &str, below: &Path) -> bool {
    std::fs::read_dir(below).expect("it is there").any(|entry| {
        let entry = entry.expect("it is there");
        match entry.file_type().expect("it is there") {
            kind if kind.is_dir() => is_in(text, &entry.path()),
            kind if kind.is_file() => {
                let bytes = std::fs::read(entry.path()).expect("ours");
                bytes.windows(text.len()).any(|window| window == text.as_bytes())
            }
            _ => false,
        }
    })
}

#[test]
fn a_secret_is_stored_changed_and_removed_and_its_value_is_never_returned() {
    let server = Server::start();
    assert_eq!(server.get("/api/v1/secrets").expect(200), json!({ "items": [] }));
    let made = put(&server, OPENAI, &bound(CANARY));
    let made = made.expect(201);
    assert_eq!((&made["name"], &made["version"]), (&json!("openai"), &json!(1)));
    assert_eq!(made["binding"], json!({ "rules": ["POST api.openai.com/v1/**"], "slot": "bearer" }));
    assert_eq!(put(&server, OPENAI, &bound(CANARY)).expect(200), made, "the same request again changes nothing");
    let changed = put(&server, OPENAI, &json!({ "value": "sk-canary-second" }).to_string()).expect(200);
    assert_eq!((&changed["version"], &changed["binding"]), (&json!(2), &made["binding"]));
    let binding = json!({ "binding": { "rules": ["api.openai.com"], "slot": { "header": { "name": "X-Api-Key" } }, "placeholder_prefix": "sk-" } });
    let moved = put(&server, OPENAI, &binding.to_string()).expect(200);
    assert_eq!(
        (&moved["version"], &moved["binding"]["slot"]),
        (&json!(3), &json!({ "header": { "name": "x-api-key" } }))
    );
    let shown = server.get(OPENAI).expect(200);
    assert_eq!(shown["used_by"], json!([]));
    let listed = server.get("/api/v1/secrets").expect(200);
    assert_eq!(listed["items"][0]["created_at"], made["created_at"]);
    for answer in [made, changed, moved, shown, listed] {
        assert!(!answer.to_string().contains("canary"), "{answer}");
    }
    server.delete(OPENAI).expect(204);
    server.delete(OPENAI).problem(404, "not_found");
    server.get(OPENAI).problem(404, "not_found");
}

#[test]
fn what_is_wrong_is_refused_without_repeating_the_value() {
    let server = Server::start();
    let quoted = |value: &str| json!({ "value": value }).to_string();
    let misplaced = |binding: Value| json!({ "value": CANARY, "binding": binding }).to_string();
    for (path, body, status, code) in [
        ("/api/v1/secrets/OpenAI", bound(CANARY), 400, "invalid_value"),
        ("/api/v1/secrets/%2e%2e", bound(CANARY), 400, "invalid_value"),
        (OPENAI, quoted(CANARY), 400, "invalid_value"),
        (OPENAI, bound("canary\nX: y"), 400, "invalid_value"),
        (OPENAI, bound("canary"), 400, "invalid_value"),
        (OPENAI, bound(&"canary".repeat(2000)), 400, "invalid_value"),
        (OPENAI, r#"{"value": 77777777777}"#.to_owned(), 400, "invalid_request"),
        (OPENAI, format!(r#"{{"binding": "{CANARY}"}}"#), 400, "invalid_request"),
        (OPENAI, format!(r#"{{"value": "{CANARY}", "other": "{CANARY}"}}"#), 400, "invalid_request"),
        (OPENAI, format!(r#"["{CANARY}"]"#), 400, "invalid_request"),
        (OPENAI, format!(r#"{{"value": "{CANARY}"#), 400, "invalid_request"),
        (OPENAI, r#"{"binding": {"rules": ["*"], "slot": "bearer"}}"#.to_owned(), 400, "invalid_value"),
        (OPENAI, r#"{"binding": {"rules": ["http://a.example"], "slot": "bearer"}}"#.to_owned(), 400, "invalid_value"),
        (OPENAI, misplaced(json!({ "rules": ["a.example"], "slot": CANARY })), 400, "invalid_value"),
        (OPENAI, misplaced(json!({ "rules": ["a.example"], "slot": { CANARY: {} } })), 400, "invalid_value"),
        (OPENAI, misplaced(json!({ "rules": [format!("no rule {CANARY}")], "slot": "bearer" })), 400, "invalid_value"),
        (
            OPENAI,
            r#"{"binding": {"rules": ["a.example"], "slot": {"header": {"name": "host"}}}}"#.to_owned(),
            400,
            "invalid_value",
        ),
    ] {
        let problem = put(&server, path, &body).problem(status, code);
        let told = problem.to_string();
        assert!(!told.contains("canary") && !told.contains("7777"), "{told}");
        assert!(problem["help"].as_str().is_some_and(|help| !help.is_empty()), "{problem}");
    }
    assert_eq!(server.get("/api/v1/secrets").expect(200), json!({ "items": [] }));
    let path = server.request_without_key("GET", OPENAI, &[], b"");
    path.problem(401, "unauthorized");
}

#[test]
fn another_project_sees_and_changes_nothing() {
    let mut server = Server::start();
    put(&server, OPENAI, &bound(CANARY)).expect(201);
    server.stop();
    let data = server.data();
    let made = command(&["key", "create", "theirs", "--project", "other", "--data-dir"]).arg(data).output();
    let theirs = String::from_utf8(made.expect("the binary was built").stdout).expect("it prints a key");
    server.begin();
    let bearer = format!("Authorization: Bearer {}", theirs.trim());
    let ask = |method: &str| server.request_without_key(method, OPENAI, &[&bearer], b"");
    ask("GET").problem(404, "not_found");
    ask("DELETE").problem(404, "not_found");
    let list = server.request_without_key("GET", "/api/v1/secrets", &[&bearer], b"");
    assert_eq!(list.expect(200), json!({ "items": [] }));
    assert_eq!(server.get(OPENAI).expect(200)["version"], 1);
}

#[test]
fn the_commands_store_list_show_and_remove() {
    let server = Server::start();
    let set =
        ["secret", "set", "openai", "--bind", "api.openai.com", "--slot", "bearer", "--placeholder-prefix", "sk-"];
    let (code, stdout, stderr) = run(&server, &set, format!("{CANARY}\n").as_bytes());
    assert_eq!((code, stdout.as_str()), (0, "openai version 1\n"), "{stderr}");
    let (code, stdout, stderr) = run(&server, &["secret", "set", "openai"], b"sk-canary-second");
    assert_eq!((code, stdout.as_str()), (0, "openai version 2\n"), "{stderr}");
    let keep = [
        "secret",
        "set",
        "openai",
        "--keep-value",
        "--bind",
        "POST api.openai.com/v1/**",
        "--slot",
        "header:X-Key:v1 ",
    ];
    let (code, stdout, stderr) = run(&server, &keep, b"");
    assert_eq!((code, stdout.as_str()), (0, "openai version 3\n"), "{stderr}");
    let (_, listed, _) = run(&server, &["secret", "list"], b"");
    assert!(
        listed.contains("openai") && listed.contains("header:x-key:v1") && listed.contains("POST api.openai.com/v1/**"),
        "{listed}"
    );
    let (code, shown, _) = run(&server, &["secret", "show", "openai"], b"");
    assert!(code == 0 && shown.contains("no live sandbox") && !shown.contains("canary"), "{shown}");
    let (_, json, _) = run(&server, &["secret", "show", "openai", "--json"], b"");
    assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON")["version"], 3);
    for (arguments, stdin, expected) in [
        (&["secret", "set", "openai"][..], &b"short"[..], "shorter than"),
        (&["secret", "set", "openai"], b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe", "not UTF-8"),
        (&["secret", "set", "new"], b"sk-canary-third", "no binding"),
        (&["secret", "set", "openai", "--bind", "*", "--slot", "bearer"], b"sk-canary-third", "can't be bound"),
        (&["secret", "set", "openai", "--bind", "a.example", "--slot", "cookie"], b"", "choose one of: bearer"),
        (&["secret", "set", "openai", "--slot", "bearer"], b"", "--bind"),
        (&["secret", "show", "missing"], b"", "saggar secret list"),
    ] {
        let (code, stdout, stderr) = run(&server, arguments, stdin);
        assert!(code != 0 && stderr.contains(expected), "{arguments:?}: {code} {stdout} {stderr}");
        assert!(!stderr.contains("canary"), "{stderr}");
    }
    assert_eq!(run(&server, &["secret", "rm", "openai"], b""), (0, "openai removed\n".to_owned(), String::new()));
    assert_eq!(run(&server, &["secret", "rm", "openai"], b"").0, 1);
}

#[test]
fn a_value_that_is_typed_is_not_shown_and_the_terminal_is_as_before() {
    let server = Server::start();
    let start = |terminal: &Terminal| {
        let mut set = command(&["secret", "set", "openai", "--bind", "api.openai.com", "--slot", "bearer"]);
        set.env("SAGGAR_URL", format!("http://{}", server.address)).env("SAGGAR_API_KEY", &server.key);
        let child = terminal.start(set);
        terminal.read("value of openai: ");
        child
    };
    let terminal = Terminal::open();
    let before = terminal.modes().local_modes;
    let mut child = start(&terminal);
    terminal.type_in(b"\x03");
    assert_eq!(child.wait().expect("our own child").code(), Some(130));
    assert_eq!(terminal.modes().local_modes, before);
    server.get(OPENAI).problem(404, "not_found");

    let terminal = Terminal::open();
    let mut child = start(&terminal);
    assert!(!terminal.modes().local_modes.contains(LocalModes::ECHO));
    terminal.type_in(format!("{CANARY}\r").as_bytes());
    let said = terminal.read("version 1");
    assert!(!said.contains("canary"), "{said:?}");
    assert!(child.wait().expect("our own child").success());
    assert_eq!(terminal.modes().local_modes, before);
    put(&server, OPENAI, &bound(CANARY)).expect(200);
    let (_, shown, _) = run(&server, &["secret", "show", "openai", "--json"], b"");
    assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON")["version"], 2, "the binding changed, once");
}

#[test]
fn the_sealing_key_is_changed_beside_the_server_and_without_it() {
    let mut server = Server::start();
    put(&server, OPENAI, &bound(CANARY)).expect(201);
    let data = server.data().display().to_string();
    let rekey = |server: &Server, more: &[&str]| {
        let arguments = [&["secret", "rekey", "--json", "--data-dir", &data][..], more].concat();
        let (code, stdout, stderr) = run(server, &arguments, b"");
        assert_eq!(code, 0, "{stdout} {stderr}");
        serde_json::from_str::<Value>(&stdout).expect("JSON")
    };
    let first = server.get(OPENAI).expect(200)["sealing_key"].clone();
    let done = rekey(&server, &[]);
    assert_eq!((&done["secrets"], &done["forgotten_keys"]), (&json!(1), &json!(0)));
    let second = server.get(OPENAI).expect(200)["sealing_key"].clone();
    assert!(second == done["sealing_key"] && second != first);
    assert_eq!(put(&server, OPENAI, &bound(CANARY)).expect(200)["version"], 1, "the running server reads it");
    server.stop();
    assert_eq!(rekey(&server, &["--forget-old-keys"])["forgotten_keys"], 2);
    let (code, stdout, _) = run(&server, &["check", "--json", "--data-dir", &data], b"");
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((code, &report["secrets"], &report["findings"]), (0, &json!(1), &json!([])));
    server.begin();
    assert_eq!(put(&server, OPENAI, &bound(CANARY)).expect(200)["version"], 1);
    server.stop();

    // Without its key the server starts and says so; the secret can be replaced once there is a key again.
    let kept = std::fs::read(server.key_file()).expect("it is there");
    std::fs::remove_file(server.key_file()).expect("it is there");
    let (code, stdout, _) = run(&server, &["check", "--data-dir", &data], b"");
    assert!(code == 1 && stdout.contains("secret openai: can't be opened"), "{stdout}");
    server.begin();
    let problem = put(&server, OPENAI, &bound(CANARY)).problem(503, "sealing_key");
    assert!(!problem.to_string().contains(server.key_file().to_str().expect("text")), "{problem}");
    assert_eq!(server.get(OPENAI).expect(200)["version"], 1);
    assert!(!server.key_file().exists(), "no new key is made");
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(server.key_file(), kept).expect("ours");
    std::fs::set_permissions(server.key_file(), std::fs::Permissions::from_mode(0o640)).expect("ours");
    server.stop();
    let refused = server.command().output().expect("the binary was built");
    let told = String::from_utf8(refused.stderr).expect("it prints text");
    assert!(!refused.status.success() && told.contains("can be read or changed by other users"), "{told}");
    std::fs::set_permissions(server.key_file(), std::fs::Permissions::from_mode(0o600)).expect("ours");
    server.begin();
    assert_eq!(put(&server, OPENAI, &bound(CANARY)).expect(200)["version"], 1);
}

#[test]
fn a_value_is_in_no_file_and_in_no_log() {
    let mut server = Server::start_with(&["--log", "trace"]);
    server.stop();
    let log = server.data().with_file_name("log");
    server.log = Some(log.clone());
    server.begin();
    put(&server, OPENAI, &bound(CANARY)).expect(201);
    put(&server, "/api/v1/secrets/github", &bound("ghp-canary-other")).expect(201);
    put(&server, OPENAI, &format!(r#"{{"value": "{CANARY}", "wrong": 1}}"#)).problem(400, "invalid_request");
    let root = server.data().parent().expect("it is below one").to_owned();
    let backup = root.join("backup.db").display().to_string();
    let data = server.data().display().to_string();
    let (code, _, stderr) = run(&server, &["backup", &backup, "--data-dir", &data], b"");
    assert_eq!(code, 0, "{stderr}");
    // While the server runs its log is beside the database, and after a kill it still is.
    for stop in [None, Some(Server::kill as fn(&mut Server))] {
        assert!(is_in("api.openai.com", &root), "the binding shows that the files are looked through");
        assert!(!is_in("canary", &root));
        if let Some(stop) = stop {
            stop(&mut server);
        }
    }
    assert!(!is_in("canary", &root));
    let logged = std::fs::read_to_string(log).expect("it logs");
    assert!(logged.contains("/api/v1/secrets/{secret}"), "{logged}");
    server.begin();
}
