//! Models that programs in a run's sandboxes call: what they come to counts against the run's budget, and what is set aside for calls
//! under way is neither spent nor left.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod support;

use std::time::Duration;

use saggar_domain::RunId;
use saggar_domain::model::{CallAmount, CallSum, SandboxCalls};
use saggar_engine::{
    AgentSpec, Budget, BudgetName, Event, Fallbacks, Input, Rejected, Report, Run, RunOutcome, RunStatus, Usage,
    WhenOutOfBudget,
};
use support::{Driven, agent, reply};

/// Calls that came to so many tokens and as many micros, and what is set aside for others.
fn calls(settled: u64, under_way: u64) -> SandboxCalls {
    let sum = CallSum { calls: 1, input: settled, micros: settled, ..CallSum::default() };
    let models = [("cheap".to_owned(), sum)].into_iter().filter(|_| settled > 0).collect();
    SandboxCalls { models, under_way: CallAmount { tokens: under_way, micros: under_way } }
}

fn called(driven: &mut Driven, settled: u64, under_way: u64) -> Vec<Event> {
    driven.input(Input::SandboxCalled(calls(settled, under_way))).unwrap()
}

/// A run with this budget of tokens, whose model has called a tool. The reply had 10 tokens.
fn in_a_call(tokens: u64) -> Driven {
    let mut driven =
        Driven::start(AgentSpec { budget: Budget { tokens: Some(tokens), ..Budget::default() }, ..agent() });
    driven.reply(&[("pure", "{}")]);
    driven
}

