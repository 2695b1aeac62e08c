//! From start to cleanup: exit statuses, cancellation, orphans and daemons, readers that go away.

mod harness;
mod traces;

use std::process::Stdio;

use harness::{Done, Place, finish, show};
use rustix::process::Signal;
use serde_json::{Value, json};
use traces::{Events, check_nothing_left, marker, processes, read_until, signal};

/// Starts daemons in every way that leaves the program's session and process group, then prints a line.
fn daemons(marker: &str) -> String {
    format!(
        "sleep {marker} & setsid sleep {marker} & (setsid sh -c 'sleep {marker} & exec sleep {marker}' </dev/null >/dev/null 2>&1 &); \
         python3 -c '\nimport os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    os.execvp(\"sleep\", [\"sleep\", \"{marker}\"])\n  os._exit(0)\nos.wait()'; \
         until [ $(grep -lz {marker} /proc/[0-9]*/cmdline 2>/dev/null | wc -l) -ge 5 ]; do :; done; echo ready"
    )
}

#[test]
fn every_exit_code_is_passed_on() {
    let place = Place::new();
    for code in [0, 1, 2, 3, 42, 124, 125, 126, 127, 128, 129, 130, 137, 143, 200, 254, 255] {
        let done = place.sh(&["--json"], &format!("exit {code}"));
        let result = done.json();
        assert_eq!(
            (done.code, &result["status"], &result["exit_code"], &result["signal"]),
            (code, &json!("exited"), &json!(code), &Value::Null)
        );
    }
}

#[test]
fn the_signal_that_ended_a_program_is_told() {
    let place = Place::new();
    for (name, number) in
        [("HUP", 1), ("INT", 2), ("ABRT", 6), ("KILL", 9), ("SEGV", 11), ("PIPE", 13), ("TERM", 15), ("RTMIN", 34)]
    {
        let done = place.run(&["--json"], &["/bin/bash", "-c", &format!("kill -{name} $$")]);
        let result = done.json();
        assert_eq!(
            (done.code, &result["status"], &result["signal"]),
            (128 + number, &json!("signaled"), &json!(number)),
            "{name}"
        );
        assert_eq!(
            (&result["exit_code"], &result["denials"], &result["error"]),
            (&Value::Null, &json!([]), &Value::Null),
            "{name}"
        );
    }
    // A real fault, not only its signal.
    let fault = place.json(&[], &["python3", "-c", "import ctypes; ctypes.string_at(0)"]);
    assert_eq!((&fault["status"], &fault["signal"]), (&json!("signaled"), &json!(11)));
}

#[test]
fn signals_of_a_program_stay_inside() {
    let script = "sleep 1000 & kill -KILL -1; wait $!; echo $?; kill -KILL 1; kill -TERM 1; kill -STOP 1; echo alive";
    let done = Place::new().sh(&[], script);
    assert_eq!((done.code, done.stdout.as_str()), (0, "137\nalive\n"), "{done:?}");
}

#[test]
fn cancelling_ends_the_whole_tree_before_it_is_reported() {
    for how in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let (place, marker) = (Place::new(), marker());
        let workspace = show(&place.workspace());
        let child = place.spawn(
            &["--workspace", &workspace],
            &["/bin/sh", "-c", &format!("{}; exec sleep {marker}", daemons(&marker))],
        );
        read_until(child.stdout.as_ref().expect("piped"), "ready");
        assert!(processes(&marker).len() > 4, "the daemons run: {:?}", processes(&marker));
        let [sandbox] = &place.records()[..] else { panic!("one sandbox, one record: {:?}", place.records()) };
        signal(&child, how);
        // When `saggar` ends, nothing may be alive.
        assert_eq!((finish(child).code, processes(&marker)), (130, vec![]), "{how:?}");
        check_nothing_left(&place, sandbox);
    }
}

#[test]
fn a_cancelled_program_may_clean_up_and_a_second_signal_does_not_wait_for_it() {
    let place = Place::new();
    let polite = place.spawn(
        &["--json"],
        &["/bin/sh", "-c", "trap 'echo bye; exit 7' TERM; : > /tmp/ready; while :; do sleep 0.01; done"],
    );
    check_cancelled(polite, &[Signal::INT], "bye\n");
    let deaf = place.spawn(&["--json"], &["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1000; done"]);
    check_cancelled(deaf, &[Signal::INT, Signal::INT], "");
    assert_eq!(place.records(), Vec::<String>::new());
}

