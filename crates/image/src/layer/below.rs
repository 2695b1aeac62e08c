//! What the layers below have, as an overlay would show it: one view of several trees.
//!
//! Needed where an archive leaves something to them: a directory that it uses without describing it, a name behind a link
//! of theirs, a hard link to a file of theirs. Only reads. A link is never followed here; the caller gets its target.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat};
use rustix::io::Errno;

use super::Ownership;
use super::attributes::{self, Attribute};
use super::whiteout::{examined, is_opaque, is_whiteout};

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// The mode of a directory that no entry describes.
pub(super) const IMPLIED_MODE: u32 = 0o755;

/// A directory of the view: what each layer has of it, the topmost first; empty if no layer has it.
#[derive(Clone, Default)]
pub(crate) struct Below {
    parts: Vec<Rc<OwnedFd>>,
    /// Nothing in it is visible any more.
    is_hidden: bool,
}

/// A name in a directory of the view.
pub(super) enum Found {
    Nothing,
    Directory(Below),
    /// With its target.
    Link(Vec<u8>, Stat),
    /// A file or a pipe, and the directory that has it.
    Other(Rc<OwnedFd>, Stat),
}

/// What a directory takes over from the one below it.
pub(super) struct Likeness {
    pub(super) stat: Stat,
    pub(super) attributes: Vec<Attribute>,
}

impl Below {
    /// The tops of the layers, the topmost first.
    pub(crate) fn new(tops: Vec<OwnedFd>) -> Self {
        Self { parts: tops.into_iter().map(Rc::new).collect(), is_hidden: false }
    }

    pub(super) fn find(&self, name: &[u8]) -> Result<Found, Errno> {
        if self.is_hidden {
            return Ok(Found::Nothing);
        }
        let mut parts = Vec::new();
        for part in &self.parts {
            let Some(stat) = examined(part.as_fd(), name)? else { continue };
            if is_whiteout(&stat) {
                break;
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let directory = openat2(part, name, DIRECTORY, Mode::empty(), RESOLVE)?;
                let is_last = is_opaque(&directory)?;
                parts.push(Rc::new(directory));
                if is_last {
                    break;
                }
                continue;
            }
            // Below a directory it is hidden, and it hides what is below itself.
            if parts.is_empty() {
                return Ok(match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Symlink => Found::Link(readlinkat(part, name, Vec::new())?.into_bytes(), stat),
                    _ => Found::Other(Rc::clone(part), stat),
                });
            }
            break;
        }
        Ok(if parts.is_empty() { Found::Nothing } else { Found::Directory(Self { parts, is_hidden: false }) })
    }

    /// The same directory, if it is one; nothing of anything else.
    pub(super) fn directory(&self, name: &[u8]) -> Result<Self, Errno> {
        match self.find(name)? {
            Found::Directory(directory) => Ok(directory),
            Found::Nothing | Found::Link(..) | Found::Other(..) => Ok(Self::default()),
        }
    }

    /// The same directory, without anything in it.
    pub(super) fn hidden(&self) -> Self {
        Self { parts: self.parts.first().cloned().into_iter().collect(), is_hidden: true }
    }

    /// `None` if no layer has it.
    pub(super) fn likeness(&self) -> Result<Option<Likeness>, Errno> {
        let Some(top) = self.parts.first() else { return Ok(None) };
        Ok(Some(Likeness { stat: fstat(top)?, attributes: attributes::kept(top)? }))
    }

    /// Whether a directory that no entry describes would look like this one anyway.
    pub(crate) fn is_usual(&self, ownership: Ownership) -> Result<bool, Errno> {
        let Some(Likeness { stat, attributes }) = self.likeness()? else { return Ok(true) };
        let (root, _) = Ownership::on_disk(0);
        let is_roots = match ownership {
            Ownership::Shifted => (stat.st_uid, stat.st_gid) == (root, root),
            Ownership::Dropped => true,
        };
        Ok(is_roots && stat.st_mode & 0o7777 == IMPLIED_MODE && attributes.is_empty())
    }
}
