//! Paused sandboxes of which only their files are left: after a pause without memory, and after a restart of the host.

mod harness;
mod http;

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use harness::image::Image;
use harness::{is_root, not_here};
use http::{Server, eventually};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const ON_DISK: &[&str] = &["--public-templates", "shared", "--disk-storage-max", "64M"];

/// Counts processes that sleep, with nothing but a shell.
const SLEEPERS: &str =
    "n=0; for c in /proc/[0-9]*/comm; do read name < $c; [ $name = sleep ] && n=$((n+1)); done; echo $n";

fn stdout(answer: &Value) -> &str {
    answer["stdout"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn paused(has_processes: bool, survives_restart: bool) -> Value {
    json!({ "has_processes": has_processes, "survives_restart": survives_restart })
}

/// The supervisors of a server: processes that have something of its data directory open.
fn supervisors(server: &Server) -> Vec<Pid> {
    let data = server.data();
    let is_ours = |pid: &u32| {
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let is_supervisor = read("cmdline").split(|byte| *byte == 0).any(|part| part == b"__supervise");
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        is_supervisor
            && descriptors.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|path| path.starts_with(&data))
    };
    let all = std::fs::read_dir("/proc").expect("it is mounted").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(is_ours);
    pids.map(|pid| Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0")).collect()
}

/// What a restart of the host does to a server and its sandboxes: no process is left, and nothing that belongs to one.
fn restart_host(server: &mut Server) {
    server.kill();
    let all = supervisors(server);
    assert!(!all.is_empty(), "no supervisor was found");
    for pid in &all {
        kill_process(*pid, Signal::KILL).expect("ours");
    }
    eventually("they are dead", || supervisors(server).is_empty());
    server.begin();
}

fn on_disk(server: &Server) -> String {
    Image::in_project(&server.data(), "local").system().layer(|top| top.write("srv/below", "below")).named("shared");
    server.sandbox_with(&json!({ "template": "shared", "storage": "disk", "limits": { "disk": "32M" }, "ttl": "10m", "env": { "KEY": "its value" } }))
}

fn as_root(server: &Server, sandbox: &str, line: &str) -> String {
    stdout(&server.post(&format!("{sandbox}/execs"), &json!({ "command": line, "user": "root" })).expect(200))
        .to_owned()
}

#[test]
fn a_paused_sandbox_with_its_files_on_disk_survives_a_restart_of_the_host() {
    if !is_root() {
        return not_here("storage on disk needs root");
    }
    let mut server = Server::start_with(ON_DISK);
    let (survives, running) = (on_disk(&server), on_disk(&server));
    let in_memory = server.sandbox_with(&json!({ "ttl": "10m" }));
    as_root(&server, &survives, "echo mine > /srv/mine; rm /srv/below; (sleep 1000 &)");
    let pause = |sandbox: &str| server.post(&format!("{sandbox}/pause"), &json!({})).expect(200)["paused"].clone();
    assert_eq!((pause(&survives), pause(&in_memory)), (paused(true, true), paused(true, false)));
    restart_host(&mut server);
    let told = server.get(&survives).expect(200);
    assert_eq!((&told["state"], &told["paused"]), (&json!("paused"), &paused(false, true)));
    for lost in [&in_memory, &running] {
        assert_eq!(server.get(lost).expect(200)["state"], "ended");
    }
    // It waits, also for the next server.
    server.post(&format!("{survives}/execs"), &json!({ "command": "true" })).problem(409, "sandbox_paused");
    server.post(&format!("{survives}/snapshots"), &json!({})).problem(409, "sandbox_paused");
    assert_eq!(server.stop(), Some(0));
    server.begin();
    let resumed = server.post(&format!("{survives}/resume"), &json!({})).expect(200);
    assert_eq!((&resumed["state"], resumed.get("paused")), (&json!("running"), None));
    let seen = as_root(&server, &survives, &format!("cat /srv/mine; ls /srv; echo $KEY; {SLEEPERS}"));
    assert_eq!(seen, "mine\napp\nmine\nits value\n0\n");
    // Stored a moment later, and numbered after those of before.
    let begins = |event: &&Value| event["type"] == "started";
    eventually("its second start is told", || {
        let events = server.get(&format!("{survives}/events")).expect(200);
        events["items"].as_array().expect("a list").iter().filter(begins).count() == 2
    });
    // A second time, with what happened since. What ran is gone, as before.
    as_root(&server, &survives, "echo again > /srv/again");
    assert_eq!(server.post(&format!("{survives}/pause"), &json!({})).expect(200)["paused"], paused(true, true));
    restart_host(&mut server);
    server.post(&format!("{survives}/resume"), &json!({ "ttl": "5m" })).expect(200);
    assert_eq!(as_root(&server, &survives, "cat /srv/mine /srv/again"), "mine\nagain\n");
    // What was kept is outdated now, and no longer there.
    restart_host(&mut server);
    assert_eq!(server.get(&survives).expect(200)["state"], "ended");
    eventually("nothing is kept of it", || snapshot_files(&server) == 0);
}

fn snapshot_files(server: &Server) -> usize {
    let projects = std::fs::read_dir(server.data().join("templates")).expect("it is there").flatten();
    projects.filter_map(|project| std::fs::read_dir(project.path().join("snapshots")).ok()).map(Iterator::count).sum()
}

#[test]
fn what_a_pause_kept_is_outdated_when_the_sandbox_goes_back() {
    if !is_root() {
        return not_here("storage on disk needs root");
    }
    let server = Server::start_with(ON_DISK);
    let sandbox = on_disk(&server);
    as_root(&server, &sandbox, "echo one > /srv/mine");
    let taken = server.post(&format!("{sandbox}/snapshots"), &json!({})).expect(201);
    as_root(&server, &sandbox, "echo two > /srv/mine");
    assert_eq!(server.post(&format!("{sandbox}/pause"), &json!({})).expect(200)["paused"], paused(true, true));
    server.post(&format!("{sandbox}/rollback"), &json!({ "snapshot": taken["id"] })).expect(200);
    as_root(&server, &sandbox, "echo three > /srv/later");
    server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).expect(200);
    server.post(&format!("{sandbox}/resume"), &json!({})).expect(200);
    assert_eq!(as_root(&server, &sandbox, "cat /srv/mine /srv/later"), "one\nthree\n");
}

#[test]
fn a_pause_without_memory_keeps_the_files_and_ends_the_processes() {
    let mut server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "ttl": "10m", "env": { "KEY": "its value" }, "labels": { "a": "b" } }));
    server.sh(&sandbox, "echo there > ~/file; (sleep 1000 &)");
    let before = server.get(&sandbox).expect(200);
    let told = server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).expect(200);
    assert_eq!((&told["state"], &told["paused"]), (&json!("paused"), &paused(false, true)));
    // It is hidden: no client sees what it rests in.
    assert_eq!(server.get("/api/v1/snapshots").expect(200)["items"], json!([]));
    // Again, and with its memory, which it no longer has.
    assert_eq!(server.post(&format!("{sandbox}/pause"), &json!({})).expect(200)["paused"], paused(false, true));
    let listed = server.get("/api/v1/sandboxes?state=paused").expect(200);
    assert_eq!(listed["items"][0]["paused"], paused(false, true), "{listed}");
    server.kill();
    server.begin();
    server.post(&format!("{sandbox}/resume"), &json!({})).expect(200);
    assert_eq!(stdout(&server.sh(&sandbox, &format!("cat ~/file; echo $KEY; {SLEEPERS}"))), "there\nits value\n0\n");
    let after = server.get(&sandbox).expect(200);
    for field in ["id", "template", "labels", "policy_hash", "created_at"] {
        assert_eq!(before[field], after[field], "{field}");
    }
    // A resting one that is ended leaves nothing.
    server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).expect(200);
    assert_eq!(server.delete(&sandbox).status, 200);
    assert_eq!(server.get(&sandbox).expect(200)["ended"]["reason"], "killed");
    assert_eq!(snapshot_files(&server), 0);
    server.post(&format!("{sandbox}/resume"), &json!({})).problem(409, "sandbox_ended");
}

