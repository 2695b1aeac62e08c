//! Effects are not repeated, not done unasked, and not done beyond their reservation: pauses, worker deaths, forks
//! and money.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod support;

use std::time::Duration;

use saggar_domain::RunId;
use saggar_engine::{
    AgentSpec, Body, Budget, BudgetName, BuiltIn, Decision, Effect, EffectFailure, Event, Input, ModelReply, Rejected,
    Report, Rules, Run, RunOutcome, RunStatus, ToolCall, ToolResult, Usage, Work,
};
use support::{Driven, agent, reply};

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

fn failed(micros: u64) -> Report {
    let failure = EffectFailure::new("broken", "it broke", true);
    Report::Failed { failure, usage: Usage { tokens: 0, micros } }
}

/// A run with a tool call in progress.
fn under_way(tool: &str) -> Driven {
    let mut driven = Driven::start(agent());
    driven.reply(&[(tool, "{}"), ("pure", "{\"next\":1}")]);
    driven
}

fn lose_worker(driven: &mut Driven) -> Vec<Event> {
    let epoch = driven.run.epoch() + 1;
    driven.input(Input::claim(epoch)).unwrap()
}

#[test]
fn a_paused_run_does_nothing_again_until_it_is_resumed() {
    for (tool, then) in [("pure", "step_intended"), ("keyed", "step_intended"), ("probeable", "step_probed")] {
        let mut driven = under_way(tool);
        driven.input(Input::Pause).unwrap();
        assert_eq!(names(&lose_worker(&mut driven)), ["claimed", "step_interrupted"], "{tool}");
        assert_eq!((driven.run.status(), driven.run.pending().next()), (RunStatus::Paused, None), "{tool}");
        assert_eq!(names(&lose_worker(&mut driven)), ["claimed"], "another worker waits too");
        assert_eq!(names(&driven.input(Input::Resume).unwrap()), ["resumed", then], "{tool}");
        assert!(driven.run.pending().next().is_some());
        driven.check();
    }
    let mut model = Driven::start(agent());
    model.input(Input::Pause).unwrap();
    assert_eq!(names(&lose_worker(&mut model)), ["claimed", "step_interrupted"]);
    model.check();
}

#[test]
fn what_was_never_done_or_is_to_be_retried_waits_for_the_resume_too() {
    let mut probed = under_way("probeable");
    lose_worker(&mut probed);
    probed.input(Input::Pause).unwrap();
    assert_eq!(names(&probed.report(Report::NeverDone).unwrap()), ["step_interrupted"]);
    assert_eq!(names(&probed.input(Input::Resume).unwrap()), ["resumed", "step_probed"]);
    probed.check();
    let mut parked = under_way("once");
    lose_worker(&mut parked);
    parked.input(Input::Pause).unwrap();
    let retry = Input::Decide { step: 2, attempt: None, decision: Decision::Retry };
    assert_eq!(names(&parked.input(retry).unwrap()), ["step_decided", "step_interrupted"]);
    assert_eq!(parked.run.status(), RunStatus::Paused);
    assert_eq!(names(&parked.input(Input::Resume).unwrap()), ["resumed", "step_intended"]);
    parked.check();
}

#[test]
fn a_decision_about_one_attempt_says_nothing_about_the_next() {
    let mut driven = under_way("once");
    lose_worker(&mut driven);
    let retry = |attempt| Input::Decide { step: 2, attempt: Some(attempt), decision: Decision::Retry };
    assert_eq!(driven.input(retry(2)), Err(Rejected::NotAwaited));
    assert_eq!(names(&driven.input(retry(1)).unwrap()), ["step_decided", "step_intended"]);
    // The worker is lost again, while the same decision lies in the inbox a second time.
    assert_eq!(names(&lose_worker(&mut driven)), ["claimed", "step_unknown"]);
    assert_eq!(driven.input(retry(1)), Err(Rejected::NotAwaited));
    assert_eq!(names(&driven.input(retry(2)).unwrap()), ["step_decided", "step_intended"]);
    driven.check();
}

#[test]
fn attempts_that_ended_with_their_worker_are_no_failures() {
    let mut driven = under_way("keyed");
    for _ in 0..5 {
        assert_eq!(names(&lose_worker(&mut driven)), ["claimed", "step_intended"]);
    }
    // All three allowed attempts are still available for failures.
    for _ in 0..2 {
        assert_eq!(names(&driven.report(failed(0)).unwrap()), ["step_failed"]);
        driven.pass(Duration::from_secs(60));
    }
    assert_eq!(names(&driven.report(failed(0)).unwrap()), ["step_settled", "step_intended"]);
    driven.check();
}

