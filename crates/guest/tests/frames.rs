//! Frames: everything that is written is read back, and everything else is refused without harm.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use saggar_guest::{
    ARGUMENTS_MAX, DATA_MAX, Decoder, ENTRY_PATH_MAX, ENVIRONMENT_MAX, EXEC_FRAME_MAX, End, ExecRequest, FRAME_MAX,
    FailStage, FileEntry, FileEventKind, FileKind, FileReply, FileRequest, FileStage, FrameError, FromGuest,
    GROUPS_MAX, HEADER_LEN, JOINS_MAX, LINK_MAX, METADATA_MAX, METADATA_NAME_MAX, METADATA_VALUE_MAX, Message,
    MetadataEntry, OpenRequest, OpenTarget, PATH_MAX, PROTOCOL, PortPreface, STORAGE_PATHS_MAX, SignalScope, Stream,
    TerminalSize, ToGuest,
};

/// Number of random streams that are tried.
const GARBAGE_STREAMS: u64 = 20_000;

fn request() -> ExecRequest {
    ExecRequest {
        exec: 7,
        argv: vec![b"echo".to_vec(), b"".to_vec(), vec![0xff, b'\n']],
        env: vec![b"PATH=/bin".to_vec(), b"EMPTY=".to_vec(), b"E=a=b".to_vec()],
        cwd: b"/workspace".to_vec(),
        uid: 1000,
        gid: 1001,
        groups: vec![4, 24],
        keep_capabilities: false,
        tty: Some(TerminalSize { rows: 24, cols: 80 }),
        stdin: true,
        nofile: Some(1024),
        nproc: None,
        storage_paths: vec![b"/workspace".to_vec(), b"/tmp".to_vec()],
        one_shot: true,
        output_window: Some(65_536),
        joins: 3,
    }
}

fn bare_request() -> ExecRequest {
    ExecRequest {
        exec: u32::MAX,
        argv: vec![b"/bin/true".to_vec()],
        env: vec![],
        cwd: b"/".to_vec(),
        uid: 0,
        gid: 0,
        groups: vec![],
        keep_capabilities: true,
        tty: None,
        stdin: false,
        nofile: None,
        nproc: Some(u64::MAX),
        storage_paths: vec![],
        one_shot: false,
        output_window: None,
        joins: 0,
    }
}

fn every_to_guest() -> Vec<ToGuest> {
    vec![
        ToGuest::Exec(request()),
        ToGuest::Exec(bare_request()),
        ToGuest::Stdin { exec: 1, bytes: b"hello".to_vec() },
        ToGuest::Stdin { exec: 1, bytes: vec![] },
        ToGuest::StdinEnd { exec: 1 },
        ToGuest::Resize { exec: 1, rows: 50, cols: u16::MAX },
        ToGuest::Signal { exec: 1, signal: 1, scope: SignalScope::Group },
        ToGuest::Signal { exec: 1, signal: 64, scope: SignalScope::Tree },
        ToGuest::CloseOutput { exec: 1, stream: Stream::Stdout },
        ToGuest::CloseOutput { exec: 1, stream: Stream::Stderr },
        ToGuest::OutputTaken { exec: 1, bytes: u32::MAX },
        ToGuest::Open(open()),
        ToGuest::Open(OpenRequest { uid: 0, keep_capabilities: true, target: OpenTarget::Files, ..open() }),
    ]
}

fn open() -> OpenRequest {
    OpenRequest {
        stream: 4,
        uid: 1000,
        gid: 1001,
        groups: vec![4, 24],
        keep_capabilities: false,
        target: OpenTarget::Port(8080),
    }
}

