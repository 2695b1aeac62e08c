//! Compaction: when older turns are summed up, what stays, and what happens if that fails.

mod support;

use saggar_domain::model::{Origin, Stop, TokenUsage};
use saggar_engine::{
    AgentSpec, Body, Budget, BudgetName, ContextLimit, Effect, EffectFailure, Entry, Event, Input, Message, ModelReply,
    Report, Run, RunOutcome, Said, Signal, ToolResult, Usage, Work,
};

use support::{Driven, agent, reply};

const LIMIT: ContextLimit = ContextLimit { tokens_max: 6000, keep_tokens: 1500 };

fn limited() -> AgentSpec {
    AgentSpec { context: Some(LIMIT), system: Some(Body::text("be careful")), ..agent() }
}

fn summarized(driven: &mut Driven, text: &str) -> Vec<Event> {
    let reply = ModelReply::new(Body::text(text), Vec::new());
    driven.report(Report::Replied { reply, usage: Usage { tokens: 7, micros: 3 } }).expect("it is accepted")
}

fn asked(driven: &Driven) -> Option<u64> {
    driven.run.pending().find_map(|pending| match pending.work {
        Work::Summarize(through) => Some(through),
        _ => None,
    })
}

/// Turns of one call until the older ones are to be summed up.
fn until_full(driven: &mut Driven) -> u64 {
    for turn in 0..100 {
        if let Some(through) = asked(driven) {
            return through;
        }
        driven.reply(&[("pure", &format!("{{\"n\": {turn}}}"))]);
        driven.returned(&"x".repeat(1000));
    }
    panic!("it is never full");
}

fn tokens(run: &Run) -> usize {
    run.conversation().iter().map(|message| format!("{message:?}").len() / 3).sum()
}

#[test]
fn a_summary_takes_the_place_of_the_older_turns_and_of_nothing_else() {
    let mut driven = Driven::start(limited());
    let through = until_full(&mut driven);
    let before = driven.run.conversation().to_vec();
    let open = driven.run.open_step().unwrap();
    assert_eq!(open.effect, Effect::Summarize { through });
    assert!(open.reserved.tokens > 0 && open.reserved.steps == 1, "it is paid from the budget");
    let events = summarized(&mut driven, "so far so good");
    let after = driven.run.conversation();
    assert_eq!(after[..2], before[..2], "the system prompt and the task stay");
    assert_eq!(after[2], Message::Summary(Body::text("so far so good")));
    assert_eq!(after[3..], before[through as usize..], "and the newest turns");
    assert!(matches!(after[3], Message::Assistant(_)), "a call is never parted from its result: {:?}", after[3]);
    let Some(Event::StepIntended { effect: Effect::CallModel { messages }, reserved, .. }) = events.last() else {
        panic!("{events:?}");
    };
    assert_eq!(*messages, after.len() as u64);
    assert!(reserved.tokens < 4000, "only what is left counts: {reserved:?}");
    // The next time, the summary is summed up too.
    until_full(&mut driven);
    summarized(&mut driven, "better still");
    let summaries = driven.run.conversation().iter().filter(|message| matches!(message, Message::Summary(_)));
    assert_eq!(summaries.count(), 1);
    driven.check();
}

#[test]
fn a_thousand_turns_stay_within_the_limit_in_memory_and_grow_the_journal_by_as_much_each() {
    let mut driven = Driven::start(limited());
    let (mut most, mut summaries) = (0, 0);
    let mut sizes = Vec::new();
    for turn in 0..1000 {
        driven.reply(&[("pure", &format!("{{\"n\": {turn}}}")), ("keyed", "{}")]);
        driven.returned(&format!("{turn} {}", "x".repeat(600)));
        driven.returned(&"y".repeat(600));
        if asked(&driven).is_some() {
            summaries += 1;
            summarized(&mut driven, &"what happened ".repeat(20));
        }
        assert_eq!(asked(&driven), None, "once is enough");
        most = most.max(tokens(&driven.run));
        sizes.push(driven.journal.iter().map(|event| Entry::new(1, event.clone()).encode().len()).sum::<usize>());
        driven.journal.clear();
    }
    assert!(most < 2 * LIMIT.tokens_max as usize, "{most} tokens");
    assert!((100..500).contains(&summaries), "{summaries}");
    let most_of_a_turn = sizes.iter().max().unwrap();
    assert!(*most_of_a_turn < 8000, "a turn's entries have {most_of_a_turn} bytes");
}

#[test]
fn a_long_conversation_replays() {
    let mut driven = Driven::start(limited());
    for _ in 0..5 {
        until_full(&mut driven);
        summarized(&mut driven, "fine");
    }
    driven.reply(&[]);
    assert!(driven.run.outcome().is_some());
    driven.check();
}

