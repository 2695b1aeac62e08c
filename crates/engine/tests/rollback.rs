//! Rolling a run back: what it is afterwards, what stays, and where there is no way back.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod support;

use saggar_domain::SnapshotId;
use saggar_engine::{
    AgentSpec, Body, Class, Event, Input, KeptFiles, Message, Rejected, Report, Restored, Run, SnapshotRules,
};
use support::{Driven, agent, parallel};

fn snap(number: u8) -> SnapshotId {
    SnapshotId::from_random([number; 16])
}

fn back(step: u64) -> Input {
    Input::RollBack { step, message: None }
}

/// `keyed` uses the sandbox.
fn with_files(every: Option<u64>, mut agent: AgentSpec) -> AgentSpec {
    agent.tools.get_mut("keyed").unwrap().uses_sandbox = true;
    AgentSpec { snapshots: SnapshotRules { every, ..SnapshotRules::default() }, ..agent }
}

/// What a later decision depends on, at the end of a step.
fn place(run: &Run) -> (Vec<Message>, u64, Vec<(u64, SnapshotId)>) {
    let kept = run.files().kept.iter().map(|kept| (kept.step, kept.snapshot.clone()));
    (run.conversation().to_vec(), run.replies(), kept.collect())
}

#[test]
fn the_run_is_what_it_was_at_every_step_it_can_go_back_to() {
    let mut driven = Driven::start(with_files(Some(1), agent()));
    let mut number = 0;
    let mut places = vec![(0, place(&driven.run))];
    let calls: [&[(&str, &str)]; 3] =
        [&[("keyed", "1"), ("pure", "2"), ("once", "3")], &[("nothing", "1"), ("keyed", "4")], &[("pure", "5")]];
    for calls in calls {
        driven.reply(calls);
        places.push((driven.run.open_step().unwrap().step - 1, place(&driven.run)));
        while !matches!(driven.run.open_step().unwrap().class, Class::Model) {
            let step = driven.run.open_step().unwrap().step;
            if driven.run.open_step().unwrap().effect.call().is_some() {
                driven.returned("done");
            } else {
                number += 1;
                driven.report(Report::Kept { snapshot: Some(snap(number)) }).unwrap();
            }
            places.push((step, place(&driven.run)));
        }
    }
    driven.check();
    assert!(places.len() > 9, "{places:?}");
    for (step, before) in places {
        let (mut again, last, spent) = (Driven::start(agent()), driven.run.last_step(), driven.run.ledger().spent());
        (again.run, again.journal, again.now) = (driven.run.clone(), driven.journal.clone(), driven.now);
        if step == 2 {
            let nothing = again.input(back(step));
            assert!(matches!(nothing, Err(Rejected::NoFiles { .. })), "it used the sandbox before the first snapshot");
            continue;
        }
        let events = again.input(back(step)).unwrap_or_else(|rejected| panic!("{step}: {rejected}"));
        assert_eq!(place(&again.run), before, "step {step}");
        assert!(events.iter().any(|event| matches!(event, Event::StepIntended { step, .. } if *step == last + 1)));
        assert_eq!(again.run.generation(), 1);
        assert_eq!(again.run.earlier_generations(), [0]);
        assert!(again.run.ledger().spent().tokens > spent.tokens, "the abandoned call may have cost what it could");
        again.check();
        // It comes to its end like any other.
        let mut left = 20;
        while again.run.outcome().is_none() && left > 0 {
            left -= 1;
            match again.run.open_step().unwrap() {
                open if open.class == Class::Model => drop(again.reply(&[])),
                open if open.effect.call().is_some() => drop(again.returned("again")),
                _ => drop(again.report(Report::Kept { snapshot: Some(snap(99)) }).unwrap()),
            }
        }
        assert!(again.run.outcome().is_some(), "step {step}: {:?}", again.run.open_steps());
        again.check();
    }
}

#[test]
fn its_files_are_those_of_the_snapshot_before_and_it_says_what_they_lack() {
    let mut driven = Driven::start(with_files(Some(2), agent()));
    driven.reply(&[("keyed", "1"), ("pure", "2"), ("keyed", "3")]);
    driven.returned("one");
    // Two steps since the start.
    driven.report(Report::Kept { snapshot: Some(snap(1)) }).unwrap();
    driven.returned("two");
    driven.returned("three");
    driven.report(Report::Kept { snapshot: Some(snap(2)) }).unwrap();
    let files = |driven: &Driven, step| {
        let events = driven.run.decide(driven.now, &back(step)).unwrap();
        let of = |event: &Event| match event {
            Event::RolledBack { files, .. } => Some(files.clone()),
            _ => None,
        };
        events.iter().find_map(of).unwrap()
    };
    let first = KeptFiles { step: 3, snapshot: snap(1) };
    assert_eq!(files(&driven, 1), Restored::default(), "a new sandbox is what it had");
    assert_eq!(files(&driven, 3), Restored { from: Some(first.clone()), older_from: None });
    assert_eq!(files(&driven, 5), Restored { from: Some(first), older_from: Some(5) });
    let nothing = driven.run.decide(driven.now, &back(2));
    assert_eq!(nothing, Err(Rejected::NoFiles { step: 2, nearest: Some(6) }), "no snapshot was before it");
    driven.check();
}

