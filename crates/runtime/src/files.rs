//! Files of a sandbox, in its own view: a worker inside, running as the sandbox's user, does every operation.
//!
//! Nothing here touches a path of the host. The worker's output is bounded and untrusted: a sandbox may have taken it
//! over, and can then lie about its own files only.

mod content;
mod path;
mod session;
mod watch;

pub use content::{Reading, Walked, Walking, Writing};
pub use path::FilePath;
pub use saggar_guest::{FileEntry, FileEventKind, FileKind, MetadataEntry};
pub use watch::{FileEvent, Heard, Watching};

use saggar_domain::{SandboxId, User};
use saggar_guest::{FileReply, FileRequest};
use saggar_supervisor::control::Target;

use crate::fault::{Fault, FileFault, FileFaultKind};
use crate::permit::{Action, Permit};
use crate::sandboxes::Sandboxes;
use session::Session;

/// Maximum number of entries of one listing.
pub const LIST_MAX: u32 = 100_000;
pub const DEPTH_MAX: u32 = 64;
/// Maximum number of entries of a downloaded tree.
pub const WALK_MAX: u32 = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// Permissions of a new file.
    pub mode: u32,
    /// Whether to create missing parent directories.
    pub parents: bool,
    /// The number of bytes, if known.
    pub expected: Option<u64>,
}

/// The files of a sandbox, accessed as one of its users.
#[derive(Debug)]
pub struct Files {
    session: Session,
}

impl Files {
    pub async fn to_read(sandboxes: &Sandboxes, permit: &Permit, user: User) -> Result<Self, Fault> {
        permit.check(|action| matches!(action, Action::ReadFiles(_)))?;
        Self::open(sandboxes, permit, user).await
    }

    pub async fn to_write(sandboxes: &Sandboxes, permit: &Permit, user: User) -> Result<Self, Fault> {
        permit.check(|action| matches!(action, Action::WriteFiles(_)))?;
        Self::open(sandboxes, permit, user).await
    }

    async fn open(sandboxes: &Sandboxes, permit: &Permit, user: User) -> Result<Self, Fault> {
        let id: &SandboxId = permit.sandbox()?;
        let stream = sandboxes.open_stream(permit.project(), id, Target::Files, user).await?;
        Ok(Self { session: Session::over(stream) })
    }

    pub async fn stat(&mut self, path: &FilePath, follow: bool) -> Result<FileEntry, Fault> {
        self.session.ask(path, &FileRequest::Stat { path: path.bytes(), follow }).await?;
        match self.session.answer(path).await? {
            FileReply::Entry(entry) => Ok(entry),
            _ => Err(broken(path)),
        }
    }

    /// The entries of a directory, `depth` levels deep. Unreadable entries are left out and counted.
    pub async fn list(&mut self, path: &FilePath, depth: u32, most: u32) -> Result<(Vec<FileEntry>, u64), Fault> {
        let (depth, most) = (depth.clamp(1, DEPTH_MAX), most.min(LIST_MAX));
        self.session.ask(path, &FileRequest::List { path: path.bytes(), depth, most }).await?;
        let (mut entries, mut skipped) = (Vec::new(), 0);
        loop {
            match self.session.answer(path).await? {
                FileReply::Entry(entry) if entries.len() < most as usize => entries.push(entry),
                FileReply::Entry(_) => return Err(fault(path, FileFaultKind::TooMany)),
                FileReply::Skipped { .. } => skipped += 1,
                FileReply::End => return Ok((entries, skipped)),
                _ => return Err(broken(path)),
            }
        }
    }

    pub async fn make_directory(&mut self, path: &FilePath, parents: bool, mode: u32) -> Result<(), Fault> {
        self.session.ask(path, &FileRequest::MakeDir { path: path.bytes(), parents, mode }).await?;
        self.done(path).await
    }

    pub async fn move_to(&mut self, from: &FilePath, to: &FilePath) -> Result<(), Fault> {
        self.session.ask(from, &FileRequest::Move { from: from.bytes(), to: to.bytes() }).await?;
        self.done(from).await
    }

