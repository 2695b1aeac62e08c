//! `saggar sandbox cp`: copies a file or a directory into or out of a sandbox.
//!
//! As with `cp`, a source is put into a destination directory under its own name. A file appears whole or not at all,
//! on both sides. A directory may be left half-copied after a failure; repeating the copy overwrites it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use saggar_api::client::{Client, SandboxHandle};
use saggar_api::{Code, FileKind, FileMode, FilePath, FileQuery, MakeDirectory, StatQuery, WriteQuery};
use saggar_domain::User;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};

use super::dispatch::{CommandResult, note, print_json};
use super::failure::CommandFailure;
use super::pipe::{inward, outward};
use super::place::Place;
use super::progress::Progress;
use super::unpack::{temporary, unpack};

pub(crate) async fn main(client: &Client, from: Place, to: Place, user: Option<User>, is_json: bool) -> CommandResult {
    let copied = match (from, to) {
        (Place::Here(from), Place::There(id, to)) => {
            Inside { sandbox: client.sandbox(id), user }.upload(&from, to).await?
        }
        (Place::There(id, from), Place::Here(to)) => {
            Inside { sandbox: client.sandbox(id), user }.download(from, &to).await?
        }
        (Place::Here(_), Place::Here(_)) | (Place::There(..), Place::There(..)) => {
            return Err(CommandFailure::ours(
                "invalid_value",
                "exactly one of the two paths must be in a sandbox",
                "write the path in the sandbox as SANDBOX:PATH",
            ));
        }
    };
    if copied.skipped > 0 {
        note(&format!("{} entries were left out: devices, pipes, or links that lead out of the tree", copied.skipped));
    }
    if is_json {
        let Copied { files, directories, links, bytes, skipped } = copied;
        print_json(
            &json!({"files": files, "directories": directories, "links": links, "bytes": bytes, "skipped": skipped}),
        )?;
    }
    Ok(0)
}

#[derive(Default)]
struct Copied {
    files: u64,
    directories: u64,
    links: u64,
    bytes: u64,
    skipped: u64,
}

struct Inside {
    sandbox: SandboxHandle,
    user: Option<User>,
}

impl Inside {
    async fn upload(&self, from: &Path, to: FilePath) -> Result<Copied, CommandFailure> {
        let found = std::fs::metadata(from).map_err(|error| CommandFailure::file(from, "read", &error))?;
        let to = self.destination(from, to).await?;
        if found.is_dir() {
            return self.upload_tree(from, to).await;
        }
        if !found.is_file() {
            return Err(CommandFailure::ours(
                "not_a_regular_file",
                format!("{from:?} is neither a file nor a directory"),
                "",
            ));
        }
        let file = tokio::fs::File::open(from).await.map_err(|error| CommandFailure::file(from, "read", &error))?;
        let progress = Progress::new(&from.to_string_lossy(), Some(found.len()));
        let query = WriteQuery { path: to, mode: Some(FileMode::of(found.mode())), parents: false, user: self.user };
        let counted = Counted { reader: file, progress: progress.clone() };
        let written = self.sandbox.write_file(&query, counted, Some(found.len())).await;
        progress.finish();
        Ok(Copied { files: 1, bytes: written?.bytes, ..Copied::default() })
    }

    /// The destination path: if `to` is an existing directory, the source's own name inside it, else `to` itself.
    async fn destination(&self, from: &Path, to: FilePath) -> Result<FilePath, CommandFailure> {
        let is_directory = match self.stat(&to).await {
            Ok(kind) => kind == FileKind::Directory,
            Err(error) if error.problem().is_some_and(|problem| problem.code == Code::FileNotFound) => {
                to.as_str().ends_with('/')
            }
            Err(error) => return Err(error.into()),
        };
        if !is_directory {
            return Ok(to);
        }
        let name = own_name(from)?;
        FilePath::parse(&format!("{}/{name}", to.as_str().trim_end_matches('/')))
            .map_err(|complaint| CommandFailure::ours("invalid_value", complaint, ""))
    }

    async fn stat(&self, path: &FilePath) -> Result<FileKind, saggar_api::client::Error> {
        let query = StatQuery { path: path.clone(), follow: true, user: self.user };
        Ok(self.sandbox.stat_file(&query).await?.kind)
    }

