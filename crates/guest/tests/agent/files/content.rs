//! Reading and writing content.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Instant;

use saggar_guest::{DATA_MAX, FileReply, FileRequest, FileStage, HEADER_LEN};

use super::{Files, names, writing};
use crate::host::{Host, NOBODY, Scratch, give, wait_until};

fn reading(path: &str) -> FileRequest {
    FileRequest::Read { path: path.into(), offset: 0, length: None }
}

#[test]
fn any_part_can_be_read() {
    let content: Vec<u8> = (0..1_000_000u32).map(|number| (number % 251) as u8).collect();
    let scratch = Scratch::new();
    let file = scratch.file("file", &content, 0o644);
    let empty = scratch.file("empty", b"", 0o644);
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let end = content.len();
    let cases: [(u64, Option<u64>, std::ops::Range<usize>); 7] = [
        (0, None, 0..end),
        (10, None, 10..end),
        (10, Some(5), 10..15),
        (0, Some(0), 0..0),
        (999_999, Some(u64::MAX), end - 1..end),
        (1_000_000, None, end..end),
        (u64::MAX, None, end..end),
    ];
    for (offset, length, expected) in cases {
        let (entry, got) = files.read_part(&file, offset, length);
        assert_eq!(entry.size, end as u64);
        assert!(got == content[expected.clone()], "{offset} {length:?}: {} bytes", got.len());
    }
    assert_eq!(files.read(&empty), b"");
    // Files without a size of their own are read to their end.
    assert!(files.read("/proc/self/status").starts_with(b"Name:"));
    files.check_failed(reading("/nonexistent"), FileStage::Find, libc::ENOENT);
}

#[test]
fn nothing_but_a_regular_file_is_opened_and_nothing_waits() {
    let scratch = Scratch::new();
    let fifo = format!("{}/fifo", scratch.text());
    let name = std::ffi::CString::new(fifo.as_str()).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
    let socket = format!("{}/socket", scratch.text());
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let link = format!("{}/link", scratch.text());
    symlink(&fifo, &link).unwrap();
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let special = [fifo.as_str(), &socket, &link, "/dev/zero", "/dev/null", "/dev/full"];
    for path in special
        .into_iter()
        .map(|path| (path, libc::EINVAL))
        .chain([(scratch.text(), libc::EISDIR), ("/", libc::EISDIR)])
    {
        let (path, errno) = path;
        files.check_failed(reading(path), FileStage::NotRegular, errno);
        files.check_failed(writing(path), FileStage::NotRegular, errno);
        // The rest of it is not answered.
        files.send(&FileRequest::Data(vec![1]));
        files.send(&FileRequest::Abort);
    }
    for path in [format!("{}/", scratch.text()), format!("{}/x/..", scratch.text())] {
        assert!(matches!(files.ask(writing(&path)), FileReply::Failed { .. }), "{path}");
        files.send(&FileRequest::End);
    }
    assert!(!files.read("/proc/self/comm").is_empty());
}

#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let path = format!("{}/file", scratch.text());
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let content: Vec<u8> = (0..500_000u32).map(|number| (number % 251) as u8).collect();
    // Nothing is visible before its end.
    files.send(&writing(&path));
    files.send(&FileRequest::Data(content.clone()[..100_000].to_vec()));
    files.send(&FileRequest::Abort);
    assert_eq!(files.next(), FileReply::Done);
    assert_eq!(names(scratch.path()), Vec::<String>::new());

    assert_eq!(files.write(&path, &content), FileReply::Done);
    assert!(std::fs::read(&path).unwrap() == content);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(names(scratch.path()), ["file"]);

    // A process that has the old file open keeps it, and an existing file keeps its permissions and its owner.
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    let mut old = std::fs::File::open(&path).unwrap();
    assert_eq!(files.write(&path, b"new"), FileReply::Done);
    let mut kept = Vec::new();
    std::io::Read::read_to_end(&mut old, &mut kept).unwrap();
    assert!(kept == content);
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o604);
    assert_eq!(files.write(&path, b""), FileReply::Done);
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    assert_eq!(names(scratch.path()), ["file"]);

    // The host breaks off in the middle.
    std::fs::write(&path, b"old").unwrap();
    files.send(&writing(&path));
    files.send(&FileRequest::Data(content[..100_000].to_vec()));
    let mut frame = FileRequest::data_header(100_000).to_vec();
    frame.extend_from_slice(&content[..500]);
    files.stream.write_all(&frame).unwrap();
    files.stream.shutdown(std::net::Shutdown::Both).unwrap();
    drop(files);
    // Another session sees the old content, however far the first has come.
    let mut files = Files::start(&mut host);
    wait_until("nothing is left over", || names(scratch.path()) == ["file"]);
    assert_eq!(files.read(&path), b"old");
}

