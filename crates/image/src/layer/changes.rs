//! Finds what a sandbox changed in its root, for a layer.
//!
//! The upper layer of an overlay has everything that was written; hostile programs chose its names, depth and sizes. They are dead, and nothing in
//! it is followed: every name is opened in its directory, without links, and the depth, the number of entries and the size are bounded. Or they stand
//! still and go on later, perhaps too early: so nothing is changed by name either, and permissions are given back.
//!
//! Left out: what the runtime itself put there (`/dev`, `/proc`, `/sys`, the files by which names are resolved, certificates of a managed
//! network; what is the host's, if the root is the host's), device nodes, sockets, and marks of the overlay itself. A directory that is as it was below is written only if
//! something in it is.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, readlinkat, statat};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_domain::template::{BuiltInRoot, Dropped};
use saggar_sandbox::{RootChanges, TRUST_ADDED, TRUST_BUNDLE, TRUST_OWN, host_bundle, paths_of_the_host};

use super::bundle::{AUTHORITY_MAX, BUNDLE_MAX, certificate, without};
use super::change::{Change, Facts, Sink, Source, parse};
use super::content::GoOn;
use super::opened::Opened;
use super::view::{Beyond, ResolveError, View, is_opaque};
use super::whiteout::is_whiteout;
use super::{NOBODY, Ownership, attributes};
use crate::failure::{about, shown, storage};
use crate::limits::Budget;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(super) const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Directories of the runtime, with everything in them.
const OF_THE_RUNTIME: &[&[u8]] = &[b"dev", b"proc", b"sys"];
/// Files that every sandbox gets anew.
const NAME_FILES: &[&str] = &["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];
/// The overlay's own attributes. A program inside can't make one: the kernel gives them another name.
const OVERLAY: &[u8] = b"user.overlay.";
pub(super) const PERMISSIONS: u32 = 0o7777;

/// What was handed on.
pub(super) struct Found {
    pub(super) is_changed: bool,
    /// What was left out of it.
    pub(super) dropped: Dropped,
}

/// Hands on what was changed, in the order in which a layer is written.
pub(super) fn find(
    changes: &RootChanges,
    withheld: &Withheld,
    below: &View,
    sink: &mut dyn Sink,
    budget: &mut Budget,
    go_on: GoOn<'_>,
) -> Result<Found, Problem> {
    let (linked, dropped) = (HashMap::new(), Dropped::default());
    let mut walk = Walk { changes, below, withheld, sink, budget, go_on, linked, is_changed: false, dropped };
    let top = openat2(&changes.upper, ".", DIRECTORY, Mode::empty(), RESOLVE).map_err(unreadable)?;
    let stat = rustix::fs::fstat(&top).map_err(unreadable)?;
    let mut open = Vec::new();
    walk.enter(Vec::new(), top.into(), &stat, &mut open)?;
    while let Some(level) = open.last_mut() {
        let Some(name) = level.names.pop() else {
            open.pop();
            continue;
        };
        (walk.go_on)()?;
        let path = joined(&level.path, &name);
        walk.child(&path, &name, &mut open).map_err(|problem| match open.len() {
            0 => problem,
            _ => about(&format!("entry {}", shown(&path)), problem),
        })?;
    }
    Ok(Found { is_changed: walk.is_changed, dropped: walk.dropped })
}

struct Walk<'a> {
    changes: &'a RootChanges,
    below: &'a View,
    withheld: &'a Withheld,
    sink: &'a mut dyn Sink,
    budget: &'a mut Budget,
    go_on: GoOn<'a>,
    /// The first name of each file that has several, by inode.
    linked: HashMap<u64, Vec<u8>>,
    is_changed: bool,
    dropped: Dropped,
}

/// An open directory, and what is left of it: the last name is next.
struct Level {
    path: Vec<u8>,
    directory: Opened,
    names: Vec<Vec<u8>>,
    /// Not written yet.
    pending: Option<Facts>,
}