    async fn upload_tree(&self, from: &Path, to: FilePath) -> Result<Copied, CommandFailure> {
        let directory = MakeDirectory { path: to.clone(), parents: true, mode: None, user: self.user };
        self.sandbox.make_directory(&directory).await?;
        let progress = Progress::new(&from.to_string_lossy(), None);
        let (mut packer, packed) = outward();
        let folder = from.to_owned();
        let packing = tokio::task::spawn_blocking(move || match pack(&folder, &mut packer) {
            Ok(skipped) => Ok(skipped),
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                packer.fail(error);
                Err(copy)
            }
        });
        let counted = Counted { reader: packed, progress: progress.clone() };
        let sent = self.sandbox.upload_tree(&FileQuery { path: to, user: self.user }, counted).await;
        progress.finish();
        let report = match sent {
            Ok(report) => report,
            // The server's reason takes precedence; if the connection merely broke, our own side may know why.
            Err(error) if error.problem().is_some() => return Err(error.into()),
            Err(error) => match packing.await {
                Ok(Err(ours)) if ours.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(CommandFailure::file(from, "read", &ours));
                }
                _ => return Err(error.into()),
            },
        };
        let skipped =
            packing.await.map_err(io::Error::other)?.map_err(|error| CommandFailure::file(from, "read", &error))?;
        Ok(Copied {
            files: report.files,
            directories: report.directories,
            links: report.links,
            bytes: report.bytes,
            skipped,
        })
    }

    async fn download(&self, from: FilePath, to: &Path) -> Result<Copied, CommandFailure> {
        let kind = self.stat(&from).await?;
        let to = if to.is_dir() { to.join(own_name(Path::new(from.as_str()))?) } else { to.to_owned() };
        let query = FileQuery { path: from.clone(), user: self.user };
        match kind {
            FileKind::Directory => self.download_tree(&query, &to).await,
            FileKind::File | FileKind::Link | FileKind::Other => self.download_file(&query, &to).await,
        }
    }

    async fn download_file(&self, query: &FileQuery, to: &Path) -> Result<Copied, CommandFailure> {
        let fail = |error: &io::Error| CommandFailure::file(to, "written", error);
        let mode = {
            let query = StatQuery { path: query.path.clone(), follow: true, user: query.user };
            self.sandbox.stat_file(&query).await?.mode
        };
        let mut download = self.sandbox.read_file(query).await?;
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let beside = Beside::new(folder);
        let file = temporary(folder, &beside.name).map_err(|error| fail(&error))?;
        let mut file = tokio::fs::File::from_std(file);
        let progress = Progress::new(query.path.as_str(), download.length());
        let mut bytes = 0;
        while let Some(piece) = download.next().await? {
            file.write_all(&piece).await.map_err(|error| fail(&error))?;
            bytes += piece.len() as u64;
            progress.add(piece.len() as u64);
        }
        file.flush().await.map_err(|error| fail(&error))?;
        progress.finish();
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode.bits());
        file.set_permissions(permissions).await.map_err(|error| fail(&error))?;
        beside.become_file(to).map_err(|error| fail(&error))?;
        Ok(Copied { files: 1, bytes, ..Copied::default() })
    }

    async fn download_tree(&self, query: &FileQuery, to: &Path) -> Result<Copied, CommandFailure> {
        let mut download = self.sandbox.download_tree(query).await?;
        match std::fs::create_dir(to) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && to.is_dir() => {}
            Err(error) => return Err(CommandFailure::file(to, "made", &error)),
        }
        let progress = Progress::new(query.path.as_str(), None);
        let (sender, archive) = inward();
        let unpacking = {
            let (to, progress) = (to.to_owned(), progress.clone());
            tokio::task::spawn_blocking(move || unpack(archive, &to, &progress))
        };
        let broken = loop {
            match download.next().await {
                Ok(None) => break None,
                // A thread that has stopped reading reports why.
                Ok(Some(piece)) => {
                    if sender.send(Ok(piece.to_vec())).await.is_err() {
                        break None;
                    }
                }
                Err(error) => {
                    // If the thread is gone, it doesn't need the error.
                    let _ = sender.send(Err(io::ErrorKind::ConnectionReset.into())).await;
                    break Some(error);
                }
            }
        };
        drop(sender);
        let unpacked = unpacking.await.map_err(io::Error::other)?;
        progress.finish();
        if let Some(error) = broken {
            return Err(error.into());
        }
        let told = unpacked.map_err(|error| CommandFailure::file(to, "unpacked into", &error))?;
        Ok(Copied {
            files: told.files,
            directories: told.directories,
            links: told.links,
            bytes: told.bytes,
            skipped: told.skipped,
        })
    }
}

/// A reader that reports progress.
struct Counted<R> {
    reader: R,
    progress: Progress,
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<R> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        ready!(Pin::new(&mut self.reader).poll_read(context, space))?;
        self.progress.add((space.filled().len() - before) as u64);
        Poll::Ready(Ok(()))
    }
}

/// A temporary file beside the destination, removed on drop unless it has been renamed.
struct Beside {
    folder: PathBuf,
    name: String,
}

impl Beside {
    fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), name: format!(".saggar-cp-{}", std::process::id()) }
    }

    fn become_file(&self, to: &Path) -> io::Result<()> {
        std::fs::rename(self.folder.join(&self.name), to)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // The file no longer has this name if it was renamed.
        let _ = std::fs::remove_file(self.folder.join(&self.name));
    }
}

/// The last component of a path, for putting it into a directory.
fn own_name(path: &Path) -> Result<String, CommandFailure> {
    let full;
    let named = match path.file_name() {
        Some(name) => Some(name),
        None => {
            full = path.canonicalize().unwrap_or_default();
            full.file_name()
        }
    };
    named.and_then(|name| name.to_str()).map(str::to_owned).ok_or_else(|| {
        CommandFailure::ours(
            "invalid_value",
            format!("{path:?} has no file name"),
            "write the destination with its file name",
        )
    })
}

/// Packs the contents of a directory. Links stay links; entries that are neither file, directory nor link are left
/// out and counted.
fn pack(folder: &Path, out: &mut impl io::Write) -> io::Result<u64> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    let mut skipped = 0;
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        for entry in std::fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let (full, name) = (entry.path(), below.join(entry.file_name()));
            let kind = entry.file_type()?;
            if kind.is_dir() {
                archive.append_dir(&name, &full)?;
                waiting.push(name);
            } else if kind.is_file() || kind.is_symlink() {
                archive.append_path_with_name(&full, &name)?;
            } else {
                skipped += 1;
            }
        }
    }
    archive.finish()?;
    archive.into_inner()?.flush()?;
    Ok(skipped)
}