fn every_file_request() -> Vec<FileRequest> {
    let path = || b"/work/\xff\n".to_vec();
    let note = |name: &[u8], value: &[u8]| MetadataEntry { name: name.to_vec(), value: value.to_vec() };
    vec![
        FileRequest::Stat { path: path(), follow: true },
        FileRequest::List { path: path(), depth: 1, most: u32::MAX },
        FileRequest::MakeDir { path: path(), parents: true, mode: 0o1777 },
        FileRequest::Move { from: path(), to: b"/".to_vec() },
        FileRequest::Remove { path: path(), recursive: true },
        FileRequest::Read { path: path(), offset: u64::MAX, length: None },
        FileRequest::Read { path: path(), offset: 0, length: Some(0) },
        FileRequest::Write { path: path(), mode: 0o644, parents: false, expected: Some(5) },
        FileRequest::Data(vec![b'x'; DATA_MAX]),
        FileRequest::Data(vec![0]),
        FileRequest::End,
        FileRequest::Abort,
        FileRequest::Link { path: path(), target: b"../\xfe".to_vec() },
        FileRequest::SetMode { path: path(), mode: 0 },
        FileRequest::SetOwner { path: path(), uid: Some(1000), gid: None },
        FileRequest::Metadata { path: path(), set: None },
        FileRequest::Metadata { path: path(), set: Some(vec![note(b"a", b""), note(b"b", b"\0")]) },
        FileRequest::Watch { path: path(), recursive: false },
        FileRequest::Storage { path: path() },
        FileRequest::Walk { path: path(), most: 7 },
        FileRequest::Settle,
    ]
}

fn every_file_reply() -> Vec<FileReply> {
    let entry = |kind, link_target| FileEntry {
        path: b"a/\xff".to_vec(),
        kind,
        size: u64::MAX,
        mode: 0o4755,
        uid: 1,
        gid: 2,
        modified_ns: -3,
        link_target,
    };
    let mut replies = vec![
        FileReply::Done,
        FileReply::Entry(entry(FileKind::File, None)),
        FileReply::Entry(FileEntry { path: vec![], ..entry(FileKind::Directory, None) }),
        FileReply::Entry(entry(FileKind::Link, Some(b"../x".to_vec()))),
        FileReply::Entry(entry(FileKind::Other, None)),
        FileReply::End,
        FileReply::Data(vec![b'x'; DATA_MAX]),
        FileReply::Watching,
        FileReply::Storage { total: 1, free: 2, inodes: 3, inodes_free: 4 },
        FileReply::Metadata(vec![MetadataEntry { name: b"a".to_vec(), value: b"b".to_vec() }]),
        FileReply::Skipped { path: b"a/b".to_vec(), errno: 13 },
    ];
    let stages = (0..=u8::MAX).filter_map(FileStage::from_code);
    replies.extend(stages.map(|stage| FileReply::Failed { errno: -2, stage }));
    let kinds = [
        FileEventKind::Created,
        FileEventKind::Written,
        FileEventKind::Removed,
        FileEventKind::Moved,
        FileEventKind::Attributes,
        FileEventKind::Overflow,
    ];
    replies.extend(kinds.map(|kind| FileReply::Event { kind, path: b"x".to_vec(), is_directory: true }));
    replies
}

fn every_from_guest() -> Vec<FromGuest> {
    let mut frames = vec![
        FromGuest::Hello { protocol: PROTOCOL },
        FromGuest::Started { exec: 1, pid: 2 },
        FromGuest::Output { exec: 1, stream: Stream::Stdout, bytes: vec![0] },
        FromGuest::Output { exec: 1, stream: Stream::Stderr, bytes: vec![b'x'; FRAME_MAX - 5] },
        FromGuest::StdinTaken { exec: 1, bytes: 65_536 },
        FromGuest::Exited { exec: 1, end: End::Code(255) },
        FromGuest::Exited { exec: 1, end: End::Signal { signal: 9, core: false } },
        FromGuest::Exited { exec: 1, end: End::Signal { signal: 11, core: true } },
        FromGuest::StorageFull { exec: 1 },
        FromGuest::TreeGone { exec: 1 },
        FromGuest::Used { exec: 1, cpu_usec: u64::MAX, memory_peak: 1 },
        FromGuest::Deserted { exec: 1 },
    ];
    let stages = (0..=u8::MAX).filter_map(FailStage::from_code);
    frames.extend(stages.map(|stage| FromGuest::Failed { exec: 1, stage, errno: -2 }));
    frames
}

/// Feeds `bytes` in pieces of `piece` and returns the frames, or the error.
fn decode<M: Message>(bytes: &[u8], piece: usize) -> Result<Vec<M>, FrameError> {
    let mut decoder = Decoder::<M>::new();
    let mut frames = Vec::new();
    for mut input in bytes.chunks(piece.max(1)) {
        while let Some(frame) = decoder.next_frame(&mut input)? {
            frames.push(frame);
        }
        assert!(input.is_empty(), "a decoder that wants more has taken everything");
    }
    Ok(frames)
}

