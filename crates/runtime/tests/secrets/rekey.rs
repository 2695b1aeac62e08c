//! Changing the sealing key: complete, beside a server that writes, and killed after each step.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use saggar_runtime::{Fault, OldKeys, Written, rekey};
use saggar_store::Store;

use crate::place::{self, CANARY, Place};

/// Names the place of a part of a test that runs in a process of its own.
const PLACE: &str = "SAGGAR_SECRETS_PLACE";
/// More than are resealed at once.
const SECRETS: usize = 150;

fn keys_in(place: &Place) -> usize {
    let text = std::fs::read_to_string(place.key_path()).unwrap();
    text.lines().filter(|line| line.starts_with("saggar-sealing-key-v1:")).count()
}

#[tokio::test]
async fn every_value_is_resealed_and_old_keys_stay_until_they_are_to_be_forgotten() {
    let place = Place::new();
    let project = place.open().await;
    for number in 0..3 {
        project.set_new(&format!("s{number}"), CANARY).await;
    }
    let store = project.sandboxes.store().clone();
    let before = store.sealing_key().await.unwrap().unwrap();
    let done = rekey(&store, &place.key_file(), OldKeys::Keep).await.unwrap();
    assert_eq!((done.secrets, done.forgotten, keys_in(&place)), (3, 0, 2));
    assert_ne!(done.key, before);
    assert_eq!(store.sealing_keys_in_use().await.unwrap(), [(done.key.clone(), 3)].into());
    // The server that was there all the time goes on with the new key.
    assert!(project.has("s0", CANARY).await);
    assert_eq!(project.set("s0", Some("sk-canary-new"), None).await.unwrap(), Written::Changed);
    assert_eq!(project.names().await, [("s0".to_owned(), 2), ("s1".to_owned(), 1), ("s2".to_owned(), 1)]);

    let again = rekey(&store, &place.key_file(), OldKeys::Forget).await.unwrap();
    assert_eq!((again.secrets, again.forgotten, keys_in(&place)), (3, 2, 1));
    assert!(project.has("s1", CANARY).await && project.has("s0", "sk-canary-new").await);
    assert_eq!(place.findings(), [""; 0]);
}

#[tokio::test]
async fn a_key_is_changed_before_the_first_secret_too() {
    let place = Place::new();
    let project = place.open().await;
    let done = rekey(project.sandboxes.store(), &place.key_file(), OldKeys::Forget).await.unwrap();
    project.set_new("openai", CANARY).await;
    assert_eq!(project.sandboxes.store().sealing_key().await.unwrap(), Some(done.key));
}

#[tokio::test]
async fn nothing_changes_if_something_cannot_be_opened() {
    let place = Place::new();
    let project = place.open().await;
    project.set_new("openai", CANARY).await;
    let store = project.sandboxes.store().clone();
    std::fs::rename(place.key_path(), place.join("away")).unwrap();
    let fault = rekey(&store, &place.key_file(), OldKeys::Keep).await.unwrap_err();
    assert!(matches!(fault, Fault::SealingKey { .. }), "{fault:?}");
    assert!(!place.key_path().exists());
    std::fs::rename(place.join("away"), place.key_path()).unwrap();
    assert_eq!(keys_in(&place), 1);
    assert!(project.has("openai", CANARY).await);
}

/// A server that stores values all the time while the key is changed again and again.
#[tokio::test]
async fn a_server_that_writes_meanwhile_loses_nothing() {
    let place = Place::new();
    let project = place.open().await;
    project.set_new("openai", "sk-canary-start").await;
    let beside = Store::join(&place.data()).unwrap();
    let writing = async {
        for number in 0..40 {
            project.set("openai", Some(&format!("sk-canary-{number:03}")), None).await.unwrap();
        }
    };
    let changing = async {
        for _ in 0..5 {
            rekey(&beside, &place.key_file(), OldKeys::Forget).await.unwrap();
        }
    };
    tokio::join!(writing, changing);
    assert!(project.has("openai", "sk-canary-039").await);
    assert_eq!((project.names().await, keys_in(&place)), (vec![("openai".to_owned(), 41)], 1));
}

