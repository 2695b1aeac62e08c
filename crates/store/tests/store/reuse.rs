//! Files that a run leaves for the next run of its agent: each is taken by one, and only in time.

use std::time::Duration;

use saggar_domain::{ProjectId, RunId, RunState, SnapshotId, Timestamp};
use saggar_store::{Appended, HandedOn, JsonText, Removal, ReuseKey, ReuseNeed, Store, Taken};

use crate::fixture::{NOW, Scratch, append, project, random, run, store_with_project, take_all};

struct Place {
    store: Store,
    project: ProjectId,
    _scratch: Scratch,
}

impl Place {
    async fn new() -> Self {
        let scratch = Scratch::new();
        let (store, project) = store_with_project(&scratch).await;
        Self { store, project, _scratch: scratch }
    }

    async fn run(&self) -> RunId {
        run(&self.store, &self.project, "first", None).await
    }

    async fn take(&self, run: &RunId, key: &str, now: Timestamp) -> Taken {
        let key = ReuseKey::of(key.as_bytes());
        self.store.take_files(self.project.clone(), run.clone(), key, now).await.unwrap()
    }

    /// A run that has left files until [`until`].
    async fn left(&self, key: &str) -> HandedOn {
        let from = self.run().await;
        self.take(&from, key, NOW).await;
        let snapshot =
            self.store.begin_leaving(from.clone(), SnapshotId::from_random(random()), until()).await.unwrap().unwrap();
        self.store.leave_files(from.clone(), until()).await.unwrap();
        HandedOn { snapshot, from }
    }
}

fn until() -> Timestamp {
    NOW.after(Duration::from_secs(60))
}

#[tokio::test]
async fn files_are_taken_by_one_run_of_the_same_key_and_project_and_in_time() {
    let place = Place::new().await;
    let (one, two, late) = (place.run().await, place.run().await, place.run().await);
    let left = place.left("key").await;
    assert_eq!(place.take(&late, "key", until()).await, Taken::Nothing);
    assert_eq!(place.take(&place.run().await, "other", NOW).await, Taken::Nothing);
    let other = project("other");
    place.store.create_project(other.clone()).await.unwrap();
    let stranger = run(&place.store, &other.id, "first", None).await;
    let taken = place.store.take_files(other.id, stranger, ReuseKey::of(b"key"), NOW).await;
    assert_eq!(taken, Ok(Taken::Nothing));

    assert_eq!(place.take(&one, "key", NOW).await, Taken::Files(left.clone()));
    assert_eq!(place.take(&two, "key", NOW).await, Taken::Nothing, "they are taken");
    assert_eq!(place.take(&one, "key", until()).await, Taken::Files(left.clone()), "and stay so");
    assert_eq!(place.store.files_begun_with(one.clone()).await, Ok(Some(left.clone())));
    let row = place.store.run_of_any(one.clone()).await.unwrap().unwrap();
    assert_eq!(row.began_with, Some(left.clone()));
    let by = Some(one.clone());
    let needed = place.store.needed_for_reuse(place.project.clone(), NOW).await.unwrap();
    assert_eq!(needed, [ReuseNeed { snapshot: left.snapshot, by }], "it may go back to them");
    place.store.begin_with_nothing(one.clone()).await.unwrap();
    assert_eq!(place.take(&one, "key", NOW).await, Taken::Nothing, "they were gone");
}

