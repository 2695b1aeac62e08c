//! Writes new content of a file.
//!
//! Content is written to a file without a name, in the target directory, which gets its name once it is complete.
//! Readers see either all of the old content or all of the new, and an aborted write leaves nothing behind. If the
//! filesystem doesn't support files without a name, the file has a temporary name until then. If the directory accepts
//! no new files, or the file must keep another owner, an existing file is written in place, which is neither atomic nor
//! undone.
//!
//! A link is followed to where the content belongs, as far as the kernel would follow it.
//!
//! Watchers of the directory get an event for the name, then for the permissions and the content, as if the file had
//! been created and then written.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::MaybeUninit;

use saggar_guest::{FileKind, FileReply, FileRequest, FileStage, Message, PATH_MAX};

use super::at::{self, Links, ROOT, Touched};
use super::data::check_regular;
use super::session::{Session, Trouble, c_path};
use super::{change, entry};
use crate::agent::sys::{Errno, Fd, check};

/// Maximum number of links that are followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// Permissions of the file while it is written, so that no other user reads it.
const UNFINISHED_MODE: u32 = 0o600;

/// How many temporary names are tried.
const NAMES_TRIED: usize = 16;

/// Prefix of temporary names, and the number of hexadecimal digits that follow.
const OWN_PREFIX: &[u8] = b".saggar-";
const OWN_DIGITS: usize = 16;

/// The permission bits that are kept when a file is replaced.
const KEPT_MODE: u32 = 0o1777;

pub(super) fn write(
    session: &mut Session,
    path: Vec<u8>,
    mode: u32,
    parents: bool,
    expected: Option<u64>,
) -> Result<(), Trouble> {
    let mut writing = match Place::find(path, parents).and_then(|place| Writing::begin(place, mode, expected)) {
        Ok(writing) => Some(writing),
        Err(trouble) => {
            tell(session, trouble)?;
            None
        }
    };
    loop {
        let frame = session.next_frame()?;
        if FileRequest::is_data(frame.kind) {
            let taken = writing.as_mut().map_or(Ok(()), |writing| writing.take(session.payload(&frame)));
            if let Err(trouble) = taken {
                // Removed before the answer, so that it is gone when the host looks.
                writing = None;
                tell(session, trouble)?;
            }
            continue;
        }
        return match FileRequest::decode(frame.kind, session.payload(&frame)) {
            Ok(FileRequest::End) => match writing {
                Some(writing) => {
                    writing.finish()?;
                    session.reply(&FileReply::Done)
                }
                None => Ok(()),
            },
            Ok(FileRequest::Abort) => match writing.take() {
                Some(writing) => {
                    drop(writing);
                    session.reply(&FileReply::Done)
                }
                None => Ok(()),
            },
            Ok(_) | Err(_) => {
                drop(writing);
                Err(session.break_off())
            }
        };
    }
}

/// Reports a failure at once, so that the host need not send the rest.
fn tell(session: &mut Session, trouble: Trouble) -> Result<(), Trouble> {
    match trouble {
        Trouble::Failed(stage, errno) => {
            session.reply(&FileReply::Failed { errno: errno.0, stage })?;
            session.flush()
        }
        Trouble::Over => Err(Trouble::Over),
    }
}

/// The target of the content.
struct Place {
    directory: Fd,
    name: CString,
    /// The existing file, if any.
    existing: Option<libc::stat>,
}

impl Place {
    fn find(path: Vec<u8>, parents: bool) -> Result<Place, Trouble> {
        let mut path = c_path(path)?;
        // The kernel decides which links may be followed; only then are they followed here.
        let expected = match at::stat(ROOT, &path, Links::Follow) {
            Ok(status) => Some(status),
            Err(Errno(libc::ENOENT)) => None,
            Err(errno) => return Err(Trouble::Failed(FileStage::Find, errno)),
        };
        for _ in 0..LINKS_MAX {
            let (directory, name) = split(path.as_bytes())?;
            let place = open_directory(&directory, path.as_bytes(), parents)?;
            let existing = match at::stat(place.raw(), &name, Links::Stay) {
                Ok(status) => Some(status),
                Err(Errno(libc::ENOENT)) => None,
                Err(errno) => return Err(Trouble::Failed(FileStage::Find, errno)),
            };
            if existing.is_some_and(|status| entry::kind(&status) == FileKind::Link) {
                let target = at::read_link(place.raw(), &name).map_err(Trouble::at(FileStage::Find))?;
                path = c_path(join(directory.as_bytes(), target)?)?;
                continue;
            }
            let identity = |status: libc::stat| (status.st_dev, status.st_ino);
            if let Some(status) = existing {
                check_regular(&status)?;
            }
            if existing.map(identity) != expected.map(identity) {
                // It was swapped in the meantime, or is one of the kernel's magic links.
                return Err(Trouble::Failed(FileStage::Find, Errno(libc::ESTALE)));
            }
            return Ok(Place { directory: place, name, existing });
        }
        Err(Trouble::Failed(FileStage::Find, Errno(libc::ELOOP)))
    }
}