#[test]
fn a_run_without_a_sandbox_needs_no_snapshot() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("pure", "1")]);
    driven.returned("done");
    driven.input(Input::RollBack { step: 1, message: Some(Body::text("do it better")) }).unwrap();
    let open = driven.run.open_step().unwrap();
    assert_eq!((open.step, open.effect.call().unwrap().tool.as_str()), (4, "pure"), "the call is made again");
    driven.returned("again");
    assert_eq!(driven.run.conversation().last(), Some(&Message::User(Body::text("do it better"))));
    driven.check();
}

#[test]
fn there_is_no_way_to_where_others_were_open_nor_to_what_was_undone() {
    let mut driven = Driven::start(parallel(4));
    driven.reply(&[("pure", "1"), ("keyed", "2")]);
    driven.returned_on(2, "one");
    assert_eq!(driven.input(back(2)), Err(Rejected::NoWayBack { step: 2, nearest: Some(1) }));
    driven.returned_on(3, "two");
    assert_eq!(driven.input(back(2)), Err(Rejected::NoWayBack { step: 2, nearest: Some(1) }));
    assert_eq!(driven.input(back(9)), Err(Rejected::NoWayBack { step: 9, nearest: Some(3) }));
    driven.input(back(1)).unwrap();
    assert_eq!(driven.input(back(3)), Err(Rejected::NoWayBack { step: 3, nearest: Some(1) }), "it was undone");
    driven.check();
    driven.input(Input::Cancel).unwrap();
    assert_eq!(driven.input(back(1)), Err(Rejected::Finished));
}

#[test]
fn a_call_that_may_be_done_only_once_must_end_first_and_a_parked_one_may_be_left() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("once", "1")]);
    assert_eq!(driven.input(back(1)), Err(Rejected::Undecided { step: 2 }));
    driven.report(Report::unknown("the answer was lost")).unwrap();
    let events = driven.input(back(0)).unwrap();
    assert!(matches!(events[0], Event::StepAbandoned { step: 2, .. }));
    assert_eq!(driven.run.open_step().map(|open| open.class), Some(Class::Model));
    driven.check();
}

#[test]
fn a_child_that_it_waits_for_is_left_and_another_is_started() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("delegate", r#"{"task":"help"}"#)]);
    let child = driven.run.children().next().unwrap().clone();
    let events = driven.input(back(1)).unwrap();
    assert!(matches!(events[0], Event::StepAbandoned { step: 2, .. }), "whose child is cancelled: {events:?}");
    let next = driven.run.children().next().unwrap();
    assert_ne!(*next, child, "its key is of the new generation");
    driven.check();
}

#[test]
fn a_paused_run_stays_paused() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("pure", "1")]);
    driven.input(Input::Pause).unwrap();
    driven.input(back(1)).unwrap();
    assert!(driven.run.is_paused() && driven.run.open_steps().is_empty());
    driven.input(Input::Resume).unwrap();
    assert_eq!(driven.run.open_step().unwrap().step, 3);
    driven.check();
}

#[test]
fn it_can_go_back_more_than_once_and_across_a_fork() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("pure", "1"), ("pure", "2")]);
    driven.returned("one");
    driven.returned("two");
    driven.input(back(2)).unwrap();
    driven.returned("other");
    driven.input(back(1)).unwrap();
    assert_eq!((driven.run.generation(), driven.run.earlier_generations()), (2, &[0, 1][..]));
    let run = saggar_domain::RunId::from_random([9; 16]);
    let (generation, message, files) = (5, None, None);
    let fork = Input::Fork { run, generation, message, is_logical_only: true, does_again: true, files };
    driven.input(fork).unwrap();
    driven.input(Input::claim(1)).unwrap();
    assert!(driven.run.earlier_generations().is_empty(), "those were its parent's");
    driven.returned("three");
    driven.input(back(1)).unwrap();
    assert_eq!((driven.run.generation(), driven.run.conversation().len()), (6, 2));
    driven.check();
}

#[test]
fn what_a_fork_has_of_calls_made_beside_others_is_not_done_again() {
    let mut driven = Driven::start(parallel(4));
    driven.reply(&[("pure", "1"), ("keyed", "2"), ("pure", "3")]);
    driven.returned_on(3, "two");
    let run = saggar_domain::RunId::from_random([9; 16]);
    let (generation, message, files) = (1, None, None);
    let fork = Input::Fork { run, generation, message, is_logical_only: true, does_again: true, files };
    driven.input(fork).unwrap();
    driven.input(Input::claim(1)).unwrap();
    driven.input(back(4)).unwrap();
    let open = driven.run.open_steps().iter().map(|open| open.effect.call().unwrap().arguments.clone());
    assert_eq!(open.collect::<Vec<_>>(), [Body::text("1"), Body::text("3")]);
    driven.returned_on(7, "one");
    driven.returned_on(8, "three");
    let told = driven.run.conversation().iter().filter_map(|message| match message {
        Message::Tool { result, .. } => result.content.as_text(),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), ["one", "two", "three"]);
    driven.check();
}