#[tokio::test]
async fn a_run_that_is_about_to_leave_files_is_waited_for() {
    let place = Place::new().await;
    let from = place.run().await;
    let epoch = take_all(&place.store, "w").await[0].epoch;
    assert_eq!(place.take(&from, "key", NOW).await, Taken::Nothing);
    let next = place.run().await;
    let mut end = append(&from, epoch, 1, &["end"], RunState::Finished);
    end.summary.wake_at = Some(NOW);
    end.summary.outcome = Some(JsonText::parse(r#"{"outcome":"completed"}"#).unwrap());
    place.store.append(end).await.unwrap();
    assert_eq!(place.take(&next, "key", NOW).await, Taken::Soon);
    let asked = SnapshotId::from_random([1; 16]);
    assert_eq!(place.store.begin_leaving(from.clone(), asked.clone(), until()).await, Ok(Some(asked.clone())));
    let again = place.store.begin_leaving(from.clone(), SnapshotId::from_random([2; 16]), until()).await;
    assert_eq!(again, Ok(Some(asked.clone())), "whoever goes on takes the same");
    assert_eq!(place.take(&next, "key", NOW).await, Taken::Soon, "they are not there yet");
    place.store.leave_files(from.clone(), until()).await.unwrap();
    assert_eq!(place.store.begin_leaving(from.clone(), asked.clone(), until()).await, Ok(None), "it has left them");
    assert_eq!(place.take(&next, "key", NOW).await, Taken::Files(HandedOn { snapshot: asked, from }));
}

#[tokio::test]
async fn a_run_that_has_not_completed_is_not_waited_for() {
    let place = Place::new().await;
    for outcome in ["cancelled", "failed", "budget_exceeded"] {
        let from = place.run().await;
        let epoch = take_all(&place.store, "w").await[0].epoch;
        assert_eq!(place.take(&from, outcome, NOW).await, Taken::Nothing);
        let mut end = append(&from, epoch, 1, &["end"], RunState::Finished);
        end.summary.wake_at = Some(NOW);
        end.summary.outcome = Some(JsonText::parse(&format!(r#"{{"outcome":"{outcome}"}}"#)).unwrap());
        assert!(matches!(place.store.append(end).await, Ok(Appended::Done { .. })));
        let next = place.run().await;
        assert_eq!(place.take(&next, outcome, NOW).await, Taken::Nothing, "{outcome}");
        take_all(&place.store, "w").await;
    }
}

#[tokio::test]
async fn what_a_run_keeps_to_itself_is_nobodys() {
    let place = Place::new().await;
    let (doubtful, next) = (place.run().await, place.run().await);
    place.take(&doubtful, "key", NOW).await;
    place.store.leave_nothing(doubtful.clone()).await.unwrap();
    assert_eq!(place.store.begin_leaving(doubtful.clone(), SnapshotId::from_random([1; 16]), until()).await, Ok(None));
    place.store.leave_files(doubtful, until()).await.unwrap();
    assert_eq!(place.take(&next, "key", NOW).await, Taken::Nothing);
    let waits = place.run().await;
    place.store.take_no_files(waits.clone(), ReuseKey::of(b"key")).await.unwrap();
    place.left("key").await;
    assert_eq!(place.take(&waits, "key", NOW).await, Taken::Nothing, "it has begun without");
}

#[tokio::test]
async fn files_go_with_the_run_that_left_them_and_with_their_time() {
    let place = Place::new().await;
    let from = place.run().await;
    let epoch = take_all(&place.store, "w").await[0].epoch;
    place.take(&from, "key", NOW).await;
    place.store.append(append(&from, epoch, 1, &["end"], RunState::Finished)).await.unwrap();
    place.store.begin_leaving(from.clone(), SnapshotId::from_random([1; 16]), until()).await.unwrap();
    let needed = async |now| place.store.needed_for_reuse(place.project.clone(), now).await.unwrap().len();
    assert_eq!(
        (needed(NOW).await, needed(until()).await),
        (1, 0),
        "also of a run that was to leave them, and never did"
    );
    place.store.leave_files(from.clone(), until()).await.unwrap();
    assert_eq!((needed(NOW).await, needed(until()).await), (1, 0));
    place.store.let_go_run(from.clone(), epoch).await.unwrap();
    assert_eq!(place.store.remove_run(place.project.clone(), from, NOW).await, Ok(Removal::Removed));
    assert_eq!(needed(NOW).await, 0);
    assert_eq!(place.take(&place.run().await, "key", NOW).await, Taken::Nothing);
}