/// The directory, with its final slash, and the name in it.
fn split(path: &[u8]) -> Result<(CString, CString), Trouble> {
    let slash = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (directory, name) = path.split_at(slash);
    if matches!(name, b"" | b"." | b"..") {
        return Err(Trouble::Failed(FileStage::NotRegular, Errno(libc::EISDIR)));
    }
    Ok((c_path(directory.to_vec())?, c_path(name.to_vec())?))
}

fn open_directory(directory: &CStr, path: &[u8], parents: bool) -> Result<Fd, Trouble> {
    match at::open_place(ROOT, directory) {
        Err(Errno(libc::ENOENT)) if parents => {
            change::make_parents(path)?;
            at::open_place(ROOT, directory).map_err(Trouble::at(FileStage::Parents))
        }
        opened => opened.map_err(Trouble::at(FileStage::Find)),
    }
}

fn join(directory: &[u8], target: Vec<u8>) -> Result<Vec<u8>, Trouble> {
    let path = if target.first() == Some(&b'/') { target } else { [directory, &target].concat() };
    if path.len() < PATH_MAX { Ok(path) } else { Err(Trouble::Failed(FileStage::Find, Errno(libc::ENAMETOOLONG))) }
}

struct Writing {
    place: Place,
    mode: u32,
    expected: Option<u64>,
    written: u64,
    file: Fd,
    manner: Manner,
}

/// How the content gets its name.
enum Manner {
    /// It has none yet.
    Nameless,
    /// It has a temporary one.
    Named(CString),
    /// It already has its final name. The old content is truncated when the first new content comes.
    InPlace { is_cut: bool },
}

impl Writing {
    fn begin(place: Place, mode: u32, expected: Option<u64>) -> Result<Writing, Trouble> {
        if expected.is_some_and(|expected| is_too_much(&place.directory, expected)) {
            return Err(Trouble::Failed(FileStage::Content, Errno(libc::ENOSPC)));
        }
        let mode = match &place.existing {
            Some(status) => {
                // Replacing a file needs no permission on it; changing its content does.
                at::is_writable(place.directory.raw(), &place.name).map_err(Trouble::at(FileStage::Find))?;
                status.st_mode & KEPT_MODE
            }
            None => mode,
        };
        let (file, manner) = match new_file(&place) {
            Ok(new) => new,
            Err(Errno(libc::EACCES | libc::EPERM | libc::EROFS)) if place.existing.is_some() => existing_file(&place)?,
            Err(errno) => return Err(Trouble::Failed(FileStage::Create, errno)),
        };
        let mut writing = Writing { place, mode, expected, written: 0, file, manner };
        if let Some(status) = writing.place.existing
            && !writing.is_in_place()
            && !takes_owner(&writing.file, &status)
        {
            writing.forget_name();
            (writing.file, writing.manner) = existing_file(&writing.place)?;
        }
        Ok(writing)
    }

