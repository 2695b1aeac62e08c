//! The checkout of a worktree: a directory below the data directory, which a sandbox sees copy-on-write.
//!
//! It has the files of one commit as they are stored, and a git directory of its own, which no setting or hook of the host's repository
//! gets into. Its objects are the host's, mounted read-only. It is removed with the sandbox's record.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode as Bits, OFlags, fchmod, fstat, fstatvfs, mkdirat, openat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use saggar_domain::{Access, Code, GuestPath, HostPath, Mount, Problem, SandboxId};
use sha1::{Digest, Sha1};

use super::branch::name_of;
use super::object::{Mode, ObjectId, ObjectKind};
use super::repository::{Repository, refuse, unusable};
use crate::changes::{Name, open_directory};
use crate::data::DataDirectory;
use crate::host_tree::HostTree;

/// Where a sandbox has the host's objects.
const GUEST_OBJECTS: &str = "/.git-objects";
/// The part of the data directory that checkouts are in.
const PLACE: &str = "worktrees";
/// Maximum number of files of a checkout, and of bytes in them. A commit of a few kilobytes can have more than any disk.
const FILES_MAX: usize = 1_000_000;
const BYTES_MAX: u64 = 16 << 30;
/// Maximum length of a path.
const PATH_MAX: usize = 4000;
/// The part of the disk that stays free.
const FREE_SHARE: u64 = 20;

#[derive(Debug)]
pub(crate) struct Checkout {
    /// What the sandbox gets as its workspace.
    pub(crate) tree: HostTree,
    /// The host's objects, and where they are mounted.
    pub(crate) objects: (Mount, HostTree),
    pub(crate) commit: ObjectId,
}

/// A file of the index.
struct Listed {
    path: Name,
    mode: Mode,
    id: ObjectId,
    len: u64,
}

impl Checkout {
    /// Checks out the current commit of a workspace. The sandbox's record must exist, so that whatever happens the checkout is removed.
    pub(crate) fn make(data: &DataDirectory, sandbox: &SandboxId, workspace: &HostTree) -> Result<Self, Problem> {
        let repository = Repository::open(workspace)?;
        let commit = repository.head()?;
        let tree = repository.objects.commit(commit).map_err(|error| unusable(&error))?.tree;
        let place = data.worktrees().map_err(|error| unwritable(error.kind()))?;
        mkdirat(&place, sandbox.as_str(), Bits::from_raw_mode(0o700)).map_err(unwritable)?;
        let top = open_directory(place.as_fd(), sandbox.as_str().as_bytes()).map_err(unwritable)?;
        let files = Files { repository: &repository, top: &top }.write(tree)?;
        write_git_directory(&repository, &top, sandbox, commit, files)?;
        let stat = fstat(&top).map_err(unwritable)?;
        let path = data.path().join(PLACE).join(sandbox.as_str());
        let path = path.canonicalize().map_err(|error| unwritable(error.kind()))?;
        let objects = repository.objects_tree()?;
        let host = HostPath::parse(&objects.path.display().to_string()).map_err(|error| refuse(&error, "rename it"))?;
        let guest = GuestPath::parse(GUEST_OBJECTS).expect("the place of the objects is a path");
        let mount = Mount { host, guest, access: Access::ReadOnly };
        let tree = HostTree {
            path,
            fd: top,
            device: stat.st_dev,
            inode: stat.st_ino,
            uid: stat.st_uid,
            gid: stat.st_gid,
            is_directory: true,
            user: None,
        };
        Ok(Self { tree, objects: (mount, objects), commit })
    }
}

struct Files<'a> {
    repository: &'a Repository<'a>,
    top: &'a OwnedFd,
}

