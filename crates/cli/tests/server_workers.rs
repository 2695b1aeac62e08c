//! `saggar worker`: processes that execute runs beside a server whose own worker takes none. One is killed, one is
//! stopped past its lease and continued, one is told to stop. Every run ends as it would have, judged by an outside
//! service that records every call.

mod http;
mod model_standin;
mod runs;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use http::{PATIENCE, Server, command, eventually, pause_for};
use model_standin::serving::{agent, server_with};
use model_standin::{Standin, Turn};
use runs::ledger::{Ledger, result};
use runs::rounds::{Dice, check_end, rounds};
use runs::{
    begin, events, gated, http, journal, results, said, shell, show, start, until_completed, until_gated, until_state,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Workers that must be killed while they create a sandbox, and the maximum number of kills for that: some come too
/// late.
const MAKERS_KILLED: u32 = 3;
const KILLED_MAX: u32 = 30;

/// Kills of workers at arbitrary moments, their seed, the maximum time between two, and the number of concurrent
/// runs.
const KILLS: usize = 15;
const SEED: u64 = 1_515_626_797;
const LIFE_MS_MAX: u64 = 400;
const BUSY: usize = 3;

/// A worker's process; it ends with its test.
struct Worker(Child);

impl Worker {
    fn start(server: &Server, ledger: &Ledger, flags: &[&str]) -> Self {
        let mut command = command(&["worker", "--pool-max", "0", "--log", "warn", "--http-allowed", &ledger.url]);
        command.arg("--data-dir").arg(server.data()).args(flags).stdout(Stdio::null());
        command.env("SAGGAR_SECRETS_KEY_FILE", server.key_file());
        Self(command.spawn().expect("the binary was built"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("our own child");
    }

    /// Tells it to stop, and returns its exit code.
    fn stop(mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        let begun = Instant::now();
        let mut code = None;
        eventually("the worker stops", || {
            let status = self.0.try_wait().expect("our own child");
            code = status.and_then(|status| status.code());
            status.is_some() || begun.elapsed() > PATIENCE
        });
        code
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        // It may have ended already.
        let _ = self.0.wait();
    }
}

/// A server that executes no run itself.
fn server(ledger: &Ledger) -> Server {
    Server::start_with(&["--pool-max", "0", "--runs-max", "0", "--http-allowed", &ledger.url])
}

fn calls(ledger: &Ledger, count: usize) -> Value {
    let calls: Vec<Value> = (0..count).map(|number| http(&ledger.url, number)).collect();
    json!([{ "calls": calls }, { "text": "finished" }])
}

/// Every call once, by the key of its step.
fn check_calls(server: &Server, ledger: &Ledger, run: &str, count: usize) {
    until_completed(server, run);
    let keys: Vec<String> = (2..2 + count).map(|step| format!("{run}/0/{step}")).collect();
    assert_eq!(results(server, run), keys.iter().map(|key| result(key)).collect::<Vec<_>>());
    let asked = ledger.asked();
    let mut of_run: Vec<&String> = asked.keys().filter(|key| key.starts_with(run)).collect();
    of_run.sort_by_key(|key| keys.iter().position(|other| other == *key));
    assert_eq!(of_run, keys.iter().collect::<Vec<_>>());
}

/// Number of requests so far.
fn asked(ledger: &Ledger) -> u64 {
    ledger.asked().values().sum()
}

fn workers_seen(server: &Server) -> usize {
    std::fs::read_dir(server.data().join("workers")).expect("it has one").count()
}

#[test]
fn the_runs_of_a_worker_that_is_killed_go_on_in_another() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    ledger.hold(true);
    let begun: Vec<String> = (0..4).map(|_| start(&server, calls(&ledger, 3))).collect();
    let doomed = Worker::start(&server, &ledger, &["--runs-max", "2"]);
    eventually("it is in the middle of two calls", || asked(&ledger) == 2);
    let other = Worker::start(&server, &ledger, &[]);
    eventually("the other does the rest", || asked(&ledger) == 4);
    doomed.signal(Signal::KILL);
    eventually("the other has taken over, and asks again by the same keys", || asked(&ledger) == 6);
    assert_eq!(ledger.asked().len(), 4, "{:?}", ledger.asked());
    ledger.hold(false);
    for run in &begun {
        check_calls(&server, &ledger, run, 3);
    }
    assert_eq!(other.stop(), Some(0));
}

#[test]
fn a_program_of_a_worker_that_is_killed_is_found_again_by_the_next() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    let doomed = Worker::start(&server, &ledger, &[]);
    let run = start(&server, json!([{ "calls": [gated(), shell("cat /tmp/ledger")] }, { "text": "finished" }]));
    let sandbox = until_gated(&server);
    doomed.signal(Signal::KILL);
    // Told to stop in the middle of the same program, this worker releases it.
    let leaving = Worker::start(&server, &ledger, &["--shutdown-grace", "100ms"]);
    eventually("it is taken over", || events(&server, &run, "step_probed").len() == 1);
    assert_eq!(leaving.stop(), Some(0));
    assert_eq!(show(&server, &run)["state"], "running");
    let last = Worker::start(&server, &ledger, &[]);
    server.sh(&sandbox, "touch /tmp/go");
    until_completed(&server, &run);
    let given = results(&server, &run);
    assert_eq!((&said(&given[0])["stdout"], &said(&given[1])["stdout"]), (&json!("went\n"), &json!("begun\n")));
    assert_eq!(last.stop(), Some(0));
    // Workers that stopped cleanly removed their names, and that of the killed one was removed.
    assert_eq!(workers_seen(&server), 1, "only the server's own is left");
}

#[test]
fn a_sandbox_whose_maker_is_killed_is_taken_up_by_the_next() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    let (mut was_half_made, mut killed) = (0, 0);
    while was_half_made < MAKERS_KILLED {
        let doomed = Worker::start(&server, &ledger, &[]);
        let run = start(&server, json!([{ "calls": [shell("sleep 0.2; echo hello")] }, { "text": "finished" }]));
        // All of it may happen between two polls; then this worker is killed too late, and the next one is tried.
        let state_of_its_sandbox = || {
            let list = server.get("/api/v1/sandboxes").expect(200);
            let is_its_own = |item: &&Value| item["labels"]["run"] == run.as_str();
            list["items"].as_array().and_then(|items| Some(items.iter().find(is_its_own)?["state"].clone()))
        };
        eventually("a sandbox is being made", || {
            state_of_its_sandbox().is_some() || show(&server, &run)["state"] == "finished"
        });
        // Before its supervisor is started, or after, or when it is ready.
        pause_for(Duration::from_millis(u64::from(killed % 4)));
        doomed.signal(Signal::KILL);
        killed += 1;
        assert!(
            killed <= KILLED_MAX,
            "only {was_half_made} of {KILLED_MAX} workers were killed while they made a sandbox"
        );
        was_half_made += u32::from(state_of_its_sandbox().is_some_and(|state| state == "creating"));
        let next = Worker::start(&server, &ledger, &[]);
        until_completed(&server, &run);
        assert_eq!(said(&results(&server, &run)[0])["stdout"], "hello\n", "{:?}", results(&server, &run));
        assert_eq!(next.stop(), Some(0));
    }
}

