//! Runs, tested by their inputs and the resulting events.

mod support;

use std::time::Duration;

use saggar_domain::{RunId, Timestamp};
use saggar_engine::{
    AgentSpec, Body, Budget, BudgetName, ChildEnd, ContextLimit, Decision, ENTRY_VERSION, Effect, EffectFailure, Entry,
    Event, Fallbacks, Input, Rejected, Report, Rules, Run, RunOutcome, RunStatus, Signal, Spending, Usage,
    WhenOutOfBudget, Work, replay,
};
use support::{Driven, agent, parallel, reply};

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

fn failure(is_passing: bool) -> Report {
    let failure = EffectFailure::new("broken", "it broke", is_passing);
    Report::Failed { failure, usage: Usage::default() }
}

#[test]
fn the_outcome_of_a_step_and_the_intent_of_the_next_are_one_batch() {
    let mut driven = Driven::start(agent());
    assert_eq!(driven.run.pending().next().unwrap().work, Work::CallModel);
    assert_eq!(names(&driven.reply(&[("pure", "{}"), ("keyed", "{}")])), ["step_settled", "step_intended"]);
    assert_eq!(names(&driven.returned("one")), ["step_settled", "step_intended"]);
    assert_eq!(names(&driven.returned("two")), ["step_settled", "step_intended"]);
    assert_eq!(names(&driven.reply(&[])), ["step_settled", "run_finished"]);
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::Completed { answer: Body::text("done") }));
    assert_eq!(driven.run.conversation().len(), 5);
    driven.check();
}

#[test]
fn what_a_lost_worker_left_open_is_settled_by_its_class() {
    for (tool, events, then) in [
        ("pure", &["claimed", "step_intended"][..], RunStatus::Running),
        ("keyed", &["claimed", "step_intended"], RunStatus::Running),
        ("probeable", &["claimed", "step_probed"], RunStatus::Running),
        ("once", &["claimed", "step_unknown"], RunStatus::Parked { step: 2 }),
    ] {
        let mut driven = Driven::start(agent());
        driven.reply(&[(tool, "{}")]);
        let key = driven.run.pending().next().unwrap().key.clone();
        assert_eq!(names(&driven.input(Input::claim(2)).unwrap()), events, "{tool}");
        assert_eq!(driven.run.status(), then, "{tool}");
        if let Some(pending) = driven.run.pending().next() {
            assert_eq!(pending.key, key, "the key of a step stays the same");
        }
        driven.check();
    }
}

#[test]
fn a_stale_worker_and_a_report_that_comes_twice_change_nothing() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("keyed", "{}")]);
    driven.input(Input::claim(5)).unwrap();
    let returned = Report::NeverDone;
    let late = Input::Reported { epoch: 1, step: 2, attempt: 1, report: returned.clone(), chance: 0 };
    assert_eq!(driven.input(late), Err(Rejected::Stale { given: 1, current: 5 }));
    let earlier = Input::Reported { epoch: 5, step: 2, attempt: 1, report: returned, chance: 0 };
    assert_eq!(driven.input(earlier), Err(Rejected::NotAwaited), "the first attempt is no longer awaited");
    assert_eq!(driven.input(Input::claim(5)), Err(Rejected::Stale { given: 5, current: 5 }));
    driven.returned("done");
    let again = Input::Reported { epoch: 5, step: 2, attempt: 2, report: Report::NeverDone, chance: 0 };
    assert_eq!(driven.input(again), Err(Rejected::NotAwaited));
    driven.check();
}

#[test]
fn a_probe_finds_it_done_never_done_or_parks() {
    let lost = |report: Report| {
        let mut driven = Driven::start(agent());
        driven.reply(&[("probeable", "{}")]);
        driven.input(Input::claim(2)).unwrap();
        assert!(matches!(driven.run.pending().next().unwrap().work, Work::Probe(_)));
        let events = driven.report(report).unwrap();
        driven.check();
        (names(&events), driven.run.status())
    };
    assert_eq!(lost(Report::NeverDone), (vec!["step_intended"], RunStatus::Running));
    let unknown = Report::unknown("gone");
    assert_eq!(lost(unknown), (vec!["step_unknown"], RunStatus::Parked { step: 2 }));
    let done =
        Report::Returned { result: saggar_engine::ToolResult::new(Body::text("was done"), false), snapshot: None };
    assert_eq!(lost(done), (vec!["step_settled", "step_intended"], RunStatus::Running));
}

