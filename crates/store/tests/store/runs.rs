//! Runs: which worker may append, the order of claims, a fork's history, and the inbox.

use std::collections::BTreeSet;
use std::time::Duration;

use saggar_domain::{Labels, ProjectId, RunId, RunState, SandboxId, Timestamp, Uptime};
use saggar_store::{
    Append, Appended, BlobHash, Claimed, Fork, ForkError, Holder, Idempotency, IdempotencyKey, JsonText, Lease,
    NewLetter, NewRun, Now, PageLimit, RequestHash, RunInsertion, RunQuery, Store, Summary, Taking,
};

use crate::fixture::{NOW, Scratch, random, store_with_project};

pub fn holder(name: &str) -> Holder {
    Holder::parse(name).unwrap()
}

/// The lease clock runs with the wall clock here.
pub fn up(at: Timestamp) -> Uptime {
    Uptime::from_millis(at.as_millis() - NOW.before(Duration::from_secs(7200)).as_millis())
}

pub fn both(at: Timestamp) -> Now {
    Now { wall: at, uptime: up(at) }
}

pub fn lease(from: Timestamp) -> Lease {
    Lease { from: up(from), until: up(from).after(Duration::from_secs(1)) }
}

pub const ANY: Taking = Taking { most: 100, reserved: 0, per_agent: 100, per_project: 100 };

pub async fn create(store: &Store, project: &ProjectId, agent: &str) -> RunId {
    create_at(store, project, agent, NOW).await
}

pub async fn create_at(store: &Store, project: &ProjectId, agent: &str, created_at: Timestamp) -> RunId {
    let id = RunId::from_random(random());
    let new = NewRun {
        id: id.clone(),
        project: project.clone(),
        agent: agent.to_owned(),
        labels: Labels::default(),
        created_at,
        first: "first".to_owned(),
        child_of: None,
    };
    assert_eq!(store.create_run(new, None).await, Ok(RunInsertion::Inserted));
    id
}

pub async fn claim(store: &Store, name: &str, at: Timestamp) -> Vec<Claimed> {
    store.claim_due(holder(name), at, lease(at), ANY).await.unwrap()
}

pub fn append(run: &RunId, epoch: u64, head: u64, entries: &[&str]) -> Append {
    Append {
        run: run.clone(),
        epoch,
        head,
        entries: entries.iter().map(|entry| (*entry).to_owned()).collect(),
        summary: Summary {
            state: RunState::Running,
            at: NOW,
            wake_at: Some(NOW),
            outcome: None,
            room_since: None,
            sandbox: Some(SandboxId::from_random([1; 16])),
        },
        consumed: Vec::new(),
        seen: 0,
        children: Vec::new(),
        letters: Vec::new(),
        files: None,
        generation: None,
        left: Default::default(),
        known_calls: None,
    }
}

pub async fn journal(store: &Store, run: &RunId) -> Vec<String> {
    let mut all = Vec::new();
    let mut after = 0;
    loop {
        let page = store.journal_after(run.clone(), after).await.unwrap();
        let Some(last) = page.last() else { return all };
        after = last.seq;
        all.extend(page.into_iter().map(|entry| entry.entry));
    }
}

/// The same for a run whose state doesn't change: only its entries are new.
pub fn step(run: &RunId, epoch: u64, head: u64, entries: &[&str]) -> Append {
    let mut step = append(run, epoch, head, entries);
    step.summary.sandbox = None;
    step
}

#[tokio::test]
async fn only_who_holds_a_run_appends_and_only_where_it_is() {
    for append in [append, step] {
        let scratch = Scratch::new();
        let (store, project) = store_with_project(&scratch).await;
        let run = create(&store, &project, "a").await;
        let epoch = claim(&store, "one", NOW).await[0].epoch;
        assert_eq!(store.append(append(&run, epoch, 1, &["second", "third"])).await, Ok(Appended::Done { head: 3 }));
        assert_eq!(store.append(append(&run, epoch, 1, &["again"])).await, Ok(Appended::Moved { head: 3 }));
        assert!(claim(&store, "two", NOW).await.is_empty(), "it is held");
        let later = NOW.after(Duration::from_secs(1));
        let next = claim(&store, "two", later).await[0].epoch;
        assert_eq!(store.append(append(&run, epoch, 3, &["stale"])).await, Ok(Appended::Fenced { epoch: next }));
        assert_eq!(store.append(append(&run, next, 3, &["fourth"])).await, Ok(Appended::Done { head: 4 }));
        assert_eq!(journal(&store, &run).await, ["first", "second", "third", "fourth"]);
        let absent = append(&RunId::from_random(random()), 1, 0, &["x"]);
        assert_eq!(store.append(absent).await, Ok(Appended::Absent));
    }
}