/// Sends the signals once the program's shell waits for its first child, and compares the result.
fn check_cancelled(child: std::process::Child, signals: &[Signal], stdout: &str) {
    let own = format!("/proc/{}/task/{}/children", child.id(), child.id());
    let children = |path: &str| -> Vec<String> {
        std::fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    let deadline = std::time::Instant::now() + harness::PATIENCE;
    // PID 1, the shell, its sleep: the trap is set before the sleep starts.
    while children(&own)
        .iter()
        .flat_map(|agent| children(&format!("/proc/{agent}/task/{agent}/children")))
        .all(|shell| children(&format!("/proc/{shell}/task/{shell}/children")).is_empty())
    {
        assert!(std::time::Instant::now() < deadline, "the program never started");
        std::thread::yield_now();
    }
    for how in signals {
        signal(&child, *how);
        traces::let_run(&child, std::time::Duration::from_millis(20));
    }
    let done = finish(child);
    let result = done.json();
    assert_eq!(
        (done.code, &result["status"], &result["stdout"]),
        (130, &json!("cancelled"), &json!(stdout)),
        "{result}"
    );
    assert_eq!([&result["exit_code"], &result["signal"], &result["error"]], [&Value::Null; 3]);
}

#[test]
fn what_a_program_leaves_running_ends_with_it() {
    let (place, marker) = (Place::new(), marker());
    let done = place.sh(&["--json"], &format!("{}; exit 4", daemons(&marker)));
    assert_eq!((done.code, processes(&marker)), (4, vec![]));
    check_nothing_left(&place, done.json()["sandbox_id"].as_str().expect("text"));
}

#[test]
fn a_daemons_lock_on_the_workspace_is_gone_when_we_report() {
    let place = Place::new();
    let lock = place.write("workspace/lock", "");
    let script =
        "(setsid flock lock sleep 1000 </dev/null >/dev/null 2>&1 &); while flock -n lock true; do :; done; echo held";
    let done = place.sh(&["--workspace", &show(&place.workspace())], script);
    assert_eq!(done.stdout, "held\n");
    let file = std::fs::File::open(lock).expect("ours");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("the lock was released");
}

#[test]
fn orphans_are_reaped_while_the_program_runs() {
    // Each iteration leaves an orphan that ends at once; if they were not reaped, 300 would exceed the limit.
    let script = "i=0; while [ $i -lt 300 ]; do (true &) || exit 1; i=$((i+1)); done; \
                  while grep -qs '^State:.Z' /proc/[0-9]*/status; do :; done; echo none";
    let done = Place::new().sh(&["--json", "--pids", "200"], script);
    assert_eq!((done.code, &done.json()["stdout"]), (0, &json!("none\n")), "{done:?}");
}

#[test]
fn closing_our_stdout_ends_a_program_that_writes() {
    let place = Place::new();
    let mut child = place.spawn(&[], &["/usr/bin/yes"]);
    let stdout = child.stdout.take().expect("piped");
    read_until(&stdout, "y\n");
    drop(stdout);
    assert_eq!(finish(child).code, 128 + 13);
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn a_reader_that_never_reads_does_not_hold_up_the_timeout() {
    let place = Place::new();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let mut command = place.command(["run", "--timeout", "1s", "--", "/usr/bin/yes"]);
    command.stdout(Stdio::from(writer));
    let child = command.spawn().expect("built");
    drop(command);
    assert_eq!(finish(child).code, 124);
    drop(reader);
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn what_was_written_before_the_end_is_read_after_it() {
    let place = Place::new();
    let child = place.spawn(&[], &["/bin/sh", "-c", "head -c 1000000 /dev/zero; exit 6"]);
    // The output fits neither into a pipe nor into our buffer; the reader comes late and gets everything.
    traces::let_run(&child, std::time::Duration::from_millis(300));
    let Done { code, stdout, .. } = finish(child);
    assert_eq!((code, stdout.len()), (6, 1_000_000));
}

#[test]
fn a_child_that_keeps_stdout_open_does_not_keep_us() {
    let done = Place::new().sh(&[], "sleep 1000 & echo out; exit 0");
    assert_eq!((done.code, done.stdout.as_str()), (0, "out\n"));
}

#[test]
fn a_signal_during_set_up_cancels_and_leaves_nothing() {
    let place = Place::new();
    let workspace = show(&place.workspace());
    let mut events = Events::pipe(&place);
    for _ in 0..20 {
        let child = place.spawn(&["--workspace", &workspace, "--events", events.path()], &["/bin/sleep", "1000"]);
        events.wait_for("setup");
        signal(&child, Signal::TERM);
        let done = finish(child);
        let finish = events.wait_for("finish");
        assert_eq!((done.code, &finish["status"]), (130, &json!("cancelled")), "{done:?}");
        check_nothing_left(&place, finish["sandbox_id"].as_str().expect("text"));
    }
}

/// Polls until the condition holds.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + harness::PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what} never came");
        std::thread::yield_now();
    }
}

/// `saggar run FLAGS -- PROGRAM` from a shell that sets up something `saggar` inherits. Not every shell passes on an
/// ignored SIGCHLD.
fn after(set_up: &str, place: &Place, flags: &[&str], program: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new("/bin/bash");
    command.args(["-c", &format!("{set_up}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_saggar"), "run"]);
    command.args(flags).arg("--").args(program);
    command.env("SAGGAR_DATA_DIR", place.path("data")).current_dir(place.path(""));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_signal_after_the_programs_end_does_not_keep_us_from_cleaning_up() {
    for how in [Signal::TERM, Signal::INT, Signal::HUP] {
        let place = Place::new();
        let mut events = Events::pipe(&place);
        let workspace = show(&place.workspace());
        let flags = ["--workspace", &workspace, "--protect", "held/", "--stdin", "-", "--events", events.path()];
        let mut child = after(":", &place, &flags, &["/bin/sh", "-c", "read line; exit 3"]).spawn().expect("a shell");
        let sandbox = events.wait_for("start")["sandbox_id"].as_str().expect("text").to_owned();
        // No process removes a placeholder while another holds this lock: cleanup waits until we release it.
        let gate = std::fs::File::open(place.path("data/sandboxes")).expect("ours");
        rustix::fs::flock(&gate, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("held for moments only");
        harness::feed(&mut child, b"end\n");
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        until("the end of the tree", || std::fs::read_to_string(&children).is_ok_and(|list| list.is_empty()));
        signal(&child, how);
        drop(gate);
        let done = finish(child);
        assert!(matches!(done.code, 3 | 130), "{how:?}: {done:?}");
        check_nothing_left(&place, &sandbox);
    }
}

#[test]
fn whoever_started_us_may_ignore_the_death_of_children() {
    for flags in [&[][..], &["--workspace", "workspace"], &["--workspace", "workspace", "--fs", "scratch"]] {
        let place = Place::new();
        let command = &mut after("trap '' CHLD", &place, flags, &["/bin/sh", "-c", "/bin/true; echo $?; exit 4"]);
        let done = finish(command.spawn().expect("a shell"));
        assert_eq!((done.code, done.stdout.as_str()), (4, "0\n"), "{flags:?}: {done:?}");
        check_nothing_left(&place, "none is called so");
    }
}

#[test]
fn a_signal_that_whoever_started_us_ignores_does_not_cancel() {
    for (ignored, code) in [("trap '' HUP", 5), (":", 130)] {
        let place = Place::new();
        let mut events = Events::pipe(&place);
        let flags = ["--stdin", "-", "--events", events.path()];
        let mut child =
            after(ignored, &place, &flags, &["/bin/sh", "-c", "read line; exit 5"]).spawn().expect("a shell");
        events.wait_for("start");
        signal(&child, Signal::HUP);
        // A cancelled one may be gone already.
        let told = std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"end\n");
        assert!(told.is_ok() || code == 130, "{ignored}: {told:?}");
        assert_eq!(finish(child).code, code, "{ignored}");
    }
}

#[test]
fn the_clock_stops_with_the_program_and_not_with_its_reader() {
    let place = Place::new();
    let child = place.spawn(&["--timeout", "2s"], &["/usr/bin/head", "-c", "200000", "/dev/zero"]);
    // More than the pipe holds, so some of it is still unwritten when the time is up.
    traces::let_run(&child, std::time::Duration::from_millis(2500));
    let Done { code, stdout, .. } = finish(child);
    assert_eq!((code, stdout.len()), (0, 200_000));
}
