//! Lists, walks and removals of whole trees.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};

use saggar_guest::{FileEntry, FileKind, FileReply, FileRequest, FileStage};

use super::{Files, names};
use crate::host::{Host, NOBODY, Scratch, give};

/// Deeper than any stack, path or descriptor limit.
const DEEP: usize = 10_000;

fn list(path: &str, depth: u32, most: u32) -> FileRequest {
    FileRequest::List { path: path.into(), depth, most }
}

fn walk(path: &str, most: u32) -> FileRequest {
    FileRequest::Walk { path: path.into(), most }
}

fn remove(path: &str, recursive: bool) -> FileRequest {
    FileRequest::Remove { path: path.into(), recursive }
}

fn entries(replies: Vec<FileReply>) -> Vec<FileEntry> {
    let entries = replies.into_iter().map(|reply| match reply {
        FileReply::Entry(entry) => entry,
        other => panic!("not an entry: {other:?}"),
    });
    entries.collect()
}

fn paths(replies: Vec<FileReply>) -> Vec<String> {
    let mut paths: Vec<String> =
        entries(replies).into_iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect();
    paths.sort();
    paths
}

/// Creates nested directories, with a file at the bottom.
fn make_deep(scratch: &Scratch) -> String {
    let top = format!("{}/deep", scratch.text());
    std::fs::create_dir(&top).unwrap();
    let mut here: OwnedFd = std::fs::File::open(&top).unwrap().into();
    for _ in 0..DEEP {
        // SAFETY: the names are C strings; the returned descriptor has no other owner.
        here = unsafe {
            assert_eq!(libc::mkdirat(here.as_raw_fd(), c"d".as_ptr(), 0o755), 0);
            OwnedFd::from_raw_fd(libc::openat(here.as_raw_fd(), c"d".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY))
        };
    }
    // SAFETY: as above.
    let file = unsafe { libc::openat(here.as_raw_fd(), c"f".as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o644) };
    // SAFETY: as above.
    std::io::Write::write_all(&mut unsafe { std::fs::File::from_raw_fd(file) }, b"bottom").unwrap();
    top
}

#[test]
fn a_directory_is_listed_as_deep_as_asked() {
    let scratch = Scratch::new();
    scratch.file("a/b/c", b"", 0o644);
    scratch.file("a/x", b"", 0o644);
    symlink("/", scratch.path().join("a/root")).unwrap();
    symlink("a", scratch.path().join("top")).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\n");
    std::fs::write(scratch.path().join(odd), b"").unwrap();
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let top = scratch.text();
    assert_eq!(paths(files.collect(list(top, 0, 10))), Vec::<String>::new());
    assert_eq!(paths(files.collect(list(top, 1, 10))), ["a", "top", "\u{fffd}\n"]);
    assert_eq!(paths(files.collect(list(top, 2, 10))), ["a", "a/b", "a/root", "a/x", "top", "\u{fffd}\n"]);
    // Links are followed at the top and nowhere below.
    let through = format!("{top}/top");
    assert_eq!(paths(files.collect(list(&through, u32::MAX, 10))), ["b", "b/c", "root", "x"]);
    let found = entries(files.collect(list(top, 1, 10)));
    assert!(found.iter().any(|entry| entry.path == b"\xff\n" && entry.kind == FileKind::File));
    let link = entries(files.collect(list(&through, 1, 10))).into_iter().find(|entry| entry.path == b"root").unwrap();
    assert_eq!((link.kind, link.link_target), (FileKind::Link, Some(b"/".to_vec())));

    files.check_failed(list("/nonexistent", 1, 10), FileStage::Find, libc::ENOENT);
    files.check_failed(list(&format!("{top}/a/x"), 1, 10), FileStage::Find, libc::ENOTDIR);
    files.send(&list(top, u32::MAX, 3));
    for _ in 0..3 {
        assert!(matches!(files.next(), FileReply::Entry(_)));
    }
    assert_eq!(files.next(), FileReply::Failed { errno: libc::EOVERFLOW, stage: FileStage::Bound });
}