#[test]
fn a_person_decides_about_a_step_that_nobody_knows_of() {
    for (decision, events) in [
        (Decision::Retry, &["step_decided", "step_intended"][..]),
        (Decision::Done(Body::text("I looked: it was")), &["step_decided", "step_settled", "step_intended"]),
        (Decision::Abandon, &["step_decided", "step_abandoned", "run_finished"]),
    ] {
        let mut driven = Driven::start(agent());
        driven.reply(&[("once", "{}")]);
        assert_eq!(
            driven.input(Input::Decide { step: 2, attempt: None, decision: decision.clone() }),
            Err(Rejected::NotAwaited),
            "not before it is parked"
        );
        driven.input(Input::claim(2)).unwrap();
        assert_eq!(names(&driven.input(Input::Decide { step: 2, attempt: None, decision }).unwrap()), events);
        driven.check();
    }
}

#[test]
fn failures_are_tried_again_later_and_not_for_ever() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("pure", "{}")]);
    for _ in 0..2 {
        assert_eq!(names(&driven.report(failure(true)).unwrap()), ["step_failed"]);
        assert!(driven.run.pending().next().is_none(), "nothing happens before its time");
        assert_eq!(driven.pass(Duration::from_millis(1)), []);
        let RunStatus::Waiting { until } = driven.run.status() else { panic!("it waits") };
        driven.now = until;
        assert_eq!(names(&driven.input(Input::Tick).unwrap()), ["step_intended"]);
    }
    assert_eq!(names(&driven.report(failure(true)).unwrap()), ["step_settled", "step_intended"]);
    assert_eq!(driven.run.ledger().spent().retries, 2);
    driven.check();
}

#[test]
fn a_model_that_cannot_be_had_ends_the_run() {
    let mut driven = Driven::start(agent());
    assert_eq!(names(&driven.report(failure(false)).unwrap()), ["step_settled", "run_finished"]);
    assert!(matches!(driven.run.outcome(), Some(RunOutcome::Failed { .. })));
    driven.check();
}

#[test]
fn every_budget_trips_by_its_own_name() {
    let check = |budget: Budget, name: BudgetName| {
        let mut driven = Driven::start(saggar_engine::AgentSpec { budget, ..agent() });
        for turn in 0..20 {
            if driven.run.outcome().is_some() {
                break;
            }
            driven.reply(&[("pure", &format!("{{\"n\":{turn}}}"))]);
            if driven.run.outcome().is_none() {
                match name {
                    BudgetName::Retries => {
                        driven.report(failure(true)).unwrap();
                        driven.pass(Duration::from_secs(60));
                        if driven.run.outcome().is_none() {
                            driven.returned("x");
                        }
                    }
                    BudgetName::WallMs => {
                        driven.pass(Duration::from_secs(1));
                        if driven.run.outcome().is_none() {
                            driven.returned("x");
                        }
                    }
                    _ => {
                        driven.returned("x");
                    }
                }
            }
        }
        assert_eq!(driven.run.outcome(), Some(&RunOutcome::BudgetExceeded { budget: name, answer: None }));
        driven.check();
    };
    check(Budget { steps: Some(5), ..Budget::default() }, BudgetName::Steps);
    check(Budget { tool_calls: Some(3), ..Budget::default() }, BudgetName::ToolCalls);
    check(Budget { tokens: Some(150), ..Budget::default() }, BudgetName::Tokens);
    check(Budget { micros: Some(12), ..Budget::default() }, BudgetName::Micros);
    check(Budget { retries: Some(2), ..Budget::default() }, BudgetName::Retries);
    check(Budget { wall_ms: Some(5000), ..Budget::default() }, BudgetName::WallMs);
}

