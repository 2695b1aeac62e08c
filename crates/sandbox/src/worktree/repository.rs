//! A git repository of the host: its refs, its objects, and what of its settings matters here.
//!
//! Everything is opened below the workspace and through no link, in the name of the user whose workspace it is. Layouts that this doesn't
//! read are refused, with the reason.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, openat2};
use rustix::io::Errno;
use saggar_domain::{Code, Problem};

use super::object::{ObjectError, ObjectId};
use super::store::Objects;
use crate::changes::{open_directory, open_file};
use crate::git::config::{self, Setting};
use crate::host_tree::HostTree;

/// Maximum length of a list of refs, and of settings.
const FILE_LEN_MAX: u64 = 64 << 20;
/// Maximum number of refs.
const LISTED_MAX: usize = 1_000_000;
/// Maximum number of refs that lead to one another.
const REFS_MAX: usize = 5;

#[derive(Debug)]
pub(crate) struct Repository<'a> {
    pub(crate) workspace: &'a HostTree,
    /// Its git directory.
    pub(crate) top: OwnedFd,
    pub(crate) objects: Objects<'static>,
    packed: BTreeMap<String, ObjectId>,
    pub(crate) settings: Vec<Setting>,
}

impl<'a> Repository<'a> {
    pub(crate) fn open(workspace: &'a HostTree) -> Result<Self, Problem> {
        let acting = workspace.acting();
        let top = match open_directory(workspace.fd.as_fd(), b".git") {
            Ok(top) => top,
            Err(Errno::NOENT) => {
                return Err(refuse(
                    "it is not the top of a git repository",
                    "name the directory that has .git; or use --fs scratch",
                ));
            }
            Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
                return Err(refuse(
                    "its .git leads elsewhere, as in a worktree or a submodule",
                    "name the main directory of the repository; or use --fs scratch",
                ));
            }
            Err(errno) => return Err(refuse(&format!("its .git can't be opened: {errno}"), OTHER)),
        };
        let settings = read(&top, "config").map_err(|errno| unreadable("its settings", errno))?.unwrap_or_default();
        let settings = config::parse(&settings)
            .map_err(|config::Malformed| refuse("its settings can't be parsed", "repair .git/config"))?;
        check_layout(&top, &settings)?;
        let packed = read(&top, "packed-refs").map_err(|errno| unreadable("its refs", errno))?.unwrap_or_default();
        let objects = open_directory(top.as_fd(), b"objects").map_err(|errno| unreadable("its objects", errno))?;
        drop(acting);
        let objects = Objects::of_directory(objects, workspace.user).map_err(|error| unusable(&error))?;
        Ok(Self { workspace, top, objects, packed: packed_refs(&packed), settings })
    }

    /// The commit that is checked out.
    pub(crate) fn head(&self) -> Result<ObjectId, Problem> {
        let head = self.resolve("HEAD", 0)?;
        head.ok_or_else(|| refuse("its repository has no commit yet", "make a first commit; or use --fs scratch"))
    }

    /// What a ref leads to.
    pub(crate) fn resolve(&self, name: &str, depth: usize) -> Result<Option<ObjectId>, Problem> {
        if depth == REFS_MAX {
            return Err(refuse("its refs lead in a circle", OTHER));
        }
        let acting = self.workspace.acting();
        let text = read(&self.top, name).map_err(|errno| unreadable("its refs", errno))?;
        drop(acting);
        let Some(text) = text else { return Ok(self.packed.get(name).copied()) };
        match target(&text) {
            Some(Target::Commit(id)) => Ok(Some(id)),
            Some(Target::Ref(name)) => self.resolve(&name, depth + 1),
            None => Err(refuse("one of its refs can't be read", OTHER)),
        }
    }

    pub(crate) fn packed(&self) -> &BTreeMap<String, ObjectId> {
        &self.packed
    }

    /// Branches and tags, and what they lead to. Refs that lead to other refs are left out.
    pub(crate) fn refs(&self) -> Result<BTreeMap<String, ObjectId>, Problem> {
        let mut refs = self.packed.clone();
        let _acting = self.workspace.acting();
        let mut waiting = ["refs/heads", "refs/remotes", "refs/tags"].map(str::to_owned).to_vec();
        while let Some(place) = waiting.pop() {
            let Ok(directory) = open_directory(self.top.as_fd(), place.as_bytes()) else { continue };
            for entry in Dir::read_from(&directory).map_err(|errno| unreadable("its refs", errno))? {
                let entry = entry.map_err(|errno| unreadable("its refs", errno))?;
                let Ok(name) = entry.file_name().to_str() else { continue };
                let name = format!("{place}/{name}");
                if !is_ref(&name) {
                    continue;
                }
                if refs.len() + waiting.len() > LISTED_MAX {
                    return Err(refuse("it has more than a million refs", "use --fs scratch"));
                }
                match entry.file_type() {
                    FileType::Directory => waiting.push(name),
                    _ => {
                        let text = read(&self.top, &name).map_err(|errno| unreadable("its refs", errno))?;
                        if let Some(Target::Commit(id)) = text.as_deref().and_then(target) {
                            refs.insert(name, id);
                        }
                    }
                }
            }
        }
        Ok(refs)
    }

    /// The list of commits at which a shallow clone ends.
    pub(crate) fn shallow(&self) -> Result<Option<Vec<u8>>, Problem> {
        let _acting = self.workspace.acting();
        read(&self.top, "shallow").map_err(|errno| unreadable("its list of cut-off commits", errno))
    }

    /// The directory of its objects, to be mounted in a sandbox.
    pub(crate) fn objects_tree(&self) -> Result<HostTree, Problem> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let _acting = self.workspace.acting();
        let fd = openat2(&self.top, "objects", flags, Mode::empty(), crate::changes::WITHIN)
            .map_err(|errno| unreadable("its objects", errno))?;
        let stat = fstat(&fd).map_err(|errno| unreadable("its objects", errno))?;
        let user = self.workspace.user;
        Ok(HostTree {
            path: self.workspace.path.join(".git/objects"),
            fd,
            device: stat.st_dev,
            inode: stat.st_ino,
            uid: user.map_or(stat.st_uid, |user| user.uid),
            gid: user.map_or(stat.st_gid, |user| user.gid),
            is_directory: true,
            user,
        })
    }
}

