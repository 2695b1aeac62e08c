//! A store that is a copy of an earlier state: its open runs may have continued elsewhere, so no worker claims them
//! before a human has decided.

use saggar_domain::RunState;
use saggar_store::{BlockKind, Store, backup, restore};

use crate::fixture::{NOW, Scratch, append, run, store_with_project, take_all};

/// Checks that every open run is blocked for this reason, and the finished one isn't.
async fn check_blocked(store: &Store, reason: &str) {
    assert!(take_all(store, "w").await.is_empty(), "no worker claims a run that may have continued elsewhere");
    let mut blocked = 0;
    for row in rows(store).await {
        match row.state {
            RunState::Finished => assert_eq!(row.block, None),
            _ => {
                let block = row.block.unwrap();
                assert_eq!((row.state, block.kind), (RunState::Parked, BlockKind::Restored));
                assert!(block.reason.starts_with(reason), "{}", block.reason);
                blocked += 1;
            }
        }
    }
    assert_eq!(blocked, 3);
}

async fn rows(store: &Store) -> Vec<saggar_store::RunRow> {
    let project = store.projects().await.unwrap().remove(0).id;
    let query = saggar_store::RunQuery { limit: saggar_store::PageLimit::MAX, ..saggar_store::RunQuery::new(project) };
    store.runs(query).await.unwrap().items
}

/// A store with a run and its child, a held run, and a finished one.
async fn worked_on(scratch: &Scratch) -> Store {
    let (store, project) = store_with_project(scratch).await;
    let parent = run(&store, &project, "first", None).await;
    run(&store, &project, "first", Some((parent, 2))).await;
    let finished = run(&store, &project, "first", None).await;
    let taken = take_all(&store, "w1").await;
    let epoch = taken.iter().find(|taken| taken.run.id == finished).unwrap().epoch;
    store.append(append(&finished, epoch, 1, &["last"], RunState::Finished)).await.unwrap();
    run(&store, &project, "first", None).await;
    store
}

#[tokio::test]
async fn open_runs_of_a_restored_backup_wait_for_a_person() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let store = worked_on(&scratch).await;
    let file = scratch.join("backup.db");
    backup(scratch.path(), &file, NOW).unwrap();
    restore(&file, elsewhere.path()).unwrap();
    let restored = elsewhere.open();
    check_blocked(&restored, "the store was restored from a backup of 2027-01-15T08:00:00Z").await;
    // The original store is unaffected.
    assert!(rows(&store).await.iter().all(|row| row.block.is_none()));

    // Resuming a run also unblocks its child; the others stay blocked.
    let parent = rows(&restored).await.into_iter().find_map(|row| row.child_of).unwrap().0;
    assert_eq!(restored.blocked_below(parent.clone()).await.unwrap().len(), 2);
    assert_eq!(restored.unblock(parent, NOW).await, Ok(2));
    assert_eq!(take_all(&restored, "w2").await.len(), 2);
    drop(restored);
    // Nothing is blocked again at the next opening.
    let again = elsewhere.open();
    assert_eq!(rows(&again).await.iter().filter(|row| row.block.is_some()).count(), 1);
}

#[tokio::test]
async fn a_backup_that_is_copied_into_place_by_hand_is_known_for_what_it_is() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    worked_on(&scratch).await;
    backup(scratch.path(), &elsewhere.join("saggar.db"), NOW).unwrap();
    check_blocked(&elsewhere.open(), "the store was restored from a backup of 2027-01-15T08:00:00Z").await;
}

#[tokio::test]
async fn an_older_copy_of_the_database_is_known_for_what_it_is() {
    let scratch = Scratch::new();
    drop(worked_on(&scratch).await);
    let file = scratch.join("saggar.db");
    let old = std::fs::read(&file).unwrap();
    drop(scratch.open());
    std::fs::write(&file, &old).unwrap();
    check_blocked(&scratch.open(), "the database is an older copy").await;
    let elsewhere = Scratch::new();
    std::fs::write(elsewhere.join("saggar.db"), &old).unwrap();
    check_blocked(&elsewhere.open(), "the database was copied here").await;
}

#[tokio::test]
async fn a_store_that_is_closed_and_opened_again_goes_on() {
    let scratch = Scratch::new();
    drop(worked_on(&scratch).await);
    let store = scratch.open();
    assert!(rows(&store).await.iter().all(|row| row.block.is_none()));
}
