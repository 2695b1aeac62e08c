//! What differs between two stacks of layers: added, changed and removed paths, and the lines of small texts.
//!
//! Layers that both have at their bottoms are the same files, so only what lies above them is looked at: the cost follows from what was
//! changed. Nothing is followed, and everything is bounded: the number of paths, the size of a text, and the time of comparing one.

mod lines;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_sandbox::HeldTemplate;

use crate::failure::storage;
use crate::layer::{GoOn, Seen, View};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Deeper than any layer.
const DEPTH_MAX: usize = 256;

/// How much of a difference is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffLimits {
    pub paths_max: usize,
    /// Larger files are reported without their lines.
    pub text_bytes_max: u64,
    /// Of all lines together.
    pub all_text_bytes_max: usize,
}

impl Default for DiffLimits {
    fn default() -> Self {
        Self { paths_max: 10_000, text_bytes_max: 256 << 10, all_text_bytes_max: 4 << 20 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    Added,
    Changed,
    Removed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffEntry {
    pub path: Vec<u8>,
    pub difference: Difference,
    /// Whether it is a directory, in the second stack if it is in both.
    pub is_directory: bool,
    /// Its size before and after, if it is a file there.
    pub sizes: (Option<u64>, Option<u64>),
    /// The changed lines in unified format, if both are small texts.
    pub text: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackDiff {
    /// By path.
    pub entries: Vec<DiffEntry>,
    /// Whether there are more than were wanted.
    pub is_cut: bool,
}

/// Compares two stacks.
pub fn diff(
    before: &HeldTemplate,
    after: &HeldTemplate,
    limits: DiffLimits,
    go_on: GoOn<'_>,
) -> Result<StackDiff, Problem> {
    let shared = before.layers.iter().zip(&after.layers).take_while(|(a, b)| a.id == b.id).count();
    let view = |held: &HeldTemplate| View::of_template(held).map_err(unreadable);
    let (before_view, after_view) = (view(before)?, view(after)?);
    let mut own = Vec::new();
    for layer in before.layers[shared..].iter().chain(&after.layers[shared..]) {
        own.push(openat2(layer.tree(), ".", DIRECTORY, Mode::empty(), RESOLVE).map_err(unreadable)?);
    }
    let mut walk =
        Walk { before: before_view, after: after_view, limits, go_on, diff: StackDiff::default(), text_bytes: 0 };
    let own: Vec<&OwnedFd> = own.iter().collect();
    walk.directory(&[], &own, 0)?;
    walk.diff.entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(walk.diff)
}

struct Walk<'a> {
    before: View,
    after: View,
    limits: DiffLimits,
    go_on: GoOn<'a>,
    diff: StackDiff,
    text_bytes: usize,
}

impl Walk<'_> {
    /// Compares what may differ in a directory that both have: what the layers that aren't shared have there.
    fn directory(&mut self, path: &[u8], own: &[&OwnedFd], depth: usize) -> Result<(), Problem> {
        if depth > DEPTH_MAX {
            return Err(unreadable(Errno::NAMETOOLONG));
        }
        let mut names = BTreeSet::new();
        let mut hides = false;
        for layer in own {
            let place = if path.is_empty() { b".".as_slice() } else { path };
            let directory = match openat2(layer, place, DIRECTORY, Mode::empty(), RESOLVE) {
                Ok(directory) => directory,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(unreadable(errno)),
            };
            hides |= crate::layer::is_opaque(&directory);
            for entry in Dir::read_from(&directory).map_err(unreadable)? {
                let name = entry.map_err(unreadable)?.file_name().to_bytes().to_vec();
                if name != b"." && name != b".." {
                    names.insert(name);
                }
            }
        }
        if hides {
            // What is hidden in one of them is in no layer of its own.
            names.extend(self.before.names(path).map_err(unreadable)?);
            names.extend(self.after.names(path).map_err(unreadable)?);
        }
        for name in names {
            if self.diff.is_cut {
                return Ok(());
            }
            (self.go_on)()?;
            let path = joined(path, &name);
            let (before, after) =
                (self.before.look(&path).map_err(unreadable)?, self.after.look(&path).map_err(unreadable)?);
            match (before, after) {
                (None, None) => {}
                (Some(before), None) => self.whole(&path, &before, Difference::Removed, depth)?,
                (None, Some(after)) => self.whole(&path, &after, Difference::Added, depth)?,
                (Some(before), Some(after)) => self.both(&path, &before, &after, own, depth)?,
            }
        }
        Ok(())
    }

    fn both(
        &mut self,
        path: &[u8],
        before: &Seen,
        after: &Seen,
        own: &[&OwnedFd],
        depth: usize,
    ) -> Result<(), Problem> {
        let same_file = (before.stat.st_dev, before.stat.st_ino) == (after.stat.st_dev, after.stat.st_ino);
        if before.is_directory() && after.is_directory() {
            if !same_file && !is_alike(before, after) {
                self.add(path, Difference::Changed, Some(before), Some(after), None);
            }
            return self.directory(path, own, depth + 1);
        }
        if before.is_directory() || after.is_directory() {
            self.whole(path, before, Difference::Removed, depth)?;
            return self.whole(path, after, Difference::Added, depth);
        }
        if same_file || (is_alike(before, after) && self.has_same_content(path, before, after)?) {
            return Ok(());
        }
        let text = self.text(path, before, after)?;
        self.add(path, Difference::Changed, Some(before), Some(after), text);
        Ok(())
    }

    /// Everything below a path that only one of them has.
    fn whole(&mut self, path: &[u8], seen: &Seen, difference: Difference, depth: usize) -> Result<(), Problem> {
        match difference {
            Difference::Removed => self.add(path, difference, Some(seen), None, None),
            Difference::Added | Difference::Changed => self.add(path, difference, None, Some(seen), None),
        }
        if !seen.is_directory() || self.diff.is_cut {
            return Ok(());
        }
        if depth > DEPTH_MAX {
            return Err(unreadable(Errno::NAMETOOLONG));
        }
        let view = if difference == Difference::Removed { &self.before } else { &self.after };
        for name in view.names(path).map_err(unreadable)? {
            (self.go_on)()?;
            let path = joined(path, &name);
            let view = if difference == Difference::Removed { &self.before } else { &self.after };
            if let Some(seen) = view.look(&path).map_err(unreadable)? {
                self.whole(&path, &seen, difference, depth + 1)?;
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        path: &[u8],
        difference: Difference,
        before: Option<&Seen>,
        after: Option<&Seen>,
        text: Option<String>,
    ) {
        if self.diff.entries.len() >= self.limits.paths_max {
            self.diff.is_cut = true;
            return;
        }
        let size = |seen: Option<&Seen>| {
            seen.filter(|seen| seen.kind() == FileType::RegularFile).map(|seen| seen.stat.st_size as u64)
        };
        let is_directory = after.or(before).is_some_and(Seen::is_directory);
        let sizes = (size(before), size(after));
        self.diff.entries.push(DiffEntry { path: path.to_vec(), difference, is_directory, sizes, text });
    }

    fn has_same_content(&self, path: &[u8], before: &Seen, after: &Seen) -> Result<bool, Problem> {
        match (before.kind(), after.kind()) {
            (FileType::RegularFile, FileType::RegularFile) => {}
            (FileType::Symlink, FileType::Symlink) => {
                let targets = (before.link_target().map_err(unreadable)?, after.link_target().map_err(unreadable)?);
                return Ok(targets.0 == targets.1);
            }
            (a, b) => return Ok(a == b),
        }
        if before.stat.st_size != after.stat.st_size {
            return Ok(false);
        }
        let (mut a, mut b) = (self.before.open(path).map_err(unreadable)?, self.after.open(path).map_err(unreadable)?);
        let (mut left, mut right) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        loop {
            (self.go_on)()?;
            let count = read_full(&mut a, &mut left)?;
            if count != read_full(&mut b, &mut right)? || left[..count] != right[..count] {
                return Ok(false);
            }
            if count == 0 {
                return Ok(true);
            }
        }
    }

    fn text(&mut self, path: &[u8], before: &Seen, after: &Seen) -> Result<Option<String>, Problem> {
        let is_small = |seen: &Seen| {
            seen.kind() == FileType::RegularFile && seen.stat.st_size as u64 <= self.limits.text_bytes_max
        };
        if !is_small(before) || !is_small(after) || self.text_bytes >= self.limits.all_text_bytes_max {
            return Ok(None);
        }
        let read = |view: &View| -> Result<Option<String>, Problem> {
            let mut bytes = Vec::new();
            let file = view.open(path).map_err(unreadable)?;
            file.take(self.limits.text_bytes_max).read_to_end(&mut bytes).map_err(storage_failed)?;
            Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
        };
        let (Some(old), Some(new)) = (read(&self.before)?, read(&self.after)?) else { return Ok(None) };
        let text = lines::unified(&old, &new);
        // Looking in vain for few differences takes longer than writing them down.
        self.text_bytes += text.as_ref().map_or(old.len() + new.len(), String::len);
        Ok(text)
    }
}

/// Whether kind, permissions and owner are the same.
fn is_alike(before: &Seen, after: &Seen) -> bool {
    let of = |seen: &Seen| (seen.stat.st_mode, seen.stat.st_uid, seen.stat.st_gid);
    of(before) == of(after)
}

fn read_full(file: &mut std::fs::File, buffer: &mut [u8]) -> Result<usize, Problem> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]).map_err(storage_failed)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

fn unreadable(errno: Errno) -> Problem {
    storage("a stored layer can't be read", errno)
}

fn storage_failed(error: std::io::Error) -> Problem {
    storage("a stored layer can't be read", error)
}
