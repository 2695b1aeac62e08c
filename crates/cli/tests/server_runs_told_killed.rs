//! SIGKILL of the server while it is told something about a run (a raised budget, a pause, a cancel), and while the run sums up its
//! conversation: what was told counts once, and nothing is lost or done twice.

mod http;
mod runs;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;

use http::{Server, eventually};
use runs::ledger::Ledger;
use runs::{agent_with, begin, events, results, shell, show, until_completed, until_state};
use serde_json::{Value, json};

/// Between taking a message and having acted on it: it is in the inbox; it was read; what it decided is in the journal.
const POINTS: [&str; 3] = ["letter/put", "letter/read", "letter/consumed"];

/// Tells a run something. The server may not live to answer.
fn tell_unanswered(server: &Server, path: &str, body: &Value) {
    let headers = [server.authorization(), "Content-Type: application/json".to_owned()];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let mut connection = server.connect();
    http::send(&mut connection, "POST", path, &headers, body.to_string().as_bytes());
    // Cut off, if it was.
    let _ = connection.read_to_end(&mut Vec::new());
}

/// Kills the server at a point while it is told something, and tells it again when it is back, as a client does that got no answer.
fn tell_through_a_kill(server: &mut Server, point: &str, path: &str, body: &Value) {
    server.kill();
    server.fails_at = format!("kill {point}");
    server.begin();
    tell_unanswered(server, path, body);
    assert_eq!(server.ended().signal(), Some(9), "killed at {point}");
    server.fails_at.clear();
    server.begin();
    let again = server.post(path, body);
    // A run that has ended since needs it no more.
    assert!([202, 409].contains(&again.status), "{point}: {} {}", again.status, again.text());
}

fn count(server: &Server, run: &str, kind: &str) -> usize {
    events(server, run, kind).len()
}

fn check_replay(server: &Server, run: &str) {
    let report = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!(report["divergence"], Value::Null);
}

#[test]
fn a_budget_is_raised_once_whenever_the_server_is_killed() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    for point in POINTS {
        let mut agent =
            agent_with(json!({}), json!([{ "calls": [shell("echo 1"), shell("echo 2")] }, { "text": "finished" }]));
        agent["agent"]["budget"] = json!({ "steps": 1 });
        agent["agent"]["on"] = json!({ "budget": "ask" });
        let run = begin(&server, &agent);
        until_state(&server, &run, "parked");
        let path = format!("/api/v1/runs/{run}/budget");
        tell_through_a_kill(&mut server, point, &path, &json!({ "id": "more", "more": { "steps": 1 } }));
        eventually(&format!("{point}: it has gone on by one step, and stops again"), || {
            show(&server, &run)["state"] == "parked" && results(&server, &run).len() == 1
        });
        assert_eq!(count(&server, &run, "budget_raised"), 1, "{point}: once");
        assert_eq!(server.post(&path, &json!({ "id": "rest", "more": { "steps": 2 } })).status, 202);
        eventually(&format!("{point}: it goes on"), || show(&server, &run)["state"] == "finished");
        until_completed(&server, &run);
        assert_eq!(results(&server, &run).len(), 2, "{point}");
        check_replay(&server, &run);
    }
}

#[test]
fn a_pause_and_a_cancel_hold_whenever_the_server_is_killed() {
    let ledger = Ledger::start();
    let mut server = Server::start_with(&["--pool-max", "0", "--http-allowed", &ledger.url]);
    for point in POINTS {
        for what in ["pause", "cancel"] {
            ledger.hold(true);
            let before = ledger.asked().len();
            let calls = json!([runs::http(&ledger.url, 1), runs::http(&ledger.url, 2)]);
            let run = begin(&server, &agent_with(json!({}), json!([{ "calls": calls }, { "text": "finished" }])));
            eventually("it makes its first call", || ledger.asked().len() > before);
            let path = format!("/api/v1/runs/{run}/{what}");
            tell_through_a_kill(&mut server, point, &path, &json!({}));
            ledger.hold(false);
            let keys = || ledger.asked().keys().filter(|key| key.starts_with(&run)).count();
            if what == "cancel" {
                let finished = until_state(&server, &run, "finished");
                assert_eq!(finished["outcome"]["outcome"], "cancelled", "{point}: {finished}");
                assert_eq!(keys(), 1, "{point}: nothing follows a cancel");
            } else {
                // The call was lost with the server: it waits for the resume.
                let paused = until_state(&server, &run, "paused");
                assert_eq!((count(&server, &run, "paused"), keys()), (1, 1), "{point}: {paused}");
                assert_eq!(server.post(&format!("/api/v1/runs/{run}/resume"), &json!({})).status, 202);
                until_completed(&server, &run);
                assert_eq!(keys(), 2, "{point}: each call by its key");
            }
            check_replay(&server, &run);
        }
    }
}

#[test]
fn a_summary_is_part_of_the_conversation_once_whenever_the_server_is_killed() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let line = |number: usize| {
        shell(&format!("echo {number} >> /tmp/lines; head -c 3000 /dev/zero | tr '\\0' x; cat /tmp/lines"))
    };
    let turns: Vec<Value> =
        (0..4).map(|number| json!({ "calls": [line(number)] })).chain([json!({ "text": "finished" })]).collect();
    let mut agent = agent_with(json!({}), json!(turns));
    agent["agent"]["context"] = json!({ "tokens_max": 2000, "keep_tokens": 500 });
    agent["agent"]["model"]["script"]["summary"] = json!("There are lines.");
    let summaries = |server: &Server, run: &str| -> Vec<u64> {
        let intended = events(server, run, "step_intended");
        let of = intended.iter().filter(|entry| entry["effect"]["do"] == "summarize" && entry["attempt"] == 1);
        of.filter_map(|entry| entry["step"].as_u64()).collect()
    };
    let undisturbed = begin(&server, &agent);
    until_completed(&server, &undisturbed);
    let (expected, steps) = (results(&server, &undisturbed), summaries(&server, &undisturbed));
    assert!(!steps.is_empty(), "it sums up");
    for step in &steps {
        for point in [format!("run/open/{step}"), format!("run/reported/{step}")] {
            server.kill();
            server.fails_at = format!("kill {point}");
            server.begin();
            tell_unanswered(&server, "/api/v1/runs", &agent);
            assert_eq!(server.ended().signal(), Some(9), "killed at {point}");
            server.fails_at.clear();
            server.begin();
            let list = server.get("/api/v1/runs").expect(200);
            let run = list["items"][0]["id"].as_str().expect("an id").to_owned();
            until_completed(&server, &run);
            assert_eq!(results(&server, &run), expected, "{point}: each command once");
            assert_eq!(summaries(&server, &run), steps, "{point}: the same summaries");
            let settled = events(&server, &run, "step_settled");
            let times = settled.iter().filter(|entry| entry["step"] == *step).count();
            assert_eq!(times, 1, "{point}: written once");
            check_replay(&server, &run);
        }
    }
}
