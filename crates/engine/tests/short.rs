//! What happens when a budget doesn't allow what comes next, as the agent's author wants it.

mod support;

use std::time::Duration;

use saggar_domain::RunId;
use saggar_engine::{
    AgentSpec, Body, Budget, BudgetName, ChildOf, Effect, EffectFailure, Event, Fallbacks, Input, Message, Rejected,
    Report, Run, RunOutcome, RunStatus, Usage, WhenOutOfBudget, Work,
};

use support::{Driven, agent, parallel, reply};

fn short(on: WhenOutOfBudget, budget: Budget) -> AgentSpec {
    AgentSpec { on: Fallbacks { budget: on, ..Fallbacks::default() }, budget, ..agent() }
}

fn steps(steps: u64) -> Budget {
    Budget { steps: Some(steps), ..Budget::default() }
}

fn raise(id: &str, more: Budget) -> Input {
    Input::Raise { id: id.to_owned(), more }
}

fn exceeded(budget: BudgetName, answer: Option<&str>) -> Option<RunOutcome> {
    Some(RunOutcome::BudgetExceeded { budget, answer: answer.map(Body::text) })
}

#[test]
fn a_run_that_may_ask_waits_until_its_budget_is_raised_and_goes_on_where_it_was() {
    for (budget, more, name) in [
        (steps(1), steps(10), BudgetName::Steps),
        (
            Budget { tool_calls: Some(0), ..Budget::default() },
            Budget { tool_calls: Some(5), ..Budget::default() },
            BudgetName::ToolCalls,
        ),
        (
            Budget { tokens: Some(115), ..Budget::default() },
            Budget { tokens: Some(500), ..Budget::default() },
            BudgetName::Tokens,
        ),
    ] {
        let mut driven = Driven::start(short(WhenOutOfBudget::Ask, budget));
        driven.reply(&[("pure", "{}")]);
        if name == BudgetName::Tokens {
            driven.returned(&"x".repeat(100));
        }
        assert_eq!(driven.run.status(), RunStatus::OutOfBudget { budget: name }, "{name:?}");
        assert_eq!((driven.run.pending().count(), driven.run.next_deadline()), (0, None));
        // A new worker asks nothing of it, and a message doesn't wake it.
        assert_eq!(driven.input(Input::claim(2)).unwrap().len(), 1);
        let spent = driven.run.ledger().spent();
        driven.input(raise("1", more)).unwrap();
        assert_eq!(driven.run.ledger().spent(), spent);
        let limit = driven.run.ledger().limit();
        assert_eq!(driven.input(raise("1", more)), Ok(Vec::new()), "the same request comes twice");
        assert_eq!(driven.run.ledger().limit(), limit);
        let is_call = matches!(driven.run.pending().next().unwrap().work, Work::CallTool(_));
        assert_eq!(is_call, name != BudgetName::Tokens, "{name:?}");
        if is_call {
            driven.returned("fine");
        }
        driven.reply(&[]);
        assert!(matches!(driven.run.outcome(), Some(RunOutcome::Completed { .. })), "{:?}", driven.run.outcome());
        driven.check();
    }
}

#[test]
fn what_is_raised_too_little_is_not_enough_and_what_is_raised_before_holds() {
    let mut driven = Driven::start(short(WhenOutOfBudget::Ask, steps(1)));
    driven.input(raise("2", steps(1))).unwrap();
    driven.reply(&[("pure", "1")]);
    driven.returned("fine");
    assert_eq!(driven.run.status(), RunStatus::OutOfBudget { budget: BudgetName::Steps });
    let events = driven.input(raise("3", Budget { tokens: Some(5), ..Budget::default() })).unwrap();
    assert!(matches!(events[..], [Event::BudgetRaised { .. }, Event::BudgetReached { .. }]), "{events:?}");
    assert_eq!(driven.run.ledger().limit(), steps(2), "a limit that isn't there is not made");
    driven.input(Input::Pause).unwrap();
    driven.input(raise("4", steps(5))).unwrap();
    assert_eq!(driven.run.status(), RunStatus::Paused);
    driven.input(Input::Resume).unwrap();
    driven.reply(&[]);
    driven.check();
}

