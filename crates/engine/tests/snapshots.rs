//! Snapshots of a run's sandbox: when they are taken, what they cost, and what becomes of one that fails.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod support;

use std::time::Duration;

use saggar_domain::{RunId, SnapshotId};
use saggar_engine::{
    AgentSpec, Body, Budget, Class, Effect, EffectFailure, Event, Input, KeptFiles, Report, Restored, RunOutcome,
    SNAPSHOTS_KEPT, Settled, Signal, SnapshotRules, ToolResult, Usage,
};
use support::{Driven, agent, parallel};

fn snap(number: u8) -> SnapshotId {
    SnapshotId::from_random([number; 16])
}

/// `keyed` and `once` use the sandbox.
fn with(rules: SnapshotRules, mut agent: AgentSpec) -> AgentSpec {
    for name in ["keyed", "once"] {
        agent.tools.get_mut(name).unwrap().uses_sandbox = true;
    }
    AgentSpec { snapshots: rules, ..agent }
}

fn every(every: u64) -> SnapshotRules {
    SnapshotRules { every: Some(every), ..SnapshotRules::default() }
}

fn at_end() -> SnapshotRules {
    SnapshotRules { at_end: true, ..SnapshotRules::default() }
}

fn before(class: Class) -> SnapshotRules {
    SnapshotRules { before: [class].into(), ..SnapshotRules::default() }
}

/// Ends the open snapshot.
fn taken(driven: &mut Driven, number: u8) -> Vec<Event> {
    driven.report(Report::Kept { snapshot: Some(snap(number)) }).unwrap()
}

/// What is open, in a word for each.
fn open(driven: &Driven) -> Vec<String> {
    let word = |effect: &Effect| match effect {
        Effect::CallModel { .. } => "model".to_owned(),
        Effect::TakeSnapshot => "snapshot".to_owned(),
        other => other.call().unwrap().tool.clone(),
    };
    driven.run.open_steps().iter().map(|open| word(&open.effect)).collect()
}

#[test]
fn one_is_taken_after_so_many_steps_if_one_of_them_used_the_sandbox() {
    let mut driven = Driven::start(with(every(2), agent()));
    driven.reply(&[("pure", "1"), ("keyed", "2"), ("keyed", "3"), ("keyed", "4")]);
    driven.returned("pure");
    assert_eq!(open(&driven), ["keyed"], "nothing has changed a file");
    driven.returned("keyed");
    assert_eq!(open(&driven), ["snapshot"]);
    let events = taken(&mut driven, 1);
    let Event::StepSettled { step: 4, result: Settled::Kept, snapshot: Some(id), .. } = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!(*id, snap(1).to_string(), "the entry that settles it names it");
    driven.returned("keyed");
    assert_eq!(open(&driven), ["keyed"], "one step since");
    driven.returned("keyed");
    assert_eq!(open(&driven), ["snapshot"], "before the model's next call, too");
    taken(&mut driven, 2);
    driven.reply(&[]);
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::Completed { answer: Body::text("done") }));
    let kept = [KeptFiles { step: 4, snapshot: snap(1) }, KeptFiles { step: 7, snapshot: snap(2) }];
    assert_eq!(driven.run.files().kept, kept);
    driven.check();
}

#[test]
fn it_is_no_call_no_message_and_costs_no_budget() {
    let budget = Budget { steps: Some(4), tool_calls: Some(2), retries: Some(0), ..Budget::default() };
    let plain = |rules| {
        let mut driven = Driven::start(AgentSpec { budget, ..with(rules, agent()) });
        driven.reply(&[("keyed", "1"), ("keyed", "2")]);
        let mut number = 0;
        while driven.run.outcome().is_none() {
            match open(&driven)[0].as_str() {
                "model" => drop(driven.reply(&[])),
                "snapshot" => {
                    // Its worker dies once each time.
                    driven.input(Input::claim(driven.run.epoch() + 1)).unwrap();
                    number += 1;
                    taken(&mut driven, number);
                }
                _ => drop(driven.returned("done")),
            }
        }
        driven.check();
        assert_eq!(driven.run.outcome(), Some(&RunOutcome::Completed { answer: Body::text("done") }));
        (driven.run.ledger().spent(), driven.run.conversation().to_vec(), number)
    };
    let (spent, said, none) = plain(SnapshotRules::default());
    let (spent_with, said_with, two) = plain(every(1));
    assert_eq!((spent, said, none), (spent_with, said_with, two - 2));
}

