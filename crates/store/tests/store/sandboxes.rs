//! Sandboxes: idempotent insertion, state changes, paged lists.

use std::collections::BTreeMap;
use std::time::Duration;

use saggar_domain::{
    DeadlineAction, EndReason, ExecStatus, ProjectId, PublicPorts, SandboxId, SandboxState, Timestamp,
};
use saggar_store::{
    Change, Changed, Ending, Error, ExecEnd, ExecOutput, ExecProgress, ExecRecord, IDEMPOTENCY_RETENTION, Idempotency,
    IdempotencyKey, Insertion, LastWords, Life, Lifetime, NewSandbox, PageLimit, RequestHash, Sandbox, SandboxCursor,
    SandboxPatch, SandboxQuery, Scope, StartedExec, Store, Tail,
};

use crate::fixture::{
    NOW, Scratch, ending, event, exec, insert, labels, project, random, sandbox, sandbox_with, store_with_project,
};

fn idempotency(key: &str, request: &str) -> Option<Idempotency> {
    let key = IdempotencyKey::parse(key).unwrap();
    Some(Idempotency { key, request_hash: RequestHash::of(request.as_bytes()) })
}

fn later(seconds: u64) -> Timestamp {
    NOW.after(Duration::from_secs(seconds))
}

/// All pages of a query, each of at most two.
async fn list(store: &Store, query: SandboxQuery) -> Vec<SandboxId> {
    let mut query = SandboxQuery { limit: PageLimit::parse(2).unwrap(), ..query };
    let mut ids = Vec::new();
    loop {
        let page = store.sandboxes(query.clone()).await.unwrap();
        assert!(page.items.len() <= 2);
        ids.extend(page.items.into_iter().map(|sandbox| sandbox.asked.id));
        match page.next {
            // Through its text, as a client would.
            Some(cursor) => query.cursor = Some(SandboxCursor::parse(&cursor.to_string()).unwrap()),
            None => return ids,
        }
    }
}

#[tokio::test]
async fn a_sandbox_reads_back_whole_and_only_in_its_project() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let new = sandbox(&project_id);
    insert(&store, &new).await;
    let expected = Sandbox { asked: new.clone(), life: Life::Creating, supervisor_pid: None };
    assert_eq!(store.sandbox(project_id.clone(), new.id.clone()).await, Ok(Some(expected.clone())));
    assert_eq!(store.sandbox_of_any(new.id.clone()).await, Ok(Some(expected)));
    let other = project("other");
    store.create_project(other.clone()).await.unwrap();
    assert_eq!(store.sandbox(other.id, new.id.clone()).await, Ok(None));
    assert_eq!(store.insert_sandbox(new, None).await, Err(Error::Taken { what: "a sandbox of that id" }));
    let orphan = sandbox(&ProjectId::from_random(random()));
    assert_eq!(store.insert_sandbox(orphan, None).await, Err(Error::Missing { what: "the project" }));
}

#[tokio::test]
async fn a_request_is_done_once_by_its_key() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let other = project("other");
    store.create_project(other.clone()).await.unwrap();
    let first = sandbox(&project_id);
    let insert = |new: NewSandbox, key, request| store.insert_sandbox(new, idempotency(key, request));
    assert_eq!(insert(first.clone(), "k", "a").await, Ok(Insertion::Inserted));
    assert_eq!(insert(sandbox(&project_id), "k", "a").await, Ok(Insertion::Replayed(first.id.clone())));
    assert_eq!(insert(sandbox(&project_id), "k", "b").await, Ok(Insertion::Mismatch));
    assert_eq!(insert(sandbox(&project_id), "K", "a").await, Ok(Insertion::Inserted));
    assert_eq!(insert(sandbox(&other.id), "k", "b").await, Ok(Insertion::Inserted), "another project's key");
    store.end_sandbox(first.id.clone(), ending(NOW)).await.unwrap();
    assert_eq!(insert(sandbox(&project_id), "k", "a").await, Ok(Insertion::Replayed(first.id.clone())));
    assert_eq!(list(&store, SandboxQuery::new(Scope::Project(project_id.clone()))).await.len(), 2);

    // A day later the key is free again, whether or not it was deleted.
    let day_later = first.created_at.after(IDEMPOTENCY_RETENTION);
    let next = |at| sandbox_with(SandboxId::from_random(random()), project_id.clone(), at);
    let just_before = day_later.before(Duration::from_millis(1));
    assert_eq!(insert(next(just_before), "k", "a").await, Ok(Insertion::Replayed(first.id)));
    let second = next(day_later);
    assert_eq!(insert(second.clone(), "k", "b").await, Ok(Insertion::Inserted));
    assert_eq!(insert(next(day_later), "k", "b").await, Ok(Insertion::Replayed(second.id)));
}

