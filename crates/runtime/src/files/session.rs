//! The protocol with a files worker.

use std::io;
use std::time::Duration;

use bytes::Buf;
use saggar_guest::{DATA_MAX, Decoder, FileReply, FileRequest, FileStage, HEADER_LEN};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{broken, fault, path::FilePath};
use crate::fault::{Fault, FileFaultKind};

/// Time limit for a worker to send or receive something. A worker that its sandbox has stopped must not block a
/// client forever.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes read at once: a whole data frame and the header of the next.
const READ_LEN: usize = DATA_MAX + 2 * HEADER_LEN;

#[derive(Debug)]
pub(super) struct Session {
    stream: UnixStream,
    decoder: Decoder<FileReply>,
    buffer: Vec<u8>,
    // The part of the buffer that is not decoded yet.
    unread: std::ops::Range<usize>,
    wire: Vec<u8>,
}

impl Session {
    pub(super) fn over(stream: UnixStream) -> Self {
        Self { stream, decoder: Decoder::new(), buffer: Vec::new(), unread: 0..0, wire: Vec::new() }
    }

    /// Sends a request.
    pub(super) async fn ask(&mut self, path: &FilePath, request: &FileRequest) -> Result<(), Fault> {
        self.wire.clear();
        request.encode(&mut self.wire).map_err(|_| fault(path, FileFaultKind::InvalidPath))?;
        let wire = std::mem::take(&mut self.wire);
        let sent = self.send(&wire).await;
        self.wire = wire;
        sent.map_err(|_| broken(path))
    }

    /// Sends content without copying it, which matters for large files.
    pub(super) async fn send_data(&mut self, path: &FilePath, bytes: &[u8]) -> Result<(), Fault> {
        let header = FileRequest::data_header(bytes.len());
        let mut wire = Buf::chain(&header[..], bytes);
        match tokio::time::timeout(PATIENCE, self.stream.write_all_buf(&mut wire)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(broken(path)),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match tokio::time::timeout(PATIENCE, self.stream.write_all(bytes)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// The next reply; `Failed` becomes a fault. Must not be cancelled and continued.
    pub(super) async fn answer(&mut self, path: &FilePath) -> Result<FileReply, Fault> {
        match tokio::time::timeout(PATIENCE, self.receive()).await {
            Ok(Ok(Some(FileReply::Failed { errno, stage }))) => Err(fault(path, kind_of(errno, stage))),
            Ok(Ok(Some(reply))) => Ok(reply),
            Ok(Ok(None) | Err(_)) | Err(_) => Err(broken(path)),
        }
    }

    /// A reply that has already arrived, without waiting.
    pub(super) fn answer_now(&mut self, path: &FilePath) -> Result<Option<FileReply>, Fault> {
        loop {
            match self.decode().map_err(|_| broken(path))? {
                Some(FileReply::Failed { errno, stage }) => return Err(fault(path, kind_of(errno, stage))),
                Some(reply) => return Ok(Some(reply)),
                None => {}
            }
            self.buffer.resize(READ_LEN, 0);
            match self.stream.try_read(&mut self.buffer) {
                Ok(0) => return Err(broken(path)),
                Ok(length) => self.unread = 0..length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(_) => return Err(broken(path)),
            }
        }
    }

    /// The next reply, without a time limit; `None` at the end. May be cancelled at its await and continued.
    pub(super) async fn receive(&mut self) -> io::Result<Option<FileReply>> {
        loop {
            if let Some(reply) = self.decode()? {
                return Ok(Some(reply));
            }
            self.buffer.resize(READ_LEN, 0);
            match self.stream.read(&mut self.buffer).await? {
                0 => return Ok(None),
                length => self.unread = 0..length,
            }
        }
    }

    fn decode(&mut self) -> io::Result<Option<FileReply>> {
        let mut input = &self.buffer[self.unread.clone()];
        let outcome = self.decoder.next_frame(&mut input);
        self.unread.start = self.unread.end - input.len();
        outcome.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }
}

/// Translates the worker's error.
fn kind_of(errno: i32, stage: FileStage) -> FileFaultKind {
    use rustix::io::Errno;
    match stage {
        FileStage::Worker => return FileFaultKind::NoProcess,
        FileStage::Bound => return FileFaultKind::TooMany,
        FileStage::Identity | FileStage::Request => return FileFaultKind::Broken,
        FileStage::NotRegular if Errno::from_raw_os_error(errno) != Errno::ISDIR => return FileFaultKind::NotRegular,
        FileStage::Find
        | FileStage::NotRegular
        | FileStage::Parents
        | FileStage::Create
        | FileStage::Content
        | FileStage::Publish
        | FileStage::Remove
        | FileStage::Attributes
        | FileStage::Watch => {}
    }
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT => FileFaultKind::NotFound,
        Errno::EXIST => FileFaultKind::Exists,
        Errno::ISDIR => FileFaultKind::IsDirectory,
        Errno::NOTDIR => FileFaultKind::NotDirectory,
        Errno::NOTEMPTY => FileFaultKind::NotEmpty,
        Errno::ACCESS | Errno::PERM => FileFaultKind::PermissionDenied,
        Errno::ROFS => FileFaultKind::ReadOnly,
        Errno::NOSPC | Errno::DQUOT => FileFaultKind::StorageFull,
        Errno::NAMETOOLONG | Errno::LOOP => FileFaultKind::PathTooLong,
        Errno::MSGSIZE => FileFaultKind::Changed,
        _ => FileFaultKind::Other(errno),
    }
}
