//! Changes, reported as they happen.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use saggar_guest::{FileEventKind, FileReply, FileRequest, FileStage};

use super::Files;
use crate::host::{Host, Scratch};

fn watching(host: &mut Host, path: &str, recursive: bool) -> Files {
    let mut files = Files::start(host);
    assert_eq!(files.ask(FileRequest::Watch { path: path.into(), recursive }), FileReply::Watching);
    files
}

/// Waits for an event, skipping others.
fn wait_for(files: &mut Files, kind: FileEventKind, path: &[u8]) {
    let mut seen = Vec::new();
    loop {
        let reply = files.next();
        if matches!(&reply, FileReply::Event { kind: k, path: p, .. } if *k == kind && p == path) {
            return;
        }
        seen.push(reply);
        assert!(seen.len() < 1000, "no {kind:?} of {path:?} but {seen:?}");
    }
}

fn event(kind: FileEventKind, path: &[u8], is_directory: bool) -> FileReply {
    FileReply::Event { kind, path: path.to_vec(), is_directory }
}

#[test]
fn every_change_in_a_directory_is_told() {
    use FileEventKind::{Attributes, Created, Moved, Removed, Written};
    let scratch = Scratch::new();
    let mut host = Host::start();
    let mut files = watching(&mut host, scratch.text(), false);
    let odd = scratch.path().join(std::ffi::OsStr::from_bytes(b"\xff\n"));
    std::fs::write(&odd, b"x").unwrap();
    assert_eq!(files.next(), event(Created, b"\xff\n", false));
    assert_eq!(files.next(), event(Written, b"\xff\n", false));
    std::fs::set_permissions(&odd, PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(files.next(), event(Attributes, b"\xff\n", false));
    std::fs::rename(&odd, scratch.path().join("new")).unwrap();
    assert_eq!(files.next(), event(Moved, b"\xff\n", false));
    assert_eq!(files.next(), event(Created, b"new", false));
    std::fs::remove_file(scratch.path().join("new")).unwrap();
    assert_eq!(files.next(), event(Removed, b"new", false));
    std::fs::create_dir(scratch.path().join("d")).unwrap();
    assert_eq!(files.next(), event(Created, b"d", true));
    // Subdirectories were not requested.
    std::fs::write(scratch.path().join("d/x"), b"").unwrap();
    std::fs::remove_dir_all(scratch.path().join("d")).unwrap();
    assert_eq!(files.next(), event(Removed, b"d", true));
}

#[test]
fn asked_whether_it_has_told_everything_it_has() {
    use FileEventKind::{Created, Written};
    let scratch = Scratch::new();
    let mut host = Host::start();
    let mut files = watching(&mut host, scratch.text(), true);
    files.send(&FileRequest::Settle);
    assert_eq!(files.next(), FileReply::Done);
    for number in 0..2000 {
        std::fs::write(scratch.path().join(number.to_string()), b"x").unwrap();
    }
    files.send(&FileRequest::Settle);
    for number in 0..2000 {
        let name = number.to_string();
        assert_eq!(files.next(), event(Created, name.as_bytes(), false));
        assert_eq!(files.next(), event(Written, name.as_bytes(), false));
    }
    assert_eq!(files.next(), FileReply::Done);
    // A directory that already has contents when its creation is reported.
    std::fs::create_dir(scratch.path().join("d")).unwrap();
    std::fs::write(scratch.path().join("d/file"), b"x").unwrap();
    files.send(&FileRequest::Settle);
    let told: Vec<FileReply> =
        std::iter::from_fn(|| Some(files.next()).filter(|reply| *reply != FileReply::Done)).collect();
    assert_eq!(told[0], event(Created, b"d", true));
    assert!(told.contains(&event(Written, b"d/file", false)), "{told:?}");
    // Any other request ends it.
    files.send(&FileRequest::End);
    assert_eq!(files.try_next(), None);
}

#[test]
fn a_file_that_is_written_whole_is_told_as_made_and_written() {
    use FileEventKind::{Attributes, Created, Written};
    let scratch = Scratch::new();
    let mut host = Host::start();
    let mut watched = watching(&mut host, scratch.text(), false);
    let mut files = Files::start(&mut host);
    // A new file, then one that replaces it: its temporary name is not reported.
    for content in [&b"first"[..], b"second"] {
        let path = format!("{}/file", scratch.text()).into_bytes();
        files.send(&FileRequest::Write { path, mode: 0o640, parents: false, expected: None });
        files.send(&FileRequest::Data(content.to_vec()));
        assert_eq!(files.ask(FileRequest::End), FileReply::Done);
        watched.send(&FileRequest::Settle);
        for kind in [Created, Attributes, Written] {
            assert_eq!(watched.next(), event(kind, b"file", false));
        }
        assert_eq!(watched.next(), FileReply::Done);
        assert_eq!(std::fs::read(scratch.path().join("file")).unwrap(), content);
    }
}

#[test]
fn new_directories_are_watched_with_what_is_in_them() {
    use FileEventKind::{Created, Moved, Removed, Written};
    let scratch = Scratch::new();
    scratch.file("there/deep/file", b"", 0o644);
    let mut host = Host::start();
    let mut files = watching(&mut host, scratch.text(), true);
    std::fs::write(scratch.path().join("there/deep/file"), b"x").unwrap();
    wait_for(&mut files, Written, b"there/deep/file");
    // Created faster than a watch can follow.
    std::fs::create_dir_all(scratch.path().join("a/b/c/d")).unwrap();
    std::fs::write(scratch.path().join("a/b/c/d/file"), b"").unwrap();
    wait_for(&mut files, Created, b"a/b/c/d/file");
    std::fs::write(scratch.path().join("a/b/c/d/file"), b"x").unwrap();
    wait_for(&mut files, Written, b"a/b/c/d/file");
    // Moved within the watched tree: its paths change.
    std::fs::rename(scratch.path().join("a"), scratch.path().join("moved")).unwrap();
    wait_for(&mut files, Moved, b"a");
    wait_for(&mut files, Created, b"moved/b/c/d/file");
    std::fs::write(scratch.path().join("moved/b/c/d/file"), b"xy").unwrap();
    wait_for(&mut files, Written, b"moved/b/c/d/file");
    // Moved out of it: nothing is reported about it any more.
    let elsewhere = Scratch::new();
    std::fs::rename(scratch.path().join("moved"), elsewhere.path().join("moved")).unwrap();
    wait_for(&mut files, Moved, b"moved");
    std::fs::write(elsewhere.path().join("moved/b/new"), b"xy").unwrap();
    std::fs::remove_file(scratch.path().join("there/deep/file")).unwrap();
    assert_eq!(files.next(), event(Removed, b"there/deep/file", false));
}

#[test]
fn a_file_alone_can_be_watched_to_its_end() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"", 0o644);
    let mut host = Host::start();
    let mut files = watching(&mut host, &file, true);
    std::fs::write(&file, b"x").unwrap();
    wait_for(&mut files, FileEventKind::Written, b"");
    std::fs::remove_file(&file).unwrap();
    wait_for(&mut files, FileEventKind::Removed, b"");
}

