//! Calls of models in the sandboxes of runs: they fit what the run leaves, whoever asks at once, and each is billed once.

use saggar_domain::model::{CallAmount, Micros, TokenUsage};
use saggar_domain::{ProjectId, RunId, RunState};
use saggar_store::{
    Append, Appended, EndedCall, KnownCalls, LeftForSandboxes, NewAmount, NewCall, NewSandboxCall, SANDBOX_CALLS_MAX,
    SetAside, Store, TooMuch,
};

use crate::fixture::{Scratch, append, run as new_run, store_with_project, take_all};

/// A call that may come to so many tokens, and as many micros.
pub fn call(call: &str, run: &RunId, tokens: u64) -> NewCall {
    let of_run =
        NewSandboxCall { run: run.clone(), model: "cheap".to_owned(), input: tokens, output: 0, cost: Micros(tokens) };
    NewCall { call: call.to_owned(), account: None, of_run: Some(of_run) }
}

async fn book(store: &Store, project: &ProjectId, call: &str, tokens: u64) {
    let usage = TokenUsage { input: tokens, cost: Micros(tokens), ..TokenUsage::default() };
    let ended = EndedCall { project: project.clone(), call: call.to_owned(), route: "cheap".to_owned(), usage, day: 7 };
    store.book(ended).await.unwrap();
}

/// The next append of a run, whose budget leaves so much.
fn leaving(run: &RunId, epoch: u64, head: u64, tokens: u64) -> Append {
    let left = LeftForSandboxes { tokens: Some(tokens), micros: None };
    Append { left, ..append(run, epoch, head, &["more"], RunState::Running) }
}

/// A run that is held, and whose budget leaves so much.
async fn running(store: &Store, project: &ProjectId, tokens: u64) -> (RunId, u64) {
    let run = new_run(store, project, "first", None).await;
    let epoch = take_all(store, "w").await.into_iter().find(|claimed| claimed.run.id == run).unwrap().epoch;
    assert_eq!(store.append(leaving(&run, epoch, 1, tokens)).await, Ok(Appended::Done { head: 2 }));
    (run, epoch)
}

fn amount(tokens: u64) -> CallAmount {
    CallAmount { tokens, micros: tokens }
}

#[tokio::test]
async fn of_a_thousand_calls_at_once_those_that_fit_begin() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (run, _) = running(&store, &project, 10 * 70 + 69).await;
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..1_000 {
        let (store, call) = (store.clone(), call(&format!("call-{number}"), &run, 70));
        asking.spawn(async move { store.set_aside(call).await.unwrap() });
    }
    let outcomes = asking.join_all().await;
    let begun = outcomes.iter().filter(|outcome| **outcome == SetAside::Done { by_run: true }).count();
    let refused = SetAside::RunExhausted(TooMuch::Tokens { left: 69, wanted: 70 });
    let late = outcomes.iter().filter(|outcome| **outcome == refused).count();
    assert_eq!((begun, late), (10, 990));
    let calls = store.sandbox_calls(run).await.unwrap();
    assert_eq!((calls.models.len(), calls.under_way), (0, amount(700)));
}

#[tokio::test]
async fn a_call_is_billed_once_and_one_whose_process_died_in_full() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (run, epoch) = running(&store, &project, 1_000).await;
    for name in ["ends", "lost"] {
        assert_eq!(store.set_aside(call(name, &run, 300)).await, Ok(SetAside::Done { by_run: true }));
    }
    for _ in 0..2 {
        book(&store, &project, "ends", 40).await;
    }
    book(&store, &project, "unknown", 999).await;
    let calls = store.sandbox_calls(run.clone()).await.unwrap();
    assert_eq!((calls.models["cheap"].calls, calls.settled(), calls.under_way), (1, amount(40), amount(300)));
    drop(store);
    // The next server.
    let store = scratch.open();
    assert_eq!(store.bill_lost_sandbox_calls().await, Ok(1));
    assert_eq!(store.bill_lost_sandbox_calls().await, Ok(0));
    // What its process would have booked had it lived.
    book(&store, &project, "lost", 5).await;
    let calls = store.sandbox_calls(run.clone()).await.unwrap();
    let sum = calls.models["cheap"];
    assert_eq!((sum.calls, sum.estimated, calls.settled(), calls.under_way), (2, 1, amount(340), amount(0)));
    // What has been billed is no longer there, whatever the worker knows of it.
    let refused = SetAside::RunExhausted(TooMuch::Tokens { left: 660, wanted: 661 });
    assert_eq!(store.set_aside(call("big", &run, 661)).await, Ok(refused));
    assert_eq!(store.append(leaving(&run, epoch, 2, 340)).await, Ok(Appended::Done { head: 3 }));
    let refused = SetAside::RunExhausted(TooMuch::Tokens { left: 0, wanted: 1 });
    assert_eq!(store.set_aside(call("small", &run, 1)).await, Ok(refused));
}

