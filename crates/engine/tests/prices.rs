//! What model calls may come to: set aside before they start, by the prices that the journal has.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod support;

use std::time::Duration;

use saggar_domain::model::{Micros, Price, Prices, Rate, Tariff};
use saggar_engine::{
    AgentSpec, Budget, BudgetName, EffectFailure, Event, Input, Report, RunOutcome, Settled, Spending, Usage,
};
use support::{Driven, agent, reply};

/// $1 for a million tokens of input, and so much for a million of output.
fn tariff(output: u64) -> Box<Tariff> {
    let prices = Prices { input: Price(1_000_000), output: Price(output), ..Prices::default() };
    let rates = vec![Rate { prices, output_tokens_max: None }];
    Box::new(Tariff { rates, at_once: 1, retries: 0, fixed_tokens: 1_000 })
}

fn priced(budget: Budget, output: u64) -> Driven {
    let mut driven = Driven::unclaimed(AgentSpec { budget, ..agent() });
    driven.input(Input::Priced(tariff(output))).unwrap();
    driven.input(Input::claim(1)).unwrap();
    driven
}

/// What was set aside for the newest intent.
fn reserved(events: &[Event]) -> Spending {
    let reserved = events.iter().rev().find_map(|event| match event {
        Event::StepIntended { reserved, .. } => Some(*reserved),
        _ => None,
    });
    reserved.expect("a step was intended")
}

fn ends_for(events: &[Event], budget: BudgetName) -> bool {
    events.iter().any(
        |event| matches!(event, Event::RunFinished { outcome: RunOutcome::BudgetExceeded { budget: other, .. }, .. } if *other == budget),
    )
}

#[test]
fn a_call_sets_aside_its_counted_input_and_the_longest_reply_at_their_prices() {
    let driven = priced(Budget { micros: Some(1_000_000), ..Budget::default() }, 10_000_000);
    let first = reserved(&driven.journal);
    // The task is a few tokens beside the fixed 1,000, and a reply has at most 100.
    let input = first.tokens - 100;
    assert!((1_000..1_200).contains(&input), "{first:?}");
    assert_eq!(first.micros, input + 1_000);
    driven.check();
}

#[test]
fn a_call_whose_whole_reservation_does_not_fit_never_starts() {
    let needed = reserved(&priced(Budget { micros: Some(u64::MAX), ..Budget::default() }, 10_000_000).journal);
    let exactly = priced(Budget { micros: Some(needed.micros), ..Budget::default() }, 10_000_000);
    assert!(exactly.run.outcome().is_none());
    let short = priced(Budget { micros: Some(needed.micros - 1), ..Budget::default() }, 10_000_000);
    assert!(ends_for(&short.journal, BudgetName::Micros), "{:?}", short.journal);
    assert!(!short.journal.iter().any(|event| matches!(event, Event::StepIntended { .. })));
    let short = priced(Budget { tokens: Some(needed.tokens - 1), ..Budget::default() }, 10_000_000);
    assert!(ends_for(&short.journal, BudgetName::Tokens), "{:?}", short.journal);
    short.check();
}

#[test]
fn what_a_provider_bills_beyond_a_reservation_is_recorded_and_is_the_whole_overshoot() {
    let limit = 5_000;
    let mut driven = priced(Budget { micros: Some(limit), ..Budget::default() }, 10_000_000);
    let usage = Usage { tokens: 5_000, micros: 9_000 };
    let events = driven.report(Report::Replied { reply: reply(&[("pure", "{}")]), usage }).unwrap();
    assert!(ends_for(&events, BudgetName::Micros), "nothing more starts: {events:?}");
    assert_eq!(driven.run.ledger().spent().micros, 9_000);
    driven.check();
}

#[test]
fn prices_that_change_count_from_the_next_call() {
    let mut driven = priced(Budget { micros: Some(1_000_000), ..Budget::default() }, 10_000_000);
    assert_eq!(driven.input(Input::Priced(tariff(10_000_000))).unwrap(), [], "nothing has changed");
    let changed = driven.input(Input::Priced(tariff(20_000_000))).unwrap();
    assert!(matches!(changed[..], [Event::Priced { .. }]), "{changed:?}");
    let before = reserved(&driven.journal);
    driven.reply(&[("pure", "{}")]);
    let events = driven.returned("x");
    let after = reserved(&events);
    assert_eq!(after.micros - before.micros, 1_000 + (after.tokens - before.tokens), "100 tokens cost $10 more");
    driven.check();
}

#[test]
fn a_retry_is_not_earlier_than_the_provider_asks_and_is_reserved_anew() {
    let mut driven = priced(Budget { micros: Some(1_000_000), ..Budget::default() }, 10_000_000);
    let asked = EffectFailure { retry_after_ms: Some(90_000), ..EffectFailure::new("rate_limited", "wait", true) };
    driven.report(Report::Failed { failure: asked.clone(), usage: Usage { tokens: 7, micros: 7 } }).unwrap();
    assert_eq!(driven.pass(Duration::from_millis(89_999)), []);
    let again = driven.pass(Duration::from_millis(1));
    assert!(matches!(again[..], [Event::StepIntended { attempt: 2, .. }]), "{again:?}");
    // A short wait doesn't shorten the policy's own.
    let asked = EffectFailure { retry_after_ms: Some(1), ..asked };
    driven.report(Report::Failed { failure: asked, usage: Usage::default() }).unwrap();
    assert_eq!(driven.pass(Duration::from_millis(499)), []);
    driven.check();
}

#[test]
fn a_call_that_was_lost_with_its_worker_counts_as_much_as_was_reserved() {
    let mut driven = priced(Budget { micros: Some(1_000_000), ..Budget::default() }, 10_000_000);
    let first = reserved(&driven.journal);
    driven.input(Input::claim(2)).unwrap();
    let spent = driven.run.ledger().spent();
    assert_eq!((spent.tokens, spent.micros, spent.retries), (first.tokens, first.micros, 1));
    assert_eq!(reserved(&driven.journal), first, "and as much is reserved again");
    // A failure whose cost is known counts that.
    let failure = EffectFailure::new("torn", "it broke", true);
    driven.report(Report::Failed { failure, usage: Usage { tokens: 7, micros: 3 } }).unwrap();
    driven.pass(Duration::from_secs(60));
    assert_eq!(driven.run.ledger().spent().micros, first.micros + 3);
    driven.check();
}

#[test]
fn a_call_that_is_lost_in_a_paused_run_counts_too() {
    let mut driven = priced(Budget { micros: Some(1_000_000), ..Budget::default() }, 10_000_000);
    let first = reserved(&driven.journal);
    driven.input(Input::Pause).unwrap();
    driven.input(Input::claim(2)).unwrap();
    driven.input(Input::Resume).unwrap();
    assert_eq!(driven.run.ledger().spent().micros, first.micros);
    driven.check();
}

#[test]
fn a_reservation_that_grew_is_refused_before_the_retry() {
    let mut driven = priced(Budget { micros: Some(2_500), ..Budget::default() }, 10_000_000);
    driven.input(Input::Priced(tariff(20_000_000))).unwrap();
    let failure = EffectFailure::new("torn", "it broke", true);
    let events = driven.report(Report::Failed { failure, usage: Usage::default() }).unwrap();
    assert!(matches!(events[0], Event::StepSettled { result: Settled::GaveUp(_), .. }), "{events:?}");
    assert!(ends_for(&events, BudgetName::Micros), "{events:?}");
    assert_eq!(tariff(20_000_000).at_most(0, 100).cost, Micros(2_000));
    driven.check();
}
