//! Applies a worktree: its commits, and what wasn't committed, as a branch of the host's repository.
//!
//! Every object that the branch needs and the repository lacks is read from what was kept, which hostile programs wrote; checked against
//! its id and for names that lead elsewhere; and written as a new file, children before those that name them. Then one ref is made. So a
//! failure at any moment leaves objects that nothing uses, which git removes in time. Everything is written as the repository's owner, below
//! its git directory, and through no link. Nothing else of the repository is changed.

use std::os::fd::{AsFd, OwnedFd};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode as Bits, OFlags, fchmod, fsync, linkat, mkdirat, openat, renameat, syncfs, unlinkat,
};
use rustix::io::Errno;
use saggar_domain::Problem;

use super::branch::name_of;
use super::object::{Commit, Mode, OBJECT_LEN_MAX, ObjectError, ObjectId, ObjectKind, TreeEntry, entries, is_name};
use super::repository::{Repository, Target, refuse, target};
use super::store::Objects;
use super::tree::Edits;
use crate::acting::ActingAs;
use crate::changes::{Applied, ApplyOutcome, Change, Changes, Entry, Kind, Wanted, open_directory, open_file};

/// Maximum number of new objects.
const OBJECTS_MAX: usize = 1_000_000;
/// Maximum number of bytes in them.
const BYTES_MAX: u64 = 16 << 30;
/// Maximum number of names of objects that wait to be looked at. Of the trees above one, all names wait.
const WAITING_MAX: usize = 8 * OBJECTS_MAX;
/// Maximum number of bytes of the trees that are made for what wasn't committed.
const TREES_LEN_MAX: usize = 256 << 20;
/// Maximum number of directories above a file that is committed here.
const DEPTH_MAX: usize = 200;
/// Who commits what a sandbox left uncommitted.
const COMMITTER: &str = "Saggar <saggar@localhost>";

/// A worktree being applied.
pub(crate) struct Import<'a> {
    changes: &'a Changes,
    repository: Repository<'a>,
    /// The directory of the host's objects.
    place: OwnedFd,
    written: u32,
    bytes: u64,
}

/// What it made.
pub(crate) struct Imported {
    pub(crate) results: Vec<Applied>,
    /// The commit that the branch leads to; `None` if there was nothing to make it of.
    pub(crate) tip: Option<ObjectId>,
}

impl<'a> Import<'a> {
    pub(crate) fn begin(changes: &'a Changes, repository: Repository<'a>) -> Result<Self, Problem> {
        let place = open_directory(repository.top.as_fd(), b"objects")
            .map_err(|errno| refuse(&format!("its objects can't be opened: {errno}"), "check its permissions"))?;
        Ok(Self { changes, repository, place, written: 0, bytes: 0 })
    }

    /// Makes the branch, or moves the one that an earlier call made, from `before`.
    pub(crate) fn apply(
        mut self,
        wanted: impl Fn(&Entry) -> Wanted,
        before: Option<ObjectId>,
        now: i64,
    ) -> Result<Imported, String> {
        let name = name_of(self.changes.id());
        let current = self.repository.resolve(&name, 0).map_err(|problem| problem.message)?;
        // A call that was killed may have made it already.
        let made = before.or(self.changes.tip());
        if current.is_some() && current != made {
            return Err(format!("the repository has another branch {}: rename it", &name["refs/heads/".len()..]));
        }
        if self.repository.packed().contains_key("refs/heads/saggar") {
            return Err("the repository has a branch named saggar: rename it".to_owned());
        }
        let start = self.changes.worktree().map(|worktree| worktree.commit).ok_or("they are not of a worktree")?;
        let tip = self.changes.tip().ok_or("the sandbox left a HEAD that leads to no commit: name single files")?;
        let tip = match before {
            Some(before) => before,
            None => {
                self.fetch(tip).map_err(|error| error.to_string())?;
                tip
            }
        };
        let mut results = Vec::new();
        let new = self.commit_rest(tip, &wanted, now, &mut results).map_err(|error| error.to_string())?;
        if new == start && before.is_none() {
            return Ok(Imported { results, tip: None });
        }
        if Some(new) != current {
            self.set_ref(&name, new, current).map_err(|why| format!("the branch can't be set: {why}"))?;
        }
        Ok(Imported { results, tip: Some(new) })
    }

