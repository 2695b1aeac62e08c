//! Limits: a program that completes under a larger limit hits each smaller one, and the result names the limit.

mod harness;
mod traces;

use harness::{Done, Place, finish, is_root, not_here};
use serde_json::{Value, json};
use traces::{check_nothing_left, events_in};

/// Runs a script with `--json` and returns its result, after checking that nothing is left over.
fn run(flags: &[&str], script: &str) -> (i32, Value) {
    let place = Place::new();
    let done = place.sh(&[&["--json"], flags].concat(), script);
    let result = done.json();
    check_nothing_left(&place, result["sandbox_id"].as_str().expect("always there"));
    (done.code, result)
}

/// The rules of a result's denials.
fn rules(result: &Value) -> Vec<&str> {
    result["denials"]
        .as_array()
        .expect("an array")
        .iter()
        .map(|denial| denial["rule"].as_str().expect("text"))
        .collect()
}

/// The same script passes under `enough`, and under `tight` hits the limit named `rule` and ends as `status` with
/// `code`.
fn check_limit(name: &str, script: &str, tight: &[&str], enough: &[&str], (status, code, rule): (&str, i32, &str)) {
    let (control_code, control) = run(enough, script);
    assert_eq!(
        (control_code, &control["status"], rules(&control)),
        (0, &json!("exited"), vec![]),
        "{name} under the larger limit: {control}"
    );
    let (tight_code, hit) = run(tight, script);
    assert_eq!((tight_code, &hit["status"], rules(&hit)), (code, &json!(status), vec![rule]), "{name}: {hit}");
    assert_eq!(hit["denials"][0]["code"], "limit_reached", "{name}: {hit}");
}

/// Whether the host enforces a limit; if not, checks that requesting it is refused.
fn is_enforced(name: &str, flags: &[&str]) -> bool {
    let unenforced = run(&[], "true").1["unenforced"].clone();
    if unenforced.as_array().expect("an array").iter().all(|text| !text.as_str().expect("text").starts_with(name)) {
        return true;
    }
    not_here(&format!("limit {name} can't be enforced; its refusal is tested instead"));
    let (code, result) = run(flags, "true");
    assert_eq!((code, &result["error"]["code"]), (126, &json!("unenforced_limit")), "{result}");
    false
}

#[test]
fn a_timeout_ends_whatever_a_program_does() {
    const STOPPED_CHILD: &str = "sh -c 'kill -STOP $$' & child=$!; (sleep 1; kill -CONT $child) & wait $child";
    for (name, script) in [
        ("sleep", "sleep 1"),
        ("busy loop", "python3 -c 'import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass'"),
        ("blocked read", "mkfifo /tmp/f; (sleep 1; echo > /tmp/f) & read line < /tmp/f"),
        ("stopped child", STOPPED_CHILD),
        ("stopped itself", "(sleep 1; kill -CONT $$) & kill -STOP $$"),
    ] {
        check_limit(name, script, &["--timeout", "100ms"], &["--timeout", "1m"], ("timed_out", 124, "limit/timeout"));
    }
}

#[test]
fn a_program_is_asked_to_end_before_it_is_ended() {
    let (code, result) = run(&["--timeout", "2s"], "trap 'echo asked; exit 3' TERM; while :; do sleep 0.01; done");
    assert_eq!((code, &result["stdout"], &result["exit_code"]), (124, &json!("asked\n"), &Value::Null));
    // It ignores SIGTERM, and lives until the end of its grace period.
    let (code, result) = run(&["--timeout", "1s"], "trap '' TERM; while :; do sleep 1000; done");
    assert_eq!((code, &result["status"]), (124, &json!("timed_out")));
    assert!(result["elapsed_ms"].as_u64() >= Some(3000), "{result}");
}

#[test]
fn a_timeout_is_told_as_an_event_too() {
    let place = Place::new();
    let events = place.path("events");
    assert_eq!(place.sh(&["--timeout", "50ms", "--events", &harness::show(&events)], "sleep 1000").code, 124);
    let events = events_in(&events);
    let limit = events.iter().find(|event| event["type"] == "limit").expect("a limit event");
    assert_eq!(
        (&limit["rule"], &events.last().expect("some")["status"]),
        (&json!("limit/timeout"), &json!("timed_out"))
    );
}

