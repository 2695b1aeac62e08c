//! Which runs a worker takes: in turns, within limits, and those that wait for room.

use std::collections::BTreeSet;
use std::time::Duration;

use saggar_domain::{ProjectId, RunId, RunState, Timestamp};
use saggar_store::{Store, Taking};

use crate::fixture::{NOW, Scratch, project, store_with_project};
use crate::runs::{ANY, append, both, claim, create, create_at, holder, lease};

#[tokio::test]
async fn runs_are_taken_in_turns_and_within_their_limits() {
    let scratch = Scratch::new();
    let (store, first) = store_with_project(&scratch).await;
    let second = project("second");
    store.create_project(second.clone()).await.unwrap();
    for _ in 0..4 {
        create(&store, &first, "busy").await;
    }
    create(&store, &first, "other").await;
    create(&store, &second.id, "busy").await;
    let taking = Taking { most: 2, reserved: 0, per_agent: 2, per_project: 3 };
    let taken = store.claim_due(holder("w"), NOW, lease(NOW), taking).await.unwrap();
    let projects: BTreeSet<_> = taken.iter().map(|claimed| claimed.run.project.clone()).collect();
    assert_eq!((taken.len(), projects.len()), (2, 2), "each project has its turn");
    let more = store.claim_due(holder("w"), NOW, lease(NOW), Taking { most: 100, ..taking }).await.unwrap();
    let all: Vec<_> = taken.iter().chain(&more).filter(|claimed| claimed.run.project == first).collect();
    let busy = all.iter().filter(|claimed| claimed.run.agent == "busy").count();
    assert_eq!((all.len(), busy), (3, 2), "two of an agent and three of a project at once");
}

#[tokio::test]
async fn a_busy_project_or_agent_makes_nobody_else_wait() {
    let scratch = Scratch::new();
    let (store, busy) = store_with_project(&scratch).await;
    let second = project("second");
    store.create_project(second.clone()).await.unwrap();
    let later = NOW.after(Duration::from_millis(1));
    for _ in 0..10 {
        create(&store, &busy, "a").await;
    }
    for _ in 0..2 {
        create_at(&store, &second.id, "a", later).await;
    }
    let mut turns = Vec::new();
    for _ in 0..5 {
        let taken = store.claim_due(holder("w"), later, lease(later), Taking { most: 1, ..ANY }).await.unwrap();
        turns.push(taken[0].run.project == busy);
    }
    assert_eq!(turns, [true, false, true, false, true], "projects take turns, however long each has waited");
    // Five more of the first project wait, and its agent has reached its limit: another agent of it doesn't wait with
    // them.
    let other = create_at(&store, &busy, "other", later.after(Duration::from_millis(1))).await;
    let at = later.after(Duration::from_millis(2));
    let full = Taking { most: 1, reserved: 0, per_agent: 3, per_project: 100 };
    let taken = store.claim_due(holder("w"), at, lease(at), full).await.unwrap();
    assert_eq!(taken.iter().map(|claimed| &claimed.run.id).collect::<Vec<_>>(), [&other]);
    assert!(store.claim_due(holder("w"), at, lease(at), full).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_last_places_of_a_worker_are_for_projects_that_have_none() {
    let scratch = Scratch::new();
    let (store, busy) = store_with_project(&scratch).await;
    for number in 0..6 {
        create_at(&store, &busy, &format!("agent{number}"), NOW).await;
    }
    let taking = Taking { most: 4, reserved: 2, ..ANY };
    let taken = store.claim_due(holder("w"), NOW, lease(NOW), taking).await.unwrap();
    assert_eq!(taken.len(), 2, "the rest is kept for others");
    let (left, at) = (Taking { most: 2, ..taking }, NOW.after(Duration::from_millis(1)));
    assert_eq!(store.is_run_due(both(at), left).await, Ok(false), "what can't be taken is not due");
    let other = project("other");
    store.create_project(other.clone()).await.unwrap();
    let newcomer = create(&store, &other.id, "a").await;
    create_at(&store, &other.id, "a", NOW.after(Duration::from_millis(1))).await;
    assert_eq!(store.is_run_due(both(at), left).await, Ok(true));
    let taken = store.claim_due(holder("w"), at, lease(at), left).await.unwrap();
    assert_eq!(taken.iter().map(|claimed| &claimed.run.id).collect::<Vec<_>>(), [&newcomer], "its first, and no more");
}

#[tokio::test]
async fn a_backlog_behind_a_limit_does_not_hide_what_can_be_taken() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    for _ in 0..20 {
        create_at(&store, &project, "many", NOW).await;
    }
    let one = create_at(&store, &project, "one", NOW.after(Duration::from_millis(1))).await;
    let later = NOW.after(Duration::from_millis(2));
    let taking = Taking { most: 4, per_agent: 2, ..ANY };
    let taken = store.claim_due(holder("w"), later, lease(later), taking).await.unwrap();
    assert_eq!(taken.len(), 3);
    assert!(taken.iter().any(|claimed| claimed.run.id == one));
    assert_eq!(store.is_run_due(both(later), taking).await, Ok(false));
    assert!(store.claim_due(holder("w"), later, lease(later), taking).await.unwrap().is_empty());
}

/// A run that has been waiting for capacity since then.
async fn wait_for_room(store: &Store, project: &ProjectId, since: Timestamp) -> RunId {
    let run = create_at(store, project, "a", since).await;
    let epoch = claim(store, "w", since).await[0].epoch;
    let mut waiting = append(&run, epoch, 1, &["delayed"]);
    waiting.summary.state = RunState::Waiting;
    waiting.summary.wake_at = Some(since.after(Duration::from_secs(30)));
    waiting.summary.room_since = Some(since);
    waiting.summary.sandbox = None;
    store.append(waiting).await.unwrap();
    store.release_run(run.clone(), epoch).await.unwrap();
    run
}

#[tokio::test]
async fn runs_that_wait_for_room_are_woken_in_turns_and_nobody_passes_them() {
    let scratch = Scratch::new();
    let (store, mine) = store_with_project(&scratch).await;
    let theirs = project("theirs");
    store.create_project(theirs.clone()).await.unwrap();
    let theirs = theirs.id;
    let at = |millis: u64| NOW.after(Duration::from_millis(millis));
    assert_eq!(store.is_room_wanted(NOW).await, Ok(false));
    let first = wait_for_room(&store, &mine, at(0)).await;
    let second = wait_for_room(&store, &mine, at(1)).await;
    let other = wait_for_room(&store, &theirs, at(2)).await;
    // A newcomer queues behind the waiting runs of its own project; in another project, behind the first of each.
    let newcomer = create(&store, &mine, "a").await;
    let stranger = create(&store, &theirs, "a").await;
    for (run, ahead) in [(&first, 0), (&other, 1), (&second, 2), (&stranger, 3), (&newcomer, 3)] {
        assert_eq!(store.runs_ahead(run.clone(), at(3)).await, Ok(ahead), "{run}");
    }
    assert_eq!(store.is_room_wanted(at(3)).await, Ok(true));
    assert_eq!(store.give_room(at(3), 2).await, Ok(2));
    let mut woken = claim(&store, "w", at(3)).await;
    woken.retain(|claimed| claimed.run.state == RunState::Waiting);
    let woken: BTreeSet<RunId> = woken.into_iter().map(|claimed| claimed.run.id).collect();
    assert_eq!(woken, [first, other].into(), "the first of each project");
    assert_eq!(store.give_room(at(3), 9).await, Ok(1), "what is woken is not woken again");
}
