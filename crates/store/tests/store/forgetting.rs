//! Removal and retention of runs: what is deleted, what stays, and in which order.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use saggar_domain::{Labels, ProjectId, RunId, RunState, Timestamp, Uptime};
use saggar_store::{
    Append, Appended, BlobHash, Error, Fork, Holder, IDEMPOTENCY_RETENTION, Idempotency, IdempotencyKey, InboxError,
    JsonText, Lease, LetterRoom, NewLetter, NewRun, Removal, RequestHash, Retention, RunInsertion, RunQuery, Store,
    Summary, Taking,
};

use crate::fixture::{NOW, Scratch, random, store_with_project};

const ANY: Taking = Taking { most: 100, reserved: 0, per_agent: 100, per_project: 100 };
/// Longer than a loose blob is kept.
const LONG: Duration = Duration::from_secs(2 * 60 * 60);

fn later(seconds: u64) -> Timestamp {
    NOW.after(Duration::from_secs(seconds))
}

fn labels(entries: &[(&str, &str)]) -> Labels {
    let entries: BTreeMap<_, _> = entries.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Labels::parse(entries).unwrap()
}

fn new_run(project: &ProjectId, agent: &str) -> NewRun {
    NewRun {
        id: RunId::from_random(random()),
        project: project.clone(),
        agent: agent.to_owned(),
        labels: Labels::default(),
        created_at: NOW,
        first: "{}".to_owned(),
        child_of: None,
    }
}

async fn begin(store: &Store, new: NewRun) -> RunId {
    let id = new.id.clone();
    assert_eq!(store.create_run(new, None).await, Ok(RunInsertion::Inserted));
    id
}

/// Claims every due run, and finishes it with these entries and children.
async fn finish(store: &Store, run: &RunId, entries: &[String], children: Vec<NewRun>, at: Timestamp) {
    let append = take(store, run, entries, children, at).await;
    let head = append.head + append.entries.len() as u64;
    assert_eq!(store.append(append).await, Ok(Appended::Done { head }));
    store.drop_holder(Holder::parse("worker").unwrap(), at).await.unwrap();
}