const HOG: &str = "python3 -c 'block = bytearray(200 << 20)'";

#[test]
fn heavy_memory_is_bounded_however_it_is_taken() {
    if !is_enforced("memory", &["--memory", "64M"]) {
        return;
    }
    for (name, script) in [
        ("heap", HOG.to_owned()),
        ("child of a shell", format!("{HOG}; exit $?")),
        ("private storage", "head -c 200M /dev/zero > /tmp/block".to_owned()),
        ("shared memory", "head -c 200M /dev/zero > /dev/shm/block".to_owned()),
        (
            "memfd",
            "python3 -c 'import os\nfd = os.memfd_create(\"m\")\nfor i in range(200): os.write(fd, bytes(1 << 20))'"
                .to_owned(),
        ),
    ] {
        let (tight, enough) = (["--memory", "64M", "--disk", "512M"], ["--memory", "1G", "--disk", "512M"]);
        check_limit(name, &script, &tight, &enough, ("out_of_memory", 137, "limit/memory"));
    }
}

#[test]
fn heavy_a_killed_child_is_told_of_and_its_parent_lives() {
    if !is_enforced("memory", &["--memory", "64M"]) {
        return;
    }
    let (code, result) = run(&["--memory", "64M"], &format!("{HOG}; echo child $?; exit 0"));
    assert_eq!((code, &result["status"], &result["stdout"]), (0, &json!("exited"), &json!("child 137\n")));
    assert_eq!(rules(&result), ["limit/memory"]);
    let peak = result["usage"]["memory_peak_bytes"].as_u64().expect("counted here");
    assert!(peak <= 64 << 20, "{peak} bytes are more than the limit");
}

const CROWD: &str = "i=0; while [ $i -lt 40 ]; do sleep 1000 & i=$((i+1)); done; echo all";

#[test]
fn heavy_processes_are_bounded() {
    let (code, control) = run(&["--pids", "100"], CROWD);
    assert_eq!((code, &control["stdout"], rules(&control)), (0, &json!("all\n"), vec![]));
    let (code, hit) = run(&["--pids", "20"], CROWD);
    assert_ne!(code, 0, "40 processes fit into 20: {hit}");
    let threads = "python3 -c 'import threading\nstop = threading.Event()\nfor i in range(40): threading.Thread(target=stop.wait, daemon=True).start()'";
    assert_eq!(run(&["--pids", "100"], threads).0, 0);
    assert_ne!(run(&["--pids", "20"], threads).0, 0);
    if is_root() {
        assert_eq!((rules(&hit), &hit["usage"]["processes_peak"]), (vec!["limit/pids"], &json!(20)));
    } else {
        not_here("refused processes are only counted in a cgroup");
    }
}

#[test]
fn heavy_a_fork_bomb_ends_with_its_sandbox() {
    let (code, result) =
        run(&["--pids", "32", "--timeout", "2s"], "bomb() { bomb | bomb & bomb; }; bomb; while :; do :; done");
    assert!(matches!(code, 2 | 124 | 139), "{result}");
    if is_root() {
        assert!(
            rules(&result).contains(&"limit/pids") && result["usage"]["processes_peak"].as_u64() <= Some(32),
            "{result}"
        );
    }
}

#[test]
fn heavy_a_share_of_a_cpu_is_no_more_than_that() {
    if !is_enforced("cpus", &["--cpus", "0.1"]) {
        return;
    }
    let place = Place::new();
    let spin =
        |cpus| place.spawn(&["--json", "--timeout", "3s", "--cpus", cpus], &["/bin/sh", "-c", "while :; do :; done"]);
    // Concurrently, so that both run under the same load.
    let (little, enough) = (spin("0.1"), spin("1"));
    let usage = |done: Done| {
        let result = done.json();
        (result["usage"]["cpu_ms"].as_f64().expect("counted here"), result["elapsed_ms"].as_f64().expect("always"))
    };
    let ((little, wall), (enough, _)) = (usage(finish(little)), usage(finish(enough)));
    assert!(little / wall < 0.25, "{little} ms of CPU in {wall} ms");
    assert!(enough > little, "{enough} ms with a whole CPU, {little} ms with a tenth");
}

