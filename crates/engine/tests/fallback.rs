//! What an agent says about the places where its run would stop for a person.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod support;

use std::time::Duration;

use saggar_engine::{
    AgentSpec, Body, Decision, EffectFailure, Event, Fallbacks, Input, Report, RunOutcome, RunStatus, Unanswered,
    Usage, WhenFailing, WhenUncertain,
};
use support::{Driven, agent, reply};

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

fn start(on: Fallbacks) -> Driven {
    Driven::start(AgentSpec { on, ..agent() })
}

fn uncertain(uncertain: WhenUncertain) -> Fallbacks {
    Fallbacks { uncertain, ..Fallbacks::default() }
}

fn lose_worker(driven: &mut Driven) -> Vec<Event> {
    let epoch = driven.run.epoch() + 1;
    driven.input(Input::claim(epoch)).unwrap()
}

fn failed(is_passing: bool) -> Report {
    let usage = Usage { tokens: 3, micros: 7 };
    Report::Failed { failure: EffectFailure::new("broken", "it broke", is_passing), usage }
}

#[test]
fn an_unknown_outcome_can_end_the_run() {
    for tool in ["once", "probeable"] {
        let mut driven = start(uncertain(WhenUncertain::Abandon));
        driven.reply(&[(tool, "{}")]);
        let mut events = lose_worker(&mut driven);
        if tool == "probeable" {
            events = driven.report(Report::unknown("it does not say")).unwrap();
        }
        let end = ["step_unknown", "step_decided", "step_abandoned", "run_finished"];
        assert_eq!(names(&events)[events.len() - 4..], end, "{tool}");
        assert_eq!(driven.run.outcome(), Some(&RunOutcome::Abandoned { step: 2 }));
        driven.check();
    }
}

#[test]
fn an_unknown_outcome_is_retried_for_tools_that_may_be_and_never_for_once() {
    let mut driven = start(uncertain(WhenUncertain::Retry));
    driven.reply(&[("probeable", "{}")]);
    for _ in 0..2 {
        assert_eq!(names(&driven.report(Report::unknown("lost")).unwrap()), ["step_probed"]);
        assert_eq!(names(&driven.report(Report::unknown("it does not say")).unwrap()), ["step_failed"]);
        driven.pass(Duration::from_secs(60));
    }
    driven.report(Report::unknown("lost")).unwrap();
    let last = driven.report(Report::unknown("it does not say")).unwrap();
    assert_eq!(names(&last), ["step_settled", "step_intended"], "as often as the tool may be attempted");
    driven.check();
    let mut driven = start(uncertain(WhenUncertain::Retry));
    driven.reply(&[("once", "{}")]);
    assert_eq!(names(&lose_worker(&mut driven)), ["claimed", "step_unknown"]);
    assert_eq!(driven.run.status(), RunStatus::Parked { step: 2 });
    driven.check();
}

#[test]
fn a_person_is_asked_about_a_call_that_keeps_failing() {
    let on = Fallbacks { failing: WhenFailing::Ask, ..Fallbacks::default() };
    // Of the model.
    let mut driven = start(on.clone());
    assert_eq!(names(&driven.report(failed(false)).unwrap()), ["step_failed", "step_unknown"]);
    assert_eq!(driven.run.status(), RunStatus::Parked { step: 1 });
    assert_eq!(driven.run.ledger().spent().micros, 7, "it was billed");
    let retry = Input::Decide { step: 1, attempt: Some(1), decision: Decision::Retry };
    assert_eq!(names(&driven.input(retry).unwrap()), ["step_decided", "step_intended"]);
    driven.report(Report::Replied { reply: reply(&[("pure", "{}")]), usage: Usage::default() }).unwrap();
    // Of a tool, when it has had all its attempts.
    for _ in 0..2 {
        assert_eq!(names(&driven.report(failed(true)).unwrap()), ["step_failed"]);
        driven.pass(Duration::from_secs(60));
    }
    assert_eq!(names(&driven.report(failed(true)).unwrap()), ["step_failed", "step_unknown"]);
    let done = Input::Decide { step: 2, attempt: None, decision: Decision::Done(Body::text("by hand")) };
    assert_eq!(names(&driven.input(done).unwrap()), ["step_decided", "step_settled", "step_intended"]);
    driven.check();
}

#[test]
fn a_question_that_nobody_answers_gets_an_answer_or_fails_the_run() {
    for answer in [Some("blue"), None] {
        let answer_of = answer.map(Body::text);
        let unanswered = Some(Unanswered { after_ms: 60_000, answer: answer_of });
        let mut driven = start(Fallbacks { unanswered, ..Fallbacks::default() });
        driven.reply(&[("ask_human", "{\"question\":\"which colour?\"}")]);
        assert_eq!(driven.run.status(), RunStatus::Asking);
        assert_eq!(driven.run.next_deadline(), Some(driven.now.after(Duration::from_secs(60))));
        assert_eq!(driven.pass(Duration::from_secs(59)), []);
        driven.input(Input::Pause).unwrap();
        assert_eq!(driven.pass(Duration::from_secs(1)), [], "a paused run waits");
        assert_eq!(driven.run.next_deadline(), None);
        driven.input(Input::Resume).unwrap();
        let events = driven.pass(Duration::ZERO);
        match answer {
            Some(_) => assert_eq!(names(&events), ["step_settled", "step_intended"]),
            None => {
                assert_eq!(names(&events), ["step_settled", "run_finished"]);
                let Some(RunOutcome::Failed { failure }) = driven.run.outcome() else { panic!("{events:?}") };
                assert_eq!(failure.message, "nobody has answered within 60 seconds");
            }
        }
        driven.check();
    }
}
