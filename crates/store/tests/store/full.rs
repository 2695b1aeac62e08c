//! A full disk and a read-only disk: real, small ones, in their own mount namespace.

use std::path::Path;
use std::process::{Command, Stdio};

use saggar_domain::ProjectId;
use saggar_store::{Error, OpenError, SandboxQuery, Scope, Store};

use crate::fixture::{NOW, Scratch, ending, event, insert, random, sandbox};

const FULL: &str = "SAGGAR_STORE_FULL";
const READ_ONLY: &str = "SAGGAR_STORE_READ_ONLY";
/// Size of the disk.
const DISK: &str = "size=6m";
const BALLAST_BYTES: usize = 3 << 20;
const PLAYED: &str = "the part was played";

/// Runs a test of this file with a small tmpfs at `scratch`. Fails loudly if this machine doesn't allow it.
fn run_on_small_disk(test: &str, variable: &str, scratch: &Scratch) {
    let script = format!("mount -t tmpfs -o {DISK} none \"${variable}\" && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(variable, scratch.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // The test prints that it ran: without its variable it would pass without doing anything.
    assert!(output.status.success() && text.contains(PLAYED), "needs `unshare --user --mount`:\n{text}");
}

#[test]
fn on_a_full_disk_writes_fail_as_such_and_go_on_once_there_is_room() {
    run_on_small_disk("full::part_on_a_full_disk", FULL, &Scratch::new());
}

#[test]
fn on_a_read_only_disk_opening_is_refused_as_such() {
    run_on_small_disk("full::part_on_a_read_only_disk", READ_ONLY, &Scratch::new());
}

/// Runs inside the namespace; does nothing by itself.
#[tokio::test]
async fn part_on_a_full_disk() {
    let Some(directory) = std::env::var_os(FULL) else { return };
    let directory = Path::new(&directory);
    let ballast = directory.join("ballast");
    std::fs::write(&ballast, vec![1; BALLAST_BYTES]).unwrap();
    let store = Store::open(directory).unwrap();
    let project = store.default_project(ProjectId::from_random(random()), NOW).await.unwrap().id;

    let mut acknowledged = Vec::new();
    let mut refused = 0;
    while refused < 50 {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (store, new) = (store.clone(), sandbox(&project));
            tasks.spawn(async move { (new.id.clone(), store.insert_sandbox(new, None).await) });
        }
        for (id, outcome) in tasks.join_all().await {
            match outcome {
                Ok(_) => acknowledged.push(id),
                Err(error) => {
                    assert_eq!(error, Error::Full);
                    refused += 1;
                }
            }
        }
    }
    assert!(acknowledged.len() > 100, "{}", acknowledged.len());
    assert!(Error::Full.help().contains("make room"));

    // Reads continue to work.
    assert_eq!(all(&store).await, acknowledged.len());
    std::fs::remove_file(&ballast).unwrap();
    let new = sandbox(&project);
    insert(&store, &new).await;
    store.append_events(new.id.clone(), vec![event(0)]).await.unwrap();
    store.end_sandbox(new.id.clone(), ending(NOW)).await.unwrap();
    drop(store);

    let store = Store::open(directory).unwrap();
    assert_eq!(all(&store).await, acknowledged.len() + 1);
    for id in acknowledged {
        assert!(store.sandbox_of_any(id).await.unwrap().is_some());
    }
    println!("{PLAYED}");
}

async fn all(store: &Store) -> usize {
    let counts = store.count_sandboxes(Scope::All).await.unwrap();
    store.sandboxes(SandboxQuery::new(Scope::All)).await.unwrap();
    usize::try_from(counts.values().sum::<u64>()).unwrap()
}

/// Runs inside the namespace; does nothing by itself.
#[test]
fn part_on_a_read_only_disk() {
    let Some(directory) = std::env::var_os(READ_ONLY) else { return };
    let directory = Path::new(&directory);
    drop(Store::open(directory).unwrap());
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(directory).status().unwrap();
    assert!(remount.success());
    let error = Store::open(directory).unwrap_err();
    assert!(matches!(error, OpenError::Storage(Error::ReadOnly)), "{error:?}");
    let fresh = Store::open(&directory.join("new")).unwrap_err();
    assert!(matches!(fresh, OpenError::Storage(Error::ReadOnly)), "{fresh:?}");
    println!("{PLAYED}");
}