#[test]
fn heavy_storage_of_the_sandbox_is_bounded_in_bytes_and_in_files() {
    let flood = "python3 -c 'for i in range(4000): open(\"/tmp/%d\" % i, \"w\").close()'";
    for (name, script) in [
        ("/tmp", "head -c 16M /dev/zero > /tmp/block"),
        ("home", "head -c 16M /dev/zero > ~/block"),
        ("/dev/shm", "head -c 16M /dev/zero > /dev/shm/block"),
        ("/workspace without one", "head -c 16M /dev/zero > /workspace/block"),
        ("inodes", flood),
    ] {
        check_limit(name, script, &["--disk", "8M"], &["--disk", "64M"], ("exited", 1, "limit/disk"));
    }
    let (_, result) = run(&["--disk", "8M"], "head -c 16M /dev/zero > /tmp/block");
    assert!(result["stderr"].as_str().expect("text").contains("No space left on device"), "{result}");
}

#[test]
fn heavy_a_scratch_layer_counts_and_a_bind_mounted_workspace_does_not() {
    let place = Place::new();
    place.write("workspace/lower", "lower");
    let workspace = harness::show(&place.workspace());
    let write = |fs, disk| {
        place.sh(
            &["--json", "--workspace", &workspace, "--fs", fs, "--disk", disk],
            "head -c 16M /dev/zero > upper && cat lower",
        )
    };
    assert_eq!(write("scratch", "8M").json()["denials"][0]["rule"], "limit/disk");
    for (fs, disk) in [("scratch", "64M"), ("workspace-write", "8M")] {
        let done = write(fs, disk);
        assert_eq!((done.code, &done.json()["stdout"]), (0, &json!("lower")), "{fs} with {disk}");
    }
    assert_eq!(std::fs::metadata(place.path("workspace/upper")).expect("written by the last").len(), 16 << 20);
}

#[test]
fn open_files_are_bounded_and_the_bound_can_not_be_raised() {
    let open = "python3 -c 'import resource, sys\ntry: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\nexcept (ValueError, OSError): pass\ntry: files = [open(\"/dev/null\") for i in range(100)]\nexcept OSError as error: sys.exit(error.errno)'";
    const EMFILE: i32 = 24;
    assert_eq!(run(&["--files", "32"], open).0, EMFILE);
    assert_eq!(run(&["--files", "4096"], open).0, 0);
}

#[test]
fn output_past_the_limit_is_counted_and_dropped_and_the_program_goes_on() {
    let script = "head -c 3000000 /dev/zero; echo out of band >&2; exit 5";
    let (code, result) = run(&["--output", "1000"], script);
    assert_eq!((code, &result["stdout"], rules(&result)), (5, &json!("\0".repeat(1000)), vec!["limit/output"]));
    assert_eq!([&result["stdout_truncated"], &result["stderr_truncated"]], [&json!(true), &json!(false)]);
    assert_eq!([&result["stdout_dropped_bytes"], &result["stderr_dropped_bytes"]], [&json!(2_999_000), &json!(0)]);
    assert_eq!(result["stderr"], "out of band\n");
    let (code, result) = run(&["--output", "3000000"], script);
    assert_eq!((code, &result["stdout_truncated"], rules(&result)), (5, &json!(false), vec![]));
    assert_eq!(result["stdout"].as_str().expect("NUL is UTF-8").len(), 3_000_000);
}

#[test]
fn live_output_is_whole_unless_a_limit_was_asked_for() {
    let place = Place::new();
    let script = "head -c 10000000 /dev/zero; echo -n err >&2";
    assert_eq!(place.sh(&[], script).stdout.len(), 10_000_000);
    let done = place.sh(&["--output", "1000"], script);
    assert_eq!((done.code, done.stdout.len()), (0, 1000));
    assert!(done.stderr.starts_with("err") && done.stderr.contains("limit/output"), "{done:?}");
}

