//! Golden journals: everything ever written stays readable. A file here is never changed; a new version adds one.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use std::collections::BTreeSet;

use saggar_engine::{Entry, Event, Run, RunOutcome, Spending, replay};

/// Every kind of event of version 1, with every field filled.
const V1: &str = include_str!("../journals/v1.jsonl");

/// The event names that all journals have.
const NAMES: [&str; 14] = [
    "claimed",
    "forked",
    "paused",
    "resumed",
    "run_finished",
    "run_started",
    "signal_received",
    "step_abandoned",
    "step_decided",
    "step_failed",
    "step_intended",
    "step_probed",
    "step_settled",
    "step_unknown",
];

/// The same, plus child runs, which version 2 added.
const V2: &str = include_str!("../journals/v2.jsonl");

/// The same, plus the additions of version 3: the rules of claims, answers that name their question, steps that wait
/// for a resume, arguments parsed before they became a blob, and forks that redo an open call.
const V3: &str = include_str!("../journals/v3.jsonl");

/// A step that waits for capacity, also added by version 3. It doesn't repeat the events of the other journals.
const V3_ROOM: &str = include_str!("../journals/v3_room.jsonl");

/// The event names of that journal.
const V3_ROOM_NAMES: [&str; 7] =
    ["claimed", "paused", "resumed", "run_started", "step_delayed", "step_intended", "step_settled"];

/// Checks that today's version writes the events of a journal in the same form and decides the same, and returns
/// them.
fn check(journal: &str, version: u32, expected: &[&str]) -> (Vec<Event>, Run) {
    let entries: Vec<Entry> = journal.lines().map(|line| Entry::decode(line).unwrap()).collect();
    for (number, (entry, line)) in (1..).zip(entries.iter().zip(journal.lines())) {
        assert_eq!((entry.v, entry.seq), (version, number));
        assert_eq!(entry.encode(), line, "what is written today is what was written then");
    }
    let names: BTreeSet<_> = entries.iter().map(|entry| entry.event.name()).collect();
    assert_eq!(names, expected.iter().copied().collect());
    let events: Vec<Event> = entries.into_iter().map(|entry| entry.event).collect();
    let replayed = replay(&events);
    assert_eq!(replayed.divergence, None, "the same is decided as then");
    let run = Run::from_events(&events);
    assert_eq!(format!("{run:?}"), format!("{:?}", replayed.run));
    (events, run)
}

#[test]
fn version_1_is_read_and_means_what_it_meant() {
    let (_, run) = check(V1, 1, &NAMES);
    assert_eq!(run.outcome(), Some(&RunOutcome::Cancelled));
    assert_eq!((run.generation(), run.last_step(), run.replies(), run.conversation().len()), (1, 11, 2, 13));
}

#[test]
fn version_2_is_read_and_means_what_it_meant() {
    let (events, run) = check(V2, 2, &NAMES);
    assert_eq!(run.outcome(), Some(&RunOutcome::Cancelled));
    assert_eq!((run.generation(), run.last_step(), run.replies(), run.conversation().len()), (1, 12, 1, 13));
    let spent = Spending { steps: 19, tokens: 130, micros: 65, tool_calls: 12, retries: 5, children: 6 };
    assert_eq!((run.ledger().spent(), run.depth(), run.child_of()), (spent, 1, None));
    let begun = Run::from_events(&events[..1]);
    assert_eq!(begun.child_of().map(|of| (of.step, of.depth)), Some((5, 1)));
}

#[test]
fn version_3_is_read_and_means_what_it_meant() {
    let (events, run) = check(V3, 3, &[&NAMES[..], &["step_interrupted"]].concat());
    assert_eq!(run.outcome(), Some(&RunOutcome::Cancelled));
    assert_eq!((run.generation(), run.last_step(), run.replies(), run.conversation().len()), (2, 13, 1, 14));
    let spent = Spending { steps: 18, tokens: 86, micros: 30, tool_calls: 13, retries: 8, children: 2 };
    assert_eq!((run.ledger().spent(), run.dearest()), (spent, 12));
    let answers = events.iter().filter(|event| matches!(event, Event::SignalReceived { question: Some(2), .. }));
    assert_eq!(answers.count(), 1);
}

