//! SIGKILL of a server whose runs have twenty open steps each: calls, programs, child runs and questions. Judged from outside: by a service that records every
//! call, and by a file in each sandbox that programs append to. Nothing is lost, and nothing is done twice.
//!
//! `SAGGAR_OPEN_RUNS` sets the number of runs.

mod http;
mod runs;

use http::{Server, eventually};
use runs::ledger::{Ledger, result};
use runs::{begin, events, journal, results, said, shell, show, until_completed};
use serde_json::{Value, json};

/// Runs in an ordinary test.
const RUNS: usize = 4;
/// Calls of each run with a key: done again under the same.
const KEYED: usize = 12;
/// Programs: the next server asks their supervisor.
const PROGRAMS: usize = 4;
/// Child runs, each with a call of its own.
const CHILDREN: usize = 2;
/// Questions to a person.
const QUESTIONS: usize = 2;
const OPEN: usize = KEYED + PROGRAMS + CHILDREN + QUESTIONS;
/// Calls that arrive at the service, for each run.
const CALLS: usize = KEYED + CHILDREN;
/// How often the server is killed while all of them are open.
const KILLS: usize = 3;

fn runs_wanted() -> usize {
    std::env::var("SAGGAR_OPEN_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS)
}

/// The agent that makes all of these calls at once.
fn agent(ledger: &Ledger) -> Value {
    let keyed = |index| json!({ "tool": "http", "arguments": { "url": ledger.url, "body": index } });
    // It reads one line of a pipe that it holds open itself, so that a line waits until it is read. Waiting costs nothing.
    let program = |index| {
        let wait = "mkfifo /tmp/go 2>/dev/null; exec 3<>/tmp/go";
        shell(&format!("{wait}; echo {index} >> /tmp/ledger; read line <&3; echo went {index}"))
    };
    let child =
        |index| json!({ "tool": "delegate", "arguments": { "task": format!("part {index}"), "agent": "helper" } });
    let question = |index| json!({ "tool": "ask_human", "arguments": { "question": format!("{index}?") } });
    let mut calls: Vec<Value> = (0..KEYED).map(keyed).collect();
    calls.extend((0..PROGRAMS).map(program));
    calls.extend((0..CHILDREN).map(child));
    calls.extend((0..QUESTIONS).map(question));
    let turns = json!([
        { "text": "All at once.", "calls": calls },
        { "calls": [shell("cat /tmp/ledger")] },
        { "text": "finished" },
    ]);
    let model = |turns: Value| json!({ "provider": "scripted", "script": { "turns": turns } });
    let helper = json!([{ "calls": [keyed(0)] }, { "text": "helped" }]);
    json!({ "agent": {
        "name": "tester",
        "task": "test",
        "parallel": OPEN,
        "model": model(turns),
        "tools": { "http": {}, "shell": {}, "delegate": {}, "ask_human": {} },
        "agents": { "helper": { "model": model(helper), "tools": { "http": {} } } },
    } })
}

/// Waits until every step of every run is open, and nothing stands between a program and its end but a line in `/tmp/go`.
fn until_open(server: &Server, begun: &[String]) {
    for run in begun {
        eventually(&format!("{OPEN} steps of {run} are open"), || {
            let shown = show(server, run);
            assert_ne!(shown["state"], "finished", "{shown}");
            shown["open_steps"].as_array().map_or(0, Vec::len) == OPEN
        });
    }
    eventually("all programs run", || {
        let all = sandboxes(server);
        let has_begun = |sandbox: &String| {
            let said = server.sh(sandbox, "cat /tmp/ledger 2>/dev/null; true");
            said["stdout"].as_str().is_some_and(|lines| lines.lines().count() == PROGRAMS)
        };
        all.len() == begun.len() && all.iter().all(has_begun)
    });
}

/// A row names its run's sandbox only after the first program has ended.
fn sandboxes(server: &Server) -> Vec<String> {
    let list = server.get("/api/v1/sandboxes?limit=100").expect(200);
    let running = list["items"].as_array().expect("a list").iter().filter(|sandbox| sandbox["state"] == "running");
    running.map(|sandbox| format!("/api/v1/sandboxes/{}", sandbox["id"].as_str().expect("an id"))).collect()
}

#[test]
fn heavy_a_kill_with_twenty_open_steps_in_every_run_loses_nothing_and_does_nothing_twice() {
    let ledger = Ledger::start();
    let mut server = Server::start_with(&["--pool-max", "0", "--http-allowed", &ledger.url]);
    ledger.hold(true);
    let begun: Vec<String> = (0..runs_wanted()).map(|_| begin(&server, &agent(&ledger))).collect();
    for kill in 0..KILLS {
        until_open(&server, &begun);
        // At first every call has arrived; after that some are on their way.
        if kill == 0 {
            eventually("every call has arrived", || ledger.asked().len() == begun.len() * CALLS);
        }
        server.kill();
        server.begin();
    }
    until_open(&server, &begun);
    ledger.hold(false);
    let lines = "go\\n".repeat(PROGRAMS);
    for sandbox in sandboxes(&server) {
        assert_eq!(server.sh(&sandbox, &format!("printf '{lines}' > /tmp/go"))["exit_code"], 0, "{sandbox}");
    }
    for run in &begun {
        for step in FIRST + KEYED + PROGRAMS + CHILDREN..FIRST + OPEN {
            let answer =
                json!({ "id": step.to_string(), "name": "answer", "question": step, "body": format!("answer {step}") });
            let told = server.post(&format!("/api/v1/runs/{run}/signal"), &answer);
            assert_eq!(told.status, 202, "{}", told.text());
        }
    }
    for run in &begun {
        until_completed(&server, run);
        check(&server, run);
    }
    let asked = ledger.asked();
    assert_eq!(asked.len(), begun.len() * CALLS, "each call by its own key, and by no other");
}

/// The first step is the model's; then come the calls in its order.
const FIRST: usize = 2;

fn check(server: &Server, run: &str) {
    let settled = events(server, run, "step_settled");
    let text_of = |step: usize| {
        let of_step: Vec<&Value> = settled.iter().filter(|entry| entry["step"] == step).collect();
        assert_eq!(of_step.len(), 1, "{run}: step {step} was settled once: {:#?}", journal(server, run));
        let result = &of_step[0]["result"];
        let text =
            result["returned"]["content"]["text"].as_str().or(result["ended"]["outcome"]["answer"]["text"].as_str());
        text.unwrap_or_else(|| panic!("{run}: {result}")).to_owned()
    };
    for index in 0..OPEN {
        let (step, text) = (FIRST + index, text_of(FIRST + index));
        if index < KEYED {
            assert_eq!(text, result(&format!("{run}/0/{step}")), "{run}");
        } else if index < KEYED + PROGRAMS {
            assert_eq!(said(&text)["stdout"], format!("went {}\n", index - KEYED), "{run}");
        } else if index < KEYED + PROGRAMS + CHILDREN {
            assert_eq!(text, "helped", "{run}");
        } else {
            assert_eq!(text, format!("answer {step}"), "{run}");
        }
    }
    let last = results(server, run).pop().expect("the ledger");
    let mut lines: Vec<String> = said(&last)["stdout"].as_str().expect("a text").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, (0..PROGRAMS).map(|index| index.to_string()).collect::<Vec<_>>(), "{run}: each program ran once");
    let replay = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!(replay["divergence"], Value::Null, "{run}");
}
