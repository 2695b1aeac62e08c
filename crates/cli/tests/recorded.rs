//! `saggar run --record` and `--replay`: recorded in the world of tests/network/world.py, replayed where there is no network at all.

mod harness;

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use harness::{Done, PATIENCE, Place, feed, finish};
use rustix::process::{Pid, Signal, kill_process};

const WORLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/network/world.py");

/// Started in the world, with servers.
fn start_recorded(place: &Place, flags: &[&str], script: &str) -> Child {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", WORLD]).arg(place.path("seen.log"));
    spawn(place, command, "--record", flags, script)
}

/// In a network namespace without servers, names or an interface.
fn replay(place: &Place, flags: &[&str], script: &str) -> Done {
    let mut command = Command::new("unshare");
    command.arg("--net");
    finish(spawn(place, command, "--replay", flags, script))
}

fn spawn(place: &Place, mut command: Command, tape: &str, flags: &[&str], script: &str) -> Child {
    command.arg(env!("CARGO_BIN_EXE_saggar")).args(["run", "--net", "proxied", tape]).arg(place.path("tape"));
    command.args(flags).args(["--", "/bin/sh", "-c", script]).env("SAGGAR_DATA_DIR", place.path("data"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("unshare is part of every Linux")
}

#[test]
fn what_was_recorded_is_answered_again_without_a_network() {
    let place = Place::new();
    let script = "curl -sS -H 'Authorization: Bearer canary-1' https://good.test/tls?page=1; \
                  curl -sS -d question http://good.test/plain; curl -sS -I https://good.test/head";
    let recorded = finish(start_recorded(&place, &["--allow", "good.test"], script));
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let tape = std::fs::read_to_string(place.path("tape")).unwrap();
    let mode = std::fs::metadata(place.path("tape")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner may read it");
    assert!(tape.starts_with("{\"saggar_recording\":{\"v\":1}}\n"), "{tape}");
    let request = tape.lines().find(|line| line.contains("page=1")).expect("the request");
    assert!(!request.contains("canary-1"), "{request}");

    let replayed = replay(&place, &["--allow", "good.test"], script);
    assert_eq!((replayed.code, &replayed.stdout, replayed.stderr.as_str()), (0, &recorded.stdout, ""));
}

#[test]
fn what_was_not_recorded_is_refused_with_what_is_nearest() {
    let place = Place::new();
    let recorded = finish(start_recorded(&place, &["--allow", "good.test"], "curl -sS https://good.test/a?page=1"));
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let script = "curl -sS https://good.test/a?page=2; curl -sS http://evil.test/; curl -sS https://evil.test/; exit 7";
    let replayed = replay(&place, &["--allow", "good.test", "--allow", "GET evil.test:443"], script);
    for part in [
        "GET https://good.test:443/a is not in the recording: the nearest has another query: page",
        "rule: egress/not-recorded",
        "no request to evil.test:443 is in the recording",
        // Rules are asked first.
        "no rule allows port 80 of evil.test",
    ] {
        assert!(replayed.stdout.contains(part), "{part}: {replayed:?}");
    }
    assert!(replayed.stderr.contains("(egress/not-recorded)"), "{replayed:?}");
}

#[test]
fn a_recording_needs_a_new_file_that_no_sandbox_can_write_and_a_managed_network() {
    let place = Place::new();
    let full = place.write("full", "something");
    let inside = place.workspace().join("tape");
    let (full, inside) = (full.to_str().unwrap(), inside.to_str().unwrap());
    let (workspace, missing) = (place.workspace(), place.path("none/tape"));
    let writable = ["-w", workspace.to_str().unwrap(), "--fs", "workspace-write"];
    let proxied = ["--net", "proxied"];
    for (flags, expected) in [
        ([&proxied[..], &["--record", full]].concat(), "it holds something already"),
        ([&proxied[..], &writable, &["--record", inside]].concat(), "something that the sandbox can write"),
        (["--record", full].to_vec(), "--record needs the network mode proxied"),
        ([&["--net", "host"][..], &["--replay", full]].concat(), "--replay needs the network mode proxied"),
        ([&proxied[..], &["--replay", full]].concat(), "it is not a recording of saggar"),
        ([&proxied[..], &["--replay", "/dev/null"]].concat(), "it is not a regular file"),
        ([&proxied[..], &["--record", missing.to_str().unwrap()]].concat(), "No such file or directory"),
        ([&proxied[..], &["--record", "a", "--replay", "b"]].concat(), "cannot be used with"),
    ] {
        let done = place.run(&flags, &["/bin/echo", "started"]);
        assert!(done.stderr.contains(expected) && done.stdout.is_empty(), "{expected}: {done:?}");
    }
    assert_eq!(std::fs::read_to_string(full).unwrap(), "something");
    assert!(!Path::new(inside).exists());
}

/// The egress process below `root`.
fn egress_of(root: &Child) -> Pid {
    let mut waiting = vec![root.id() as i32];
    while let Some(pid) = waiting.pop() {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.split(|byte| *byte == 0).any(|word| word == b"__egress") {
            return Pid::from_raw(pid).expect("not zero");
        }
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        waiting.extend(children.split_whitespace().map(|child| child.parse::<i32>().expect("a number")));
    }
    panic!("there is no egress process");
}

#[test]
fn a_recorder_that_is_killed_in_the_middle_of_an_exchange_leaves_what_came_before() {
    let place = Place::new();
    let half = "import socket\ns = socket.create_connection(('good.test', 80))\n\
                s.sendall(b'POST /half HTTP/1.1\\r\\nHost: good.test\\r\\nContent-Length: 9\\r\\n\\r\\nhalf')\n\
                print('ready', flush=True)\ninput()";
    let script = format!("curl -sS -o /dev/null http://good.test/whole; /usr/bin/python3 -c \"{half}\"");
    let mut child = start_recorded(&place, &["--allow", "good.test"], &script);
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    output.read_line(&mut line).expect("a pipe");
    assert_eq!(line, "ready\n");
    let begun = Instant::now();
    let tape = || std::fs::read_to_string(place.path("tape")).expect("it was made");
    while !tape().contains("\"text\":\"half\"") {
        assert!(begun.elapsed() < PATIENCE, "{}", tape());
        std::thread::yield_now();
    }
    kill_process(egress_of(&child), Signal::KILL).unwrap();
    feed(&mut child, b"go\n");
    finish(child);

    let script = "curl -sS http://good.test/whole; curl -sS -d half http://good.test/half";
    let replayed = replay(&place, &["--allow", "good.test"], script);
    assert!(replayed.stdout.starts_with("{\"server\": \"203.0.113.10\""), "{replayed:?}");
    assert!(replayed.stdout.contains("the recording ends in the middle of this exchange"), "{replayed:?}");

    // The same with a last line that is cut.
    let whole = tape();
    std::fs::write(place.path("tape"), &whole[..whole.len() - 3]).unwrap();
    let replayed = replay(&place, &["--allow", "good.test"], "curl -sS -o /dev/null http://good.test/whole");
    assert_eq!(replayed.code, 0, "{replayed:?}");
    assert!(replayed.stderr.contains("of the recording is cut"), "{replayed:?}");
}

#[test]
fn a_full_disk_is_reported_and_does_not_stop_the_program() {
    let place = Place::new();
    std::fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).unwrap();
    let small = place.path("small");
    std::fs::create_dir(&small).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=64k none {small} && exec python3 {WORLD} {log} {saggar} run --json --net proxied \
         --record {small}/tape --allow good.test -- /bin/sh -c 'curl -sS -d @/usr/bin/env http://good.test/ | tail -c 2; \
         for n in 1 2 3 4 5 6 7 8; do head -c 20000 /usr/bin/env | base64 | curl -sS -o /dev/null -d @- http://good.test/; done'",
        small = small.display(),
        log = place.path("seen.log").display(),
        saggar = env!("CARGO_BIN_EXE_saggar"),
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "/bin/sh", "-c", &script]).env("SAGGAR_DATA_DIR", place.path("data"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("unshare is part of every Linux"));
    let result = done.json();
    assert_eq!(result["exit_code"], 0, "{done:?}");
    let message = result["error"]["message"].as_str().expect("an error");
    assert!(message.contains("the recording is incomplete"), "{message}");
}
