//! The session: receives requests, dispatches them, and sends answers.
//!
//! Frames are used where they lie in the buffer, as most of the input is content for a file. Answers are collected and
//! sent before the session waits for more. Everything blocks: there is nothing else to serve.
//!
//! INVARIANT: memory is the two buffers and what one request needs, which has its own bound.

use alloc::ffi::CString;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use saggar_guest::{FRAME_MAX, FileReply, FileRequest, FileStage, HEADER_LEN, Message};

use super::{change, data, notes, remove, tree, watch, write};
use crate::agent::sys::{Errno, Fd};

/// Room for a frame and for the beginning of the next.
const INPUT_LEN: usize = 2 * FRAME_MAX;

/// Answers are sent once there are this many bytes of them.
const OUTPUT_MARK: usize = 64 * 1024;

/// Why a request failed.
pub(super) enum Trouble {
    /// The host is told, and the session continues.
    Failed(FileStage, Errno),
    /// The stream has ended.
    Over,
}

impl Trouble {
    /// For `map_err`: this stage failed with the error.
    pub(super) fn at(stage: FileStage) -> impl Fn(Errno) -> Trouble {
        move |errno| Trouble::Failed(stage, errno)
    }
}

pub(super) struct Session {
    pub(super) stream: Fd,
    input: Vec<u8>,
    // INVARIANT: start <= end <= input.len().
    start: usize,
    end: usize,
    output: Vec<u8>,
}

/// A frame in the session's buffer, valid until the next one is read.
pub(super) struct Frame {
    pub(super) kind: u8,
    payload: Range<usize>,
}

/// Answers requests until the host closes the stream.
pub(in crate::agent) fn serve(stream: Fd) {
    let mut session = Session { stream, input: vec![0; INPUT_LEN], start: 0, end: 0, output: Vec::new() };
    while let Ok(request) = session.next_request() {
        match session.perform(request) {
            Ok(()) => {}
            Err(Trouble::Failed(stage, errno)) => {
                if session.reply(&FileReply::Failed { errno: errno.0, stage }).is_err() {
                    return;
                }
            }
            Err(Trouble::Over) => return,
        }
    }
}

impl Session {
    /// The next request. A malformed one is answered and ends the session, because the next frame's start is unknown.
    fn next_request(&mut self) -> Result<FileRequest, Trouble> {
        let frame = self.next_frame()?;
        match FileRequest::decode(frame.kind, self.payload(&frame)) {
            Ok(request) => Ok(request),
            Err(_) => Err(self.break_off()),
        }
    }

    /// Ends the session because the host broke the protocol.
    pub(super) fn break_off(&mut self) -> Trouble {
        let refusal = FileReply::Failed { errno: libc::EPROTO, stage: FileStage::Request };
        // The stream is over in any case.
        let _ = self.reply(&refusal).and_then(|()| self.flush());
        Trouble::Over
    }

    fn perform(&mut self, request: FileRequest) -> Result<(), Trouble> {
        match request {
            FileRequest::Stat { path, follow } => change::stat(self, path, follow),
            FileRequest::List { path, depth, most } => tree::list(self, path, depth, most),
            FileRequest::Walk { path, most } => tree::walk(self, path, most),
            FileRequest::MakeDir { path, parents, mode } => change::make_directory(self, path, parents, mode),
            FileRequest::Move { from, to } => change::rename(self, from, to),
            FileRequest::Remove { path, recursive } => remove::remove(self, path, recursive),
            FileRequest::Read { path, offset, length } => data::read(self, path, offset, length),
            FileRequest::Write { path, mode, parents, expected } => write::write(self, path, mode, parents, expected),
            FileRequest::Link { path, target } => change::link(self, path, target),
            FileRequest::SetMode { path, mode } => change::set_mode(self, path, mode),
            FileRequest::SetOwner { path, uid, gid } => change::set_owner(self, path, uid, gid),
            FileRequest::Metadata { path, set } => notes::notes(self, path, set),
            FileRequest::Watch { path, recursive } => watch::watch(self, path, recursive),
            FileRequest::Storage { path } => change::storage(self, path),
            // These belong to a `Write` that has ended, to none, or to a `Watch`.
            FileRequest::Data(_) | FileRequest::End | FileRequest::Abort | FileRequest::Settle => Err(self.break_off()),
        }
    }

    /// The next frame, complete and within its bound.
    pub(super) fn next_frame(&mut self) -> Result<Frame, Trouble> {
        self.fill(HEADER_LEN)?;
        let header = &self.input[self.start..self.start + HEADER_LEN];
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = header[4];
        if FileRequest::payload_max(kind).is_none_or(|limit| length > limit) {
            return Err(self.break_off());
        }
        self.fill(HEADER_LEN + length)?;
        let payload = self.start + HEADER_LEN..self.start + HEADER_LEN + length;
        self.start = payload.end;
        Ok(Frame { kind, payload })
    }

    pub(super) fn payload(&self, frame: &Frame) -> &[u8] {
        &self.input[frame.payload.clone()]
    }

    /// Reads until this many bytes are available. All answers are sent before it waits.
    fn fill(&mut self, needed: usize) -> Result<(), Trouble> {
        if self.end - self.start >= needed {
            return Ok(());
        }
        self.flush()?;
        if self.start + needed > self.input.len() || self.start == self.end {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < needed {
            match self.stream.read(&mut self.input[self.end..]) {
                Ok(0) | Err(_) => return Err(Trouble::Over),
                Ok(count) => self.end += count,
            }
        }
        Ok(())
    }

    /// Queues a reply; it may be sent later.
    pub(super) fn reply(&mut self, reply: &FileReply) -> Result<(), Trouble> {
        if reply.encode(&mut self.output).is_err() {
            // Nothing here makes such a reply from the kernel's data; if it did, the host could not interpret it.
            return Err(Trouble::Over);
        }
        if self.output.len() >= OUTPUT_MARK { self.flush() } else { Ok(()) }
    }

    /// Sends all queued replies.
    pub(super) fn flush(&mut self) -> Result<(), Trouble> {
        write_all(&self.stream, &self.output)?;
        self.output.clear();
        Ok(())
    }
}

pub(super) fn write_all(stream: &Fd, mut bytes: &[u8]) -> Result<(), Trouble> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(_) => return Err(Trouble::Over),
        }
    }
    Ok(())
}

pub(super) fn c_path(path: Vec<u8>) -> Result<CString, Trouble> {
    // A decoded request contains no path with a NUL.
    CString::new(path).map_err(|_| Trouble::Failed(FileStage::Request, Errno(libc::EINVAL)))
}
