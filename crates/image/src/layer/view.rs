//! Looks at several layers as an overlay of them would show them, without mounting anything; or at one directory of the host.
//!
//! INVARIANT: nothing outside of the layers is ever opened. Every path is opened beneath a layer without following links (`openat2`). Links are
//! followed by [`View::resolve`] alone, by name, inside the view.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fgetxattr, fstat, openat2, readlinkat, statat,
};
use rustix::io::Errno;
use saggar_sandbox::{HeldTemplate, STORE_IDS};

use super::whiteout::{OPAQUE, is_whiteout};

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Links on the way to one path, as the kernel counts them.
const LINKS_MAX: usize = 40;

/// Files in layers, the topmost first.
#[derive(Debug)]
pub struct View {
    layers: Vec<OwnedFd>,
    owners: ViewOwners,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ViewOwners {
    /// As the store keeps them.
    Shifted,
    /// Everything belongs to root: a directory of the host, or a store without owners.
    Root,
}

/// Something that a view shows.
#[derive(Debug)]
pub struct Seen {
    pub(crate) stat: Stat,
    /// Opened to look at it only.
    place: OwnedFd,
}

impl Seen {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub fn is_directory(&self) -> bool {
        self.kind() == FileType::Directory
    }

    pub(crate) fn link_target(&self) -> Result<Vec<u8>, Errno> {
        Ok(readlinkat(&self.place, "", Vec::new())?.into_bytes())
    }
}

/// What a link, or `..`, does at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// Stays at the top, as for a process whose root it is.
    Stays,
    /// It is an error: the view is a part of something larger.
    Refused,
}

#[derive(Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// It leads out of the view.
    Outside,
    TooManyLinks,
    Errno(Errno),
}

impl View {
    /// The files of a template.
    pub fn of_template(template: &HeldTemplate) -> Result<Self, Errno> {
        let is_shifted =
            template.layers.iter().all(|layer| layer.record.owners == saggar_domain::template::Owners::Shifted);
        let open = |layer: &saggar_sandbox::StoredLayer| openat2(layer.tree(), ".", DIRECTORY, Mode::empty(), RESOLVE);
        let layers = template.layers.iter().rev().map(open).collect::<Result<_, _>>()?;
        Ok(Self { layers, owners: if is_shifted { ViewOwners::Shifted } else { ViewOwners::Root } })
    }

    /// A directory of the host; everything in it counts as root's.
    pub fn of_directory(directory: OwnedFd) -> Self {
        Self { layers: vec![directory], owners: ViewOwners::Root }
    }

    /// Nothing at all.
    pub fn empty() -> Self {
        Self { layers: Vec::new(), owners: ViewOwners::Root }
    }

    /// The layers themselves, the topmost first.
    pub fn layers(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        self.layers.iter().map(AsFd::as_fd).collect()
    }

    pub(crate) fn id_inside(&self, id: u32) -> u32 {
        match self.owners {
            ViewOwners::Shifted => id.wrapping_sub(STORE_IDS.start),
            ViewOwners::Root => 0,
        }
    }

    /// What is at a path: names joined by `/`, without links; empty for the top.
    pub fn look(&self, path: &[u8]) -> Result<Option<Seen>, Errno> {
        for layer in &self.layers {
            let place = if path.is_empty() { b"." } else { path };
            match openat2(layer, place, LOOK, Mode::empty(), RESOLVE) {
                Ok(place) => {
                    let stat = fstat(&place)?;
                    return Ok((!is_whiteout(&stat)).then_some(Seen { stat, place }));
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if hides(layer, path)? => return Ok(None),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// The names in a directory, sorted.
    pub fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        let (mut shown, mut gone) = (BTreeSet::new(), BTreeSet::new());
        for layer in &self.layers {
            let place = if path.is_empty() { b"." } else { path };
            let directory = match openat2(layer, place, DIRECTORY, Mode::empty(), RESOLVE) {
                Ok(directory) => directory,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if hides(layer, path)? || is_there(layer, path) => {
                    break;
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(errno),
            };
            for entry in Dir::read_from(&directory)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name == b"." || name == b".." || shown.contains(name) || gone.contains(name) {
                    continue;
                }
                // Only a device can be a whiteout, and most filesystems say what is one.
                let may_be_gone = matches!(entry.file_type(), FileType::CharacterDevice | FileType::Unknown);
                if may_be_gone && is_whiteout(&statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?) {
                    gone.insert(name.to_vec());
                } else {
                    shown.insert(name.to_vec());
                }
            }
            if is_opaque(&directory) {
                break;
            }
        }
        Ok(shown.into_iter().collect())
    }

    /// Opens a file for reading.
    pub(crate) fn open(&self, path: &[u8]) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        for layer in &self.layers {
            match openat2(layer, path, flags, Mode::empty(), RESOLVE) {
                Ok(file) => return Ok(File::from(file)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if hides(layer, path)? => return Err(Errno::NOENT),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::NOENT)
    }

    /// Follows links inside the view. Names behind one that doesn't exist are taken as they are.
    pub fn resolve(&self, path: &[u8], beyond: Beyond) -> Result<Vec<u8>, ResolveError> {
        let mut left: Vec<Vec<u8>> = names(path).rev().map(<[u8]>::to_vec).collect();
        let mut done: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == b".." {
                if done.pop().is_none() && beyond == Beyond::Refused {
                    return Err(ResolveError::Outside);
                }
                continue;
            }
            done.push(name);
            let seen = self.look(&done.join(&b'/')).map_err(ResolveError::Errno)?;
            let Some(link) = seen.filter(|seen| seen.kind() == FileType::Symlink) else { continue };
            links += 1;
            if links > LINKS_MAX {
                return Err(ResolveError::TooManyLinks);
            }
            let target = link.link_target().map_err(ResolveError::Errno)?;
            done.pop();
            if target.starts_with(b"/") {
                if beyond == Beyond::Refused {
                    return Err(ResolveError::Outside);
                }
                done.clear();
            }
            left.extend(names(&target).rev().map(<[u8]>::to_vec));
        }
        Ok(done.join(&b'/'))
    }
}

/// The names of a path, without empty ones and `.`.
fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

/// Whether a layer that doesn't have a path keeps lower layers from showing it.
fn hides(layer: &OwnedFd, path: &[u8]) -> Result<bool, Errno> {
    let mut at = openat2(layer, ".", DIRECTORY, Mode::empty(), RESOLVE)?;
    for name in names(path) {
        if is_opaque(&at) {
            return Ok(true);
        }
        at = match openat2(&at, name, DIRECTORY, Mode::empty(), RESOLVE) {
            Ok(next) => next,
            Err(Errno::NOENT) => return Ok(false),
            // A whiteout, a file or a link.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(true),
            Err(errno) => return Err(errno),
        };
    }
    Ok(false)
}

fn is_there(layer: &OwnedFd, path: &[u8]) -> bool {
    openat2(layer, path, LOOK, Mode::empty(), RESOLVE).is_ok()
}

pub(crate) fn is_opaque(directory: impl AsFd) -> bool {
    let mut value = [0; 8];
    fgetxattr(directory, OPAQUE, &mut value).is_ok_and(|length| value.get(..length) == Some(b"y"))
}