#[test]
fn time_ends_a_run_even_while_it_asks_and_can_be_raised_before() {
    let wall = |seconds: u64| Budget { wall_ms: Some(seconds * 1000), ..steps(1) };
    let mut driven = Driven::start(short(WhenOutOfBudget::Ask, wall(10)));
    driven.reply(&[("pure", "1")]);
    driven.pass(Duration::from_secs(9));
    driven.input(raise("5", wall(10))).unwrap();
    driven.pass(Duration::from_secs(9));
    assert_eq!(driven.run.outcome(), None);
    driven.returned("fine");
    assert_eq!(driven.run.status(), RunStatus::OutOfBudget { budget: BudgetName::Steps });
    driven.pass(Duration::from_secs(2));
    assert_eq!(driven.run.outcome().cloned(), exceeded(BudgetName::WallMs, None));
    driven.check();
}

#[test]
fn a_child_ends_because_its_budget_is_part_of_its_parents() {
    let mut run = Run::new();
    let child_of = Some(ChildOf { run: RunId::from_random([1; 16]), step: 1, depth: 1 });
    let agent = Box::new(short(WhenOutOfBudget::Ask, steps(0)));
    let now = saggar_domain::Timestamp::from_millis(1);
    let start = Input::Start { run: RunId::from_random([2; 16]), agent, child_of };
    for input in [start, Input::claim(1)] {
        for event in run.decide(now, &input).unwrap() {
            run.apply(&event);
        }
    }
    assert_eq!(run.outcome().cloned(), exceeded(BudgetName::Steps, None));
    let mut run = Run::new();
    let child_of = Some(ChildOf { run: RunId::from_random([1; 16]), step: 1, depth: 1 });
    let start = Input::Start { run: RunId::from_random([2; 16]), agent: Box::new(agent_of(steps(5))), child_of };
    for event in run.decide(now, &start).unwrap() {
        run.apply(&event);
    }
    assert_eq!(run.decide(now, &raise("6", steps(1))), Err(Rejected::ChildsBudget));
}

fn agent_of(budget: Budget) -> AgentSpec {
    AgentSpec { budget, ..agent() }
}

#[test]
fn a_last_call_without_tools_sums_up_within_the_budget() {
    let mut driven = Driven::start(short(WhenOutOfBudget::Finish, steps(4)));
    driven.reply(&[("pure", "1"), ("pure", "2"), ("pure", "3")]);
    driven.returned("one");
    let events = driven.returned("two");
    let Some(Event::StepIntended { effect: Effect::CallModel { .. }, .. }) = events.last() else {
        panic!("{events:?}")
    };
    assert!(driven.run.is_closing());
    let Some(Message::User(note)) = driven.run.conversation().last() else { panic!("the model is told") };
    assert!(note.as_text().unwrap().contains("last reply"));
    // Calls are not made any more.
    let report = Report::Replied { reply: reply(&[("once", "{}")]), usage: Usage { tokens: 1, micros: 1 } };
    driven.report(report).unwrap();
    assert_eq!(driven.run.outcome().cloned(), exceeded(BudgetName::Steps, Some("done")));
    assert_eq!(driven.run.ledger().spent().steps, 4, "it is within the budget");
    driven.check();
}

#[test]
fn the_rest_is_kept_back_from_everything_else() {
    // The last call comes to 100 tokens and its conversation.
    for tokens in (120..1200).step_by(20) {
        let budget = Budget { tokens: Some(tokens), ..Budget::default() };
        let mut driven = Driven::start(short(WhenOutOfBudget::Finish, budget));
        for turn in 0.. {
            if driven.run.outcome().is_some() || driven.run.is_closing() {
                break;
            }
            let calls = reply(&[("pure", &format!("{turn}"))]);
            driven.report(Report::Replied { reply: calls, usage: Usage { tokens: 60, micros: 0 } }).unwrap();
            if driven.run.outcome().is_none() && !driven.run.is_closing() {
                driven.returned("ok");
            }
        }
        let is_enough_for_any = driven.run.last_step() > 0;
        assert_eq!(driven.run.is_closing(), is_enough_for_any, "{tokens}");
        if is_enough_for_any {
            driven.report(Report::Replied { reply: reply(&[]), usage: Usage { tokens: 100, micros: 0 } }).unwrap();
        }
        assert!(matches!(driven.run.outcome(), Some(RunOutcome::BudgetExceeded { .. })));
        assert!(driven.run.ledger().spent().tokens <= tokens, "{tokens}: {:?}", driven.run.ledger());
        driven.check();
    }
}

