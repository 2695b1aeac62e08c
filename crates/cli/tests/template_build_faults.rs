//! `saggar template build` when something goes wrong: limits, kills, cancellation, a full disk, hostile steps; as an ordinary user; and as the process that a
//! server starts.

mod building;
mod harness;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use building::{Context, build, build_json, run, stored, template, template_json};
use harness::held::until;
use harness::{Done, Place, finish, is_root, not_here};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Of an ordinary user.
const NOBODY: u32 = 65534;
const SIGKILL: i32 = 9;

fn names(place: &Place) -> usize {
    template_json(place, &["list"])["templates"].as_array().map_or(0, Vec::len)
}

#[test]
fn a_kill_at_any_step_leaves_all_or_nothing_and_the_rest_is_collected() {
    for (point, is_visible, cached) in [
        ("build/written", false, 0),
        ("build/synced", false, 0),
        ("build/layer", false, 0),
        ("build/remembered", false, 1),
        ("build/finish", false, 2),
        ("import/layers", false, 2),
        ("import/manifest", false, 2),
        ("import/named", true, 2),
    ] {
        let place = Place::new();
        let context = Context::new(&place);
        context.dockerfile("RUN echo > /made");
        let mut command = place.command(["template", "build", "context", "--name", "demo"]);
        let killed = finish(command.env("FAIL_AT", format!("kill {point}")).spawn().expect("built"));
        assert_eq!(killed.code, -SIGKILL, "{point}: {killed:?}");
        assert_eq!(names(&place), usize::from(is_visible), "{point}");
        let check = template(&place, &["check"]);
        assert_eq!(check.code, 0, "{point}: {check:?}");
        // The next build removes what was half-made, and uses what was complete.
        let next = build_json(&place, &[]);
        assert_eq!((&next["error"], &next["cached_steps"]), (&Value::Null, &json!(cached)), "{point}: {next}");
        let staged = std::fs::read_dir(place.path("data/templates/local/staging")).expect("ours").count();
        assert_eq!(staged, 0, "{point}");
        assert_eq!(run(&place, &["/bin/stat", "-c", "%s", "/made"]).stdout, "1\n", "{point}");
        template(&place, &["rm", "demo"]);
        let collected = template_json(&place, &["gc", "--all"]);
        assert_eq!(collected["error"], Value::Null, "{point}");
        assert_eq!(stored(&place), Vec::<String>::new(), "{point}: {collected}");
    }
}

#[test]
fn what_a_killed_build_leaves_is_counted() {
    let place = Place::new();
    let context = Context::new(&place);
    context.dockerfile("");
    for (point, expected) in [("build/synced", [1, 0]), ("build/layer", [1, 1])] {
        let mut command = place.command(["template", "build", "context", "--name", "demo"]);
        let killed = finish(command.env("FAIL_AT", format!("kill {point}")).spawn().expect("built"));
        assert_eq!(killed.code, -SIGKILL, "{point}: {killed:?}");
        let collected = template_json(&place, &["gc"]);
        let counts = ["interrupted", "layers"].map(|what| collected[what].as_u64().expect("a number"));
        assert_eq!(counts, expected, "{point}: {collected}");
        assert_eq!(stored(&place), Vec::<String>::new(), "{point}");
    }
}

/// Waits for a line of a build's log.
fn wait_for(child: &mut Child, wanted: &str) -> BufReader<std::process::ChildStderr> {
    let mut log = BufReader::new(child.stderr.take().expect("spawned with a pipe"));
    let mut seen = String::new();
    while !seen.contains(wanted) {
        assert!(log.read_line(&mut seen).expect("a pipe of ours") > 0, "the log ended: {seen}");
    }
    log
}

