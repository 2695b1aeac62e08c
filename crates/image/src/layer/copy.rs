//! Copies files of a directory or of other layers into a new layer.
//!
//! First everything is listed and counted, so that what is too large is refused before anything of it is read. The list has a digest, which says
//! whether an earlier copy can be used again. Times are no part of it.

use rustix::fs::FileType;
use rustix::io::Errno;
use saggar_domain::template::ContentDigest;
use saggar_domain::{ByteSize, Problem};
use sha2::{Digest, Sha256};

use super::attributes::{self, Attribute};
use super::content::{self, GoOn};
use super::entry_path::EntryPath;
use super::view::{Beyond, ResolveError, Seen, View};
use super::writer::Writer;
use crate::failure::{about, refused, shown};
use crate::limits::Budget;
use crate::tar::{Entry, Kind};

const PERMISSIONS: u32 = 0o7777;
/// Of directories that are made on the way to a destination.
const PARENT_MODE: u32 = 0o755;

/// What becomes of a path of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Taken,
    Left,
    /// Left out, but if it is a directory, something in it may be taken.
    Searched,
}

pub type Ignored<'a> = &'a dyn Fn(&[u8]) -> Fate;

/// What is to be copied, listed.
#[derive(Debug)]
pub struct Selection {
    trees: Vec<Tree>,
    pub bytes: u64,
    pub entries: u64,
}

/// One source: a file, or a directory with everything in it.
#[derive(Debug)]
struct Tree {
    /// The last name of the source.
    name: Vec<u8>,
    is_directory: bool,
    items: Vec<Item>,
}

#[derive(Debug)]
struct Item {
    /// In the source's view.
    path: Vec<u8>,
    /// Below the source; empty for the source itself.
    below: Vec<u8>,
    kind: ItemKind,
    mode: u32,
    uid: u32,
    gid: u32,
    modified: (i64, u32),
}

#[derive(Debug)]
enum ItemKind {
    Directory,
    File { size: u64, read: Option<Read> },
    Link { target: Vec<u8> },
    Fifo,
}

/// What a file had in it when the digest of the selection was made.
#[derive(Debug)]
struct Read {
    digest: [u8; 32],
    attributes: Vec<Attribute>,
}

/// Where it goes, and what becomes of owners and permissions.
#[derive(Clone, Debug)]
pub struct Placement<'a> {
    /// Absolute, as the recipe has it: links on the way are followed inside the image, and `/` at the end names a directory.
    pub to: &'a str,
    pub owner: Option<(u32, u32)>,
    pub mode: Option<u32>,
}

impl Selection {
    /// Lists sources of a view, each resolved already. What would be more than is left is refused.
    pub(crate) fn list(
        from: &View,
        sources: &[Vec<u8>],
        ignored: Ignored<'_>,
        budget: &Budget,
        go_on: GoOn<'_>,
    ) -> Result<Self, Problem> {
        let mut selection = Self { trees: Vec::new(), bytes: 0, entries: 0 };
        for source in sources {
            let seen = from.look(source).map_err(unreadable)?.ok_or_else(|| missing(source))?;
            if !source.is_empty() && ignored(source) == Fate::Left {
                return Err(missing(source));
            }
            let name = source.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
            let mut tree = Tree { name, is_directory: seen.is_directory(), items: Vec::new() };
            // Paths alone: a directory may have more entries than a process may have descriptors.
            let mut waiting = vec![(source.clone(), Vec::new())];
            while let Some((path, below)) = waiting.pop() {
                go_on()?;
                // What vanished meanwhile is not copied.
                let Some(seen) = from.look(&path).map_err(unreadable)? else { continue };
                if seen.is_directory() {
                    for name in from.names(&path).map_err(unreadable)?.into_iter().rev() {
                        let (path, below) = (joined(&path, &name), joined(&below, &name));
                        if ignored(&path) != Fate::Left {
                            waiting.push((path, below));
                        }
                    }
                }
                if !path.is_empty() && ignored(&path) == Fate::Searched {
                    continue;
                }
                if let Some(item) = item(from, path, below, &seen).map_err(unreadable)? {
                    selection.count(&item, budget)?;
                    tree.items.push(item);
                }
            }
            // The list of what to ignore leaves nothing of it.
            if tree.items.is_empty() {
                return Err(missing(source));
            }
            selection.trees.push(tree);
        }
        Ok(selection)
    }

