//! Runs that go on with the files of earlier runs (`sandbox.reuse`): which get them, which don't, and kills of the server in between.

mod http;
mod runs;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;

use http::{Server, eventually};
use runs::{
    agent_with, begin, first_process_of, gated, kill_now, results, said, shell, show, supervisor_of, until_completed,
    until_gated, until_state,
};
use serde_json::{Value, json};

/// An agent whose runs go on with the files of earlier ones.
fn reusing(calls: Value) -> Value {
    let mut agent = agent_with(json!({}), json!([{ "calls": calls }, { "text": "finished" }]));
    agent["agent"]["sandbox"] = json!({ "reuse": true });
    agent
}

/// Adds a line to a file that stays, and prints it.
fn adding(line: &str) -> Value {
    reusing(json!([shell(&format!("echo {line} >> /tmp/lines; cat /tmp/lines"))]))
}

/// What a run's first program printed.
fn printed(server: &Server, run: &str) -> String {
    until_completed(server, run);
    let given = results(server, run);
    said(given.first().expect("there is one"))["stdout"].as_str().expect("a text").to_owned()
}

fn add(server: &Server, agent: &Value) -> (String, String) {
    let run = begin(server, agent);
    let printed = printed(server, &run);
    (run, printed)
}

fn sandbox_of(server: &Server, run: &str) -> Value {
    let id = show(server, run)["sandbox_id"].as_str().expect("it has one").to_owned();
    server.get(&format!("/api/v1/sandboxes/{id}")).expect(200)
}

#[test]
fn a_run_begins_with_the_files_of_the_last_one_of_its_agent_and_with_nothing_else_of_it() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let left = "sleep 1000 & echo $$ > /tmp/pid; echo one >> /tmp/lines; echo $HOSTNAME";
    let (first, _) = add(&server, &reusing(json!([shell(left)])));
    let looks = "cat /tmp/lines; ps -e | grep -c sleep; echo two >> /tmp/lines";
    let (second, found) = add(&server, &reusing(json!([shell(looks)])));
    assert_eq!(found, "one\n0\n", "its file is there, and its program isn't");
    let began = &show(&server, &second)["began_with"];
    assert_eq!(began["run_id"], json!(first));
    assert_eq!(show(&server, &first).get("began_with"), None, "nobody was before it");
    let (old, new) = (sandbox_of(&server, &first), sandbox_of(&server, &second));
    assert_ne!(old["id"], new["id"], "with its tokens and placeholders, which are made of its id");
    assert_eq!(new["labels"]["files_of"], json!(first), "{new}");
    assert_eq!(new["labels"]["run"], json!(second), "{new}");
    assert_eq!(old["labels"].get("files_of"), None, "{old}");
    eventually("nothing runs on", || sandbox_of(&server, &first)["state"] == "ended");

    // No other run gets the same files.
    let mut other = adding("x");
    other["agent"]["name"] = json!("other");
    assert_eq!(add(&server, &other).1, "x\n", "another agent");
    let mut other = adding("x");
    other["agent"]["sandbox"]["limits"] = json!({ "pids": 99 });
    assert_eq!(add(&server, &other).1, "x\n", "another sandbox");
    let mut other = adding("x");
    other["agent"]["sandbox"] = json!({});
    assert_eq!(add(&server, &other).1, "x\n", "it wants none");
    let (third, found) = add(&server, &adding("three"));
    assert_eq!(found, "one\ntwo\nthree\n");
    assert_eq!(show(&server, &third)["began_with"]["run_id"], json!(second));
}

#[test]
fn files_are_never_two_runs_at_once() {
    let server = Server::start_with(&["--pool-max", "0"]);
    add(&server, &adding("one"));
    until_idle(&server);
    let holder = begin(&server, &reusing(json!([gated(), shell("cat /tmp/lines")])));
    let held = until_gated(&server);
    let (_, found) = add(&server, &adding("two"));
    assert_eq!(found, "two\n", "they are in use");
    server.sh(&held, "touch /tmp/go");
    until_completed(&server, &holder);
    assert_eq!(said(&results(&server, &holder)[1])["stdout"], "one\n");
    // Both have left theirs, and each is taken once.
    until_idle(&server);
    let begun: Vec<String> = (0..4).map(|_| begin(&server, &adding("three"))).collect();
    let mut found: Vec<String> = begun.iter().map(|run| printed(&server, run)).collect();
    found.sort();
    let (before, after): (Vec<_>, Vec<_>) = found.iter().partition(|lines| lines.starts_with("three"));
    // Those that come late may go on with what the first of these four have left.
    assert!(after.iter().any(|lines| lines.starts_with("one\nthree\n")), "{before:?} {after:?}");
    assert!(after.iter().any(|lines| lines.starts_with("two\nthree\n")), "{before:?} {after:?}");
    let from: Vec<Value> = begun.iter().map(|run| show(&server, run)["began_with"]["snapshot_id"].clone()).collect();
    let taken: Vec<&Value> = from.iter().filter(|from| !from.is_null()).collect();
    let different: BTreeSet<String> = taken.iter().map(ToString::to_string).collect();
    assert_eq!(taken.len(), different.len(), "{from:?}");
}

