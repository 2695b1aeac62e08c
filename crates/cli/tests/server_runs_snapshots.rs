//! Runs whose files are kept: forks with files, a sandbox that is lost, the way back, and kills of the server in the middle.

mod http;
mod runs;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use http::{Server, eventually, pause_for};
use runs::ledger::Ledger;
use runs::rounds::{Dice, rounds};
use runs::{
    agent_with, begin, events, first_process_of, gated, http, journal, kill_now, results, said, shell, show,
    supervisor_of, until_completed, until_gated, until_state,
};
use serde_json::{Value, json};

/// An agent with snapshots.
fn keeping(snapshots: Value, turns: Value) -> Value {
    let mut agent = agent_with(json!({}), turns);
    agent["agent"]["snapshots"] = snapshots;
    agent
}

fn ask() -> Value {
    json!({ "tool": "ask_human", "arguments": { "question": "Go on?" } })
}

/// The snapshots that the project has, by the steps that took them.
fn snapshots(server: &Server) -> Vec<Value> {
    let list = server.get("/api/v1/snapshots").expect(200);
    list["items"].as_array().expect("a list").iter().map(|snapshot| snapshot["of_run"]["step"].clone()).collect()
}

fn fork(server: &Server, run: &str, at_step: u64) -> Value {
    server.post(&format!("/api/v1/runs/{run}/fork"), &json!({ "at_step": at_step })).expect(201)
}

/// What the last program of a run printed.
fn printed(server: &Server, run: &str) -> String {
    until_completed(server, run);
    let given = results(server, run);
    said(given.last().expect("there is one"))["stdout"].as_str().expect("a text").to_owned()
}

#[test]
fn a_fork_has_the_files_of_its_step_and_says_what_they_lack() {
    let server = Server::start_with(&["--pool-max", "0"]);
    // 1 model, 2 one, 3 snapshot, 4 two, 5 snapshot, 6 model, 7 cat, 8 snapshot, 9 model.
    let calls = json!([shell("echo one > /tmp/f"), shell("echo two > /tmp/f")]);
    let turns = json!([{ "calls": calls }, { "calls": [shell("cat /tmp/f")] }, { "text": "finished" }]);
    let run = begin(&server, &keeping(json!({ "every": 1 }), turns));
    assert_eq!(printed(&server, &run), "two\n");
    let settled = events(&server, &run, "step_settled");
    let kept: Vec<_> = settled.iter().filter(|entry| entry["result"] == "kept").collect();
    let shown = show(&server, &run);
    let named: Vec<_> = shown["files"]["snapshots"].as_array().expect("a list").iter().collect();
    let pair = |step: &Value, id: &Value| (step.clone(), id.clone());
    assert_eq!(
        kept.iter().map(|entry| pair(&entry["step"], &entry["snapshot"])).collect::<Vec<_>>(),
        named.iter().map(|kept| pair(&kept["step"], &kept["id"])).collect::<Vec<_>>(),
        "an entry names each, and the run shows it"
    );
    assert_eq!(snapshots(&server), [3, 5, 8], "and no other is there");

    let whole = fork(&server, &run, 5);
    assert_eq!(whole["files"]["restored"]["snapshot"]["step"], 5, "{whole}");
    assert_eq!(whole["files"]["restored"]["older_from_step"], Value::Null, "{whole}");
    assert_eq!(printed(&server, whole["id"].as_str().unwrap_or_default()), "two\n");

    let older = fork(&server, &run, 4);
    let older = older["id"].as_str().expect("it has an id");
    let begun = &events(&server, older, "forked")[0];
    assert_eq!((&begun["is_logical_only"], &begun["files"]["from"]["step"]), (&json!(false), &json!(3)), "{begun}");
    assert_eq!(begun["files"]["older_from"], 4, "{begun}");
    assert_eq!(printed(&server, older), "one\n", "the files are those of the snapshot");
    assert_eq!(show(&server, older)["files"]["restored"]["older_from_step"], 4);

    let empty = fork(&server, &run, 1);
    let begun = &events(&server, empty["id"].as_str().unwrap_or_default(), "forked")[0];
    assert_eq!((&begun["is_logical_only"], &begun["files"]), (&json!(true), &Value::Null), "no snapshot was before it");
    let report = server.get(&format!("/api/v1/runs/{older}/replay")).expect(200);
    assert_eq!(report["divergence"], Value::Null);
}

