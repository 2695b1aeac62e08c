//! `saggar doctor`: the shape of its output, and that it reports what is unavailable.

mod harness;

use harness::{Done, Place, finish, is_root, not_here};
use serde_json::Value;

fn doctor(place: &Place) -> Done {
    finish(place.command(["doctor", "--json"]).spawn().expect("the binary was built"))
}

/// The status of one entry, with its reason for a failed assertion's message.
fn status(answer: &Value, kind: &str, name: &str) -> (String, String) {
    let entries = answer[kind].as_array().unwrap_or_else(|| panic!("{kind} is an array: {answer}"));
    let entry =
        entries.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("{kind} has {name}: {answer}"));
    for field in ["name", "status", "reason", "remedy", "mechanism"] {
        assert!(entry[field].is_string(), "{field} of {entry}");
    }
    let text = |field: &str| entry[field].as_str().expect("just looked").to_owned();
    assert_eq!(text("status") == "supported", text("remedy").is_empty(), "what isn't supported has a remedy: {entry}");
    (text("status"), text("reason"))
}

#[test]
fn what_the_host_gives_is_told_by_kind() {
    let done = doctor(&Place::new());
    let answer = done.json();
    assert_eq!((done.code, answer["schema"].as_str()), (0, Some("saggar.capabilities/v1")), "{done:?}");
    assert_eq!(answer["reaped"], serde_json::json!([]));
    for (kind, name, expected) in [
        ("tiers", "namespace", "supported"),
        ("tiers", "wasm", "unsupported"),
        ("tiers", "oci", "unsupported"),
        ("tiers", "vm", "unsupported"),
        ("filesystem", "read-only", "supported"),
        ("filesystem", "workspace-write", "supported"),
        ("filesystem", "scratch", "supported"),
        ("filesystem", "worktree", "supported"),
        ("network", "none", "supported"),
        ("network", "proxied", "supported"),
        ("network", "host", "supported"),
        ("limits", "timeout", "supported"),
        ("limits", "pids", "supported"),
        ("limits", "disk", "supported"),
        ("limits", "files", "supported"),
        ("limits", "output", "supported"),
    ] {
        let (found, reason) = status(&answer, kind, name);
        assert_eq!(found, expected, "{kind} {name}: {reason}");
    }
    assert!(status(&answer, "network", "host").1.contains("unmanaged"));
    assert!(status(&answer, "tiers", "vm").1.contains("KVM"));
    for name in ["storage on disk", "volumes"] {
        let (found, reason) = status(&answer, "mechanisms", name);
        assert_eq!(found, if is_root() { "supported" } else { "unsupported" }, "{name}: {reason}");
    }
}

#[test]
fn what_doctor_promises_run_keeps() {
    let place = Place::new();
    let answer = doctor(&place).json();
    for (limit, flag, value) in [("memory", "--memory", "64M"), ("cpus", "--cpus", "1"), ("pids", "--pids", "64")] {
        let is_supported = status(&answer, "limits", limit).0 == "supported";
        let done = place.run(&[flag, value], &["/bin/true"]);
        assert_eq!(done.code == 0, is_supported, "{limit}: {done:?}");
        let unenforced = place.json(&[], &["/bin/true"])["unenforced"].to_string();
        assert_eq!(!unenforced.contains(limit), is_supported, "{limit}: {unenforced}");
    }
}

#[test]
fn a_host_without_cgroups_is_told_and_nothing_is_downgraded_in_silence() {
    if !is_root() {
        return not_here("only root can hide the cgroups from a process");
    }
    let place = Place::new();
    let hidden = |arguments: &[&str]| {
        let saggar = env!("CARGO_BIN_EXE_saggar");
        let script = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";
        let mut command = std::process::Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", script, "sh", saggar])
            .args(arguments)
            .env("SAGGAR_DATA_DIR", place.path("data"));
        command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        finish(command.spawn().expect("unshare is in util-linux"))
    };
    let answer = hidden(&["doctor", "--json"]).json();
    assert_eq!(status(&answer, "tiers", "namespace").0, "supported");
    for (limit, expected) in [("memory", "unsupported"), ("cpus", "unsupported"), ("pids", "supported")] {
        assert_eq!(status(&answer, "limits", limit).0, expected, "{limit}");
    }
    let run = hidden(&["run", "--json", "--", "/bin/true"]).json();
    let unenforced: Vec<&str> =
        run["unenforced"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(
        unenforced.len() == 2 && unenforced[0].starts_with("memory: ") && unenforced[1].starts_with("cpus: "),
        "{run}"
    );
    for refused in [&["--memory", "64M"][..], &["--cpus", "1"], &["--strict"]] {
        let done = hidden(&[&["run", "--json"], refused, &["--", "/bin/true"]].concat());
        assert_eq!((done.code, done.json()["error"]["code"].as_str()), (126, Some("unenforced_limit")), "{done:?}");
    }
    let bomb = "for i in 1 2 3 4 5 6 7 8 9; do sleep 60 & done";
    assert_eq!(hidden(&["run", "--pids", "6", "--", "/bin/sh", "-c", bomb]).code, 2, "pids hold without cgroups");
}

#[test]
fn a_host_without_user_namespaces_is_not_ready() {
    let place = Place::new();
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        script,
        "sh",
        env!("CARGO_BIN_EXE_saggar"),
        "doctor",
        "--json",
    ]);
    command.env("SAGGAR_DATA_DIR", place.path("data")).stdin(std::process::Stdio::null());
    let done = finish(
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("util-linux"),
    );
    let answer = done.json();
    let (found, reason) = status(&answer, "tiers", "namespace");
    assert_eq!((done.code, found.as_str(), answer["is_ready"].as_bool()), (1, "unsupported", Some(false)), "{reason}");
    for mode in ["read-only", "workspace-write", "scratch", "worktree"] {
        assert_eq!(status(&answer, "filesystem", mode).0, "unsupported");
    }
    assert_eq!(status(&answer, "network", "none").0, "unsupported");
}