#[tokio::test]
async fn entries_that_were_decided_before_a_call_began_have_to_fit_beside_it() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (run, epoch) = running(&store, &project, 1_000).await;
    assert_eq!(store.set_aside(call("one", &run, 600)).await, Ok(SetAside::Done { by_run: true }));
    let knowing = |known: u64, may_grow: bool, head: u64, left: u64| Append {
        known_calls: Some(KnownCalls { amount: amount(known), may_grow }),
        ..leaving(&run, epoch, head, left)
    };
    // They reserve 500 of the 1,000, and know nothing of the call.
    assert_eq!(store.append(knowing(0, true, 2, 500)).await, Ok(Appended::Overtaken));
    assert_eq!(store.run_of_any(run.clone()).await.unwrap().unwrap().head, 2, "nothing was written");
    // The end of a child: its parent is told of every call.
    assert_eq!(store.append(knowing(0, false, 2, 900)).await, Ok(Appended::Overtaken));
    assert_eq!(store.append(knowing(0, true, 2, 600)).await, Ok(Appended::Done { head: 3 }), "it fits");
    assert_eq!(store.append(knowing(600, false, 3, 500)).await, Ok(Appended::Done { head: 4 }), "it was known");
    // Whoever repeats an append whose answer was lost learns that it was made.
    assert_eq!(store.append(knowing(0, true, 3, 100)).await, Ok(Appended::Moved { head: 4 }));
    let stale = Append { epoch: epoch - 1, ..knowing(0, true, 4, 100) };
    assert_eq!(store.append(stale).await, Ok(Appended::Fenced { epoch }));
}

#[tokio::test]
async fn both_budgets_are_set_aside_or_neither() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (run, _) = running(&store, &project, 1_000).await;
    let account = |limit: u64| {
        Some(NewAmount { project: project.clone(), amount: Micros(50), limit: Micros(limit), first_day: 7, day: 7 })
    };
    let both = NewCall { account: account(40), ..call("a", &run, 10) };
    assert_eq!(store.set_aside(both).await, Ok(SetAside::Exhausted { gone: Micros::ZERO }));
    assert_eq!(store.sandbox_calls(run.clone()).await.unwrap().under_way, amount(0));
    let both = NewCall { account: account(90), ..call("b", &run, 1_001) };
    assert!(matches!(store.set_aside(both).await, Ok(SetAside::RunExhausted(_))));
    assert_eq!(store.spent(project.clone(), 7).await.unwrap().set_aside, Micros::ZERO);
    let both = NewCall { account: account(90), ..call("c", &run, 10) };
    assert_eq!(store.set_aside(both).await, Ok(SetAside::Done { by_run: true }));
    assert_eq!(store.spent(project, 7).await.unwrap().set_aside, Micros(50));
}

#[tokio::test]
async fn a_run_without_a_budget_limits_nothing_but_their_number_and_one_that_is_over_allows_none() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (run, epoch) = running(&store, &project, 1).await;
    let unlimited = Append { left: LeftForSandboxes::default(), ..leaving(&run, epoch, 2, 0) };
    assert_eq!(store.append(unlimited).await, Ok(Appended::Done { head: 3 }));
    for number in 0..SANDBOX_CALLS_MAX {
        let call = call(&number.to_string(), &run, u64::MAX);
        assert_eq!(store.set_aside(call).await, Ok(SetAside::Done { by_run: false }), "{number}");
    }
    assert!(store.set_aside(call("more", &run, 1)).await.is_err());
    assert_eq!(store.finished_of(vec![run.clone()]).await, Ok(Vec::new()));
    let end = append(&run, epoch, 3, &["end"], RunState::Finished);
    assert_eq!(store.append(end).await, Ok(Appended::Done { head: 4 }));
    assert_eq!(store.finished_of(vec![run.clone()]).await, Ok(vec![run.clone()]));
    assert_eq!(store.set_aside(call("late", &run, 1)).await, Ok(SetAside::RunOver));
    // What ends after its run is billed all the same.
    book(&store, &project, "0", 5).await;
    assert_eq!(store.sandbox_calls(run).await.unwrap().models["cheap"].micros, 5);
}