    fn count(&mut self, item: &Item, budget: &Budget) -> Result<(), Problem> {
        self.entries += 1;
        if let ItemKind::File { size, .. } = &item.kind {
            self.bytes = self.bytes.saturating_add(*size);
        }
        let (bytes_left, entries_left) = budget.left();
        if self.bytes > bytes_left {
            return Err(refused(
                format!(
                    "it copies more than the {} that are left for this build; {} are listed so far",
                    ByteSize::from_bytes(bytes_left),
                    ByteSize::from_bytes(self.bytes)
                ),
                "list what isn't needed in .dockerignore, or raise --max-size",
            ));
        }
        if self.entries > entries_left {
            return Err(refused(
                format!("it copies more than the {entries_left} files and directories that are left for this build"),
                "list what isn't needed in .dockerignore, or raise --max-entries",
            ));
        }
        Ok(())
    }

    /// Names, kinds, permissions, owners and contents. What is written later must be what was read for this.
    pub fn digest(&mut self, from: &View, go_on: GoOn<'_>) -> Result<ContentDigest, Problem> {
        let mut hash = Sha256::new();
        let text = |hash: &mut Sha256, text: &[u8]| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        for tree in &mut self.trees {
            hash.update([u8::from(tree.is_directory)]);
            text(&mut hash, &tree.name);
            for item in &mut tree.items {
                text(&mut hash, &item.below);
                for number in [item.mode, item.uid, item.gid] {
                    hash.update(number.to_le_bytes());
                }
                match &mut item.kind {
                    ItemKind::Directory => hash.update([1]),
                    ItemKind::File { size, read } => {
                        hash.update([2]);
                        let now = read_now(from, &item.path, *size, go_on);
                        let now = read.insert(now.map_err(|problem| about(&shown(&item.path), problem))?);
                        for (name, value) in &now.attributes {
                            text(&mut hash, name);
                            text(&mut hash, value);
                        }
                        hash.update(now.digest);
                    }
                    ItemKind::Link { target } => {
                        hash.update([3]);
                        text(&mut hash, target);
                    }
                    ItemKind::Fifo => hash.update([4]),
                }
            }
            hash.update([0xff]);
        }
        Ok(ContentDigest::from_bytes(hash.finalize().into()))
    }

    pub(super) fn write(
        &self,
        from: &View,
        below: &View,
        placement: &Placement<'_>,
        writer: &mut Writer,
        budget: &mut Budget,
        go_on: GoOn<'_>,
    ) -> Result<(), Problem> {
        let mut copy = Copy { below, placement, writer, budget, is_top_written: false };
        let to = copy.resolved(placement.to.as_bytes())?;
        let is_into = placement.to.ends_with('/') || self.trees.len() > 1;
        let is_there = copy.below.look(&to).map_err(unreadable)?.is_some_and(|seen| seen.is_directory());
        for tree in &self.trees {
            let top = match tree.is_directory {
                true => to.clone(),
                false if is_into || is_there => joined(&to, &tree.name),
                false => to.clone(),
            };
            for item in &tree.items {
                go_on()?;
                let path = if item.below.is_empty() { top.clone() } else { joined(&top, &item.below) };
                copy.item(from, item, &path, go_on).map_err(|problem| about_item(item, problem))?;
            }
        }
        Ok(())
    }
}

struct Copy<'a, 'b> {
    below: &'a View,
    placement: &'a Placement<'a>,
    writer: &'b mut Writer,
    budget: &'b mut Budget,
    is_top_written: bool,
}