#[test]
fn a_signal_cancels_ends_the_sandbox_and_leaves_nothing_half_made() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let context = Context::new(&place);
        context.dockerfile("RUN echo > /fine\nRUN echo begun; sleep 1000");
        let mut child = place.command(["template", "build", "context", "--name", "demo"]).spawn().expect("built");
        let log = wait_for(&mut child, "]   begun\n");
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let rest = std::thread::spawn(move || log.lines().map_while(Result::ok).collect::<Vec<_>>().join("\n"));
        let done = finish(child);
        assert_eq!(done.code, 1, "{done:?}");
        let rest = rest.join().expect("a reader");
        assert!(rest.contains("the build was cancelled"), "{rest}");
        assert_eq!(place.records(), Vec::<String>::new());
        let left = stored(&place);
        assert!(left.iter().all(|name| name.starts_with("layers/")), "{left:?}");
        // What was done is cached.
        context.dockerfile("RUN echo > /fine");
        assert_eq!(build_json(&place, &[])["cached_steps"], 2);
    }
}

#[test]
fn a_signal_ends_a_build_that_waits_for_its_dockerfile() {
    let place = Place::new();
    Context::new(&place);
    let arguments = ["template", "build", "context", "--name", "demo", "-f", "-"];
    let mut child = place.command(arguments).stdin(Stdio::piped()).spawn().expect("built");
    let mut stdin = child.stdin.take().expect("spawned with a pipe");
    stdin.write_all(b"FROM scratch\n").expect("a pipe of ours");
    // It has read this, and waits for the rest.
    until(|| (rustix::io::ioctl_fionread(&stdin).ok()? == 0).then_some(()));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    assert_eq!(finish(child).code, -Signal::INT.as_raw());
    assert_eq!(stored(&place), Vec::<String>::new());
}

#[test]
fn a_signal_cancels_a_build_that_waits_for_a_collection() {
    let place = Place::new();
    let context = Context::new(&place);
    context.dockerfile("");
    assert_eq!(build(&place, &[]).code, 0);
    let lock = std::fs::File::open(place.path("data/templates/local/lock")).expect("ours");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("no build is in progress");
    let child = place.command(["template", "build", "context", "--name", "other"]).spawn().expect("built");
    let status = format!("/proc/{}/status", child.id());
    // From then on a signal doesn't end it at once.
    until(|| {
        let status = std::fs::read_to_string(&status).ok()?;
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        let blocked = u64::from_str_radix(blocked.trim(), 16).ok()?;
        (blocked & 1 << (Signal::INT.as_raw() - 1) != 0).then_some(())
    });
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let done = finish(child);
    assert!(done.code == 1 && done.stderr.contains("the build was cancelled"), "{done:?}");
    assert_eq!(names(&place), 1);
}

#[test]
fn limits_of_a_step_hold_and_are_named() {
    let place = Place::new();
    let context = Context::new(&place);
    for (steps, arguments, code, expected) in [
        ("RUN dd if=/dev/zero of=/big bs=1M count=64", &["--disk", "16M"][..], 1, "storage of 16M is full"),
        ("RUN sleep 1000", &["--timeout", "1s"], 1, "it took too long"),
        (
            "RUN mkdir /many && cd /many && for i in $(seq 1 300); do echo > $i; done",
            &["--max-entries", "200"],
            125,
            "the steps copy and write more than 200 entries",
        ),
        ("RUN truncate -s 3G /hole", &["--max-size", "1G"], 125, "larger than 1G"),
        (
            "RUN while mkdir d && cd d 2>/dev/null; do i=x$i; [ ${#i} -lt 250 ] || exit 0; done",
            &[],
            125,
            "nested more than 200 directories deep",
        ),
    ] {
        context.dockerfile(steps);
        let done = build(&place, arguments);
        assert_eq!((done.code, done.stdout.as_str()), (code, ""), "{steps}: {done:?}");
        assert!(done.stderr.contains("step 3 of 3") && done.stderr.contains(expected), "{steps}: {done:?}");
        assert_eq!(names(&place), 0, "{steps}");
    }
    let staged = std::fs::read_dir(place.path("data/templates/local/staging")).expect("ours").count();
    assert_eq!((staged, place.records()), (0, Vec::new()));
}