#[tokio::test]
async fn a_lease_is_renewed_released_or_dropped_with_its_dead_holder() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let run = create(&store, &project, "a").await;
    let epoch = claim(&store, "one", NOW).await[0].epoch;
    let later = NOW.after(Duration::from_secs(5));
    assert_eq!(store.renew_leases(holder("one"), up(later).after(Duration::from_secs(1))).await, Ok(1));
    assert!(claim(&store, "two", later).await.is_empty());
    store.release_run(run.clone(), epoch).await.unwrap();
    assert_eq!(claim(&store, "two", later).await.len(), 1);
    store.release_run(run, epoch).await.unwrap();
    assert!(claim(&store, "three", later).await.is_empty(), "a release of an older epoch releases nothing");
    assert_eq!(store.drop_holder(holder("two"), later).await, Ok(1));
    assert_eq!(claim(&store, "three", later).await.len(), 1);
}

#[tokio::test]
async fn a_fork_has_its_parents_past_and_a_future_of_its_own() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let root = create(&store, &project, "a").await;
    let epoch = claim(&store, "w", NOW).await[0].epoch;
    store.append(append(&root, epoch, 1, &["2", "3", "4"])).await.unwrap();
    let fork = |parent: &RunId, through: u64| Fork {
        project: project.clone(),
        parent: parent.clone(),
        through,
        id: RunId::from_random(random()),
        created_at: NOW,
        files: None,
    };
    let branch = fork(&root, 2);
    let first = |generation: u32, seq: u64| format!("fork {generation} at {seq}");
    assert_eq!(store.fork_run(branch.clone(), first).await.unwrap(), 1);
    assert_eq!(journal(&store, &branch.id).await, ["first", "2", "fork 1 at 3"]);
    let twig = fork(&branch.id, 3);
    assert_eq!(store.fork_run(twig.clone(), first).await.unwrap(), 2);
    let sprout = fork(&branch.id, 1);
    assert_eq!(store.fork_run(sprout.clone(), first).await.unwrap(), 3);
    store.append(append(&root, epoch, 4, &["5"])).await.unwrap();
    assert_eq!(journal(&store, &twig.id).await, ["first", "2", "fork 1 at 3", "fork 2 at 4"]);
    assert_eq!(journal(&store, &sprout.id).await, ["first", "fork 3 at 2"]);
    assert_eq!(journal(&store, &root).await, ["first", "2", "3", "4", "5"]);
    let row = store.run(project.clone(), twig.id).await.unwrap().unwrap();
    assert_eq!((row.root, row.parent, row.generation, row.head), (root.clone(), Some((branch.id, 3)), 2, 4));
    assert!(matches!(store.fork_run(fork(&root, 99), first).await, Err(ForkError::NoSuchEntry(99))));
    assert!(matches!(store.fork_run(fork(&root, 0), first).await, Err(ForkError::NoSuchEntry(0))));
    let foreign = Fork { project: ProjectId::from_random(random()), ..fork(&root, 1) };
    assert!(matches!(store.fork_run(foreign, first).await, Err(ForkError::NoParent)));
}