#[test]
fn snapshots_are_removed_with_the_last_run_that_needs_them() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let turns = json!([{ "calls": [shell("echo one > /tmp/f")] }, { "text": "finished" }, { "text": "once more" }]);
    let run = begin(&server, &keeping(json!({ "at_end": true }), turns));
    until_completed(&server, &run);
    let id = show(&server, &run)["files"]["snapshots"][0]["id"].as_str().expect("an id").to_owned();
    let refused = server.delete(&format!("/api/v1/snapshots/{id}"));
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains(&run), "{}", refused.text());
    let copy = fork(&server, &run, 4)["id"].as_str().expect("an id").to_owned();
    until_completed(&server, &copy);
    for run in [&copy, &run] {
        // Its sandbox may be about to be ended.
        eventually("the run is removed", || server.delete(&format!("/api/v1/runs/{run}")).status == 204);
    }
    eventually("no snapshot is left", || snapshots(&server).is_empty());
}

#[test]
fn a_run_whose_sandbox_is_lost_goes_on_with_the_files_of_its_last_snapshot() {
    let server = Server::start_with(&["--pool-max", "0"]);
    // 1 model, 2 one, 3 snapshot, 4 gated, 5 snapshot (fails), 6 cat, 7 snapshot, 8 cat.
    let calls = json!([shell("echo one > /tmp/f"), gated(), shell("cat /tmp/f"), shell("cat /tmp/f; ls /tmp/ledger")]);
    let run = begin(&server, &keeping(json!({ "every": 1 }), json!([{ "calls": calls }, { "text": "finished" }])));
    let sandbox = until_gated(&server);
    kill_now(first_process_of(supervisor_of(&server, &sandbox)));
    until_completed(&server, &run);
    let given = results(&server, &run);
    let lost = &given[2];
    assert!(
        lost.contains("with its files as they were at step 3") && lost.contains("since step 4 are gone"),
        "{given:?}"
    );
    assert_eq!(said(&given[3])["stdout"], "one\n", "and not what the lost step had written");
    let failed: Vec<_> = events(&server, &run, "step_settled").into_iter().filter(|entry| entry["step"] == 5).collect();
    assert_eq!(failed[0]["result"]["gave_up"]["code"], "snapshot_failed", "it is recorded: {failed:?}");
    let restored = &show(&server, &run)["files"]["restored"];
    assert_eq!((&restored["snapshot"]["step"], &restored["older_from_step"]), (&json!(3), &json!(4)), "{restored}");
    let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!(report["divergence"], Value::Null);
}