impl Walk<'_> {
    fn child(&mut self, path: &[u8], name: &[u8], open: &mut Vec<Level>) -> Result<(), Problem> {
        let level = open.last().expect("the caller has just looked at it");
        if OF_THE_RUNTIME.contains(&path) || self.withheld.files.iter().any(|file| file == path) {
            return Ok(());
        }
        let stat = statat(&level.directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(unreadable)?;
        if is_whiteout(&stat) {
            // One that hides nothing is of no use.
            if self.below.look(path).map_err(unreadable)?.is_some() {
                self.flush(open)?;
                self.put(path, Change::Whiteout)?;
            }
            return Ok(());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                // One that can be read but not searched can be listed, and nothing in it opened.
                let directory = match stat.st_mode & 0o500 != 0o500 && Ownership::here() == Ownership::Dropped {
                    true => Opened::unlocked(&level.directory, name, &stat, 0o500, DIRECTORY)?,
                    false => {
                        openat2(&level.directory, name, DIRECTORY, Mode::empty(), RESOLVE).map_err(unreadable)?.into()
                    }
                };
                self.enter(path.to_vec(), directory, &stat, open)
            }
            FileType::RegularFile if path == self.withheld.bundle => self.bundle(path, name, &stat, open),
            FileType::RegularFile => self.file(path, name, &stat, open),
            FileType::Symlink => {
                let target = readlinkat(&level.directory, name, Vec::new()).map_err(unreadable)?.into_bytes();
                // As `update-ca-certificates` makes one, by the hash of the certificate.
                if TRUST_OWN.as_bytes().rsplit(|byte| *byte == b'/').next() == Some(&target) {
                    return Ok(());
                }
                let facts = self.facts(&stat, Vec::new());
                self.flush(open)?;
                self.put(path, Change::Link { facts, target })
            }
            FileType::Fifo => {
                let facts = self.facts(&stat, Vec::new());
                self.flush(open)?;
                self.put(path, Change::Fifo { facts })
            }
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Socket | FileType::Unknown => {
                self.dropped.devices += 1;
                Ok(())
            }
        }
    }

    /// Goes into a directory. It is written now if it differs from what is below.
    fn enter(&mut self, path: Vec<u8>, directory: Opened, stat: &Stat, open: &mut Vec<Level>) -> Result<(), Problem> {
        let is_opaque = is_opaque(&directory);
        let mut attributes = attributes::read(&directory).map_err(unreadable)?;
        attributes.retain(|(name, _)| !name.starts_with(OVERLAY));
        let facts = self.facts(stat, attributes);
        let below = self.below.look(&path).map_err(unreadable)?;
        let is_same = match below.filter(|below| below.is_directory()) {
            Some(below) => {
                let ids = (self.below.id_inside(below.stat.st_uid), self.below.id_inside(below.stat.st_gid));
                below.stat.st_mode & PERMISSIONS == facts.mode && ids == (facts.uid, facts.gid)
            }
            None => self.withheld.is_made_for_it(&path, &facts),
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
                // They are all in memory at once.
                self.budget.listed(names.len() as u64)?;
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        let is_kept = is_opaque || !is_same || !facts.attributes.is_empty();
        let mut pending = Some(facts);
        if is_kept && let Some(facts) = pending.take() {
            self.flush(open)?;
            // The top hides nothing that is below it.
            let is_opaque = is_opaque && !path.is_empty();
            self.put(&path, Change::Directory { facts, is_opaque })?;
        }
        open.push(Level { path, directory, names, pending });
        Ok(())
    }

    /// Writes the directories above what is about to be written.
    fn flush(&mut self, open: &mut [Level]) -> Result<(), Problem> {
        for level in open {
            if let Some(facts) = level.pending.take() {
                self.put(&level.path, Change::Directory { facts, is_opaque: false })?;
            }
        }
        self.is_changed = true;
        Ok(())
    }

    fn put(&mut self, path: &[u8], change: Change<'_>) -> Result<(), Problem> {
        self.is_changed = true;
        self.budget.entry(path.len())?;
        // Refused while it can still be named, and before its content is read.
        parse(path)?;
        self.sink.put(path, change, self.budget, self.go_on)
    }

    fn file(&mut self, path: &[u8], name: &[u8], stat: &Stat, open: &mut [Level]) -> Result<(), Problem> {
        self.flush(open)?;
        if stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&stat.st_ino).cloned() {
                return self.put(path, Change::HardLink { first });
            }
            self.linked.insert(stat.st_ino, path.to_vec());
        }
        let source = Opened::file(&open.last().expect("the file is in it").directory, name, stat)?;
        let size = stat.st_size as u64;
        self.budget.content(size)?;
        let mut attributes = attributes::read(&source).map_err(unreadable)?;
        attributes.retain(|(name, _)| !name.starts_with(OVERLAY));
        let facts = self.facts(stat, attributes);
        self.put(path, Change::File { facts, content: Source::File { file: &source.file, size } })
    }

    /// The bundle of certificates has the authority of this sandbox's network, which nobody may trust later. Without it, it may be the host's, which
    /// the runtime put there; or else a program made it.
    fn bundle(&mut self, path: &[u8], name: &[u8], stat: &Stat, open: &mut [Level]) -> Result<(), Problem> {
        let authorities = self.authorities()?;
        if authorities.is_empty() || stat.st_size as u64 > BUNDLE_MAX {
            // The network of this sandbox is not a managed one, or a program wrote something else there.
            return self.file(path, name, stat, open);
        }
        let bundle = Opened::file(&open.last().expect("the file is in it").directory, name, stat)?;
        let bundle = read(&bundle.file, BUNDLE_MAX)?;
        let content = without(&bundle, &authorities, self.go_on)?;
        let mut host = host_bundle();
        if !host.is_empty() && !host.ends_with(b"\n") {
            host.push(b'\n');
        }
        let same_below = self
            .below
            .open(path)
            .ok()
            .and_then(|file| read(&file, BUNDLE_MAX).ok())
            .is_some_and(|below| below == content);
        if content == host || content.is_empty() || same_below {
            return Ok(());
        }
        let facts = self.facts(stat, Vec::new());
        self.flush(open)?;
        self.budget.content(content.len() as u64)?;
        self.put(path, Change::File { facts, content: Source::Bytes(&content) })
    }

    /// The authority of the sandbox's network, as the files of the runtime have it. A program may have changed them; what is then there is no authority.
    fn authorities(&self) -> Result<Vec<Vec<u8>>, Problem> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut found = Vec::new();
        for path in &self.withheld.authorities {
            let look = openat2(&self.changes.upper, path.as_slice(), OFlags::PATH | flags, Mode::empty(), RESOLVE);
            let is_file = look.and_then(rustix::fs::fstat).is_ok_and(|stat| {
                FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size as u64 <= AUTHORITY_MAX
            });
            let Some(file) = is_file
                .then(|| openat2(&self.changes.upper, path.as_slice(), flags, Mode::empty(), RESOLVE).ok())
                .flatten()
            else {
                continue;
            };
            found.extend(certificate(&read(&File::from(file), AUTHORITY_MAX)?).map(<[u8]>::to_vec));
        }
        Ok(found)
    }

    fn facts(&mut self, stat: &Stat, attributes: Vec<attributes::Attribute>) -> Facts {
        let mut id = |id: u32| {
            self.changes.id_inside(id).unwrap_or_else(|| {
                self.dropped.owners += 1;
                NOBODY
            })
        };
        Facts {
            mode: stat.st_mode & PERMISSIONS,
            uid: id(stat.st_uid),
            gid: id(stat.st_gid),
            modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            attributes,
        }
    }
}

