//! Content of files as it streams: constant memory, whatever the size.

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

    /// The file that was opened.
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

/// A file that is being written. Dropped before [`Writing::finish`], it leaves everything as it was.
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
            // Full storage is told at once, not when the rest has come for nothing; and a broken pipe has a reason.
            if self.session.answer_now(&self.path)?.is_some() {
                return Err(broken(&self.path));
            }
            sent?;
        }
        Ok(())
    }

    /// That was all: from now on it is the file's content.
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
    // Bytes that may still come of the file in hand.
    left: u64,
}

/// One piece of a tree.
#[derive(Debug)]
pub enum Walked {
    /// A file, directory or link; a directory comes before what is in it.
    Entry(FileEntry),
    /// Content of the file that came last.
    Data(Vec<u8>),
    /// Something that can't be read.
    Skipped {
        /// Which, relative to the top.
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
                // More than its entry said would shift everything after it.
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