pub(crate) enum Target {
    Commit(ObjectId),
    Ref(String),
}

/// What the file of a ref says.
pub(crate) fn target(text: &[u8]) -> Option<Target> {
    let text = std::str::from_utf8(text).ok()?.trim_end();
    match text.strip_prefix("ref:") {
        Some(name) => Some(name.trim_start().to_owned()).filter(|name| is_ref(name)).map(Target::Ref),
        None => ObjectId::parse(text.as_bytes()).map(Target::Commit),
    }
}

/// Whether a name is that of a ref: it leads to nothing else in a git directory, and names one line of a file.
pub(crate) fn is_ref(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    let is_allowed = |byte: u8| byte > b' ' && byte != 0x7f && !b"~^:?*[\\".contains(&byte);
    name.starts_with("refs/")
        && name.len() <= 1024
        && !name.contains("..")
        && name.split('/').all(is_part)
        && name.bytes().all(is_allowed)
}

/// Refs as a list: an id and a name in each line. Lines that say more about the one before are left out.
fn packed_refs(text: &[u8]) -> BTreeMap<String, ObjectId> {
    let line = |line: &[u8]| {
        let id = ObjectId::parse(line.get(..40)?)?;
        let name = std::str::from_utf8(line.get(41..)?).ok()?.trim_end();
        is_ref(name).then(|| (name.to_owned(), id))
    };
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// A small file of a git directory; `None` if it doesn't exist.
fn read(top: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>, Errno> {
    let file = match open_file(top.as_fd(), name.as_bytes()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => {}
        // A directory of refs has the name of the ref.
        FileType::Directory => return Ok(None),
        _ => return Err(Errno::INVAL),
    }
    let mut bytes = Vec::new();
    let mut reader = std::io::Read::take(std::fs::File::from(file), FILE_LEN_MAX + 1);
    std::io::Read::read_to_end(&mut reader, &mut bytes).map_err(|_| Errno::IO)?;
    if bytes.len() as u64 > FILE_LEN_MAX { Err(Errno::FBIG) } else { Ok(Some(bytes)) }
}

fn check_layout(top: &OwnedFd, settings: &[Setting]) -> Result<(), Problem> {
    let of = |key: &str| {
        let last = settings.iter().rev().find(|setting| setting.is(key));
        last.and_then(|setting| setting.value.clone()).map(|value| value.to_ascii_lowercase())
    };
    if of("extensions.objectformat").is_some_and(|format| format != b"sha1") {
        return Err(refuse("its objects are named by SHA-256, which isn't supported", "use --fs scratch"));
    }
    if of("extensions.refstorage").is_some_and(|storage| storage != b"files") {
        return Err(refuse("its refs are not kept as files, which isn't supported", "use --fs scratch"));
    }
    let others = read(top, "objects/info/alternates").map_err(|errno| unreadable("its objects", errno))?;
    if others.is_some_and(|text| !text.trim_ascii().is_empty()) {
        return Err(refuse(
            "it borrows objects of another repository",
            "run `git repack -a -d` and remove .git/objects/info/alternates; or use --fs scratch",
        ));
    }
    Ok(())
}

const OTHER: &str = "repair the repository; or use --fs scratch";

pub(super) fn refuse(why: &str, help: &str) -> Problem {
    Problem::new(Code::InvalidWorkspace, format!("the workspace can't be mounted as a worktree: {why}"), help)
}

fn unreadable(what: &str, errno: Errno) -> Problem {
    refuse(&format!("{what} can't be read: {errno}"), OTHER)
}

pub(super) fn unusable(error: &ObjectError) -> Problem {
    let help = match error {
        ObjectError::Missing(_) => "a clone without all objects must fetch them first; or use --fs scratch",
        _ => "`git fsck` says more; or use --fs scratch",
    };
    refuse(&error.to_string(), help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_refs_are_followed() {
        for name in ["refs/heads/main", "refs/heads/saggar/sbx_1", "refs/tags/v1.0"] {
            assert!(is_ref(name), "{name}");
        }
        for name in
            ["HEAD", "refs/../config", "refs/heads/.x", "refs//a", "refs/a.lock", "/etc/passwd", "refs/a b", "refs/"]
        {
            assert!(!is_ref(name), "{name}");
        }
    }
}