#[test]
fn a_step_that_no_worker_survives_parks() {
    for tool in ["pure", "keyed", "probeable"] {
        let mut driven = under_way(tool);
        let mut deaths = 0;
        while !matches!(driven.run.status(), RunStatus::Parked { .. }) {
            deaths += 1;
            assert!(deaths <= 20, "{tool}");
            lose_worker(&mut driven);
            if matches!(driven.run.pending().next().map(|pending| pending.work), Some(Work::Probe(_))) {
                driven.report(Report::NeverDone).unwrap();
            }
        }
        assert_eq!(deaths, 20, "{tool}");
        driven.check();
    }
}

fn fork(driven: &Driven) -> Result<Driven, Rejected> {
    let (run, journal) = (Run::from_events(&driven.journal), driven.journal.clone());
    let mut fork = Driven { run, journal, now: driven.now };
    let (run, message) = (RunId::from_random([9; 16]), None);
    fork.input(Input::Fork { run, generation: 1, message, is_logical_only: true, does_again: true, files: None })?;
    fork.input(Input::claim(1)).unwrap();
    Ok(fork)
}

#[test]
fn a_fork_does_the_open_call_again_with_a_key_of_its_own() {
    for tool in ["pure", "keyed", "probeable"] {
        let driven = under_way(tool);
        let key = driven.run.pending().next().unwrap().key.clone();
        let mut fork = fork(&driven).unwrap();
        let pending = fork.run.pending().next().unwrap();
        assert!(matches!(pending.work, Work::CallTool(call) if call.tool == tool), "{tool}");
        assert_ne!(pending.key, key);
        fork.returned("one");
        assert!(
            matches!(fork.run.pending().next().unwrap().work, Work::CallTool(call) if call.tool == "pure"),
            "then the next"
        );
        fork.check();
    }
    let mut asking = Driven::start(agent());
    asking.reply(&[("ask_human", "{\"question\":\"may I?\"}")]);
    let fork = fork(&asking).unwrap();
    assert_eq!(
        (fork.run.status(), fork.run.open_questions().next()),
        (RunStatus::Asking, Some(3)),
        "it asks by itself"
    );
}

#[test]
fn what_may_have_been_done_once_is_not_forked_away() {
    let mut driven = under_way("once");
    assert_eq!(fork(&driven).err(), Some(Rejected::Undecided { step: 2 }), "under way");
    lose_worker(&mut driven);
    assert_eq!(fork(&driven).err(), Some(Rejected::Undecided { step: 2 }), "parked");
    driven.input(Input::Decide { step: 2, attempt: None, decision: Decision::Done(Body::text("it was")) }).unwrap();
    assert!(fork(&driven).is_ok(), "decided");
}

#[test]
fn forks_of_older_journals_drop_the_open_call_as_they_did() {
    let driven = under_way("keyed");
    let mut fork = Driven { run: driven.run.clone(), journal: driven.journal.clone(), now: driven.now };
    let (run, message) = (RunId::from_random([9; 16]), None);
    fork.input(Input::Fork { run, generation: 1, message, is_logical_only: true, does_again: false, files: None })
        .unwrap();
    fork.input(Input::Claim { epoch: 1, rules: Rules::FIRST }).unwrap();
    assert!(matches!(fork.run.pending().next().unwrap().work, Work::CallTool(call) if call.tool == "pure"));
    fork.check();
}

fn with_money(micros: u64, reply_micros_max: Option<u64>) -> Driven {
    let mut spec = AgentSpec { budget: Budget { micros: Some(micros), ..Budget::default() }, ..agent() };
    spec.model.reply_micros_max = reply_micros_max;
    Driven::start(spec)
}

/// The model replies at this price until the run ends. Returns the amount spent.
fn spend(driven: &mut Driven, price: u64) -> u64 {
    for turn in 0..50 {
        let arguments = format!("{{\"n\":{turn}}}");
        let reply = reply(&[("pure", arguments.as_str())]);
        driven.report(Report::Replied { reply, usage: Usage { tokens: 0, micros: price } }).unwrap();
        if driven.run.outcome().is_some() {
            break;
        }
        driven.returned("x");
        if driven.run.outcome().is_some() {
            break;
        }
    }
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::BudgetExceeded { budget: BudgetName::Micros, answer: None }));
    driven.check();
    driven.run.ledger().spent().micros
}