#[test]
fn a_run_that_ends_in_doubt_leaves_no_files() {
    let server = Server::start_with(&["--pool-max", "0"]);
    // It was cancelled.
    let run = begin(&server, &reusing(json!([shell("echo bad > /tmp/lines"), gated()])));
    until_gated(&server);
    server.post(&format!("/api/v1/runs/{run}/cancel"), &json!({}));
    until_state(&server, &run, "finished");
    assert_eq!(add(&server, &adding("one")).1, "one\n", "a cancelled run's");
    until_idle(&server);
    // Its sandbox was lost. It had taken these files, so no later run gets them.
    let run = begin(&server, &reusing(json!([gated(), shell("cat /tmp/lines"), shell("cat /tmp/lines")])));
    let sandbox = until_gated(&server);
    kill_now(first_process_of(supervisor_of(&server, &sandbox)));
    until_completed(&server, &run);
    let given = results(&server, &run);
    assert!(given[1].contains("with its files as they were at step 0"), "{given:?}");
    assert_eq!(said(&given[2])["stdout"], "one\n", "it begins again with what it began with");
    assert_eq!(add(&server, &adding("two")).1, "two\n", "a lost sandbox's");
    // It was rolled back.
    let ask = json!({ "tool": "ask_human", "arguments": { "question": "Go on?" } });
    let run = begin(&server, &reusing(json!([ask, shell("cat /tmp/lines; echo bad >> /tmp/lines")])));
    until_state(&server, &run, "asking");
    server.post(&format!("/api/v1/runs/{run}/rollback"), &json!({ "at_step": 0 })).expect(202);
    eventually("it asks again", || {
        let now = show(&server, &run);
        now["generation"] == 1 && now["state"] == "asking"
    });
    let question = show(&server, &run)["question"]["id"].as_u64().expect("it asks");
    let answer = json!({ "name": "answer", "body": "yes", "question": question });
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/signal"), &answer).status, 202);
    until_completed(&server, &run);
    let (last, found) = add(&server, &adding("three"));
    assert_eq!(found, "two\nthree\n", "the last run that ended well left them, and the one that went back took none");
    // A fork has the files of its parent's snapshots, of which there are none.
    let fork = server.post(&format!("/api/v1/runs/{last}/fork"), &json!({ "at_step": 1 })).expect(201);
    let fork = fork["id"].as_str().expect("an id");
    assert_eq!(printed(&server, fork), "three\n");
    assert_eq!(add(&server, &adding("four")).1, "two\nthree\nfour\n", "and leaves none");
}

#[test]
fn a_directory_of_the_host_is_refused_with_the_reason() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let mut agent = adding("one");
    agent["agent"]["sandbox"]["workspace"] = json!("site");
    let refused = server.post("/api/v1/runs", &agent).problem(400, "contradiction");
    assert!(refused.to_string().contains("in no snapshot"), "{refused}");
}

/// Between taking files, using them and leaving them: the server is killed at each.
const POINTS: [&str; 12] = [
    "reuse/taken",
    "create/row",
    "create/ready",
    "create/running",
    "run/finished",
    "reuse/leaving",
    "snapshot/begun",
    "snapshot/recorded",
    "reuse/kept",
    "reuse/left",
    "kill/begun",
    "kill/dead",
];

/// Starts a run on a server that may not live to say so.
fn begin_unanswered(server: &Server, agent: &Value) {
    let headers = [server.authorization(), "Content-Type: application/json".to_owned()];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let mut connection = server.connect();
    http::send(&mut connection, "POST", "/api/v1/runs", &headers, agent.to_string().as_bytes());
    // Cut off, if it was.
    let _ = connection.read_to_end(&mut Vec::new());
}

/// Waits until no run has a sandbox.
fn until_idle(server: &Server) {
    eventually("no sandbox is left", || {
        let list = server.get("/api/v1/sandboxes").expect(200);
        let all = list["items"].as_array().cloned().unwrap_or_default();
        all.iter().all(|sandbox| sandbox["state"] == "ended")
    });
}

/// The runs that took the snapshots which the project has.
fn snapshots(server: &Server) -> Vec<String> {
    let list = server.get("/api/v1/snapshots").expect(200);
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|kept| kept["of_run"]["run_id"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn kills_of_the_server_hand_files_to_one_run_and_leave_nothing_over() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let (mut last, _) = add(&server, &adding("0"));
    let mut lines = "0\n".to_owned();
    for (number, point) in (1..).zip(POINTS) {
        server.kill();
        server.fails_at = format!("kill {point}");
        server.begin();
        let agent = adding(&number.to_string());
        begin_unanswered(&server, &agent);
        assert_eq!(server.ended().signal(), Some(9), "killed at {point}");
        server.fails_at.clear();
        server.begin();
        let list = server.get("/api/v1/runs").expect(200);
        let newest = list["items"][0]["id"].as_str().expect("an id").to_owned();
        // The server may have been killed for the run before, which it was about to let go of.
        let run = if newest == last { begin(&server, &agent) } else { newest };
        lines += &format!("{number}\n");
        assert_eq!(printed(&server, &run), lines, "killed at {point}: what was left is there once");
        assert_eq!(show(&server, &run)["began_with"]["run_id"], json!(last), "killed at {point}");
        last = run;
    }
    until_idle(&server);
    eventually("only the last one's files are left", || snapshots(&server) == [last.clone()]);
}