#[tokio::test]
async fn a_request_that_came_to_nothing_is_made_again() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let [first, second] = [sandbox(&project_id), sandbox(&project_id)];
    let insert = |new: NewSandbox, request| store.insert_sandbox(new, idempotency("k", request));
    assert_eq!(insert(first.clone(), "a").await, Ok(Insertion::Inserted));
    let failed = Ending { reason: EndReason::StartFailed, ..ending(NOW) };
    store.end_sandbox(first.id, failed).await.unwrap();
    assert_eq!(insert(sandbox(&project_id), "b").await, Ok(Insertion::Mismatch));
    assert_eq!(insert(second.clone(), "a").await, Ok(Insertion::Inserted));
    assert_eq!(insert(sandbox(&project_id), "a").await, Ok(Insertion::Replayed(second.id)));
}

#[tokio::test]
async fn of_many_at_once_with_one_key_exactly_one_is_inserted() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (store, new) = (store.clone(), sandbox(&project_id));
        tasks.spawn(async move { (new.id.clone(), store.insert_sandbox(new, idempotency("k", "a")).await.unwrap()) });
    }
    let results = tasks.join_all().await;
    let inserted: Vec<_> = results.iter().filter(|(_, outcome)| *outcome == Insertion::Inserted).collect();
    let [(winner, _)] = inserted[..] else { panic!("{} were inserted", inserted.len()) };
    let replayed = Insertion::Replayed(winner.clone());
    assert!(results.iter().all(|(id, outcome)| id == winner || *outcome == replayed));
    assert_eq!(list(&store, SandboxQuery::new(Scope::All)).await, std::slice::from_ref(winner));
}

#[tokio::test]
async fn each_step_follows_from_its_own_states_and_no_other() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let steps = [
        Change::Started { at: later(1), supervisor_pid: 42 },
        Change::Paused { at: later(2) },
        Change::Resumed { at: later(3) },
        Change::Ended(ending(later(4))),
    ];
    // How to reach each state, and which changes are allowed in it.
    let cases: [(SandboxState, &[usize], &[usize]); 4] = [
        (SandboxState::Creating, &[], &[0, 3]),
        (SandboxState::Running, &[0], &[1, 3]),
        (SandboxState::Paused, &[0, 1], &[2, 3]),
        (SandboxState::Ended, &[0, 3], &[]),
    ];
    for (state, way, allowed) in cases {
        for (index, step) in steps.iter().enumerate() {
            let new = sandbox(&project_id);
            insert(&store, &new).await;
            for before in way {
                let change = store.change_sandbox(new.id.clone(), steps[*before].clone()).await;
                assert_eq!(change, Ok(Changed::Done), "to {state}");
            }
            let before = store.sandbox_of_any(new.id.clone()).await.unwrap();
            let expected = if allowed.contains(&index) { Changed::Done } else { Changed::Otherwise(state) };
            let change = store.change_sandbox(new.id.clone(), step.clone()).await;
            assert_eq!(change, Ok(expected), "{state}: {step:?}");
            let after = store.sandbox_of_any(new.id.clone()).await.unwrap();
            assert_eq!(before == after, expected != Changed::Done, "{state}: {step:?}");
        }
    }
    let absent = store.change_sandbox(SandboxId::from_random(random()), steps[0].clone()).await;
    assert_eq!(absent, Ok(Changed::Absent));
}

#[tokio::test]
async fn a_life_tells_its_times() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let new = sandbox(&project_id);
    insert(&store, &new).await;
    let started_at = later(1);
    let steps = [
        (Change::Started { at: started_at, supervisor_pid: 42 }, Life::Running { started_at, since: started_at }),
        (Change::Paused { at: later(2) }, Life::Paused { started_at, since: later(2) }),
        (Change::Resumed { at: later(3) }, Life::Running { started_at, since: later(3) }),
        (Change::Ended(ending(later(4))), Life::Ended { started_at: Some(started_at), ending: ending(later(4)) }),
    ];
    for (change, life) in steps {
        assert_eq!(store.change_sandbox(new.id.clone(), change).await, Ok(Changed::Done));
        let expected = Sandbox { asked: new.clone(), life, supervisor_pid: Some(42) };
        assert_eq!(store.sandbox_of_any(new.id.clone()).await, Ok(Some(expected)));
    }
}

