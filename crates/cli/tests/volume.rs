//! Volumes without a server: what is kept, who may use one, a size that holds, and what a crash leaves.

mod harness;
#[path = "http/mod.rs"]
mod http;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Command};

use harness::{Done, Place, finish, held, is_root, not_here, show};
use http::eventually;

/// Where the magic number of an ext4 is.
const MAGIC_AT: u64 = 1024 + 0x38;

fn volume(place: &Place, arguments: &[&str]) -> Done {
    finish(place.command(["volume"].iter().chain(arguments)).spawn().expect("it was built"))
}

fn made(place: &Place, arguments: &[&str]) {
    let done = volume(place, arguments);
    assert_eq!(done.code, 0, "{done:?}");
}

fn check_refused(done: &Done, why: &str) {
    assert!(matches!(done.code, 125 | 126) && done.stderr.contains(why), "expected {why:?}: {done:?}");
    assert!(!done.stderr.contains("/saggar-test-"), "a host path: {done:?}");
}

/// The files of this place that loop devices show.
fn loops(place: &Place) -> Vec<String> {
    let root = show(&place.path(""));
    let entries = std::fs::read_dir("/sys/block").expect("sysfs is mounted").flatten();
    let files = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    files.filter(|file| file.starts_with(root.trim_end_matches('/'))).collect()
}

/// What is in the project's directory, half made volumes included.
fn entries(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.path("data/volumes/local")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

/// A sandbox that uses a volume until it is told to end.
struct Using {
    child: Child,
}

impl Using {
    fn start(place: &Place, flags: &[&str]) -> Self {
        let script = "echo up; read line; echo \"$line\" > /data/last";
        let program = ["--", "/bin/sh", "-c", script];
        let arguments = ["run", "--stdin", "-"].iter().chain(flags).chain(&program);
        let mut command = place.command(arguments);
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().expect("it was built");
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut [0; 3]).expect("it says so");
        Self { child }
    }

    fn end(mut self, line: &str) -> Done {
        harness::feed(&mut self.child, format!("{line}\n").as_bytes());
        finish(self.child)
    }

    fn kill(mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ours");
    }
}

#[test]
fn files_stay_and_belong_to_the_users_inside() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    made(&place, &["create", "data", "--size", "64M"]);
    let done =
        place.sh(&["--volume", "data:/data"], "id -u; echo kept > /data/file; mkdir /data/d; stat -c %u:%g /data/file");
    assert_eq!((done.code, done.stdout.as_str()), (0, "1000\n1000:1000\n"), "{done:?}");
    let done = place.sh(
        &["--volume", "data:/mnt/deep/er", "--user", "root"],
        "cat /mnt/deep/er/file; ls -A /mnt/deep/er; chown 0:0 /mnt/deep/er/d && stat -c %u /mnt/deep/er/d",
    );
    assert_eq!((done.code, done.stdout.as_str()), (0, "kept\nd\nfile\n0\n"), "{done:?}");
    // On the host it is mounted nowhere, and its file is for root alone.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("procfs is mounted");
    assert!(!mounts.contains("volumes/local"), "{mounts}");
    let file = place.path("data/volumes/local/data/content").metadata().expect("it is there");
    assert_eq!((file.mode() & 0o777, file.len()), (0o600, 64 << 20));
    assert!(file.blocks() * 512 >= 64 << 20, "not all blocks are allocated: {}", file.blocks());
    made(&place, &["rm", "data"]);
    check_refused(&place.sh(&["--volume", "data:/data"], "true"), "there is no volume \"data\"");
    eventually("no loop device is left", || loops(&place).is_empty());
}