#[test]
fn the_same_call_over_and_over_is_a_loop() {
    let mut driven = Driven::start(agent());
    for _ in 0..8 {
        driven.reply(&[("pure", "{\"same\":1}")]);
        driven.returned("x");
    }
    driven.reply(&[("pure", "{\"same\":1}")]);
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::Loop { tool: "pure".to_owned(), times: 9, calls: 1 }));
    driven.check();
}

#[test]
fn waiting_and_asking_need_no_worker() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("wait", "{\"seconds\":60}"), ("ask_human", "{\"question\":\"may I?\"}")]);
    assert_eq!(driven.run.pending().next(), None);
    assert_eq!(driven.run.next_deadline(), Some(driven.now.after(Duration::from_secs(60))));
    driven.input(Input::claim(2)).unwrap();
    assert_eq!(names(&driven.pass(Duration::from_secs(60))), ["step_settled", "step_intended"]);
    assert_eq!(driven.run.status(), RunStatus::Asking);
    let events = driven.input(answer("s1", Some(3), "yes")).unwrap();
    assert_eq!(names(&events), ["signal_received", "step_settled", "step_intended"]);
    assert_eq!(driven.input(answer("s1", Some(3), "yes")).unwrap(), [], "the same signal twice is once");
    driven.check();
}

fn answer(id: &str, question: Option<u64>, text: &str) -> Input {
    let (id, name, body) = (id.to_owned(), "answer".to_owned(), Body::text(text));
    Input::Signal(Signal { id, name, body, question })
}

#[test]
fn an_answer_is_taken_by_the_question_that_it_names_and_by_no_other() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("ask_human", "{\"question\":\"which?\"}"), ("ask_human", "{\"question\":\"delete it?\"}")]);
    assert_eq!(driven.run.open_questions().next(), Some(2));
    assert_eq!(driven.input(answer("a", None, "yes")), Err(Rejected::UnnamedQuestion));
    assert_eq!(driven.input(answer("b", Some(3), "yes")), Err(Rejected::NotOpen { question: 3 }), "not asked yet");
    driven.input(answer("c", Some(2), "yes")).unwrap();
    assert_eq!(driven.run.open_questions().next(), Some(3));
    assert_eq!(driven.input(answer("d", Some(2), "yes")), Ok(Vec::new()), "the same answer again is harmless");
    assert_eq!(driven.input(answer("e", Some(2), "no")), Err(Rejected::AlreadyAnswered { question: 2 }));
    assert_eq!(
        (driven.run.open_questions().next(), driven.run.last_step()),
        (Some(3), 3),
        "the next question is still open"
    );
    driven.check();
}

#[test]
fn answers_that_an_older_program_kept_are_given_to_no_question() {
    let mut driven = Driven { run: Run::new(), journal: Vec::new(), now: Timestamp::from_millis(1_000_000) };
    let run = RunId::from_random([7; 16]);
    driven.input(Input::Start { run, agent: Box::new(agent()), child_of: None }).unwrap();
    driven.input(Input::Claim { epoch: 1, rules: Rules::FIRST }).unwrap();
    driven.input(answer("old", None, "yes")).unwrap();
    driven.input(Input::claim(2)).unwrap();
    driven.reply(&[("ask_human", "{\"question\":\"delete it?\"}")]);
    assert_eq!(driven.run.status(), RunStatus::Asking);
    driven.check();
}

#[test]
fn by_the_first_rules_an_answer_that_comes_before_its_question_waits_for_it() {
    let mut driven = Driven { run: Run::new(), journal: Vec::new(), now: Timestamp::from_millis(1_000_000) };
    let run = RunId::from_random([7; 16]);
    driven.input(Input::Start { run, agent: Box::new(agent()), child_of: None }).unwrap();
    driven.input(Input::Claim { epoch: 1, rules: Rules::FIRST }).unwrap();
    driven.input(answer("s1", None, "yes")).unwrap();
    let events = driven.reply(&[("ask_human", "{\"question\":\"may I?\"}"), ("ask_human", "{\"question\":\"and?\"}")]);
    assert_eq!(names(&events), ["step_settled", "step_intended", "step_settled", "step_intended"]);
    assert_eq!(driven.run.status(), RunStatus::Asking, "one answer is for one question");
    driven.check();
}