#[test]
fn a_run_goes_back_with_its_files_while_it_is_under_way() {
    let ledger = Ledger::start();
    let server = Server::start_with(&["--pool-max", "0", "--http-allowed", &ledger.url]);
    // 1 model, 2 one, 3 snapshot, 4 two, 5 snapshot, 6 call, 7 question.
    let calls = json!([shell("echo one >> /tmp/f"), shell("echo two >> /tmp/f"), http(&ledger.url, 1), ask()]);
    let turns = json!([{ "calls": calls }, { "calls": [shell("cat /tmp/f")] }, { "text": "finished" }]);
    let mut agent = keeping(json!({ "every": 1 }), turns);
    agent["agent"]["tools"]["http"] = json!({ "class": "once" });
    let run = begin(&server, &agent);
    let before = until_state(&server, &run, "asking");
    let back = |at: u64| server.post(&format!("/api/v1/runs/{run}/rollback"), &json!({ "at_step": at }));
    let back_from = |generation: u32, at: u64| {
        let asked = json!({ "at_step": at, "generation": generation });
        server.post(&format!("/api/v1/runs/{run}/rollback"), &asked)
    };
    let refused = back(2);
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains("no snapshot"), "{}", refused.text());

    let told = back_from(0, 3).expect(202);
    // The same request again, whether the first was read or not.
    assert_eq!(back_from(0, 3).expect(202), told);
    assert_eq!(
        (&told["files"]["snapshot"]["step"], &told["files"]["older_from_step"]),
        (&json!(3), &Value::Null),
        "{told}"
    );
    let stays: Vec<_> = told["stays_done"].as_array().expect("a list").iter().map(|call| &call["tool"]).collect();
    assert_eq!(stays, ["shell", "http"], "{told}");
    assert_eq!(told["stays_done"][1]["class"], "once");
    eventually("it asks again", || {
        let now = show(&server, &run);
        now["generation"] == 1 && now["state"] == "asking"
    });
    assert_eq!(back_from(0, 3).expect(202), told);
    let refused = back_from(0, 5);
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains("no longer at generation 0"), "{}", refused.text());
    assert_eq!(events(&server, &run, "rolled_back").len(), 1, "it went back once");
    let now = show(&server, &run);
    assert_ne!(now["sandbox_id"], before["sandbox_id"]);
    let old = format!("/api/v1/sandboxes/{}", before["sandbox_id"].as_str().unwrap_or_default());
    assert_eq!(server.get(&old).expect(200)["state"], "ended", "nothing of what was undone runs on");
    let question = now["question"]["id"].as_u64().expect("it asks");
    let answer = json!({ "name": "answer", "body": "yes", "question": question });
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/signal"), &answer).status, 202);
    assert_eq!(printed(&server, &run), "one\ntwo\n", "`two` once: its first was taken back with the files");
    let asked = ledger.asked();
    let keys: Vec<_> = asked.keys().filter(|key| key.starts_with(&run)).collect();
    assert!(keys.len() == 2 && keys[0].contains("/0/") && keys[1].contains("/1/"), "a key of its own: {keys:?}");
    let refused = back(3);
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains("runs fork"), "{}", refused.text());
    let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!(report["divergence"], Value::Null);
    let fork = fork(&server, &run, 3)["id"].as_str().expect("an id").to_owned();
    let keys = || ledger.asked().keys().filter(|key| key.starts_with(&fork)).count();
    eventually("the fork makes its own call", || keys() == 1);
}

/// Between the steps of going back, and of ending one sandbox and making the next: the server is killed at each.
const POINTS_BACK: [&str; 11] = [
    "run-back/checked",
    "run-back/told",
    "run-back/recorded",
    "kill/begun",
    "kill/dead",
    "end/row",
    "run-back/ended",
    "create/row",
    "create/asked",
    "create/ready",
    "create/running",
];

#[test]
fn a_server_that_is_killed_while_a_run_goes_back_takes_it_there_once_with_its_files() {
    let ledger = Ledger::start();
    let mut server = Server::start_with(&["--pool-max", "0", "--http-allowed", &ledger.url]);
    for point in POINTS_BACK {
        // 1 model, 2 one, 3 snapshot, 4 two, 5 snapshot, 6 call, 7 question.
        let calls = json!([shell("echo one >> /tmp/f"), shell("echo two >> /tmp/f"), http(&ledger.url, 1), ask()]);
        let turns = json!([{ "calls": calls }, { "calls": [shell("cat /tmp/f")] }, { "text": "finished" }]);
        let run = begin(&server, &keeping(json!({ "every": 1 }), turns));
        let before = until_state(&server, &run, "asking");
        assert_eq!(server.stop(), Some(0));
        server.fails_at = format!("kill {point}");
        server.begin();
        post_unanswered(&server, &format!("/api/v1/runs/{run}/rollback"), &json!({ "at_step": 3 }));
        assert_eq!(server.ended().signal(), Some(9), "killed at {point}");
        server.fails_at.clear();
        server.begin();
        if point == "run-back/checked" {
            // Nothing was stored, and its client heard nothing.
            assert_eq!(show(&server, &run)["generation"], 0);
            server.post(&format!("/api/v1/runs/{run}/rollback"), &json!({ "at_step": 3 })).expect(202);
        }
        eventually("it asks again", || {
            let now = show(&server, &run);
            now["generation"] == 1 && now["state"] == "asking"
        });
        let now = show(&server, &run);
        let old = format!("/api/v1/sandboxes/{}", before["sandbox_id"].as_str().unwrap_or_default());
        assert_eq!(server.get(&old).expect(200)["state"], "ended", "{point}");
        let question = now["question"]["id"].as_u64().expect("it asks");
        let answer = json!({ "name": "answer", "body": "yes", "question": question });
        assert_eq!(server.post(&format!("/api/v1/runs/{run}/signal"), &answer).status, 202);
        assert_eq!(printed(&server, &run), "one\ntwo\n", "{point}: `two` once");
        let back = events(&server, &run, "rolled_back");
        assert_eq!(back.len(), 1, "{point}: {back:?}");
        let asked = ledger.asked();
        let keys: Vec<_> = asked.keys().filter(|key| key.starts_with(&run)).collect();
        assert_eq!(keys.len(), 2, "{point}: a key in each generation: {keys:?}");
        let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
        assert_eq!(report["divergence"], Value::Null, "{point}");
    }
    eventually("no sandbox is left", || {
        server.get("/api/v1/sandboxes").expect(200)["items"].as_array().is_some_and(Vec::is_empty)
    });
}

