//! Several open steps: which calls start beside each other, what each step keeps for itself, and what the model gets.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod support;

use std::time::Duration;

use saggar_engine::{
    AgentSpec, Attempt, Body, Budget, BudgetName, ChildEnd, Decision, EffectFailure, Event, Input, Message, Rejected,
    Report, Rules, RunOutcome, RunStatus, Signal, Spending, Usage, Work,
};
use support::{Driven, parallel};

fn open(driven: &Driven) -> Vec<u64> {
    driven.run.open_steps().iter().map(|open| open.step).collect()
}

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

/// What the model has been told since the last reply with calls.
fn told(driven: &Driven) -> Vec<String> {
    let conversation = driven.run.conversation();
    let last = conversation
        .iter()
        .rposition(|message| matches!(message, Message::Assistant(reply) if !reply.calls.is_empty()));
    conversation[last.unwrap() + 1..]
        .iter()
        .map(|message| match message {
            Message::Tool { call, result } => format!("{call} {}", result.content.as_text().unwrap()),
            Message::User(text) => format!("user {}", text.as_text().unwrap()),
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn calls_start_together_as_far_as_their_classes_and_the_breadth_allow() {
    for (most, calls, expected) in [
        (16, &["pure", "keyed", "probeable", "ask_human", "wait"][..], &[2, 3, 4, 5, 6][..]),
        (3, &["pure", "keyed", "probeable", "pure"], &[2, 3, 4]),
        (1, &["pure", "keyed"], &[2]),
        // What may be done only once is alone, and nothing overtakes it.
        (16, &["once", "pure"], &[2]),
        (16, &["pure", "once", "keyed"], &[2]),
        // A call that is answered at once needs no place.
        (16, &["pure", "nonsense", "keyed"], &[2, 4]),
    ] {
        let mut driven = Driven::start(parallel(most));
        let arguments: Vec<String> = (0..).take(calls.len()).map(arguments).collect();
        let calls: Vec<_> = calls.iter().copied().zip(arguments.iter().map(String::as_str)).collect();
        driven.reply(&calls);
        assert_eq!(open(&driven), expected, "{calls:?}");
        driven.check();
    }
}

fn arguments(n: usize) -> String {
    format!("{{\"n\":{n},\"seconds\":60,\"question\":\"{n}?\",\"task\":\"{n}\"}}")
}

#[test]
fn results_are_told_in_the_models_order_and_the_model_is_asked_when_all_are_there() {
    let mut driven = Driven::start(parallel(2));
    driven.reply(&[("pure", "1"), ("keyed", "2"), ("pure", "3"), ("pure", "4")]);
    assert_eq!(open(&driven), [2, 3]);
    assert_eq!(names(&driven.returned_on(3, "two")), ["step_settled", "step_intended"], "the next starts in its place");
    assert_eq!((told(&driven), open(&driven)), (Vec::<String>::new(), vec![2, 4]));
    driven.returned_on(4, "three");
    let note = Signal { id: "a".to_owned(), name: "note".to_owned(), body: Body::text("hurry"), question: None };
    driven.input(Input::Signal(note)).unwrap();
    driven.returned_on(2, "one");
    assert_eq!(told(&driven), ["call_0 one", "call_1 two", "call_2 three"]);
    let events = driven.returned_on(5, "four");
    assert_eq!(names(&events), ["step_settled", "step_intended"]);
    assert_eq!(told(&driven), ["call_0 one", "call_1 two", "call_2 three", "call_3 four", "user hurry"]);
    let messages = driven.run.conversation().len() as u64;
    assert!(
        matches!(events[1], Event::StepIntended { effect: saggar_engine::Effect::CallModel { messages: m }, .. } if m == messages)
    );
    driven.check();
}

#[test]
fn a_message_that_the_model_has_not_seen_keeps_the_run_from_ending() {
    let note = |id: &str| {
        Input::Signal(Signal {
            id: id.to_owned(),
            name: "note".to_owned(),
            body: Body::text("and this"),
            question: None,
        })
    };
    let mut driven = Driven::start(parallel(2));
    driven.input(note("a")).unwrap();
    assert_eq!(names(&driven.reply(&[])), ["step_settled", "step_intended"]);
    assert_eq!(driven.run.conversation().last(), Some(&Message::User(Body::text("and this"))));
    assert_eq!(names(&driven.reply(&[])), ["step_settled", "run_finished"]);
    driven.check();
    // It has an answer, and can't afford another.
    let budget = Budget { steps: Some(1), ..Budget::default() };
    let mut poor = Driven::start(AgentSpec { budget, ..parallel(2) });
    poor.input(note("a")).unwrap();
    poor.reply(&[]);
    assert_eq!(poor.run.outcome(), Some(&RunOutcome::Completed { answer: Body::text("done") }));
    poor.check();
}

#[test]
fn a_lost_worker_leaves_each_step_to_its_class() {
    let mut driven = Driven::start(parallel(16));
    driven.reply(&[
        ("pure", "1"),
        ("keyed", "2"),
        ("probeable", "3"),
        ("ask_human", "{\"question\":\"?\"}"),
        ("wait", "{\"seconds\":9}"),
    ]);
    let keys: Vec<_> = driven.run.pending().map(|pending| pending.key).collect();
    driven.returned_on(3, "two");
    let events = driven.input(Input::claim(2)).unwrap();
    assert_eq!(names(&events), ["claimed", "step_intended", "step_probed"]);
    let works: Vec<_> =
        driven.run.pending().map(|pending| (pending.key, matches!(pending.work, Work::Probe(_)))).collect();
    assert_eq!(works, [(keys[0].clone(), false), (keys[2].clone(), true)]);
    // Of all that were open the lost worker was doing only these.
    let attempts: Vec<_> = driven.run.open_steps().iter().map(|open| (open.step, open.attempt, open.deaths)).collect();
    assert_eq!(attempts, [(2, 2, 1), (4, 1, 1), (5, 1, 0), (6, 1, 0)]);
    driven.check();
}

#[test]
fn each_step_has_its_own_retries_delay_question_and_decision() {
    let mut driven = Driven::start(parallel(16));
    let ask = "{\"question\":\"?\"}";
    driven.reply(&[("pure", "1"), ("probeable", "2"), ("keyed", "3"), ("ask_human", ask), ("ask_human", ask)]);
    let failure = EffectFailure::new("broken", "it broke", true);
    driven.report_on(2, Report::Failed { failure, usage: Usage::default() }).unwrap();
    driven.report_on(4, Report::Delayed { reason: "no room".to_owned() }).unwrap();
    driven.report_on(3, Report::unknown("lost")).unwrap();
    driven.report_on(3, Report::unknown("nobody knows")).unwrap();
    assert_eq!(driven.run.status(), RunStatus::Parked { step: 3 }, "a person is needed most");
    let decide = |step, decision| Input::Decide { step, attempt: Some(1), decision };
    assert_eq!(driven.input(decide(2, Decision::Retry)), Err(Rejected::NotAwaited), "not that one");
    driven.input(decide(3, Decision::Done(Body::text("it was")))).unwrap();
    assert_eq!((driven.run.status(), driven.run.open_questions().collect::<Vec<_>>()), (RunStatus::Asking, vec![5, 6]));
    let answer = |question: u64, id: &str| {
        let (id, body) = (id.to_owned(), Body::text(format!("to {question}")));
        Input::Signal(Signal { id, name: "answer".to_owned(), body, question: Some(question) })
    };
    driven.input(answer(6, "a")).unwrap();
    assert_eq!(driven.input(answer(6, "b")), Ok(Vec::new()), "the same again");
    assert_eq!(open(&driven), [2, 4, 5]);
    let RunStatus::Asking = driven.run.status() else { panic!("it asks") };
    driven.now = driven.run.wakes_at().unwrap();
    driven.input(Input::Tick).unwrap();
    assert!(driven.run.open_steps().iter().any(|open| (open.step, open.attempt) == (2, 2)), "it is tried again");
    driven.input(answer(5, "c")).unwrap();
    driven.returned_on(2, "one");
    driven.now = driven.run.wakes_at().unwrap();
    driven.input(Input::Tick).unwrap();
    driven.returned_on(4, "three");
    assert_eq!(told(&driven), ["call_0 one", "call_1 it was", "call_2 three", "call_3 to 5", "call_4 to 6"]);
    driven.check();
}

#[test]
fn nothing_starts_in_a_paused_run_and_all_goes_on_when_it_is_resumed() {
    let mut driven = Driven::start(parallel(2));
    driven.reply(&[("pure", "1"), ("probeable", "2"), ("pure", "3")]);
    driven.input(Input::Pause).unwrap();
    driven.returned_on(2, "one");
    assert_eq!(names(&driven.input(Input::claim(2)).unwrap()), ["claimed", "step_interrupted"]);
    assert_eq!((driven.run.status(), driven.run.pending().next()), (RunStatus::Paused, None));
    let events = driven.input(Input::Resume).unwrap();
    assert_eq!(names(&events), ["resumed", "step_probed", "step_intended"]);
    assert_eq!(open(&driven), [3, 4]);
    driven.check();
}

#[test]
fn a_call_starts_when_its_whole_reservation_fits_beside_the_others() {
    let budget = Budget { tool_calls: Some(3), children: Some(2), steps: Some(100), ..Budget::default() };
    let mut driven = Driven::start(AgentSpec { budget, ..parallel(16) });
    let task = |n: u8| format!("{{\"task\":\"{n}\"}}");
    let (one, two) = (task(1), task(2));
    driven.reply(&[("delegate", &one), ("delegate", &two), ("pure", "3")]);
    // Both get a share, and what comes after them keeps its own.
    assert_eq!(open(&driven), [2, 3, 4]);
    let reserved: Vec<_> = driven.run.open_steps().iter().map(|open| open.reserved.steps).collect();
    assert_eq!(reserved, [49, 49, 1]);
    assert_eq!(driven.run.ledger().spent_at_most().steps, 100);
    let children: Vec<_> = driven.run.children().cloned().collect();
    let end = |child: usize| {
        let spent = Spending { steps: 3, ..Spending::default() };
        ChildEnd { child: children[child].clone(), outcome: RunOutcome::Completed { answer: Body::text("ok") }, spent }
    };
    driven.input(Input::ChildEnded(end(1))).unwrap();
    assert_eq!(driven.input(Input::ChildEnded(end(1))), Err(Rejected::NotAwaited));
    driven.returned_on(4, "three");
    driven.input(Input::ChildEnded(end(0))).unwrap();
    assert_eq!(told(&driven), ["call_0 ok", "call_1 ok", "call_2 three"]);
    driven.reply(&[("pure", "4")]);
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::BudgetExceeded { budget: BudgetName::ToolCalls, answer: None }));
    driven.check();
}

#[test]
fn a_call_that_does_not_fit_waits_for_what_the_others_leave_before_it_ends_the_run() {
    let budget = Budget { tool_calls: Some(2), ..Budget::default() };
    let mut driven = Driven::start(AgentSpec { budget, ..parallel(16) });
    driven.reply(&[("pure", "1"), ("pure", "2"), ("pure", "3")]);
    assert_eq!((open(&driven), driven.run.outcome()), (vec![2, 3], None));
    assert_eq!(names(&driven.returned_on(2, "one")), ["step_settled"], "it still doesn't fit");
    assert_eq!(names(&driven.returned_on(3, "two")), ["step_settled", "run_finished"]);
    driven.check();
    // The same for a loop.
    let mut looping = Driven::start(AgentSpec { repeats_max: 2, ..parallel(16) });
    looping.reply(&[("pure", "1"), ("pure", "1"), ("pure", "1")]);
    assert_eq!(open(&looping), [2, 3]);
    looping.returned_on(3, "b");
    looping.returned_on(2, "a");
    assert!(matches!(looping.run.outcome(), Some(RunOutcome::Loop { times: 3, .. })));
    looping.check();
}

#[test]
fn whatever_ends_a_run_abandons_all_that_is_open() {
    for end in ["cancel", "late", "abandon", "retries"] {
        let budget = Budget { wall_ms: Some(60_000), retries: Some(0), ..Budget::default() };
        let mut driven = Driven::start(AgentSpec { budget, ..parallel(16) });
        driven.reply(&[("probeable", "1"), ("pure", "2"), ("delegate", "{\"task\":\"3\"}")]);
        let events = match end {
            "cancel" => driven.input(Input::Cancel).unwrap(),
            "late" => driven.pass(Duration::from_secs(60)),
            "retries" => {
                let failure = EffectFailure::new("broken", "it broke", true);
                driven.report_on(3, Report::Failed { failure, usage: Usage::default() }).unwrap()
            }
            _ => {
                driven.report_on(2, Report::unknown("lost")).unwrap();
                driven.report_on(2, Report::unknown("lost")).unwrap();
                driven.input(Input::Decide { step: 2, attempt: None, decision: Decision::Abandon }).unwrap()
            }
        };
        let abandoned = names(&events).into_iter().filter(|name| *name == "step_abandoned").count();
        assert_eq!(abandoned, if end == "retries" { 2 } else { 3 }, "{end}");
        assert_eq!(names(&events).last(), Some(&"run_finished"), "{end}");
        driven.check();
    }
}

#[test]
fn a_fork_does_every_open_call_again_and_keeps_the_results_that_are_there() {
    let mut driven = Driven::start(parallel(2));
    driven.reply(&[("pure", "1"), ("keyed", "2"), ("probeable", "3"), ("pure", "4")]);
    driven.returned_on(3, "two");
    assert_eq!(open(&driven), [2, 4]);
    let keys: Vec<_> = driven.run.pending().map(|pending| pending.key).collect();
    let run = saggar_domain::RunId::from_random([9; 16]);
    let fork = Input::Fork {
        run,
        generation: 1,
        message: Some(Body::text("x")),
        is_logical_only: true,
        does_again: true,
        files: None,
    };
    driven.input(fork).unwrap();
    assert_eq!(open(&driven), Vec::<u64>::new());
    driven.input(Input::claim(1)).unwrap();
    assert_eq!(open(&driven), [5, 6], "with steps of its own");
    assert!(driven.run.pending().all(|pending| !keys.contains(&pending.key)));
    driven.returned_on(6, "three");
    driven.returned_on(5, "one");
    driven.returned_on(7, "four");
    assert_eq!(told(&driven), ["call_0 one", "call_1 two", "call_2 three", "call_3 four", "user x"]);
    driven.check();
    // One that may be done only once isn't.
    let mut careful = Driven::start(parallel(2));
    careful.reply(&[("probeable", "1"), ("pure", "2")]);
    careful.report_on(2, Report::unknown("lost")).unwrap();
    careful.report_on(2, Report::unknown("lost")).unwrap();
    let run = saggar_domain::RunId::from_random([9; 16]);
    let fork = Input::Fork { run, generation: 1, message: None, is_logical_only: true, does_again: true, files: None };
    assert_eq!(careful.input(fork), Err(Rejected::Undecided { step: 2 }));
}

#[test]
fn a_worker_of_older_rules_starts_nothing_beside_what_is_open() {
    let mut driven = Driven::start(parallel(16));
    driven.input(Input::Claim { epoch: 2, rules: Rules::FIRST }).unwrap();
    driven.reply(&[("pure", "1"), ("pure", "2")]);
    assert_eq!(open(&driven), [2]);
    driven.input(Input::claim(3)).unwrap();
    assert_eq!(open(&driven), [2, 3], "the next worker does");
    assert!(driven.run.open_steps().iter().all(|open| open.phase == Attempt::Doing));
    driven.check();
}
