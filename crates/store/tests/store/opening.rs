//! Opening: what is refused, and that refused files stay unchanged.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use rusqlite::Connection;
use saggar_domain::{Code, Problem, ProjectId};
use saggar_store::{OpenError, Store};

use crate::fixture::{NOW, Scratch, insert, part, random, sandbox, store_with_project};
use crate::golden::{DUMPS, from_dump};

/// Checks that opening is refused with help and leaves the file unchanged.
fn check_refused(scratch: &Scratch, expected: impl Fn(&OpenError) -> bool) {
    let file = scratch.join("saggar.db");
    let before = std::fs::read(&file).unwrap();
    let error = Store::open(scratch.path()).unwrap_err();
    assert!(expected(&error), "{error:?}");
    assert!(!error.help().is_empty());
    let path = scratch.path().to_str().unwrap();
    assert!(!error.to_string().contains(path) && !error.help().contains(path), "{error}");
    assert!(std::fs::read(&file).unwrap() == before, "the file was changed");
}

#[tokio::test]
async fn everything_is_there_again_and_private() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let new = sandbox(&project);
    insert(&store, &new).await;
    for name in ["saggar.db", "saggar.db-wal", "saggar.db-shm", "saggar.lock"] {
        let mode = std::fs::metadata(scratch.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    drop(store);
    assert!(!scratch.join("saggar.db-wal").exists(), "a closed store is one file");
    let store = scratch.open();
    assert_eq!(store.sandbox_of_any(new.id.clone()).await.unwrap().unwrap().asked, new);
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let scratch = Scratch::new();
    std::fs::write(scratch.join("saggar.db"), "precious notes, not a database\n".repeat(500)).unwrap();
    check_refused(&scratch, |error| matches!(error, OpenError::Damaged { .. }));
    let problem = Problem::from(Store::open(scratch.path()).unwrap_err());
    assert_eq!(problem.code, Code::DataDirectory);
}

#[test]
fn a_database_of_another_program_is_refused() {
    let scratch = Scratch::new();
    let connection = Connection::open(scratch.join("saggar.db")).unwrap();
    connection.execute_batch("CREATE TABLE notes (text); INSERT INTO notes VALUES ('precious')").unwrap();
    drop(connection);
    check_refused(&scratch, |error| matches!(error, OpenError::Damaged { .. }));
}

#[tokio::test]
async fn a_damaged_store_is_refused() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    for _ in 0..50 {
        insert(&store, &sandbox(&project)).await;
    }
    drop(store);
    let file = scratch.join("saggar.db");
    let whole = std::fs::read(&file).unwrap();
    let page = 4096;
    // The file's header, a page in the middle, and a truncated end.
    let mut head = whole.clone();
    head[16..100].fill(0xff);
    let mut middle = whole.clone();
    middle[5 * page..12 * page].fill(0xa5);
    let cut = whole[..whole.len() - 7 * page].to_vec();
    for damaged in [head, middle, cut] {
        std::fs::write(&file, damaged).unwrap();
        check_refused(&scratch, |error| matches!(error, OpenError::Damaged { .. }));
    }
    std::fs::write(&file, whole).unwrap();
    scratch.open();
}

#[test]
fn a_newer_store_is_refused() {
    let scratch = Scratch::new();
    drop(scratch.open());
    let connection = Connection::open(scratch.join("saggar.db")).unwrap();
    let known: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    connection.close().unwrap();
    check_refused(&scratch, |error| matches!(error, OpenError::Newer { found: 99, known: ours } if *ours == known));
}

const HOLD: &str = "SAGGAR_STORE_HOLD";

/// The other process of the next test; does nothing by itself.
#[test]
fn part_that_holds() {
    let Some(directory) = std::env::var_os(HOLD) else { return };
    let _store = Store::open(Path::new(&directory)).unwrap();
    println!("\nholding");
    // Until the other side closes the pipe, or kills this process.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn one_process_at_a_time_and_a_killed_one_leaves_it_free() {
    let scratch = Scratch::new();
    let mut holder = part("opening::part_that_holds", HOLD, scratch.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "holding"));
    let error = Store::open(scratch.path()).unwrap_err();
    let OpenError::Locked { pid } = error else { panic!("{error:?}") };
    assert_eq!(pid, Some(holder.id()));
    assert_eq!(error.to_string(), format!("the data directory is in use by process {}", holder.id()));
    holder.kill().unwrap();
    holder.wait().unwrap();
    scratch.open();
}

#[test]
fn twice_in_one_process_is_refused_too() {
    let scratch = Scratch::new();
    let store = scratch.open();
    assert!(matches!(Store::open(scratch.path()), Err(OpenError::Locked { .. })));
    drop(store);
    scratch.open();
}

#[test]
fn a_store_is_not_migrated_while_a_worker_of_its_version_works_in_it() {
    let (version, dump) = DUMPS[1];
    let scratch = from_dump(dump);
    std::fs::create_dir(scratch.join("workers")).unwrap();
    let worker = std::fs::File::create(scratch.join("workers/w1")).unwrap();
    rustix::fs::flock(&worker, rustix::fs::FlockOperation::LockExclusive).unwrap();
    check_refused(&scratch, |error| matches!(error, OpenError::OldWorker { found, .. } if *found == version));
    let error = Store::open(scratch.path()).unwrap_err();
    assert!(error.help().contains("stop every `saggar worker`"), "{}", error.help());
    // One that has ended leaves its file, and no lock.
    drop(worker);
    drop(scratch.open());
    // A worker of the same version is no hindrance.
    let worker = std::fs::File::create(scratch.join("workers/w1")).unwrap();
    rustix::fs::flock(&worker, rustix::fs::FlockOperation::LockExclusive).unwrap();
    scratch.open();
}

#[tokio::test]
async fn the_boot_is_remembered() {
    let scratch = Scratch::new();
    let store = scratch.open();
    assert_eq!(store.last_boot().await, Ok(None));
    let boot = "0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e";
    for value in ["11111111-8b7e-4a3c-9f59-1f2a3b4c5d6e", boot] {
        store.set_meta(saggar_store::MetaKey::BootId, value.to_owned()).await.unwrap();
    }
    assert_eq!(store.last_boot().await.unwrap().unwrap().as_str(), boot);
    store.default_project(ProjectId::from_random(random()), NOW).await.unwrap();
}