fn end(driven: &Driven) -> Option<BudgetName> {
    match driven.run.outcome()? {
        RunOutcome::BudgetExceeded { budget, .. } => Some(*budget),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_they_came_to_is_spent_once_however_often_it_is_told() {
    let mut driven = in_a_call(1_000);
    assert_eq!(called(&mut driven, 300, 100).len(), 1);
    assert_eq!(called(&mut driven, 300, 100), [], "nothing has changed");
    assert_eq!((driven.run.ledger().spent().tokens, driven.run.ledger().left().tokens), (310, Some(590)));
    called(&mut driven, 350, 0);
    assert_eq!((driven.run.ledger().spent().tokens, driven.run.ledger().spent().micros), (360, 355));
    // Where they ask, what they have asked is counted.
    assert_eq!(driven.run.left_for_sandboxes().tokens, Some(990));
    assert_eq!(driven.run.left_for_sandboxes().micros, None, "there is no limit");
    driven.check();
}

#[test]
fn a_run_whose_sandboxes_have_used_its_budget_up_calls_no_model() {
    let mut driven = in_a_call(1_000);
    called(&mut driven, 950, 0);
    driven.returned("done");
    assert_eq!(end(&driven), Some(BudgetName::Tokens));
    driven.check();
}

#[test]
fn a_run_waits_for_calls_that_may_leave_enough_and_lets_no_other_begin() {
    for (left, goes_on) in [(0, true), (950, false)] {
        let mut driven = in_a_call(1_000);
        called(&mut driven, 0, 950);
        driven.returned("done");
        assert!(driven.run.outcome().is_none() && driven.run.open_steps().is_empty());
        assert!(driven.run.waits_for_sandboxes() && driven.run.status() == RunStatus::Running);
        assert_eq!(driven.run.left_for_sandboxes().tokens, Some(0));
        assert_eq!(driven.pass(Duration::from_secs(1)), [], "they are under way");
        // A worker that takes the run over waits too.
        driven.input(Input::claim(2)).unwrap();
        assert!(driven.run.waits_for_sandboxes());
        called(&mut driven, left, 0);
        driven.pass(Duration::ZERO);
        assert_eq!((driven.run.open_steps().len(), end(&driven).is_none()), (usize::from(goes_on), goes_on));
        driven.check();
    }
}

#[test]
fn a_run_that_waits_for_calls_can_be_paused_resumed_and_cancelled() {
    let mut driven = in_a_call(1_000);
    called(&mut driven, 0, 950);
    driven.returned("done");
    driven.input(Input::Pause).unwrap();
    called(&mut driven, 5, 0);
    assert_eq!(driven.pass(Duration::from_secs(1)), [], "it is paused");
    driven.input(Input::Resume).unwrap();
    assert_eq!(driven.run.open_steps().len(), 1);
    driven.input(Input::Cancel).unwrap();
    assert_eq!(driven.input(Input::SandboxCalled(calls(6, 0))), Err(Rejected::Finished));
    driven.check();
}

#[test]
fn what_comes_next_does_not_wait_for_calls_if_another_budget_is_used_up() {
    let budget = Budget { steps: Some(1), tokens: Some(1_000), ..Budget::default() };
    let mut driven = Driven::start(AgentSpec { budget, ..agent() });
    called(&mut driven, 0, 950);
    driven.reply(&[("pure", "{}")]);
    assert_eq!(end(&driven), Some(BudgetName::Steps));
    driven.check();
}

#[test]
fn what_the_last_call_of_the_model_needs_is_not_left_for_sandboxes() {
    let left = |on| {
        let budget = Budget { tokens: Some(1_000), ..Budget::default() };
        Driven::start(AgentSpec { budget, on, ..agent() }).run.left_for_sandboxes().tokens.unwrap()
    };
    let finish = left(Fallbacks { budget: WhenOutOfBudget::Finish, ..Fallbacks::default() });
    // A reply has at most 100 tokens.
    assert!(finish <= left(Fallbacks::default()) - 100, "{finish}");
}

#[test]
fn a_parent_is_told_what_the_sandboxes_of_its_child_may_have_spent() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("delegate", r#"{"task": "x"}"#)]);
    let child = driven.run.child_of_event(driven.journal.last().unwrap()).unwrap();
    let mut run = Run::new();
    for input in [child.start(), Input::claim(1), Input::SandboxCalled(calls(30, 12)), Input::Cancel] {
        run.decide(driven.now, &input).unwrap().iter().for_each(|event| run.apply(event));
    }
    let (_, end) = run.end_for_parent().unwrap();
    assert_eq!(end.spent.micros, 42);
    driven.input(Input::ChildEnded(end)).unwrap();
    assert_eq!(driven.run.ledger().spent().micros, 5 + 42);
    driven.check();
}

#[test]
fn a_fork_has_its_parents_spending_and_none_of_its_sandboxes() {
    let mut driven = in_a_call(1_000);
    called(&mut driven, 300, 400);
    let (run, generation) = (RunId::from_random([9; 16]), 1);
    let fork = Input::Fork { run, generation, message: None, is_logical_only: true, does_again: true, files: None };
    driven.input(fork).unwrap();
    assert_eq!((driven.run.ledger().spent().tokens, driven.run.left_for_sandboxes().tokens), (310, Some(690)));
    assert_eq!(*driven.run.sandbox_calls(), SandboxCalls::default());
    driven.input(Input::claim(1)).unwrap();
    called(&mut driven, 50, 0);
    assert_eq!(driven.run.ledger().spent().tokens, 360);
    driven.check();
}

#[test]
fn an_attempt_that_failed_is_not_repeated_into_what_sandboxes_have_set_aside() {
    let mut driven =
        Driven::start(AgentSpec { budget: Budget { tokens: Some(1_000), ..Budget::default() }, ..agent() });
    called(&mut driven, 0, 800);
    let failure = saggar_engine::EffectFailure::new("rate_limited", "later", true);
    driven.report(Report::Failed { failure, usage: Usage { tokens: 190, micros: 0 } }).unwrap();
    assert_eq!(end(&driven), Some(BudgetName::Tokens));
    driven.check();
}

#[test]
fn what_they_call_counts_beside_a_reply_that_cost_more_than_was_set_aside() {
    let mut driven =
        Driven::start(AgentSpec { budget: Budget { tokens: Some(1_000), ..Budget::default() }, ..agent() });
    called(&mut driven, 500, 0);
    driven
        .report(Report::Replied { reply: reply(&[("pure", "{}")]), usage: Usage { tokens: 600, micros: 1 } })
        .unwrap();
    assert_eq!((end(&driven), driven.run.ledger().spent().tokens), (Some(BudgetName::Tokens), 1_100));
    driven.check();
}
