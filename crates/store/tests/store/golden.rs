//! Stores of older versions: each opens, reads back complete, and has the schema of a new one.
//!
//! `tests/golden/v1.sql` and `v3.sql` are dumps of stores that versions 1 and 3 wrote, with a row of each kind. Each of
//! `v4.sql` to `v13.sql` is the dump before it with one migration applied and rows added that use what it introduced.
//! They are never edited. A new version of the schema adds its own dump: run `part_that_writes_the_golden_store` with
//! SAGGAR_STORE_GOLDEN set to a new directory, dump its `saggar.db` with `sqlite3 … .dump`, and add the two pragmas
//! that a dump leaves out.

use std::time::Duration;

use rusqlite::Connection;
use saggar_domain::secret::SecretName;
use saggar_domain::{
    DeadlineAction, ExecId, KeyId, ProjectId, RunId, RunState, SandboxId, SnapshotId, Timestamp, Uptime,
};
use saggar_store::{
    Append, BlobHash, Block, BlockKind, Exec, ExecOutput, ExecProgress, HandedOn, Holder, Idempotency, IdempotencyKey,
    Insertion, JsonText, Lease, Life, NewLetter, NewRun, NewSandbox, PageLimit, RequestHash, ReuseKey, Sandbox, Scope,
    Sealed, SealedSecret, SealingKeyId, SecretRow, SetAside, StartedExec, Store, Summary, Tail, Taken, Taking, TooMuch,
};

use crate::fixture::{NOW, Scratch, ending, event, exec, exec_end, insert, sandbox, sandbox_with, store_with_project};

const V1: &str = include_str!("../golden/v1.sql");
const V3: &str = include_str!("../golden/v3.sql");
const V10: &str = include_str!("../golden/v10.sql");
const V11: &str = include_str!("../golden/v11.sql");
const V12: &str = include_str!("../golden/v12.sql");
const V13: &str = include_str!("../golden/v13.sql");
/// By version.
pub const DUMPS: [(u32, &str); 12] = [
    (1, V1),
    (3, V3),
    (4, include_str!("../golden/v4.sql")),
    (5, include_str!("../golden/v5.sql")),
    (6, include_str!("../golden/v6.sql")),
    (7, include_str!("../golden/v7.sql")),
    (8, include_str!("../golden/v8.sql")),
    (9, include_str!("../golden/v9.sql")),
    (10, V10),
    (11, V11),
    (12, V12),
    (13, V13),
];