#[test]
fn a_watch_ends_with_its_stream() {
    let scratch = Scratch::new();
    let mut host = Host::start();
    let mut files = watching(&mut host, scratch.text(), true);
    files.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(files.try_next(), None);
    let missing = FileRequest::Watch { path: b"/nonexistent".to_vec(), recursive: true };
    Files::start(&mut host).check_failed(missing, FileStage::Find, libc::ENOENT);
}

#[test]
fn more_events_than_the_kernel_keeps_are_told_as_lost() {
    let scratch = Scratch::new();
    let mut host = Host::start();
    let mut files = watching(&mut host, scratch.text(), false);
    // The host reads nothing, so the worker waits, and the kernel's queue fills.
    let (a, b) = (scratch.path().join("a"), scratch.path().join("b"));
    std::fs::write(&a, b"").unwrap();
    for _ in 0..20_000 {
        std::fs::rename(&a, &b).unwrap();
        std::fs::rename(&b, &a).unwrap();
    }
    loop {
        match files.next() {
            FileReply::Event { kind: FileEventKind::Overflow, path, .. } => break assert!(path.is_empty()),
            FileReply::Event { .. } => {}
            other => panic!("unexpected: {other:?}"),
        }
    }
}

#[test]
fn directories_that_may_not_be_read_are_left_out() {
    let scratch = Scratch::new();
    scratch.file("closed/x", b"", 0o644);
    std::fs::set_permissions(scratch.path().join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::create_dir(scratch.path().join("open")).unwrap();
    let mut host = Host::start();
    let mut nobody = Files::start_as_nobody(&mut host);
    let request = FileRequest::Watch { path: scratch.text().into(), recursive: true };
    assert_eq!(nobody.ask(request), FileReply::Watching);
    std::fs::write(scratch.path().join("closed/y"), b"").unwrap();
    std::fs::write(scratch.path().join("open/y"), b"").unwrap();
    assert_eq!(nobody.next(), event(FileEventKind::Created, b"open/y", false));
}
