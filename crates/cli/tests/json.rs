//! Machine-readable output: the result object and the event stream, field by field, for every way an exec can end.

mod harness;
mod traces;

use std::collections::BTreeSet;

use harness::{Place, finish, is_root, not_here, show};
use rustix::process::Signal;
use serde_json::{Value, json};
use traces::{Events, events_in, signal};

/// The fields of the result; `stdout` and `stderr` are replaced by a base64 form if they are not text.
const FIELDS: &[&str] = &[
    "changes_kept",
    "denials",
    "elapsed_ms",
    "error",
    "exec_id",
    "exit_code",
    "fs",
    "network",
    "network_managed",
    "policy_hash",
    "sandbox_id",
    "schema",
    "signal",
    "status",
    "stderr",
    "stderr_dropped_bytes",
    "stderr_truncated",
    "stdout",
    "stdout_dropped_bytes",
    "stdout_truncated",
    "tier",
    "unenforced",
    "usage",
];

fn is_id(value: &Value, prefix: &str) -> bool {
    value
        .as_str()
        .and_then(|text| text.strip_prefix(prefix))
        .is_some_and(|rest| rest.len() == 26 && rest.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
}

fn is_hash(value: &Value) -> bool {
    value
        .as_str()
        .and_then(|text| text.strip_prefix("sha256:"))
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn is_text_object(value: &Value, fields: &[&str]) -> bool {
    value.as_object().is_some_and(|object| {
        object.keys().collect::<BTreeSet<_>>()
            == fields.iter().map(|field| field.to_string()).collect::<BTreeSet<_>>().iter().collect()
    }) && fields.iter().all(|field| value[*field].is_string())
}

/// Exactly these fields, each of its type, without contradictions.
fn check_shape(result: &Value) {
    let keys: Vec<&String> = result.as_object().expect("an object").keys().collect();
    let mut sorted = keys.clone();
    sorted.sort();
    assert_eq!(sorted, FIELDS, "{result}");
    assert_eq!(result["schema"], "saggar.exec/v1");
    assert!(is_id(&result["exec_id"], "exec_") && is_id(&result["sandbox_id"], "sbx_"), "{result}");
    for field in ["stdout", "stderr", "tier", "fs", "network"] {
        assert!(result[field].is_string(), "{field}: {result}");
    }
    for field in ["stdout_truncated", "stderr_truncated", "network_managed"] {
        assert!(result[field].is_boolean(), "{field}: {result}");
    }
    for field in ["elapsed_ms", "stdout_dropped_bytes", "stderr_dropped_bytes"] {
        assert!(result[field].is_u64(), "{field}: {result}");
    }
    let usage = result["usage"].as_object().expect("an object");
    assert_eq!(
        usage.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        BTreeSet::from(["cpu_ms", "memory_peak_bytes", "processes_peak"])
    );
    assert!(usage.values().all(|value| value.is_u64() || value.is_null()), "{result}");
    assert!(result["unenforced"].as_array().expect("an array").iter().all(Value::is_string), "{result}");
    assert!(
        result["denials"]
            .as_array()
            .expect("an array")
            .iter()
            .all(|denial| is_text_object(denial, &["code", "rule", "message"])),
        "{result}"
    );
    assert!(result["error"].is_null() || is_text_object(&result["error"], &["code", "message", "help"]), "{result}");
    let (is_exited, is_signaled) = (result["status"] == "exited", result["status"] == "signaled");
    assert!(result["exit_code"].is_u64() || !is_exited, "{result}");
    assert!(result["signal"].is_u64() || !is_signaled, "{result}");
    assert!(!(result["exit_code"].is_u64() && result["signal"].is_u64()), "{result}");
    assert_eq!(
        result["error"].is_object(),
        matches!(result["status"].as_str(), Some("refused" | "setup_failed")),
        "{result}"
    );
}

/// The events of one exec belong together, are in order, and contain nothing they shouldn't.
fn check_events(events: &[Value], result: &Value) {
    for (number, event) in events.iter().enumerate() {
        assert_eq!((&event["schema"], &event["seq"]), (&json!("saggar.event/v1"), &json!(number)));
        for field in ["policy_hash", "sandbox_id", "exec_id"] {
            assert_eq!(event[field], result[field], "{field} of {event}");
        }
        let time = event["time"].as_str().expect("text");
        assert!(time.len() == 24 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
    }
    let elapsed: Vec<u64> = events.iter().map(|event| event["elapsed_ms"].as_u64().expect("a number")).collect();
    assert!(elapsed.is_sorted(), "{elapsed:?}");
    let last = events.last().expect("at least one");
    assert_eq!(last["type"], "finish");
    for field in ["status", "exit_code", "signal", "usage", "error"] {
        assert_eq!(last[field], result[field], "{field} of {last}");
    }
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().expect("text")).collect()
}

/// Runs, checks both shapes, and returns the result and the types of the events.
fn check(flags: &[&str], program: &[&str], status: &str, code: i32, expected: &[&str]) -> Value {
    let place = Place::new();
    let path = place.path("events");
    let done = place.run(&[&["--json", "--events", &show(&path)], flags].concat(), program);
    let result = done.json();
    check_shape(&result);
    assert_eq!((done.code, &result["status"]), (code, &json!(status)), "{result}");
    let events = events_in(&path);
    check_events(&events, &result);
    assert_eq!(kinds(&events), expected, "{events:?}");
    result
}

const STARTED: [&str; 3] = ["setup", "network", "start"];

#[test]
fn every_way_to_end_has_the_same_shape() {
    let exited = check(
        &[],
        &["/bin/sh", "-c", "echo out; echo err >&2; exit 3"],
        "exited",
        3,
        &[&STARTED[..], &["finish"]].concat(),
    );
    assert_eq!(
        [&exited["stdout"], &exited["stderr"], &exited["exit_code"]],
        [&json!("out\n"), &json!("err\n"), &json!(3)]
    );
    assert_eq!(
        [&exited["tier"], &exited["fs"], &exited["network"], &exited["network_managed"]],
        [&json!("namespace"), &json!("scratch"), &json!("none"), &json!(true)]
    );
    assert!(is_hash(&exited["policy_hash"]) && exited["usage"]["cpu_ms"].is_u64(), "{exited}");
    check(&[], &["/bin/sh", "-c", "kill -KILL $$"], "signaled", 137, &[&STARTED[..], &["finish"]].concat());
    check(
        &["--timeout", "50ms"],
        &["/bin/sleep", "1000"],
        "timed_out",
        124,
        &[&STARTED[..], &["limit", "finish"]].concat(),
    );
    check(&["--output", "1"], &["/bin/echo", "long"], "exited", 0, &[&STARTED[..], &["limit", "finish"]].concat());
    check(&[], &["/bin/unshare", "--user", "/bin/true"], "exited", 1, &[&STARTED[..], &["denial", "finish"]].concat());
    check(&[], &["/no/such/program"], "setup_failed", 127, &["setup", "network", "finish"]);
    let refused = check(&["--workspace", "/no/such/directory"], &["/bin/true"], "refused", 126, &["denial", "finish"]);
    assert_eq!(
        (&refused["denials"][0]["rule"], &refused["error"]["code"]),
        (&json!("spec/invalid_workspace"), &json!("invalid_workspace"))
    );
    let unread = check(&["--tier", "vm", "--net", "proxied"], &["/bin/true"], "refused", 126, &["denial", "finish"]);
    assert_eq!(
        (&unread["policy_hash"], &unread["network"]),
        (&Value::Null, &json!("proxied")),
        "no boundary, and no other stands in for it"
    );
}

#[test]
fn a_cancelled_exec_has_the_same_shape() {
    let place = Place::new();
    let mut events = Events::pipe(&place);
    let child = place.spawn(&["--json", "--events", events.path()], &["/bin/sleep", "1000"]);
    let started = events.wait_for("start");
    assert_eq!(started["program"], "/bin/sleep");
    signal(&child, Signal::TERM);
    let done = finish(child);
    let result = done.json();
    check_shape(&result);
    assert_eq!(
        (done.code, &result["status"], &result["policy_hash"]),
        (130, &json!("cancelled"), &started["policy_hash"])
    );
    assert_eq!(events.wait_for("finish")["status"], "cancelled");
}

#[test]
fn heavy_an_exec_that_is_out_of_memory_has_the_same_shape() {
    if !is_root() {
        return not_here("an ordinary user has no memory cgroup");
    }
    let hog = ["python3", "-c", "block = bytearray(300 << 20)"];
    check(&["--memory", "32M"], &hog, "out_of_memory", 137, &[&STARTED[..], &["limit", "finish"]].concat());
}

#[test]
fn the_result_is_one_line_and_nothing_else() {
    let done = Place::new().run(&["--json"], &["/bin/sh", "-c", "printf 'a\\nb\\033[31m\\0'; exit 9"]);
    assert_eq!((done.stdout.matches('\n').count(), done.stderr.as_str()), (1, ""));
    assert_eq!(done.json()["stdout"], "a\nb\u{1b}[31m\0");
}

#[test]
fn output_that_is_not_text_is_base64_and_loses_nothing() {
    let result = Place::new().json(&[], &["/bin/sh", "-c", "printf 'ok\\377\\376\\0'; printf '\\303' >&2"]);
    assert_eq!([&result["stdout_base64"], &result["stderr_base64"]], [&json!("b2v//gA="), &json!("ww==")]);
    assert_eq!([result.get("stdout"), result.get("stderr")], [None, None]);
    let mixed = Place::new().json(&[], &["/bin/sh", "-c", "printf '\\377'; printf text >&2"]);
    assert_eq!([&mixed["stdout_base64"], &mixed["stderr"]], [&json!("/w=="), &json!("text")]);
}

#[test]
fn events_on_stdout_come_before_the_result() {
    let done = Place::new().run(&["--json", "--events", "-"], &["/bin/echo", "{\"type\":\"forged\"}"]);
    let lines: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (result, events) = lines.split_last().expect("some");
    check_shape(result);
    check_events(events, result);
    assert_eq!(kinds(events), ["setup", "network", "start", "finish"]);
}

#[test]
fn an_unmanaged_network_is_said_to_be_one() {
    let place = Place::new();
    let path = place.path("events");
    let result = place.json(&["--net", "host", "--events", &show(&path)], &["/bin/true"]);
    assert_eq!([&result["network"], &result["network_managed"]], [&json!("host"), &json!(false)]);
    let network = events_in(&path).into_iter().find(|event| event["type"] == "network").expect("always told");
    assert_eq!([&network["network"], &network["network_managed"]], [&json!("host"), &json!(false)]);
}

#[test]
fn events_hold_no_secret_and_no_path_of_ours() {
    let place = Place::new();
    let path = place.path("events");
    let secret = "hunter2-is-the-secret";
    let token = format!("TOKEN={secret}");
    for program in [&["/bin/sh", "-c", "echo $TOKEN; unshare --user true"][..], &["/no/such/program"]] {
        place.run(
            &["--workspace", &show(&place.workspace()), "--env", &token, "--events", &show(&path), "--timeout", "1m"],
            program,
        );
    }
    let text = std::fs::read_to_string(&path).expect("written");
    assert!(text.lines().count() > 6, "both runs are in it: {text}");
    for unwanted in [secret, &show(&place.path("data")), "/sys/fs/cgroup", "/proc/self", &show(&place.workspace())] {
        assert!(!text.contains(unwanted), "{unwanted} is in {text}");
    }
}

#[test]
fn an_events_file_is_closed_to_others_and_appended_to() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let path = place.path("events");
    for _ in 0..2 {
        place.run(&["--events", &show(&path)], &["/bin/true"]);
    }
    let events = events_in(&path);
    assert_eq!(
        events.iter().map(|event| event["seq"].as_u64().expect("a number")).collect::<Vec<_>>(),
        [0, 1, 2, 3, 0, 1, 2, 3]
    );
    assert_ne!(events[0]["exec_id"], events[4]["exec_id"]);
    assert_eq!(std::fs::metadata(path).expect("written").permissions().mode() & 0o7777, 0o600);
}

#[test]
fn the_policy_hash_follows_the_boundary_and_not_the_way_it_was_given() {
    let place = Place::new();
    let workspace = show(&place.workspace());
    let hash = |flags: &[&str]| {
        let value = place.json(&[&["--workspace", &workspace], flags].concat(), &["/bin/true"])["policy_hash"].clone();
        assert!(is_hash(&value), "{flags:?}: {value}");
        value
    };
    let toml = place.write("spec.toml", "schema = \"saggar.spec/v1\"\nfs = \"read-only\"\n[limits]\npids = 100\ntimeout = \"60s\"\n[env]\nA = \"1\"\nB = \"2\"\n");
    let json = place.write(
        "spec.json",
        r#"{"env": {"B": "2", "A": "1"}, "limits": {"timeout": "1m", "pids": "100"}, "fs": "read-only"}"#,
    );
    let flags = ["--fs", "read-only", "--pids", "100", "--timeout", "60", "--env", "A=1", "--env", "B=2"];
    let reordered = ["--env", "B=2", "--timeout", "1m", "--env", "A=other", "--pids", "100", "--fs", "read-only"];
    let given = hash(&flags);
    assert_eq!(
        [hash(&reordered), hash(&["--spec", &show(&toml)]), hash(&["--spec", &show(&json)])],
        [given.clone(), given.clone(), given.clone()]
    );
    assert_eq!(hash(&["--spec", &show(&toml), "--pids", "100"]), given, "the same value twice is one value");
    let mut seen = BTreeSet::from([given.to_string()]);
    let other = place.path("other");
    std::fs::create_dir(&other).expect("ours");
    let mount = format!("{}:/data", show(&other));
    let mount_rw = format!("{mount}:rw");
    for different in [
        &[][..],
        &["--fs", "scratch"],
        &["--net", "host"],
        &["--user", "root"],
        &["--pids", "101"],
        &["--timeout", "61s"],
        &["--disk", "2M"],
        &["--files", "99"],
        &["--output", "9"],
        &["--protect", "x"],
        &["--env", "A=1"],
        &["--cwd", "/tmp"],
        &["--mount", &mount],
        &["--mount", &mount_rw],
    ] {
        assert!(seen.insert(hash(different).to_string()), "{different:?} has the hash of another boundary");
    }
    assert_ne!(
        place.json(&["--workspace", &show(&other), "--fs", "read-only"], &["/bin/true"])["policy_hash"],
        hash(&["--fs", "read-only"])
    );
}

#[test]
fn where_a_relative_path_leads_is_in_the_hash_and_how_it_is_written_is_not() {
    let place = Place::new();
    for directory in ["workspace/in", "other", "third"] {
        std::fs::create_dir_all(place.path(directory)).expect("ours");
    }
    let hash = |cwd: &str, flags: &[&str]| {
        let mut command =
            place.command([&["run", "--json", "--fs", "read-only"], flags, &["--", "/bin/true"]].concat());
        let result = finish(command.current_dir(place.path(cwd)).spawn().expect("built")).json();
        assert!(result["status"] == "exited" && is_hash(&result["policy_hash"]), "{flags:?}: {result}");
        result["policy_hash"].to_string()
    };
    let here = hash("workspace", &["--workspace", "."]);
    assert_ne!(here, hash("other", &["--workspace", "."]), "two boundaries with one hash");
    for (cwd, same) in
        [("other", show(&place.workspace())), ("other", "../workspace".to_owned()), ("workspace/in", "..".to_owned())]
    {
        assert_eq!(hash(cwd, &["--workspace", &same]), here, "{same} in {cwd}");
    }
    let mounts = |first: &str, second: &str| hash("", &["--mount", first, "--mount", second]);
    let given = mounts("other:/data/a", "third:/data/b");
    assert_eq!(mounts("third:/data/b", "./other:/data/a"), given, "the order of mounts is no difference");
    assert_ne!(mounts("third:/data/a", "other:/data/b"), given, "what is mounted where is one");
}

#[test]
fn a_reader_that_does_not_wait_gets_the_whole_result() {
    use std::io::Read;
    let place = Place::new();
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).expect("our own");
    let mut command = place.command(["run", "--json", "--", "/bin/sh", "-c", "yes | head -c 300000"]);
    let child = command.stdout(std::process::Stdio::from(writer)).spawn().expect("built");
    drop(command);
    // It comes when the pipe is full: an implementation that takes that for a failure has given up by then.
    let mut pipe = std::fs::File::from(reader);
    let deadline = std::time::Instant::now() + harness::PATIENCE;
    const NEARLY_FULL: u64 = 60_000;
    while rustix::io::ioctl_fionread(&pipe).expect("a pipe") < NEARLY_FULL {
        assert!(std::time::Instant::now() < deadline, "nothing was written");
        std::thread::yield_now();
    }
    let text = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text)
    });
    let done = finish(child);
    let text = text.join().expect("reader").expect("UTF-8");
    let result: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{} bytes: {error}", text.len()));
    check_shape(&result);
    assert_eq!((done.code, result["stdout"].as_str().map(str::len)), (0, Some(300_000)));
}

#[test]
fn a_flood_of_one_kind_of_denial_hides_no_other() {
    let place = Place::new();
    let path = place.path("events");
    let flood = "[attempt('syscall(272, 0x10000000)') for i in range(1100)][0]";
    let result = harness::probe::check_json(
        &place,
        &["--events", &show(&path)],
        &[(flood, "EPERM"), ("syscall(321, 0, 0, 0)", "EPERM")],
    );
    let rules = |denials: &[Value]| -> Vec<String> {
        denials.iter().map(|denial| denial["rule"].as_str().expect("text").to_owned()).collect()
    };
    // The second says that the flood was slowed down.
    let expected = ["seccomp/namespaces", "seccomp/namespaces", "seccomp/bpf"];
    assert_eq!(rules(result["denials"].as_array().expect("an array")), expected);
    let told: Vec<Value> = events_in(&path).into_iter().filter(|event| event["type"] == "denial").collect();
    let told = rules(&told);
    assert!(told.len() < 1100, "{} events: not a flood", told.len());
    for rule in ["events/denials", "seccomp/bpf"] {
        assert_eq!(told.iter().filter(|told| *told == rule).count(), 1, "{rule}");
    }
}
