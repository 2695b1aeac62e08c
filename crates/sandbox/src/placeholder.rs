//! Protected paths of a workspace, whether they exist or not.
//!
//! The kernel can only protect an existing path, so an absent one gets a placeholder on the host while sandboxes use
//! the workspace. Several sandboxes may share it: a placeholder is removed with the last record that names it, because
//! removing a name that another sandbox protects would end the protection there. A gate makes "check, record, place"
//! and "check, remove" atomic among our own processes.
//!
//! Protection applies to a name. A file with a second hard link could be written through that, so it is refused.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock, mkdirat, mknodat, openat, openat2,
    statat, unlinkat,
};
use rustix::io::Errno;
use saggar_domain::{Code, DEFAULT_PROTECTED, Problem, ProtectedPath};

use crate::acting::ActingAs;
use crate::changes::Name;
use crate::git;
use crate::holdback::{Before, Known};
use crate::host_tree::HostTree;
use crate::record::{Found, inspect};

/// An empty one would make git fail in every directory below; this content is what git assumes without the file.
const COMMONDIR: (&str, &[u8]) = ("/commondir", b".\n");
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// What to protect, and which placeholders to create first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Protection {
    /// Components from the workspace down, for each path to protect.
    pub(crate) held: Vec<Vec<String>>,
    /// Placeholders to create, parents first.
    pub(crate) absent: Vec<String>,
    /// The kind of each placeholder, in the same order.
    shapes: Vec<Shape>,
    /// The git directories of the workspace.
    pub(crate) git_directories: Vec<String>,
    /// Links in the workspace, if it is a git directory itself.
    pub(crate) git_links: Vec<Name>,
    /// Files whose edits git doesn't show.
    pub(crate) hidden: BTreeSet<Vec<u8>>,
    /// The state needed at the end, to tell what the sandbox created.
    pub(crate) before: Before,
}

const OWN: &str = ".saggar";

/// Which of the built-in paths get no placeholder. What a sandbox creates there is held back when it ends.
#[derive(Clone, Copy, Debug)]
struct LeftOpen {
    /// Those in `.git`: there is no repository yet, and `git init` must be able to create one.
    repository: bool,
    /// All of them: the workspace is empty, and `git clone URL .` needs it to be.
    everything: bool,
}