/// One frame as it is on the wire.
fn raw(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(payload);
    bytes
}

fn encoded(frames: &[ToGuest]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        frame.encode(&mut bytes).unwrap();
    }
    bytes
}

fn encoded_from_guest(frames: &[FromGuest]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        frame.encode(&mut bytes).unwrap();
    }
    bytes
}

fn encoded_requests(frames: &[FileRequest]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        frame.encode(&mut bytes).unwrap();
    }
    bytes
}

fn encoded_replies(frames: &[FileReply]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        frame.encode(&mut bytes).unwrap();
    }
    bytes
}

#[test]
fn every_frame_comes_back_in_whatever_pieces_it_arrives() {
    let (to_guest, from_guest) = (every_to_guest(), every_from_guest());
    let (bytes_to, bytes_from) = (encoded(&to_guest), encoded_from_guest(&from_guest));
    for piece in [1, 2, 3, 4, 5, 6, 7, 64, 4096, usize::MAX] {
        assert_eq!(decode::<ToGuest>(&bytes_to, piece).as_deref(), Ok(&*to_guest));
        assert_eq!(decode::<FromGuest>(&bytes_from, piece).as_deref(), Ok(&*from_guest));
    }
    let (requests, replies) = (every_file_request(), every_file_reply());
    let (bytes_requests, bytes_replies) = (encoded_requests(&requests), encoded_replies(&replies));
    for piece in [1, 3, 5, 64, 4096, usize::MAX] {
        assert_eq!(decode::<FileRequest>(&bytes_requests, piece).as_deref(), Ok(&*requests));
        assert_eq!(decode::<FileReply>(&bytes_replies, piece).as_deref(), Ok(&*replies));
    }
}

#[test]
fn a_port_stream_begins_with_whether_there_is_a_connection() {
    for preface in [PortPreface::Connected, PortPreface::Refused(111), PortPreface::Refused(-1)] {
        assert_eq!(PortPreface::decode(preface.encode()), Ok(preface));
    }
    assert_eq!(PortPreface::Connected.encode(), [0; 5]);
    assert_eq!(PortPreface::Refused(111).encode(), [1, 111, 0, 0, 0]);
    for bytes in [[0, 0, 0, 0, 1], [2, 0, 0, 0, 0]] {
        assert_eq!(PortPreface::decode(bytes), Err(FrameError::Invalid("preface")));
    }
}

#[test]
fn frames_say_how_many_descriptors_come_with_them() {
    let counts: Vec<usize> = every_to_guest().iter().map(ToGuest::descriptors).filter(|count| *count > 0).collect();
    assert_eq!(counts, [3, 1, 1]);
}

#[test]
fn the_header_of_data_is_that_of_the_frame() {
    let bytes = encoded_replies(&[FileReply::Data(vec![7; 300])]);
    assert_eq!(bytes[..HEADER_LEN], FileReply::data_header(300));
    let bytes = encoded_requests(&[FileRequest::Data(vec![7; 300])]);
    assert_eq!(bytes[..HEADER_LEN], FileRequest::data_header(300));
    for kind in 0..=u8::MAX {
        assert_eq!(FileRequest::is_data(kind), kind == FileRequest::data_header(0)[4]);
        assert_eq!(FileReply::is_data(kind), kind == FileReply::data_header(0)[4]);
    }
}

#[test]
fn a_stream_cut_anywhere_gives_the_whole_frames_before_the_cut() {
    let frames = every_to_guest();
    let bytes = encoded(&frames);
    let borders: Vec<usize> = (1..=frames.len()).map(|count| encoded(&frames[..count]).len()).collect();
    for cut in 0..bytes.len() {
        let whole = borders.iter().filter(|border| **border <= cut).count();
        let mut decoder = Decoder::<ToGuest>::new();
        let mut input = &bytes[..cut];
        let mut count = 0;
        while decoder.next_frame(&mut input).unwrap().is_some() {
            count += 1;
        }
        let is_border = cut == 0 || borders.contains(&cut);
        assert_eq!((count, decoder.is_mid_frame()), (whole, !is_border), "cut at {cut}");
    }
}

