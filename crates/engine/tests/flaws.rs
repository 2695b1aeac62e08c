//! Replies that are of no use: what the model is told, how often, and how the run ends.

mod support;

use saggar_domain::model::{Origin, Stop, TokenUsage};
use saggar_engine::{
    AgentSpec, Body, Event, Input, Message, ModelReply, Report, RunOutcome, Said, SaidPart, Signal, Usage,
};

use support::{Driven, agent, reply};

fn stopped(text: &str, stop: Stop) -> ModelReply {
    let origin = Origin { provider: "p".to_owned(), model: "m".to_owned() };
    let parts = vec![SaidPart::Text { verbatim: None }];
    let said = Said { parts, stop, usage: TokenUsage::default(), origin };
    ModelReply { said: Some(Box::new(said)), ..ModelReply::new(Body::text(text), Vec::new()) }
}

fn wrong(text: &str, complaint: &str) -> ModelReply {
    ModelReply { invalid: Some(complaint.to_owned()), ..stopped(text, Stop::End) }
}

fn gets(driven: &mut Driven, reply: ModelReply) -> Vec<Event> {
    driven.report(Report::Replied { reply, usage: Usage { tokens: 10, micros: 5 } }).expect("it is accepted")
}

fn note(events: &[Event]) -> Option<&str> {
    events.iter().find_map(|event| match event {
        Event::Corrected { note, .. } => note.as_text(),
        _ => None,
    })
}