impl LeftOpen {
    fn has(self, path: &ProtectedPath) -> bool {
        let is_built_in = DEFAULT_PROTECTED.contains(&path.as_str());
        let is_own = path.names().first() == Some(&OWN);
        is_built_in && if is_own { self.everything } else { self.repository }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Directory,
    File,
    /// A socket without a listener: git doesn't accept it as part of a repository, and doesn't list it as a file
    /// either.
    Stop,
}

/// Maximum number of files in protected directories that are checked for second hard links.
const NAMES_MAX: usize = 4096;

/// The gate is held only briefly; a process that holds it longer was stopped or hangs.
const GATE_PATIENCE: Duration = Duration::from_secs(10);

/// The gate: while it is held, no other process of ours places or removes a placeholder.
#[derive(Debug)]
pub(crate) struct Gate {
    _locked: OwnedFd,
}

impl Gate {
    pub(crate) fn close(records: BorrowedFd<'_>) -> std::io::Result<Self> {
        let fd = openat(records, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let deadline = Instant::now() + GATE_PATIENCE;
        loop {
            match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _locked: fd }),
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => saggar_jail::pause_briefly(),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Protection {
    /// Examines each path without following a link.
    pub(crate) fn look(
        workspace: &HostTree,
        paths: &[ProtectedPath],
        records: BorrowedFd<'_>,
        _gate: &Gate,
    ) -> Result<Self, Problem> {
        // Dead records count too: their placeholders are removed when they are reaped, even if we rely on them.
        let theirs = paths_of_others(records, workspace, None, |found| match found {
            Found::Live(holdings) => holdings.placeholders,
            Found::Dead(dead) => dead.holdings.placeholders,
            Found::Gone => Vec::new(),
        });
        let found = git::examine(workspace)?;
        let mut protection = Self {
            git_directories: found.directories,
            git_links: found.links,
            hidden: found.hidden,
            ..Self::default()
        };
        let has_none = !found.has_repository && !has(workspace, ".git");
        let left_open = LeftOpen { repository: has_none, everything: has_none && is_empty(workspace)? };
        for path in paths.iter().filter(|path| !left_open.has(path)).chain(&found.paths) {
            let shape = if path.is_directory() { Shape::Directory } else { Shape::File };
            protection.look_at(workspace, path, shape, &theirs)?;
        }
        for path in found.stops.iter().filter(|_| !left_open.everything) {
            protection.look_at(workspace, path, Shape::Stop, &theirs)?;
        }
        protection.before = Before {
            known: match left_open {
                LeftOpen { everything: true, .. } => Known::All(Vec::new()),
                LeftOpen { repository: true, .. } => Known::of(workspace),
                // Existing paths are protected; searching all of a large repository would slow down every start.
                LeftOpen { repository: false, .. } => Known::Unknown,
            },
            held: protection.held.iter().map(|names| names.join("/")).collect(),
            hooks: found.hooks,
            absent: if left_open.everything { vec![OWN.to_owned()] } else { Vec::new() },
        };
        Ok(protection)
    }

    fn look_at(
        &mut self,
        workspace: &HostTree,
        path: &ProtectedPath,
        shape: Shape,
        theirs: &[String],
    ) -> Result<(), Problem> {
        let names = path.names();
        let mut so_far = String::new();
        let mut is_missing = false;
        for (index, name) in names.iter().enumerate() {
            so_far = if so_far.is_empty() { (*name).to_owned() } else { format!("{so_far}/{name}") };
            let is_last = index + 1 == names.len();
            let stat = if is_missing { None } else { stat_of(workspace, &so_far, path)? };
            let kind = stat.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode));
            if let Some(FileType::RegularFile) = kind
                && stat.is_some_and(|stat| stat.st_nlink > 1)
            {
                return Err(has_two_names(path, &so_far));
            }
            match kind {
                Some(FileType::Symlink) => {
                    return Err(Problem::new(
                        Code::InvalidProtect,
                        format!(
                            "protected path {path} goes through the symbolic link {so_far:?}, which can't be protected"
                        ),
                        "replace the link with its target, or use --fs read-only or --fs scratch",
                    ));
                }
                // A file in place of a directory (.git of a worktree) is what has to be protected.
                Some(FileType::Directory) | None => {}
                Some(_) if !is_last => {
                    self.hold(&names[..=index]);
                    return Ok(());
                }
                Some(_) => {}
            }
            is_missing |= kind.is_none();
            if is_missing || theirs.contains(&so_far) {
                self.place(&so_far, if is_last { shape } else { Shape::Directory });
            }
            if is_last && kind == Some(FileType::Directory) {
                check_names_in(workspace, &so_far, path)?;
            }
        }
        self.hold(&names);
        Ok(())
    }

    fn hold(&mut self, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        if !self.held.contains(&names) {
            self.held.push(names);
        }
    }

    fn place(&mut self, path: &str, shape: Shape) {
        if !self.absent.iter().any(|known| known == path) {
            self.absent.push(path.to_owned());
            self.shapes.push(shape);
        }
    }