#[tokio::test]
async fn what_still_runs_when_a_sandbox_ends_is_lost_and_the_first_end_stands() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let new = sandbox(&project_id);
    insert(&store, &new).await;
    let running = exec(&new.id, later(1));
    store.record_exec_started(running.clone()).await.unwrap();
    for reason in [EndReason::Killed, EndReason::SupervisorLost] {
        let ending = saggar_store::Ending { at: later(2), reason, detail: None };
        store.end_sandbox(new.id.clone(), ending).await.unwrap();
    }
    let sandbox = store.sandbox_of_any(new.id.clone()).await.unwrap().unwrap();
    let Life::Ended { started_at: None, ending } = sandbox.life else { panic!("{:?}", sandbox.life) };
    assert_eq!(ending.reason, EndReason::Killed);
    let exec = store.exec(new.id, running.id).await.unwrap().unwrap();
    assert_eq!(exec.progress, ExecProgress::Lost { at: later(2) });
}

#[tokio::test]
async fn one_that_is_there_already_is_written_with_its_start() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let new = sandbox(&project_id);
    let insert = |new: NewSandbox| store.insert_started_sandbox(new, idempotency("k", "a"), later(1), 7);
    assert_eq!(insert(new.clone()).await, Ok(Insertion::Inserted));
    let life = Life::Running { started_at: later(1), since: later(1) };
    let written = Sandbox { asked: new.clone(), life, supervisor_pid: Some(7) };
    assert_eq!(store.sandbox_of_any(new.id.clone()).await, Ok(Some(written)));
    let second = sandbox(&project_id);
    assert_eq!(insert(second.clone()).await, Ok(Insertion::Replayed(new.id)));
    assert_eq!(store.sandbox_of_any(second.id).await, Ok(None));
}

#[tokio::test]
async fn last_words_are_written_whole_and_may_come_again() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let new = sandbox(&project_id);
    insert(&store, &new).await;
    let [known, unknown, running] = [1, 2, 3].map(|seconds| exec(&new.id, later(seconds)));
    store.record_exec_started(known.clone()).await.unwrap();
    let end = ExecEnd { at: later(4), status: ExecStatus::Exited, exit_code: Some(0), signal: None };
    let output = ExecOutput { stdout: Tail::new(b"out".to_vec(), 0), stderr: Tail::default() };
    let record = |exec: &StartedExec, end| ExecRecord { exec: exec.clone(), end };
    let last = LastWords {
        decisions: vec![],
        events: vec![event(1), event(2)],
        execs: vec![
            record(&known, Some((end, output.clone()))),
            record(&unknown, Some((end, output))),
            record(&running, None),
        ],
        ending: ending(later(5)),
    };
    assert_eq!(store.write_last_words(new.id.clone(), last.clone()).await, Ok(Changed::Done));
    assert_eq!(store.write_last_words(new.id.clone(), last).await, Ok(Changed::Otherwise(SandboxState::Ended)));
    let sandbox = store.sandbox_of_any(new.id.clone()).await.unwrap().unwrap();
    assert!(matches!(sandbox.life, Life::Ended { .. }), "{:?}", sandbox.life);
    assert_eq!(store.last_event(new.id.clone()).await, Ok(Some(2)));
    for exec in [known, unknown] {
        let exec = store.exec(new.id.clone(), exec.id).await.unwrap().unwrap();
        assert_eq!(exec.progress, ExecProgress::Ended(end));
    }
    let lost = store.exec(new.id.clone(), running.id).await.unwrap().unwrap();
    assert_eq!(lost.progress, ExecProgress::Lost { at: later(5) });
}

#[tokio::test]
async fn a_live_sandbox_can_be_changed_in_part() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let mut new = sandbox(&project_id);
    insert(&store, &new).await;
    let forever = Lifetime { deadline: None, on_deadline: DeadlineAction::Kill, idle_timeout: None };
    let patches = [
        SandboxPatch::default(),
        SandboxPatch { lifetime: Some(forever), ..SandboxPatch::default() },
        SandboxPatch {
            lifetime: Some(Lifetime { on_deadline: DeadlineAction::Rest, ..forever }),
            ..SandboxPatch::default()
        },
        SandboxPatch { labels: Some(labels(&[("a", "b")])), ..SandboxPatch::default() },
        SandboxPatch { auto_resume: Some(false), public_ports: Some(PublicPorts::ALL), ..SandboxPatch::default() },
    ];
    for patch in patches {
        assert_eq!(store.patch_sandbox(new.id.clone(), patch.clone()).await, Ok(Changed::Done));
        new.lifetime = patch.lifetime.unwrap_or(new.lifetime);
        new.labels = patch.labels.unwrap_or(new.labels);
        new.auto_resume = patch.auto_resume.unwrap_or(new.auto_resume);
        new.public_ports = patch.public_ports.unwrap_or(new.public_ports);
        assert_eq!(store.sandbox_of_any(new.id.clone()).await.unwrap().unwrap().asked, new);
    }
    store.end_sandbox(new.id.clone(), ending(NOW)).await.unwrap();
    let patched = store.patch_sandbox(new.id, SandboxPatch::default()).await;
    assert_eq!(patched, Ok(Changed::Otherwise(SandboxState::Ended)));
}

