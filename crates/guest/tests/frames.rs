//! Frames: whatever is written is read back, and whatever else arrives is refused without harm.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use saggar_guest::{
    ARGUMENTS_MAX, Decoder, ENVIRONMENT_MAX, EXEC_FRAME_MAX, End, ExecRequest, FRAME_MAX, FailStage, FrameError,
    FromGuest, GROUPS_MAX, HEADER_LEN, Message, PATH_MAX, PROTOCOL, STORAGE_PATHS_MAX, Stream, TerminalSize, ToGuest,
};

/// How many streams of garbage are tried.
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
        ToGuest::Signal { exec: 1, signal: 1 },
        ToGuest::Signal { exec: 1, signal: 64 },
        ToGuest::CloseOutput { exec: 1, stream: Stream::Stdout },
        ToGuest::CloseOutput { exec: 1, stream: Stream::Stderr },
    ]
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
    ];
    let stages = (0..=u8::MAX).filter_map(FailStage::from_code);
    frames.extend(stages.map(|stage| FromGuest::Failed { exec: 1, stage, errno: -2 }));
    frames
}

/// Feeds `bytes` in pieces of `piece` and returns the frames, or the refusal.
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

#[test]
fn every_frame_comes_back_in_whatever_pieces_it_arrives() {
    let (to_guest, from_guest) = (every_to_guest(), every_from_guest());
    let (bytes_to, bytes_from) = (encoded(&to_guest), encoded_from_guest(&from_guest));
    for piece in [1, 2, 3, 4, 5, 6, 7, 64, 4096, usize::MAX] {
        assert_eq!(decode::<ToGuest>(&bytes_to, piece).as_deref(), Ok(&*to_guest));
        assert_eq!(decode::<FromGuest>(&bytes_from, piece).as_deref(), Ok(&*from_guest));
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

/// Such a request can be neither written nor, were it written by someone else, read.
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
        (0x06, with(&[0]), FrameError::Invalid("stream")),
        (0x06, with(&[3]), FrameError::Invalid("stream")),
        // An argument count that no bytes follow must not be believed.
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

/// A generator good enough for garbage (xorshift).
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
    let templates: Vec<Vec<u8>> =
        [every_to_guest().iter().map(|frame| encoded(std::slice::from_ref(frame))).collect::<Vec<_>>(), {
            let small = every_from_guest()
                .into_iter()
                .filter(|frame| !matches!(frame, FromGuest::Output { bytes, .. } if bytes.len() > 64));
            small.map(|frame| encoded_from_guest(&[frame])).collect()
        }]
        .concat();
    for seed in 1..=GARBAGE_STREAMS {
        let mut random = Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // A few good frames, then some bytes of them changed: most garbage from nowhere would not get past the kind.
        let mut bytes: Vec<u8> =
            (0..1 + random.below(3)).flat_map(|_| templates[random.below(templates.len())].clone()).collect();
        for _ in 0..random.below(4) {
            let position = random.below(bytes.len());
            bytes[position] = random.next() as u8;
        }
        let piece = 1 + random.below(16);
        assert_eq!(decode::<ToGuest>(&bytes, piece), decode::<ToGuest>(&bytes, usize::MAX), "seed {seed}");
        assert_eq!(decode::<FromGuest>(&bytes, piece), decode::<FromGuest>(&bytes, usize::MAX), "seed {seed}");
        // What was read can be written again, and then it reads the same.
        for frame in decode::<ToGuest>(&bytes, piece).unwrap_or_default() {
            assert_eq!(
                decode::<ToGuest>(&encoded(std::slice::from_ref(&frame)), usize::MAX),
                Ok(vec![frame]),
                "seed {seed}"
            );
        }
    }
}