pub fn from_dump(dump: &str) -> Scratch {
    let scratch = Scratch::new();
    let connection = Connection::open(scratch.join("saggar.db")).unwrap();
    connection.execute_batch(dump).unwrap();
    let opens: Option<String> =
        connection.query_row("SELECT max(value) FROM meta WHERE key = 'opens'", [], |row| row.get(0)).unwrap();
    connection.close().unwrap();
    if let Some(opens) = opens {
        // Without its marker, a store that counts its openings is taken for a copy.
        let marker = format!(r#"{{"v":1,"opens":{opens},"boot":null}}"#);
        std::fs::write(scratch.join("saggar.state"), marker).unwrap();
    }
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
    for (_, dump) in DUMPS {
        let (old, new) = (from_dump(dump), Scratch::new());
        drop((old.open(), new.open()));
        assert_eq!(schema(&old), schema(&new), "a released migration was edited, or a new one misses something");
    }
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

    let run = StartedExec { id: ExecId::from_random([4; 16]), ..exec(&asked.id, started_at) };
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

#[tokio::test]
async fn the_files_of_runs_that_version_10_wrote_read_back_whole() {
    let scratch = from_dump(V10);
    let store = scratch.open();
    let found = store.files_of_runs(ProjectId::from_random([1; 16])).await.unwrap();
    let row = store.run_of_any(parent_run()).await.unwrap().unwrap();
    assert_eq!((found.len(), &found[0].run, Some(&found[0].files)), (1, &parent_run(), row.files.as_ref()));
    assert!(found[0].files.as_str().starts_with(r#"{"kept":[{"step":3,"#), "{found:?}");
}

#[tokio::test]
async fn the_files_that_version_11_left_are_taken_by_a_later_run() {
    let scratch = from_dump(V11);
    let store = scratch.open();
    let (project, key) = (ProjectId::from_random([1; 16]), ReuseKey::of(b"key"));
    let snapshot = SnapshotId::parse("snap_aeaqcaibaeaqcaibaeaqcaibae").unwrap();
    let row = store.run_of_any(parent_run()).await.unwrap().unwrap();
    let from = RunId::from_random([11; 16]);
    assert_eq!(row.began_with, Some(HandedOn { snapshot: snapshot.clone(), from }));
    let left = HandedOn { snapshot, from: RunId::from_random([10; 16]) };
    let taken = store.take_files(project, RunId::from_random([8; 16]), key, NOW).await;
    assert_eq!(taken, Ok(Taken::Files(left)));
}

#[tokio::test]
async fn what_happens_at_the_deadline_reads_back_and_was_a_pause_before() {
    let rows = [(V11, 3, DeadlineAction::Pause), (V12, 3, DeadlineAction::Pause), (V12, 4, DeadlineAction::Rest)];
    for (dump, id, expected) in rows {
        let scratch = from_dump(dump);
        let store = scratch.open();
        let found = store.sandbox_of_any(SandboxId::from_random([id; 16])).await.unwrap().expect("it has a row");
        assert_eq!(found.asked.lifetime.on_deadline, expected);
    }
}

#[tokio::test]
async fn calls_in_sandboxes_that_version_13_wrote_read_back_whole() {
    let scratch = from_dump(V13);
    let store = scratch.open();
    let calls = store.sandbox_calls(parent_run()).await.unwrap();
    let amounts = (calls.models["cheap"].calls, calls.settled().tokens, calls.under_way.tokens, calls.under_way.micros);
    assert_eq!(amounts, (2, 340, 120, 7));
    assert_eq!(store.bill_lost_sandbox_calls().await, Ok(1));
    assert_eq!(store.sandbox_calls(parent_run()).await.unwrap().at_most(), calls.at_most());
}

#[tokio::test]
async fn a_run_that_version_12_left_leaves_its_sandboxes_nothing_until_its_worker_says_otherwise() {
    let scratch = from_dump(V12);
    let store = scratch.open();
    let one = crate::sandbox_calls::call("one", &parent_run(), 1);
    let refused = TooMuch::Tokens { left: 0, wanted: 1 };
    assert_eq!(store.set_aside(one).await, Ok(SetAside::RunExhausted(refused)));
    let row = store.run_of_any(parent_run()).await.unwrap().unwrap();
    assert!(row.wake_at.is_some_and(|at| at <= NOW), "its worker is due: {row:?}");
}

#[tokio::test]
async fn the_runs_that_version_3_wrote_read_back_whole_and_are_free() {
    let scratch = from_dump(V3);
    let store = scratch.open();
    let row = store.run_of_any(parent_run()).await.unwrap().unwrap();
    assert_eq!((row.state, row.head, row.epoch, row.block), (RunState::Waiting, 3, 1, None));
    // Its lease was given by another clock.
    assert_eq!(row.holder, None);
    let entries = store.journal_after(parent_run(), 0).await.unwrap();
    assert_eq!(entries.iter().map(|entry| entry.entry.as_str()).collect::<Vec<_>>(), ["first", "second", "third"]);
    let child = store.run_of_any(child_run()).await.unwrap().unwrap();
    assert_eq!((child.state, child.child_of), (RunState::Queued, Some((parent_run(), 2))));
    assert_eq!(store.letters(parent_run()).await.unwrap().len(), 1);
    assert_eq!(store.blob(BlobHash::of(b"a blob")).await, Ok(Some(b"a blob".to_vec())));
    assert_eq!(claim(&store, "w2", NOW).await, 2, "any worker may claim it");
}

/// What servers wrote into the columns `template`, `network` and `spec_json` before the spec had a type.
const SPECS: [[&str; 3]; 3] = [
    ["base", "none", r#"{"network":"none"}"#],
    [
        "host",
        "none",
        r#"{"limits":{"cpus":"0.5","disk":"100M","files":"256","memory":"512M","output":"64K","pids":"64"},"network":"none","user":"root"}"#,
    ],
    ["base", "host", r#"{"limits":{"memory":"1G"},"network":"host"}"#],
];

#[tokio::test]
async fn a_spec_reads_back_as_it_was_written_before_it_had_a_type_and_is_written_the_same() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let column = |id: &SandboxId, name: &str| -> String {
        let connection = Connection::open(scratch.join("saggar.db")).unwrap();
        let sql = format!("SELECT {name} FROM sandbox WHERE id = ?1");
        connection.query_row(&sql, [id.as_str()], |row| row.get(0)).unwrap()
    };
    for [template, network, json] in SPECS {
        let [old, new] = [sandbox(&project), sandbox(&project)];
        insert(&store, &old).await;
        let connection = Connection::open(scratch.join("saggar.db")).unwrap();
        let sql = "UPDATE sandbox SET template = ?2, network = ?3, spec_json = ?4 WHERE id = ?1";
        connection.execute(sql, [old.id.as_str(), template, network, json]).unwrap();
        let read = store.sandbox_of_any(old.id.clone()).await.unwrap().unwrap().asked.spec;
        assert_eq!((read.template_name().as_str(), read.network.unwrap().as_str()), (template, network));

        insert(&store, &NewSandbox { spec: read.clone(), ..new.clone() }).await;
        assert_eq!(store.sandbox_of_any(new.id.clone()).await.unwrap().unwrap().asked.spec, read);
        let written: serde_json::Value = serde_json::from_str(&column(&new.id, "spec_json")).unwrap();
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(json).unwrap());
        assert_eq!([column(&new.id, "template"), column(&new.id, "network")], [template, network]);
    }
}

#[tokio::test]
async fn the_environment_of_a_spec_is_not_stored() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let mut new = sandbox(&project);
    new.spec.env.insert("TOKEN".into(), "s3cr3t".into()).unwrap();
    insert(&store, &new).await;
    assert!(store.sandbox_of_any(new.id.clone()).await.unwrap().unwrap().asked.spec.env.is_empty());
    drop(store);
    for file in std::fs::read_dir(scratch.join("")).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"s3cr3t"));
    }
}