/// Where the runtime puts files of its own. Links of the image on the way are followed, as the runtime follows them.
pub(super) struct Withheld {
    files: Vec<Vec<u8>>,
    /// Two copies of the authority of a managed network.
    authorities: Vec<Vec<u8>>,
    bundle: Vec<u8>,
}

impl Withheld {
    pub(super) fn new(root: Option<BuiltInRoot>, below: &View) -> Result<Self, Problem> {
        let place = |path: &str| -> Result<Vec<u8>, Problem> {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            match below.resolve(above.as_bytes(), Beyond::Stays) {
                Ok(above) => Ok(joined(&above, name.as_bytes())),
                Err(ResolveError::Errno(errno)) => Err(unreadable(errno)),
                // The runtime could not put anything there.
                Err(ResolveError::Outside | ResolveError::TooManyLinks) => Ok(path.as_bytes()[1..].to_vec()),
            }
        };
        let authorities = [TRUST_OWN, TRUST_ADDED].map(place).into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut files = NAME_FILES.iter().map(|path| path.as_bytes()[1..].to_vec()).collect::<Vec<_>>();
        files.extend(authorities.clone());
        files.extend(match root {
            Some(BuiltInRoot::Host) => paths_of_the_host().into_iter().map(String::into_bytes).collect(),
            None => Vec::new(),
        });
        Ok(Self { files, authorities, bundle: place(TRUST_BUNDLE)? })
    }

    /// Whether a directory that the image didn't have is one that the runtime makes for its own files.
    fn is_made_for_it(&self, path: &[u8], facts: &Facts) -> bool {
        let is_above = |file: &Vec<u8>| file.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/"));
        let is_plain = (facts.uid, facts.gid, facts.mode) == (0, 0, 0o755);
        let is_temporary = path == b"tmp" && (facts.uid, facts.gid, facts.mode) == (0, 0, 0o1777);
        is_temporary || (is_plain && (self.files.iter().any(is_above) || is_above(&self.bundle)))
    }
}

/// Of a longer file, one byte more than the maximum.
fn read(file: &File, max: u64) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(|error| storage("certificates can't be read", error))?;
    Ok(bytes)
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

pub(super) fn unreadable(errno: Errno) -> Problem {
    storage("what the step changed can't be read", errno)
}