#[test]
fn a_deadline_may_keep_the_files_alone_and_leaves_the_memory_where_it_cannot() {
    let mut server = Server::start_with(&["--snapshot-size-max", "1M", "--pool-max", "0"]);
    let wish = json!({ "ttl": "1h", "on_timeout": "rest", "env": { "KEY": "its value" } });
    let sandbox = server.sandbox_with(&wish);
    server.sh(&sandbox, "echo there > ~/file; (sleep 1000 &)");
    let end_time = |server: &Server| {
        server.post(&format!("{sandbox}/timeout"), &json!({ "ttl": "1ms" })).expect(200);
    };
    let resume = |server: &Server| {
        let resumed = server.post(&format!("{sandbox}/resume"), &json!({ "ttl": "1h" })).expect(200);
        assert_eq!(resumed["on_timeout"], "rest");
    };
    let rests = |server: &Server| server.get(&sandbox).expect(200)["paused"] == paused(false, true);
    end_time(&server);
    eventually("it rests", || rests(&server));
    eventually("its processes are ended", || supervisors(&server).is_empty());
    server.kill();
    server.begin();
    resume(&server);
    assert_eq!(stdout(&server.sh(&sandbox, &format!("cat ~/file; echo $KEY; {SLEEPERS}"))), "there\nits value\n0\n");
    // Its server dies. Whichever of them sees that its time is up keeps its files.
    end_time(&server);
    server.kill();
    server.begin();
    eventually("it rests again", || rests(&server));
    resume(&server);
    // Too much for a snapshot: it keeps its memory, and nothing is lost.
    server.sh(&sandbox, "dd if=/dev/urandom of=$HOME/big bs=1M count=2 2>/dev/null; (sleep 1000 &)");
    end_time(&server);
    eventually("its time is up", || server.get(&sandbox).expect(200)["state"] == "paused");
    resume(&server);
    assert_eq!(stdout(&server.sh(&sandbox, &format!("cat ~/file; {SLEEPERS}"))), "there\n1\n");
}