#[test]
fn it_waits_until_nothing_is_open_and_nothing_starts_before_it() {
    let mut driven = Driven::start(with(every(3), parallel(4)));
    driven.reply(&[("keyed", "1"), ("keyed", "2"), ("keyed", "3")]);
    assert_eq!(open(&driven), ["keyed", "keyed"], "the third would be one too many");
    driven.returned_on(3, "two");
    assert_eq!(open(&driven), ["keyed"]);
    driven.returned_on(2, "one");
    assert_eq!(open(&driven), ["snapshot"]);
    driven
        .input(Input::Signal(Signal { id: "s".into(), name: "note".into(), body: Body::text("?"), question: None }))
        .unwrap();
    assert_eq!(open(&driven), ["snapshot"]);
    taken(&mut driven, 1);
    assert_eq!(open(&driven), ["keyed"]);
    driven.check();
}

#[test]
fn one_is_taken_before_a_call_of_a_class_if_something_may_have_changed() {
    let mut driven = Driven::start(with(before(Class::Once), agent()));
    driven.reply(&[("once", "1"), ("pure", "2"), ("once", "3")]);
    assert_eq!(open(&driven), ["once"], "the sandbox is new");
    driven.returned("done");
    driven.returned("read");
    assert_eq!(open(&driven), ["snapshot"]);
    taken(&mut driven, 1);
    assert_eq!(open(&driven), ["once"]);
    driven.returned("done");
    driven.reply(&[]);
    assert!(driven.run.outcome().is_some(), "none at the end");
    driven.check();
}

#[test]
fn one_at_the_end_is_taken_before_an_answer_ends_the_run() {
    let mut driven = Driven::start(with(at_end(), agent()));
    driven.reply(&[("keyed", "1")]);
    driven.returned("done");
    driven.reply(&[]);
    assert_eq!(open(&driven), ["snapshot"]);
    let events = taken(&mut driven, 1);
    assert!(matches!(events[..], [Event::StepSettled { .. }, Event::RunFinished { .. }]), "one commit: {events:?}");
    driven.check();

    let mut unused = Driven::start(with(at_end(), agent()));
    unused.reply(&[("pure", "1")]);
    unused.returned("done");
    unused.reply(&[]);
    assert!(unused.run.outcome().is_some(), "there is nothing to keep");
    unused.check();
}