#[test]
fn a_payload_cut_anywhere_is_refused() {
    for frame in every_to_guest() {
        let bytes = encoded(std::slice::from_ref(&frame));
        let (kind, payload) = (bytes[4], &bytes[HEADER_LEN..]);
        let has_open_end = matches!(frame, ToGuest::Stdin { .. });
        for cut in 0..payload.len() {
            let outcome = decode::<ToGuest>(&raw(kind, &payload[..cut]), usize::MAX);
            assert!(outcome.is_err() || (has_open_end && cut >= 4), "{frame:?} cut at {cut}");
        }
    }
    for frame in every_from_guest() {
        let bytes = encoded_from_guest(std::slice::from_ref(&frame));
        let (kind, payload) = (bytes[4], &bytes[HEADER_LEN..]);
        let has_open_end = matches!(frame, FromGuest::Output { .. });
        for cut in 0..payload.len().min(64) {
            let outcome = decode::<FromGuest>(&raw(kind, &payload[..cut]), usize::MAX);
            assert!(outcome.is_err() || (has_open_end && cut >= 6), "{frame:?} cut at {cut}");
        }
    }
}

#[test]
fn a_cut_or_longer_frame_about_files_is_refused() {
    for frame in every_file_request() {
        let bytes = encoded_requests(std::slice::from_ref(&frame));
        let (kind, payload) = (bytes[4], &bytes[HEADER_LEN..]);
        if matches!(frame, FileRequest::Data(_)) {
            continue;
        }
        for cut in 0..payload.len() {
            assert!(decode::<FileRequest>(&raw(kind, &payload[..cut]), usize::MAX).is_err(), "{frame:?} cut at {cut}");
        }
        let longer = [payload, b"x"].concat();
        let refusal = Err(FrameError::TrailingBytes(1));
        assert_eq!(decode::<FileRequest>(&raw(kind, &longer), usize::MAX), refusal, "{frame:?}");
        assert_eq!(decode::<FileReply>(&bytes, usize::MAX), Err(FrameError::UnknownKind(kind)));
        assert_eq!(decode::<ToGuest>(&bytes, usize::MAX), Err(FrameError::UnknownKind(kind)));
    }
    for frame in every_file_reply() {
        let bytes = encoded_replies(std::slice::from_ref(&frame));
        let (kind, payload) = (bytes[4], &bytes[HEADER_LEN..]);
        if matches!(frame, FileReply::Data(_)) {
            continue;
        }
        for cut in 0..payload.len() {
            assert!(decode::<FileReply>(&raw(kind, &payload[..cut]), usize::MAX).is_err(), "{frame:?} cut at {cut}");
        }
        let longer = [payload, b"x"].concat();
        let refusal = Err(FrameError::TrailingBytes(1));
        assert_eq!(decode::<FileReply>(&raw(kind, &longer), usize::MAX), refusal, "{frame:?}");
        assert_eq!(decode::<FileRequest>(&bytes, usize::MAX), Err(FrameError::UnknownKind(kind)));
        assert_eq!(decode::<FromGuest>(&bytes, usize::MAX), Err(FrameError::UnknownKind(kind)));
    }
}

#[test]
fn a_request_about_files_that_cannot_be_meant_is_refused() {
    let root = || b"/".to_vec();
    let note = |name: usize, value: usize| MetadataEntry { name: vec![b'n'; name], value: vec![0; value] };
    let notes = |note: MetadataEntry| FileRequest::Metadata { path: root(), set: Some(vec![note]) };
    let link = |target: &[u8]| FileRequest::Link { path: root(), target: target.to_vec() };
    let stat = |path: &[u8]| FileRequest::Stat { path: path.to_vec(), follow: false };
    let invalid = FrameError::Invalid;
    let cases = [
        (stat(b""), invalid("path")),
        (stat(b"a"), invalid("path")),
        (stat(b"/a\0"), invalid("path")),
        (stat(&[b'/'; PATH_MAX]), invalid("path")),
        (FileRequest::Move { from: root(), to: vec![] }, invalid("path")),
        (FileRequest::SetMode { path: root(), mode: 0o4755 }, invalid("mode")),
        (FileRequest::SetMode { path: root(), mode: 0o2755 }, invalid("mode")),
        (FileRequest::MakeDir { path: root(), parents: false, mode: 0o10000 }, invalid("mode")),
        (FileRequest::Data(vec![]), invalid("data")),
        (link(b""), invalid("target")),
        (link(b"\0"), invalid("target")),
        (link(&[b'x'; LINK_MAX + 1]), invalid("target")),
        (notes(note(0, 1)), invalid("metadata")),
        (notes(note(METADATA_NAME_MAX + 1, 1)), invalid("metadata")),
        (notes(note(1, METADATA_VALUE_MAX + 1)), invalid("metadata")),
        (
            FileRequest::Metadata { path: root(), set: Some(vec![note(1, 1); METADATA_MAX + 1]) },
            FrameError::TooMany { field: "metadata", count: METADATA_MAX + 1, limit: METADATA_MAX },
        ),
    ];
    for (request, expected) in cases {
        assert_eq!(request.encode(&mut Vec::new()), Err(expected), "{request:?}");
    }
}

