//! Reads files as git does: inside the workspace by descriptor and through no link, outside it as far as this user can.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, statat};
use rustix::io::Errno;

use super::GitResult;
use crate::host_tree::HostTree;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Maximum number of names read from one directory.
const LISTED_MAX: usize = 4096;

/// Files of the host, some of them in a workspace.
pub(super) struct Reading<'a> {
    pub(super) workspace: &'a HostTree,
}

impl Reading<'_> {
    pub(super) fn is_inside(&self, path: &Path) -> bool {
        path.starts_with(&self.workspace.path)
    }

    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        match path.strip_prefix(&self.workspace.path) {
            Ok(inside) if inside.as_os_str().is_empty() => {
                openat2(self.workspace.fd.as_fd(), ".", flags, Mode::empty(), RESOLVE)
            }
            Ok(inside) => openat2(self.workspace.fd.as_fd(), inside, flags, Mode::empty(), RESOLVE),
            // Outside, git can't reach what this user can't reach.
            Err(_) => openat(CWD, path, flags, Mode::empty()).map_err(|_| Errno::NOENT),
        }
    }

    pub(super) fn kind(&self, path: &Path) -> Result<Option<FileType>, Errno> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(Some(FileType::Directory));
        };
        let looked = self
            .open(parent, OFlags::PATH | OFlags::DIRECTORY)
            .and_then(|parent| statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW));
        match looked {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(_) if !self.is_inside(path) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn read(&self, path: &Path, length_max: usize) -> GitResult<Option<Vec<u8>>> {
        let fail = |errno: Errno| (path.to_owned(), errno);
        if self.kind(path).map_err(fail)? != Some(FileType::RegularFile) {
            return Ok(None);
        }
        let file = match self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Err(Errno::NOENT) => return Ok(None),
            other => std::fs::File::from(other.map_err(fail)?),
        };
        let mut bytes = Vec::new();
        let mut bounded = std::io::Read::take(file, length_max as u64 + 1);
        std::io::Read::read_to_end(&mut bounded, &mut bytes).map_err(|_| fail(Errno::IO))?;
        if bytes.len() > length_max {
            return Err(fail(Errno::FBIG));
        }
        Ok(Some(bytes))
    }

    pub(super) fn read_link(&self, directory: &Path, name: &[u8]) -> GitResult<PathBuf> {
        let fail = |errno: Errno| (directory.to_owned(), errno);
        let directory = self.open(directory, OFlags::PATH | OFlags::DIRECTORY).map_err(fail)?;
        let target = readlinkat(&directory, name, Vec::new()).map_err(fail)?;
        Ok(path_of(target.as_bytes()).to_owned())
    }

    /// The contents of a directory, sorted; empty if it doesn't exist.
    pub(super) fn list(&self, path: &Path) -> GitResult<Vec<(Vec<u8>, FileType)>> {
        let fail = |errno: Errno| (path.to_owned(), errno);
        let directory = match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            // A link in its place is refused when it is to be protected.
            Err(Errno::LOOP) => return Ok(Vec::new()),
            other => other.map_err(fail)?,
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                // Some filesystems don't report the type.
                FileType::Unknown => FileType::from_raw_mode(
                    statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?.st_mode,
                ),
                told => told,
            };
            names.push((name.to_vec(), kind));
            if names.len() > LISTED_MAX {
                return Err(fail(Errno::TOOBIG));
            }
        }
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }

    pub(super) fn directories(&self, path: &Path) -> GitResult<Vec<PathBuf>> {
        let listed = self.list(path)?.into_iter().filter(|(_, kind)| *kind == FileType::Directory);
        Ok(listed.map(|(name, _)| path_of(&name).to_owned()).collect())
    }
}

/// The path in a file that contains only a path: blanks at its end are part of it, line ends are not.
pub(crate) fn line_of(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    bytes[..end].split(|byte| *byte == 0).next().unwrap_or_default()
}

pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