#[test]
fn the_newest_version_has_a_dump() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let connection = Connection::open(scratch.join("saggar.db")).unwrap();
    let newest: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(DUMPS.last().unwrap().0, newest);
}

#[tokio::test]
async fn what_the_later_versions_wrote_reads_back_whole() {
    for (version, dump) in DUMPS.into_iter().filter(|(version, _)| *version >= 4) {
        let scratch = from_dump(dump);
        let store = scratch.open();
        let row = async |number: u8| store.run_of_any(RunId::from_random([number; 16])).await.unwrap();
        let held = row(6).await.unwrap();
        assert_eq!((held.state, held.block), (RunState::Waiting, None), "{version}");
        assert_eq!(held.holder.as_ref().map(Holder::as_str), Some("w1"), "{version}");
        let damaged = row(8).await.unwrap();
        let block = Block { kind: BlockKind::Damaged, reason: "entry 2 can't be read".to_owned() };
        assert_eq!((damaged.state, damaged.block), (RunState::Parked, Some(block)), "{version}");
        // Reading compares the checksums of entries that have one.
        assert_eq!(store.journal_after(held.id.clone(), 0).await.unwrap().len(), 3, "{version}");
        assert_eq!(store.journal_after(damaged.id, 0).await.unwrap()[0].entry, "damaged", "{version}");
        if version >= 5 {
            let waiting = row(9).await.unwrap();
            assert_eq!(waiting.room_since, Some(NOW.after(Duration::from_secs(1))), "{version}");
            assert_eq!(store.give_room(NOW, 1).await, Ok(1), "{version}");
        }
        if version >= 6 {
            let red = std::collections::BTreeMap::from([("team".to_owned(), "red".to_owned())]);
            assert_eq!(row(10).await.unwrap().labels, saggar_domain::Labels::parse(red).unwrap(), "{version}");
            assert_eq!(row(11).await, None, "it was removed");
            // A sweep deletes the removed run and unused blobs. An unread letter keeps the blob that it names.
            let day = NOW.after(Duration::from_secs(24 * 60 * 60));
            let swept = store.sweep(day, saggar_store::Retention::default()).await.unwrap();
            assert_eq!(swept.runs, 1, "{version}");
            let mut left = Vec::new();
            for bytes in ["named by an entry", "named by a letter", "just put", "a blob"] {
                left.push(store.blob(BlobHash::of(bytes.as_bytes())).await.unwrap().is_some());
            }
            assert_eq!(left, [true, true, false, false], "{version}");
        }
        if version >= 8 {
            check_secret(&store).await;
        }
        if version >= 9 {
            let id = SandboxId::from_random([3; 16]);
            let sums = store.traffic(id.clone()).await.unwrap();
            assert_eq!((sums.len(), sums[0].host.as_str(), sums[0].allowed), (1, "a.example", 1), "{version}");
            assert_eq!(store.last_event(id.clone()).await, Ok(Some(2)), "{version}");
            let ingress = store.sandbox_of_any(id).await.unwrap().unwrap().asked.ingress;
            assert!(ingress.allows(80) && !ingress.allows(81), "{version}");
        }
    }
}