#[test]
fn a_limit_that_can_not_be_enforced_is_refused_when_asked_for_and_listed_when_not() {
    let place = Place::new();
    let Some(ordinary) = Ordinary::in_place(&place) else { return };
    let plain = ordinary.json(&["--json", "--", "/bin/true"]);
    assert_eq!((plain.0, &plain.1["status"]), (0, &json!("exited")), "{}", plain.1);
    let unenforced: Vec<&str> =
        plain.1["unenforced"].as_array().expect("an array").iter().map(|text| text.as_str().expect("text")).collect();
    assert!(
        unenforced.len() == 2 && unenforced[0].starts_with("memory: ") && unenforced[1].starts_with("cpus: "),
        "{unenforced:?}"
    );
    for flags in [&["--memory", "64M"][..], &["--cpus", "1"], &["--strict"]] {
        let (code, result) = ordinary.json(&[&["--json"], flags, &["--", "/bin/true"]].concat());
        assert_eq!(
            (code, &result["status"], &result["error"]["code"]),
            (126, &json!("refused"), &json!("unenforced_limit")),
            "{flags:?}"
        );
        assert_eq!(rules(&result), ["spec/unenforced_limit"], "{flags:?}");
    }
    for flags in
        [&["--pids", "64"][..], &["--disk", "64M"], &["--files", "64"], &["--timeout", "1m"], &["--output", "1K"]]
    {
        assert_eq!(
            ordinary.json(&[&["--json"], flags, &["--", "/bin/true"]].concat()).0,
            0,
            "{flags:?} needs no cgroup"
        );
    }
    let (code, result) = ordinary.json(&["--json", "--pids", "20", "--", "/bin/sh", "-c", CROWD]);
    assert_ne!(code, 0, "40 processes fit into 20: {result}");
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn with_every_limit_enforced_strict_starts_and_nothing_is_listed() {
    if !is_root() {
        return not_here("an ordinary user has no cgroups of its own");
    }
    let (code, result) = run(&["--strict"], "true");
    assert_eq!((code, &result["unenforced"]), (0, &json!([])));
}

/// The memory limit in the host's cgroups.
const MEMORY_SEEN: &str =
    "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes";

#[test]
fn programs_see_their_limits_where_they_look_for_them() {
    if !is_root() {
        return not_here("an ordinary user has no cgroups of its own");
    }
    let place = Place::new();
    let seen = |flags: &[&str], script: &str| place.sh(flags, script).stdout.trim().to_owned();
    assert_eq!(seen(&["--memory", "64M"], MEMORY_SEEN), (64 << 20).to_string());
    for (cpus, count) in [("0.5", "1"), ("1", "1")] {
        assert_eq!(seen(&["--cpus", cpus], "nproc"), count, "{cpus}");
        let all = "import os; print(len(os.sched_getaffinity(0)), os.cpu_count(), os.sysconf('SC_NPROCESSORS_CONF'))";
        let counted = place.run(&["--cpus", cpus], &["/usr/bin/python3", "-c", all]);
        assert_eq!(counted.stdout, format!("{count} {count} {count}\n"), "{cpus}");
        // They are the ones that it runs on.
        let same = "import os; listed = open('/sys/devices/system/cpu/online').read(); print({int(n) for n in listed.split(',')} == os.sched_getaffinity(0))";
        assert_eq!(place.run(&["--cpus", cpus], &["/usr/bin/python3", "-c", same]).stdout, "True\n", "{cpus}");
    }
    let quota = "cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us";
    assert!(seen(&["--cpus", "0.5"], quota).starts_with("50000"));
    // They are read-only for root inside too.
    let raise = "echo max > /sys/fs/cgroup/memory.max; echo -1 > /sys/fs/cgroup/memory/memory.limit_in_bytes; touch /sys/fs/cgroup/x";
    assert_eq!(
        seen(&["--memory", "64M", "--user", "root"], &format!("({raise}) 2>/dev/null; {MEMORY_SEEN}")),
        (64 << 20).to_string()
    );
    if std::path::Path::new("/usr/bin/node").exists() {
        let heap = "console.log(process.constrainedMemory())";
        let node = place.run(&["--memory", "256M"], &["/usr/bin/node", "-e", heap]);
        assert_eq!(node.stdout.trim(), (256 << 20).to_string(), "{node:?}");
    }
}

#[test]
fn what_is_not_enforced_here_is_told_to_a_person_once_and_to_a_program_always() {
    let place = Place::new();
    let Some(ordinary) = Ordinary::in_place(&place) else { return };
    let said = |arguments: &[&str]| ordinary.run(arguments).stderr;
    assert!(said(&["--", "/bin/true"]).contains("default limits not enforced here: memory, cpus"));
    for _ in 0..2 {
        assert_eq!(said(&["--", "/bin/true"]), "");
        assert_eq!(ordinary.json(&["--json", "--", "/bin/true"]).1["unenforced"].as_array().map(Vec::len), Some(2));
    }
}

#[test]
fn root_of_a_namespace_without_ids_is_told_what_it_is() {
    let place = Place::new();
    let mut command = std::process::Command::new("unshare");
    command.args(["-r", env!("CARGO_BIN_EXE_saggar"), "run", "--", "/bin/true"]);
    command.env("SAGGAR_DATA_DIR", place.path("data")).current_dir("/").stdout(std::process::Stdio::piped());
    let done = finish(command.stderr(std::process::Stdio::piped()).spawn().expect("util-linux is there"));
    assert_eq!(done.code, 126, "{done:?}");
    assert!(done.stderr.contains("unshare -r") && done.stderr.contains("as an ordinary user"), "{done:?}");
}

/// `saggar` as an ordinary user who owns the data directory, even if the tests run as root.
struct Ordinary<'a> {
    place: &'a Place,
    binary: std::path::PathBuf,
}

