//! Writes the entries of one layer below one directory.
//!
//! INVARIANT: nothing outside that directory is ever opened, made or removed. Every path is opened beneath it without
//! following any link (`openat2`), and a last name is only used with calls that don't follow one.
//!
//! A later entry replaces an earlier one of the same name, as in any archive, unless one of both is a directory.
//!
//! What an archive leaves to the layers below it is taken from them ([`Below`]): a directory that it uses without
//! describing it, the target of a link on the way, a file that it links to. What was taken is recorded, because such a layer
//! can't be used above others.

mod copy;
mod parents;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chmodat, chownat, fchmod, fchown,
    fstat, futimens, linkat, mkdirat, mknodat, openat2, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_domain::template::{Dropped, Taken};

use super::below::{Below, IMPLIED_MODE};
use super::entry_path::EntryPath;
use super::whiteout::{self, Mark, examined, is_whiteout};
use super::{Ownership, attributes};
use crate::failure::{refused, shown, storage};
use crate::limits::Budget;
use crate::tar::Entry;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Links are refused by how it is resolved.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const SET_IDS: u32 = 0o6000;
/// Longest target of a symbolic link, as the kernel has it.
const TARGET_LEN_MAX: usize = 4095;
pub(super) const HOSTILE: &str = "the image is malformed or hostile: don't use it, or build it anew";

pub(super) struct Writer {
    root: Rc<OwnedFd>,
    ownership: Ownership,
    below: Below,
    /// The directory of the entry before, which the next one is usually in too, by what the archive calls it.
    latest: Option<(EntryPath, Parent)>,
    is_top_described: bool,
    has_taken_entries: bool,
    is_bottom: bool,
    /// Times of directories are set last, because every new entry changes them.
    directory_times: BTreeMap<EntryPath, (i64, u32)>,
    /// Digests of contents by inode.
    pub(super) contents: HashMap<u64, [u8; 32]>,
    pub(super) dropped: Dropped,
}

/// A directory of the layer.
#[derive(Clone)]
struct Parent {
    /// Without links. Archives may call it otherwise, by a link of a lower layer.
    path: EntryPath,
    directory: Rc<OwnedFd>,
}

impl Writer {
    /// `root` is an empty directory that nobody else uses, `below` what the layers below have at its place.
    pub(super) fn new(root: OwnedFd, below: Below, ownership: Ownership) -> Result<Self, Problem> {
        let mut writer = Self {
            root: Rc::new(root),
            ownership,
            below,
            latest: None,
            is_top_described: false,
            has_taken_entries: false,
            is_bottom: false,
            directory_times: BTreeMap::from([(EntryPath::top(), (0, 0))]),
            contents: HashMap::new(),
            dropped: Dropped::default(),
        };
        let root = Rc::clone(&writer.root);
        writer.own(root.as_fd(), 0, 0).and_then(|()| fchmod(&root, Mode::from_raw_mode(IMPLIED_MODE))).map_err(io)?;
        Ok(writer)
    }

    /// What this layer has from those below.
    pub(super) fn taken(&self) -> Taken {
        match (self.has_taken_entries, self.is_top_described) {
            (true, _) => Taken::Entries,
            (false, false) => Taken::Top,
            (false, true) => Taken::Nothing,
        }
    }

    /// Counts what a caller left out before it came here.
    pub(super) fn leave_out(&mut self, Dropped { devices, capabilities, attributes, set_ids, owners }: Dropped) {
        let counted = &mut self.dropped;
        counted.devices += devices;
        counted.capabilities += capabilities;
        counted.attributes += attributes;
        counted.set_ids += set_ids;
        counted.owners += owners;
    }