#[test]
fn a_write_that_fails_says_so_once_and_the_session_goes_on() {
    let scratch = Scratch::new();
    let path = |name: &str| format!("{}/{name}", scratch.text());
    scratch.file("readonly", b"old", 0o444);
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    let rest = |files: &mut Files, last| {
        files.send(&FileRequest::Data(vec![1; 10]));
        files.send(&last);
    };
    for last in [FileRequest::End, FileRequest::Abort] {
        files.check_failed(writing(&path("a/b")), FileStage::Find, libc::ENOENT);
        rest(&mut files, last);
    }
    let expecting =
        |bytes| FileRequest::Write { path: path("sized").into(), mode: 0o644, parents: false, expected: Some(bytes) };
    for (bytes, end) in [(9, FileRequest::End), (9, FileRequest::Abort), (11, FileRequest::End)] {
        files.send(&expecting(bytes));
        rest(&mut files, end);
        assert_eq!(files.next(), FileReply::Failed { errno: libc::EMSGSIZE, stage: FileStage::Content });
    }
    files.send(&expecting(10));
    rest(&mut files, FileRequest::End);
    assert_eq!(files.next(), FileReply::Done);
    files.check_failed(expecting(u64::MAX), FileStage::Content, libc::ENOSPC);
    rest(&mut files, FileRequest::Abort);
    assert_eq!(names(scratch.path()), ["readonly", "sized"]);

    let mut nobody = Files::start_as_nobody(&mut host);
    nobody.check_failed(writing(&path("new")), FileStage::Create, libc::EACCES);
    rest(&mut nobody, FileRequest::End);
    nobody.check_failed(writing(&path("readonly")), FileStage::Find, libc::EACCES);
    rest(&mut nobody, FileRequest::End);
    let parents = FileRequest::Write { path: path("x/y").into(), mode: 0o644, parents: true, expected: None };
    nobody.check_failed(parents, FileStage::Parents, libc::EACCES);
    rest(&mut nobody, FileRequest::Abort);
    // Anything else in the middle is out of place.
    files.send(&writing(&path("open")));
    files.send(&FileRequest::Data(vec![1; 10]));
    files.check_failed(super::stat("/"), FileStage::Request, libc::EPROTO);
    assert_eq!(files.try_next(), None);
    assert_eq!(names(scratch.path()), ["readonly", "sized"]);
}

