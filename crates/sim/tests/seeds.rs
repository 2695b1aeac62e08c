//! Seeds, and one fault at every call: whatever goes wrong, every run comes to the end it would have had, and nothing is done twice.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use saggar_sim::{AtCall, FaultPlan, Outcome, Scenario, simulate};

/// Seeds of one test; there are several, so that they share the cores. A failing seed becomes a named case below.
const SEEDS: u64 = 50;

fn run(scenario: Scenario) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(simulate(scenario))
}

fn peaceful(scenario: Scenario) -> Outcome {
    let outcome = run(Scenario { plan: FaultPlan::none(), workers: 1, ..scenario });
    assert_eq!(outcome.violations, Vec::<String>::new(), "without faults, seed {}", scenario.seed);
    outcome
}

fn check(scenario: Scenario, expected: &Outcome) -> Outcome {
    let outcome = run(scenario);
    let tail = || outcome.trace[outcome.trace.len().saturating_sub(60)..].join("\n");
    assert_eq!(outcome.violations, Vec::<String>::new(), "{scenario:?}\n{}", tail());
    assert_eq!(outcome.ends, expected.ends, "{scenario:?}\n{}", tail());
    let once = |outcome: &Outcome| outcome.ledger.keys().cloned().collect::<Vec<_>>();
    assert_eq!(once(&outcome), once(expected), "{scenario:?}: the same effects");
    outcome
}

/// Whatever goes wrong, every run comes to its end and nothing is done twice.
fn check_seeds(first: u64) {
    let seeds = std::env::var("SAGGAR_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    for seed in first..first + seeds {
        let scenario = Scenario { seed, runs: 5, workers: 3, plan: FaultPlan::rough() };
        check(scenario, &peaceful(scenario));
    }
}

#[test]
fn nothing_is_lost_or_done_twice_from_seed_0() {
    check_seeds(0);
}

#[test]
fn nothing_is_lost_or_done_twice_from_seed_10_000() {
    check_seeds(10_000);
}

#[test]
fn nothing_is_lost_or_done_twice_from_seed_20_000() {
    check_seeds(20_000);
}

#[test]
fn nothing_is_lost_or_done_twice_from_seed_30_000() {
    check_seeds(30_000);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1, 77, 4711] {
        let scenario = Scenario { seed, runs: 5, workers: 3, plan: FaultPlan::rough() };
        let (one, other) = (run(scenario), run(scenario));
        assert!(one.trace.len() > 200, "something happened");
        assert_eq!(one.trace, other.trace);
    }
    let other = Scenario { seed: 2, runs: 5, workers: 3, plan: FaultPlan::rough() };
    assert_ne!(run(Scenario { seed: 1, ..other }).trace, run(other).trace);
}

/// Seeds where only the clock is set: what has to wait for it takes long.
const CLOCK_SEEDS: u64 = 12;

/// Waits are durable timers by that clock: they come early or late, and nothing else changes. Leases are judged by it too: they seem to have
/// run out, or to have been given for ever, while their workers live.
#[test]
fn a_clock_that_is_set_forward_and_back_changes_no_end() {
    let mut waits = 0;
    for seed in 0..CLOCK_SEEDS {
        let scenario = Scenario { seed, runs: 5, workers: 3, plan: FaultPlan::clock() };
        let outcome = check(scenario, &peaceful(scenario));
        for direction in ["forward", "back"] {
            let is_far = |line: &&String| line.contains(&format!("the clock is set {direction} by"));
            assert!(outcome.trace.iter().filter(is_far).count() > 5, "{direction}, seed {seed}");
        }
        waits += outcome.ends.values().flatten().filter(|line| line.contains("the time has passed")).count();
    }
    assert!(waits > 20, "{waits} waits came to their end");
}

/// One fault at every call of the store changes nothing.
fn check_every_call(what: AtCall) {
    let scenario = Scenario { seed: 5, runs: 1, workers: 2, plan: FaultPlan::none() };
    let expected = peaceful(scenario);
    let calls = run(scenario).calls;
    assert!(calls > 30, "{calls}");
    for call in 1..=calls {
        check(Scenario { plan: FaultPlan::at_call(call, what), ..scenario }, &expected);
    }
}

#[test]
fn a_failure_before_any_call_changes_nothing() {
    check_every_call(AtCall::FailBefore);
}

#[test]
fn a_failure_after_any_call_changes_nothing() {
    check_every_call(AtCall::FailAfter);
}

#[test]
fn a_kill_before_any_call_changes_nothing() {
    check_every_call(AtCall::KillBefore);
}

#[test]
fn a_kill_after_any_call_changes_nothing() {
    check_every_call(AtCall::KillAfter);
}