#[test]
fn calls_that_cannot_be_are_told_to_the_model() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("nonsense", "{}"), ("wait", "{\"seconds\":-1}"), ("ask_human", "[]"), ("pure", "{}")]);
    assert_eq!(driven.run.conversation().len(), 5);
    assert!(matches!(driven.run.open_step().unwrap().effect, Effect::CallTool { .. }));
    assert_eq!(driven.run.last_step(), 5);
    driven.check();
}

#[test]
fn a_paused_run_finishes_its_step_and_begins_none() {
    let mut driven = Driven::start(agent());
    driven.input(Input::Pause).unwrap();
    assert_eq!(names(&driven.reply(&[("pure", "{}")])), ["step_settled"]);
    assert_eq!((driven.run.status(), driven.run.pending().next()), (RunStatus::Paused, None));
    assert_eq!(names(&driven.input(Input::Resume).unwrap()), ["resumed", "step_intended"]);
    driven.check();
}

#[test]
fn cancelling_gives_up_what_is_open() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("once", "{}")]);
    assert_eq!(names(&driven.input(Input::Cancel).unwrap()), ["step_abandoned", "run_finished"]);
    assert_eq!(driven.input(Input::Cancel), Err(Rejected::Finished));
    driven.check();
}

#[test]
fn a_fork_goes_on_from_a_past_with_keys_of_its_own_and_without_a_directory_of_the_host() {
    let directory = serde_json::from_str(r#"{"path": "/srv/site", "user": {"uid": 7, "gid": 7}}"#).unwrap();
    let mut driven = Driven::start(AgentSpec { directory: Some(directory), ..agent() });
    driven.reply(&[("keyed", "{}")]);
    let key = driven.run.pending().next().unwrap().key.clone();
    driven.returned("one");
    let cut = driven.journal.iter().position(|event| matches!(event, Event::StepIntended { step: 2, .. })).unwrap();
    let past = driven.journal[..cut].to_vec();
    let mut fork = Driven { run: Run::from_events(&past), journal: past, now: driven.now };
    let message = Some(Body::text("this time with care"));
    let run = RunId::from_random([9; 16]);
    let input =
        Input::Fork { run: run.clone(), generation: 3, message, is_logical_only: true, does_again: true, files: None };
    let events = fork.input(input).unwrap();
    assert_eq!(
        (names(&events), fork.run.status(), fork.run.pending().next()),
        (vec!["forked"], RunStatus::Queued, None)
    );
    assert_eq!(names(&fork.input(Input::claim(1)).unwrap()), ["claimed", "step_intended"]);
    let pending = fork.run.pending().next().unwrap();
    assert_ne!(pending.key, key);
    assert_eq!((pending.step, fork.run.generation(), fork.run.id()), (2, 3, Some(&run)));
    assert!(fork.run.is_logical_only());
    assert!(driven.run.agent().unwrap().directory.is_some() && fork.run.agent().unwrap().directory.is_none());
    fork.check();
}

#[test]
fn a_journal_that_was_edited_diverges_where_it_was() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("pure", "{}")]);
    driven.returned("x");
    let mut journal = driven.journal.clone();
    let edited = journal.iter().position(|event| matches!(event, Event::StepIntended { step: 2, .. })).unwrap();
    if let Event::StepIntended { step, .. } = &mut journal[edited] {
        *step = 7;
    }
    assert_eq!(replay(&journal).divergence.unwrap().at, edited);
    journal.remove(edited);
    assert_eq!(replay(&journal).divergence.unwrap().at, edited);
}

