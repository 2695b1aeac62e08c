//! Watches files for changes.

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEvent {
    pub kind: FileEventKind,
    /// Relative to the watched path; empty for that path itself.
    pub path: Vec<u8>,
    /// Whether it is, or was, a directory.
    pub is_directory: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Event(FileEvent),
    /// All changes before the call of [`Watching::settle`] have been reported.
    Settled,
}

impl Watching {
    pub(super) fn new(session: Session, path: FilePath) -> Self {
        Self { session, path }
    }

    /// The next change; `None` if the watch has ended with its sandbox. May be cancelled at its await.
    pub async fn next(&mut self) -> Result<Option<FileEvent>, Fault> {
        loop {
            match self.hear().await? {
                Some(Heard::Event(event)) => return Ok(Some(event)),
                Some(Heard::Settled) => {}
                None => return Ok(None),
            }
        }
    }

    /// Requests [`Heard::Settled`]. Needs an agent with protocol 3: an older one ends the watch.
    pub async fn settle(&mut self) -> Result<(), Fault> {
        self.session.ask(&self.path, &FileRequest::Settle).await
    }

    /// The next message; `None` if the watch has ended with its sandbox. May be cancelled at its await.
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