/// Otherwise its events and its end would go unrecorded.
#[test]
fn a_sandbox_whose_resume_cannot_be_recorded_rests_on() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox_with(&json!({ "ttl": "10m" }));
    server.sh(&sandbox, "echo there > ~/file");
    server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).expect(200);
    assert_eq!(server.stop(), Some(0));
    server.fails_at = "fail rest/recording".to_owned();
    server.begin();
    server.post(&format!("{sandbox}/resume"), &json!({})).problem(500, "internal");
    let told = server.get(&sandbox).expect(200);
    assert_eq!((&told["state"], &told["paused"]), (&json!("paused"), &paused(false, true)));
    assert_eq!(supervisors(&server), [], "nothing runs that nobody watches");
    assert_eq!(server.stop(), Some(0));
    server.fails_at.clear();
    server.begin();
    server.post(&format!("{sandbox}/resume"), &json!({})).expect(200);
    assert_eq!(stdout(&server.sh(&sandbox, "cat ~/file")), "there\n");
}

#[test]
fn traffic_resumes_a_sandbox_that_rests_and_what_cannot_be_kept_is_refused() {
    let server = Server::start_with(&["--snapshot-size-max", "1M"]);
    let sandbox = server.sandbox_with(&json!({ "ttl": "10m", "auto_resume": true }));
    server.sh(&sandbox, "echo there > ~/file");
    server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).expect(200);
    assert_eq!(stdout(&server.sh(&sandbox, "cat ~/file")), "there\n");
    // Too much for a snapshot: nothing is lost, and it runs on.
    server.sh(&sandbox, "dd if=/dev/urandom of=$HOME/big bs=1M count=2 2>/dev/null; (sleep 1000 &)");
    let refused = server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).problem(400, "invalid_value");
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains("larger than 1M")), "{refused}");
    assert_eq!(server.get(&sandbox).expect(200)["state"], "running");
    assert_eq!(stdout(&server.sh(&sandbox, SLEEPERS)), "1\n");
}

