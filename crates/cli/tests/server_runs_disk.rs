//! Runs on a full disk and on a read-only disk: real, small ones, in their own mount namespace. Runs in a store that another
//! SQLite program has locked or changed.

mod http;
mod runs;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http::{Server, eventually, new_directory, pause_for};
use runs::ledger::{Ledger, result};
use runs::{agent_with, begin, decide, events, http, results, said, shell, show, start, until_completed, until_state};
use serde_json::{Value, json};

/// Size of the disk.
const SIZE: &str = "size=12m";
/// Longer than a worker may keep its runs without renewing its lease.
const PAST_A_LEASE: Duration = Duration::from_secs(6);

/// A disk mounted at a directory that is visible only in its namespace.
struct SmallDisk {
    keeper: Child,
    directory: PathBuf,
}

impl SmallDisk {
    fn mount() -> Self {
        let directory = new_directory();
        let script = format!("mount -t tmpfs -o {SIZE},mode=700 none \"$1\" && echo mounted && exec cat");
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(&directory);
        // It ends, and the disk with it, when its stdin is closed.
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut keeper = spawned.expect("needs `unshare`");
        let mut line = String::new();
        let stdout = keeper.stdout.take().expect("it has a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a pipe of ours");
        assert_eq!(line, "mounted\n", "needs `unshare --mount`");
        Self { keeper, directory }
    }

    fn server(&self, flags: &[&str]) -> Server {
        Server::start_within(self.keeper.id(), self.directory.clone(), flags)
    }

    /// The disk, as seen from here.
    fn seen(&self, name: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.keeper.id()))
            .join(self.directory.strip_prefix("/").expect("absolute"))
            .join(name)
    }

    /// Fills the disk.
    fn fill(&self) {
        let mut ballast = File::create(self.seen("ballast")).expect("there is room yet");
        while ballast.write_all(&[1; 4096]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.seen("ballast")).expect("it is there");
    }

    fn remount(&self, how: &str) {
        let mut command = http::within(self.keeper.id(), "mount");
        let status = command.args(["-o", &format!("remount,{how}")]).arg(&self.directory).status();
        assert!(status.expect("needs `nsenter`").success(), "remount,{how}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // A failed test has said why.
        let _ = self.keeper.wait();
        // The directory below the disk.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Two calls in sequence: the second starts only when the first one's outcome is recorded.
fn turns(ledger: &Ledger) -> Value {
    let calls =
        [http(&ledger.url, 1), http(&ledger.url, 2), shell("echo done >> /tmp/ledger"), shell("cat /tmp/ledger")];
    json!([{ "calls": calls }, { "text": "finished" }])
}

fn check_end(server: &Server, run: &str) {
    until_completed(server, run);
    let given = results(server, run);
    assert_eq!(given[..2], [2, 3].map(|step| result(&format!("{run}/0/{step}"))));
    assert_eq!(said(&given[3])["stdout"], "done\n", "{given:?}");
}

#[test]
fn a_full_disk_loses_nothing_and_runs_go_on_by_themselves_when_there_is_room() {
    let ledger = Ledger::start();
    let disk = SmallDisk::mount();
    let server = disk.server(&["--pool-max", "0", "--http-allowed", &ledger.url]);
    ledger.hold(true);
    let mut begun = vec![start(&server, turns(&ledger))];
    let once = json!({ "http": { "class": "once" } });
    let parks = begin(&server, &agent_with(once, turns(&ledger)));
    eventually("both are in the middle of a call", || ledger.asked().len() == 2);
    disk.fill();
    eventually("no run is begun any more", || {
        let answer = server.post("/api/v1/runs", &runs::agent(turns(&ledger)));
        if answer.status == 201 {
            begun.push(answer.expect(201)["id"].as_str().expect("it has an id").to_owned());
            return false;
        }
        answer.problem(507, "data_directory");
        true
    });
    let signal = json!({ "name": "note", "body": "x".repeat(8192) });
    server.post(&format!("/api/v1/runs/{parks}/signal"), &signal).problem(507, "data_directory");
    assert_eq!(show(&server, &parks)["state"], "running", "what is there can be read");
    // The outcomes can't be recorded for longer than the worker may keep its runs.
    ledger.hold(false);
    pause_for(PAST_A_LEASE);
    assert_eq!(show(&server, &begun[0])["state"], "running");
    disk.free();

    begun.iter().for_each(|run| check_end(&server, run));
    until_state(&server, &parks, "parked");
    assert_eq!(events(&server, &parks, "step_unknown")[0]["step"], 2);
    assert_eq!(ledger.asked()[&format!("{parks}/0/2")], 1, "it was not repeated");
    assert_eq!(ledger.asked().len(), 2 * begun.len() + 1, "{:?}", ledger.asked());
    decide(&server, &parks, 2, &json!({ "decision": "done", "result": "seen" }));
    until_completed(&server, &parks);
}

#[test]
fn on_a_read_only_disk_no_server_starts_and_the_next_one_goes_on() {
    let ledger = Ledger::start();
    let disk = SmallDisk::mount();
    let mut server = disk.server(&["--pool-max", "0", "--http-allowed", &ledger.url]);
    ledger.hold(true);
    let run = start(&server, turns(&ledger));
    eventually("it is in the middle of a call", || ledger.asked().len() == 1);
    server.kill();
    disk.remount("ro");
    let refused = server.command().output().expect("the binary was built");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125), "{told}");
    assert!(told.contains("is not writable") && told.contains("make the data directory writable"), "{told}");
    disk.remount("rw");
    server.begin();
    ledger.hold(false);
    check_end(&server, &run);
    assert_eq!(ledger.asked().len(), 2, "{:?}", ledger.asked());
}