async fn check_secret(store: &Store) {
    let (project, name) = (ProjectId::from_random([1; 16]), SecretName::parse("openai").unwrap());
    let found = store.secret(project.clone(), name.clone()).await.unwrap().unwrap();
    let key = SealingKeyId::parse("ea4a6c63e29c520a").unwrap();
    let binding_text = r#"{"rules":["POST api.openai.com/v1/**"],"slot":"bearer","placeholder_prefix":"sk-"}"#;
    let row = SecretRow {
        project,
        name,
        version: 2,
        created_at: NOW,
        updated_at: NOW.after(Duration::from_secs(1)),
        key: key.clone(),
        binding: serde_json::from_str(binding_text).unwrap(),
    };
    let sealed = Sealed(vec![1, 2, 3, 4]);
    assert_eq!(found, SealedSecret { row, binding_text: binding_text.to_owned(), sealed });
    assert_eq!(store.sealing_key().await, Ok(Some(key)));
}

/// Writes the store for the dump of the current version, if the environment variable is set; does nothing by itself.
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
    let run = StartedExec { id: ExecId::from_random([4; 16]), ..exec(&asked.id, started_at) };
    store.record_exec_started(run.clone()).await.unwrap();
    let output = ExecOutput { stdout: Tail::new(b"out\xff".to_vec(), 5), stderr: Tail::new(b"err".to_vec(), 0) };
    store.record_exec_ended(asked.id.clone(), run.id, exec_end(ended_at), output).await.unwrap();
    store.append_events(asked.id.clone(), vec![event(0), event(1)]).await.unwrap();
    store.end_sandbox(asked.id, ending(ended_at)).await.unwrap();
    store.set_meta(MetaKey::BootId, "0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e".into()).await.unwrap();
    write_runs(store).await;
}

fn parent_run() -> RunId {
    RunId::from_random([6; 16])
}

fn child_run() -> RunId {
    RunId::from_random([7; 16])
}

/// A held run with a child and an unread letter; and a blob.
async fn write_runs(store: &Store) {
    let project = ProjectId::from_random([1; 16]);
    let new = |id, agent: &str, first: &str, child_of| NewRun {
        labels: saggar_domain::Labels::default(),
        id,
        project: project.clone(),
        agent: agent.to_owned(),
        created_at: NOW,
        first: first.to_owned(),
        child_of,
    };
    let again = Idempotency { key: IdempotencyKey::parse("run").unwrap(), request_hash: RequestHash::of(b"run") };
    store.create_run(new(parent_run(), "a", "first", None), Some(again)).await.unwrap();
    let epoch = claim(store, "w1", NOW).await;
    let append = Append {
        run: parent_run(),
        epoch,
        head: 1,
        entries: vec!["second".to_owned(), "third".to_owned()],
        summary: Summary {
            state: RunState::Waiting,
            at: NOW,
            wake_at: Some(NOW.after(Duration::from_secs(60))),
            outcome: None,
            sandbox: Some(SandboxId::from_random([3; 16])),
            room_since: None,
        },
        consumed: Vec::new(),
        seen: 0,
        children: vec![new(child_run(), "b", "child's first", Some((parent_run(), 2)))],
        letters: Vec::new(),
        files: None,
        generation: None,
        left: Default::default(),
        known_calls: None,
    };
    store.append(append).await.unwrap();
    let body = JsonText::parse(r#"{"v":1,"tell":"pause"}"#).unwrap();
    let letter = NewLetter { project: project.clone(), run: parent_run(), id: "letter".to_owned(), at: NOW, body };
    store.put_letter(letter, saggar_store::LetterRoom::Data).await.unwrap();
    store.put_blob(b"a blob".to_vec(), NOW).await.unwrap();
}

async fn claim(store: &Store, name: &str, at: Timestamp) -> u64 {
    let taking = Taking { most: 1, reserved: 0, per_agent: 1, per_project: 1 };
    let from = Uptime::from_millis(1_000_000);
    let lease = Lease { from, until: from.after(Duration::from_secs(5)) };
    store.claim_due(Holder::parse(name).unwrap(), at, lease, taking).await.unwrap()[0].epoch
}