impl<'a> Ordinary<'a> {
    const ID: u32 = 54_321;

    /// `None`, with a message, if this ordinary user has its own cgroups: then there is nothing to refuse.
    fn in_place(place: &'a Place) -> Option<Self> {
        let data = place.path("data");
        std::fs::create_dir(&data).expect("ours");
        if is_root() {
            let id = (rustix::fs::Uid::from_raw(Self::ID), rustix::fs::Gid::from_raw(Self::ID));
            rustix::fs::chown(&data, Some(id.0), Some(id.1)).expect("root may");
        } else if run(&[], "true").1["unenforced"] == json!([]) {
            not_here("cgroups are delegated to this user");
            return None;
        }
        // Other users may not be able to read the build directory.
        let binary = place.path("saggar");
        harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &binary);
        Some(Self { place, binary })
    }

    fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let done = self.run(arguments);
        (done.code, done.json())
    }

    fn run(&self, arguments: &[&str]) -> Done {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new(&self.binary);
        command.arg("run").args(arguments).env("SAGGAR_DATA_DIR", self.place.path("data")).current_dir("/");
        command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        if is_root() {
            command.uid(Self::ID).gid(Self::ID);
        }
        finish(command.spawn().expect("copied here"))
    }
}

/// `saggar run --json ARGUMENTS` from a shell that sets up something `saggar` inherits.
fn run_after(place: &Place, set_up: &str, arguments: &[&str]) -> Done {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", &format!("{set_up} && exec \"$@\""), "sh", env!("CARGO_BIN_EXE_saggar"), "run", "--json"]);
    command.args(arguments).env("SAGGAR_DATA_DIR", place.path("data")).current_dir("/");
    command.stdin(std::process::Stdio::null());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    finish(command.spawn().expect("a shell"))
}

#[test]
fn a_limit_on_files_that_we_have_ourselves_is_no_obstacle() {
    let place = Place::new();
    let seen = |set_up: &str, flags: &[&str]| {
        let done = run_after(&place, set_up, &[flags, &["--", "/bin/sh", "-c", "ulimit -Hn; ulimit -Sn"]].concat());
        assert_eq!(done.code, 0, "{set_up}, {flags:?}: {done:?}");
        done.json()["stdout"].as_str().expect("text").to_owned()
    };
    assert_eq!(seen("ulimit -n 1024", &[]), "1024\n1024\n");
    assert_eq!(seen("ulimit -n 1024", &["--files", "100"]), "100\n100\n");
    // Fewer than the agent itself needs, which must not affect the program.
    assert_eq!(seen(":", &["--files", "16"]), "16\n16\n");
    assert_eq!(seen("ulimit -n 1024", &["--files", "16"]), "16\n16\n");
}