/// Another SQLite program on a server's database. It says `done`, and goes on when its input ends.
fn another_program(server: &Server, statement: &str) -> Child {
    let script = "import sqlite3, sys\n\
        connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)\n\
        connection.execute(sys.argv[2])\n\
        print('done', flush=True)\n\
        sys.stdin.read()";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(server.data().join("saggar.db")).arg(statement);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("needs python3");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a pipe of ours");
    assert_eq!(line, "done\n");
    child
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    assert!(child.wait().expect("a child of ours").success());
}

#[test]
fn while_another_program_keeps_the_store_for_itself_the_answer_is_503_and_then_it_goes_on() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let turns = json!([{ "text": "finished" }]);
    let keeper = another_program(&server, "BEGIN IMMEDIATE");
    let refused = server.post("/api/v1/runs", &runs::agent(turns.clone()));
    assert!(refused.header("retry-after").is_some_and(|value| value.parse::<u64>().is_ok()), "{}", refused.text());
    let problem = refused.problem(503, "unavailable");
    assert_eq!(problem["detail"], "the store is busy", "{problem}");
    assert!(problem["help"].as_str().expect("a text").contains("nothing was done"), "{problem}");
    assert_eq!(server.get("/api/v1/runs").expect(200)["items"], json!([]), "what is there can be read");
    end(keeper);
    until_completed(&server, &start(&server, turns));
}

#[test]
fn whoever_reads_a_damaged_run_is_told_that_it_is_damaged_and_what_to_do() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let run = start(&server, json!([{ "text": "finished" }]));
    until_completed(&server, &run);
    end(another_program(&server, "UPDATE journal SET entry = replace(entry, 'finished', 'flnished')"));
    for what in ["journal", "replay", "export"] {
        let problem = server.get(&format!("/api/v1/runs/{run}/{what}")).problem(409, "run_damaged");
        let (detail, help) = (problem["detail"].as_str().expect("a text"), problem["help"].as_str().expect("a text"));
        assert!(detail.starts_with(&format!("run {run} is damaged: entry ")), "{what}: {problem}");
        assert!(help.contains(&format!("saggar runs cancel {run}")) && help.contains("saggar check"), "{problem}");
    }
    let stream = server.request("GET", &format!("/api/v1/runs/{run}/journal"), &["Accept: text/event-stream"], b"");
    stream.problem(409, "run_damaged");
    assert_eq!(show(&server, &run)["state"], "finished", "the rest of it can be read");
}
