//! Streams file contents, with constant memory whatever the size.

use saggar_guest::{DATA_MAX, FileEntry, FileReply, FileRequest};

use super::path::FilePath;
use super::session::Session;
use super::{broken, fault};
use crate::fault::{Fault, FileFaultKind};

/// A file that is being read.
#[derive(Debug)]
pub struct Reading {
    session: Session,
    path: FilePath,
    entry: FileEntry,
}

impl Reading {
    pub(super) fn new(session: Session, path: FilePath, entry: FileEntry) -> Self {
        Self { session, path, entry }
    }

    pub fn entry(&self) -> &FileEntry {
        &self.entry
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        match self.session.answer(&self.path).await? {
            FileReply::Data(bytes) => Ok(Some(bytes)),
            FileReply::End => Ok(None),
            _ => Err(broken(&self.path)),
        }
    }
}

/// A file that is being written. If dropped before [`Writing::finish`], nothing changes.
#[derive(Debug)]
pub struct Writing {
    session: Session,
    path: FilePath,
}

impl Writing {
    pub(super) fn new(session: Session, path: FilePath) -> Self {
        Self { session, path }
    }

    pub async fn data(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        for piece in bytes.chunks(DATA_MAX) {
            let sent = self.session.send_data(&self.path, piece).await;
            // Full storage is reported at once, not after the rest has been sent; and a broken pipe has a reason.
            if self.session.answer_now(&self.path)?.is_some() {
                return Err(broken(&self.path));
            }
            sent?;
        }
        Ok(())
    }

    /// Completes the write: from now on this is the file's content.
    pub async fn finish(self) -> Result<Files, Fault> {
        let Self { mut session, path } = self;
        session.ask(&path, &FileRequest::End).await?;
        match session.answer(&path).await? {
            FileReply::Done => Ok(Files { session }),
            _ => Err(broken(&path)),
        }
    }
}

use super::Files;

/// A tree that is being read.
#[derive(Debug)]
pub struct Walking {
    session: Session,
    path: FilePath,
    // Remaining bytes of the current file.
    left: u64,
}

#[derive(Debug)]
pub enum Walked {
    /// A file, directory or link; a directory comes before its contents.
    Entry(FileEntry),
    /// Content of the last file entry.
    Data(Vec<u8>),
    /// An entry that can't be read.
    Skipped {
        /// Relative to the top.
        path: Vec<u8>,
    },
}

impl Walking {
    pub(super) fn new(session: Session, path: FilePath) -> Self {
        Self { session, path, left: 0 }
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Walked>, Fault> {
        match self.session.answer(&self.path).await? {
            FileReply::Entry(entry) => {
                self.left = entry.size;
                Ok(Some(Walked::Entry(entry)))
            }
            FileReply::Data(bytes) => {
                // More content than its entry announced would shift everything after it.
                let left = self.left.checked_sub(bytes.len() as u64);
                self.left = left.ok_or_else(|| fault(&self.path, FileFaultKind::Changed))?;
                Ok(Some(Walked::Data(bytes)))
            }
            FileReply::Skipped { path, .. } => Ok(Some(Walked::Skipped { path })),
            FileReply::End => Ok(None),
            _ => Err(broken(&self.path)),
        }
    }
}
