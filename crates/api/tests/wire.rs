//! Requests and responses on the wire.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use saggar_api::{
    Code, CommandLine, CreateKey, CreateSandbox, CreatedSandbox, DeadlineAction, Exec, ExecResult, ExecState,
    FileChange, FileEvent, Label, ListQuery, ListSandboxes, MakeDirectory, MoveFile, Network, Output, OutputStream,
    ResizeExec, ResumeSandbox, SandboxState, Secret, SetTimeout, SignFile, SignalExec, SignalScope, StartExec, States,
    TerminalSize, Timestamp, UpdateSandbox, WriteQuery, read,
};
use saggar_domain::{ByteSize, ExecId, ExecStatus, NetworkMode, SandboxId, Timeout, User};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn check_golden<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T, golden: Value) {
    assert_eq!(serde_json::to_value(value).unwrap(), golden);
    assert_eq!(&serde_json::from_value::<T>(golden).unwrap(), value);
}

/// The problem's detail about a body.
fn complaint<T: DeserializeOwned>(body: &str) -> String {
    let problem = read::json::<T>(body.as_bytes()).err().unwrap_or_else(|| panic!("{body} was taken"));
    assert_eq!(problem.code, Code::InvalidRequest);
    problem.detail
}

#[test]
fn a_sandbox_to_be_made_needs_nothing_said() {
    let default = read::json::<CreateSandbox>(b"").unwrap();
    assert_eq!(default, CreateSandbox::default());
    assert_eq!(default.network, Network(NetworkMode::None));
    assert_eq!(default.on_timeout, DeadlineAction::Kill);
    check_golden(
        &default,
        json!({"template": "base", "limits": {}, "on_timeout": "kill", "network": "none", "auto_resume": false, "ports": {"public": []}}),
    );
}

#[test]
fn quantities_are_as_people_write_them() {
    let body = br#"{"ttl": "5m", "idle_timeout": 30, "limits": {"memory": "512M", "cpus": 0.5, "pids": 64}, "labels": {"team": "red"}}"#;
    let create: CreateSandbox = read::json(body).unwrap();
    assert_eq!(create.ttl, Some(Timeout::millis(300_000)));
    assert_eq!(create.idle_timeout, Some(Timeout::millis(30_000)));
    assert_eq!(create.limits.memory, Some(ByteSize::mebibytes(512)));
    let written = serde_json::to_value(&create).unwrap();
    assert_eq!(written["limits"], json!({"memory": "512M", "cpus": "0.5", "pids": "64"}));
    assert_eq!(written["ttl"], "5m");
}