#[test]
fn a_full_volume_refuses_more_and_nothing_else_is_full() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    made(&place, &["create", "small", "--size", "32M"]);
    made(&place, &["create", "other", "--size", "16M"]);
    let script = "dd if=/dev/zero of=/data/big bs=1048576 count=64 2>/data/why; cut -d: -f3 /data/why | head -1; \
                  test $(stat -c %s /data/big) -lt 33554432 && echo less; echo fine > /other/file && echo fine > /tmp/x && \
                  rm /data/big && echo again > /data/file && cat /data/file /other/file";
    let done = place.sh(&["--volume", "small:/data", "--volume", "other:/other"], script);
    assert_eq!((done.code, done.stdout.as_str()), (0, " No space left on device\nless\nagain\nfine\n"), "{done:?}");
}

#[test]
fn read_only_is_read_only_for_root_too_and_set_id_bits_have_no_power() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    made(&place, &["create", "data", "--size", "16M"]);
    let script =
        "cp /usr/bin/id /data/id; chmod 4755 /data/id 2>/dev/null; mknod /data/null c 1 3 2>/dev/null; ls /data";
    assert_eq!(place.sh(&["--user", "root", "--volume", "data:/data"], script).stdout, "id\n");
    for user in ["user", "root"] {
        let script = "touch /data/x 2>/dev/null || echo no; rm /data/id 2>/dev/null || echo no; \
                      mount -o remount,rw /data 2>/dev/null || echo no; /data/id -u";
        let done = place.sh(&["--user", user, "--volume", "data:/data:ro"], script);
        let id = if user == "root" { "0" } else { "1000" };
        assert_eq!(done.stdout, format!("no\nno\nno\n{id}\n"), "{user}: {done:?}");
    }
    let flags = "grep ' /data ' /proc/self/mountinfo | cut -d' ' -f6";
    let options = place.sh(&["--volume", "data:/data"], flags).stdout;
    assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
}

#[test]
fn an_exclusive_volume_has_one_user_and_a_shared_one_several() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    made(&place, &["create", "alone", "--size", "16M"]);
    made(&place, &["create", "many", "--size", "16M", "--shared"]);
    let first = Using::start(&place, &["--volume", "alone:/data", "--volume", "many:/many"]);
    let holder = place.records().pop().expect("it has a record");
    let refusal = place.sh(&["--volume", "alone:/data"], "true");
    check_refused(&refusal, &format!("volume alone is in use by sandbox {holder}"));
    check_refused(&place.sh(&["--volume", "alone:/data:ro"], "true"), "is in use by sandbox");
    for name in ["alone", "many"] {
        check_refused(&volume(&place, &["rm", name]), &format!("volume {name} is in use by sandbox {holder}"));
        let shown = volume(&place, &["show", name, "--json"]).json();
        assert_eq!(shown["volume"]["used_by"], serde_json::json!([holder]), "{shown}");
    }
    // What one writes the other sees: it is one filesystem.
    let second = Using::start(&place, &["--volume", "many:/data"]);
    let done = place.sh(&["--volume", "many:/many"], "echo seen > /many/note; sync");
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(loops(&place).len(), 2, "one device for each volume: {:?}", loops(&place));
    assert_eq!(second.end("from the second").code, 0);
    assert_eq!(first.end("from the first").code, 0);
    let done = place.sh(&["--volume", "alone:/a", "--volume", "many:/m"], "cat /a/last /m/last /m/note");
    assert_eq!(done.stdout, "from the first\nfrom the second\nseen\n", "{done:?}");
    made(&place, &["rm", "alone"]);
    made(&place, &["rm", "many"]);
}

/// A loop device of somebody else's, read-only as those of packages are.
struct Foreign(String);

impl Foreign {
    fn attach(place: &Place) -> Self {
        let file = place.write("foreign", &"x".repeat(1 << 20));
        let attached = Command::new("losetup").args(["--read-only", "--find", "--show"]).arg(file).output();
        let attached = attached.expect("util-linux is installed");
        assert!(attached.status.success(), "{attached:?}");
        Self(String::from_utf8_lossy(&attached.stdout).trim().to_owned())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let released = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(released.is_ok_and(|status| status.success()), "{} is left", self.0);
    }
}