#[test]
fn what_a_hostile_step_leaves_behind_is_harmless() {
    let place = Place::new();
    let context = Context::new(&place);
    let outside = place.path("outside");
    context.dockerfile(&format!(
        "RUN setsid sleep 1000 & echo started\n\
         RUN ln -s {outside} /dir && ln -s /proc/1/root /etc/root && mkdir -p /a/b && chmod 000 /a /a/b\n\
         RUN for node in '/dev/x c 1 3' '/null c 1 3' '/gone c 0 0'; do mknod $node 2>/dev/null && echo made $node || echo refused $node; done; rm -rf /tmp /etc/hosts && [ ! -e /tmp ] && [ ! -e /etc/hosts ]\n\
         COPY bin/busybox /dir/x\n\
         RUN ls -d /a/b",
        outside = outside.display()
    ));
    let done = build(&place, &[]);
    assert_eq!(done.code, 0, "{done:?}");
    let nodes = ["/dev/x c 1 3", "/null c 1 3", "/gone c 0 0"].map(|node| format!("[5/7]   refused {node}\n")).concat();
    for expected in ["[3/7]   started\n", &nodes, "[7/7]   /a/b\n"] {
        assert!(done.stderr.contains(expected), "{expected}: {done:?}");
    }
    assert!(!outside.exists());
    assert_eq!(place.records(), Vec::<String>::new());
    let tree = place.path("data/templates/local/layers");
    let find =
        Command::new("find").arg(&tree).args(["(", "-type", "b", "-o", "-type", "c", "-o", "-type", "s", ")"]).output();
    let find = String::from_utf8_lossy(&find.expect("the host has find").stdout).into_owned();
    // Whiteouts alone.
    for device in find.lines() {
        let rdev = std::os::unix::fs::MetadataExt::rdev(&std::fs::symlink_metadata(device).expect("ours"));
        assert_eq!(rdev, 0, "{device}");
    }
    assert_eq!(template(&place, &["check"]).code, 0);
    template(&place, &["rm", "demo"]);
    assert_eq!(template(&place, &["gc", "--all"]).code, 0);
    assert_eq!(stored(&place), Vec::<String>::new());
}

#[test]
fn what_a_step_puts_in_place_of_certificates_is_kept_whole() {
    let place = Place::new();
    let context = Context::new(&place);
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    let one = "-----BEGIN CERTIFICATE-----\\nb\\n-----END CERTIFICATE-----";
    // What is no certificate would be searched for at each byte of the bundle. A bundle that is too long to be examined must not be cut.
    for (own, content, size) in
        [("a", "printf aaaaaaaa", "8\n"), (one, "dd if=/dev/zero bs=1M count=9 2>/dev/null", "9437184\n")]
    {
        context.dockerfile(&format!(
            "RUN mkdir -p /etc/ssl/certs && printf '{own}' > /etc/ssl/certs/saggar-egress.pem && {content} > {bundle}"
        ));
        let done = build(&place, &[]);
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(run(&place, &["/bin/stat", "-c", "%s", bundle]).stdout, size, "{own}");
    }
}