#[test]
fn newest_turns_that_are_too_long_alone_are_not_summed_up_again_and_again() {
    let mut driven = Driven::start(limited());
    for round in 0..3 {
        driven.reply(&[("pure", &format!("{{\"n\": {round}}}"))]);
        driven.returned(&"x".repeat(60_000));
        if round > 0 {
            assert!(asked(&driven).is_some(), "the earlier turns can be");
            driven.input(Input::Pause).unwrap();
            summarized(&mut driven, "fine");
            driven.input(Input::Resume).unwrap();
        }
        assert_eq!(asked(&driven), None, "the last turn stays");
    }
    driven.check();
}

#[test]
fn a_summary_that_fails_is_asked_for_again_and_then_ends_the_run() {
    let origin = Origin { provider: "p".to_owned(), model: "m".to_owned() };
    let cut = Said { parts: Vec::new(), stop: Stop::MaxTokens, usage: TokenUsage::default(), origin };
    let cut = ModelReply { said: Some(Box::new(cut)), ..ModelReply::new(Body::text("so f"), Vec::new()) };
    let empty = ModelReply::new(Body::text(""), Vec::new());
    for (useless, why) in [(cut, "cut off"), (empty, "empty")] {
        let mut driven = Driven::start(AgentSpec { corrections_max: 1, ..limited() });
        let through = until_full(&mut driven);
        let before = driven.run.conversation().to_vec();
        let report = Report::Replied { reply: useless, usage: Usage::default() };
        driven.report(report.clone()).unwrap();
        assert_eq!(asked(&driven), Some(through));
        assert_eq!(driven.run.conversation(), before, "nothing is lost");
        driven.report(report).unwrap();
        let Some(RunOutcome::Failed { failure }) = driven.run.outcome() else { panic!("{:?}", driven.run.outcome()) };
        assert_eq!(failure.code, "no_summary");
        assert!(failure.message.contains(why), "{}", failure.message);
        driven.check();
    }
    // A model that can't be had is retried as for any other call, and ends the run in the same way.
    let mut driven = Driven::start(limited());
    until_full(&mut driven);
    let failure = EffectFailure::new("unavailable", "nobody is there", true);
    for _ in 0..3 {
        driven.report(Report::Failed { failure: failure.clone(), usage: Usage::default() }).unwrap();
        driven.pass(std::time::Duration::from_secs(60));
    }
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::Failed { failure }));
    driven.check();
}

#[test]
fn calls_in_a_summary_are_not_made() {
    let mut driven = Driven::start(limited());
    until_full(&mut driven);
    let reply = ModelReply { text: Body::text("fine"), ..reply(&[("once", "{}")]) };
    driven.report(Report::Replied { reply, usage: Usage::default() }).unwrap();
    assert_eq!(driven.run.pending().next().unwrap().work, Work::CallModel);
    assert!(driven.run.conversation().contains(&Message::Summary(Body::text("fine"))));
    driven.check();
}

#[test]
fn a_budget_that_allows_no_summary_ends_the_run_by_its_name() {
    let mut driven = Driven::start(limited());
    until_full(&mut driven);
    let steps = Some(driven.run.last_step() - 1);
    let mut driven = Driven::start(AgentSpec { budget: Budget { steps, ..Budget::default() }, ..limited() });
    for turn in 0.. {
        driven.reply(&[("pure", &format!("{{\"n\": {turn}}}"))]);
        driven.returned(&"x".repeat(1000));
        if driven.run.outcome().is_some() {
            break;
        }
    }
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::BudgetExceeded { budget: BudgetName::Steps, answer: None }));
    assert_eq!(Some(driven.run.last_step()), steps);
    driven.check();
}

#[test]
fn a_message_a_pause_and_a_lost_worker_in_the_middle_lose_nothing() {
    let mut driven = Driven::start(limited());
    until_full(&mut driven);
    let (id, name, body) = ("1".to_owned(), "message".to_owned(), Body::text("hurry up"));
    driven.input(Input::Signal(Signal { id, name, body, question: None })).unwrap();
    driven.input(Input::Pause).unwrap();
    summarized(&mut driven, "fine");
    assert_eq!(driven.run.open_step(), None);
    assert_eq!(driven.run.conversation().last(), Some(&Message::User(Body::text("hurry up"))));
    driven.input(Input::Resume).unwrap();
    assert_eq!(driven.run.pending().next().unwrap().work, Work::CallModel);
    let through = until_full(&mut driven);
    driven.input(Input::claim(2)).unwrap();
    assert_eq!(asked(&driven), Some(through), "the next worker asks the same");
    assert_eq!(driven.run.open_step().unwrap().attempt, 2);
    summarized(&mut driven, "finer");
    driven.check();
}

#[test]
fn without_a_limit_nothing_is_summed_up() {
    let mut driven = Driven::start(agent());
    for turn in 0..50 {
        driven.reply(&[("pure", &format!("{{\"n\": {turn}}}"))]);
        let result = ToolResult::new(Body::text("x".repeat(10_000)), false);
        driven.report(Report::Returned { result, snapshot: None }).unwrap();
    }
    assert_eq!(asked(&driven), None);
    assert_eq!(driven.run.conversation().len(), 101);
}