#[test]
fn money_is_set_aside_before_it_is_spent() {
    assert_eq!(spend(&mut with_money(100, None), 50), 100, "the limit, and nothing beyond");
    assert_eq!(spend(&mut with_money(120, None), 50), 100, "a third call could cost 50, and 20 are left");
    assert_eq!(spend(&mut with_money(100, None), 1000), 1000, "what the first call costs is not known before");
    let stated = with_money(100, Some(1000));
    assert_eq!(
        stated.run.outcome(),
        Some(&RunOutcome::BudgetExceeded { budget: BudgetName::Micros, answer: None }),
        "where it is, it is"
    );
    stated.check();
    assert_eq!(
        with_money(0, None).run.outcome(),
        Some(&RunOutcome::BudgetExceeded { budget: BudgetName::Micros, answer: None })
    );
}

#[test]
fn a_failed_call_that_cost_something_is_not_tried_beyond_the_limit() {
    let mut driven = with_money(150, None);
    assert_eq!(names(&driven.report(failed(60)).unwrap()), ["step_failed"], "90 are left, and the next may cost 60");
    driven.pass(Duration::from_secs(60));
    assert_eq!(driven.run.ledger().reserved().micros, 60);
    assert_eq!(names(&driven.report(failed(60)).unwrap()), ["step_settled", "run_finished"]);
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::BudgetExceeded { budget: BudgetName::Micros, answer: None }));
    driven.check();
}

#[test]
fn long_arguments_of_the_engines_own_tools_are_those_that_were_read() {
    let blob = |length: u64| Body::Blob { hash: "ab".repeat(32), length };
    let call = |tool: &str, read: Option<BuiltIn>| ToolCall {
        id: "c".to_owned(),
        tool: tool.to_owned(),
        arguments: blob(20_000),
        read: read.map(Box::new),
        invalid: None,
        class: None,
    };
    let question = BuiltIn::AskHuman { question: blob(19_000) };
    let task = BuiltIn::Delegate { task: blob(19_000), agent: None };
    for (tool, read) in
        [("wait", BuiltIn::Wait { seconds: 60, signal: None }), ("ask_human", question), ("delegate", task)]
    {
        let mut driven = Driven::start(agent());
        let reply = ModelReply::new(Body::text(""), vec![call(tool, Some(read))]);
        driven.report(Report::Replied { reply, usage: Usage::default() }).unwrap();
        match (&driven.run.open_step().unwrap().effect, tool) {
            (Effect::Wait { until, .. }, "wait") => assert_eq!(*until, driven.now.after(Duration::from_secs(60))),
            (Effect::AskHuman { question: body, .. }, "ask_human")
            | (Effect::Delegate { task: body, .. }, "delegate") => {
                assert_eq!(*body, blob(19_000));
            }
            (other, _) => panic!("{tool}: {other:?}"),
        }
        driven.check();
    }
    let mut unread = Driven::start(agent());
    let reply = ModelReply::new(Body::text(""), vec![call("wait", None)]);
    let events = unread.report(Report::Replied { reply, usage: Usage::default() }).unwrap();
    let told = |event: &Event| {
        matches!(
            event,
            Event::StepSettled { result: saggar_engine::Settled::Returned(ToolResult { is_error: true, .. }), .. }
        )
    };
    assert!(events.iter().any(told), "as an older journal has it");
    unread.check();
}

#[test]
fn a_malformed_call_is_answered_with_what_is_wrong_and_nothing_is_performed() {
    let mut driven = Driven::start(agent());
    let call = |tool: &str, invalid: Option<&str>| ToolCall {
        id: tool.to_owned(),
        tool: tool.to_owned(),
        arguments: Body::text("{}"),
        read: None,
        invalid: invalid.map(str::to_owned),
        class: None,
    };
    let calls = vec![call("once", Some("\"n\" is missing")), call("wait", Some("no seconds")), call("pure", None)];
    let reply = ModelReply::new(Body::text(""), calls);
    driven.report(Report::Replied { reply, usage: Usage::default() }).unwrap();
    assert!(matches!(driven.run.pending().next().unwrap().work, Work::CallTool(call) if call.tool == "pure"));
    let told: Vec<_> = driven.run.conversation()[2..]
        .iter()
        .map(|message| match message {
            saggar_engine::Message::Tool { call, result } => (call.as_str(), result.is_error, result.content.as_text()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [("once", true, Some("\"n\" is missing")), ("wait", true, Some("no seconds"))]);
    driven.check();
}