#[test]
fn an_unknown_field_is_refused_by_name() {
    for (detail, name) in [
        (complaint::<CreateSandbox>(r#"{"netwrok": "none"}"#), "netwrok"),
        (complaint::<CreateSandbox>(r#"{"limits": {"ram": "1G"}}"#), "ram"),
        (complaint::<CreateSandbox>(r#"{"ports": {"private": []}}"#), "private"),
        (complaint::<UpdateSandbox>(r#"{"state": "paused"}"#), "state"),
        (complaint::<ResumeSandbox>(r#"{"tll": "5m"}"#), "tll"),
        (complaint::<SetTimeout>(r#"{"ttl": "5m", "x": 1}"#), "x"),
        (complaint::<StartExec>(r#"{"command": "true", "shell": true}"#), "shell"),
        (complaint::<StartExec>(r#"{"command": "true", "tty": {"rows": 1, "cols": 1, "depth": 1}}"#), "depth"),
        (complaint::<SignalExec>(r#"{"signal": "TERM", "to": "all"}"#), "to"),
        (complaint::<MakeDirectory>(r#"{"path": "a", "recursive": true}"#), "recursive"),
        (complaint::<MoveFile>(r#"{"from": "a", "to": "b", "force": true}"#), "force"),
        (complaint::<SignFile>(r#"{"path": "a", "verb": "get"}"#), "verb"),
        (complaint::<CreateKey>(r#"{"name": "a", "admin": true}"#), "admin"),
    ] {
        assert!(detail.contains(&format!("unknown field `{name}`")), "{detail}");
    }
    let problem = read::query::<WriteQuery>("path=a&force=true").unwrap_err();
    assert!(problem.detail.contains("force"), "{}", problem.detail);
}

#[test]
fn a_list_is_no_object_and_a_field_comes_once() {
    for body in [r#"["base"]"#, r#"{"limits": ["1G"]}"#, r#"{"ttl": "5m", "ttl": "6m"}"#, "null", "{", r#"{"ttl": -1}"#]
    {
        complaint::<CreateSandbox>(body);
    }
    complaint::<StartExec>(r#"["true"]"#);
    complaint::<StartExec>(r#"{"command": "true", "tty": [24, 80]}"#);
}

#[test]
fn a_long_mistake_is_not_told_back_whole() {
    let body = format!(r#"{{"{}": 1}}"#, "x".repeat(100_000));
    assert!(complaint::<CreateSandbox>(&body).len() < 1000);
}

#[test]
fn a_command_is_words_or_a_line_for_a_shell() {
    let words: StartExec = read::json(br#"{"command": ["echo", "", "a b"]}"#).unwrap();
    assert_eq!(words, StartExec::new(CommandLine::Words(vec!["echo".into(), String::new(), "a b".into()])));
    let line: StartExec = read::json(br#"{"command": "echo $HOME", "wait": false}"#).unwrap();
    assert!(!line.wait);
    assert_eq!(line.command.into_words(), ["/bin/sh", "-c", "echo $HOME"]);
    for wrong in [
        r#"{}"#,
        r#"{"command": []}"#,
        r#"{"command": ""}"#,
        r#"{"command": [""]}"#,
        r#"{"command": ["a\u0000b"]}"#,
        r#"{"command": ["a", "\u0000"]}"#,
        r#"{"command": "\u0000"}"#,
        r#"{"command": [1]}"#,
        r#"{"command": {"a": 1}}"#,
    ] {
        complaint::<StartExec>(wrong);
    }
    let many = vec!["a"; 5000];
    complaint::<StartExec>(&json!({ "command": many }).to_string());
}

#[test]
fn a_program_to_start_on_the_wire() {
    let whole = json!({
        "command": ["echo", "hi"],
        "env": {"A": "1"},
        "cwd": "/tmp",
        "user": "root",
        "stdin": true,
        "tty": {"rows": 24, "cols": 80},
        "timeout": "5m",
        "limits": {"memory": "512M", "pids": "64", "cpus": "0.5"},
        "output_bytes": "1M",
        "wait": false,
    });
    let start: StartExec = serde_json::from_value(whole.clone()).unwrap();
    assert_eq!(serde_json::to_value(&start).unwrap(), whole);
    check_golden(
        &StartExec::new(CommandLine::Shell("make".into())),
        json!({"command": "make", "stdin": false, "wait": true}),
    );
    let limits = json!({"command": "make", "limits": {}, "stdin": false, "wait": true});
    let start: StartExec = serde_json::from_value(limits.clone()).unwrap();
    assert_eq!(serde_json::to_value(&start).unwrap(), limits);
    complaint::<StartExec>(r#"{"command": "true", "limits": ["1G"]}"#);
    complaint::<StartExec>(r#"{"command": "true", "limits": {"ram": "1G"}}"#);
    complaint::<StartExec>(r#"{"command": "true", "tty": {"rows": 1}}"#);
}

#[test]
fn a_signal_goes_to_the_tree_unless_to_the_group() {
    let signal = |body: &[u8]| serde_json::to_value(read::json::<SignalExec>(body).unwrap()).unwrap();
    assert_eq!(signal(br#"{"signal": "SIGTERM"}"#), json!({"signal": "TERM", "scope": "tree"}));
    assert_eq!(signal(br#"{"signal": "9", "scope": "group"}"#), json!({"signal": "KILL", "scope": "group"}));
}

#[test]
fn choices_have_these_names() {
    fn check<T: Serialize + DeserializeOwned>(names: &[&str]) {
        for name in names {
            assert_eq!(serde_json::to_value(serde_json::from_value::<T>(json!(name)).unwrap()).unwrap(), json!(name));
        }
        assert!(serde_json::from_value::<T>(json!("another")).is_err());
    }
    check::<ExecState>(&[
        "running",
        "exited",
        "signaled",
        "timed_out",
        "cancelled",
        "out_of_memory",
        "refused",
        "setup_failed",
        "lost",
    ]);
    check::<SandboxState>(&["creating", "running", "paused", "ending", "ended"]);
    check::<DeadlineAction>(&["kill", "pause"]);
    check::<OutputStream>(&["stdout", "stderr"]);
    check::<SignalScope>(&["tree", "group"]);
}

#[test]
fn a_template_has_a_name_of_at_most_64_characters() {
    let create = |name: &str| json!({ "template": name }).to_string();
    let longest = "x".repeat(64);
    for good in ["base", "python-3.12", "a_b", "3", &longest] {
        assert_eq!(read::json::<CreateSandbox>(create(good).as_bytes()).unwrap().template.as_str(), good);
    }
    for wrong in ["", ".", "../x", "Base", "a/b", "-a", &"x".repeat(65)] {
        complaint::<CreateSandbox>(&create(wrong));
    }
}

#[test]
fn an_exec_on_the_wire() {
    let exec = Exec {
        id: ExecId::from_random([0; 16]),
        sandbox_id: SandboxId::from_random([0; 16]),
        command: vec!["true".into()],
        user: Some(User::User),
        tty: false,
        status: ExecState::Ended(ExecStatus::Exited),
        pid: None,
        exit_code: Some(0),
        signal: None,
        started_at: Timestamp::from_millis(1000),
        ended_at: Some(Timestamp::from_millis(1005)),
        elapsed_ms: Some(5),
        usage: None,
        denials: Vec::new(),
        error: None,
    };
    let output = Output { stdout: b"hi\n".to_vec(), ..Output::default() };
    check_golden(
        &ExecResult { exec, output },
        json!({
            "id": "exec_aaaaaaaaaaaaaaaaaaaaaaaaaa",
            "sandbox_id": "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa",
            "command": ["true"],
            "user": "user",
            "tty": false,
            "status": "exited",
            "pid": null,
            "exit_code": 0,
            "signal": null,
            "started_at": "1970-01-01T00:00:01.000Z",
            "ended_at": "1970-01-01T00:00:01.005Z",
            "elapsed_ms": 5,
            "usage": null,
            "denials": [],
            "error": null,
            "stdout": "hi\n",
            "stderr": "",
            "stdout_truncated": false,
            "stderr_truncated": false,
            "stdout_dropped_bytes": 0,
            "stderr_dropped_bytes": 0,
        }),
    );
}

/// A sandbox as a server sends it.
fn sandbox() -> Value {
    json!({
        "id": "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa",
        "project_id": "prj_aaaaaaaaaaaaaaaaaaaaaaaaaa",
        "state": "running",
        "template": "base",
        "storage": "memory",
        "labels": {"team": "red"},
        "tier": "namespace",
        "network": "none",
        "network_managed": true,
        "user": "user",
        "limits": {"memory": "2G", "cpus": "2", "pids": "512", "disk": "1G", "files": "4096", "output": "8M"},
        "unenforced": [],
        "policy_hash": format!("sha256:{}", "0".repeat(64)),
        "created_at": "2026-11-15T12:00:00.000Z",
        "started_at": "2026-11-15T12:00:00.009Z",
        "deadline": "2026-11-15T12:05:00.000Z",
        "on_timeout": "kill",
        "idle_timeout": null,
        "auto_resume": false,
        "ports": {"public": [8080], "every": false},
        "ended": null,
    })
}

#[test]
fn a_sandbox_reads_and_writes_the_same_and_its_token_is_told_once() {
    let mut made = sandbox();
    let again: CreatedSandbox = serde_json::from_value(made.clone()).unwrap();
    assert_eq!(again.access_token, None);
    assert_eq!(serde_json::to_value(&again).unwrap(), made);
    made["access_token"] = "tok".into();
    let first: CreatedSandbox = serde_json::from_value(made.clone()).unwrap();
    assert_eq!(first.access_token, Some(Secret::new("tok")));
    assert_eq!(serde_json::to_value(&first).unwrap(), made);
    assert!(!format!("{first:?}").contains("tok\""));
}

#[test]
fn network_rules_are_asked_for_and_shown_as_text() {
    let body =
        br#"{"network": "proxied", "egress": {"allow": ["@pypi", "get-it.Example.com"], "deny": ["10.0.0.0/8"]}}"#;
    let create: CreateSandbox = read::json(body).unwrap();
    let rules = json!({"allow": ["@pypi", "get-it.example.com"], "deny": ["10.0.0.0/8"]});
    assert_eq!(serde_json::to_value(&create).unwrap()["egress"], rules);
    let draft = create.clone().into_spec();
    assert_eq!(serde_json::to_value(&draft).unwrap()["egress"], rules);
    assert_eq!(CreateSandbox::try_from(draft.clone()), Ok(create));
    let shown = saggar_api::SandboxSpec::of(draft).unwrap();
    assert_eq!(serde_json::to_value(&shown).unwrap()["egress"], rules);
    let detail = complaint::<CreateSandbox>(r#"{"egress": {"allow": ["127.1"]}}"#);
    assert!(detail.contains("four decimal numbers"), "{detail}");
    assert!(complaint::<CreateSandbox>(r#"{"egress": {"alow": []}}"#).contains("alow"));
    assert!(complaint::<CreateSandbox>(r#"{"egress": ["*"]}"#).contains("table"));
}

#[test]
fn a_newer_server_may_say_more() {
    let mut newer = sandbox();
    newer["colour"] = "blue".into();
    newer["limits"]["gpus"] = "1".into();
    newer["ports"]["private"] = json!([1]);
    newer["egress"] = json!({"allow": ["a form of rule that is not known"], "ask": []});
    newer["ended"] = json!({"at": "2026-11-15T12:00:00.000Z", "reason": "sublimated", "detail": "", "x": 1});
    let read: saggar_api::Sandbox = serde_json::from_value(newer).unwrap();
    assert_eq!(read.ended.unwrap().reason, saggar_domain::EndReason::Unknown);
}

#[test]
fn queries_read_and_write() {
    let list = ListSandboxes {
        state: Some(States(vec![SandboxState::Running, SandboxState::Paused])),
        label: vec![Label::parse("team=red & blue").unwrap(), Label::parse("a=b=c").unwrap()],
        limit: Some(10),
        cursor: None,
    };
    let text = read::to_query(&list);
    assert_eq!(text, "state=running%2Cpaused&label=team%3Dred+%26+blue&label=a%3Db%3Dc&limit=10");
    assert_eq!(read::query::<ListSandboxes>(&text).unwrap(), list);
    assert_eq!(read::query::<ListSandboxes>("").unwrap(), ListSandboxes::default());
    assert_eq!(read::query::<ListQuery>("path=%2Ftmp").unwrap().depth, 1);
    let write: WriteQuery = read::query("path=a%20b&mode=0600&parents=true&user=root").unwrap();
    assert_eq!((write.path.as_str(), write.mode.unwrap().bits(), write.parents), ("a b", 0o600, true));
    for wrong in ["path=", "path=a%00b", "mode=0644", "path=a&mode=4755", "path=a&parents=maybe", "path=a&user=daemon"]
    {
        assert!(read::query::<WriteQuery>(wrong).is_err(), "{wrong}");
    }
    for wrong in ["state=runing", "label=x", "limit=-1", "state=running,"] {
        assert!(read::query::<ListSandboxes>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn file_events_on_the_wire() {
    check_golden(
        &FileEvent::Created(FileChange { path: "/tmp/a".into(), is_directory: true }),
        json!({"type": "created", "path": "/tmp/a", "is_directory": true}),
    );
    check_golden(&FileEvent::Watching, json!({"type": "watching"}));
    assert_eq!(serde_json::from_value::<FileEvent>(json!({"type": "licked", "path": "a"})).unwrap(), FileEvent::Other);
}

#[test]
fn a_terminal_has_a_size() {
    check_golden(&TerminalSize { rows: 24, cols: 80 }, json!({"rows": 24, "cols": 80}));
    check_golden(&ResizeExec(TerminalSize { rows: 24, cols: 80 }), json!({"rows": 24, "cols": 80}));
    for wrong in [r#"{"rows": 65536, "cols": 80}"#, r#"{"rows": 1, "cols": 1, "depth": 1}"#, "[24, 80]"] {
        complaint::<ResizeExec>(wrong);
    }
}
