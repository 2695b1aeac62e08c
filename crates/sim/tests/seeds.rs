//! Random seeds, and one fault at every call: every run ends as it would have without faults, and nothing is done
//! twice.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use saggar_engine::Budget;
use saggar_sim::{AtCall, FaultPlan, Scenario, ScenarioOutcome, simulate};

/// Seeds per test; there are several tests, so that they share the cores. A failing seed becomes a named case below.
const SEEDS: u64 = 50;

/// A seed whose single, short run starts children.
const SEED_WITH_CHILDREN: u64 = 67;

/// Every kind of fault happens sometimes.
fn rough(seed: u64) -> Scenario {
    let (plan, limits) = (FaultPlan::rough(), Budget::default());
    Scenario { seed, runs: 3, workers: 3, plan, limits, cancels: false, goes_back: false, calls_inside: false }
}

fn run(scenario: Scenario) -> ScenarioOutcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(simulate(scenario))
}

fn peaceful(scenario: Scenario) -> ScenarioOutcome {
    let outcome = run(Scenario { plan: FaultPlan::none(), workers: 1, ..scenario });
    assert_eq!(outcome.violations, Vec::<String>::new(), "without faults, seed {}", scenario.seed);
    outcome
}

fn check(scenario: Scenario, expected: &ScenarioOutcome) -> ScenarioOutcome {
    let outcome = run(scenario);
    let tail = || outcome.trace[outcome.trace.len().saturating_sub(60)..].join("\n");
    assert_eq!(outcome.violations, Vec::<String>::new(), "{scenario:?}\n{}", tail());
    assert_eq!(outcome.ends, expected.ends, "{scenario:?}\n{}", tail());
    let once = |outcome: &ScenarioOutcome| outcome.ledger.keys().cloned().collect::<Vec<_>>();
    assert_eq!(once(&outcome), once(expected), "{scenario:?}: the same effects");
    outcome
}