    /// Whether it hides everything below.
    pub(super) fn is_bottom(&self) -> bool {
        self.is_bottom
    }

    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// A directory with its permissions, owner and attributes.
    pub(super) fn directory(&mut self, path: &EntryPath, entry: &Entry, budget: &mut Budget) -> Result<(), Problem> {
        let (path, directory) = match path.split() {
            None => {
                self.is_top_described = true;
                (path.clone(), Rc::clone(&self.root))
            }
            Some((above, name)) => {
                let parent = self.parent(&above, budget)?;
                let directory = make_directory(parent.directory.as_fd(), name)?;
                // It may exist without having been described until now.
                attributes::clear(&directory).map_err(io)?;
                (parent.path.join(name).map_err(wrong_path)?, Rc::new(directory))
            }
        };
        self.own(directory.as_fd(), entry.uid, entry.gid).map_err(io)?;
        self.keep_attributes(Some(directory.as_fd()), entry)?;
        fchmod(&directory, self.mode(entry.mode, FileType::Directory)).map_err(io)?;
        self.directory_times.insert(path, entry.modified);
        Ok(())
    }

    /// A new, empty file to write to. [`Self::finish_file`] ends it.
    pub(super) fn file(&mut self, path: &EntryPath, budget: &mut Budget) -> Result<OwnedFd, Problem> {
        let (parent, name) = self.place(path, budget)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let make = || openat2(&parent, name.as_slice(), flags, Mode::from_raw_mode(0o600), RESOLVE);
        match make() {
            Err(Errno::EXIST) => {
                make_room(parent.as_fd(), &name)?;
                make().map_err(io)
            }
            made => made.map_err(io),
        }
    }

    pub(super) fn finish_file(&mut self, file: &OwnedFd, entry: &Entry, digest: [u8; 32]) -> Result<(), Problem> {
        self.own(file.as_fd(), entry.uid, entry.gid).map_err(io)?;
        self.keep_attributes(Some(file.as_fd()), entry)?;
        // After the owner: changing it would clear set-id bits.
        fchmod(file, self.mode(entry.mode, FileType::RegularFile)).map_err(io)?;
        futimens(file, &times(entry.modified)).map_err(io)?;
        self.contents.insert(fstat(file).map_err(io)?.st_ino, digest);
        Ok(())
    }

    pub(super) fn link(
        &mut self,
        path: &EntryPath,
        target: &[u8],
        entry: &Entry,
        budget: &mut Budget,
    ) -> Result<(), Problem> {
        if target.is_empty() || target.contains(&0) || target.len() > TARGET_LEN_MAX {
            return Err(refused("a symbolic link has an impossible target", HOSTILE));
        }
        let (parent, name) = self.place(path, budget)?;
        make_room(parent.as_fd(), &name)?;
        symlinkat(target, &parent, name.as_slice()).map_err(io)?;
        self.finish_special(parent.as_fd(), &name, entry)
    }

    pub(super) fn fifo(&mut self, path: &EntryPath, entry: &Entry, budget: &mut Budget) -> Result<(), Problem> {
        let (parent, name) = self.place(path, budget)?;
        make_room(parent.as_fd(), &name)?;
        mknodat(&parent, name.as_slice(), FileType::Fifo, Mode::from_raw_mode(0o600), 0).map_err(io)?;
        // Just made, so it is no link; this call would follow one.
        chmodat(&parent, name.as_slice(), self.mode(entry.mode, FileType::Fifo), AtFlags::empty()).map_err(io)?;
        self.finish_special(parent.as_fd(), &name, entry)
    }

