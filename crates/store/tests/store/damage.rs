//! Damage is reported, and never read as valid data.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use rusqlite::Connection;
use saggar_domain::{ProjectId, RunState};
use saggar_store::{BackupError, Blobs, BlockKind, Error, JsonText, NewLetter, OpenError, Store, accept_loss, check};

use crate::fixture::{NOW, Scratch, append, part, run, store_with_project, take_all};

/// Changes the database behind the store's back.
fn edit(scratch: &Scratch, sql: &str) {
    let connection = Connection::open(scratch.join("saggar.db")).unwrap();
    assert!(connection.execute(sql, []).unwrap() > 0, "{sql}");
}

#[tokio::test]
async fn an_entry_that_is_not_what_was_written_is_never_read() {
    let cases = [
        ("UPDATE journal SET entry = 'sEcond' WHERE seq = 2", "entry 2 of RUN does not match its checksum"),
        ("UPDATE journal SET sum = sum + 1 WHERE seq = 3", "entry 3 of RUN does not match its checksum"),
        ("DELETE FROM journal WHERE seq = 2", "entry 2 of RUN is missing"),
        ("DELETE FROM journal WHERE seq = 3", "entry 3 of RUN is missing"),
        ("UPDATE journal SET seq = 4 WHERE seq = 3", "entry 3 of RUN is missing"),
    ];
    for (sql, expected) in cases {
        let scratch = Scratch::new();
        let (store, project) = store_with_project(&scratch).await;
        let id = run(&store, &project, "first", None).await;
        let epoch = take_all(&store, "w").await[0].epoch;
        store.append(append(&id, epoch, 1, &["second", "third"], RunState::Running)).await.unwrap();
        assert_eq!(store.journal_after(id.clone(), 0).await.unwrap().len(), 3);
        edit(&scratch, sql);
        let what = expected.replace("RUN", id.as_str());
        assert_eq!(store.journal_after(id, 0).await, Err(Error::Corrupt { what }), "{sql}");
    }
}