#[tokio::test]
async fn the_same_request_is_one_run() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let new = || NewRun {
        id: RunId::from_random(random()),
        project: project.clone(),
        agent: "a".to_owned(),
        labels: Labels::default(),
        created_at: NOW,
        first: "first".to_owned(),
        child_of: None,
    };
    let key = |body: &[u8]| {
        Some(Idempotency { key: IdempotencyKey::parse("once").unwrap(), request_hash: RequestHash::of(body) })
    };
    let first = new();
    assert_eq!(store.create_run(first.clone(), key(b"a")).await, Ok(RunInsertion::Inserted));
    assert_eq!(store.create_run(new(), key(b"a")).await, Ok(RunInsertion::Replayed(first.id)));
    assert_eq!(store.create_run(new(), key(b"b")).await, Ok(RunInsertion::Mismatch));
    let query = RunQuery::new(project);
    assert_eq!(store.runs(query).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn pages_of_runs_go_on_where_they_ended() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let mut made = BTreeSet::new();
    for _ in 0..5 {
        made.insert(create(&store, &project, "a").await);
    }
    let mut query =
        RunQuery { states: [RunState::Queued].into(), limit: PageLimit::parse(2).unwrap(), ..RunQuery::new(project) };
    let mut seen = BTreeSet::new();
    loop {
        let page = store.runs(query.clone()).await.unwrap();
        for run in page.items {
            assert!(seen.insert(run.id));
        }
        match page.next {
            Some(next) => query.cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, made);
}

#[tokio::test]
async fn blobs_are_kept_by_their_hash() {
    let scratch = Scratch::new();
    let (store, _) = store_with_project(&scratch).await;
    let bytes = vec![7; 100_000];
    let hash = store.put_blob(bytes.clone(), NOW).await.unwrap();
    assert_eq!(store.put_blob(bytes.clone(), NOW).await, Ok(hash));
    assert_eq!(store.blob(hash).await, Ok(Some(bytes)));
    assert_eq!(BlobHash::parse(&hash.to_hex()), Some(hash));
    assert_eq!(store.blob(BlobHash::of(b"other")).await, Ok(None));
    assert_eq!(BlobHash::parse("xyz"), None);
}

#[tokio::test]
async fn a_worker_joins_beside_the_server_and_is_fenced_like_any_other() {
    let scratch = Scratch::new();
    assert!(Store::join(scratch.path()).is_err(), "there is nothing to join, and nothing is made");
    let (server, project) = store_with_project(&scratch).await;
    let worker = Store::join(scratch.path()).unwrap();
    let run = create(&server, &project, "a").await;
    assert_eq!(worker.is_run_due(both(NOW), ANY).await, Ok(true));
    let epoch = claim(&worker, "worker", NOW).await[0].epoch;
    assert_eq!(worker.is_run_due(both(NOW), ANY).await, Ok(false));
    assert_eq!(worker.append(append(&run, epoch, 1, &["second"])).await, Ok(Appended::Done { head: 2 }));
    assert_eq!(journal(&server, &run).await, ["first", "second"]);
    assert_eq!(server.runs_held_by(holder("worker")).await.unwrap().len(), 1);
    assert_eq!(server.drop_holder(holder("worker"), NOW).await, Ok(1));
    let next = claim(&server, "server", NOW).await[0].epoch;
    assert_eq!(worker.append(append(&run, epoch, 2, &["stale"])).await, Ok(Appended::Fenced { epoch: next }));
}

#[tokio::test]
async fn a_lease_from_a_clock_that_was_set_back_holds_nobody() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    create(&store, &project, "a").await;
    let ahead = NOW.after(Duration::from_secs(3600));
    assert_eq!(claim(&store, "one", ahead).await.len(), 1);
    assert_eq!(claim(&store, "two", NOW).await.len(), 1);
}

/// An append that starts a child of step 2, and sends letters.
fn family(run: &RunId, epoch: u64, head: u64, child: &RunId, project: &ProjectId, letters: Vec<NewLetter>) -> Append {
    let child = NewRun {
        id: child.clone(),
        project: project.clone(),
        agent: "helper".to_owned(),
        labels: Labels::default(),
        created_at: NOW,
        first: "child".to_owned(),
        child_of: Some((run.clone(), 2)),
    };
    Append { children: vec![child], letters, ..append(run, epoch, head, &["starts"]) }
}

#[tokio::test]
async fn a_child_and_what_is_said_to_it_are_there_exactly_if_the_append_is() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (parent, child) = (create(&store, &project, "a").await, RunId::from_random(random()));
    let epoch = claim(&store, "w", NOW).await[0].epoch;
    let say = |to: &RunId, text: &str| {
        let body = JsonText::parse(text).unwrap();
        vec![NewLetter { project: project.clone(), run: to.clone(), id: "@parent".to_owned(), at: NOW, body }]
    };
    let stale = family(&parent, epoch + 1, 1, &child, &project, say(&parent, "1"));
    assert_eq!(store.append(stale).await, Ok(Appended::Fenced { epoch }));
    assert_eq!(store.run_of_any(child.clone()).await.unwrap(), None);
    assert!(store.letters(parent.clone()).await.unwrap().is_empty());
    let good = family(&parent, epoch, 1, &child, &project, say(&child, "1"));
    assert_eq!(store.append(good.clone()).await, Ok(Appended::Done { head: 2 }));
    assert_eq!(store.append(good).await, Ok(Appended::Moved { head: 2 }), "the same once more does nothing");
    let row = store.run(project.clone(), child.clone()).await.unwrap().unwrap();
    assert_eq!((row.child_of, row.agent.as_str(), row.head), (Some((parent.clone(), 2)), "helper", 1));
    assert_eq!(journal(&store, &child).await, ["child"]);
    let query = RunQuery { child_of: Some(parent.clone()), ..RunQuery::new(project.clone()) };
    let listed = store.runs(query.clone()).await.unwrap().items;
    assert_eq!(listed.iter().map(|row| &row.id).collect::<Vec<_>>(), [&child]);
    assert!(store.runs(RunQuery { child_of: Some(child.clone()), ..query }).await.unwrap().items.is_empty());
    // A newer letter replaces the earlier one under a new number: consuming the earlier one leaves the newer.
    let first = store.letters(child.clone()).await.unwrap();
    let newer = Append { letters: say(&child, "2"), ..append(&parent, epoch, 2, &["says"]) };
    store.append(newer).await.unwrap();
    let second = store.letters(child.clone()).await.unwrap();
    assert_eq!((first.len(), second.len(), second[0].body.as_str()), (1, 1, "2"));
    assert!(second[0].n > first[0].n);
    // A finished run receives no letters.
    let of_child = claim(&store, "w", NOW).await[0].epoch;
    let mut finished = append(&child, of_child, 1, &["done"]);
    (finished.summary.state, finished.summary.outcome) = (RunState::Finished, JsonText::parse("{}"));
    finished.summary.wake_at = None;
    store.append(finished).await.unwrap();
    store.append(Append { letters: say(&child, "3"), ..append(&parent, epoch, 3, &["says"]) }).await.unwrap();
    assert!(store.letters(child).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_finished_run_is_taken_over_until_what_it_holds_is_let_go_of() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let run = create(&store, &project, "a").await;
    let epoch = claim(&store, "one", NOW).await[0].epoch;
    let mut finished = append(&run, epoch, 1, &["done"]);
    (finished.summary.state, finished.summary.outcome) = (RunState::Finished, JsonText::parse("{}"));
    store.append(finished).await.unwrap();
    assert!(claim(&store, "two", NOW).await.is_empty(), "it is held while what it has is let go of");
    assert_eq!(store.drop_holder(holder("one"), NOW).await, Ok(1));
    let taken = claim(&store, "two", NOW).await;
    assert_eq!((taken.len(), taken[0].run.state), (1, RunState::Finished));
    store.let_go_run(run.clone(), epoch).await.unwrap();
    assert_eq!(store.runs_held_by(holder("two")).await.unwrap().len(), 1, "only the holder can release it");
    store.let_go_run(run.clone(), taken[0].epoch).await.unwrap();
    assert!(claim(&store, "three", NOW.after(Duration::from_secs(9999))).await.is_empty());
    assert_eq!(store.is_run_due(both(NOW.after(Duration::from_secs(9999))), ANY).await, Ok(false));
}