#[test]
fn one_at_the_end_is_taken_before_finish_and_before_other_ends() {
    let mut finish = Driven::start(with(at_end(), agent()));
    finish.reply(&[("keyed", "1"), ("finish", r#"{"answer":"42"}"#)]);
    finish.returned("done");
    assert_eq!(open(&finish), ["snapshot"]);
    taken(&mut finish, 1);
    assert_eq!(finish.run.outcome(), Some(&RunOutcome::Completed { answer: Body::text("42") }));
    finish.check();

    let budget = Budget { tool_calls: Some(1), ..Budget::default() };
    let mut poor = Driven::start(AgentSpec { budget, ..with(at_end(), agent()) });
    poor.reply(&[("keyed", "1"), ("keyed", "2")]);
    poor.returned("done");
    assert_eq!(open(&poor), ["snapshot"]);
    taken(&mut poor, 1);
    assert!(matches!(poor.run.outcome(), Some(RunOutcome::BudgetExceeded { .. })), "{:?}", poor.run.outcome());
    poor.check();

    let budget = Budget { wall_ms: Some(1000), ..Budget::default() };
    let mut late = Driven::start(AgentSpec { budget, ..with(at_end(), agent()) });
    late.reply(&[("keyed", "1")]);
    late.pass(Duration::from_secs(2));
    assert!(late.run.outcome().is_some(), "there is no time left");
    late.check();
}

#[test]
fn a_message_during_the_last_snapshot_is_answered_first() {
    let mut driven = Driven::start(with(at_end(), agent()));
    driven.reply(&[("keyed", "1")]);
    driven.returned("done");
    driven.reply(&[]);
    let body = Body::text("one more thing");
    driven.input(Input::Signal(Signal { id: "s".into(), name: "message".into(), body, question: None })).unwrap();
    taken(&mut driven, 1);
    assert_eq!(open(&driven), ["model"]);
    driven.reply(&[]);
    assert!(driven.run.outcome().is_some(), "nothing has changed since");
    driven.check();
}

#[test]
fn a_paused_run_takes_none_and_ends_when_it_is_resumed() {
    let mut driven = Driven::start(with(at_end(), agent()));
    driven.reply(&[("keyed", "1")]);
    driven.returned("done");
    driven.input(Input::Pause).unwrap();
    driven.reply(&[]);
    assert_eq!(open(&driven), Vec::<String>::new());
    driven.input(Input::Resume).unwrap();
    assert_eq!(open(&driven), ["snapshot"]);
    driven.input(Input::Pause).unwrap();
    taken(&mut driven, 1);
    assert!(driven.run.outcome().is_some(), "an end starts nothing");
    driven.check();
}

#[test]
fn one_that_fails_is_recorded_and_the_run_goes_on() {
    let mut driven = Driven::start(with(every(1), agent()));
    driven.reply(&[("keyed", "1"), ("keyed", "2")]);
    driven.returned("done");
    let failure = EffectFailure::new("quota", "the project has 8 snapshots, and 8 are allowed", true);
    let events = driven.report(Report::Failed { failure: failure.clone(), usage: Usage::default() }).unwrap();
    assert!(matches!(&events[0], Event::StepSettled { result: Settled::GaveUp(gave), .. } if *gave == failure));
    assert_eq!(open(&driven), ["keyed"], "it isn't tried again before the next step");
    driven.returned("done");
    let events = driven.report(Report::unknown("it exceeded its time limit")).unwrap();
    assert!(matches!(&events[0], Event::StepSettled { result: Settled::GaveUp(_), .. }), "it parks for nothing");
    assert_eq!((open(&driven), driven.run.files().kept.len()), (vec!["model".to_owned()], 0));
    assert_eq!(driven.run.ledger().spent().retries, 0);
    driven.check();
}

#[test]
fn the_newest_are_kept() {
    let mut driven = Driven::start(with(every(1), AgentSpec { repeats_max: 1000, ..agent() }));
    for number in 0..u8::try_from(SNAPSHOTS_KEPT).unwrap() + 3 {
        driven.reply(&[("keyed", "1")]);
        driven.returned("done");
        taken(&mut driven, number);
    }
    let kept = &driven.run.files().kept;
    assert_eq!((kept.len(), &kept[0].snapshot), (SNAPSHOTS_KEPT, &snap(3)));
    driven.check();
}

#[test]
fn a_step_whose_sandbox_was_lost_says_which_changes_its_files_lack() {
    let mut driven = Driven::start(with(every(2), agent()));
    driven.reply(&[("keyed", "1"), ("keyed", "2"), ("keyed", "3"), ("keyed", "4")]);
    driven.returned("done");
    taken(&mut driven, 1);
    driven.returned("done");
    let newest = KeptFiles { step: 3, snapshot: snap(1) };
    assert_eq!(driven.run.restorable(5), Restored { from: Some(newest.clone()), older_from: Some(4) });
    assert_eq!(driven.run.restorable(4).older_from, None, "it has changed nothing itself so far");
    let files = driven.run.restorable(5);
    let result = ToolResult { restored: Some(Box::new(files.clone())), ..ToolResult::new(Body::text("lost"), true) };
    driven.report(Report::Returned { result, snapshot: None }).unwrap();
    let restored = driven.run.files().restored.clone().unwrap();
    assert_eq!((restored.after, restored.files), (5, files));
    assert_eq!(driven.run.restorable(9), Restored { from: Some(newest), older_from: None }, "they are the snapshot's");
    driven.check();
}

#[test]
fn a_fork_has_the_files_that_it_is_given() {
    let mut driven = Driven::start(with(every(1), agent()));
    for number in 1..4 {
        driven.reply(&[("keyed", "1")]);
        driven.returned("done");
        taken(&mut driven, number);
    }
    let kept = driven.run.files().at(6).cloned().unwrap();
    assert_eq!(kept, KeptFiles { step: 6, snapshot: snap(2) });
    let files = Some(Restored { from: Some(kept.clone()), older_from: None });
    let (run, message) = (RunId::from_random([9; 16]), None);
    let fork = |files| Input::Fork {
        run: run.clone(),
        generation: 1,
        message: message.clone(),
        is_logical_only: false,
        does_again: true,
        files,
    };
    driven.input(fork(files)).unwrap();
    assert_eq!(driven.run.files().kept, [kept]);
    driven.input(Input::claim(1)).unwrap();
    assert_eq!(open(&driven), ["model"]);
    driven.check();
    driven.input(fork(None)).unwrap();
    assert!(driven.run.files().kept.is_empty(), "what it wasn't given isn't its own");
}