#[test]
fn kills_of_workers_at_many_moments_change_no_end() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    let mut dice = Dice::new(SEED);
    let mut workers: Vec<Worker> = (0..2).map(|_| Worker::start(&server, &ledger, &[])).collect();
    let mut begun = Vec::new();
    for _ in 0..KILLS {
        let is_busy = |run: &&String| show(&server, run)["state"] != "finished";
        let busy = begun.iter().filter(is_busy).count();
        begun.extend((busy..BUSY).map(|_| start(&server, rounds(&ledger.url))));
        pause_for(Duration::from_millis(dice.below(LIFE_MS_MAX)));
        let victim = &mut workers[dice.below(2) as usize];
        victim.signal(Signal::KILL);
        *victim = Worker::start(&server, &ledger, &[]);
    }
    let taken_over = |run: &String| events(&server, run, "claimed").len() > 1;
    for run in &begun {
        check_end(&server, &ledger, run);
    }
    assert!(begun.iter().any(taken_over), "some worker was killed in the middle of a run");
}

/// The server pauses it without its memory. Its worker must not take that for its end, nor what was kept for what is there later.
#[test]
fn a_sandbox_that_the_server_lets_rest_goes_on_in_its_worker() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    let _worker = Worker::start(&server, &ledger, &[]);
    let ask = || json!({ "tool": "ask_human", "arguments": { "question": "Go on?" } });
    let calls = json!([shell("echo one >> /tmp/f"), ask(), shell("echo two >> /tmp/f"), ask(), shell("cat /tmp/f")]);
    let run = begin(&server, &runs::agent_with(json!({}), json!([{ "calls": calls }, { "text": "finished" }])));
    let mut sandboxes = Vec::new();
    for asked in 0..2 {
        let mut question = Value::Null;
        eventually("it asks", || {
            let now = show(&server, &run);
            let is_next = events(&server, &run, "step_intended").len() == 3 + 2 * asked;
            question = now["question"]["id"].clone();
            is_next && now["state"] == "asking"
        });
        let sandbox = show(&server, &run)["sandbox_id"].as_str().expect("it has one").to_owned();
        server.post(&format!("/api/v1/sandboxes/{sandbox}/pause"), &json!({ "memory": false })).expect(200);
        sandboxes.push(sandbox);
        let answer = json!({ "name": "answer", "body": "yes", "question": question });
        assert_eq!(server.post(&format!("/api/v1/runs/{run}/signal"), &answer).status, 202);
    }
    until_completed(&server, &run);
    let given = results(&server, &run);
    assert_eq!(said(given.last().expect("there is one"))["stdout"], "one\ntwo\n", "{given:?}");
    assert_eq!(sandboxes[0], sandboxes[1], "it is the same one all the time");
}