    pub async fn remove(&mut self, path: &FilePath, recursive: bool) -> Result<(), Fault> {
        self.session.ask(path, &FileRequest::Remove { path: path.bytes(), recursive }).await?;
        self.done(path).await
    }

    pub async fn link(&mut self, path: &FilePath, target: &[u8]) -> Result<(), Fault> {
        self.session.ask(path, &FileRequest::Link { path: path.bytes(), target: target.to_vec() }).await?;
        self.done(path).await
    }

    pub async fn set_mode(&mut self, path: &FilePath, mode: u32) -> Result<(), Fault> {
        self.session.ask(path, &FileRequest::SetMode { path: path.bytes(), mode }).await?;
        self.done(path).await
    }

    /// Needs an agent with protocol 4, which the sandboxes have that this server made.
    pub async fn set_owner(&mut self, path: &FilePath, uid: Option<u32>, gid: Option<u32>) -> Result<(), Fault> {
        self.session.ask(path, &FileRequest::SetOwner { path: path.bytes(), uid, gid }).await?;
        self.done(path).await
    }

    /// A file's metadata.
    pub async fn metadata(&mut self, path: &FilePath) -> Result<Vec<MetadataEntry>, Fault> {
        self.session.ask(path, &FileRequest::Metadata { path: path.bytes(), set: None }).await?;
        match self.session.answer(path).await? {
            FileReply::Metadata(entries) => Ok(entries),
            _ => Err(broken(path)),
        }
    }

    /// Replaces a file's metadata.
    pub async fn set_metadata(&mut self, path: &FilePath, entries: Vec<MetadataEntry>) -> Result<(), Fault> {
        self.session.ask(path, &FileRequest::Metadata { path: path.bytes(), set: Some(entries) }).await?;
        self.done(path).await
    }

    /// The total and free bytes of the filesystem that has this file.
    pub async fn storage(&mut self, path: &FilePath) -> Result<(u64, u64), Fault> {
        self.session.ask(path, &FileRequest::Storage { path: path.bytes() }).await?;
        match self.session.answer(path).await? {
            FileReply::Storage { total, free, .. } => Ok((total, free)),
            _ => Err(broken(path)),
        }
    }

    /// A file's content, from `offset`, at most `length` bytes.
    pub async fn read(mut self, path: &FilePath, offset: u64, length: Option<u64>) -> Result<Reading, Fault> {
        self.session.ask(path, &FileRequest::Read { path: path.bytes(), offset, length }).await?;
        match self.session.answer(path).await? {
            FileReply::Entry(entry) => Ok(Reading::new(self.session, path.clone(), entry)),
            _ => Err(broken(path)),
        }
    }

    /// Writes a file. The old content stays in place until [`Writing::finish`].
    pub async fn write(mut self, path: &FilePath, options: WriteOptions) -> Result<Writing, Fault> {
        let WriteOptions { mode, parents, expected } = options;
        self.session.ask(path, &FileRequest::Write { path: path.bytes(), mode, parents, expected }).await?;
        Ok(Writing::new(self.session, path.clone()))
    }

    /// Reads a whole tree.
    pub async fn walk(mut self, path: &FilePath) -> Result<Walking, Fault> {
        self.session.ask(path, &FileRequest::Walk { path: path.bytes(), most: WALK_MAX }).await?;
        Ok(Walking::new(self.session, path.clone()))
    }

    /// Reports changes from now on.
    pub async fn watch(mut self, path: &FilePath, recursive: bool) -> Result<Watching, Fault> {
        self.session.ask(path, &FileRequest::Watch { path: path.bytes(), recursive }).await?;
        match self.session.answer(path).await? {
            FileReply::Watching => Ok(Watching::new(self.session, path.clone())),
            _ => Err(broken(path)),
        }
    }

    async fn done(&mut self, path: &FilePath) -> Result<(), Fault> {
        match self.session.answer(path).await? {
            FileReply::Done => Ok(()),
            _ => Err(broken(path)),
        }
    }
}

fn fault(path: &FilePath, kind: FileFaultKind) -> Fault {
    Fault::File(FileFault { path: path.to_string(), kind })
}

fn broken(path: &FilePath) -> Fault {
    fault(path, FileFaultKind::Broken)
}
