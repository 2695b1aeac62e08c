//! SIGKILL of everything a run depends on, in the middle of its steps: the server, at many moments; the supervisor of
//! its sandbox; the sandbox itself. Judged from outside: by an HTTP service that records every call, and by a file
//! that programs append to.

mod http;
mod runs;

use std::time::Duration;

use http::{Server, pause_for};
use runs::ledger::Ledger;
use runs::rounds::{Dice, check_end, rounds};
use runs::{
    decide, events, first_process_of, gated, kill_now, results, said, shell, show, start, supervisor_of,
    until_completed, until_gated, until_state,
};
use serde_json::json;

/// How often the server is killed.
const KILLS: usize = 20;
/// Determines the moments.
const SEED: u64 = 1_515_626_797;
/// Maximum life of a server, in milliseconds.
const LIFE_MS_MAX: u64 = 500;
/// Concurrent runs.
const BUSY: usize = 3;
#[test]
fn kills_of_the_server_at_many_moments_change_no_end() {
    let ledger = Ledger::start();
    let mut server = Server::start_with(&["--pool-max", "0", "--http-allowed", &ledger.url]);
    let mut dice = Dice::new(SEED);
    let mut begun = Vec::new();
    let mut in_the_middle = 0;
    for _ in 0..KILLS {
        let is_busy = |run: &&String| show(&server, run)["state"] != "finished";
        let busy = begun.iter().filter(is_busy).count();
        begun.extend((busy..BUSY).map(|_| start(&server, rounds(&ledger.url))));
        pause_for(Duration::from_millis(dice.below(LIFE_MS_MAX)));
        in_the_middle += begun.iter().filter(|run| show(&server, run)["state"] == "running").count();
        server.kill();
        server.begin();
    }
    assert!(in_the_middle > KILLS / 2, "{in_the_middle} runs were under way when the server was killed");
    for run in &begun {
        check_end(&server, &ledger, run);
    }
    let ours = |key: &&String| begun.iter().any(|run| key.starts_with(run.as_str()));
    assert!(ledger.asked().keys().all(|key| ours(&key)), "an unacknowledged run made a call");
}

/// A run whose sandbox is killed in the middle of its first program. Returns the server, the run and the sandbox.
fn with_its_sandbox_killed(kill: impl Fn(&Server, &str)) -> (Server, String, String) {
    let server = Server::start_with(&["--pool-max", "0"]);
    let calls = json!([gated(), shell("cat /tmp/ledger"), shell("ls /tmp/ledger || echo it is new")]);
    let run = start(&server, json!([{ "calls": calls }, { "text": "finished" }]));
    let sandbox = until_gated(&server);
    kill(&server, &sandbox);
    (server, run, sandbox.rsplit('/').next().expect("it has an id").to_owned())
}

/// The agent is told once that its sandbox is gone, and gets another.
fn check_replaced(server: &Server, run: &str, sandbox: &str, given: &[String]) {
    assert!(given[0].starts_with(&format!("nothing was done: sandbox {sandbox} has ended")), "{given:?}");
    assert_eq!(said(&given[1])["stdout"], "it is new\n", "nothing ran in the new one before");
    let finished = until_completed(server, run);
    assert_ne!(finished["sandbox_id"], sandbox);
}

#[test]
fn a_step_whose_supervisor_is_killed_parks_and_is_not_done_again() {
    let (server, run, sandbox) = with_its_sandbox_killed(|server, sandbox| kill_now(supervisor_of(server, sandbox)));
    until_state(&server, &run, "parked");
    let unknown = events(&server, &run, "step_unknown");
    assert_eq!(unknown[0]["step"], 2, "{unknown:?}");
    let reason = unknown[0]["reason"].as_str().expect("it has one");
    assert!(reason.contains(&sandbox) && reason.contains("no record"), "{reason}");
    assert_eq!(results(&server, &run), Vec::<String>::new(), "nothing went on");
    // A human decides to retry, and then the agent learns that its sandbox is gone.
    decide(&server, &run, 2, &json!({ "decision": "retry" }));
    until_completed(&server, &run);
    let given = results(&server, &run);
    assert_eq!(given.len(), 3, "{given:?}");
    assert!(given[1].contains("No such file"), "{given:?}");
    check_replaced(&server, &run, &sandbox, &[given[0].clone(), given[2].clone()]);
}

#[test]
fn a_step_whose_sandbox_is_killed_is_told_so_and_the_run_goes_on_in_another() {
    let (server, run, sandbox) = with_its_sandbox_killed(|server, sandbox| {
        kill_now(first_process_of(supervisor_of(server, sandbox)));
    });
    until_completed(&server, &run);
    let given = results(&server, &run);
    assert_eq!(given.len(), 3, "{given:?}");
    // Its supervisor has recorded that the program did not end by itself.
    assert_ne!(said(&given[0])["status"], "exited", "{given:?}");
    check_replaced(&server, &run, &sandbox, &given[1..]);
}
