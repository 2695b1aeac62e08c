//! A worker that is stopped in the middle of a commit doesn't block the others.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};

use rusqlite::Connection;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, getpid, kill_process};
use saggar_domain::ProjectId;
use saggar_store::{Error, MetaKey, Store, WORKERS};

use crate::fixture::{NOW, Scratch, part, random};

const PART: &str = "SAGGAR_STORE_STUCK";

/// The process that is stopped in the next tests; does nothing by itself. The first word says whether it is a worker,
/// the second where.
#[test]
fn part_that_stops_in_a_commit() {
    let Some(what) = std::env::var_os(PART) else { return };
    let what = what.into_string().unwrap();
    let (name, directory) = what.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let shown = (name == "worker").then(|| {
        std::fs::create_dir_all(directory.join(WORKERS)).unwrap();
        let file = File::create(directory.join(WORKERS).join("w1")).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    });
    let connection = Connection::open(directory.join("saggar.db")).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE; INSERT INTO meta VALUES ('half', 'done')").unwrap();
    println!("\nholding");
    kill_process(getpid(), Signal::STOP).unwrap();
    // The other threads may be stopped before this one: it must not release anything meanwhile.
    loop {
        std::thread::park();
        assert!(!connection.is_autocommit() && shown.is_some() == (name == "worker"));
    }
}

fn stopped(scratch: &Scratch, name: &str) -> Child {
    let what = format!("{name} {}", scratch.path().display());
    let mut child =
        part("stuck::part_that_stops_in_a_commit", PART, Path::new(&what)).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "holding"));
    child
}

#[tokio::test]
async fn a_worker_that_is_stopped_in_the_middle_of_a_commit_is_killed_and_the_others_go_on() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut worker = stopped(&scratch, "worker");
    store.default_project(ProjectId::from_random(random()), NOW).await.unwrap();
    assert_eq!(worker.wait().unwrap().signal(), Some(9));
    // Its uncommitted write is not visible.
    let half = Connection::open(scratch.join("saggar.db")).unwrap();
    let half: u32 = half.query_row("SELECT count(*) FROM meta WHERE key = 'half'", [], |row| row.get(0)).unwrap();
    assert_eq!(half, 0);
}

#[tokio::test]
async fn a_stopped_process_that_is_no_worker_is_left_alone_and_whoever_writes_is_told() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let mut other = stopped(&scratch, "somebody");
    assert_eq!(store.set_meta(MetaKey::SigningKeyId, "x".to_owned()).await, Err(Error::Busy));
    assert_eq!(other.try_wait().unwrap(), None, "it lives");
    other.kill().unwrap();
    other.wait().unwrap();
    store.set_meta(MetaKey::SigningKeyId, "x".to_owned()).await.unwrap();
    drop(store);
    Store::open(scratch.path()).unwrap();
}
