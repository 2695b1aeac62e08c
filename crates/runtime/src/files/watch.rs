//! Watching files: what changes, as it changes.

use saggar_guest::{FileEventKind, FileReply};

use super::broken;
use super::path::FilePath;
use super::session::Session;
use crate::fault::Fault;

/// A watch. It ends when dropped.
#[derive(Debug)]
pub struct Watching {
    session: Session,
    path: FilePath,
}

/// Something has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEvent {
    /// How.
    pub kind: FileEventKind,
    /// Where, relative to what is watched; empty for that itself.
    pub path: Vec<u8>,
    /// Whether it is, or was, a directory.
    pub is_directory: bool,
}

impl Watching {
    pub(super) fn new(session: Session, path: FilePath) -> Self {
        Self { session, path }
    }

    /// The next change; `None` when the watch has ended with its sandbox. May be cancelled at its await.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, Fault> {
        match self.session.receive().await {
            Ok(Some(FileReply::Event { kind, path, is_directory })) => Ok(Some(FileEvent { kind, path, is_directory })),
            Ok(None) => Ok(None),
            Ok(Some(_)) | Err(_) => Err(broken(&self.path)),
        }
    }
}