    /// Brings a commit, and everything that it needs, into the repository.
    fn fetch(&mut self, tip: ObjectId) -> Result<(), ObjectError> {
        let changes = self.changes;
        let kept = Objects::kept(changes)?;
        let mut waiting = vec![(tip, Some(ObjectKind::Commit), false)];
        let mut known = std::collections::BTreeSet::new();
        while let Some((id, kind, is_complete)) = waiting.pop() {
            if is_complete {
                let object = kept.read(id)?;
                self.write(object.kind, &object.content)?;
                continue;
            }
            if !known.insert(id) || self.repository.objects.has(id)? {
                continue;
            }
            if known.len() > OBJECTS_MAX || waiting.len() > WAITING_MAX {
                return Err(ObjectError::Read(std::io::Error::other("there are more than a million new objects")));
            }
            let object = kept.read(id)?;
            if kind.is_some_and(|kind| kind != object.kind) {
                return Err(ObjectError::Kind(id, kind.map_or("", ObjectKind::name)));
            }
            match object.kind {
                ObjectKind::Blob => {
                    self.write(object.kind, &object.content)?;
                    continue;
                }
                ObjectKind::Commit => {
                    waiting.push((id, None, true));
                    let commit = Commit::parse(&object.content).ok_or(ObjectError::Damaged(id))?;
                    waiting.push((commit.tree, Some(ObjectKind::Tree), false));
                    waiting.extend(commit.parents.iter().map(|parent| (*parent, Some(ObjectKind::Commit), false)));
                }
                ObjectKind::Tree => {
                    waiting.push((id, None, true));
                    let unknown = |entry: &TreeEntry| !known.contains(&entry.id);
                    for entry in entries(&object.content).ok_or(ObjectError::Damaged(id))?.into_iter().filter(unknown) {
                        match entry.mode {
                            Mode::Tree => waiting.push((entry.id, Some(ObjectKind::Tree), false)),
                            Mode::Submodule => {}
                            Mode::File | Mode::Executable | Mode::Link => {
                                waiting.push((entry.id, Some(ObjectKind::Blob), false));
                            }
                        }
                    }
                }
                ObjectKind::Tag => return Err(ObjectError::Kind(id, "commit")),
            }
        }
        Ok(())
    }

    /// Commits what the sandbox left uncommitted: tracked files, and new ones that were named. Returns the last commit.
    fn commit_rest(
        &mut self,
        tip: ObjectId,
        wanted: &dyn Fn(&Entry) -> Wanted,
        now: i64,
        results: &mut Vec<Applied>,
    ) -> Result<ObjectId, ObjectError> {
        let changes = self.changes;
        let top = self.repository.objects.commit(tip)?.tree;
        let mut edits = Edits::default();
        for entry in changes.entries() {
            let wanted = wanted(entry);
            if wanted == Wanted::No || changes.is_of_git(entry) {
                continue;
            }
            let outcome = match self.edit(entry, wanted, top)? {
                Ok(Some(file)) => {
                    edits.add(entry.path.as_bytes(), file);
                    ApplyOutcome::Done
                }
                Ok(None) => ApplyOutcome::Done,
                Err(why) => ApplyOutcome::Refused(why.to_owned()),
            };
            results.push(Applied { path: entry.path.clone(), outcome });
        }
        if edits.is_empty() {
            return Ok(tip);
        }
        let below = self.repository.objects.tree(top)?;
        let (mut new, mut len) = (Vec::new(), 0);
        let tree = edits.apply(below, &|id| self.repository.objects.tree(id), &mut |kind, content| {
            len += content.len();
            if len > TREES_LEN_MAX {
                let why = "the directories of what wasn't committed are too large: name single files";
                return Err(ObjectError::Read(std::io::Error::other(why)));
            }
            new.push((kind, content.to_vec()));
            Ok(ObjectId::of(kind, content))
        })?;
        let tree = tree.unwrap_or_else(|| {
            new.push((ObjectKind::Tree, Vec::new()));
            ObjectId::of(ObjectKind::Tree, b"")
        });
        if tree == top {
            return Ok(tip);
        }
        for (kind, content) in new {
            self.write(kind, &content)?;
        }
        let id = changes.id();
        let message = format!("Changes of sandbox {id}\n\nThe sandbox had not committed them.\n");
        let commit = format!(
            "tree {tree}\nparent {tip}\nauthor {COMMITTER} {now} +0000\ncommitter {COMMITTER} {now} +0000\n\n{message}"
        );
        self.write(ObjectKind::Commit, commit.as_bytes())
    }

