//! Child runs: what a parent passes to them, what it gets back, and how limits cover the whole tree.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod support;

use std::time::Duration;

use saggar_domain::RunId;
use saggar_engine::{
    AgentSpec, Body, Budget, BudgetName, ChildEnd, DEPTH_MAX, EffectKey, Event, Input, NewChild, Rejected, Run,
    RunOutcome, RunStatus, Spending,
};
use support::{Driven, agent};

const DELEGATE: (&str, &str) = ("delegate", "{\"task\":\"look\",\"agent\":\"helper\"}");
const AGAIN: (&str, &str) = ("delegate", "{\"task\":\"look again\"}");

/// An agent that may start a helper; the helper has a tool that the agent itself lacks.
fn parent(budget: Budget, helper: Budget) -> AgentSpec {
    let mut sub = AgentSpec { name: "helper".to_owned(), budget: helper, ..agent() };
    sub.tools.insert("secret".to_owned(), sub.tools["pure"].clone());
    sub.tools.remove("once");
    AgentSpec { budget, agents: [("helper".to_owned(), sub)].into(), ..agent() }
}

/// The child that a run has just started.
fn newborn(driven: &Driven) -> NewChild {
    driven.run.child_of_event(driven.journal.last().unwrap()).expect("it started one")
}

/// Drives the child in the same way as its parent.
fn begin(child: NewChild, now: saggar_domain::Timestamp) -> Driven {
    let mut driven = Driven { run: Run::new(), journal: Vec::new(), now };
    driven.input(child.start()).unwrap();
    driven.input(Input::claim(1)).unwrap();
    driven
}

/// Reports the child's end to its parent.
fn tell(parent: &mut Driven, child: &Driven) -> Result<Vec<Event>, Rejected> {
    let (of, end) = child.run.end_for_parent().expect("it has ended");
    assert_eq!((Some(&of.run), of.depth), (parent.run.id(), parent.run.depth() + 1));
    parent.input(Input::ChildEnded(end))
}

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

#[test]
fn a_child_is_named_by_its_parents_key_and_gets_no_more_than_its_parent_has() {
    let mut driven = Driven::start(parent(Budget::default(), Budget::default()));
    driven.reply(&[DELEGATE]);
    let child = newborn(&driven);
    let key = EffectKey::of(driven.run.id().unwrap(), 0, 2);
    assert_eq!(child.run, RunId::from_random(key.bits()));
    assert_eq!((child.agent.name.as_str(), &child.agent.task), ("helper", &Body::text("look")));
    assert!(!child.agent.tools.contains_key("secret"), "its parent has no such tool");
    assert!(!child.agent.tools.contains_key("once"), "its own agent has no such tool");
    assert!(child.agent.tools.contains_key("delegate"));
    assert_eq!(
        (driven.run.status(), driven.run.pending().next()),
        (RunStatus::Delegating { child: child.run.clone() }, None)
    );
    let claimed = driven.input(Input::claim(2)).unwrap();
    assert_eq!(names(&claimed), ["claimed"], "a worker that is lost changes nothing");
    driven.check();
}

#[test]
fn a_childs_end_is_its_parents_outcome_once() {
    let mut driven = Driven::start(parent(Budget::default(), Budget::default()));
    driven.reply(&[DELEGATE, AGAIN]);
    let mut child = begin(newborn(&driven), driven.now);
    child.reply(&[("pure", "{}")]);
    child.returned("x");
    child.reply(&[]);
    child.check();
    assert_eq!(names(&tell(&mut driven, &child).unwrap()), ["step_settled", "step_intended"]);
    assert_eq!(tell(&mut driven, &child), Err(Rejected::NotAwaited), "the same end twice is once");
    let said = format!("{:?}", driven.run.conversation().last().unwrap());
    assert!(said.contains("\"done\"") && said.contains("is_error: false"), "{said}");
    let spent = driven.run.ledger().spent();
    let expected = Spending { steps: 5, tokens: 30, micros: 15, tool_calls: 2, retries: 0, children: 1 };
    assert_eq!(spent, expected, "the child's three steps, and two of its own");
    assert_ne!(newborn(&driven).run, *child.run.id().unwrap(), "another step, another child");
    driven.check();
}

#[test]
fn a_child_that_ends_otherwise_is_told_as_a_failure() {
    for (cause, told) in [(Input::Cancel, "it was cancelled"), (Input::Tick, "its budget of wall_ms was used up")] {
        let mut driven = Driven::start(parent(Budget::default(), Budget { wall_ms: Some(5), ..Budget::default() }));
        driven.reply(&[DELEGATE]);
        let mut child = begin(newborn(&driven), driven.now);
        child.now = child.now.after(Duration::from_millis(5));
        child.input(cause).unwrap();
        tell(&mut driven, &child).unwrap();
        let said = format!("{:?}", driven.run.conversation().last().unwrap());
        assert!(said.contains(told) && said.contains("is_error: true"), "{said}");
        driven.check();
    }
}