impl Copy<'_, '_> {
    fn item(&mut self, from: &View, item: &Item, path: &[u8], go_on: GoOn<'_>) -> Result<(), Problem> {
        // A directory of the destination may be a link to another one.
        let (above, name) = split(path);
        let above = if above.is_empty() { Vec::new() } else { self.resolved(above)? };
        let path = if name.is_empty() { above.clone() } else { joined(&above, name) };
        let is_directory = matches!(item.kind, ItemKind::Directory);
        let mut path = path;
        let mut seen = self.below.look(&path).map_err(unreadable)?;
        if is_directory && seen.as_ref().is_some_and(|seen| seen.kind() == FileType::Symlink) {
            path = self.resolved(&path)?;
            seen = self.below.look(&path).map_err(unreadable)?;
        }
        match seen {
            Some(seen) if seen.is_directory() != is_directory => {
                let (new, old) = if is_directory { ("a directory", "something else") } else { ("no directory", "one") };
                return Err(refused(
                    format!("it is {new}, and {} of the image is {old}", shown(&path)),
                    "copy it elsewhere, or remove what is there with RUN rm before",
                ));
            }
            // The destination itself stays as it is.
            Some(seen) if is_directory && item.below.is_empty() => return self.as_below(&path, &seen),
            Some(_) | None => {}
        }
        let (above, _) = split(&path);
        self.parents(above)?;
        let place = parse(&path)?;
        self.budget.entry(path.len())?;
        let (uid, gid) = self.placement.owner.unwrap_or((item.uid, item.gid));
        let mut entry = Entry {
            path: Vec::new(),
            kind: Kind::Directory,
            mode: self.placement.mode.unwrap_or(item.mode),
            uid: uid.into(),
            gid: gid.into(),
            modified: item.modified,
            attributes: Vec::new(),
            attributes_unread: 0,
        };
        match &item.kind {
            ItemKind::Directory => self.writer.directory(&place, &entry, self.budget),
            ItemKind::File { size, read } => {
                let source = from.open(&item.path).map_err(unreadable)?;
                entry.attributes = kept(&source).map_err(unreadable)?;
                self.budget.content(*size)?;
                let target = self.writer.file(&place, self.budget)?;
                let (target, digest) = content::copy(&source, target, *size, go_on)?;
                // Otherwise the cache would give this content to who asks for the other.
                let is_same = |read: &Read| (&read.digest, &read.attributes) == (&digest, &entry.attributes);
                if !read.as_ref().is_none_or(is_same) {
                    return Err(refused("it changed while it was copied", "build again when nothing changes it"));
                }
                self.writer.finish_file(&target, &entry, digest)
            }
            ItemKind::Link { target } => self.writer.link(&place, target, &entry, self.budget),
            ItemKind::Fifo => self.writer.fifo(&place, &entry, self.budget),
        }
    }

    /// The directories above, as they are below or new. In an overlay the upper one's owner and permissions count.
    fn parents(&mut self, path: &[u8]) -> Result<(), Problem> {
        // From the top down, which is the empty path.
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let ends: Vec<usize> = [0].into_iter().chain(ends).chain((!path.is_empty()).then_some(path.len())).collect();
        for path in ends.into_iter().map(|end| &path[..end]) {
            if (path.is_empty() && self.is_top_written) || self.writer.has_directory(&parse(path)?) {
                continue;
            }
            self.is_top_written = true;
            match self.below.look(path).map_err(unreadable)? {
                Some(seen) if seen.is_directory() => self.as_below(path, &seen)?,
                Some(_) => {
                    return Err(refused(
                        format!("{} of the image is no directory", shown(path)),
                        "copy it elsewhere, or remove what is there with RUN rm before",
                    ));
                }
                None => {
                    self.budget.entry(path.len())?;
                    self.writer.directory(&parse(path)?, &made(), self.budget)?;
                }
            }
        }
        Ok(())
    }

    fn as_below(&mut self, path: &[u8], seen: &Seen) -> Result<(), Problem> {
        let (above, name) = split(path);
        if !name.is_empty() {
            self.parents(above)?;
        }
        self.budget.entry(path.len())?;
        let entry = Entry {
            mode: seen.stat.st_mode & PERMISSIONS,
            uid: self.below.id_inside(seen.stat.st_uid).into(),
            gid: self.below.id_inside(seen.stat.st_gid).into(),
            modified: (seen.stat.st_mtime, u32::try_from(seen.stat.st_mtime_nsec).unwrap_or(0)),
            ..made()
        };
        self.writer.directory(&parse(path)?, &entry, self.budget)
    }

    fn resolved(&self, path: &[u8]) -> Result<Vec<u8>, Problem> {
        self.below.resolve(path, Beyond::Stays).map_err(|error| match error {
            ResolveError::TooManyLinks | ResolveError::Outside => {
                refused(format!("the links to {} lead in a circle", shown(path)), "copy it elsewhere")
            }
            ResolveError::Errno(errno) => unreadable(errno),
        })
    }
}

/// Makes one directory and those above it, as `WORKDIR` does. `false`: it exists.
pub(super) fn make_directory(
    below: &View,
    path: &str,
    writer: &mut Writer,
    budget: &mut Budget,
) -> Result<bool, Problem> {
    let placement = Placement { to: path, owner: None, mode: None };
    let mut copy = Copy { below, placement: &placement, writer, budget, is_top_written: false };
    let path = copy.resolved(path.as_bytes())?;
    match below.look(&path).map_err(unreadable)? {
        Some(seen) if seen.is_directory() => Ok(false),
        Some(_) => Err(refused(
            format!("{} of the image is no directory", shown(&path)),
            "name another directory, or remove what is there with RUN rm before",
        )),
        None => copy.parents(&path).map(|()| true),
    }
}