impl Files<'_> {
    /// Writes the files of a tree. Doesn't recurse: its depth is a stranger's.
    fn write(&self, tree: ObjectId) -> Result<Vec<Listed>, Problem> {
        if self.count(tree)? > FILES_MAX {
            return Err(too_large());
        }
        let mut files: Vec<Listed> = Vec::new();
        let mut bytes = 0;
        let mut waiting = vec![(Name(Vec::new()), tree)];
        while let Some((directory, tree)) = waiting.pop() {
            let parent = open_directory(self.top.as_fd(), directory.as_bytes()).map_err(unwritable)?;
            for entry in self.repository.objects.tree(tree).map_err(|error| unusable(&error))? {
                let path = directory.join(&entry.name);
                if path.as_bytes().len() > PATH_MAX {
                    return Err(too_large());
                }
                let len = match entry.mode {
                    Mode::Tree => {
                        mkdirat(&parent, entry.name.as_slice(), Bits::from_raw_mode(0o755)).map_err(unwritable)?;
                        waiting.push((path, entry.id));
                        continue;
                    }
                    Mode::Submodule => {
                        mkdirat(&parent, entry.name.as_slice(), Bits::from_raw_mode(0o755)).map_err(unwritable)?;
                        0
                    }
                    Mode::File | Mode::Executable | Mode::Link => {
                        let content = self.repository.objects.of_kind(entry.id, ObjectKind::Blob);
                        let content = content.map_err(|error| unusable(&error))?;
                        bytes += content.len() as u64;
                        if bytes > BYTES_MAX {
                            return Err(too_large());
                        }
                        if files.len().is_multiple_of(256) || content.len() > 1 << 20 {
                            self.check_room(content.len() as u64)?;
                        }
                        put(&parent, &entry.name, entry.mode, &content).map_err(unwritable)?;
                        content.len() as u64
                    }
                };
                files.push(Listed { path, mode: entry.mode, id: entry.id, len });
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    /// The number of files and directories of a tree. Each tree in it is read once or twice, however often it occurs.
    fn count(&self, top: ObjectId) -> Result<usize, Problem> {
        let mut known: BTreeMap<ObjectId, usize> = BTreeMap::new();
        let mut waiting = vec![top];
        while let Some(tree) = waiting.last().copied() {
            // A tree that is in another one many times waits as often.
            if known.contains_key(&tree) {
                waiting.pop();
                continue;
            }
            let entries = self.repository.objects.tree(tree).map_err(|error| unusable(&error))?;
            let below = entries.iter().filter(|entry| entry.mode == Mode::Tree).map(|entry| entry.id);
            let unknown: Vec<ObjectId> = below.clone().filter(|id| !known.contains_key(id)).collect();
            if known.len() + waiting.len() > FILES_MAX {
                return Err(too_large());
            }
            if unknown.is_empty() {
                let count =
                    below.filter_map(|id| known.get(&id)).fold(entries.len(), |sum, one| sum.saturating_add(*one));
                known.insert(tree, count);
                waiting.pop();
            } else {
                waiting.extend(unknown);
            }
        }
        Ok(known.get(&top).copied().unwrap_or_default())
    }

    /// A twentieth of the disk stays free, as for volumes.
    fn check_room(&self, more: u64) -> Result<(), Problem> {
        let disk = fstatvfs(self.top).map_err(unwritable)?;
        if (disk.f_bavail * disk.f_frsize).saturating_sub(more) < disk.f_blocks * disk.f_frsize / FREE_SHARE {
            return Err(unwritable(Errno::NOSPC));
        }
        Ok(())
    }
}

/// Writes one file. What is there already stays, so that no entry of a tree is written through another.
fn put(parent: &OwnedFd, name: &[u8], mode: Mode, content: &[u8]) -> Result<(), Errno> {
    if mode == Mode::Link {
        return symlinkat(content, parent, name);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(parent, name, flags, Bits::from_raw_mode(0o600))?;
    let mut rest = content;
    while !rest.is_empty() {
        let length = rustix::io::write(&file, rest)?;
        rest = &rest[length..];
    }
    fchmod(&file, Bits::from_raw_mode(if mode == Mode::Executable { 0o755 } else { 0o644 }))
}

fn write_git_directory(
    repository: &Repository<'_>,
    top: &OwnedFd,
    sandbox: &SandboxId,
    commit: ObjectId,
    files: Vec<Listed>,
) -> Result<(), Problem> {
    let branch = name_of(sandbox);
    mkdirat(top, ".git", Bits::from_raw_mode(0o755)).map_err(unwritable)?;
    let git = open_directory(top.as_fd(), b".git").map_err(unwritable)?;
    let directories = ["objects", "objects/info", "objects/pack", "info", "refs", "refs/tags", "refs/heads"];
    for path in directories.into_iter().chain(["refs/heads/saggar"]) {
        mkdirat(&git, path, Bits::from_raw_mode(0o755)).map_err(unwritable)?;
    }
    let mut refs = String::from("# pack-refs with: sorted\n");
    let is_own = |name: &str| name == branch || name == "refs/heads/saggar";
    for (name, id) in repository.refs()?.iter().filter(|(name, _)| !is_own(name)) {
        refs.push_str(&format!("{id} {name}\n"));
    }
    let shallow = repository.shallow()?;
    let texts = [
        ("HEAD", format!("ref: {branch}\n").into_bytes()),
        (branch.as_str(), format!("{commit}\n").into_bytes()),
        ("config", settings(repository)),
        ("objects/info/alternates", format!("{GUEST_OBJECTS}\n").into_bytes()),
        ("packed-refs", refs.into_bytes()),
        ("index", index(&files)),
    ];
    for (path, content) in texts.into_iter().chain(shallow.map(|text| ("shallow", text))) {
        put(&git, path.as_bytes(), Mode::File, &content).map_err(unwritable)?;
    }
    Ok(())
}

/// The settings of the new git directory: of the repository's own, only who commits.
fn settings(repository: &Repository<'_>) -> Vec<u8> {
    let mut text =
        b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
            .to_vec();
    for (key, name) in [("user.name", "name"), ("user.email", "email")] {
        let setting = repository.settings.iter().rev().find(|setting| setting.is(key));
        let Some(value) = setting.and_then(|setting| setting.value.as_deref()) else { continue };
        let quoted = value.iter().filter(|byte| !byte.is_ascii_control()).flat_map(|byte| match byte {
            b'"' | b'\\' => vec![b'\\', *byte],
            byte => vec![*byte],
        });
        text.extend(format!("[user]\n\t{name} = \"").into_bytes());
        text.extend(quoted);
        text.extend(b"\"\n");
    }
    text
}

/// An index, version 2, without times: git compares each file once and then fills them in.
fn index(files: &[Listed]) -> Vec<u8> {
    let mut bytes = b"DIRC\0\0\0\x02".to_vec();
    bytes.extend((files.len() as u32).to_be_bytes());
    for file in files {
        let start = bytes.len();
        bytes.extend([0; 24]);
        bytes.extend(file.mode.bits().to_be_bytes());
        bytes.extend([0; 8]);
        bytes.extend((file.len as u32).to_be_bytes());
        bytes.extend(file.id.0);
        let path = file.path.as_bytes();
        bytes.extend((path.len().min(0xfff) as u16).to_be_bytes());
        bytes.extend(path);
        // At least one zero, up to a multiple of eight.
        let len = bytes.len() - start;
        bytes.resize(bytes.len() + 8 - len % 8, 0);
    }
    let sum = Sha1::digest(&bytes);
    bytes.extend(sum);
    bytes
}

/// Removes the checkout of a sandbox, if it has one.
pub(crate) fn remove(data: &DataDirectory, sandbox: &str) -> Result<(), Errno> {
    let Ok(place) = data.open_part(PLACE) else { return Ok(()) };
    remove_tree(place.as_fd(), sandbox.as_bytes())
}

/// Removes checkouts whose sandboxes are gone; `lives` says whether one has a record.
pub(crate) fn remove_orphans(data: &DataDirectory, lives: impl Fn(&str) -> bool) {
    let Ok(place) = data.open_part(PLACE) else { return };
    let Ok(entries) = Dir::read_from(&place) else { return };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned));
    for name in names.filter(|name| SandboxId::parse(name).is_some()).collect::<Vec<_>>() {
        if !lives(&name) {
            // Tried again at the next start.
            let _ = remove_tree(place.as_fd(), name.as_bytes());
        }
    }
}

/// Removes a directory with everything in it. Only we write there, but its depth is a stranger's.
fn remove_tree(place: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let mut waiting = vec![Name(name.to_vec())];
    while let Some(path) = waiting.last().cloned() {
        let directory = match open_directory(place, path.as_bytes()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => {
                waiting.pop();
                continue;
            }
            Err(errno) => return Err(errno),
        };
        let mut below = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let child = entry.file_name();
            if matches!(child.to_bytes(), b"." | b"..") {
                continue;
            }
            match entry.file_type() {
                FileType::Directory => below.push(path.join(child.to_bytes())),
                _ => unlinkat(&directory, child, AtFlags::empty())?,
            }
        }
        if below.is_empty() {
            let (parent, last) = path.split();
            let parent = open_directory(place, if parent == b"." { b"" } else { parent })?;
            unlinkat(&parent, last, AtFlags::REMOVEDIR)?;
            waiting.pop();
        } else {
            waiting.extend(below);
        }
    }
    Ok(())
}

fn too_large() -> Problem {
    refuse(
        "its commit has more than a million files, more than 16 GiB, or paths of more than 4000 bytes",
        "use --fs scratch",
    )
}

fn unwritable(why: impl std::fmt::Display) -> Problem {
    Problem::new(
        Code::DataDirectory,
        format!("the worktree can't be written into the data directory: {why}"),
        "check its space and permissions; a twentieth of the disk stays free. Names that differ only in case need a filesystem that tells them apart",
    )
}