#[test]
fn a_device_of_somebody_else_is_not_in_the_way() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    made(&place, &["create", "data", "--size", "16M", "--shared"]);
    let _foreign = Foreign::attach(&place);
    let using = Using::start(&place, &["--volume", "data:/data"]);
    let done = place.sh(&["--volume", "data:/data"], "echo beside > /data/note");
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(using.end("x").code, 0);
}

#[test]
fn a_record_that_can_not_be_read_may_be_of_a_user() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    made(&place, &["create", "alone", "--size", "16M"]);
    made(&place, &["create", "many", "--size", "16M", "--shared"]);
    let sandbox = saggar_domain::SandboxId::from_random(held::unique());
    let record = place.path("data/sandboxes").join(sandbox.as_str());
    std::fs::create_dir_all(place.path("data/sandboxes")).expect("ours");
    std::fs::write(&record, "{").expect("ours");
    let why = format!("volume alone may be in use by sandbox {sandbox}, whose record can't be read");
    check_refused(&place.sh(&["--volume", "alone:/data"], "true"), &why);
    check_refused(&volume(&place, &["rm", "alone"]), &why);
    assert_eq!(place.sh(&["--volume", "many:/data"], "true").code, 0);
    std::fs::remove_file(&record).expect("ours");
    assert_eq!(place.sh(&["--volume", "alone:/data"], "true").code, 0);
}

#[test]
fn a_supervisor_without_a_project_gets_no_volume() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    made(&place, &["create", "data", "--size", "16M"]);
    let spec = serde_json::json!({ "volumes": [{ "name": "data", "at": "/data" }] });
    let started = held::start(&place, spec, held::FOR_EVER, false);
    let refused = format!("{:?}", started.map(|supervisor| supervisor.sandbox.clone()));
    assert!(refused.contains("no project was named for the sandbox's volumes"), "{refused}");
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn a_killed_user_releases_its_volume_whole() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    made(&place, &["create", "data", "--size", "32M"]);
    assert_eq!(place.sh(&["--volume", "data:/data"], "echo before > /data/file; sync").code, 0);
    for _ in 0..3 {
        let using = Using::start(&place, &["--volume", "data:/data"]);
        using.kill();
        let done = place.sh(&["--volume", "data:/data"], "cat /data/file");
        assert_eq!((done.code, done.stdout.as_str()), (0, "before\n"), "{done:?}");
    }
    assert_eq!(place.records(), Vec::<String>::new());
    eventually("no loop device is left", || loops(&place).is_empty());
    made(&place, &["repair", "data"]);
}

#[test]
fn a_damaged_volume_is_refused_and_can_be_repaired_or_removed() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    made(&place, &["create", "data", "--size", "16M"]);
    assert_eq!(place.sh(&["--volume", "data:/data"], "echo kept > /data/file").code, 0);
    eventually("it is unmounted", || loops(&place).is_empty());
    let content = place.path("data/volumes/local/data/content");
    let file = std::fs::File::options().write(true).open(&content).expect("ours");
    // As the kernel marks it when it meets one.
    let marked = Command::new("debugfs").args(["-w", "-R", "set_super_value state 3"]).arg(&content).output();
    assert!(marked.expect("e2fsprogs is installed").status.success());
    check_refused(
        &place.sh(&["--volume", "data:/data"], "true"),
        "volume data is damaged: its filesystem has met an error",
    );
    made(&place, &["repair", "data"]);
    assert_eq!(place.sh(&["--volume", "data:/data"], "cat /data/file").stdout, "kept\n");
    eventually("it is unmounted", || loops(&place).is_empty());
    file.write_at(&[0, 0], MAGIC_AT).expect("ours");
    check_refused(&place.sh(&["--volume", "data:/data"], "true"), "its content is no filesystem");
    file.set_len(1 << 20).expect("ours");
    check_refused(&place.sh(&["--volume", "data:/data"], "true"), "has 1048576 bytes instead of 16777216");
    std::fs::remove_file(&content).expect("ours");
    check_refused(&place.sh(&["--volume", "data:/data"], "true"), "its content is missing");
    std::fs::write(place.path("data/volumes/local/data/volume.json"), "{").expect("ours");
    check_refused(&place.sh(&["--volume", "data:/data"], "true"), "its record can't be read");
    assert_eq!(place.records(), Vec::<String>::new());
    made(&place, &["rm", "data"]);
    assert_eq!(entries(&place), Vec::<String>::new());
}