fn failure(driven: &Driven) -> (&str, &str) {
    match driven.run.outcome() {
        Some(RunOutcome::Failed { failure }) => (&failure.code, &failure.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_useless_reply_is_answered_with_what_is_wrong_so_often_and_then_ends_the_run() {
    for (useless, told, code) in [
        (stopped("half a sen", Stop::MaxTokens), Some("cut off at its limit of 100 tokens"), "reply_cut"),
        (stopped("", Stop::End), Some("your reply was empty"), "empty_reply"),
        (wrong("{}", "/tests: it is missing"), Some("/tests: it is missing"), "wrong_output"),
        (stopped("so far", Stop::Paused), None, "reply_unfinished"),
    ] {
        let mut driven = Driven::start(AgentSpec { corrections_max: 2, ..agent() });
        for _ in 0..2 {
            let events = gets(&mut driven, useless.clone());
            assert_eq!(note(&events).is_some(), told.is_some(), "{code}");
            assert!(note(&events).unwrap_or_default().contains(told.unwrap_or_default()), "{events:?}");
            assert_eq!(driven.run.status(), saggar_engine::RunStatus::Running);
            if told.is_some() {
                let last = driven.run.conversation().last();
                assert!(matches!(last, Some(Message::User(text)) if Some(text.as_text().unwrap()) == note(&events)));
            }
        }
        gets(&mut driven, useless);
        let (found, message) = failure(&driven);
        assert_eq!(found, code);
        assert!(message.contains("3 times in a row"), "{message}");
        driven.check();
    }
}

#[test]
fn only_useless_replies_in_a_row_count() {
    let mut driven = Driven::start(AgentSpec { corrections_max: 1, ..agent() });
    for round in 0..4 {
        gets(&mut driven, stopped("", Stop::End));
        driven.reply(&[("pure", &format!("{{\"n\": {round}}}"))]);
        driven.returned("fine");
    }
    gets(&mut driven, stopped("done", Stop::End));
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::Completed { answer: Body::text("done") }));
    driven.check();
}

#[test]
fn a_refusal_and_a_filter_and_a_full_context_end_the_run_at_once_with_their_reason() {
    for (stop, code, said) in [
        (Stop::Refusal, "refused", "I will not do that"),
        (Stop::ContentFilter, "content_filter", "filter"),
        (Stop::ContextFull, "context_full", "context.tokens_max"),
    ] {
        let mut driven = Driven::start(agent());
        gets(&mut driven, stopped("I will not do that", stop));
        let (found, message) = failure(&driven);
        assert_eq!(found, code);
        assert!(message.contains(said), "{message}");
        driven.check();
    }
}

#[test]
fn replies_with_wrong_calls_only_are_bounded_too() {
    let mut driven = Driven::start(AgentSpec { corrections_max: 2, ..agent() });
    for round in 0..2 {
        let events = driven.reply(&[("nothing", &format!("{{\"n\": {round}}}"))]);
        assert_eq!(note(&events), None, "its result says what is wrong");
    }
    // One that can be made is enough.
    let mut both = reply(&[("nothing", "{\"n\": 3}"), ("pure", "{\"n\": 3}")]);
    both.calls[0].invalid = None;
    gets(&mut driven, both);
    driven.returned("fine");
    for round in 4..7 {
        let mut invalid = reply(&[("pure", &format!("{{\"m\": {round}}}"))]);
        invalid.calls[0].invalid = Some("the arguments are wrong".to_owned());
        gets(&mut driven, invalid);
    }
    assert_eq!(failure(&driven).0, "wrong_calls");
    driven.check();
}

#[test]
fn a_message_that_arrives_meanwhile_is_read_before_the_run_fails() {
    let mut driven = Driven::start(AgentSpec { corrections_max: 0, ..agent() });
    let (id, name, body) = ("1".to_owned(), "message".to_owned(), Body::text("skip that"));
    driven.input(Input::Signal(Signal { id, name, body, question: None })).unwrap();
    gets(&mut driven, stopped("", Stop::End));
    assert_eq!(driven.run.outcome(), None);
    gets(&mut driven, stopped("", Stop::End));
    assert_eq!(failure(&driven).0, "empty_reply");
    driven.check();
}

#[test]
fn a_correction_is_paid_from_the_budget() {
    let budget = saggar_engine::Budget { steps: Some(1), ..Default::default() };
    let mut driven = Driven::start(AgentSpec { budget, ..agent() });
    gets(&mut driven, stopped("", Stop::End));
    assert!(matches!(driven.run.outcome(), Some(RunOutcome::BudgetExceeded { .. })));
    driven.check();
}

#[test]
fn a_paused_run_keeps_what_the_model_is_told() {
    let mut driven = Driven::start(agent());
    driven.input(Input::Pause).unwrap();
    assert!(note(&gets(&mut driven, stopped("", Stop::End))).is_some());
    assert_eq!(driven.run.open_step(), None);
    driven.input(Input::Resume).unwrap();
    assert!(matches!(driven.run.conversation().last(), Some(Message::User(_))));
    gets(&mut driven, stopped("done", Stop::End));
    driven.check();
}

#[test]
fn calls_in_turn_are_a_loop_and_polling_is_none() {
    let looped = |calls: &[&str], most: u32, rounds: usize| {
        let mut driven = Driven::start(AgentSpec { repeats_max: most, ..agent() });
        for call in calls.iter().cycle().take(calls.len() * rounds) {
            let (tool, arguments) = call.split_once(' ').unwrap();
            driven.reply(&[(tool, arguments)]);
            match (driven.run.outcome(), tool) {
                (Some(_), _) => break,
                (None, "wait") => drop(driven.pass(std::time::Duration::from_secs(100))),
                (None, _) => drop(driven.returned("fine")),
            }
        }
        driven.check();
        driven.run.outcome().cloned()
    };
    let is_loop = |tool: &str, times, calls| Some(RunOutcome::Loop { tool: tool.to_owned(), times, calls });
    let (a, b, c, d, e) = ("pure 1", "keyed 2", "pure 3", "pure 4", "pure 5");
    assert_eq!(looped(&[a, b], 3, 3), None);
    assert_eq!(looped(&[a, b], 3, 4), is_loop("keyed", 4, 2));
    assert_eq!(looped(&[a, a, b], 3, 4), is_loop("keyed", 4, 3));
    assert_eq!(looped(&[a, b, c], 3, 4), is_loop("pure", 4, 3));
    assert_eq!(looped(&[a, b, c, d], 3, 4), is_loop("pure", 4, 4));
    assert_eq!(looped(&[a, b, c, d, e], 3, 9), None, "longer cycles aren't seen");
    let wait = "wait {\"seconds\": 10}";
    assert_eq!(looped(&[a, wait], 3, 9), None, "polling");
    assert_eq!(looped(&[wait], 3, 4), is_loop("wait", 4, 1));
}

#[test]
fn a_way_back_to_a_useless_reply_has_what_was_said_about_it() {
    let mut driven = Driven::start(AgentSpec { corrections_max: 1, ..agent() });
    let events = gets(&mut driven, wrong("{}", "/tests: it is missing"));
    let said = Message::User(Body::text(note(&events).expect("it is told")));
    driven.reply(&[("pure", "1")]);
    driven.input(Input::RollBack { step: 1, message: None }).expect("there is a way back");
    assert_eq!(driven.run.conversation().last(), Some(&said));
    driven.check();
}