#[test]
fn a_childs_budget_is_set_aside_and_settled_by_what_it_spent() {
    let limits = Budget { tokens: Some(1000), steps: Some(20), wall_ms: Some(60_000), ..Budget::default() };
    let mut driven = Driven::start(parent(limits, Budget { steps: Some(4), ..Budget::default() }));
    driven.now = driven.now.after(Duration::from_secs(10));
    driven.reply(&[DELEGATE]);
    let child = newborn(&driven);
    let given = child.agent.budget;
    assert_eq!((given.tokens, given.steps, given.wall_ms), (Some(990), Some(4), Some(50_000)));
    let reserved = driven.run.ledger().reserved();
    assert_eq!((reserved.tokens, reserved.steps, reserved.children), (990, 5, 1));
    let mut child = begin(child, driven.now);
    child.reply(&[]);
    tell(&mut driven, &child).unwrap();
    let ledger = driven.run.ledger();
    assert_eq!((ledger.spent().tokens, ledger.spent().steps), (20, 3));
    assert_eq!(ledger.left().tokens, Some(1000 - 20 - ledger.reserved().tokens));
    driven.check();
}

#[test]
fn a_limit_holds_for_the_whole_tree_and_trips_by_name() {
    // Each child would run forever, and so would its parent.
    for limits in [
        Budget { tokens: Some(700), ..Budget::default() },
        Budget { steps: Some(17), ..Budget::default() },
        Budget { tool_calls: Some(9), ..Budget::default() },
        Budget { micros: Some(61), ..Budget::default() },
        Budget { children: Some(3), ..Budget::default() },
    ] {
        let mut driven = Driven::start(parent(limits, Budget { steps: Some(6), ..Budget::default() }));
        let mut total = Spending::default();
        while driven.run.outcome().is_none() {
            driven.reply(&[("delegate", &format!("{{\"task\":\"{}\",\"agent\":\"helper\"}}", driven.journal.len()))]);
            total = total.plus(Spending { steps: 1, tokens: 10, micros: 5, ..Spending::default() });
            if driven.run.children().next().is_none() {
                break;
            }
            total = total.plus(Spending { steps: 1, tool_calls: 1, children: 1, ..Spending::default() });
            let mut child = begin(newborn(&driven), driven.now);
            while child.run.outcome().is_none() {
                if child.run.pending().next().is_some_and(|pending| pending.work == saggar_engine::Work::CallModel) {
                    child.reply(&[("pure", &format!("{{\"n\":{}}}", child.journal.len()))]);
                    total = total.plus(Spending { steps: 1, tokens: 10, micros: 5, ..Spending::default() });
                } else {
                    child.returned("x");
                    total = total.plus(Spending { steps: 1, tool_calls: 1, ..Spending::default() });
                }
            }
            child.check();
            tell(&mut driven, &child).unwrap();
        }
        let Some(RunOutcome::BudgetExceeded { budget, .. }) = driven.run.outcome() else { panic!("{limits:?}") };
        let name = match limits {
            Budget { tokens: Some(_), .. } => BudgetName::Tokens,
            Budget { steps: Some(_), .. } => BudgetName::Steps,
            Budget { tool_calls: Some(_), .. } => BudgetName::ToolCalls,
            Budget { micros: Some(_), .. } => BudgetName::Micros,
            _ => BudgetName::Children,
        };
        assert_eq!(*budget, name);
        assert_eq!(driven.run.ledger().spent(), total, "nothing is forgotten, and nothing counted twice");
        // Money is not reserved beforehand, so one call may exceed the limit.
        let over = |limit: Option<u64>, spent: u64, most: u64| limit.is_none_or(|limit| spent <= limit + most);
        assert!(over(limits.tokens, total.tokens, 0) && over(limits.steps, total.steps, 0), "{total:?}");
        assert!(over(limits.tool_calls, total.tool_calls, 0) && over(limits.children, total.children, 0), "{total:?}");
        assert!(over(limits.micros, total.micros, 5), "{total:?}");
        driven.check();
    }
}

#[test]
fn what_a_child_gave_up_counts_as_if_it_had_been_spent() {
    let limits = Budget { tokens: Some(1000), ..Budget::default() };
    let mut driven = Driven::start(parent(limits, Budget { tokens: Some(300), ..Budget::default() }));
    driven.reply(&[DELEGATE]);
    let mut child = begin(newborn(&driven), driven.now);
    child.reply(&[AGAIN]);
    assert_eq!(newborn(&child).agent.budget.tokens, Some(290));
    child.input(Input::Cancel).unwrap();
    tell(&mut driven, &child).unwrap();
    assert_eq!(driven.run.ledger().spent().tokens, 10 + 300, "the grandchild may have spent what it had");
    driven.check();
}