#[test]
fn a_server_that_is_killed_while_a_sandbox_goes_to_rest_or_rises_loses_no_file() {
    let mut server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "ttl": "10m" }));
    server.sh(&sandbox, "echo there > ~/file");
    let (pause, resume) = (format!("{sandbox}/pause"), format!("{sandbox}/resume"));
    for (point, path) in [
        ("pause/frozen", &pause),
        ("pause/row", &pause),
        ("snapshot/begun", &pause),
        ("snapshot/read", &pause),
        ("snapshot/recorded", &pause),
        ("snapshot/named", &pause),
        ("rest/kept", &pause),
        ("rest/alone", &pause),
        ("rest/rising", &resume),
        ("rest/started", &resume),
        ("rest/row", &resume),
        ("rest/forgotten", &resume),
    ] {
        // In the state that the request is for.
        let state = if path == &pause { &resume } else { &pause };
        server.post(state, &if path == &pause { json!({}) } else { json!({ "memory": false }) }).expect(200);
        cut_off(&mut server, point, path, if path == &pause { json!({ "memory": false }) } else { json!({}) });
        let told = server.get(&sandbox).expect(200);
        assert!(["paused", "running"].iter().any(|state| told["state"] == *state), "{point}: {told}");
        server.post(&resume, &json!({})).expect(200);
        assert_eq!(stdout(&server.sh(&sandbox, &format!("cat ~/file; echo {point} >> ~/log"))), "there\n", "{point}");
    }
    // Each time with what the last one left, and nothing older.
    assert_eq!(stdout(&server.sh(&sandbox, "wc -l < ~/log")), "12\n");
    assert_eq!(server.delete(&sandbox).status, 200);
    eventually("nothing is left of it", || snapshot_files(&server) == 0);
}

/// Sends a request that kills the server at this point, and starts the next one.
fn cut_off(server: &mut Server, point: &str, path: &str, body: Value) {
    assert_eq!(server.stop(), Some(0));
    server.fails_at = format!("kill {point}");
    server.begin();
    let mut connection = server.connect();
    let authorization = server.authorization();
    let headers = [authorization.as_str(), "Content-Type: application/json"];
    http::send(&mut connection, "POST", path, &headers, body.to_string().as_bytes());
    // Reset or closed.
    let _ = connection.read_to_end(&mut Vec::new());
    assert_eq!(server.ended().signal(), Some(9), "{point}");
    server.fails_at.clear();
    server.begin();
}

/// Several processes pause and resume the same sandbox. In between, its files may exist only once.
#[test]
fn a_resume_waits_for_another_process_that_lets_the_sandbox_rest() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox_with(&json!({ "ttl": "10m" }));
    server.sh(&sandbox, "echo there > ~/file");
    server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).expect(200);
    assert_eq!(server.stop(), Some(0));
    let pipe = server.data().join("held");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it is installed").success());
    server.fails_at = "wait change/waiting".to_owned();
    server.fails_until = Some(pipe.clone());
    server.begin();
    let kept = snapshot_files(&server);
    // As the other process does.
    let lock = server.data().join("changing").join(sandbox.rsplit('/').next().expect("its id"));
    let locked = File::create(&lock).expect("ours");
    flock(&locked, FlockOperation::NonBlockingLockExclusive).expect("nobody has it");
    std::thread::scope(|scope| {
        let resumed = scope.spawn(|| {
            let answer = server.post(&format!("{sandbox}/resume"), &json!({}));
            if lock.exists() {
                // It did not wait for the other process. Without this, the check below would wait too.
                std::fs::write(&pipe, "answered").expect("ours");
            }
            answer
        });
        assert_eq!(std::fs::read_to_string(&pipe).expect("ours"), "reached", "it waits for the lock");
        assert_eq!((snapshot_files(&server), supervisors(&server)), (kept, Vec::new()), "nothing has changed");
        std::fs::remove_file(&lock).expect("ours");
        drop(locked);
        std::fs::write(&pipe, "go on").expect("the server reads it");
        resumed.join().expect("it answers").expect(200);
    });
    assert_eq!(stdout(&server.sh(&sandbox, "cat ~/file")), "there\n");
}