    /// What one change means for the tree of the last commit: nothing, or a file put or taken out. An inner error says why it isn't
    /// committed.
    #[expect(clippy::type_complexity, reason = "failed, refused, and one of two outcomes")]
    fn edit(
        &mut self,
        entry: &Entry,
        wanted: Wanted,
        top: ObjectId,
    ) -> Result<Result<Option<Option<(Mode, ObjectId)>>, &'static str>, ObjectError> {
        let path = entry.path.as_bytes();
        if !path.split(|byte| *byte == b'/').all(is_name) {
            return Ok(Err("it is in a repository of its own, or has a name that git doesn't keep"));
        }
        if path.iter().filter(|byte| **byte == b'/').count() > DEPTH_MAX {
            return Ok(Err("it is more than 200 directories deep"));
        }
        if entry.kind == Kind::Directory {
            // Git keeps no directories, only what is in them.
            return Ok(Ok(None));
        }
        let tracked = self.find(top, path)?;
        if tracked.is_some_and(|(mode, _)| mode == Mode::Submodule) {
            return Ok(Err("it is a submodule"));
        }
        if entry.change == Change::Removed {
            return Ok(Ok(tracked.map(|_| None)));
        }
        let mode = match entry.kind {
            Kind::Link => Mode::Link,
            Kind::File | Kind::Directory if entry.mode & 0o100 != 0 => Mode::Executable,
            Kind::File | Kind::Directory => Mode::File,
        };
        let content = match (&entry.target, entry.change) {
            (Some(target), _) => target.as_bytes().to_vec(),
            (None, Change::Mode) => {
                let Some((was, id)) = tracked else { return Ok(Ok(None)) };
                return Ok(Ok((was != mode).then_some(Some((mode, id)))));
            }
            (None, _) => {
                if entry.size > OBJECT_LEN_MAX {
                    return Ok(Err("it is longer than 128 MiB"));
                }
                let mut bytes = Vec::new();
                let file = std::fs::File::from(self.changes.content(entry)?);
                std::io::Read::read_to_end(&mut std::io::Read::take(file, OBJECT_LEN_MAX), &mut bytes)?;
                bytes
            }
        };
        if tracked == Some((mode, ObjectId::of(ObjectKind::Blob, &content))) {
            return Ok(Ok(None));
        }
        if tracked.is_none() && wanted != Wanted::ByName {
            return Ok(Err("it is new, and the sandbox did not commit it: name it to commit it"));
        }
        let id = self.write(ObjectKind::Blob, &content)?;
        Ok(Ok(Some(Some((mode, id)))))
    }

    fn find(&self, mut tree: ObjectId, path: &[u8]) -> Result<Option<(Mode, ObjectId)>, ObjectError> {
        let mut names = path.split(|byte| *byte == b'/').peekable();
        while let Some(name) = names.next() {
            let Some(entry) = self.repository.objects.tree(tree)?.into_iter().find(|entry| entry.name == name) else {
                return Ok(None);
            };
            match (entry.mode, names.peek()) {
                (Mode::Tree, Some(_)) => tree = entry.id,
                (Mode::Tree, None) | (_, Some(_)) => return Ok(None),
                (mode, None) => return Ok(Some((mode, entry.id))),
            }
        }
        Ok(None)
    }

    /// Writes one object as a file of its own, unless the repository has it.
    fn write(&mut self, kind: ObjectKind, content: &[u8]) -> Result<ObjectId, ObjectError> {
        let id = ObjectId::of(kind, content);
        if self.repository.objects.has(id)? {
            return Ok(id);
        }
        self.bytes += content.len() as u64;
        if self.bytes > BYTES_MAX {
            return Err(ObjectError::Read(std::io::Error::other("there are more than 16 GiB of new objects")));
        }
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        std::io::Write::write_all(&mut encoder, format!("{} {}\0", kind.name(), content.len()).as_bytes())?;
        std::io::Write::write_all(&mut encoder, content)?;
        let bytes = encoder.finish()?;
        let (directory, name) = id.loose();
        let _owner = ActingAs::owner_of(self.repository.workspace);
        match mkdirat(&self.place, directory.as_str(), Bits::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let directory = open_directory(self.place.as_fd(), directory.as_bytes())?;
        self.written += 1;
        let beside = format!("tmp_obj_saggar_{}_{}", std::process::id(), self.written);
        let written = put(&directory, &beside, &bytes, 0o444).and_then(|_| {
            match linkat(&directory, beside.as_str(), &directory, name.as_str(), AtFlags::empty()) {
                Err(Errno::EXIST) => Ok(()),
                other => other,
            }
        });
        // It is the same file by now, or of no use.
        let _ = unlinkat(&directory, beside.as_str(), AtFlags::empty());
        written?;
        Ok(id)
    }

    /// Sets the branch, by git's own protocol: a lock beside the ref, which becomes the ref.
    fn set_ref(&self, name: &str, to: ObjectId, current: Option<ObjectId>) -> Result<(), String> {
        let said = |errno: Errno| errno.to_string();
        self.check_unused(name)?;
        let _owner = ActingAs::owner_of(self.repository.workspace);
        // Objects first: a ref to something that a power cut took would damage the repository.
        syncfs(&self.place).map_err(said)?;
        let mut directory = open_directory(self.repository.top.as_fd(), b"refs").map_err(said)?;
        let (parents, last) = name["refs/".len()..].rsplit_once('/').ok_or("its name has no parent")?;
        for parent in parents.split('/') {
            match mkdirat(&directory, parent, Bits::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(said(errno)),
            }
            directory = match open_directory(directory.as_fd(), parent.as_bytes()) {
                Err(Errno::NOTDIR) => return Err(format!("a branch {parent} is in its way: rename it")),
                other => other.map_err(said)?,
            };
        }
        let lock = format!("{last}.lock");
        let file = put(&directory, &lock, format!("{to}\n").as_bytes(), 0o644).map_err(|errno| match errno {
            Errno::EXIST => "another program changes it right now".to_owned(),
            errno => said(errno),
        })?;
        let undo = |why: String| {
            // The first failure is the one to report.
            let _ = unlinkat(&directory, lock.as_str(), AtFlags::empty());
            why
        };
        fsync(&file).map_err(|errno| undo(said(errno)))?;
        // With the lock held nobody else changes it.
        let now = open_file(directory.as_fd(), last.as_bytes()).ok().and_then(|file| {
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::from(file), 4096), &mut text).ok()?;
            target(&text)
        });
        let is_same = match (now, current) {
            (None, _) => true,
            (Some(Target::Commit(now)), Some(current)) => now == current,
            (Some(_), _) => false,
        };
        if !is_same {
            return Err(undo("it was changed meanwhile".to_owned()));
        }
        renameat(&directory, lock.as_str(), &directory, last).map_err(|errno| undo(said(errno)))
    }

    /// A branch that is checked out is not moved: its working tree would look changed.
    fn check_unused(&self, name: &str) -> Result<(), String> {
        let top = self.repository.top.as_fd();
        let _acting = self.repository.workspace.acting();
        let heads = |path: &[u8]| -> Option<Target> {
            let file = open_file(top, path).ok()?;
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::from(file), 4096), &mut text).ok()?;
            target(&text)
        };
        let mut places = vec![b"HEAD".to_vec()];
        if let Ok(worktrees) = open_directory(top, b"worktrees")
            && let Ok(entries) = Dir::read_from(&worktrees)
        {
            let names = entries.flatten().filter(|entry| entry.file_type() == FileType::Directory);
            let heads = names.map(|entry| [b"worktrees/", entry.file_name().to_bytes(), b"/HEAD"].concat());
            places.extend(heads);
        }
        if places.iter().any(|place| matches!(heads(place), Some(Target::Ref(used)) if used == name)) {
            return Err("it is checked out: check out another branch first".to_owned());
        }
        Ok(())
    }
}

/// A new file with this content.
fn put(directory: &OwnedFd, name: &str, content: &[u8], bits: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(directory, name, flags, Bits::from_raw_mode(0o600))?;
    let mut rest = content;
    while !rest.is_empty() {
        let length = rustix::io::write(&file, rest)?;
        rest = &rest[length..];
    }
    fchmod(&file, Bits::from_raw_mode(bits)).map(|()| file)
}
