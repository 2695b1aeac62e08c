//! Requests that are answered at once.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use saggar_guest::{FileEntry, FileKind, FileReply, FileRequest, FileStage, MetadataEntry};

use super::{Files, stat};
use crate::host::{Host, Scratch, give};

fn path(scratch: &Scratch, name: &str) -> Vec<u8> {
    format!("{}/{name}", scratch.text()).into_bytes()
}

#[test]
fn a_file_is_told_as_it_is() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"12345", 0o640);
    give(&file, 12, 34);
    symlink("file", scratch.path().join("link")).unwrap();
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let modified = std::fs::metadata(&file).unwrap();
    let expected = FileEntry {
        path: vec![],
        kind: FileKind::File,
        size: 5,
        mode: 0o640,
        uid: 12,
        gid: 34,
        modified_ns: modified.mtime() * 1_000_000_000 + modified.mtime_nsec(),
        link_target: None,
    };
    assert_eq!(files.ask(stat(&file)), FileReply::Entry(expected.clone()));
    let link = path(&scratch, "link");
    assert_eq!(files.ask(FileRequest::Stat { path: link.clone(), follow: true }), FileReply::Entry(expected));
    let FileReply::Entry(entry) = files.ask(FileRequest::Stat { path: link, follow: false }) else { panic!() };
    assert_eq!((entry.kind, entry.link_target), (FileKind::Link, Some(b"file".to_vec())));
    let FileReply::Entry(entry) = files.ask(stat(scratch.text())) else { panic!() };
    let size = std::fs::metadata(scratch.path()).unwrap().len();
    assert_eq!((entry.kind, entry.size, entry.mode), (FileKind::Directory, size, 0o755));
    let FileReply::Entry(entry) = files.ask(stat("/dev/null")) else { panic!() };
    assert_eq!(entry.kind, FileKind::Other);
    files.check_failed(stat("/nonexistent"), FileStage::Find, libc::ENOENT);
    files.check_failed(stat(&format!("{file}/x")), FileStage::Find, libc::ENOTDIR);
}

#[test]
fn requests_may_be_sent_ahead_and_are_answered_in_order() {
    let scratch = Scratch::new();
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    for number in 0..500 {
        files.send(&FileRequest::MakeDir { path: path(&scratch, &number.to_string()), parents: false, mode: 0o700 });
        files.send(&stat(&format!("{}/no-{number}", scratch.text())));
    }
    for _ in 0..500 {
        assert_eq!(files.next(), FileReply::Done);
        assert_eq!(files.next(), FileReply::Failed { errno: libc::ENOENT, stage: FileStage::Find });
    }
}

#[test]
fn directories_are_made_with_those_above_them() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"", 0o644);
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let make = |name: &str, parents| FileRequest::MakeDir { path: path(&scratch, name), parents, mode: 0o1777 };
    files.check_failed(make("a/b/c", false), FileStage::Create, libc::ENOENT);
    files.check_done(make("a/b/c", true));
    files.check_done(make("a/b/c", true));
    files.check_done(make("a/b/d/", true));
    files.check_failed(make("a", false), FileStage::Create, libc::EEXIST);
    files.check_failed(make("file", true), FileStage::Create, libc::EEXIST);
    files.check_failed(make("file/x/y", true), FileStage::Create, libc::ENOTDIR);
    let mode = |name: &str| std::fs::metadata(scratch.path().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("a"), mode("a/b"), mode("a/b/c")), (0o755, 0o755, 0o1777));
    // If the user may create nothing, an existing directory is enough.
    let mut nobody = Files::start_as_nobody(&mut host);
    let inside = |name: &str| FileRequest::MakeDir { path: path(&scratch, name), parents: true, mode: 0o755 };
    nobody.check_done(inside("a/b/c/x/y"));
    nobody.check_failed(inside("z/y"), FileStage::Parents, libc::EACCES);
    drop(file);
}

#[test]
fn names_change_and_links_are_made() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"content", 0o644);
    let odd = [scratch.path().as_os_str().as_bytes(), b"/\xff\xfe\n"].concat();
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    files.check_done(FileRequest::Move { from: file.clone().into(), to: odd.clone() });
    files.check_failed(FileRequest::Move { from: file.clone().into(), to: odd.clone() }, FileStage::Find, libc::ENOENT);
    assert_eq!(std::fs::read(std::ffi::OsStr::from_bytes(&odd)).unwrap(), b"content");
    let to_directory = FileRequest::Move { from: odd.clone(), to: scratch.text().into() };
    files.send(&to_directory);
    assert!(matches!(files.next(), FileReply::Failed { stage: FileStage::Publish, .. }));

    let link = FileRequest::Link { path: path(&scratch, "link"), target: b"\xff\xfe\n".to_vec() };
    files.check_done(link.clone());
    files.check_failed(link, FileStage::Create, libc::EEXIST);
    assert_eq!(std::fs::read(scratch.path().join("link")).unwrap(), b"content");

    files.check_done(FileRequest::SetMode { path: odd.clone(), mode: 0o1600 });
    assert_eq!(std::fs::metadata(std::ffi::OsStr::from_bytes(&odd)).unwrap().mode() & 0o7777, 0o1600);
    let mut nobody = Files::start_as_nobody(&mut host);
    nobody.check_failed(FileRequest::SetMode { path: odd.clone(), mode: 0o777 }, FileStage::Attributes, libc::EPERM);
    let owner = |uid, gid| FileRequest::SetOwner { path: odd.clone(), uid, gid };
    nobody.check_failed(owner(Some(0), None), FileStage::Attributes, libc::EPERM);
    // Nothing is to be changed, which anybody may ask.
    files.check_done(owner(None, None));
}

