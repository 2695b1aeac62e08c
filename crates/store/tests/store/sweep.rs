//! What is forgotten, and what is not.

use std::num::NonZeroU32;
use std::time::Duration;

use saggar_domain::Timestamp;
use saggar_store::{
    IDEMPOTENCY_RETENTION, Idempotency, IdempotencyKey, Insertion, RequestHash, Retention, SandboxQuery, Scope, Swept,
};

use saggar_domain::net::Verdict;

use crate::fixture::{NOW, Scratch, ending, event, exec, insert, sandbox, store_with_project};
use crate::network::decision;

fn later(seconds: u64) -> Timestamp {
    NOW.after(Duration::from_secs(seconds))
}

#[tokio::test]
async fn only_what_ended_long_enough_ago_goes_with_everything_it_had() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (live, recent, old) = (sandbox(&project), sandbox(&project), sandbox(&project));
    for new in [&live, &recent, &old] {
        insert(&store, new).await;
        store.record_exec_started(exec(&new.id, NOW)).await.unwrap();
        store.append_events(new.id.clone(), vec![event(0), event(1)]).await.unwrap();
        store.append_decisions(new.id.clone(), vec![decision(2, "a.example", Verdict::Denied)]).await.unwrap();
    }
    store.end_sandbox(recent.id.clone(), ending(later(51))).await.unwrap();
    store.end_sandbox(old.id.clone(), ending(later(50))).await.unwrap();
    let retention = Retention { ended: Duration::from_secs(50), ..Retention::default() };
    let swept = store.sweep(later(100), retention).await;
    assert_eq!(swept, Ok(Swept { sandboxes: 1, runs: 0, rows: 6, has_more: false }));
    let left = store.sandboxes(SandboxQuery::new(Scope::All)).await.unwrap().items;
    assert_eq!(left.into_iter().map(|left| left.asked).collect::<Vec<_>>(), [recent, live]);
    assert_eq!(store.last_event(old.id).await, Ok(None));
    assert_eq!(store.sweep(later(100), retention).await, Ok(Swept::default()));
}

#[tokio::test]
async fn a_sweep_takes_no_more_rows_than_it_may_and_goes_on_next_time() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    for _ in 0..3 {
        let new = sandbox(&project);
        insert(&store, &new).await;
        store.append_events(new.id.clone(), (0..25).map(event).collect()).await.unwrap();
        store.record_exec_started(exec(&new.id, NOW)).await.unwrap();
        store.end_sandbox(new.id, ending(NOW)).await.unwrap();
    }
    let rows_max = NonZeroU32::new(10).unwrap();
    let retention = Retention { ended: Duration::ZERO, rows_max, ..Retention::default() };
    let (mut rows, mut sandboxes) = (0, 0);
    loop {
        let swept = store.sweep(NOW, retention).await.unwrap();
        assert!(swept.rows <= rows_max.get());
        rows += swept.rows;
        sandboxes += swept.sandboxes;
        if !swept.has_more {
            break;
        }
    }
    assert_eq!((rows, sandboxes), (3 * 27, 3));
}

#[tokio::test]
async fn a_sandbox_stays_for_as_long_as_a_key_stands_for_it() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let new = sandbox(&project);
    let once = Idempotency { key: IdempotencyKey::parse("k").unwrap(), request_hash: RequestHash::of(b"") };
    assert_eq!(store.insert_sandbox(new.clone(), Some(once)).await, Ok(Insertion::Inserted));
    store.end_sandbox(new.id.clone(), ending(NOW)).await.unwrap();
    let retention = Retention { ended: Duration::ZERO, ..Retention::default() };
    assert_eq!(store.sweep(later(60), retention).await, Ok(Swept::default()));
    let day_later = new.created_at.after(IDEMPOTENCY_RETENTION);
    let swept = store.sweep(day_later, retention).await;
    assert_eq!(swept, Ok(Swept { sandboxes: 1, runs: 0, rows: 2, has_more: false }));
}