#[test]
fn a_damaged_layer_is_replaced_when_its_step_is_done_again() {
    let place = Place::new();
    let context = Context::new(&place);
    context.write("file", "right");
    context.dockerfile("COPY file /file");
    assert_eq!(build(&place, &[]).code, 0);
    let layer = context.layer(-1);
    let hex = layer.rsplit(':').next().expect("a digest");
    let stored = place.path("data/templates/local/layers").join(hex).join("tree/file");
    std::fs::write(&stored, "wrong").expect("ours");
    assert_ne!(template(&place, &["check"]).code, 0);
    let done = build(&place, &["--no-cache"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(context.layer(-1), layer);
    let check = template(&place, &["check"]);
    assert_eq!(check.code, 0, "{check:?}");
    assert_eq!(run(&place, &["/bin/cat", "/file"]).stdout, "right");
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing() {
    if !is_root() {
        return not_here("only root can mount a small disk");
    }
    let place = Place::new();
    let context = Context::new(&place);
    context.dockerfile("RUN dd if=/dev/zero of=/big bs=1M count=20");
    let disk = place.path("small");
    std::fs::create_dir(&disk).expect("ours");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m,mode=0700", "none"]).arg(&disk).status();
    assert!(mount.is_ok_and(|status| status.success()));
    let data = disk.join("data");
    let attempt = |arguments: &[&str]| {
        let mut command = place.command([&["template"], arguments].concat());
        finish(command.env("SAGGAR_DATA_DIR", &data).spawn().expect("built"))
    };
    let full = attempt(&["build", "context", "--name", "demo"]);
    let left = std::fs::read_dir(data.join("templates/local/staging")).map(Iterator::count);
    context.dockerfile("RUN echo > /small");
    let small = attempt(&["build", "context", "--name", "demo"]);
    let unmount = Command::new("umount").arg(&disk).status();
    assert!(unmount.is_ok_and(|status| status.success()));
    assert_eq!(full.code, 125, "{full:?}");
    assert!(full.stderr.contains("step 3 of 3") && full.stderr.contains("free space on the disk"), "{full:?}");
    assert_eq!((left.expect("ours"), small.code), (0, 0), "{small:?}");
}

#[test]
fn an_ordinary_user_builds_and_runs_its_own_template() {
    if !is_root() {
        return not_here("the other tests are about an ordinary user");
    }
    let place = Place::new();
    let binary = place.path("saggar");
    harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &binary);
    let context = Context::new(&place);
    context.dockerfile("RUN mkdir -p /d/closed && echo x > /d/closed/f && chmod 000 /d/closed/f /d/closed && mkdir /d/listed && echo z > /d/listed/f && chmod 600 /d/listed && echo y > /d/y && chmod 4755 /d/y && rm /bin/seq && id -u > /id\nCMD cat /d/y /id /d/listed/f");
    let data = place.path("data");
    std::fs::create_dir(&data).expect("ours");
    std::os::unix::fs::lchown(&data, Some(NOBODY), Some(NOBODY)).expect("we are root");
    std::fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).expect("ours");
    let attempt = |arguments: &[&str]| -> Done {
        let mut command = Command::new(&binary);
        command.args(arguments).env("SAGGAR_DATA_DIR", &data).current_dir("/").uid(NOBODY).gid(NOBODY);
        finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("copied here"))
    };
    let source = place.path("context");
    let arguments = ["template", "build", source.to_str().expect("plain"), "--name", "demo"];
    let done = attempt(&arguments);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(attempt(&["run", "--template", "demo"]).stdout, "y\n0\nz\n");
    let gone = attempt(&["run", "--template", "demo", "--", "/bin/ls", "/bin/seq"]);
    assert_ne!(gone.code, 0, "{gone:?}");
    let again = attempt(&arguments);
    assert!(again.stdout.contains("2 of 4 steps cached"), "{again:?}");
    assert_eq!(attempt(&["template", "check"]).code, 0);
    attempt(&["template", "rm", "demo"]);
    assert_eq!(attempt(&["template", "gc", "--all"]).code, 0);
    assert_eq!(stored(&place), Vec::<String>::new());
}

fn request(place: &Place, project: &str, steps: Value) -> Value {
    let recipe = json!({"schema": "saggar.build/v1", "stages": [{"from": "scratch", "steps": steps}]});
    let order = json!({
        "name": "demo", "recipe": recipe, "context": place.path("context"), "now": 1, "sandbox": {"limits": {"memory": "256M"}},
        "contexts": {"upload": place.path("upload")},
    });
    json!({"schema": "saggar.build-request/v1", "data_dir": place.path("data"), "project": project, "order": order})
}

/// A build, which ends when the other end of its stdin is closed.
fn begin(place: &Place, request: &str) -> (Child, ChildStdin) {
    let mut child = place.command(["__build"]).stdin(Stdio::piped()).spawn().expect("built");
    let mut stdin = child.stdin.take().expect("spawned with a pipe");
    stdin.write_all(format!("{request}\n").as_bytes()).expect("it reads");
    (child, stdin)
}