#[tokio::test]
async fn a_change_that_is_killed_leaves_every_value_readable_and_can_be_repeated() {
    for point in ["rekey/added", "rekey/fenced", "rekey/some", "rekey/resealed"] {
        let place = Place::new();
        let project = place.open().await;
        for number in 0..SECRETS {
            project.set_new(&format!("s{number}"), &format!("{CANARY}-{number}")).await;
        }
        drop(project);
        let mut part = Command::new(std::env::current_exe().unwrap());
        part.args(["--exact", "rekey::part_that_changes_the_key", "--nocapture", "--test-threads=1"]);
        let ended = part.env(PLACE, place.join("")).env("FAIL_AT", format!("kill {point}")).output().unwrap();
        assert_eq!(ended.status.signal(), Some(9), "{point}: {ended:?}");

        assert_eq!(place.findings(), [""; 0], "{point}");
        let project = place.open().await;
        let used = project.sandboxes.store().sealing_keys_in_use().await.unwrap();
        let resealed = used.len() == 2;
        assert_eq!(resealed, point == "rekey/some", "{point}: {used:?}");
        assert!(project.has("s0", &format!("{CANARY}-0")).await && project.has("s9", &format!("{CANARY}-9")).await);
        let done = rekey(project.sandboxes.store(), &place.key_file(), OldKeys::Forget).await.unwrap();
        assert_eq!((done.secrets, keys_in(&place)), (SECRETS as u64, 1), "{point}");
        for number in 0..SECRETS {
            assert!(project.has(&format!("s{number}"), &format!("{CANARY}-{number}")).await, "{point} {number}");
        }
        assert_eq!(place.findings(), [""; 0], "{point}");
    }
}

/// Each of the two may forget keys while the other is anywhere.
#[tokio::test]
async fn two_changes_at_once_forget_no_key_that_is_used() {
    let points = ["rekey/added", "rekey/fenced", "rekey/resealed"];
    for (point, old) in points.into_iter().flat_map(|point| [(point, OldKeys::Keep), (point, OldKeys::Forget)]) {
        let place = Place::new();
        let project = place.open().await;
        for number in 0..3 {
            project.set_new(&format!("s{number}"), CANARY).await;
        }
        drop(project);
        let mut part = Command::new(std::env::current_exe().unwrap());
        part.args(["--exact", "rekey::part_that_changes_the_key", "--nocapture", "--test-threads=1"]);
        let pipe = place.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let part = part.env(PLACE, place.join("")).env("FAIL_AT", format!("wait {point}")).env("FAIL_UNTIL", &pipe);
        let mut part = part.spawn().unwrap();
        assert_eq!(std::fs::read_to_string(&pipe).unwrap(), "reached");

        let beside = Store::join(&place.data()).unwrap();
        rekey(&beside, &place.key_file(), old).await.unwrap();
        std::fs::write(&pipe, "go on").unwrap();
        // Whether it ends well doesn't matter here: it may find that another one has changed the key.
        part.wait().unwrap();
        assert_eq!(place.findings(), [""; 0], "{point}");
        let project = place::open(&place.data(), place.key_path(), beside).await;
        for number in 0..3 {
            assert!(project.has(&format!("s{number}"), CANARY).await, "{point} {number}");
        }
        project.set_new("later", CANARY).await;
    }
}

#[tokio::test]
async fn what_a_killed_change_left_beside_the_key_file_is_removed() {
    let place = Place::new();
    let project = place.open().await;
    project.set_new("openai", CANARY).await;
    // The keys may be where a link leads.
    let real = place.join("real");
    std::fs::create_dir(&real).unwrap();
    std::fs::rename(place.key_path(), real.join("secrets.key")).unwrap();
    std::os::unix::fs::symlink(real.join("secrets.key"), place.key_path()).unwrap();
    let kept = ["secrets.new", "other.0123456789abcdef.new", "secrets.0123456789abcdef.new.bak"];
    for name in ["secrets.0123456789abcdef.new"].iter().chain(&kept) {
        std::fs::write(real.join(name), "").unwrap();
    }
    rekey(project.sandboxes.store(), &place.key_file(), OldKeys::Keep).await.unwrap();
    let mut left: Vec<String> =
        std::fs::read_dir(&real).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    let mut expected = [&kept[..], &["secrets.key"]].concat();
    expected.sort_unstable();
    assert_eq!(left, expected);
    assert!(place.key_path().is_symlink() && project.has("openai", CANARY).await);
}

/// Plays its part if the variable is set; does nothing by itself.
#[tokio::test]
async fn part_that_changes_the_key() {
    let Some(directory) = std::env::var_os(PLACE) else { return };
    let directory = std::path::PathBuf::from(directory);
    let data = directory.join("data");
    let store = Store::open(&data).unwrap();
    let project = place::open(&data, directory.join("keys/secrets.key"), store).await;
    let file = saggar_runtime::KeyFile::new(directory.join("keys/secrets.key"), data);
    rekey(project.sandboxes.store(), &file, OldKeys::Forget).await.unwrap();
}