#[test]
fn a_resting_sandbox_whose_files_cannot_be_read_now_has_not_ended() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox_with(&json!({ "ttl": "10m" }));
    server.sh(&sandbox, "echo there > ~/file");
    server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).expect(200);
    let projects = std::fs::read_dir(server.data().join("templates")).expect("it is there").flatten();
    let files = projects.filter_map(|project| std::fs::read_dir(project.path().join("snapshots")).ok());
    let mut records = files.flatten().flatten().map(|file| file.path());
    let record = records.find(|path| path.extension().is_some_and(|end| end == "json")).expect("it has one");
    let whole = std::fs::read(&record).expect("ours");
    std::fs::write(&record, "damaged").expect("ours");
    assert_ne!(server.post(&format!("{sandbox}/resume"), &json!({})).status, 200);
    let told = server.get(&sandbox).expect(200);
    assert_eq!((&told["state"], &told["paused"]), (&json!("paused"), &paused(false, true)));
    std::fs::write(&record, whole).expect("ours");
    server.post(&format!("{sandbox}/resume"), &json!({})).expect(200);
    assert_eq!(stdout(&server.sh(&sandbox, "cat ~/file")), "there\n");
}

#[test]
fn a_sandbox_that_rested_while_its_server_was_started_again_knows_the_user_of_its_template() {
    if !is_root() {
        return not_here("only root has several users inside");
    }
    let mut server = Server::start_with(&["--public-templates", "mine", "--pool-max", "0"]);
    Image::in_project(&server.data(), "local")
        .system()
        .layer(|top| top.write("etc/passwd", "app:x:1234:2345::/srv/app:/bin/sh\n"))
        .with(|defaults| defaults.user = Some("app".to_owned()))
        .named("mine");
    let sandbox = server.sandbox_with(&json!({ "template": "mine", "ttl": "10m" }));
    server.sh(&sandbox, "true");
    server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).expect(200);
    assert_eq!(server.stop(), Some(0));
    server.begin();
    server.post(&format!("{sandbox}/resume"), &json!({})).expect(200);
    // Relative paths begin in the user's home, which only the template says.
    let written = server.put(&format!("{sandbox}/files?path=by-default"), b"x");
    assert!(written.status < 300, "{}", written.text());
    assert_eq!(as_root(&server, &sandbox, "cat /srv/app/by-default"), "x");
}

#[test]
fn a_server_that_is_killed_while_a_sandbox_goes_to_rest_at_its_deadline_tries_again() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox_with(&json!({ "ttl": "1h", "on_timeout": "rest" }));
    server.sh(&sandbox, "echo there > ~/file");
    for point in ["snapshot/begun", "rest/kept"] {
        assert_eq!(server.stop(), Some(0));
        server.fails_at = format!("kill {point}");
        server.begin();
        server.post(&format!("{sandbox}/timeout"), &json!({ "ttl": "1ms" })).expect(200);
        assert_eq!(server.ended().signal(), Some(9), "{point}");
        server.fails_at.clear();
        server.begin();
        eventually("it rests", || server.get(&sandbox).expect(200)["paused"] == paused(false, true));
        server.post(&format!("{sandbox}/resume"), &json!({ "ttl": "1h" })).expect(200);
        assert_eq!(stdout(&server.sh(&sandbox, "cat ~/file")), "there\n", "{point}");
    }
}