fn process(place: &Place, request: &str) -> (i32, Vec<Value>) {
    let (child, stdin) = begin(place, request);
    let done = finish(child);
    drop(stdin);
    let events =
        done.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{done:?}"))).collect();
    (done.code, events)
}

#[test]
fn a_server_builds_by_a_process_and_no_project_uses_the_cache_of_another() {
    let place = Place::new();
    Context::new(&place);
    place.write("upload/file", "sent");
    let steps = json!([
        {"do": "copy", "sources": ["bin"], "to": "/bin"},
        {"do": "env", "set": {"PATH": "/bin"}},
        {"do": "copy", "from": "upload", "sources": ["file"], "to": "/file"},
        {"do": "run", "command": "cat /file; echo; echo problem >&2"},
    ]);
    for (project, cached) in [("one", 0), ("one", 3), ("two", 0)] {
        let (code, events) = process(&place, &request(&place, project, steps.clone()).to_string());
        assert_eq!(code, 0, "{events:?}");
        let last = events.last().expect("at least one");
        assert_eq!((&last["event"], &last["cached_steps"]), (&json!("built"), &json!(cached)), "{project}: {last}");
        let output: Vec<&Value> = events.iter().filter(|event| event["event"] == "output").collect();
        if cached == 0 {
            let sent = json!({"event": "output", "number": 4, "stream": "stdout", "text": "sent"});
            assert!(output.contains(&&sent) && output.len() == 2, "{output:?}");
        } else {
            assert!(output.is_empty(), "{output:?}");
        }
    }
    let failing = json!([{"do": "copy", "sources": ["bin"], "to": "/bin"}, {"do": "run", "command": "exit 3"}]);
    let (code, events) = process(&place, &request(&place, "one", failing).to_string());
    let last = events.last().expect("at least one");
    assert_eq!(
        (code, &last["event"], &last["step"], &last["exit_code"]),
        (1, &json!("failed"), &json!(2), &json!(3)),
        "{last}"
    );
    for wrong in ["", "{}", "null"] {
        let (code, events) = process(&place, wrong);
        assert!(code == 1 && events.last().is_some_and(|last| last["event"] == "failed"), "{events:?}");
    }
    let mut mounting = request(&place, "one", json!([]));
    mounting["order"]["sandbox"] = json!({"workspace": "/etc"});
    let (_, events) = process(&place, &mounting.to_string());
    assert_eq!(events[0]["problem"]["code"], "contradiction", "{events:?}");
}

#[test]
fn a_build_that_nobody_listens_to_any_more_is_cancelled() {
    let place = Place::new();
    Context::new(&place);
    let steps = json!([
        {"do": "copy", "sources": ["bin"], "to": "/bin"},
        {"do": "run", "command": ["/bin/sh", "-c", "while true; do echo line; sleep 0.1; done"]},
    ]);
    let (mut child, _stdin) = begin(&place, &request(&place, "one", steps).to_string());
    let mut log = BufReader::new(child.stdout.take().expect("spawned with a pipe"));
    let mut seen = String::new();
    while !seen.contains("\"output\"") {
        assert!(log.read_line(&mut seen).expect("a pipe of ours") > 0, "the log ended: {seen}");
    }
    drop(log);
    assert_eq!(finish(child).code, 1);
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn a_build_whose_listener_hangs_is_cancelled() {
    let place = Place::new();
    Context::new(&place);
    // More than a pipe holds.
    let steps = json!([
        {"do": "copy", "sources": ["bin"], "to": "/bin"},
        {"do": "run", "command": ["/bin/sh", "-c", "while true; do echo line; done"]},
    ]);
    let (mut child, _stdin) = begin(&place, &request(&place, "one", steps).to_string());
    let unread = child.stdout.take().expect("spawned with a pipe");
    assert_eq!(finish(child).code, 1);
    assert_eq!(place.records(), Vec::<String>::new());
    drop(unread);
}