/// A test's own cgroup, removed on drop.
struct OwnCgroup(std::path::PathBuf);

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        // Only a failed test leaves something in it, and its failure is what matters.
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_share_of_a_cpu_that_we_have_ourselves_is_no_obstacle() {
    let hierarchy = std::path::Path::new("/sys/fs/cgroup/cpu");
    if !is_root() || !hierarchy.join("cpu.cfs_quota_us").exists() {
        return not_here("only root can make a cgroup, and there has to be a version 1 hierarchy for cpu");
    }
    let own = OwnCgroup(hierarchy.join(format!("half-a-cpu-{}", std::process::id())));
    std::fs::create_dir(&own.0).expect("root may");
    std::fs::write(own.0.join("cpu.cfs_quota_us"), "50000").expect("just made");
    let set_up = format!("echo 0 > {}", harness::show(&own.0.join("tasks")));
    let place = Place::new();
    for flags in [&[][..], &["--cpus", "0.25"], &["--cpus", "2"]] {
        let done = run_after(&place, &set_up, &[flags, &["--", "/bin/true"]].concat());
        assert_eq!(done.code, 0, "{flags:?}: {done:?}");
        assert_eq!(place.records(), Vec::<String>::new());
        let left = std::fs::read_dir(&own.0).expect("ours").flatten().filter(|entry| entry.path().is_dir()).count();
        assert_eq!(left, 0, "{flags:?}: cgroups are left");
    }
}

/// Fills the queues of as many sockets as would hold 200 MiB, then counts the unread datagrams. Sending never fails
/// for it.
const DATAGRAMS: &str = "
import socket
sender, sockets, room, data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), [], 0, bytes(60000)
while room < 200 << 20:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.bind(('127.0.0.1', 0))
    receiver.setblocking(False)
    size = receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    for i in range(size // len(data) + 1):
        try: sender.sendto(data, receiver.getsockname())
        except OSError: pass
    room += size
    sockets.append(receiver)
queued = 0
for receiver in sockets:
    try:
        while True: queued += len(receiver.recv(len(data)))
    except BlockingIOError: pass
print(queued >> 20)
";

#[test]
fn heavy_what_waits_in_sockets_counts_as_memory() {
    if !is_enforced("memory", &["--memory", "64M"]) {
        return;
    }
    let queued = |memory: &str| -> u64 {
        let result = Place::new().json(&["--memory", memory, "--files", "4096"], &["python3", "-c", DATAGRAMS]);
        let text = result["stdout"].as_str().expect("text").trim();
        text.parse().unwrap_or_else(|_| panic!("{result}"))
    };
    let (tight, enough) = (queued("64M"), queued("512M"));
    // Cgroups v1 give sockets an eighth of the memory, and at most 64M.
    if enough < 48 {
        return not_here(&format!("this kernel queues no more than {enough} MiB of datagrams, whatever the limit"));
    }
    assert!(tight <= 72 && tight < enough / 2, "{tight} MiB under a limit of 64, {enough} under 512");
}

/// Fills connections to itself until no more fits, and prints the number of unread bytes.
const FILL_CONNECTIONS: &str = r#"
import socket
listener = socket.create_server(("127.0.0.1", 0))
kept, total = [], 0
for _ in range(200):
    here = socket.create_connection(listener.getsockname())
    there = listener.accept()[0]
    here.setblocking(False)
    kept += [here, there]
    try:
        while True:
            total += here.send(b"x" * 65536)
    except BlockingIOError:
        pass
    if total > 400 << 20:
        break
print(total >> 20)
"#;

#[test]
fn heavy_what_waits_in_sockets_is_a_small_part_of_the_memory() {
    if !is_root() || !std::path::Path::new("/sys/fs/cgroup/memory").is_dir() {
        return not_here("only cgroups of version 1 count it apart");
    }
    let place = Place::new();
    let done = place.run(&["--memory", "1G", "--timeout", "50s"], &["/usr/bin/python3", "-c", FILL_CONNECTIONS]);
    let waiting: u64 = done.stdout.trim().parse().unwrap_or_else(|_| panic!("{done:?}"));
    assert!(waiting < 200, "{waiting} MiB waited beside a memory of 1 GiB");
}