#[test]
fn a_walk_brings_everything_with_its_content() {
    let scratch = Scratch::new();
    let big: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
    scratch.file("a/big", &big, 0o600);
    scratch.file("a/empty", b"", 0o644);
    scratch.file("a/b/small", b"small", 0o755);
    symlink("small", scratch.path().join("a/b/link")).unwrap();
    let fifo = std::ffi::CString::new(format!("{}/a/fifo", scratch.text())).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let mut seen: BTreeMap<String, (FileKind, Vec<u8>)> = BTreeMap::new();
    let mut last = String::new();
    for reply in files.collect(walk(&format!("{}/a", scratch.text()), 100)) {
        match reply {
            FileReply::Entry(entry) => {
                last = String::from_utf8(entry.path).unwrap();
                let parent = last.rsplit_once('/').map_or("", |(parent, _)| parent);
                assert!(last.is_empty() || seen.contains_key(parent), "{last} comes after its directory");
                assert!(seen.insert(last.clone(), (entry.kind, vec![])).is_none());
            }
            FileReply::Data(bytes) => seen.get_mut(&last).unwrap().1.extend(bytes),
            other => panic!("unexpected: {other:?}"),
        }
    }
    let expected: BTreeMap<String, (FileKind, Vec<u8>)> = [
        ("", FileKind::Directory, vec![]),
        ("b", FileKind::Directory, vec![]),
        ("b/link", FileKind::Link, vec![]),
        ("b/small", FileKind::File, b"small".to_vec()),
        ("big", FileKind::File, big),
        ("empty", FileKind::File, vec![]),
        ("fifo", FileKind::Other, vec![]),
    ]
    .into_iter()
    .map(|(path, kind, content)| (path.to_owned(), (kind, content)))
    .collect();
    assert!(seen == expected, "{:?}", seen.keys());

    // A single file is a tree, too.
    let alone = files.collect(walk(&format!("{}/a/b/small", scratch.text()), 1));
    assert!(matches!(&alone[..], [FileReply::Entry(_), FileReply::Data(bytes)] if bytes == b"small"));
}

#[test]
fn what_cannot_be_read_is_skipped_and_told() {
    let scratch = Scratch::new();
    scratch.file("closed/x", b"", 0o644);
    scratch.file("secret", b"secret", 0o600);
    scratch.file("open", b"open", 0o644);
    std::fs::set_permissions(scratch.path().join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    let mut host = Host::start();
    let mut nobody = Files::start_as_nobody(&mut host);
    let skipped = |replies: &[FileReply]| -> Vec<(String, i32)> {
        let skipped = replies.iter().filter_map(|reply| match reply {
            FileReply::Skipped { path, errno } => Some((String::from_utf8_lossy(path).into_owned(), *errno)),
            _ => None,
        });
        let mut skipped: Vec<_> = skipped.collect();
        skipped.sort();
        skipped
    };
    let walked = nobody.collect(walk(scratch.text(), 100));
    let both = [("closed".to_owned(), libc::EACCES), ("secret".to_owned(), libc::EACCES)];
    assert_eq!(skipped(&walked), both);
    assert!(walked.contains(&FileReply::Data(b"open".to_vec())));
    let listed = nobody.collect(list(scratch.text(), 2, 100));
    assert_eq!(skipped(&listed), both[..1]);
}

#[test]
fn trees_deeper_than_any_path_are_listed_walked_and_removed() {
    let scratch = Scratch::in_memory();
    let top = make_deep(&scratch);
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let listed = entries(files.collect(list(&top, u32::MAX, u32::MAX)));
    assert_eq!(listed.len(), DEEP + 1);
    let deepest = listed.iter().map(|entry| entry.path.len()).max().unwrap();
    assert_eq!(deepest, 2 * DEEP + 1);
    assert_eq!(paths(files.collect(list(&top, 3, 100))), ["d", "d/d", "d/d/d"]);

    let walked = files.collect(walk(&top, u32::MAX));
    assert_eq!(walked.len(), DEEP + 3);
    assert_eq!(walked.last(), Some(&FileReply::Data(b"bottom".to_vec())));

    files.check_failed(remove(&top, false), FileStage::Remove, libc::ENOTEMPTY);
    files.check_done(remove(&top, true));
    assert_eq!(names(scratch.path()), Vec::<String>::new());
}

#[test]
fn removing_takes_what_is_named_and_nothing_a_link_leads_to() {
    let scratch = Scratch::new();
    let path = |name: &str| format!("{}/{name}", scratch.text());
    scratch.file("kept/file", b"", 0o644);
    scratch.file("tree/a/b", b"", 0o644);
    scratch.file("tree/c", b"", 0o444);
    std::fs::create_dir(path("tree/empty")).unwrap();
    symlink(path("kept"), path("tree/link")).unwrap();
    symlink(path("kept"), path("link")).unwrap();
    for number in 0..3000 {
        std::fs::write(path(&format!("tree/a/{number}")), b"").unwrap();
    }
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    files.check_done(remove(&path("tree"), true));
    files.check_done(remove(&path("link"), true));
    assert_eq!(
        (names(scratch.path()), names(&scratch.path().join("kept"))),
        (vec!["kept".into()], vec!["file".into()])
    );
    files.check_done(remove(&path("kept/file"), false));
    files.check_done(remove(&path("kept"), false));
    files.check_failed(remove(&path("kept"), true), FileStage::Find, libc::ENOENT);

    // What may not be removed stays, and is reported.
    scratch.file("mine/theirs/file", b"", 0o644);
    give(path("mine"), NOBODY, NOBODY);
    let mut nobody = Files::start_as_nobody(&mut host);
    nobody.check_failed(remove(&path("mine/theirs"), true), FileStage::Remove, libc::EACCES);
    assert_eq!(names(&scratch.path().join("mine/theirs")), ["file"]);
}