    /// Creates the placeholders, with the workspace's owner. One that appeared in the meantime is fine.
    pub(crate) fn put(&self, workspace: &HostTree, _gate: &Gate) -> Result<(), Problem> {
        let _owner = ActingAs::owner_of(workspace);
        for (path, shape) in self.absent.iter().zip(&self.shapes) {
            put_one(workspace, path, *shape).map_err(|errno| {
                Problem::new(
                    Code::InvalidProtect,
                    format!("protected path {path:?} is absent and no placeholder can be created: {errno}"),
                    "create it, make the workspace writable for you, or use --fs read-only or --fs scratch",
                )
            })?;
        }
        Ok(())
    }
}

fn has(workspace: &HostTree, name: &str) -> bool {
    !matches!(statat(&workspace.fd, name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
}

fn is_empty(workspace: &HostTree) -> Result<bool, Problem> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let first = openat2(workspace.fd.as_fd(), ".", flags, Mode::empty(), RESOLVE).and_then(|directory| {
        let mut names = Dir::new(directory)?.map(|entry| entry.map(|entry| entry.file_name().to_bytes().to_vec()));
        names.find(|name| !matches!(name.as_deref(), Ok(b"." | b".."))).transpose()
    });
    first.map(|first| first.is_none()).map_err(|errno| {
        Problem::new(
            Code::InvalidWorkspace,
            format!("the workspace can't be listed: {errno}"),
            "check its permissions, or use --fs read-only or --fs scratch",
        )
    })
}

fn put_one(workspace: &HostTree, path: &str, shape: Shape) -> Result<(), Errno> {
    let (parent, name) = parent_of(workspace, path)?;
    let put_file = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&parent, name, flags, Mode::from_raw_mode(0o644))
    };
    let made = match shape {
        Shape::Directory => mkdirat(&parent, name, Mode::from_raw_mode(0o755)),
        Shape::File => put_file().and_then(|file| {
            if path.ends_with(COMMONDIR.0) {
                rustix::io::write(&file, COMMONDIR.1)?;
            }
            Ok(())
        }),
        Shape::Stop => match mknodat(&parent, name, FileType::Socket, Mode::from_raw_mode(0o644), 0) {
            // Not every filesystem supports sockets. An empty file stops git as well, but is visible as a file.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => put_file().map(drop),
            other => other,
        },
    };
    match made {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Removes placeholders that no other live record names and that are unchanged. The record that named them must no
/// longer count: either it is the caller's own (`own`) or it is dead.
pub(crate) fn remove(workspace: &HostTree, paths: &[String], records: BorrowedFd<'_>, own: &str, _gate: &Gate) {
    let theirs = paths_of_others(records, workspace, Some(own), |found| match found {
        Found::Live(holdings) => holdings.placeholders,
        Found::Dead(_) | Found::Gone => Vec::new(),
    });
    let _owner = ActingAs::owner_of(workspace);
    for path in paths.iter().rev().filter(|path| !theirs.contains(path)) {
        // If it can't be removed it is no longer a placeholder: something was put into it or in its place.
        let _ = remove_one(workspace, path);
    }
}

fn remove_one(workspace: &HostTree, path: &str) -> Result<(), Errno> {
    let (parent, name) = parent_of(workspace, path)?;
    match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTDIR) => {}
        other => return other,
    }
    let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
        return unlinkat(&parent, name, AtFlags::empty());
    }
    if is_as_placed(&parent, name, path)? {
        unlinkat(&parent, name, AtFlags::empty())?;
    }
    Ok(())
}

/// Whether a file still has a placeholder's content.
fn is_as_placed(parent: &OwnedFd, name: &str, path: &str) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty())?;
    let mut content = [0u8; 8];
    let length = rustix::io::read(&file, &mut content)?;
    Ok(length == 0 || (path.ends_with(COMMONDIR.0) && content[..length] == *COMMONDIR.1))
}

/// Checks that files in a protected directory have no second hard link elsewhere. git's objects are exempt: they are
/// named after their content, and clones share them.
fn check_names_in(workspace: &HostTree, path: &str, asked: &ProtectedPath) -> Result<(), Problem> {
    let mut waiting = vec![path.to_owned()];
    let mut looked_at = 0;
    while let Some(directory) = waiting.pop() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A directory that we can't list can't be protected either, which is reported there.
        let Ok(fd) = openat2(workspace.fd.as_fd(), directory.as_str(), flags, Mode::empty(), RESOLVE) else { continue };
        let Ok(entries) = Dir::read_from(&fd) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            looked_at += 1;
            if matches!(name, b"." | b"..") {
                continue;
            }
            if looked_at > NAMES_MAX {
                return Ok(());
            }
            let whole = format!("{directory}/{}", String::from_utf8_lossy(name));
            let Ok(stat) = statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory if !whole.ends_with(".git/objects") => waiting.push(whole),
                FileType::RegularFile if stat.st_nlink > 1 => return Err(has_two_names(asked, &whole)),
                _ => {}
            }
        }
    }
    Ok(())
}

fn has_two_names(asked: &ProtectedPath, path: &str) -> Problem {
    Problem::new(
        Code::InvalidProtect,
        format!("{path:?}, part of protected path {asked}, has a second hard link, through which it could be written"),
        "replace it with a copy of itself (cp, then mv), or use --fs read-only or --fs scratch",
    )
}

fn stat_of(workspace: &HostTree, path: &str, asked: &ProtectedPath) -> Result<Option<Stat>, Problem> {
    let looked = parent_of(workspace, path).and_then(|(parent, name)| statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW));
    match looked {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Problem::new(
            Code::InvalidProtect,
            format!("protected path {asked} can't be examined: {errno}"),
            "check the permissions of the directories above it",
        )),
    }
}

/// The directory that contains a path's last component, reached without leaving the workspace or following a link.
fn parent_of<'a>(workspace: &HostTree, path: &'a str) -> Result<(OwnedFd, &'a str), Errno> {
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    let fd = openat2(
        workspace.fd.as_fd(),
        parent,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        RESOLVE,
    )?;
    Ok((fd, name))
}