/// Takes every run that is due; what finishes this one.
async fn take(store: &Store, run: &RunId, entries: &[String], children: Vec<NewRun>, at: Timestamp) -> Append {
    let from = Uptime::from_millis(1_000_000);
    let lease = Lease { from, until: from.after(Duration::from_secs(1)) };
    let holder = Holder::parse("worker").unwrap();
    store.claim_due(holder.clone(), at, lease, ANY).await.unwrap();
    let held = store.runs_held_by(holder.clone()).await.unwrap();
    let claimed = held.into_iter().find(|claimed| claimed.run.id == *run).unwrap();
    let outcome = JsonText::parse(r#"{"outcome":"completed"}"#);
    let summary = Summary { state: RunState::Finished, at, wake_at: None, outcome, sandbox: None, room_since: None };
    Append {
        run: run.clone(),
        epoch: claimed.epoch,
        head: claimed.run.head,
        entries: entries.to_vec(),
        summary,
        consumed: Vec::new(),
        seen: 0,
        children,
        letters: Vec::new(),
        files: None,
        generation: None,
        left: Default::default(),
        known_calls: None,
    }
}

async fn is_there(store: &Store, project: &ProjectId, run: &RunId) -> bool {
    store.run(project.clone(), run.clone()).await.unwrap().is_some()
}

fn forever() -> Retention {
    Retention { runs: Duration::from_secs(u32::MAX.into()), ..Retention::default() }
}

#[tokio::test]
async fn a_run_goes_with_what_it_started_and_only_when_all_are_over() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let parent = begin(&store, new_run(&project, "a")).await;
    let remove = async |id: &RunId| store.remove_run(project.clone(), id.clone(), NOW).await.unwrap();
    assert_eq!(remove(&parent).await, Removal::Busy(parent.clone()));
    let child = NewRun { child_of: Some((parent.clone(), 2)), ..new_run(&project, "helper") };
    let child_id = child.id.clone();
    finish(&store, &parent, &["{}".to_owned()], vec![child], NOW).await;
    assert_eq!(remove(&child_id).await, Removal::StartedBy(parent.clone()));
    assert_eq!(remove(&parent).await, Removal::Busy(child_id.clone()));
    assert!(is_there(&store, &project, &parent).await, "a refusal changes nothing");
    finish(&store, &child_id, &[], Vec::new(), NOW).await;
    let other = ProjectId::from_random(random());
    assert_eq!(store.remove_run(other, parent.clone(), NOW).await, Ok(Removal::Absent));
    assert_eq!(remove(&parent).await, Removal::Removed);
    for run in [&parent, &child_id] {
        assert!(!is_there(&store, &project, run).await);
        assert_eq!(store.run_of_any(run.clone()).await, Ok(None));
    }
    assert_eq!(remove(&parent).await, Removal::Absent);
    assert!(store.runs(RunQuery::new(project.clone())).await.unwrap().items.is_empty());
    let swept = store.sweep(NOW, forever()).await.unwrap();
    assert_eq!((swept.runs, swept.rows), (2, 5), "two runs, and three entries");
    assert!(store.journal_after(parent, 0).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_run_whose_past_a_fork_has_goes_after_the_fork() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let parent = begin(&store, new_run(&project, "a")).await;
    finish(&store, &parent, &[], Vec::new(), NOW).await;
    let id = RunId::from_random(random());
    let fork = Fork {
        project: project.clone(),
        parent: parent.clone(),
        through: 1,
        id: id.clone(),
        created_at: NOW,
        files: None,
    };
    store.fork_run(fork, |_, _| "{}".to_owned()).await.unwrap();
    let removal = store.remove_run(project.clone(), parent.clone(), NOW).await;
    assert_eq!(removal, Ok(Removal::ForkedBy(id.clone())));
    // Age doesn't remove it either.
    let retention = Retention { runs: Duration::ZERO, ..Retention::default() };
    assert_eq!(store.sweep(later(60), retention).await.unwrap().runs, 0);
    assert_eq!(store.journal_after(id.clone(), 0).await.unwrap().len(), 1, "the parent's past can still be read");
    finish(&store, &id, &[], Vec::new(), later(1)).await;
    assert_eq!(store.remove_run(project.clone(), id, NOW).await, Ok(Removal::Removed));
    assert_eq!(store.remove_run(project.clone(), parent, NOW).await, Ok(Removal::Removed));
    assert_eq!(store.sweep(NOW, forever()).await.unwrap().runs, 2);
}

#[tokio::test]
async fn only_runs_that_were_over_long_enough_ago_go_and_not_while_a_key_stands_for_them() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let open = begin(&store, new_run(&project, "a")).await;
    let (old, recent) = (begin(&store, new_run(&project, "a")).await, begin(&store, new_run(&project, "a")).await);
    let keyed = new_run(&project, "a");
    let key = Idempotency { key: IdempotencyKey::parse("k").unwrap(), request_hash: RequestHash::of(b"x") };
    store.create_run(keyed.clone(), Some(key.clone())).await.unwrap();
    for (run, at) in [(&old, later(10)), (&keyed.id, later(10)), (&recent, later(20))] {
        finish(&store, run, &[], Vec::new(), at).await;
    }
    let retention = Retention { runs: Duration::from_secs(50), ..Retention::default() };
    assert_eq!(store.sweep(later(60), retention).await.unwrap().runs, 1);
    for (run, stays) in [(&open, true), (&old, false), (&keyed.id, true), (&recent, true)] {
        assert_eq!(is_there(&store, &project, run).await, stays, "{run}");
    }
    let again = store.create_run(new_run(&project, "a"), Some(key)).await;
    assert_eq!(again, Ok(RunInsertion::Replayed(keyed.id.clone())));
    let day_later = NOW.after(IDEMPOTENCY_RETENTION + Duration::from_secs(60));
    assert_eq!(store.sweep(day_later, retention).await.unwrap().runs, 2);
    assert!(is_there(&store, &project, &open).await, "a run that is not over stays for ever");
}