#[test]
fn what_a_killed_predecessor_left_is_shown_once() {
    let place = Place::new();
    let mut child = place.spawn(&["--events", "events", "--workspace", "workspace"], &["/bin/sleep", "1000"]);
    let events = place.path("events");
    let mut sandbox = String::new();
    // Bounded: the record exists within milliseconds, and each iteration starts a process.
    for _ in 0..200 {
        let text = std::fs::read_to_string(&events).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| line.contains("\"type\":\"start\"")) {
            let event: Value = serde_json::from_str(line).expect("an event");
            sandbox = event["sandbox_id"].as_str().expect("an id").to_owned();
            break;
        }
        assert_eq!(place.run(&[], &["/bin/true"]).code, 0);
    }
    assert!(!sandbox.is_empty(), "the program never started");
    child.kill().expect("it runs");
    child.wait().expect("our own child");
    assert_eq!(doctor(&place).json()["reaped"], serde_json::json!([format!("{sandbox}: removed")]));
    assert_eq!(doctor(&place).json()["reaped"], serde_json::json!([]));
    assert!(place.records().is_empty());
}

#[test]
fn people_get_a_table() {
    let done = finish(Place::new().command(["doctor"]).spawn().expect("built"));
    assert_eq!(done.code, 0, "{done:?}");
    for expected in
        ["the default tier (namespace) is ready", "limits\n", "workspace-write", "remedy: use the namespace tier"]
    {
        assert!(done.stdout.contains(expected), "{expected}: {done:?}");
    }
}

#[test]
fn doctors_at_the_same_time_agree() {
    let place = Place::new();
    let doctors: Vec<_> =
        (0..4).map(|_| place.command(["doctor", "--json"]).spawn().expect("the binary was built")).collect();
    for done in doctors.into_iter().map(finish).collect::<Vec<_>>() {
        let answer = done.json();
        assert_eq!((done.code, answer["is_ready"].as_bool()), (0, Some(true)), "{done:?}");
        for mode in ["read-only", "workspace-write", "scratch", "worktree"] {
            let (found, reason) = status(&answer, "filesystem", mode);
            assert_eq!(found, "supported", "{mode}: {reason}");
        }
    }
    assert_eq!(trials(&place), Vec::<String>::new());
}

/// The workspaces of doctors in this place's data directory.
fn trials(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.path("data")).into_iter().flatten();
    let names = entries.map(|entry| entry.expect("ours").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("trial")).collect()
}

#[test]
fn what_a_killed_doctor_left_is_gone_after_the_next_start() {
    let place = Place::new();
    let mut child = place.command(["doctor", "--json"]).spawn().expect("the binary was built");
    let deadline = std::time::Instant::now() + harness::PATIENCE;
    while trials(&place).is_empty() {
        assert!(std::time::Instant::now() < deadline, "it never began");
        std::thread::yield_now();
    }
    // While the doctor lives, its workspace is left alone.
    assert_eq!(place.run(&[], &["/bin/true"]).code, 0);
    assert_eq!(trials(&place).len(), 1, "a live one's was removed");
    child.kill().expect("it runs");
    child.wait().expect("our own child");
    let [trial] = &trials(&place)[..] else { panic!("it ended by itself") };
    // A child that it was creating holds the workspace too, until that is dead as well.
    let held = std::fs::File::open(place.path("data").join(trial)).expect("ours");
    while rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        assert!(std::time::Instant::now() < deadline, "something of it lives on");
        std::thread::yield_now();
    }
    drop(held);
    assert_eq!(place.run(&[], &["/bin/true"]).code, 0);
    assert_eq!((trials(&place), place.records()), (vec![], vec![]));
}