#[test]
fn the_last_snapshot_of_a_run_is_taken_also_if_its_sandbox_rests_alone() {
    let server = Server::start_with(&["--pool-max", "0"]);
    // 1 model, 2 one, 3 question, 4 model, 5 snapshot.
    let calls = json!([shell("echo one > /tmp/f"), ask()]);
    let turns =
        json!([{ "calls": calls }, { "text": "finished" }, { "calls": [shell("cat /tmp/f")] }, { "text": "again" }]);
    let run = begin(&server, &keeping(json!({ "at_end": true }), turns));
    let asking = until_state(&server, &run, "asking");
    let sandbox = format!("/api/v1/sandboxes/{}", asking["sandbox_id"].as_str().expect("it has one"));
    server.post(&format!("{sandbox}/pause"), &json!({ "memory": false })).expect(200);
    let answer = json!({ "name": "answer", "body": "yes", "question": asking["question"]["id"] });
    assert_eq!(server.post(&format!("/api/v1/runs/{run}/signal"), &answer).status, 202);
    until_completed(&server, &run);
    let kept = show(&server, &run)["files"]["snapshots"].clone();
    assert_eq!(kept[0]["step"], 5, "{kept}: {:#?}", journal(&server, &run));
    let copy = server.post("/api/v1/sandboxes", &json!({ "template": kept[0]["id"] })).expect(201);
    let copy = format!("/api/v1/sandboxes/{}", copy["id"].as_str().expect("it has an id"));
    assert_eq!(server.sh(&copy, "cat /tmp/f")["stdout"], "one\n");
}

/// Between the steps of taking a snapshot: the server is killed at each.
const POINTS: [&str; 5] =
    ["snapshot/begun", "snapshot/read", "snapshot/went-on", "snapshot/recorded", "snapshot/named"];
/// How often it is killed beside.
const KILLS: usize = 12;
/// Determines the moments.
const SEED: u64 = 3_344_271_917;
/// Maximum life of a server, in milliseconds.
const LIFE_MS_MAX: u64 = 600;
/// Concurrent runs.
const BUSY: usize = 3;

/// Starts a run on a server that may not live to say so.
fn begin_unanswered(server: &Server, agent: &Value) {
    post_unanswered(server, "/api/v1/runs", agent);
}

fn post_unanswered(server: &Server, path: &str, body: &Value) {
    let headers = [server.authorization(), "Content-Type: application/json".to_owned()];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let mut connection = server.connect();
    http::send(&mut connection, "POST", path, &headers, body.to_string().as_bytes());
    // Cut off, if it was.
    let _ = connection.read_to_end(&mut Vec::new());
}

/// The step of a round's call. The first step is the model's; a round writes a file, runs a program, each with a snapshot after it, and calls.
fn call_in(round: u64) -> u64 {
    6 + 5 * round
}

