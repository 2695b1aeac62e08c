//! Whiteouts: how an archive says that something of a lower layer is gone, and how an overlay mounted with `userxattr`
//! says it.
//!
//! An archive names `.wh.NAME` for one name, and `.wh..wh..opq` for everything that lower layers have in a directory. On
//! disk the first is a character device 0/0, which ordinary users may make too, and the second an attribute.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat, Uid, XattrFlags, chownat, fgetxattr, fsetxattr, mknodat, statat};
use rustix::io::Errno;

use super::Ownership;

pub(super) const PREFIX: &[u8] = b".wh.";
/// Names that the inventor of this form kept for itself; they mean nothing to others.
const META_PREFIX: &[u8] = b".wh..wh.";
pub(super) const OPAQUE_NAME: &[u8] = b".wh..wh..opq";
/// Understood with `userxattr`.
pub(super) const OPAQUE: &str = "user.overlay.opaque";

/// What a name says about lower layers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark<'a> {
    /// Nothing: it is a name.
    None,
    /// Ignored.
    Meta,
    /// All that lower layers have in this directory is gone.
    Opaque,
    /// This name is gone.
    Gone(&'a [u8]),
    Malformed,
}

impl<'a> Mark<'a> {
    pub(super) fn of(name: &'a [u8]) -> Self {
        if name == OPAQUE_NAME {
            return Self::Opaque;
        }
        if name.starts_with(META_PREFIX) {
            return Self::Meta;
        }
        match name.strip_prefix(PREFIX) {
            None => Self::None,
            Some(b"" | b"." | b"..") => Self::Malformed,
            Some(gone) => Self::Gone(gone),
        }
    }
}

pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Makes a whiteout; `false` if the name exists already.
pub(super) fn make(directory: BorrowedFd<'_>, name: &[u8], ownership: Ownership) -> Result<bool, Errno> {
    match mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0) {
        Err(Errno::EXIST) => return Ok(false),
        other => other?,
    }
    if ownership == Ownership::Shifted {
        let (owner, _) = Ownership::on_disk(0);
        let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
        chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(true)
}

/// Hides what lower layers have in a directory.
pub(super) fn make_opaque(directory: impl AsFd) -> Result<(), Errno> {
    fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())
}

/// Whether what lower layers have in a directory is hidden.
pub(super) fn is_opaque(directory: impl AsFd) -> Result<bool, Errno> {
    let mut value = [0; 1];
    match fgetxattr(directory, OPAQUE, &mut value) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// `None`: there is nothing of that name.
pub(super) fn examined(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_marks_by_their_beginning() {
        for (name, expected) in [
            ("a", Mark::None),
            (".wh", Mark::None),
            (".wh.a", Mark::Gone(b"a")),
            (".wh..a", Mark::Gone(b".a")),
            (".wh..wh..opq", Mark::Opaque),
            (".wh..wh.plnk", Mark::Meta),
            (".wh.", Mark::Malformed),
            (".wh..", Mark::Malformed),
            (".wh...", Mark::Malformed),
        ] {
            assert_eq!(Mark::of(name.as_bytes()), expected, "{name}");
        }
    }
}