    fn is_in_place(&self) -> bool {
        matches!(self.manner, Manner::InPlace { .. })
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Trouble> {
        self.cut()?;
        self.written += bytes.len() as u64;
        if self.expected.is_some_and(|expected| self.written > expected) {
            return Err(Trouble::Failed(FileStage::Content, Errno(libc::EMSGSIZE)));
        }
        while !bytes.is_empty() {
            let count = self.file.write(bytes).map_err(Trouble::at(FileStage::Content))?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Truncates a file that is written in place.
    fn cut(&mut self) -> Result<(), Trouble> {
        if let Manner::InPlace { is_cut: is_cut @ false } = &mut self.manner {
            // SAFETY: takes numbers only.
            check(unsafe { libc::ftruncate(self.file.raw(), 0) }).map_err(Trouble::at(FileStage::Content))?;
            *is_cut = true;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Trouble> {
        if self.expected.is_some_and(|expected| self.written != expected) {
            return Err(Trouble::Failed(FileStage::Content, Errno(libc::EMSGSIZE)));
        }
        self.cut()?;
        if !self.is_in_place() {
            at::set_mode_open(&self.file, self.mode).map_err(Trouble::at(FileStage::Attributes))?;
        }
        let is_new = !self.is_in_place();
        self.publish().map_err(Trouble::at(FileStage::Publish))?;
        if is_new {
            self.tell_watchers();
        }
        Ok(())
    }

    /// Makes the kernel report permissions and content to watchers: until now the file had no name to report. Only its
    /// times are touched, as another writer may already work on it. On failure the events are only missing.
    fn tell_watchers(&self) {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let Ok(named) = at::open(self.place.directory.raw(), &self.place.name, flags, 0) else { return };
        let (Ok(ours), Ok(theirs)) = (at::stat_open(&self.file), at::stat_open(&named)) else { return };
        if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino) {
            // To the kernel, setting both times is a change of attributes, and setting only the modification time is a
            // change of content.
            for touched in [Touched::Attributes, Touched::Content] {
                // A file whose times we may not change is complete anyway; only the events are missing.
                let _ = at::touch(&named, touched);
            }
        }
    }

    fn publish(&mut self) -> Result<(), Errno> {
        let (directory, name) = (self.place.directory.raw(), &self.place.name);
        if let Manner::Nameless = self.manner {
            if self.place.existing.is_none() {
                match at::name_open(&self.file, directory, name) {
                    Err(Errno(libc::EEXIST)) => {}
                    named => return named,
                }
            }
            // A file without a name can only be linked to a free name, so replacing takes a second step.
            let (_, own) = with_own_name(|own| at::name_open(&self.file, directory, own))?;
            self.manner = Manner::Named(own);
        }
        if let Manner::Named(own) = &self.manner {
            at::rename((directory, own), (directory, name))?;
            // It is no longer ours to remove.
            self.manner = Manner::InPlace { is_cut: true };
        }
        Ok(())
    }

    fn forget_name(&mut self) {
        if let Manner::Named(own) = &self.manner {
            // If it cannot be removed, nothing else can be done.
            let _ = at::unlink(self.place.directory.raw(), own);
        }
        self.manner = Manner::Nameless;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.forget_name();
    }
}

/// A file to write to, without a name if possible.
fn new_file(place: &Place) -> Result<(Fd, Manner), Errno> {
    let directory = place.directory.raw();
    match at::open(directory, c".", libc::O_WRONLY | libc::O_TMPFILE, UNFINISHED_MODE) {
        // It gets its name through this path.
        Ok(file) if at::stat(ROOT, at::open_path(&file).as_c_str(), Links::Follow).is_ok() => {
            return Ok((file, Manner::Nameless));
        }
        Ok(_) | Err(Errno(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {}
        Err(errno) => return Err(errno),
    }
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let (file, own) = with_own_name(|own| at::open(directory, own, flags, UNFINISHED_MODE))?;
    Ok((file, Manner::Named(own)))
}

fn existing_file(place: &Place) -> Result<(Fd, Manner), Trouble> {
    let file = at::open(place.directory.raw(), &place.name, libc::O_WRONLY | libc::O_NOFOLLOW, 0)
        .map_err(Trouble::at(FileStage::Find))?;
    check_regular(&at::stat_open(&file).map_err(Trouble::at(FileStage::Find))?)?;
    Ok((file, Manner::InPlace { is_cut: false }))
}

/// Whether the new file can have the old one's owner.
fn takes_owner(file: &Fd, old: &libc::stat) -> bool {
    let is_same = at::stat_open(file).is_ok_and(|new| (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid));
    is_same || file.give_to(old.st_uid, Some(old.st_gid)).is_ok()
}

/// Runs `with` with an unused name.
fn with_own_name<T>(mut with: impl FnMut(&CStr) -> Result<T, Errno>) -> Result<(T, CString), Errno> {
    for _ in 0..NAMES_TRIED {
        let own = own_name()?;
        match with(&own) {
            Err(Errno(libc::EEXIST)) => {}
            outcome => return outcome.map(|made| (made, own)),
        }
    }
    Err(Errno(libc::EEXIST))
}

/// Whether this is a temporary name of a file that is being written.
pub(super) fn is_own_name(name: &[u8]) -> bool {
    name.strip_prefix(OWN_PREFIX)
        .is_some_and(|digits| digits.len() == OWN_DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

fn own_name() -> Result<CString, Errno> {
    let mut random = [0u8; OWN_DIGITS / 2];
    // SAFETY: the pointer and the length are those of one writable array. This few bytes always come whole.
    if unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) } < 0 {
        return Err(Errno::last());
    }
    let mut name = OWN_PREFIX.to_vec();
    for byte in random {
        name.extend([byte >> 4, byte & 0xf].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
    }
    CString::new(name).map_err(|_| Errno(libc::EINVAL))
}

/// Whether this much certainly does not fit.
fn is_too_much(directory: &Fd, bytes: u64) -> bool {
    let mut filesystem = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: fstatvfs fills in the whole struct when it succeeds, and only then is it read.
    let filesystem = unsafe {
        if libc::fstatvfs(directory.raw(), filesystem.as_mut_ptr()) < 0 {
            return false;
        }
        filesystem.assume_init()
    };
    // A total of zero means that the filesystem doesn't count blocks.
    filesystem.f_blocks > 0 && filesystem.f_bavail.saturating_mul(filesystem.f_frsize) < bytes
}