#[tokio::test]
async fn a_blob_goes_after_its_last_user_and_not_while_a_letter_names_it() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (shared, own, said, unnamed) = (
        store.put_blob(b"shared".to_vec(), NOW).await.unwrap(),
        store.put_blob(b"own".to_vec(), NOW).await.unwrap(),
        store.put_blob(b"said".to_vec(), NOW).await.unwrap(),
        store.put_blob(b"unnamed".to_vec(), NOW).await.unwrap(),
    );
    let entry = |names: &[saggar_store::BlobHash]| {
        serde_json::to_string(&names.iter().map(|hash| hash.to_hex()).collect::<Vec<_>>()).unwrap()
    };
    let (one, other) = (begin(&store, new_run(&project, "a")).await, begin(&store, new_run(&project, "a")).await);
    let open = begin(&store, new_run(&project, "a")).await;
    finish(&store, &one, &[entry(&[shared, own])], Vec::new(), NOW).await;
    finish(&store, &other, &[entry(&[shared])], Vec::new(), NOW).await;
    let body = JsonText::parse(&entry(&[said])).unwrap();
    let letter = NewLetter { project: project.clone(), run: open.clone(), id: "x".to_owned(), at: NOW, body };
    store.put_letter(letter, LetterRoom::Data).await.unwrap();
    let left = async || {
        let mut left = Vec::new();
        for hash in [shared, own, said, unnamed] {
            left.push(store.blob(hash).await.unwrap().is_some());
        }
        left
    };
    store.sweep(later(1), forever()).await.unwrap();
    assert_eq!(left().await, [true; 4], "what was just put may be named in a moment");
    store.sweep(NOW.after(LONG), forever()).await.unwrap();
    assert_eq!(left().await, [true, true, true, false]);
    store.remove_run(project.clone(), one, NOW.after(LONG)).await.unwrap();
    store.sweep(NOW.after(LONG), forever()).await.unwrap();
    assert_eq!(left().await, [true, true, true, false], "bytes that were just stored again may be named in a moment");
    store.sweep(NOW.after(LONG * 2), forever()).await.unwrap();
    assert_eq!(left().await, [true, false, true, false]);
    store.remove_run(project.clone(), other, NOW).await.unwrap();
    store.sweep(NOW.after(LONG * 2), forever()).await.unwrap();
    store.sweep(NOW.after(LONG * 3), forever()).await.unwrap();
    assert_eq!(left().await, [false, false, true, false]);
    // The letter was never read. The blob that it names is removed with its run.
    finish(&store, &open, &[], Vec::new(), NOW).await;
    store.remove_run(project.clone(), open, NOW).await.unwrap();
    store.sweep(NOW.after(LONG * 3), forever()).await.unwrap();
    store.sweep(NOW.after(LONG * 4), forever()).await.unwrap();
    assert_eq!(left().await, [false; 4]);
}

#[tokio::test]
async fn what_names_a_blob_that_is_not_there_is_not_written() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let hash = BlobHash::of(b"never put").to_hex();
    let reference = format!(r#"{{"body":{{"blob":{{"hash":"{hash}","length":9}}}}}}"#);
    let missing = Error::Missing { what: "a blob that is named" };
    let new = NewRun { first: reference.clone(), ..new_run(&project, "a") };
    assert_eq!(store.create_run(new, None).await, Err(missing.clone()));
    let run = begin(&store, new_run(&project, "a")).await;
    let body = JsonText::parse(&reference).unwrap();
    let letter = NewLetter { project: project.clone(), run: run.clone(), id: "x".to_owned(), at: NOW, body };
    assert!(
        matches!(store.put_letter(letter, LetterRoom::Data).await, Err(InboxError::Store(error)) if error == missing)
    );
    assert_eq!(store.letters(run.clone()).await.unwrap(), []);
    let append = take(&store, &run, &[reference], Vec::new(), NOW).await;
    assert_eq!(store.append(append.clone()).await, Err(missing));
    assert_eq!(store.journal_after(run.clone(), 0).await.unwrap().len(), 1);
    // A text that reads like a hash is only a text.
    let text = format!(r#"{{"body":{{"text":"{hash}"}}}}"#);
    assert_eq!(store.append(Append { entries: vec![text], ..append }).await, Ok(Appended::Done { head: 2 }));
}

#[tokio::test]
async fn runs_that_cannot_go_yet_do_not_keep_others_from_going() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let mut stuck = Vec::new();
    for _ in 0..3 {
        let parent = begin(&store, new_run(&project, "a")).await;
        let child = NewRun { child_of: Some((parent.clone(), 2)), ..new_run(&project, "helper") };
        let child_id = child.id.clone();
        finish(&store, &parent, &[], vec![child], NOW).await;
        finish(&store, &child_id, &[], Vec::new(), NOW).await;
        let id = RunId::from_random(random());
        let fork = Fork {
            project: project.clone(),
            parent: child_id,
            through: 1,
            id: id.clone(),
            created_at: NOW,
            files: None,
        };
        store.fork_run(fork, |_, _| "{}".to_owned()).await.unwrap();
        stuck.push((parent, id));
    }
    let other = begin(&store, new_run(&project, "a")).await;
    finish(&store, &other, &[], Vec::new(), later(1)).await;
    // As many are looked at in a sweep as it may delete rows: only those that can't go.
    let retention = Retention { runs: Duration::ZERO, rows_max: NonZeroU32::new(3).unwrap(), ..Retention::default() };
    let sweep_all = async || {
        let mut runs = 0;
        for _ in 0..100 {
            let swept = store.sweep(later(60), retention).await.unwrap();
            runs += swept.runs;
            if !swept.has_more {
                return runs;
            }
        }
        panic!("a sweep finds no end");
    };
    assert_eq!(sweep_all().await, 1);
    assert!(!is_there(&store, &project, &other).await);
    for (parent, _) in &stuck {
        assert!(is_there(&store, &project, parent).await);
    }
    // They are looked at again.
    for (_, fork) in &stuck {
        finish(&store, fork, &[], Vec::new(), later(2)).await;
    }
    assert_eq!(sweep_all().await + sweep_all().await, 9);
}

