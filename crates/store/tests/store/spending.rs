//! Spending on models: limits hold whoever asks at once, and nothing that was set aside is lost.

use saggar_domain::ProjectId;
use saggar_domain::model::{Micros, TokenUsage};
use saggar_store::{EndedCall, NewAmount, NewCall, SetAside, Store};

use crate::fixture::Scratch;

fn project() -> ProjectId {
    ProjectId::from_random([1; 16])
}

fn amount(call: &str, micros: u64, day: u64) -> NewCall {
    amount_from(call, micros, day, day)
}

/// Of a period that began on that day.
fn amount_from(call: &str, micros: u64, first_day: u64, day: u64) -> NewCall {
    let (project, amount, limit) = (project(), Micros(micros), Micros(1_000));
    let account = Some(NewAmount { project, amount, limit, first_day, day });
    NewCall { call: call.to_owned(), account, of_run: None }
}

async fn book(store: &Store, call: &str, micros: u64, day: u64) {
    let usage = TokenUsage { input: 10, output: 2, cost: Micros(micros), ..TokenUsage::default() };
    let ended = EndedCall { project: project(), call: call.to_owned(), route: "m".to_owned(), usage, day };
    store.book(ended).await.unwrap();
}

#[tokio::test]
async fn what_is_set_aside_counts_until_it_is_booked_and_survives_a_restart() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let calls: Vec<String> = (0..20).map(|number| format!("call-{number}")).collect();
    let mut asking = tokio::task::JoinSet::new();
    for call in &calls {
        let (store, amount) = (store.clone(), amount(call, 100, 7));
        asking.spawn(async move { store.set_aside(amount).await });
    }
    let outcomes = asking.join_all().await;
    let done = outcomes.iter().filter(|outcome| matches!(outcome, Ok(SetAside::Done { by_run: false }))).count();
    assert_eq!(done, 10, "{outcomes:?}");
    drop(store);
    let store = scratch.open();
    assert_eq!(store.set_aside(amount("more", 1, 7)).await, Ok(SetAside::Exhausted { gone: Micros(1_000) }));
    book(&store, "call-0", 40, 7).await;
    assert_eq!(store.set_aside(amount("more", 61, 7)).await, Ok(SetAside::Exhausted { gone: Micros(940) }));
    assert_eq!(store.set_aside(amount("more", 60, 7)).await, Ok(SetAside::Done { by_run: false }));
    let spent = store.spent(project(), 7).await.unwrap();
    assert_eq!((spent.today, spent.in_all, spent.set_aside), (Micros(40), Micros(40), Micros(960)));
    assert_eq!((spent.routes["m"].calls, spent.routes["m"].input, spent.routes["m"].micros), (1, 10, 40));
    // A call that never ended is spent, on its own day.
    assert_eq!(store.set_aside(amount("late", 1_000, 9)).await, Ok(SetAside::Done { by_run: false }));
    let spent = store.spent(project(), 9).await.unwrap();
    assert_eq!((spent.today, spent.in_all, spent.set_aside), (Micros(0), Micros(1_000), Micros(1_000)));
}

#[tokio::test]
async fn a_period_begins_anew_and_the_sum_of_all_time_stays() {
    let scratch = Scratch::new();
    let store = scratch.open();
    book(&store, "a", 900, 1).await;
    book(&store, "b", 5, 100).await;
    assert_eq!(store.spent(project(), 100).await.unwrap().in_all, Micros(905));
    assert_eq!(store.set_aside(amount("c", 995, 100)).await, Ok(SetAside::Done { by_run: false }));
    assert_eq!(store.set_aside(amount_from("d", 995, 0, 100)).await, Ok(SetAside::Exhausted { gone: Micros(1_900) }));
}