#[test]
fn a_step_that_waits_for_room_is_read_and_means_what_it_meant() {
    let (events, run) = check(V3_ROOM, 3, &V3_ROOM_NAMES);
    assert_eq!((run.last_step(), run.replies(), run.ledger().spent().retries), (3, 1, 0));
    let delayed = events.iter().position(|event| event.name() == "step_delayed").map(|at| at + 1);
    let waiting = Run::from_events(&events[..delayed.unwrap()]);
    assert!(waiting.open_step().is_some_and(|open| open.delayed_since.is_some() && open.attempt == 1));
}

/// Several open steps, and a malformed call: the additions of version 4. It doesn't repeat what the other journals have.
const V4_STEPS: &str = include_str!("../journals/v4_steps.jsonl");

#[test]
fn several_open_steps_are_read_and_mean_what_they_meant() {
    let names = [&NAMES[..], &["step_interrupted", "step_delayed"]].concat();
    let (events, run) = check(V4_STEPS, 4, &names);
    assert_eq!((run.generation(), run.last_step(), run.replies(), run.conversation().len()), (1, 17, 3, 16));
    let spent = Spending { steps: 17, tokens: 43, micros: 17, tool_calls: 12, retries: 4, children: 2 };
    assert_eq!(run.ledger().spent(), spent);
    let most = (1..events.len()).map(|end| Run::from_events(&events[..end]).open_steps().len()).max();
    assert_eq!(most, Some(4), "so many were open at once");
}

/// Snapshots, a lost sandbox, a fork with files and a rollback, which version 4 added as well.
const V4_SNAPSHOTS: &str = include_str!("../journals/v4_snapshots.jsonl");

#[test]
fn snapshots_and_rollbacks_are_read_and_mean_what_they_meant() {
    let names = [
        "claimed",
        "forked",
        "paused",
        "resumed",
        "rolled_back",
        "run_finished",
        "run_started",
        "step_abandoned",
        "step_intended",
        "step_settled",
    ];
    let (events, run) = check(V4_SNAPSHOTS, 4, &names);
    assert_eq!((run.generation(), run.last_step(), run.replies(), run.conversation().len()), (3, 18, 3, 10));
    let kept: Vec<u64> = run.files().kept.iter().map(|kept| kept.step).collect();
    let restored = run.files().restored.as_ref().map(|restored| (restored.after, restored.files.older_from));
    assert_eq!((kept, restored), (vec![13], Some((17, Some(16)))));
    let back = events.iter().position(|event| event.name() == "rolled_back").map(|at| at + 1);
    let back = Run::from_events(&events[..back.unwrap()]);
    assert_eq!(back.earlier_generations(), [0]);
}

/// What replies, conversations and budgets are held to, also added by version 4.
const V4_BOUNDS: &str = include_str!("../journals/v4_bounds.jsonl");

#[test]
fn bounds_of_replies_conversations_and_budgets_are_read_and_mean_what_they_meant() {
    let names = [
        "budget_raised",
        "budget_reached",
        "claimed",
        "corrected",
        "run_finished",
        "run_started",
        "step_intended",
        "step_settled",
    ];
    let (events, run) = check(V4_BOUNDS, 4, &names);
    let is_loop = matches!(run.outcome(), Some(RunOutcome::Loop { times: 4, calls: 2, .. }));
    assert!(is_loop, "{:?}", run.outcome());
    let longest = (1..events.len()).map(|end| Run::from_events(&events[..end]).conversation().len()).max();
    assert_eq!((run.conversation().len(), longest), (11, Some(16)), "older turns were summed up");
}

/// Calls of models by programs in a run's sandboxes: the addition of version 5.
const V5_SANDBOX_CALLS: &str = include_str!("../journals/v5_sandbox_calls.jsonl");

#[test]
fn calls_in_sandboxes_are_read_and_mean_what_they_meant() {
    let names = ["claimed", "forked", "run_finished", "run_started", "sandbox_called", "step_intended", "step_settled"];
    let (events, run) = check(V5_SANDBOX_CALLS, 5, &names);
    let spent = Spending { steps: 7, tokens: 1_060, micros: 1_040, tool_calls: 3, retries: 0, children: 0 };
    assert_eq!((run.ledger().spent(), run.sandbox_calls().settled().tokens), (spent, 900));
    assert!((1..events.len()).any(|end| Run::from_events(&events[..end]).waits_for_sandboxes()));
}