#[test]
fn children_leave_what_is_kept_back() {
    let budget = Budget { tokens: Some(2000), ..Budget::default() };
    let on = Fallbacks { budget: WhenOutOfBudget::Finish, ..Fallbacks::default() };
    let mut driven = Driven::start(AgentSpec { on, budget, ..parallel(4) });
    driven.reply(&[("delegate", "{\"task\": \"help\"}")]);
    let Effect::Delegate { budget: given, .. } = driven.run.open_step().unwrap().effect.clone() else {
        panic!("a child")
    };
    assert!(given.tokens.unwrap() < 1900, "{given:?}");
    driven.check();
}

#[test]
fn a_last_call_that_fails_leaves_the_budget_as_the_reason() {
    let mut driven = Driven::start(short(WhenOutOfBudget::Finish, steps(2)));
    driven.reply(&[("pure", "1")]);
    assert!(driven.run.is_closing());
    let failure = EffectFailure::new("invalid", "no", false);
    driven.report(Report::Failed { failure, usage: Usage::default() }).unwrap();
    assert_eq!(driven.run.outcome().cloned(), exceeded(BudgetName::Steps, None));
    driven.check();
}

#[test]
fn a_last_call_survives_its_worker_a_pause_and_a_fork() {
    let mut driven = Driven::start(short(WhenOutOfBudget::Finish, steps(2)));
    driven.reply(&[("pure", "1")]);
    driven.input(Input::Pause).unwrap();
    driven.input(Input::claim(2)).unwrap();
    driven.input(Input::Resume).unwrap();
    assert_eq!(driven.run.pending().next().unwrap().work, Work::CallModel);
    assert!(driven.run.is_closing());
    assert_eq!(driven.input(raise("7", steps(5))), Err(Rejected::NotAwaited), "it is too late");
    let fork = Input::Fork {
        run: RunId::from_random([9; 16]),
        generation: 1,
        message: None,
        is_logical_only: false,
        does_again: true,
        files: Default::default(),
    };
    driven.input(fork).unwrap();
    driven.input(Input::claim(1)).unwrap();
    driven.reply(&[]);
    assert!(driven.run.outcome().is_some());
    driven.check();
}

#[test]
fn a_retry_that_the_budget_does_not_allow_is_a_persons_decision_or_the_models_last_word() {
    let budget = Budget { retries: Some(0), ..Budget::default() };
    let failure = EffectFailure::new("timeout", "no answer", true);
    let failed = Report::Failed { failure, usage: Usage::default() };
    let mut asks = Driven::start(short(WhenOutOfBudget::Ask, budget));
    asks.reply(&[("pure", "1")]);
    asks.report(failed.clone()).unwrap();
    assert_eq!(asks.run.status(), RunStatus::Parked { step: 2 });
    asks.check();
    let mut finishes = Driven::start(short(WhenOutOfBudget::Finish, budget));
    finishes.reply(&[("pure", "1")]);
    finishes.report(failed.clone()).unwrap();
    assert!(finishes.run.is_closing());
    finishes.reply(&[]);
    assert_eq!(finishes.run.outcome().cloned(), exceeded(BudgetName::Retries, Some("done")));
    finishes.check();
    let mut ends = Driven::start(short(WhenOutOfBudget::End, budget));
    ends.reply(&[("pure", "1")]);
    ends.report(failed).unwrap();
    assert_eq!(ends.run.outcome().cloned(), exceeded(BudgetName::Retries, None));
    ends.check();
}