#[tokio::test]
async fn what_the_agent_of_a_first_entry_names_stays_as_long_as_the_run() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let system = store.put_blob(b"be careful".to_vec(), NOW).await.unwrap();
    let agent = format!(r#"{{"system":{{"blob":{{"hash":"{}","length":10}}}}}}"#, system.to_hex());
    let agent = store.put_blob(agent.into_bytes(), NOW).await.unwrap();
    let first = format!(r#"{{"agent":{{"stored":{{"hash":"{}"}}}}}}"#, agent.to_hex());
    let run = begin(&store, NewRun { first, ..new_run(&project, "a") }).await;
    store.sweep(NOW.after(LONG), forever()).await.unwrap();
    assert!(store.blob(agent).await.unwrap().is_some() && store.blob(system).await.unwrap().is_some());
    finish(&store, &run, &[], Vec::new(), NOW).await;
    store.remove_run(project, run, NOW).await.unwrap();
    store.sweep(NOW, forever()).await.unwrap();
    store.sweep(NOW.after(LONG), forever()).await.unwrap();
    assert_eq!((store.blob(agent).await, store.blob(system).await), (Ok(None), Ok(None)));
}

#[tokio::test]
async fn a_long_journal_goes_in_bounded_steps() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let run = begin(&store, new_run(&project, "a")).await;
    finish(&store, &run, &vec!["{}".to_owned(); 25], Vec::new(), NOW).await;
    store.remove_run(project, run, NOW).await.unwrap();
    let few = Retention { rows_max: NonZeroU32::new(10).unwrap(), ..forever() };
    let mut sweeps = Vec::new();
    loop {
        let swept = store.sweep(NOW, few).await.unwrap();
        sweeps.push((swept.runs, swept.rows));
        if !swept.has_more {
            break;
        }
    }
    assert_eq!(sweeps, [(0, 10), (0, 10), (1, 7)]);
}

#[tokio::test]
async fn a_list_is_narrowed_by_agent_label_and_time() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let made = async |agent: &str, entries: &[(&str, &str)], at: u64| {
        let new = NewRun { labels: labels(entries), created_at: later(at), ..new_run(&project, agent) };
        begin(&store, new).await
    };
    let first = made("a", &[("team", "red")], 1).await;
    let second = made("b", &[("team", "red"), ("env", "prod")], 2).await;
    let third = made("a", &[], 3).await;
    let all = RunQuery::new(project.clone());
    let check = async |query: RunQuery, expected: &[&RunId]| {
        let found = store.runs(query).await.unwrap().items;
        assert_eq!(found.iter().map(|run| &run.id).collect::<Vec<_>>(), expected);
    };
    check(all.clone(), &[&third, &second, &first]).await;
    check(RunQuery { agent: Some("a".to_owned()), ..all.clone() }, &[&third, &first]).await;
    check(RunQuery { labels: labels(&[("team", "red")]), ..all.clone() }, &[&second, &first]).await;
    check(RunQuery { labels: labels(&[("team", "red"), ("env", "prod")]), ..all.clone() }, &[&second]).await;
    check(RunQuery { since: Some(later(2)), ..all.clone() }, &[&third, &second]).await;
    check(RunQuery { before: Some(later(2)), ..all.clone() }, &[&first]).await;
    check(RunQuery { since: Some(later(2)), before: Some(later(3)), ..all.clone() }, &[&second]).await;
    check(RunQuery { agent: Some("c".to_owned()), ..all }, &[]).await;
    let row = store.run(project.clone(), second.clone()).await.unwrap().unwrap();
    assert_eq!(row.labels, labels(&[("team", "red"), ("env", "prod")]));
}