#[test]
fn a_reply_never_names_what_is_outside() {
    for path in [&b"/etc"[..], b"..", b"a/../..", b"a//b", b"a/", b".", b"a\0", &[b'x'; ENTRY_PATH_MAX + 1]] {
        let reply = FileReply::Skipped { path: path.to_vec(), errno: 0 };
        assert_eq!(reply.encode(&mut Vec::new()), Err(FrameError::Invalid("path")), "{path:?}");
        let event = FileReply::Event { kind: FileEventKind::Created, path: path.to_vec(), is_directory: false };
        assert_eq!(event.encode(&mut Vec::new()), Err(FrameError::Invalid("path")), "{path:?}");
        // Nor if another program wrote it.
        let mut payload = (path.len() as u32).to_le_bytes().to_vec();
        payload.extend_from_slice(path);
        payload.extend_from_slice(&[0; 4]);
        let refusal = Err(FrameError::Invalid("path"));
        assert_eq!(decode::<FileReply>(&raw(0xaa, &payload), usize::MAX), refusal, "{path:?}");
    }
}

#[test]
fn bytes_after_the_last_field_are_refused() {
    for frame in every_to_guest().iter().filter(|frame| !matches!(frame, ToGuest::Stdin { .. })) {
        let bytes = encoded(std::slice::from_ref(frame));
        let longer = [&bytes[HEADER_LEN..], b"x"].concat();
        assert_eq!(decode::<ToGuest>(&raw(bytes[4], &longer), usize::MAX), Err(FrameError::TrailingBytes(1)));
    }
}

#[test]
fn a_length_above_the_bound_is_refused_from_the_header_alone() {
    for (kind, limit) in [(0x01, EXEC_FRAME_MAX), (0x02, FRAME_MAX), (0x05, FRAME_MAX)] {
        for length in [limit + 1, u32::MAX as usize] {
            let mut header = (length as u32).to_le_bytes().to_vec();
            header.push(kind);
            assert_eq!(decode::<ToGuest>(&header, 1), Err(FrameError::TooLong { kind, length, limit }));
        }
    }
}

#[test]
fn a_refusal_is_final() {
    let mut decoder = Decoder::<ToGuest>::new();
    let refusal = Err(FrameError::UnknownKind(0xee));
    assert_eq!(decoder.next_frame(&mut &raw(0xee, b"")[..]), refusal);
    assert_eq!(decoder.next_frame(&mut &encoded(&every_to_guest())[..]), refusal);
}

#[test]
fn a_frame_of_the_other_direction_is_unknown() {
    for frame in every_to_guest() {
        let bytes = encoded(&[frame]);
        assert_eq!(decode::<FromGuest>(&bytes, usize::MAX), Err(FrameError::UnknownKind(bytes[4])));
    }
    for frame in every_from_guest() {
        let bytes = encoded_from_guest(&[frame]);
        assert_eq!(decode::<ToGuest>(&bytes, usize::MAX), Err(FrameError::UnknownKind(bytes[4])));
    }
}

#[test]
fn what_is_too_long_is_not_written_either() {
    let mut out = b"before".to_vec();
    let stdin = ToGuest::Stdin { exec: 1, bytes: vec![0; FRAME_MAX - 3] };
    assert_eq!(stdin.encode(&mut out), Err(FrameError::TooLong { kind: 2, length: FRAME_MAX + 1, limit: FRAME_MAX }));
    let exec = ToGuest::Exec(ExecRequest { argv: vec![vec![b'x'; EXEC_FRAME_MAX]], ..bare_request() });
    assert!(matches!(exec.encode(&mut out), Err(FrameError::TooLong { kind: 1, limit: EXEC_FRAME_MAX, .. })));
    assert_eq!(out, b"before");
}