/// The newest snapshots that a run has committed: what is in each is what the run had written by then.
fn check_files(server: &Server, run: &str, most: usize) {
    let files = show(server, run)["files"]["snapshots"].clone();
    for kept in files.as_array().into_iter().flatten().rev().take(most) {
        let step = kept["step"].as_u64().expect("a number");
        let (round, after) = ((step - 2) / 5, (step - 2) % 5);
        let programs = if after == 3 { round + 1 } else { round };
        let lines: String = (0..programs).map(|word| format!("word {word}\n")).collect();
        let expected = format!("{lines}word {}", round.min(3));
        let copy = server.post("/api/v1/sandboxes", &json!({ "template": kept["id"] })).expect(201);
        let copy = format!("/api/v1/sandboxes/{}", copy["id"].as_str().expect("it has an id"));
        let there = server.sh(&copy, "[ ! -e /tmp/ledger ] || cat /tmp/ledger; cat /tmp/word");
        assert_eq!(there["stdout"], expected, "{run} at {step}: {:#?}", journal(server, run));
        assert_eq!(server.delete(&copy).status, 200);
    }
}

#[test]
fn kills_of_the_server_lose_no_snapshot_take_none_twice_and_leave_none_over() {
    let ledger = Ledger::start();
    let mut server = Server::start_with(&["--pool-max", "0", "--http-allowed", &ledger.url]);
    let agent = || keeping(json!({ "every": 1, "at_end": true }), rounds(&ledger.url));
    let mut dice = Dice::new(SEED);
    let mut begun: Vec<String> = Vec::new();
    for _ in 0..KILLS {
        let busy = begun.iter().filter(|run| show(&server, run)["state"] != "finished").count();
        begun.extend((busy..BUSY).map(|_| begin(&server, &agent())));
        pause_for(Duration::from_millis(dice.below(LIFE_MS_MAX)));
        server.kill();
        server.begin();
        for run in &begun {
            check_files(&server, run, 1);
        }
    }
    for point in POINTS {
        server.kill();
        server.fails_at = format!("kill {point}");
        server.begin();
        begin_unanswered(&server, &agent());
        assert_eq!(server.ended().signal(), Some(9), "killed at {point}");
        server.fails_at.clear();
        server.begin();
    }
    let list = server.get("/api/v1/runs").expect(200);
    let ids = list["items"].as_array().expect("a list").iter();
    let begun: Vec<String> = ids.map(|run| run["id"].as_str().expect("an id").to_owned()).collect();
    assert!(begun.len() > BUSY, "{list}");
    for run in &begun {
        until_completed(&server, run);
        let given = results(&server, run);
        let lines = said(given.last().expect("there is one"))["stdout"].as_str().expect("a text").to_owned();
        assert_eq!(lines, "word 0\nword 1\nword 2\nword 3\n", "each once: {:#?}", journal(&server, run));
        check_files(&server, run, usize::MAX);
        let asked = ledger.asked();
        let keys: Vec<&String> = asked.keys().filter(|key| key.starts_with(run.as_str())).collect();
        let own: Vec<String> = (0..4).map(|round| format!("{run}/0/{}", call_in(round))).collect();
        assert!(keys.len() == own.len() && own.iter().all(|key| ledger.has(key)), "each call by its own key: {keys:?}");
        let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
        assert_eq!(report["divergence"], Value::Null, "{run}");
    }
    // What the runs name is there, and nothing else once the server has looked.
    let named = || -> Vec<String> {
        let of = |run: &String| show(&server, run)["files"]["snapshots"].as_array().cloned().unwrap_or_default();
        let ids = begun.iter().flat_map(of);
        let mut ids: Vec<String> = ids.map(|kept| kept["id"].as_str().unwrap_or_default().to_owned()).collect();
        ids.sort();
        ids
    };
    let there = || -> Vec<String> {
        let list = server.get("/api/v1/snapshots").expect(200);
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let mut ids: Vec<String> =
            items.iter().map(|kept| kept["id"].as_str().unwrap_or_default().to_owned()).collect();
        ids.sort();
        ids
    };
    eventually("only what runs name is left", || named() == there());
    // The files of a step are those that the run had there.
    let run = &begun[0];
    let settled = events(&server, run, "step_settled");
    let word = settled.iter().filter(|entry| entry["result"] == "kept").nth(1).expect("one after the first line");
    let copy = fork(&server, run, word["step"].as_u64().expect("a number"));
    let copy = copy["id"].as_str().expect("an id");
    until_completed(&server, copy);
    let lines =
        said(results(&server, copy).last().expect("there is one"))["stdout"].as_str().unwrap_or_default().to_owned();
    assert_eq!(lines, "word 0\nword 1\nword 2\nword 3\n", "the fork went on from one line");
}