#[tokio::test]
async fn lists_are_filtered_paged_and_newest_first() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let other = project("other");
    store.create_project(other.clone()).await.unwrap();
    let mut ids = Vec::new();
    for index in 0..9u64 {
        // Three of each age, so that the id has to decide.
        let owner = if index == 8 { &other.id } else { &project_id };
        let mut new = sandbox_with(SandboxId::from_random(random()), owner.clone(), later(index / 3));
        new.labels = labels(&[("index", &index.to_string()), ("odd", if index % 2 == 1 { "yes" } else { "no" })]);
        insert(&store, &new).await;
        ids.push((new.created_at, new.id));
    }
    for index in [1, 2, 3] {
        let start = Change::Started { at: NOW, supervisor_pid: 1 };
        store.change_sandbox(ids[index].1.clone(), start).await.unwrap();
    }
    store.end_sandbox(ids[2].1.clone(), ending(NOW)).await.unwrap();
    let expect = |indexes: &[usize]| {
        let mut wanted: Vec<_> = indexes.iter().map(|index| ids[*index].clone()).collect();
        wanted.sort_by(|left, right| right.cmp(left));
        wanted.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
    };
    let query = |states: &[SandboxState], wanted: &[(&str, &str)]| SandboxQuery {
        states: states.iter().copied().collect(),
        labels: labels(wanted),
        ..SandboxQuery::new(Scope::Project(project_id.clone()))
    };
    use SandboxState::{Creating, Ended, Paused, Running};
    let cases: [(SandboxQuery, &[usize]); 9] = [
        (query(&[], &[]), &[0, 1, 2, 3, 4, 5, 6, 7]),
        (query(&[Running], &[]), &[1, 3]),
        (query(&[Running, Ended], &[]), &[1, 2, 3]),
        (query(&[Paused], &[]), &[]),
        (query(&[], &[("odd", "yes")]), &[1, 3, 5, 7]),
        (query(&[Creating], &[("odd", "yes"), ("index", "5")]), &[5]),
        (query(&[], &[("odd", "yes"), ("index", "4")]), &[]),
        (query(&[], &[("yes", "odd")]), &[]),
        (SandboxQuery::new(Scope::All).live(), &[0, 1, 3, 4, 5, 6, 7, 8]),
    ];
    for (query, indexes) in cases {
        assert_eq!(list(&store, query.clone()).await, expect(indexes), "{query:?}");
    }
    let counts = BTreeMap::from([(Creating, 5), (Running, 2), (Ended, 1)]);
    assert_eq!(store.count_sandboxes(Scope::Project(project_id)).await, Ok(counts));
    let counts = BTreeMap::from([(Creating, 6), (Running, 2), (Ended, 1)]);
    assert_eq!(store.count_sandboxes(Scope::All).await, Ok(counts));
}

#[tokio::test]
async fn pages_neither_repeat_nor_skip_while_others_are_made_and_deleted() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let mut all = Vec::new();
    for _ in 0..6 {
        let new = sandbox(&project_id);
        insert(&store, &new).await;
        all.insert(0, new.id);
    }
    let mut query =
        SandboxQuery { limit: PageLimit::parse(3).unwrap(), ..SandboxQuery::new(Scope::Project(project_id.clone())) };
    let first = store.sandboxes(query.clone()).await.unwrap();
    // A newer sandbox is inserted, and the one at the cursor is deleted.
    insert(&store, &sandbox(&project_id)).await;
    let retention = saggar_store::Retention { ended: Duration::ZERO, ..saggar_store::Retention::default() };
    store.end_sandbox(all[2].clone(), ending(NOW)).await.unwrap();
    assert_eq!(store.sweep(NOW, retention).await.unwrap().sandboxes, 1);
    query.cursor = first.next;
    let second = store.sandboxes(query).await.unwrap();
    let seen: Vec<_> = first.items.into_iter().chain(second.items).map(|sandbox| sandbox.asked.id).collect();
    assert_eq!(seen, all);
    assert_eq!(second.next, None);
}