#[test]
fn an_exec_may_be_larger_than_other_frames() {
    let frame = ToGuest::Exec(ExecRequest { argv: vec![vec![b'x'; 1024]; 1024], ..bare_request() });
    let bytes = encoded(std::slice::from_ref(&frame));
    assert!(bytes.len() > FRAME_MAX);
    assert_eq!(decode::<ToGuest>(&bytes, 4096), Ok(vec![frame]));
}

/// Such a request can be neither written nor, if another program wrote it, read.
fn check_refused(name: &str, request: ExecRequest, expected: FrameError) {
    assert_eq!(request.check(), Err(expected), "{name}");
    let mut out = Vec::new();
    assert_eq!(ToGuest::Exec(request).encode(&mut out), Err(expected), "{name}");
    assert!(out.is_empty(), "{name}");
}

#[test]
fn a_request_that_cannot_be_meant_is_refused() {
    let bare = bare_request;
    let too_many = |field, limit| FrameError::TooMany { field, count: limit + 1, limit };
    let cases = [
        ("no program", ExecRequest { argv: vec![], ..bare() }, FrameError::Invalid("argv")),
        ("an empty program", ExecRequest { argv: vec![vec![]], ..bare() }, FrameError::Invalid("argv")),
        (
            "a NUL in an argument",
            ExecRequest { argv: vec![vec![b'a'], vec![0]], ..bare() },
            FrameError::Invalid("argv"),
        ),
        ("a variable without a name", ExecRequest { env: vec![b"=x".to_vec()], ..bare() }, FrameError::Invalid("env")),
        ("a variable without a value", ExecRequest { env: vec![b"x".to_vec()], ..bare() }, FrameError::Invalid("env")),
        ("a NUL in a variable", ExecRequest { env: vec![b"x=\0".to_vec()], ..bare() }, FrameError::Invalid("env")),
        ("no directory", ExecRequest { cwd: vec![], ..bare() }, FrameError::Invalid("cwd")),
        ("a relative directory", ExecRequest { cwd: b"a/b".to_vec(), ..bare() }, FrameError::Invalid("cwd")),
        ("a NUL in the directory", ExecRequest { cwd: b"/a\0".to_vec(), ..bare() }, FrameError::Invalid("cwd")),
        ("too long a directory", ExecRequest { cwd: vec![b'/'; PATH_MAX], ..bare() }, FrameError::Invalid("cwd")),
        (
            "a relative storage path",
            ExecRequest { storage_paths: vec![vec![b'a']], ..bare() },
            FrameError::Invalid("storage_paths"),
        ),
        ("the user that means no change", ExecRequest { uid: u32::MAX, ..bare() }, FrameError::Invalid("uid")),
        ("the group that means no change", ExecRequest { gid: u32::MAX, ..bare() }, FrameError::Invalid("gid")),
        ("the same among the groups", ExecRequest { groups: vec![u32::MAX], ..bare() }, FrameError::Invalid("groups")),
        ("capabilities for a user", ExecRequest { uid: 1, ..bare() }, FrameError::Invalid("keep_capabilities")),
        ("a window of nothing", ExecRequest { output_window: Some(0), ..bare() }, FrameError::Invalid("output_window")),
        ("too many cgroups", ExecRequest { joins: JOINS_MAX as u8 + 1, ..bare() }, too_many("joins", JOINS_MAX)),
        (
            "too many arguments",
            ExecRequest { argv: vec![vec![b'a']; ARGUMENTS_MAX + 1], ..bare() },
            too_many("argv", ARGUMENTS_MAX),
        ),
        (
            "too many variables",
            ExecRequest { env: vec![b"a=".to_vec(); ENVIRONMENT_MAX + 1], ..bare() },
            too_many("env", ENVIRONMENT_MAX),
        ),
        ("too many groups", ExecRequest { groups: vec![1; GROUPS_MAX + 1], ..bare() }, too_many("groups", GROUPS_MAX)),
        (
            "too many storage paths",
            ExecRequest { storage_paths: vec![vec![b'/']; STORAGE_PATHS_MAX + 1], ..bare() },
            too_many("storage_paths", STORAGE_PATHS_MAX),
        ),
    ];
    for (name, request, expected) in cases {
        check_refused(name, request, expected);
    }
}