#[test]
fn a_line_of_children_has_an_end() {
    let mut driven = Driven::start(agent());
    for depth in 0..DEPTH_MAX {
        assert_eq!(driven.run.depth(), depth);
        driven.reply(&[AGAIN]);
        driven = begin(newborn(&driven), driven.now);
    }
    driven.reply(&[AGAIN]);
    assert!(driven.run.children().next().is_none() && driven.run.outcome().is_none());
    let said = format!("{:?}", driven.run.conversation().last().unwrap());
    assert!(said.contains("do it yourself"), "{said}");
    driven.check();
}

#[test]
fn calls_that_cannot_be_are_told_to_the_model() {
    let mut driven = Driven::start(parent(Budget::default(), Budget::default()));
    driven.reply(&[
        ("delegate", "{}"),
        ("delegate", "{\"task\":\"x\",\"agent\":\"nobody\"}"),
        ("delegate", "{\"task\":\"x\",\"agent\":7}"),
    ]);
    assert_eq!((driven.run.last_step(), driven.run.children().next()), (5, None));
    assert_eq!(driven.run.ledger().spent().children, 0);
    driven.check();
}

#[test]
fn a_run_that_ends_gives_its_child_up_and_a_paused_one_waits() {
    let mut driven = Driven::start(parent(Budget { wall_ms: Some(1000), ..Budget::default() }, Budget::default()));
    driven.reply(&[DELEGATE]);
    let mut child = begin(newborn(&driven), driven.now);
    child.reply(&[]);
    driven.input(Input::Pause).unwrap();
    assert!(driven.run.children().next().is_some());
    assert_eq!(names(&tell(&mut driven, &child).unwrap()), ["step_settled"]);
    assert_eq!(driven.run.status(), RunStatus::Paused);
    assert_eq!(names(&driven.input(Input::Resume).unwrap()), ["resumed", "step_intended"]);
    driven.reply(&[AGAIN]);
    assert_eq!(names(&driven.pass(Duration::from_secs(1))), ["step_abandoned", "run_finished"]);
    assert_eq!(driven.run.outcome(), Some(&RunOutcome::BudgetExceeded { budget: BudgetName::WallMs, answer: None }));
    driven.check();
}

#[test]
fn a_fork_starts_its_own_child_where_one_was_under_way_and_reads_what_was_recorded_otherwise() {
    let mut driven = Driven::start(parent(Budget { tokens: Some(1000), ..Budget::default() }, Budget::default()));
    driven.reply(&[DELEGATE]);
    let first = newborn(&driven);
    let under_way = driven.journal.clone();
    let mut child = begin(first.clone(), driven.now);
    child.reply(&[]);
    tell(&mut driven, &child).unwrap();
    let finished = driven.journal.clone();
    driven.reply(&[AGAIN]);
    driven.input(Input::Cancel).unwrap();
    let cancelled = driven.journal[..driven.journal.len() - 1].to_vec();
    let fork = |past: Vec<Event>| {
        let mut fork = Driven { run: Run::from_events(&past), journal: past, now: driven.now };
        let (run, message) = (RunId::from_random([9; 16]), None);
        fork.input(Input::Fork { run, generation: 1, message, is_logical_only: true, does_again: true, files: None })
            .unwrap();
        fork.input(Input::claim(1)).unwrap();
        fork.check();
        fork
    };
    let mut again = fork(under_way);
    let own = newborn(&again);
    assert_ne!(own.run, first.run, "the child that was under way is the other run's");
    assert_eq!((&own.agent, own.child_of.step), (&first.agent, 3), "and this one the same otherwise");
    assert_eq!(tell_raw(&mut again, &child), Err(Rejected::NotAwaited), "the other's end is not its own");
    let after = fork(finished);
    assert_eq!((after.run.children().next(), after.run.conversation().len()), (None, 3), "what was recorded is read");
    assert_eq!(after.run.ledger().spent().children, 1);
    assert_eq!(newborn(&fork(cancelled)).agent.task, Body::text("look again"), "what was given up is done");
    // A fork of a child has no parent.
    let mut branch = fork(child.journal[..child.journal.len() - 1].to_vec());
    assert_eq!((branch.run.child_of(), branch.run.depth()), (None, 1));
    branch.reply(&[]);
    assert_eq!(branch.run.end_for_parent(), None);
}

fn tell_raw(parent: &mut Driven, child: &Driven) -> Result<Vec<Event>, Rejected> {
    parent.input(Input::ChildEnded(child.run.end_for_parent().unwrap().1))
}

#[test]
fn an_end_that_nobody_waits_for_changes_nothing() {
    let mut driven = Driven::start(agent());
    let end =
        ChildEnd { child: RunId::from_random([3; 16]), outcome: RunOutcome::Cancelled, spent: Spending::default() };
    assert_eq!(driven.input(Input::ChildEnded(end.clone())), Err(Rejected::NotAwaited));
    driven.reply(&[AGAIN]);
    assert_eq!(driven.input(Input::ChildEnded(end)), Err(Rejected::NotAwaited), "another's child");
    driven.check();
}