#[test]
fn a_worker_that_was_stopped_past_its_lease_does_nothing_more() {
    let ledger = Ledger::start();
    let server = server(&ledger);
    ledger.hold(true);
    let once = json!({ "http": { "class": "once" } });
    let stale = Worker::start(&server, &ledger, &[]);
    let run = start(&server, calls(&ledger, 3));
    let parks = begin(&server, &runs::agent_with(once, calls(&ledger, 1)));
    eventually("both are in the middle of a call", || asked(&ledger) == 2);
    stale.signal(Signal::STOP);
    let next = Worker::start(&server, &ledger, &[]);
    until_state(&server, &parks, "parked");
    eventually("another has taken over, and asks again", || asked(&ledger) == 3);
    ledger.hold(false);
    check_calls(&server, &ledger, &run, 3);
    assert_eq!(next.stop(), Some(0));
    let before = [&run, &parks].map(|run| journal(&server, run));
    stale.signal(Signal::CONT);
    // It is alive and continues with its own runs: only it is left to do this.
    let other = start(&server, calls(&ledger, 1));
    check_calls(&server, &ledger, &other, 1);
    assert_eq!([&run, &parks].map(|run| journal(&server, run)), before, "nothing was appended");
    let asked = ledger.asked();
    assert_eq!(asked[&format!("{parks}/0/2")], 1, "nothing was done again");
    assert_eq!(asked.values().sum::<u64>(), 6, "{asked:?}");
    assert_eq!(stale.stop(), Some(0));
}

#[test]
fn a_worker_goes_by_the_settings_of_the_server_and_by_nothing_else() {
    let (ledger, other) = (Ledger::start(), Ledger::start());
    let mut server = server(&ledger);
    let plain = |flags: &[&str]| {
        let mut command = command(&["worker", "--pool-max", "0", "--log", "warn"]);
        command.arg("--data-dir").arg(server.data()).args(flags).stdout(Stdio::null());
        command
    };
    let refused = plain(&["--http-allowed", &other.url]).stderr(Stdio::piped()).output().expect("the binary was built");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("http_allowed (flag --http-allowed)") && said.contains("restart the server"), "{said}");
    // A worker without settings does what the server would do, also after a change.
    let worker = Worker(plain(&[]).spawn().expect("the binary was built"));
    let run = start(&server, calls(&ledger, 2));
    check_calls(&server, &ledger, &run, 2);
    server.stop();
    server.begin_with(&["--pool-max", "0", "--runs-max", "0", "--http-allowed", &other.url]);
    eventually("the worker has heard of it", || {
        let run = start(&server, calls(&other, 1));
        until_completed(&server, &run);
        results(&server, &run)[0].starts_with("done")
    });
    assert_eq!(worker.stop(), Some(0));
}

#[test]
fn followers_at_the_server_see_what_a_model_says_in_a_run_of_a_worker_also_after_either_was_killed() {
    let said = "This takes a while, and everybody sees it coming.";
    let ledger = Ledger::start();
    let standin = Standin::of(vec![Turn::says(said)]);
    let mut server = server_with(&standin, "", &["--runs-max", "0", "--http-allowed", &ledger.url]);
    let mut worker = Worker::start(&server, &ledger, &[]);
    for round in ["both are new", "the server was killed", "the worker was killed"] {
        match round {
            "the server was killed" => {
                server.kill();
                server.begin();
            }
            "the worker was killed" => {
                worker.signal(Signal::KILL);
                worker = Worker::start(&server, &ledger, &[]);
            }
            _ => {}
        }
        standin.hold(true);
        let run = begin(&server, &agent("chat", json!({})));
        standin.until_held(1);
        let mut live = server.follow("GET", &format!("/api/v1/runs/{run}/journal?live=true"), &[], b"");
        standin.hold(false);
        let mut heard = String::new();
        while let Some(event) = live.next() {
            if event.name == "said" && event.data["kind"] == "text" {
                heard += event.data["text"].as_str().expect("a text");
            }
        }
        assert!(!heard.is_empty() && said.ends_with(&heard), "{round}: {heard:?}");
        until_completed(&server, &run);
    }
    assert_eq!(worker.stop(), Some(0));
}