#[tokio::test]
async fn a_damaged_run_is_blocked_by_its_holder_alone_and_can_be_ended() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let parent = run(&store, &project, "first", None).await;
    let id = run(&store, &project, "first", Some((parent.clone(), 2))).await;
    let epoch = take_all(&store, "w").await.into_iter().find(|taken| taken.run.id == id).unwrap().epoch;
    store.block_damaged(id.clone(), epoch + 1, "it is another's".to_owned()).await.unwrap();
    assert_eq!(store.run_of_any(id.clone()).await.unwrap().unwrap().block, None);
    store.block_damaged(id.clone(), epoch, "entry 1 can't be read".to_owned()).await.unwrap();
    let row = store.run_of_any(id.clone()).await.unwrap().unwrap();
    let block = row.block.unwrap();
    assert_eq!((row.state, row.holder, block.kind), (RunState::Parked, None, BlockKind::Damaged));
    assert_eq!(block.reason, "entry 1 can't be read");

    let end = |project: ProjectId| {
        let (outcome, body) = (JsonText::parse(r#"{"outcome":"cancelled"}"#).unwrap(), JsonText::parse("1").unwrap());
        let word = NewLetter { project: project.clone(), run: parent.clone(), id: "@child".to_owned(), at: NOW, body };
        store.end_damaged(project, id.clone(), outcome, NOW, Some(word))
    };
    assert_eq!(end(ProjectId::from_random([9; 16])).await, Ok(false), "only its own project ends it");
    assert_eq!(end(project.clone()).await, Ok(true));
    assert_eq!(end(project.clone()).await, Ok(false));
    let row = store.run_of_any(id.clone()).await.unwrap().unwrap();
    assert_eq!((row.state, row.block, row.wake_at), (RunState::Finished, None, None));
    assert_eq!(store.letters(parent.clone()).await.unwrap().len(), 1, "the parent is told");
}

#[tokio::test]
async fn a_store_that_is_gone_is_not_made_anew() {
    let gone = |scratch: &Scratch, expected: &str| {
        let error = Store::open(scratch.path()).unwrap_err();
        assert!(matches!(&error, OpenError::Gone { what } if *what == expected), "{error:?}");
        assert!(error.help().contains("saggar restore"), "{}", error.help());
    };
    let scratch = Scratch::new();
    drop(store_with_project(&scratch).await);
    let whole = std::fs::read(scratch.join("saggar.db")).unwrap();
    std::fs::write(scratch.join("saggar.db"), "").unwrap();
    gone(&scratch, "is empty");
    std::fs::remove_file(scratch.join("saggar.db")).unwrap();
    gone(&scratch, "is missing");
    assert!(!scratch.join("saggar.db").exists());
    std::fs::write(scratch.join("saggar.db"), whole).unwrap();
    scratch.open();
    // The directory of a server that had no marker yet.
    let old = Scratch::new();
    std::fs::write(old.join("signing.key"), [7; 32]).unwrap();
    gone(&old, "is missing");
}

#[test]
fn a_directory_that_never_had_a_store_is_not_taken_for_a_loss() {
    let scratch = Scratch::new();
    let missing = scratch.join("missing");
    for directory in [scratch.path(), &missing] {
        let checked = check(directory, |_, _, _| None, |_| None).map(drop);
        let joined = Store::join(directory).map(drop);
        for outcome in [checked, joined] {
            assert!(matches!(outcome, Err(OpenError::NoStore)), "{outcome:?}");
        }
        assert!(matches!(accept_loss(directory), Err(BackupError::NoStore)));
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "something was created");
    // One that had a store says so.
    std::fs::write(scratch.join("signing.key"), [7; 32]).unwrap();
    let checked = check(scratch.path(), |_, _, _| None, |_| None);
    assert!(matches!(checked, Err(OpenError::Gone { what: "is missing" })), "{checked:?}");
}

const LEAVE: &str = "SAGGAR_STORE_LEAVE";
/// Set where the log is folded before the runs are made.
const FOLD: &str = "SAGGAR_STORE_FOLD";
const RUNS: usize = 12;
const LOG: &str = "saggar.db-wal";
const INDEX: &str = "saggar.db-shm";

/// The process that the next tests kill; does nothing by itself.
#[test]
fn part_that_leaves_a_log() {
    let Some(directory) = std::env::var_os(LEAVE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = Store::open(Path::new(&directory)).unwrap();
    runtime.block_on(async {
        let project = store.default_project(ProjectId::from_random([1; 16]), NOW).await.unwrap().id;
        if std::env::var_os(FOLD).is_some() {
            // More than the longest log.
            for number in 0..20u8 {
                store.put_blob(vec![number; 1 << 20], NOW).await.unwrap();
            }
        }
        for _ in 0..RUNS {
            run(&store, &project, "first", None).await;
        }
    });
    println!("\nleft");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The files of a store whose process was killed; every run in it was acknowledged.
fn left() -> BTreeMap<String, Vec<u8>> {
    left_by(&mut part_that_leaves)
}

fn part_that_leaves(directory: &Path) -> std::process::Command {
    part("damage::part_that_leaves_a_log", LEAVE, directory)
}

fn left_by(command: &mut dyn FnMut(&Path) -> std::process::Command) -> BTreeMap<String, Vec<u8>> {
    let scratch = Scratch::new();
    let mut child = command(scratch.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "left"));
    child.kill().unwrap();
    child.wait().unwrap();
    let files = std::fs::read_dir(scratch.path()).unwrap().map(Result::unwrap);
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

fn with(files: &BTreeMap<String, Vec<u8>>) -> Scratch {
    let scratch = Scratch::new();
    for (name, bytes) in files {
        std::fs::write(scratch.join(name), bytes).unwrap();
        std::fs::set_permissions(scratch.join(name), PermissionsExt::from_mode(0o600)).unwrap();
    }
    scratch
}

async fn runs_in(store: &Store) -> usize {
    take_all(store, "w").await.len()
}

/// Checks that opening is refused and changes no file except the lock.
fn check_refused(files: &BTreeMap<String, Vec<u8>>, case: &str) {
    let scratch = with(files);
    for opened in [Store::open(scratch.path()), Store::join(scratch.path())] {
        let error = opened.map(|_| ()).unwrap_err();
        assert!(matches!(error, OpenError::LogDamaged { .. }), "{case}: {error:?}");
    }
    for (name, bytes) in files.iter().filter(|(name, _)| *name != "saggar.lock") {
        assert!(std::fs::read(scratch.join(name)).unwrap() == *bytes, "{case}: {name} was changed");
    }
}

/// Offsets of the log's frames.
fn frames(files: &BTreeMap<String, Vec<u8>>) -> Vec<usize> {
    (32..files[LOG].len()).step_by(24 + 4096).collect()
}

fn flipped(files: &BTreeMap<String, Vec<u8>>, at: usize) -> BTreeMap<String, Vec<u8>> {
    let mut files = files.clone();
    files.get_mut(LOG).unwrap()[at] ^= 1;
    files
}

#[tokio::test]
async fn a_bit_that_flips_anywhere_in_the_log_stops_the_start() {
    let files = left();
    let frames = frames(&files);
    assert!(frames.len() > RUNS, "{}", frames.len());
    assert_eq!(runs_in(&with(&files).open()).await, RUNS, "nothing is wrong with it");
    check_refused(&flipped(&files, 17), "the header");
    // In the frame's header, and in its page.
    for (frame, at) in frames.iter().zip([5, 9, 17, 24 + 100, 24 + 4095].into_iter().cycle()) {
        check_refused(&flipped(&files, frame + at), &format!("{frame} + {at}"));
    }
}

/// Its index is lost or from an earlier boot: the frames verify themselves, except those of the last transaction.
#[tokio::test]
async fn a_bit_that_flips_before_the_last_transactions_stops_the_start_without_the_index_too() {
    let files = left();
    let mut no_index = files.clone();
    no_index.remove(INDEX);
    let mut rebooted = files.clone();
    let state = String::from_utf8(rebooted["saggar.state"].clone()).unwrap();
    let boot = state.find("\"boot\":\"").unwrap() + 8;
    rebooted.get_mut("saggar.state").unwrap()[boot] = b'x';
    for files in [no_index, rebooted] {
        assert_eq!(runs_in(&with(&files).open()).await, RUNS, "nothing is wrong with it");
        check_refused(&flipped(&files, 17), "the header");
        for frame in &frames(&files)[..frames(&files).len() / 2] {
            check_refused(&flipped(&files, frame + 24 + 100), &format!("{frame}"));
        }
    }
}

#[test]
fn a_log_that_is_cut_or_taken_away_stops_the_start() {
    let files = left();
    for cut in [1, 5000, files[LOG].len() / 2, files[LOG].len()] {
        let mut files = files.clone();
        let log = files.get_mut(LOG).unwrap();
        log.truncate(log.len() - cut);
        check_refused(&files, &format!("cut by {cut}"));
    }
    let mut files = files;
    files.remove(LOG);
    check_refused(&files, "the log is gone");
    files.remove(INDEX);
    check_refused(&files, "so is its index");
}

/// As its shell does with a store whose process was killed.
fn open_with_another_program(scratch: &Scratch) {
    let connection = Connection::open(scratch.join("saggar.db")).unwrap();
    let runs: i64 = connection.query_row("SELECT count(*) FROM run", [], |row| row.get(0)).unwrap();
    assert_eq!(usize::try_from(runs).unwrap(), RUNS);
    connection.close().unwrap();
    assert!(!scratch.join(LOG).exists(), "it has folded the log and removed it");
}

#[tokio::test]
async fn a_log_that_another_program_folded_is_not_lost() {
    let mut fold = |directory: &Path| {
        let mut command = part_that_leaves(directory);
        command.env(FOLD, "1");
        command
    };
    for files in [left(), left_by(&mut fold)] {
        let scratch = with(&files);
        open_with_another_program(&scratch);
        assert_eq!(check(scratch.path(), |_, _, _| None, |_| None).unwrap().findings, []);
        assert!(!accept_loss(scratch.path()).unwrap(), "there is nothing to accept");
        assert_eq!(runs_in(&scratch.open()).await, RUNS, "no run is blocked");
        // What only looks like it: the log is gone, and what was in it is not in the database.
        let mut files = files;
        files.remove(LOG);
        files.remove(INDEX);
        check_refused(&files, "the log was taken away");
    }
}

#[tokio::test]
async fn lost_writes_can_be_accepted_and_open_runs_then_wait_for_a_person() {
    let files = left();
    let frames = frames(&files);
    let damaged = flipped(&files, frames[frames.len() - 1] + 100);
    let scratch = with(&damaged);
    assert!(accept_loss(scratch.path()).unwrap());
    assert!(
        std::fs::read(scratch.join("saggar.db-wal.damaged")).unwrap() == damaged[LOG],
        "what is left of it is kept"
    );
    assert!(!accept_loss(scratch.path()).unwrap(), "nothing more is lost");
    let store = scratch.open();
    assert_eq!(runs_in(&store).await, 0, "they may have done more than is known here");
    assert!(!accept_loss(with(&files).path()).unwrap(), "what is whole stays as it is");
}

#[tokio::test]
async fn a_check_finds_what_is_damaged_and_changes_nothing() {
    let findings = |scratch: &Scratch| {
        let checked = check(scratch.path(), |_, _, _| None, |_| None).unwrap();
        checked.findings.into_iter().map(|finding| format!("{} {}", finding.about, finding.what)).collect::<Vec<_>>()
    };
    let files = left();
    let whole = with(&files);
    assert_eq!(findings(&whole), Vec::<String>::new());
    let damaged = with(&flipped(&files, frames(&files)[2] + 100));
    assert!(findings(&damaged).iter().any(|found| found.starts_with("saggar.db-wal acknowledged writes are lost")));

    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (one, other) = (run(&store, &project, "first", None).await, run(&store, &project, "first", None).await);
    let hash = store.put_blob(b"a blob".to_vec(), NOW).await.unwrap();
    assert_eq!(findings(&scratch), Vec::<String>::new(), "beside a process that has it open");
    edit(&scratch, &format!("UPDATE journal SET entry = 'fIrst' WHERE run_id = '{one}'"));
    edit(&scratch, "UPDATE blob SET bytes = x'00'");
    std::fs::write(scratch.join("saggar.db.partial"), "").unwrap();
    let found = findings(&scratch);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.contains(&format!("{one} the store is damaged: entry 1 of {one} does not match its checksum")));
    assert!(found.contains(&format!("blob {} no longer matches its hash", hash.to_hex())));
    let judged =
        check(scratch.path(), |row, entries, _| Some(format!("{} entries of {}", entries.len(), row.id)), |_| None)
            .unwrap();
    assert!(judged.findings.iter().any(|finding| finding.what == format!("1 entries of {other}")));
}

#[tokio::test]
async fn a_check_sees_each_run_at_one_moment_beside_a_server_that_writes() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let hash = store.put_blob(b"a blob".to_vec(), NOW).await.unwrap();
    run(&store, &project, "first", None).await;
    let mut seen = Vec::new();
    let judge = |_: &_, _: &[_], blobs: &Blobs<'_>| {
        // The check reads a run and its blobs in one transaction, so it does not see this deletion.
        edit(&scratch, "DELETE FROM blob");
        seen.push(blobs.has(hash));
        None
    };
    check(scratch.path(), judge, |_| None).unwrap();
    assert_eq!(seen, [true]);
}
