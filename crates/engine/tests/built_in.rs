//! `finish` ends a run with an answer, and `wait` returns a signal, whenever it arrives.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod support;

use std::time::Duration;

use saggar_engine::{AgentSpec, Body, Budget, Event, Input, MESSAGE, Message, RunOutcome, RunStatus, Settled, Signal};
use support::{Driven, agent, parallel};

const FINISH: (&str, &str) = ("finish", r#"{"answer":"42"}"#);
const WAIT: (&str, &str) = ("wait", r#"{"seconds":60,"signal":"built"}"#);

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

fn completed(answer: &str) -> Option<RunOutcome> {
    Some(RunOutcome::Completed { answer: Body::text(answer) })
}

fn signal(driven: &mut Driven, id: &str, name: &str, text: &str) -> Vec<Event> {
    let signal = Signal { id: id.to_owned(), name: name.to_owned(), body: Body::text(text), question: None };
    driven.input(Input::Signal(signal)).unwrap()
}

/// The text of every result that the model was told, and of every message of a person.
fn told(driven: &Driven) -> Vec<String> {
    let text = |message: &Message| match message {
        Message::Tool { result, .. } => Some(result.content.as_text()?.to_owned()),
        Message::User(said) => Some(format!("user: {}", said.as_text()?)),
        Message::System(_) | Message::Summary(_) | Message::Assistant(_) => None,
    };
    driven.run.conversation().iter().filter_map(text).skip(1).collect()
}

#[test]
fn finish_ends_the_run_with_a_text_or_an_object() {
    for (arguments, answer) in [
        (r#"{"answer":"42"}"#, "42"),
        (r#"{"answer":"","output":null}"#, ""),
        (r#"{"output":{"b":[1],"a":"x"}}"#, r#"{"a":"x","b":[1]}"#),
    ] {
        let mut driven = Driven::start(agent());
        let events = driven.reply(&[("finish", arguments)]);
        assert_eq!(names(&events), ["step_settled", "step_intended", "step_settled", "run_finished"]);
        assert_eq!(driven.run.outcome().cloned(), completed(answer));
        assert_eq!(driven.run.ledger().spent().steps, 2);
        driven.check();
    }
    for wrong in ["{}", r#"{"answer":1}"#, r#"{"output":[]}"#, r#"{"answer":"a","output":{}}"#] {
        let mut driven = Driven::start(agent());
        driven.reply(&[("finish", wrong)]);
        assert_eq!((driven.run.status(), told(&driven).len()), (RunStatus::Running, 1), "{wrong}");
        assert!(told(&driven)[0].starts_with("finish needs either"), "{wrong}");
        driven.check();
    }
}

#[test]
fn finish_waits_for_the_calls_before_it_and_those_after_it_are_not_made() {
    let mut driven = Driven::start(parallel(8));
    driven.reply(&[("pure", "{\"n\":1}"), ("keyed", "{\"n\":2}"), FINISH, ("pure", "{\"n\":3}"), ("once", "{}")]);
    assert_eq!(driven.run.open_steps().len(), 2);
    driven.returned_on(3, "two");
    assert_eq!(driven.run.outcome(), None, "a call is still open");
    driven.returned_on(2, "one");
    assert_eq!(driven.run.outcome().cloned(), completed("42"));
    let not_done = "not done: an earlier call of the same reply has finished the run";
    assert_eq!(told(&driven), ["one", "two", "the run is finished", not_done, not_done]);
    driven.check();
}

#[test]
fn a_message_that_the_model_has_not_seen_comes_before_the_end() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("pure", "{}"), FINISH]);
    signal(&mut driven, "s", MESSAGE, "wait, one more thing");
    driven.returned("done");
    assert_eq!(driven.run.outcome(), None);
    let not_yet = "the run goes on: a message has arrived meanwhile. Read it, and finish again";
    assert_eq!(told(&driven), ["done", not_yet, "user: wait, one more thing"]);
    driven.reply(&[FINISH]);
    assert_eq!(driven.run.outcome().cloned(), completed("42"));
    driven.check();
}

#[test]
fn a_run_that_can_afford_no_more_finishes_with_the_answer_that_it_has() {
    // The reply, and nothing else.
    for steps in [1, 2, 3] {
        let budget = Budget { steps: Some(steps), ..Budget::default() };
        let mut driven = Driven::start(AgentSpec { budget, ..agent() });
        driven.reply(&[FINISH, ("pure", "{}")]);
        assert_eq!(driven.run.outcome().cloned(), completed("42"), "{steps} steps");
        assert_eq!(driven.run.ledger().spent().steps, steps);
        driven.check();
    }
    let budget = Budget { steps: Some(3), ..Budget::default() };
    let mut driven = Driven::start(AgentSpec { budget, ..agent() });
    driven.reply(&[("pure", "{}"), FINISH]);
    signal(&mut driven, "s", MESSAGE, "one more thing");
    driven.returned("done");
    assert_eq!(driven.run.outcome().cloned(), completed("42"), "the message can't be read any more");
    driven.check();
}

#[test]
fn wait_returns_the_signal_or_says_that_there_was_none() {
    let mut driven = Driven::start(agent());
    driven.reply(&[WAIT]);
    signal(&mut driven, "1", "other", "not this one");
    assert!(matches!(driven.run.status(), RunStatus::Waiting { .. }));
    let events = signal(&mut driven, "2", "built", "green");
    assert_eq!(names(&events), ["signal_received", "step_settled", "step_intended"]);
    assert_eq!(told(&driven), ["green", "user: not this one"], "it is a result, and not a message too");
    driven.reply(&[WAIT]);
    driven.pass(Duration::from_secs(59));
    assert!(matches!(driven.run.status(), RunStatus::Waiting { .. }));
    driven.pass(Duration::from_secs(1));
    assert_eq!(told(&driven)[2], "the time has passed, and no signal \"built\" has arrived");
    driven.check();
}

#[test]
fn a_signal_that_arrived_before_the_wait_is_not_lost_and_is_returned_once() {
    // While the model decides to wait.
    let mut driven = Driven::start(agent());
    signal(&mut driven, "1", "built", "first");
    signal(&mut driven, "2", "built", "second");
    let events = driven.reply(&[WAIT, ("wait", r#"{"seconds":61,"signal":"built"}"#)]);
    let at_once = ["step_settled", "step_intended", "step_settled", "step_intended", "step_settled", "step_intended"];
    assert_eq!(names(&events), at_once);
    let Some(Event::StepIntended { effect: saggar_engine::Effect::CallModel { messages }, .. }) = events.last() else {
        panic!("the model is called with both: {events:?}");
    };
    assert_eq!((told(&driven), *messages), (vec!["first".to_owned(), "second".to_owned()], 4));
    driven.reply(&[("wait", r#"{"seconds":62,"signal":"built"}"#)]);
    assert!(matches!(driven.run.status(), RunStatus::Waiting { .. }), "each is returned once");
    driven.check();
    // In an earlier turn: the model has seen it, and its plan is to wait for it.
    let mut driven = Driven::start(agent());
    signal(&mut driven, "1", "built", "first");
    driven.reply(&[("pure", "{}")]);
    driven.returned("done");
    assert_eq!(told(&driven), ["done", "user: first"]);
    driven.reply(&[WAIT]);
    assert_eq!(told(&driven), ["done", "user: first", "first"]);
    driven.check();
}

#[test]
fn a_message_ends_a_wait_for_messages_and_an_old_one_does_not() {
    let wait = ("wait", r#"{"seconds":60,"signal":"message"}"#);
    let mut driven = Driven::start(agent());
    signal(&mut driven, "1", MESSAGE, "hello");
    driven.reply(&[("pure", "{}")]);
    driven.returned("done");
    driven.reply(&[wait]);
    assert!(matches!(driven.run.status(), RunStatus::Waiting { .. }), "the model has read it");
    signal(&mut driven, "2", MESSAGE, "go on");
    assert_eq!(told(&driven), ["done", "user: hello", "go on"]);
    driven.check();
}

#[test]
fn a_fork_between_a_signal_and_the_end_of_the_wait_has_the_signal() {
    let mut driven = Driven::start(agent());
    driven.reply(&[WAIT]);
    signal(&mut driven, "1", "built", "green");
    let at = driven.journal.iter().position(|event| matches!(event, Event::SignalReceived { .. })).unwrap();
    let mut fork = Driven { run: Default::default(), journal: driven.journal[..=at].to_vec(), now: driven.now };
    fork.run = saggar_engine::Run::from_events(&fork.journal);
    let run = saggar_domain::RunId::from_random([8; 16]);
    let as_fork =
        Input::Fork { run, generation: 1, message: None, is_logical_only: true, does_again: true, files: None };
    fork.input(as_fork).unwrap();
    fork.input(Input::claim(1)).unwrap();
    assert_eq!(told(&fork), ["green"]);
    fork.check();
}

#[test]
fn a_signal_is_not_waited_for_by_the_name_of_answers() {
    let mut driven = Driven::start(agent());
    let events = driven.reply(&[("wait", r#"{"seconds":60,"signal":"answer"}"#)]);
    let refused = events
        .iter()
        .any(|event| matches!(event, Event::StepSettled { result: Settled::Returned(result), .. } if result.is_error));
    assert!(refused, "{events:?}");
    driven.check();
}