fn made() -> Entry {
    Entry {
        path: Vec::new(),
        kind: Kind::Directory,
        mode: PARENT_MODE,
        uid: 0,
        gid: 0,
        modified: (0, 0),
        attributes: Vec::new(),
        attributes_unread: 0,
    }
}

fn item(from: &View, path: Vec<u8>, below: Vec<u8>, seen: &Seen) -> Result<Option<Item>, Errno> {
    let stat = &seen.stat;
    let kind = match seen.kind() {
        FileType::Directory => ItemKind::Directory,
        FileType::RegularFile => ItemKind::File { size: stat.st_size as u64, read: None },
        FileType::Symlink => ItemKind::Link { target: seen.link_target()? },
        FileType::Fifo => ItemKind::Fifo,
        // A sandbox has its own devices, and a socket is of no use without the program that made it.
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Socket | FileType::Unknown => return Ok(None),
    };
    Ok(Some(Item {
        path,
        below,
        kind,
        mode: stat.st_mode & PERMISSIONS,
        uid: from.id_inside(stat.st_uid),
        gid: from.id_inside(stat.st_gid),
        modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
    }))
}

fn read_now(from: &View, path: &[u8], size: u64, go_on: GoOn<'_>) -> Result<Read, Problem> {
    let file = from.open(path).map_err(unreadable)?;
    let attributes = kept(&file).map_err(unreadable)?;
    Ok(Read { digest: content::digest(file, size, go_on)?, attributes })
}

fn kept(file: &std::fs::File) -> Result<Vec<Attribute>, Errno> {
    match attributes::read(file) {
        Ok(mut attributes) => {
            attributes.retain(|(name, _)| !name.starts_with(b"user.overlay."));
            Ok(attributes)
        }
        // A filesystem without attributes.
        Err(Errno::OPNOTSUPP) => Ok(Vec::new()),
        Err(errno) => Err(errno),
    }
}

fn about_item(item: &Item, problem: Problem) -> Problem {
    about(&shown(&item.path), problem)
}

fn missing(source: &[u8]) -> Problem {
    refused(format!("there is no {}", shown(source)), "check the name, and that .dockerignore doesn't list it")
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

fn parse(path: &[u8]) -> Result<EntryPath, Problem> {
    EntryPath::parse(path).map_err(|why| refused(format!("it {why}"), "copy it to a shorter path"))
}

fn unreadable(errno: Errno) -> Problem {
    let why = std::io::Error::from(errno).kind();
    refused(format!("it can't be read: {why}"), "check its permissions and its disk, then build again")
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{CWD, Mode, OFlags, openat};

    use super::*;
    use crate::layer::written::{Content, Copied, copy};
    use crate::limits::Limits;

    fn open(path: &Path) -> OwnedFd {
        openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn a_file_that_changes_after_its_digest_is_refused() {
        let root = std::env::temp_dir().join(format!("saggar-copy-{}", std::process::id()));
        let [from, to] = ["from", "to"].map(|name| root.join(name));
        for (after, expected) in [("same", None), ("else", Some("it changed while it was copied"))] {
            std::fs::create_dir_all(&from).unwrap();
            std::fs::create_dir_all(&to).unwrap();
            std::fs::write(from.join("file"), "same").unwrap();
            let (view, mut budget, go_on) =
                (View::of_directory(open(&from)), Budget::new(Limits::default()), || Ok(()));
            let sources = [b"file".to_vec()];
            let mut selection = Selection::list(&view, &sources, &|_| Fate::Taken, &budget, &go_on).unwrap();
            selection.digest(&view, &go_on).unwrap();
            std::fs::write(from.join("file"), after).unwrap();
            let placement = Placement { to: "/file", owner: None, mode: None };
            let content = Content::Copies { from: &view, selection: &selection, placement: &placement };
            let written = copy(&content, &View::empty(), open(&to), &mut budget, &go_on).and_then(Copied::finish);
            std::fs::remove_dir_all(&root).unwrap();
            let refused = written.err().map(|problem| problem.message);
            assert_eq!(refused.is_some(), expected.is_some(), "{refused:?}");
            assert!(refused.unwrap_or_default().contains(expected.unwrap_or_default()));
        }
    }
}