/// What other sandboxes have in a workspace.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// Placeholders, which are removed with their owners.
    placed: Vec<String>,
    /// Paths that mounts of live sandboxes protect. Removing such a name would end the protection.
    pub(crate) held: Vec<String>,
}

impl Others {
    /// Examines all records but the caller's own.
    pub(crate) fn look(records: BorrowedFd<'_>, workspace: &HostTree, own: &str, _gate: &Gate) -> Self {
        let placed = paths_of_others(records, workspace, Some(own), |found| match found {
            Found::Live(holdings) => holdings.placeholders,
            Found::Dead(dead) => dead.holdings.placeholders,
            Found::Gone => Vec::new(),
        });
        let held = paths_of_others(records, workspace, Some(own), |found| match found {
            Found::Live(holdings) => holdings.before.map(|before| before.held).unwrap_or_default(),
            Found::Dead(_) | Found::Gone => Vec::new(),
        });
        Self { placed, held }
    }

    /// Whether a path is an unchanged placeholder of another sandbox. A directory counts as one whatever was put into
    /// it.
    pub(crate) fn have_placed(&self, workspace: &HostTree, path: &[u8], is_directory: bool) -> bool {
        let Some(path) = self.placed.iter().find(|placed| placed.as_bytes() == path) else { return false };
        let looked = || parent_of(workspace, path).and_then(|(parent, name)| is_as_placed(&parent, name, path));
        is_directory || looked().unwrap_or(false)
    }
}

/// Paths in this workspace that other records name, as selected by `which`. The caller's own record is skipped without
/// being opened: closing it again would drop its lock.
fn paths_of_others(
    records: BorrowedFd<'_>,
    workspace: &HostTree,
    own: Option<&str>,
    which: impl Fn(Found) -> Vec<String>,
) -> Vec<String> {
    let mut paths = Vec::new();
    if !saggar_jail::Rule::SharedPlaceholders.is_on() {
        return paths;
    }
    for name in crate::reaper::names(records).iter().filter(|name| own != Some(name.as_str())) {
        let Ok(found) = inspect(records, name) else { continue };
        let (theirs, is_ours) = match &found {
            Found::Live(holdings) => (holdings.workspace.clone(), holdings.is_of(workspace)),
            Found::Dead(dead) => (dead.holdings.workspace.clone(), dead.holdings.is_of(workspace)),
            Found::Gone => continue,
        };
        let Some(theirs) = theirs else { continue };
        // Their workspace may be ours by another name, or lie in ours or around it.
        paths.extend(which(found).into_iter().filter_map(|path| {
            let whole = Path::new(&theirs).join(&path);
            let within = whole.strip_prefix(&workspace.path).ok().and_then(Path::to_str).map(str::to_owned);
            if is_ours { Some(path) } else { within }
        }));
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Holdings, Record};
    use saggar_domain::{HostPath, SandboxId};

    /// Its owner died after the reaper ran: the placeholder is on disk, and no live process owns it.
    #[test]
    fn a_placeholder_of_the_dead_is_taken_over_and_not_taken_for_the_users() {
        let root = std::env::temp_dir().join(format!("saggar-placeholder-{}", std::process::id()));
        std::fs::create_dir_all(root.join("workspace/.saggar")).unwrap();
        std::fs::create_dir_all(root.join("records")).unwrap();
        let records =
            rustix::fs::open(root.join("records"), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .unwrap();
        let path = HostPath::parse(root.join("workspace").to_str().unwrap()).unwrap();
        let workspace = HostTree::open(&path, Code::InvalidWorkspace, "workspace").unwrap();
        let mut holdings = Holdings::new();
        holdings.set_workspace(&workspace);
        holdings.placeholders = vec![".saggar".to_owned()];
        let protected = [ProtectedPath::parse(".saggar/").unwrap()];
        let look = || {
            Protection::look(&workspace, &protected, records.as_fd(), &Gate::close(records.as_fd()).unwrap())
                .unwrap()
                .absent
        };
        assert_eq!(look(), ["refs", "commondir"], "what keeps git from taking the top for a bare repository");
        drop(Record::create(records.as_fd(), &SandboxId::from_random([7; 16]), &holdings).unwrap());
        assert_eq!(look(), [".saggar", "refs", "commondir"]);
        std::fs::remove_dir_all(root).unwrap();
    }
}
