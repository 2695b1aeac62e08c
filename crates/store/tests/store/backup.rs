//! Backups of a store in use, and restoring them.

use std::os::unix::fs::PermissionsExt;

use rusqlite::Connection;
use saggar_store::{BackupError, OpenError, Scope, Store, backup, restore};

use crate::fixture::{NOW, Scratch, event, insert, sandbox, store_with_project};

#[tokio::test]
async fn a_backup_of_a_store_at_work_is_whole_and_comes_back() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let before = sandbox(&project);
    insert(&store, &before).await;
    let writing = tokio::spawn({
        let (store, project) = (store.clone(), project.clone());
        async move {
            for _ in 0..300 {
                let new = sandbox(&project);
                insert(&store, &new).await;
                store.append_events(new.id, (0..10).map(event).collect()).await.unwrap();
            }
        }
    });
    let file = scratch.join("backup.db");
    let (directory, target) = (scratch.path().to_owned(), file.clone());
    tokio::task::spawn_blocking(move || backup(&directory, &target, NOW)).await.unwrap().unwrap();
    writing.await.unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!scratch.join("backup.db.partial").exists());

    let elsewhere = Scratch::new();
    // Leftovers of a database that was moved away: they must not be taken for the new one's.
    std::fs::write(elsewhere.join("saggar.db-wal"), "stale").unwrap();
    restore(&file, elsewhere.path()).unwrap();
    let restored = elsewhere.open();
    assert_eq!(restored.sandbox_of_any(before.id.clone()).await.unwrap().unwrap().asked, before);
    insert(&restored, &sandbox(&project)).await;
    assert!(store.count_sandboxes(Scope::All).await.unwrap().values().sum::<u64>() == 301);
}

#[tokio::test]
async fn nothing_is_overwritten() {
    let scratch = Scratch::new();
    let file = scratch.join("backup.db");
    assert!(matches!(backup(scratch.path(), &file, NOW), Err(BackupError::NoStore)));
    let (store, _) = store_with_project(&scratch).await;
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(backup(scratch.path(), &file, NOW), Err(BackupError::TargetExists)));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    std::fs::remove_file(&file).unwrap();
    backup(scratch.path(), &file, NOW).unwrap();
    let busy = restore(&file, scratch.path());
    assert!(matches!(busy, Err(BackupError::Open(OpenError::Locked { .. }))), "{busy:?}");
    drop(store);
    assert!(matches!(restore(&file, scratch.path()), Err(BackupError::StoreExists)));
}

#[tokio::test]
async fn what_is_no_whole_backup_is_not_restored() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    for _ in 0..50 {
        insert(&store, &sandbox(&project)).await;
    }
    let file = scratch.join("backup.db");
    backup(scratch.path(), &file, NOW).unwrap();
    let whole = std::fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 8192].fill(0xa5);
    let cases: [(&str, Vec<u8>); 5] = [
        ("empty", Vec::new()),
        ("text", b"not a database at all".repeat(100)),
        ("damaged", damaged),
        ("cut", whole[..whole.len() / 2].to_vec()),
        ("newer", newer(&scratch, &whole)),
    ];
    for (name, bytes) in cases {
        std::fs::write(&file, bytes).unwrap();
        let target = Scratch::new();
        let restored = restore(&file, target.path());
        assert!(matches!(restored, Err(BackupError::Unusable { .. })), "{name}: {restored:?}");
        let left: Vec<_> = std::fs::read_dir(target.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["saggar.lock"], "{name}");
    }
    std::fs::write(&file, whole).unwrap();
    let target = Scratch::new();
    restore(&file, target.path()).unwrap();
    Store::open(target.path()).unwrap();
}

fn newer(scratch: &Scratch, whole: &[u8]) -> Vec<u8> {
    let path = scratch.join("newer.db");
    std::fs::write(&path, whole).unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    connection.close().unwrap();
    std::fs::read(&path).unwrap()
}