#[test]
fn directories_above_are_made_and_links_followed() {
    let scratch = Scratch::new();
    let path = |name: &str| format!("{}/{name}", scratch.text());
    scratch.file("real/file", b"old", 0o600);
    symlink("real/file", path("link")).unwrap();
    symlink(path("link"), path("link2")).unwrap();
    symlink("real/made", path("dangling")).unwrap();
    symlink("loop", path("loop")).unwrap();
    let mut host = Host::start();
    let mut files = Files::start(&mut host);
    assert_eq!(files.write(&path("link2"), b"new"), FileReply::Done);
    assert_eq!(std::fs::read(path("real/file")).unwrap(), b"new");
    assert!(std::fs::symlink_metadata(path("link2")).unwrap().is_symlink());
    assert!(std::fs::symlink_metadata(path("link")).unwrap().is_symlink());
    assert_eq!(files.write(&path("dangling"), b"made"), FileReply::Done);
    assert_eq!(std::fs::read(path("real/made")).unwrap(), b"made");
    files.check_failed(writing(&path("loop")), FileStage::Find, libc::ELOOP);
    files.send(&FileRequest::Abort);

    let deep = FileRequest::Write { path: path("x/y/z").into(), mode: 0o600, parents: true, expected: None };
    files.send(&deep);
    files.check_done(FileRequest::End);
    assert_eq!(std::fs::metadata(path("x/y/z")).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn where_no_file_can_be_made_an_existing_one_is_written_in_place() {
    let scratch = Scratch::new();
    let file = scratch.file("file", b"something longer", 0o644);
    give(&file, NOBODY, NOBODY);
    let inode = std::fs::metadata(&file).unwrap().ino();
    let mut host = Host::start();
    let mut nobody = Files::start_as_nobody(&mut host);
    // Aborted before any content came: no change.
    nobody.send(&writing(&file));
    nobody.check_done(FileRequest::Abort);
    assert_eq!(std::fs::read(&file).unwrap(), b"something longer");
    assert_eq!(nobody.write(&file, b"short"), FileReply::Done);
    assert_eq!(std::fs::read(&file).unwrap(), b"short");
    assert_eq!(nobody.write(&file, b""), FileReply::Done);
    let after = std::fs::metadata(&file).unwrap();
    assert_eq!((after.len(), after.ino(), after.mode() & 0o777), (0, inode, 0o644));

    // A file of another user, in a directory of one's own, keeps its owner.
    let directory = scratch.path().join("own");
    std::fs::create_dir(&directory).unwrap();
    give(&directory, NOBODY, NOBODY);
    let theirs = scratch.file("own/theirs", b"old", 0o666);
    assert_eq!(nobody.write(&theirs, b"new"), FileReply::Done);
    let after = std::fs::metadata(&theirs).unwrap();
    assert_eq!((after.uid(), std::fs::read(&theirs).unwrap()), (0, b"new".to_vec()));
    assert_eq!(names(&directory), ["theirs"]);
}

#[test]
fn a_full_filesystem_leaves_nothing_behind() {
    let mut host = Host::start();
    let mount = "mkdir /mnt/small 2>/dev/null; mount -t tmpfs -o size=1m tmpfs /mnt";
    let request = saggar_guest::ExecRequest { keep_capabilities: true, ..crate::host::shell(mount) };
    assert_eq!(host.run(request).end, saggar_guest::End::Code(0));
    let mut files = Files::start(&mut host);
    assert_eq!(files.write("/mnt/kept", b"kept"), FileReply::Done);
    files.send(&writing("/mnt/big"));
    for _ in 0..20 {
        files.send(&FileRequest::Data(vec![1; 100_000]));
    }
    files.send(&FileRequest::End);
    assert_eq!(files.next(), FileReply::Failed { errno: libc::ENOSPC, stage: FileStage::Content });
    let listed = files.collect(FileRequest::List { path: b"/mnt".to_vec(), depth: 1, most: 10 });
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(files.write("/mnt/after", &[1; 500_000]), FileReply::Done);
}

/// Sends a gibibyte through a session in either direction, with bounded memory. Prints the speed without asserting it:
/// this machine may be busy.
#[test]
fn a_big_file_takes_no_more_memory_than_a_small_one() {
    const SIZE: u64 = 1 << 30;
    let scratch = Scratch::in_memory();
    let path = format!("{}/big", scratch.text());
    let mut host = Host::start_as_child();
    let mut files = Files::start(&mut host);
    let content = vec![0x5a; DATA_MAX];
    let mut frame = FileRequest::data_header(DATA_MAX).to_vec();
    frame.extend_from_slice(&content);
    let start = Instant::now();
    files.send(&writing(&path));
    for _ in 0..SIZE / DATA_MAX as u64 {
        files.stream.write_all(&frame).unwrap();
    }
    files.check_done(FileRequest::End);
    let written = start.elapsed();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE);

    let start = Instant::now();
    files.send(&reading(&path));
    let (mut buffer, mut total) = (vec![0; 256 * 1024], 0u64);
    // The frames are not decoded: their bytes are only counted.
    let frames = SIZE / DATA_MAX as u64;
    let mut entry = Vec::new();
    FileReply::Entry(saggar_guest::FileEntry {
        path: vec![],
        kind: saggar_guest::FileKind::File,
        size: SIZE,
        mode: 0,
        uid: 0,
        gid: 0,
        modified_ns: 0,
        link_target: None,
    })
    .encode(&mut entry)
    .unwrap();
    let expected = SIZE + frames * HEADER_LEN as u64 + entry.len() as u64 + HEADER_LEN as u64;
    while total < expected {
        let count = std::io::Read::read(&mut files.stream, &mut buffer).unwrap();
        assert!(count > 0);
        total += count as u64;
    }
    assert_eq!(total, expected);
    let read = start.elapsed();
    let speed = |taken: std::time::Duration| SIZE as f64 / taken.as_secs_f64() / 1e6;
    println!("written at {:.0} MB/s, read at {:.0} MB/s", speed(written), speed(read));

    let agent = host.agent_pid();
    let worker = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.trim())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u32 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 6 * 1024, "the worker took {peak_kib} KiB");
}