#[test]
fn a_field_with_a_value_it_must_not_have_is_refused_when_read() {
    let exec = 1u32.to_le_bytes();
    let with = |rest: &[u8]| [&exec[..], rest].concat();
    let to_guest = [
        (0x05, with(&[0]), FrameError::Invalid("signal")),
        (0x05, with(&[65]), FrameError::Invalid("signal")),
        (0x05, with(&[9, 0]), FrameError::Invalid("scope")),
        (0x05, with(&[9, 3]), FrameError::Invalid("scope")),
        (0x06, with(&[0]), FrameError::Invalid("stream")),
        (0x06, with(&[3]), FrameError::Invalid("stream")),
        // An argument count without arguments must not be believed.
        (
            0x01,
            with(&u32::MAX.to_le_bytes()),
            FrameError::TooMany { field: "argv", count: u32::MAX as usize, limit: ARGUMENTS_MAX },
        ),
        (0x01, with(&65_536u32.to_le_bytes()), FrameError::Truncated),
    ];
    for (kind, payload, expected) in to_guest {
        assert_eq!(decode::<ToGuest>(&raw(kind, &payload), usize::MAX), Err(expected), "{kind:#x} {payload:?}");
    }
    let from_guest = [
        (0x83, with(&[1]), FrameError::Invalid("bytes")),
        (0x85, with(&[2, 0]), FrameError::Invalid("end")),
        (0x85, with(&[1, 9, 2]), FrameError::Invalid("core")),
        (0x86, with(&[0, 0, 0, 0, 0]), FrameError::Invalid("stage")),
    ];
    for (kind, payload, expected) in from_guest {
        assert_eq!(decode::<FromGuest>(&raw(kind, &payload), usize::MAX), Err(expected), "{kind:#x} {payload:?}");
    }
}

/// A generator good enough for random input (xorshift).
struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

#[test]
fn garbage_never_panics_and_means_the_same_in_any_pieces() {
    let mut templates: Vec<Vec<u8>> =
        [every_to_guest().iter().map(|frame| encoded(std::slice::from_ref(frame))).collect::<Vec<_>>(), {
            let small = every_from_guest()
                .into_iter()
                .filter(|frame| !matches!(frame, FromGuest::Output { bytes, .. } if bytes.len() > 64));
            small.map(|frame| encoded_from_guest(&[frame])).collect()
        }]
        .concat();
    let requests = every_file_request().into_iter().map(|frame| encoded_requests(&[frame]));
    let replies = every_file_reply().into_iter().map(|frame| encoded_replies(&[frame]));
    templates.extend(requests.chain(replies).filter(|bytes| bytes.len() < 1000));
    for seed in 1..=GARBAGE_STREAMS {
        let mut random = Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // A few valid frames with some bytes changed: most purely random input would not get past the kind.
        let mut bytes: Vec<u8> =
            (0..1 + random.below(3)).flat_map(|_| templates[random.below(templates.len())].clone()).collect();
        for _ in 0..random.below(4) {
            let position = random.below(bytes.len());
            bytes[position] = random.next() as u8;
        }
        let piece = 1 + random.below(16);
        assert_eq!(decode::<ToGuest>(&bytes, piece), decode::<ToGuest>(&bytes, usize::MAX), "seed {seed}");
        assert_eq!(decode::<FromGuest>(&bytes, piece), decode::<FromGuest>(&bytes, usize::MAX), "seed {seed}");
        assert_eq!(decode::<FileRequest>(&bytes, piece), decode::<FileRequest>(&bytes, usize::MAX), "seed {seed}");
        assert_eq!(decode::<FileReply>(&bytes, piece), decode::<FileReply>(&bytes, usize::MAX), "seed {seed}");
        // What was read can be written again, and then reads the same.
        for frame in decode::<ToGuest>(&bytes, piece).unwrap_or_default() {
            assert_eq!(
                decode::<ToGuest>(&encoded(std::slice::from_ref(&frame)), usize::MAX),
                Ok(vec![frame]),
                "seed {seed}"
            );
        }
    }
}