fn seeds() -> u64 {
    std::env::var("SAGGAR_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// Every run ends and nothing is done twice, whatever the faults.
fn check_seeds(first: u64) {
    let seeds = seeds();
    let (mut children, mut amid_several, mut snapshots, mut summaries) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        let outcome = check(rough(seed), &peaceful(rough(seed)));
        children += outcome.children;
        amid_several += outcome.taken_over_amid_several;
        snapshots += outcome.snapshots;
        summaries += outcome.summaries;
    }
    assert!(snapshots as u64 > 4 * seeds, "there are snapshots: {snapshots}");
    assert!(summaries as u64 > 4 * seeds, "there are summaries: {summaries}");
    assert!(children as u64 > seeds, "there are children: {children}");
    assert!(amid_several as u64 > seeds, "workers are lost while several steps are open: {amid_several} times");
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
fn a_run_taken_again_while_it_is_given_back_and_the_answer_lost_is_driven() {
    check(rough(20_000), &peaceful(rough(20_000)));
}

/// Limits hold for whole trees despite faults and cancellations. Ends are not compared, because faults decide where a
/// limit trips.
#[test]
fn limits_hold_for_whole_trees() {
    let limits = [
        Budget { steps: Some(25), ..Budget::default() },
        Budget { tool_calls: Some(9), ..Budget::default() },
        Budget { micros: Some(9), ..Budget::default() },
        Budget { tokens: Some(12_000), ..Budget::default() },
        Budget { children: Some(2), ..Budget::default() },
        Budget { wall_ms: Some(20_000), steps: Some(60), ..Budget::default() },
    ];
    let (mut children, mut tripped) = (0, 0);
    for (seed, limits) in (40_000..40_000 + seeds()).zip(limits.into_iter().cycle()) {
        let scenario = Scenario { limits, cancels: true, ..rough(seed) };
        let outcome = run(scenario);
        let tail = || outcome.trace[outcome.trace.len().saturating_sub(60)..].join("\n");
        assert_eq!(outcome.violations, Vec::<String>::new(), "{scenario:?}\n{}", tail());
        children += outcome.children;
        let is_tripped = |end: &&Vec<String>| end.last().is_some_and(|end| end.contains("BudgetExceeded"));
        tripped += outcome.ends.values().filter(is_tripped).count();
    }
    assert!(children as u64 > seeds() && tripped as u64 > seeds(), "{children} children, {tripped} limits");
}

/// The same, while programs in the sandboxes of all runs call models: journals and budgets have each call once.
#[test]
fn limits_hold_beside_calls_of_models_in_sandboxes() {
    let limits = [
        Budget { micros: Some(60), ..Budget::default() },
        Budget { micros: Some(25), ..Budget::default() },
        Budget { tokens: Some(12_000), ..Budget::default() },
        Budget::default(),
    ];
    let (mut begun, mut refused, mut waited, mut children) = (0, 0, 0, 0);
    for (seed, limits) in (60_000..60_000 + seeds()).zip(limits.into_iter().cycle()) {
        let scenario = Scenario { limits, cancels: true, calls_inside: true, ..rough(seed) };
        let outcome = run(scenario);
        let tail = || outcome.trace[outcome.trace.len().saturating_sub(60)..].join("\n");
        assert_eq!(outcome.violations, Vec::<String>::new(), "{scenario:?}\n{}", tail());
        begun += outcome.calls_inside;
        refused += outcome.calls_refused;
        waited += outcome.waited_for_calls;
        children += outcome.children;
    }
    let counts = format!("{begun} calls, {refused} refused, {waited} waits, {children} children");
    let least = seeds();
    assert!(
        begun > 20 * least && refused > least && waited as u64 > least / 5 && children as u64 > least / 2,
        "{counts}"
    );
}

/// Runs are taken back and sandboxes are lost, in the middle of everything else. Ends are not compared, because both are
/// part of the conversation.
#[test]
fn files_are_those_of_settled_steps_after_every_rollback_and_loss() {
    let (mut rollbacks, mut losses, mut snapshots) = (0, 0, 0);
    for seed in 50_000..50_000 + seeds() {
        let plan = FaultPlan { sandbox_lost: 400, ..FaultPlan::rough() };
        let scenario = Scenario { plan, goes_back: true, ..rough(seed) };
        let outcome = run(scenario);
        let tail = || outcome.trace[outcome.trace.len().saturating_sub(60)..].join("\n");
        assert_eq!(outcome.violations, Vec::<String>::new(), "{scenario:?}\n{}", tail());
        rollbacks += outcome.rollbacks;
        losses += outcome.losses;
        snapshots += outcome.snapshots;
    }
    let counts = format!("{rollbacks} rollbacks, {losses} losses, {snapshots} snapshots");
    assert!(rollbacks as u64 > seeds() / 4 && losses > seeds() / 4 && snapshots as u64 > 4 * seeds(), "{counts}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1, 77, 4711] {
        let scenario = rough(seed);
        let (one, other) = (run(scenario), run(scenario));
        assert!(one.trace.len() > 200, "something happened");
        assert_eq!(one.trace, other.trace);
    }
    assert_ne!(run(rough(1)).trace, run(rough(2)).trace);
}

/// Number of seeds in which only the clock is set: they take long, because timers have to wait for it.
const CLOCK_SEEDS: u64 = 12;

/// Waits are durable timers by the wall clock: they end early or late, and nothing else changes. Leases use another
/// clock, so none is lost and no human has to decide anything.
#[test]
fn a_clock_that_is_set_forward_and_back_changes_no_end() {
    let mut waits = 0;
    for seed in 0..CLOCK_SEEDS {
        let scenario = Scenario { plan: FaultPlan::clock(), ..rough(seed) };
        let outcome = check(scenario, &peaceful(scenario));
        for direction in ["forward", "back"] {
            let is_far = |line: &&String| line.contains(&format!("the clock is set {direction} by"));
            assert!(outcome.trace.iter().filter(is_far).count() > 5, "{direction}, seed {seed}");
        }
        let decided: Vec<_> = outcome.trace.iter().filter(|line| line.contains("a person decides")).collect();
        assert!(decided.is_empty(), "a lease was lost, seed {seed}: {decided:?}");
        waits += outcome.ends.values().flatten().filter(|line| line.contains("the time has passed")).count();
    }
    assert!(waits > 20, "{waits} waits came to their end");
}

/// One fault at every store call changes nothing.
fn check_every_call(what: AtCall) {
    let scenario = Scenario { runs: 1, workers: 2, plan: FaultPlan::none(), ..rough(SEED_WITH_CHILDREN) };
    let expected = peaceful(scenario);
    assert!(expected.children > 0, "it starts others");
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
