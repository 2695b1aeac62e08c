//! File sessions, driven as the host drives them.

mod changes;
mod content;
mod trees;
mod watches;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use saggar_guest::{Decoder, FileEntry, FileReply, FileRequest, FileStage, OpenRequest, OpenTarget};

use crate::host::{Host, NOBODY, opening};

pub struct Files {
    stream: UnixStream,
    decoder: Decoder<FileReply>,
    received: VecDeque<FileReply>,
}

impl Files {
    /// A session as root without capabilities.
    pub fn start(host: &mut Host) -> Files {
        Files::open(host, opening(OpenTarget::Files))
    }

    /// A session as a user who owns nothing.
    pub fn start_as_nobody(host: &mut Host) -> Files {
        Files::open(host, OpenRequest { uid: NOBODY, gid: NOBODY, ..opening(OpenTarget::Files) })
    }

    pub fn open(host: &mut Host, request: OpenRequest) -> Files {
        Files::over(host.open(request))
    }

    pub fn over(stream: UnixStream) -> Files {
        Files { stream, decoder: Decoder::new(), received: VecDeque::new() }
    }

    pub fn send(&mut self, request: &FileRequest) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next reply, or `None` at the end of the session.
    pub fn try_next(&mut self) -> Option<FileReply> {
        let mut buffer = vec![0; 64 * 1024];
        while self.received.is_empty() {
            let count = match self.stream.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
                Err(error) => panic!("the worker says nothing: {error}"),
            };
            if count == 0 {
                assert!(!self.decoder.is_mid_frame(), "the worker left in the middle of a frame");
                return None;
            }
            let mut input = &buffer[..count];
            while let Some(reply) = self.decoder.next_frame(&mut input).unwrap() {
                self.received.push_back(reply);
            }
        }
        self.received.pop_front()
    }

    pub fn next(&mut self) -> FileReply {
        self.try_next().expect("the worker is still there")
    }

    /// A request that has one answer.
    pub fn ask(&mut self, request: FileRequest) -> FileReply {
        self.send(&request);
        self.next()
    }

    /// The answer, unless the session was refused.
    pub fn try_ask(&mut self, request: &FileRequest) -> Option<FileReply> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes).unwrap();
        self.stream.write_all(&bytes).ok()?;
        self.try_next().filter(|reply| !matches!(reply, FileReply::Failed { .. }))
    }

    pub fn check_done(&mut self, request: FileRequest) {
        let what = format!("{request:?}");
        assert_eq!(self.ask(request), FileReply::Done, "{what}");
    }

    pub fn check_failed(&mut self, request: FileRequest, stage: FileStage, errno: i32) {
        let what = format!("{request:?}");
        assert_eq!(self.ask(request), FileReply::Failed { errno, stage }, "{what}");
    }

    pub fn collect(&mut self, request: FileRequest) -> Vec<FileReply> {
        self.send(&request);
        let mut replies = Vec::new();
        loop {
            match self.next() {
                FileReply::End => return replies,
                failed @ FileReply::Failed { .. } => panic!("{failed:?}"),
                reply => replies.push(reply),
            }
        }
    }

    pub fn read(&mut self, path: &str) -> Vec<u8> {
        self.read_part(path, 0, None).1
    }

    pub fn read_part(&mut self, path: &str, offset: u64, length: Option<u64>) -> (FileEntry, Vec<u8>) {
        let mut replies = self.collect(FileRequest::Read { path: path.into(), offset, length }).into_iter();
        let Some(FileReply::Entry(entry)) = replies.next() else { panic!("no entry first") };
        let mut content = Vec::new();
        for reply in replies {
            let FileReply::Data(bytes) = reply else { panic!("not content: {reply:?}") };
            content.extend(bytes);
        }
        (entry, content)
    }

    /// Sends a file's content and returns the answer.
    pub fn write(&mut self, path: &str, content: &[u8]) -> FileReply {
        self.send(&writing(path));
        for piece in content.chunks(100_000) {
            self.send(&FileRequest::Data(piece.to_vec()));
        }
        self.ask(FileRequest::End)
    }
}

pub fn writing(path: &str) -> FileRequest {
    FileRequest::Write { path: path.into(), mode: 0o640, parents: false, expected: None }
}

pub fn stat(path: &str) -> FileRequest {
    FileRequest::Stat { path: path.into(), follow: false }
}

/// Names in a directory, including hidden files.
pub fn names(directory: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