#[test]
fn a_file_keeps_notes() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"", 0o644);
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let note = |name: &[u8], value: &[u8]| MetadataEntry { name: name.to_vec(), value: value.to_vec() };
    let get = || FileRequest::Metadata { path: file.clone().into(), set: None };
    let set = |notes: &[MetadataEntry]| FileRequest::Metadata { path: file.clone().into(), set: Some(notes.to_vec()) };
    assert_eq!(files.ask(get()), FileReply::Metadata(vec![]));
    let notes = [note(b"a", b"1"), note(b"b \xff", b"\0\xff")];
    files.check_done(set(&notes));
    let FileReply::Metadata(mut got) = files.ask(get()) else { panic!() };
    got.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(got, notes);
    files.check_done(set(&[note(b"a", b"")]));
    assert_eq!(files.ask(get()), FileReply::Metadata(vec![note(b"a", b"")]));
    // Other attributes are neither changed nor reported.
    let name = std::ffi::CString::new(file.as_str()).unwrap();
    // SAFETY: names and value are C strings, and the length is within the value.
    let result = unsafe { libc::setxattr(name.as_ptr(), c"user.other".as_ptr(), c"x".as_ptr().cast(), 1, 0) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    files.check_done(set(&[]));
    assert_eq!(files.ask(get()), FileReply::Metadata(vec![]));
    // SAFETY: as above.
    assert_eq!(unsafe { libc::removexattr(name.as_ptr(), c"user.other".as_ptr()) }, 0);

    let missing = FileRequest::Metadata { path: path(&scratch, "missing"), set: None };
    files.check_failed(missing, FileStage::Find, libc::ENOENT);
    let mut nobody = Files::start_as_nobody(&mut host);
    nobody.check_failed(set(&[note(b"a", b"1")]), FileStage::Attributes, libc::EACCES);
}

/// The filter of a sandbox refuses attributes of the size of a long access control list: 4 more than a multiple of 8.
#[test]
fn a_long_note_is_stored_in_no_size_of_an_access_control_list() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"", 0o644);
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let name = std::ffi::CString::new(file.as_str()).unwrap();
    for length in 220..270 {
        let notes = vec![MetadataEntry { name: b"long".to_vec(), value: vec![b'x'; length] }];
        files.check_done(FileRequest::Metadata { path: file.clone().into(), set: Some(notes.clone()) });
        let mut list = [0u8; 256];
        // SAFETY: the name is a C string; the pointer and the length are those of one writable array.
        let listed = unsafe { libc::listxattr(name.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
        assert!(listed > 0, "{}", std::io::Error::last_os_error());
        // SAFETY: both names are C strings, the second with the NUL that the kernel put there; without a buffer only
        // the length is returned.
        let stored = unsafe { libc::getxattr(name.as_ptr(), list.as_ptr().cast(), std::ptr::null_mut(), 0) };
        assert!(stored >= length as isize && (stored <= 228 || stored % 8 != 4), "{length}: {stored}");
        assert_eq!(
            files.ask(FileRequest::Metadata { path: file.clone().into(), set: None }),
            FileReply::Metadata(notes)
        );
    }
}

#[test]
fn room_is_told() {
    let mut host = Host::start();
    let FileReply::Storage { total, free, inodes, inodes_free } =
        Files::start(&mut host).ask(FileRequest::Storage { path: b"/".to_vec() })
    else {
        panic!()
    };
    assert!(total > 0 && free <= total && inodes_free <= inodes);
}

#[test]
fn what_cannot_be_understood_ends_the_session_and_nothing_else() {
    let mut host = Host::start();
    let broken: [&[u8]; 4] =
        [&[0, 0, 0, 0, 0x01], &[0xff, 0xff, 0xff, 0xff, 0x21], &[1, 0, 0, 0, 0x21, 0], b"HTTP/1.1 200"];
    for bytes in broken {
        let mut files = Files::start(&mut host);
        std::io::Write::write_all(&mut files.stream, bytes).unwrap();
        files.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let last = files.try_next();
        let refusal = FileReply::Failed { errno: libc::EPROTO, stage: FileStage::Request };
        assert!(last.is_none() || last == Some(refusal), "{bytes:?}: {last:?}");
        assert_eq!(files.try_next(), None);
    }
    for out_of_place in [FileRequest::End, FileRequest::Abort, FileRequest::Data(vec![1])] {
        let mut files = Files::start(&mut host);
        files.check_failed(out_of_place, FileStage::Request, libc::EPROTO);
        assert_eq!(files.try_next(), None);
    }
    assert!(matches!(Files::start(&mut host).ask(stat("/")), FileReply::Entry(_)));
}

#[test]
fn a_session_is_the_user_and_nobody_else() {
    let scratch = Scratch::new();
    let file = scratch.file("secret", b"secret", 0o600);
    let mut host = Host::start();
    let mut nobody = Files::start_as_nobody(&mut host);
    nobody.check_failed(
        FileRequest::Read { path: file.clone().into(), offset: 0, length: None },
        FileStage::Find,
        libc::EACCES,
    );
    nobody.check_failed(
        FileRequest::Remove { path: file.clone().into(), recursive: false },
        FileStage::Remove,
        libc::EACCES,
    );
    // A session as a user that is not available is refused.
    let single = crate::identity::start_single(&scratch, "--bounding-set=-all");
    let mut single = single;
    let mut refused = Files::start(&mut single);
    assert_eq!(refused.next(), FileReply::Failed { errno: libc::EPERM, stage: FileStage::Identity });
    assert_eq!(refused.try_next(), None);
    assert!(matches!(Files::start_as_nobody(&mut single).ask(stat("/")), FileReply::Entry(_)));
}