#[test]
fn entries_read_back_and_newer_ones_are_refused() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("wait", "{\"seconds\":1}"), ("once", "{}")]);
    driven.input(Input::claim(2)).unwrap();
    for (index, event) in driven.journal.iter().enumerate() {
        let entry = Entry::new(index as u64 + 1, event.clone());
        assert_eq!(Entry::decode(&entry.encode()).unwrap(), entry);
    }
    let newer = format!(r#"{{"v":{},"seq":1,"event":"from_the_future"}}"#, ENTRY_VERSION + 1);
    assert!(Entry::decode(&newer).unwrap_err().to_string().contains("newer"));
    assert!(Entry::decode("{").is_err());
}

#[test]
fn any_order_of_inputs_keeps_the_invariants_and_replays() {
    for seed in 0..300u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut chance = move |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let budget = Budget { steps: Some(40), retries: Some(12), wall_ms: Some(600_000), ..Budget::default() };
        let one_of = if seed % 2 == 0 { agent() } else { parallel(1 + (seed % 5) as u32) };
        let on = [WhenOutOfBudget::End, WhenOutOfBudget::Finish, WhenOutOfBudget::Ask][(seed % 3) as usize];
        let on = Fallbacks { budget: on, ..Fallbacks::default() };
        let context = ContextLimit { tokens_max: 1000, keep_tokens: 300 };
        let context = Some(context).filter(|_| seed % 4 == 1);
        let mut driven = Driven::start(saggar_engine::AgentSpec { budget, on, context, ..one_of });
        for turn in 0..120 {
            driven.now = driven.now.after(Duration::from_millis(chance(4000)));
            let tools = ["pure", "keyed", "probeable", "once", "wait", "ask_human", "delegate", "nonsense"];
            let arguments =
                format!("{{\"n\":{},\"seconds\":{},\"question\":\"?\",\"task\":\"?\"}}", chance(3), chance(9));
            let tool = tools[chance(8) as usize];
            let input = match chance(14) {
                13 => {
                    let more = Budget { steps: Some(chance(5)), ..Budget::default() };
                    Input::Raise { id: format!("raise {}", chance(20)), more }
                }
                0 => {
                    let rules = if seed % 3 == 0 { Rules::FIRST } else { Rules::NEWEST };
                    Input::Claim { epoch: driven.run.epoch() + chance(2), rules }
                }
                1 => Input::Tick,
                2 => Input::Pause,
                3 => Input::Resume,
                4 if turn > 100 => Input::Cancel,
                5 => Input::Decide { step: driven.run.last_step(), attempt: None, decision: Decision::Retry },
                6 => {
                    let name = if chance(2) == 0 { "answer" } else { "message" };
                    let asked = driven.run.open_questions().last().unwrap_or(driven.run.last_step());
                    let question = Some(asked).filter(|_| chance(4) > 0);
                    let (id, name, body) = (chance(20).to_string(), name.to_owned(), Body::text("hi"));
                    Input::Signal(Signal { id, name, body, question })
                }
                12 => {
                    let which = chance(3) as usize;
                    let child = driven.run.children().nth(which).or(driven.run.children().next()).cloned();
                    let Some(child) = child else { continue };
                    let spent = Spending { steps: chance(3), tokens: chance(9), ..Spending::default() };
                    Input::ChildEnded(ChildEnd { child, outcome: RunOutcome::Cancelled, spent })
                }
                kind => {
                    let open = driven.run.open_steps();
                    let Some(open) = open.get(chance(open.len().max(1) as u64) as usize) else { continue };
                    let is_model = open.effect.is_of_model();
                    let report = match (kind, is_model) {
                        (7, _) => failure(chance(2) == 0),
                        (8, _) => Report::unknown("lost"),
                        (9, _) => Report::NeverDone,
                        (10, _) if chance(2) == 0 => Report::Delayed { reason: "no room".to_owned() },
                        (_, true) => {
                            let others = (0..chance(7)).map(|_| tools[chance(8) as usize]);
                            let calls: Vec<_> =
                                [tool].into_iter().chain(others).map(|tool| (tool, arguments.as_str())).collect();
                            let most = if chance(8) == 0 { 0 } else { calls.len() };
                            let invalid = Some("wrong".to_owned()).filter(|_| chance(3) == 0);
                            let reply = saggar_engine::ModelReply { invalid, ..reply(&calls[..most]) };
                            Report::Replied { reply, usage: Usage { tokens: 1, micros: 1 } }
                        }
                        (_, false) => Report::Returned {
                            result: saggar_engine::ToolResult::new(Body::text("ok"), false),
                            snapshot: None,
                        },
                    };
                    let (step, attempt, epoch) = (open.step, open.attempt, driven.run.epoch());
                    Input::Reported { epoch, step, attempt, report, chance: chance(u64::MAX) }
                }
            };
            // A rejected input changes nothing, which the replay at the end verifies.
            let _ = driven.input(input);
        }
        driven.check();
    }
}