#[test]
fn a_death_at_any_step_leaves_a_whole_volume_or_none() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let place = Place::new();
    let killed = |point: &str, arguments: &[&str]| {
        let mut command = place.command(["volume"].iter().chain(arguments));
        let done = finish(command.env("FAIL_AT", format!("kill {point}")).spawn().expect("it was built"));
        assert_eq!(done.code, -9, "{point}: {done:?}");
    };
    let create = ["create", "data", "--size", "16M"];
    for point in ["begun", "allocated", "formatted", "prepared", "recorded"] {
        killed(&format!("volume/{point}"), &create);
        assert!(entries(&place).iter().all(|name| name.starts_with(".new-")), "{point}: {:?}", entries(&place));
        check_refused(&place.sh(&["--volume", "data:/data"], "true"), "there is no volume");
        assert_eq!(entries(&place).len(), 1, "the one before is collected: {:?}", entries(&place));
    }
    killed("volume/named", &create);
    assert_eq!(entries(&place), ["data"]);
    assert_eq!(place.sh(&["--volume", "data:/data"], "echo kept > /data/file").code, 0);
    killed("volume/locked", &["rm", "data"]);
    assert_eq!(place.sh(&["--volume", "data:/data"], "cat /data/file").stdout, "kept\n");
    killed("volume/unnamed", &["rm", "data"]);
    check_refused(&place.sh(&["--volume", "data:/data"], "true"), "there is no volume");
    made(&place, &create);
    assert_eq!(entries(&place), ["data"]);
    assert_eq!(place.sh(&["--volume", "data:/data"], "ls /data").stdout, "");
    killed("volume/removed", &["rm", "data"]);
    assert_eq!(entries(&place), Vec::<String>::new());
    eventually("no loop device is left", || loops(&place).is_empty());
}

#[test]
fn what_can_not_be_given_is_refused_with_the_reason() {
    let place = Place::new();
    if !is_root() {
        check_refused(&volume(&place, &["create", "data", "--size", "16M"]), "volumes need root");
        return check_refused(&place.sh(&["--volume", "data:/data"], "true"), "volumes need root");
    }
    check_refused(&volume(&place, &["create", "data", "--size", "1M"]), "too small");
    check_refused(&volume(&place, &["create", "data", "--size", "10T"]), "no room for volume data");
    check_refused(&volume(&place, &["create", "../data", "--size", "16M"]), "is not a volume's name");
    check_refused(&volume(&place, &["rm", "data"]), "there is no volume \"data\"; there are none yet");
    assert_eq!(entries(&place), Vec::<String>::new());
    made(&place, &["create", "data", "--size", "16M"]);
    check_refused(&volume(&place, &["create", "data", "--size", "16M"]), "there is a volume \"data\" already");
    for (at, why) in [
        ("/proc/x", "belongs to the sandbox itself"),
        ("/usr", "belongs to the sandbox itself"),
        ("/", "belongs to the sandbox itself"),
        ("/tmp", "belongs to the sandbox itself"),
        ("/a/../etc", "\"..\""),
    ] {
        check_refused(&place.sh(&["--volume", &format!("data:{at}")], "true"), why);
    }
    check_refused(&place.sh(&["--volume", "data:/a", "--volume", "data:/b"], "true"), "mounted twice");
    check_refused(&place.sh(&["--volume", "other:/a"], "true"), "there is no volume \"other\"; there are: data");
    assert_eq!(place.records(), Vec::<String>::new());
}
