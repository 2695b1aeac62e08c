//! Stores of older versions: each opens, reads back whole, and has the schema of a new one.
//!
//! `tests/golden/v1.sql` is the dump of a store that version 1 wrote, a row of each kind. It stays as it is for ever; a new
//! version of the schema adds a dump of its own: run `part_that_writes_the_golden_store` with SAGGAR_STORE_GOLDEN set to a new
//! directory, dump its `saggar.db` with `sqlite3 … .dump`, and add the two pragmas that a dump leaves out.

use std::time::Duration;

use rusqlite::Connection;
use saggar_domain::{ExecId, KeyId, ProjectId, SandboxId};
use saggar_store::{
    Exec, ExecOutput, ExecProgress, Idempotency, IdempotencyKey, Insertion, Life, NewExec, PageLimit, RequestHash,
    Sandbox, Scope, Store, Tail,
};

use crate::fixture::{NOW, Scratch, ending, event, exec, exec_end, sandbox_with};

const V1: &str = include_str!("../golden/v1.sql");

fn from_dump(dump: &str) -> Scratch {
    let scratch = Scratch::new();
    let connection = Connection::open(scratch.join("saggar.db")).unwrap();
    connection.execute_batch(dump).unwrap();
    connection.close().unwrap();
    scratch
}

fn schema(scratch: &Scratch) -> Vec<(String, Option<String>)> {
    let connection = Connection::open(scratch.join("saggar.db")).unwrap();
    let mut statement = connection.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name").unwrap();
    let objects = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    objects.map(Result::unwrap).collect()
}

#[test]
fn an_old_store_has_the_schema_of_a_new_one() {
    let (old, new) = (from_dump(V1), Scratch::new());
    drop((old.open(), new.open()));
    assert_eq!(schema(&old), schema(&new), "a released migration was edited, or a new one misses something");
}

#[tokio::test]
async fn what_version_1_wrote_reads_back_whole() {
    let scratch = from_dump(V1);
    let store = scratch.open();
    let project = ProjectId::from_random([1; 16]);
    let found = store.projects().await.unwrap();
    assert_eq!((found.len(), &found[0].id, found[0].name.as_str(), found[0].created_at), (1, &project, "default", NOW));

    let keys = store.keys(project.clone()).await.unwrap();
    assert_eq!((keys.len(), &keys[0].id, keys[0].name.as_str()), (1, &KeyId::from_random([2; 16]), "laptop"));

    let asked = sandbox_with(SandboxId::from_random([3; 16]), project.clone(), NOW);
    let started_at = NOW.after(Duration::from_secs(1));
    let ended_at = NOW.after(Duration::from_secs(4));
    let life = Life::Ended { started_at: Some(started_at), ending: ending(ended_at) };
    let expected = Sandbox { asked: asked.clone(), life, supervisor_pid: Some(42) };
    assert_eq!(store.sandbox(project.clone(), asked.id.clone()).await, Ok(Some(expected)));

    let run = NewExec { id: ExecId::from_random([4; 16]), ..exec(&asked.id, started_at) };
    let ended = Exec { asked: run.clone(), progress: ExecProgress::Ended(exec_end(ended_at)) };
    assert_eq!(store.exec(asked.id.clone(), run.id.clone()).await, Ok(Some(ended)));
    let output = ExecOutput { stdout: Tail::new(b"out\xff".to_vec(), 5), stderr: Tail::new(b"err".to_vec(), 0) };
    assert_eq!(store.exec_output(asked.id.clone(), run.id).await, Ok(Some(output)));
    let events = store.events_after(asked.id.clone(), None, PageLimit::MAX).await.unwrap();
    assert_eq!(events.events, [event(0), event(1)]);

    let again = sandbox_with(SandboxId::from_random([5; 16]), project, NOW.after(Duration::from_secs(9)));
    let once = Idempotency { key: IdempotencyKey::parse("once").unwrap(), request_hash: RequestHash::of(b"request") };
    assert_eq!(store.insert_sandbox(again, Some(once)).await, Ok(Insertion::Replayed(asked.id)));
    assert!(store.last_boot().await.unwrap().is_some());
    assert_eq!(store.count_sandboxes(Scope::All).await.unwrap().len(), 1);
}

/// Writes the store that the dump of the present version is made of, where the environment says so; nothing by itself.
#[tokio::test]
async fn part_that_writes_the_golden_store() {
    let Some(directory) = std::env::var_os("SAGGAR_STORE_GOLDEN") else { return };
    write(&Store::open(std::path::Path::new(&directory)).unwrap()).await;
}

async fn write(store: &Store) {
    use saggar_store::{Change, KeyName, MetaKey, NewKey, Permissions};
    let project = store.default_project(ProjectId::from_random([1; 16]), NOW).await.unwrap().id;
    let key = NewKey {
        id: KeyId::from_random([2; 16]),
        project: project.clone(),
        name: KeyName::parse("laptop").unwrap(),
        permissions: Permissions::Full,
        created_at: NOW,
        expires_at: Some(NOW.after(Duration::from_secs(60))),
    };
    store.create_key(key).await.unwrap();
    let asked = sandbox_with(SandboxId::from_random([3; 16]), project, NOW);
    let once = Idempotency { key: IdempotencyKey::parse("once").unwrap(), request_hash: RequestHash::of(b"request") };
    store.insert_sandbox(asked.clone(), Some(once)).await.unwrap();
    let started_at = NOW.after(Duration::from_secs(1));
    let ended_at = NOW.after(Duration::from_secs(4));
    let started = Change::Started { at: started_at, supervisor_pid: 42 };
    store.change_sandbox(asked.id.clone(), started).await.unwrap();
    let run = NewExec { id: ExecId::from_random([4; 16]), ..exec(&asked.id, started_at) };
    store.record_exec_started(run.clone()).await.unwrap();
    let output = ExecOutput { stdout: Tail::new(b"out\xff".to_vec(), 5), stderr: Tail::new(b"err".to_vec(), 0) };
    store.record_exec_ended(asked.id.clone(), run.id, exec_end(ended_at), output).await.unwrap();
    store.append_events(asked.id.clone(), vec![event(0), event(1)]).await.unwrap();
    store.end_sandbox(asked.id, ending(ended_at)).await.unwrap();
    store.set_meta(MetaKey::BootId, "0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e".into()).await.unwrap();
}