#[tokio::test]
async fn a_wall_clock_that_is_set_ends_no_lease_and_a_reboot_ends_all() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let run = create(&store, &project, "a").await;
    assert_eq!(claim(&store, "one", NOW).await[0].run.id, run);
    let hour = Duration::from_secs(3600);
    for wall in [NOW.after(hour), NOW.before(hour)] {
        assert_eq!(store.is_run_due(Now { wall, uptime: up(NOW) }, ANY).await, Ok(false));
        assert!(store.claim_due(holder("two"), wall, lease(NOW), ANY).await.unwrap().is_empty(), "it is held");
    }
    // That clock starts anew with each boot: no holder of an earlier boot is alive.
    let from = Uptime::from_millis(1000);
    let rebooted = Lease { from, until: from.after(Duration::from_secs(1)) };
    assert_eq!(store.claim_due(holder("two"), NOW, rebooted, ANY).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_files_of_a_run_are_stored_with_its_entries_and_a_rollback_forgets_its_sandbox() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let root = create(&store, &project, "agent").await;
    let epoch = claim(&store, "w", NOW).await[0].epoch;
    let files = |step: u64| JsonText::of(&serde_json::json!({ "kept": [{ "step": step }] }));
    let mut first = Append { files: files(1), ..append(&root, epoch, 1, &["a"]) };
    first.summary.sandbox = Some(SandboxId::from_random([8; 16]));
    store.append(first).await.unwrap();
    let row = store.run_of_any(root.clone()).await.unwrap().unwrap();
    assert_eq!((row.files, row.generation, row.sandbox.is_some()), (files(1), 0, true));
    // What isn't new is left.
    store.append(append(&root, epoch, 2, &["b"])).await.unwrap();
    let stale = Append { files: files(9), generation: Some(9), ..append(&root, epoch, 2, &["late"]) };
    assert_eq!(store.append(stale).await, Ok(Appended::Moved { head: 3 }));
    store.append(Append { generation: Some(1), ..append(&root, epoch, 3, &["c"]) }).await.unwrap();
    let row = store.run_of_any(root.clone()).await.unwrap().unwrap();
    assert_eq!((row.files, row.generation, row.sandbox), (files(1), 1, None));

    let id = RunId::from_random(random());
    let (parent, created_at) = (root.clone(), NOW);
    let fork = Fork { project: project.clone(), parent, through: 2, id: id.clone(), created_at, files: files(1) };
    assert_eq!(store.fork_run(fork, |_, _| "forked".to_owned()).await.unwrap(), 2, "a generation of its own");
    let found = store.files_of_runs(project).await.unwrap();
    assert_eq!(found.iter().map(|of| &of.run).collect::<BTreeSet<_>>(), [&root, &id].into());
    assert!(store.is_run_open(root).await.unwrap() && !store.is_run_open(RunId::from_random(random())).await.unwrap());
}
