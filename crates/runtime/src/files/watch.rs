//! Watching files: what changes, as it changes.

use saggar_guest::{FileEventKind, FileReply, FileRequest};

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
    pub kind: FileEventKind,
    /// Where, relative to what is watched; empty for that itself.
    pub path: Vec<u8>,
    /// Whether it is, or was, a directory.
    pub is_directory: bool,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Something has changed.
    Event(FileEvent),
    /// Everything has been told that was changed before [`Watching::settle`] asked.
    Settled,
}

impl Watching {
    pub(super) fn new(session: Session, path: FilePath) -> Self {
        Self { session, path }
    }

    /// The next change; `None` when the watch has ended with its sandbox. May be cancelled at its await.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, Fault> {
        loop {
            match self.hear().await? {
                Some(Heard::Event(event)) => return Ok(Some(event)),
                Some(Heard::Settled) => {}
                None => return Ok(None),
            }
        }
    }

    /// Asks for [`Heard::Settled`]. Only of a sandbox whose agent speaks protocol 3: an older one ends the watch.
    pub async fn settle(&mut self) -> Result<(), Fault> {
        self.session.ask(&self.path, &FileRequest::Settle).await
    }

    /// What comes next; `None` when the watch has ended with its sandbox. May be cancelled at its await.
    pub async fn hear(&mut self) -> Result<Option<Heard>, Fault> {
        match self.session.receive().await {
            Ok(Some(FileReply::Event { kind, path, is_directory })) => {
                Ok(Some(Heard::Event(FileEvent { kind, path, is_directory })))
            }
            Ok(Some(FileReply::Done)) => Ok(Some(Heard::Settled)),
            Ok(None) => Ok(None),
            Ok(Some(_)) | Err(_) => Err(broken(&self.path)),
        }
    }
}