    /// Another name of a file of this layer or of those below.
    pub(super) fn hard_link(&mut self, path: &EntryPath, target: &[u8], budget: &mut Budget) -> Result<(), Problem> {
        let wrong = |why: &str| refused(format!("a hard link to {} {why}", shown(target)), HOSTILE);
        let target = EntryPath::parse(target).map_err(wrong)?;
        let Some((above, target_name)) = target.split() else { return Err(wrong("leads to the top directory")) };
        if target == *path {
            return Err(wrong("leads to itself"));
        }
        let source = self.parent(&above, budget)?;
        match examined(source.directory.as_fd(), target_name).map_err(io)? {
            None if self.copy_up(&source, target_name, budget)? => {}
            None => return Err(wrong("leads to nothing in this layer or those below")),
            Some(stat) if is_whiteout(&stat) => return Err(wrong("leads to nothing in this layer or those below")),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(wrong("leads to a directory"));
            }
            Some(_) => {}
        }
        let (parent, name) = self.place(path, budget)?;
        // By another name of the same directory, it is itself.
        let is_same = fstat(&parent).map_err(io)?.st_ino == fstat(&source.directory).map_err(io)?.st_ino;
        if is_same && name == target_name {
            return Err(wrong("leads to itself"));
        }
        make_room(parent.as_fd(), &name)?;
        linkat(&source.directory, target_name, &parent, name.as_slice(), AtFlags::empty()).map_err(io)
    }

    /// Acts on a mark; `false` if the name is none.
    pub(super) fn mark(&mut self, path: &EntryPath, budget: &mut Budget) -> Result<bool, Problem> {
        let Some((above, name)) = path.split() else { return Ok(false) };
        match Mark::of(name) {
            Mark::None => return Ok(false),
            Mark::Meta => {}
            Mark::Malformed => return Err(refused("a whiteout names nothing", HOSTILE)),
            // The kernel doesn't look at this mark on the top of a layer, so the layers below are left out instead.
            Mark::Opaque if above == EntryPath::top() => {
                self.is_bottom = true;
                self.below = self.below.hidden();
            }
            Mark::Opaque => whiteout::make_opaque(&self.parent(&above, budget)?.directory).map_err(io)?,
            Mark::Gone(gone) => {
                let parent = self.parent(&above, budget)?.directory;
                if whiteout::make(parent.as_fd(), gone, self.ownership).map_err(io)? {
                    utimensat(&parent, gone, &times((0, 0)), AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
                } else {
                    gone_below(parent.as_fd(), gone)?;
                }
            }
        }
        Ok(true)
    }

    /// Says that something of a lower layer is gone, where this layer has nothing.
    pub(super) fn whiteout(&mut self, path: &EntryPath, budget: &mut Budget) -> Result<(), Problem> {
        let (parent, name) = self.place(path, budget)?;
        if whiteout::make(parent.as_fd(), &name, self.ownership).map_err(io)? {
            utimensat(&parent, name.as_slice(), &times((0, 0)), AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
        }
        Ok(())
    }

    /// Whether a directory was written.
    pub(super) fn has_directory(&self, path: &EntryPath) -> bool {
        *path != EntryPath::top() && self.directory_times.contains_key(path)
    }

    /// Hides what lower layers have in a directory of this one.
    pub(super) fn opaque(&mut self, path: &EntryPath) -> Result<(), Problem> {
        whiteout::make_opaque(self.open(path).map_err(io)?).map_err(io)
    }

    /// Sets the times of directories. Nothing can be written afterwards.
    pub(super) fn finish(&mut self) -> Result<(), Problem> {
        self.latest = None;
        if !self.is_top_described
            && let Some(likeness) = self.below.likeness().map_err(io)?
        {
            self.resemble(Rc::clone(&self.root).as_fd(), &likeness).map_err(io)?;
        }
        for (path, modified) in std::mem::take(&mut self.directory_times) {
            futimens(self.open(&path).map_err(io)?, &times(modified)).map_err(io)?;
        }
        Ok(())
    }

    fn place(&mut self, path: &EntryPath, budget: &mut Budget) -> Result<(Rc<OwnedFd>, Vec<u8>), Problem> {
        let Some((above, name)) = path.split() else {
            return Err(refused("an entry other than a directory stands for the top of the layer", HOSTILE));
        };
        Ok((self.parent(&above, budget)?.directory, name.to_vec()))
    }

    fn open(&self, path: &EntryPath) -> Result<OwnedFd, Errno> {
        let path = if path.as_bytes().is_empty() { b"." } else { path.as_bytes() };
        openat2(&self.root, path, DIRECTORY, Mode::empty(), RESOLVE)
    }

    /// Owner and times of what can't be opened.
    fn finish_special(&mut self, parent: BorrowedFd<'_>, name: &[u8], entry: &Entry) -> Result<(), Problem> {
        self.keep_attributes(None, entry)?;
        if let Some((uid, gid)) = self.ids(entry.uid, entry.gid) {
            chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
        }
        utimensat(parent, name, &times(entry.modified), AtFlags::SYMLINK_NOFOLLOW).map_err(io)
    }

    fn keep_attributes(&mut self, file: Option<BorrowedFd<'_>>, entry: &Entry) -> Result<(), Problem> {
        self.dropped.attributes += entry.attributes_unread;
        attributes::apply(file.as_ref(), &entry.attributes, &mut self.dropped)
    }

    fn own(&mut self, file: BorrowedFd<'_>, uid: u64, gid: u64) -> Result<(), Errno> {
        match self.ids(uid, gid) {
            Some((uid, gid)) => fchown(file, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    fn ids(&mut self, uid: u64, gid: u64) -> Option<(Uid, Gid)> {
        match self.ownership {
            Ownership::Dropped => None,
            Ownership::Shifted => {
                let ((uid, is_uid_kept), (gid, is_gid_kept)) = (Ownership::on_disk(uid), Ownership::on_disk(gid));
                self.dropped.owners += u64::from(!is_uid_kept || !is_gid_kept);
                Some((Uid::from_raw(uid), Gid::from_raw(gid)))
            }
        }
    }

    /// The permissions on disk. Without owners of its own, a set-id file would have the power of this user; and this user
    /// must be able to read and remove everything.
    fn mode(&mut self, mode: u32, kind: FileType) -> Mode {
        match self.ownership {
            Ownership::Shifted => Mode::from_raw_mode(mode),
            Ownership::Dropped => {
                self.dropped.set_ids += u64::from(mode & SET_IDS != 0);
                let ours = if kind == FileType::Directory { 0o700 } else { 0o400 };
                Mode::from_raw_mode(mode & !SET_IDS | ours)
            }
        }
    }
}

/// A whiteout of something that this layer has itself concerns lower layers alone. A directory would be merged with
/// theirs, so it becomes opaque; anything else hides them anyway.
fn gone_below(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Problem> {
    match examined(parent, name).map_err(io)? {
        Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            let directory = openat2(parent, name, DIRECTORY, Mode::empty(), RESOLVE).map_err(io)?;
            whiteout::make_opaque(directory).map_err(io)
        }
        _ => Ok(()),
    }
}

/// Makes a directory where nothing is, or a whiteout; a directory that exists is taken as it is.
fn make_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Problem> {
    let mut was_gone = false;
    if let Err(errno) = mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        if errno != Errno::EXIST {
            return Err(io(errno));
        }
        match examined(parent, name).map_err(io)? {
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {}
            Some(stat) if is_whiteout(&stat) => {
                unlinkat(parent, name, AtFlags::empty()).map_err(io)?;
                mkdirat(parent, name, Mode::from_raw_mode(0o700)).map_err(io)?;
                was_gone = true;
            }
            _ => return Err(two_kinds(name)),
        }
    }
    let directory = openat2(parent, name, DIRECTORY, Mode::empty(), RESOLVE).map_err(io)?;
    if was_gone {
        whiteout::make_opaque(&directory).map_err(io)?;
    }
    Ok(directory)
}

/// Removes an earlier entry of the same name; a directory stays and is an error.
fn make_room(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Problem> {
    match examined(parent, name).map_err(io)? {
        None => Ok(()),
        Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Err(two_kinds(name)),
        Some(_) => unlinkat(parent, name, AtFlags::empty()).map_err(io),
    }
}

fn two_kinds(name: &[u8]) -> Problem {
    refused(format!("{} is a directory in one entry and something else in another", shown(name)), HOSTILE)
}

/// A path that is possible in the archive may be too long behind a link.
fn wrong_path(why: &'static str) -> Problem {
    refused(format!("behind a link of a lower layer it {why}"), HOSTILE)
}

fn through_link(path: &EntryPath) -> Problem {
    let path = shown(path.as_bytes());
    refused(format!("the directory {path} is a symbolic link of the same layer, or is behind one"), HOSTILE)
}

fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanos) };
    Timestamps { last_access: time, last_modification: time }
}

fn io(errno: Errno) -> Problem {
    storage("a layer can't be written", errno)
}