#[test]
fn time_is_an_argument() {
    let mut driven = Driven::start(agent());
    driven.now = Timestamp::from_millis(5);
    driven.reply(&[("wait", "{\"seconds\":1}")]);
    assert_eq!(driven.run.next_deadline(), Some(Timestamp::from_millis(1005)));
    assert_eq!(driven.pass(Duration::from_millis(999)), []);
    assert_eq!(names(&driven.pass(Duration::from_millis(1))), ["step_settled", "step_intended"]);
}

#[test]
fn a_step_that_waits_for_room_is_one_attempt_however_long_it_waits() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("once", "{}")]);
    let delayed = || Report::Delayed { reason: "no room".to_owned() };
    let begun = driven.now;
    assert_eq!(names(&driven.report(delayed()).unwrap()), ["step_delayed"]);
    assert!(matches!(driven.run.status(), RunStatus::Waiting { .. }));
    assert_eq!(driven.run.pending().next(), None);
    // It is retried by time, by a claim and by a resume, but not while paused.
    assert_eq!(names(&driven.pass(Duration::from_secs(30))), ["step_intended"]);
    driven.report(delayed()).unwrap();
    assert_eq!(
        names(&driven.input(Input::Claim { epoch: 2, rules: Rules::NEWEST }).unwrap()),
        ["claimed", "step_intended"]
    );
    driven.report(delayed()).unwrap();
    driven.input(Input::Pause).unwrap();
    assert_eq!(driven.run.status(), RunStatus::Paused);
    assert_eq!(names(&driven.input(Input::Claim { epoch: 3, rules: Rules::NEWEST }).unwrap()), ["claimed"]);
    assert_eq!(driven.pass(Duration::from_secs(3600)), []);
    assert_eq!(names(&driven.input(Input::Resume).unwrap()), ["resumed", "step_intended"]);
    let open = driven.run.open_step().unwrap();
    assert_eq!((open.step, open.attempt, open.delayed_since), (2, 1, Some(begun)), "its place in the queue is kept");
    assert_eq!(driven.run.ledger().spent().retries, 0);
    driven.returned("ok");
    assert_eq!(driven.run.open_step().unwrap().delayed_since, None);
    driven.check();
}

#[test]
fn a_step_keeps_its_place_in_the_queue_for_room_through_all_of_its_attempts() {
    let mut driven = Driven::start(agent());
    driven.reply(&[("once", "{}")]);
    let begun = driven.now;
    driven.report(Report::Delayed { reason: "no room".to_owned() }).unwrap();
    driven.pass(Duration::from_secs(30));
    let failure = EffectFailure::new("passing", "not now", true);
    assert_eq!(names(&driven.report(Report::Failed { failure, usage: Usage::default() }).unwrap()), ["step_failed"]);
    assert_eq!(names(&driven.pass(Duration::from_secs(3600))), ["step_intended"]);
    let open = driven.run.open_step().unwrap();
    assert_eq!((open.step, open.attempt, open.delayed_since), (2, 2, Some(begun)));
    assert_eq!(driven.run.ledger().spent().retries, 1);
    driven.report(Report::Delayed { reason: "no room".to_owned() }).unwrap();
    assert_eq!(driven.run.open_step().unwrap().delayed_since, Some(begun));
    driven.check();
}
