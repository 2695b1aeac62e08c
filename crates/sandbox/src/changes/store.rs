//! Storage of changes: a directory for each sandbox, with a manifest, and contents under numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use saggar_domain::{Code, HostPath, HostUser, Problem, SandboxId};
use serde::{Deserialize, Serialize};

use super::compare::{GoOn, copy, open_directory, open_file};
use super::entry::{Change, Entry, Kind, Name, Skipped};
use crate::data::DataDirectory;
use crate::host_tree::HostTree;
use crate::worktree::{ObjectId, Objects};

const SCHEMA: &str = "saggar.changes/v1";
/// Of a worktree: earlier versions would apply its files to the workspace.
const WORKTREE_SCHEMA: &str = "saggar.changes/v2";
const MANIFEST: &str = "manifest.json";
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Text longer than this is not compared line by line.
const DIFF_LEN_MAX: u64 = 4 << 20;

/// The changes of one sandbox.
#[derive(Debug)]
pub struct Changes {
    id: SandboxId,
    pub(crate) directory: OwnedFd,
    manifest: Manifest,
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    schema: String,
    workspace: String,
    /// The inode of that path, so that another directory in its place is not mistaken for it. Device numbers change at
    /// each boot, so only the inode is stored. The path is followed through no link.
    #[serde(default)]
    workspace_inode: Option<u64>,
    /// The user in whose name the workspace was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace_user: Option<HostUser>,
    /// Paths that were protected when the sandbox ran.
    #[serde(default)]
    protected: Vec<String>,
    /// Set if they are of a worktree of the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worktree: Option<Worktree>,
    entries: Vec<Entry>,
    skipped: Vec<Skipped>,
}

/// Where a worktree started, and what became of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Worktree {
    pub(crate) commit: ObjectId,
    /// Where the branch was left that was made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) branch: Option<ObjectId>,
}

/// Both sides of a changed text file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Before and after, as text.
    Text(String, String),
    /// Not text, or too long.
    Binary,
}

/// Changes being collected.
#[derive(Debug)]
pub(crate) struct Pending {
    top: OwnedFd,
    name: String,
    directory: OwnedFd,
    next: u32,
    is_finished: bool,
    /// Kept contents of files that have several names.
    shared: BTreeMap<(u64, u64), u32>,
    /// Maximum length that the names kept so far take in the manifest.
    names_len: usize,
    /// Number of further paths that were skipped without recording their names.
    unnamed: u64,
    pub(crate) entries: Vec<Entry>,
    skipped: Vec<Skipped>,
}

/// Maximum number of bytes of names in a manifest.
const NAMES_LEN_MAX: usize = 64 << 20;
/// Maximum number of entries, and of skipped paths that are reported.
const ENTRIES_MAX: usize = 1_000_000;

impl Pending {
    pub(crate) fn begin(data: &DataDirectory, id: &SandboxId) -> std::io::Result<Self> {
        let top = data.changes()?;
        let name = pending_name(id.as_str());
        mkdirat(&top, name.as_str(), Mode::from_raw_mode(0o700))?;
        let directory = openat(&top, name.as_str(), DIRECTORY, Mode::empty())?;
        Ok(Self {
            top,
            name,
            directory,
            next: 0,
            is_finished: false,
            shared: BTreeMap::new(),
            names_len: 0,
            unnamed: 0,
            entries: Vec::new(),
            skipped: Vec::new(),
        })
    }

    /// Keeps a file's content under the next number. A file with several names is kept once, so that the kept content
    /// never exceeds the sandbox's storage limit.
    pub(crate) fn keep(&mut self, file: &OwnedFd, stat: &Stat, go_on: GoOn<'_>) -> Result<u32, Errno> {
        let same = (stat.st_dev, stat.st_ino);
        if let Some(number) = self.shared.get(&same) {
            return Ok(*number);
        }
        let number = self.next;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let kept = openat(&self.directory, number.to_string(), flags, Mode::from_raw_mode(0o600))?;
        copy(file, &kept, stat.st_size as u64, go_on).inspect_err(|_| {
            // The first failure is the one to report; whatever remains is removed with the directory.
            let _ = unlinkat(&self.directory, number.to_string(), AtFlags::empty());
        })?;
        if stat.st_nlink > 1 {
            self.shared.insert(same, number);
        }
        self.next += 1;
        Ok(number)
    }

    pub(crate) fn has_room(&self, path: &Name) -> bool {
        self.entries.len() < ENTRIES_MAX && self.names_len + path.stored_len() <= NAMES_LEN_MAX
    }

    pub(crate) fn add(&mut self, entry: Entry) {
        self.names_len += entry.path.stored_len() + entry.target.as_ref().map_or(0, Name::stored_len);
        self.entries.push(entry);
    }

    /// Skips a path, recording its name if there is room.
    pub(crate) fn skip(&mut self, path: &Name, why: &str) {
        if self.skipped.len() < ENTRIES_MAX && self.has_room(path) {
            self.names_len += path.stored_len();
            self.skipped.push(Skipped { path: path.clone(), why: why.to_owned() });
        } else {
            self.unnamed += 1;
        }
    }

    /// Makes the changes visible; without any, nothing is left. Returns their number.
    pub(crate) fn finish(
        mut self,
        id: &SandboxId,
        workspace: &HostTree,
        protected: Vec<String>,
        worktree: Option<Worktree>,
    ) -> std::io::Result<u64> {
        let count = (self.entries.len() + self.skipped.len()) as u64 + self.unnamed;
        if count == 0 {
            return Ok(0);
        }
        let mut skipped = std::mem::take(&mut self.skipped);
        if self.unnamed > 0 {
            let why = format!(
                "{} more paths could not be kept: there are too many, or their names are too long",
                self.unnamed
            );
            skipped.push(Skipped { path: Name(b".".to_vec()), why });
        }
        let manifest = Manifest {
            schema: if worktree.is_some() { WORKTREE_SCHEMA } else { SCHEMA }.to_owned(),
            workspace: workspace.path.display().to_string(),
            workspace_inode: Some(workspace.inode),
            workspace_user: workspace.user,
            protected,
            worktree,
            entries: std::mem::take(&mut self.entries),
            skipped,
        };
        write_manifest(self.directory.as_fd(), &manifest)?;
        renameat(&self.top, self.name.as_str(), &self.top, id.as_str())?;
        self.is_finished = true;
        Ok(count)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_finished {
            // The reaper finds whatever can't be removed now, by its name.
            let _ = remove(self.top.as_fd(), &self.name);
        }
    }
}

impl Changes {
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    pub fn kept(data: &DataDirectory) -> Result<Vec<SandboxId>, Problem> {
        let top = data.changes().map_err(|error| unreadable(&error.to_string()))?;
        let entries = Dir::read_from(&top).map_err(|errno| unreadable(&errno.to_string()))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().and_then(SandboxId::parse));
        let mut ids: Vec<SandboxId> = names.collect();
        ids.sort();
        Ok(ids)
    }

    pub fn open(data: &DataDirectory, id: &str) -> Result<Self, Problem> {
        let missing = || {
            Problem::new(
                Code::InvalidValue,
                format!("no changes of sandbox {id:?} are kept"),
                "`saggar changes list` shows the kept ones; a scratch workspace keeps its changes, a writable one only what was held back",
            )
        };
        let id = SandboxId::parse(id).ok_or_else(missing)?;
        let top = data.changes().map_err(|error| unreadable(&error.to_string()))?;
        let directory = openat(&top, id.as_str(), DIRECTORY, Mode::empty()).map_err(|_| missing())?;
        let file = open_file(directory.as_fd(), MANIFEST.as_bytes()).map_err(|errno| unreadable(&errno.to_string()))?;
        let manifest: Manifest = serde_json::from_reader(std::io::BufReader::new(std::fs::File::from(file)))
            .map_err(|error| unreadable(&error.to_string()))?;
        let expected = if manifest.worktree.is_some() { WORKTREE_SCHEMA } else { SCHEMA };
        if manifest.schema != expected {
            return Err(unreadable(&format!("they have the unknown schema {:?}", manifest.schema)));
        }
        Ok(Self { id, directory, manifest })
    }

    pub fn entries(&self) -> &[Entry] {
        &self.manifest.entries
    }

    pub fn skipped(&self) -> &[Skipped] {
        &self.manifest.skipped
    }

    /// The workspace as it was named. It may be gone by now.
    pub fn workspace_path(&self) -> &str {
        &self.manifest.workspace
    }

    /// The user in whose name the workspace was opened, and is opened again.
    pub fn workspace_user(&self) -> Option<HostUser> {
        self.manifest.workspace_user
    }

    /// The workspace that was changed.
    pub fn workspace(&self) -> Result<HostTree, Problem> {
        let path = HostPath::parse(&self.manifest.workspace).map_err(|error| unreadable(&error))?;
        let tree = match self.workspace_user() {
            Some(user) => HostTree::open_as(&path, user, Code::InvalidWorkspace, "workspace")?,
            None => HostTree::open(&path, Code::InvalidWorkspace, "workspace")?,
        };
        // The path contained no link when it was stored.
        let is_same = self.manifest.workspace_inode.is_none_or(|inode| inode == tree.inode);
        if tree.path.as_os_str() != path.as_str() || !is_same {
            return Err(Problem::new(
                Code::InvalidWorkspace,
                format!("workspace {path} is not the directory that the sandbox worked on"),
                "move the original directory back; `saggar changes drop SANDBOX` forgets the changes",
            ));
        }
        Ok(tree)
    }

    pub(crate) fn protected(&self) -> &[String] {
        &self.manifest.protected
    }

    pub(crate) fn worktree(&self) -> Option<&Worktree> {
        self.manifest.worktree.as_ref()
    }

    /// The objects of the workspace's repository, if these are changes of a worktree.
    pub(crate) fn objects(&self, workspace: &HostTree) -> Option<Objects<'static>> {
        self.worktree()?;
        let acting = workspace.acting();
        let top = open_directory(workspace.fd.as_fd(), b".git/objects").ok()?;
        drop(acting);
        Objects::of_directory(top, workspace.user).ok()
    }

    /// `objects` is where the earlier contents are if these are changes of a worktree.
    pub(crate) fn difference(&self, workspace: &HostTree, entry: &Entry, objects: Option<&Objects<'_>>) -> Difference {
        let read = |file: Result<OwnedFd, Errno>| -> Option<String> {
            let file = std::fs::File::from(file.ok()?);
            let metadata = file.metadata().ok()?;
            let mut text = String::new();
            let is_text = metadata.is_file() && metadata.len() <= DIFF_LEN_MAX;
            std::io::Read::read_to_string(&mut std::io::Read::take(file, DIFF_LEN_MAX), &mut text)
                .ok()
                .filter(|_| is_text)?;
            Some(text).filter(|text| !text.contains('\0'))
        };
        let before = match entry.change {
            Change::Added => Some(String::new()),
            Change::Modified | Change::Removed | Change::Mode if self.worktree().is_some() => {
                let content = objects.and_then(|objects| self.at_start(objects, entry.path.as_bytes()).ok());
                let text = content.filter(|content| content.len() as u64 <= DIFF_LEN_MAX);
                text.and_then(|content| String::from_utf8(content).ok()).filter(|text| !text.contains('\0'))
            }
            Change::Modified | Change::Removed | Change::Mode => {
                let acting = workspace.acting();
                let file = open_file(workspace.fd.as_fd(), entry.path.as_bytes());
                drop(acting);
                read(file)
            }
        };
        let after = match (entry.kind, entry.blob) {
            (Kind::File, Some(_)) => read(self.content(entry)),
            _ => Some(String::new()),
        };
        match (before, after) {
            (Some(before), Some(after)) => Difference::Text(before, after),
            _ => Difference::Binary,
        }
    }

    pub(crate) fn content(&self, entry: &Entry) -> Result<OwnedFd, Errno> {
        let blob = entry.blob.ok_or(Errno::NOENT)?;
        open_file(self.directory.as_fd(), blob.to_string().as_bytes())
    }

    /// The same for a worktree. Its git directory stays until nothing else is left to apply.
    pub(crate) fn forget_of_worktree(
        mut self,
        data: &DataDirectory,
        applied: &[Name],
        branch: Option<ObjectId>,
    ) -> std::io::Result<()> {
        if let Some(worktree) = &mut self.manifest.worktree {
            worktree.branch = branch.or(worktree.branch);
        }
        let is_left = |entry: &&Entry| !entry.path.is_within(b".git") && !applied.contains(&entry.path);
        if self.entries().iter().find(is_left).is_none() { self.drop_all(data) } else { self.forget(data, applied) }
    }

    /// Drops the entries that were applied, and the whole directory if none is left.
    pub(crate) fn forget(mut self, data: &DataDirectory, applied: &[Name]) -> std::io::Result<()> {
        let applied: BTreeSet<&Name> = applied.iter().collect();
        self.manifest.entries.retain(|entry| !applied.contains(&entry.path));
        if self.manifest.entries.is_empty() {
            return self.drop_all(data);
        }
        write_manifest(self.directory.as_fd(), &self.manifest)
    }

    pub fn drop_all(self, data: &DataDirectory) -> std::io::Result<()> {
        let top = data.changes()?;
        remove(top.as_fd(), self.id.as_str())
    }
}

/// Removes incomplete changes of a sandbox whose process was killed.
pub(crate) fn forget_pending(data_changes: BorrowedFd<'_>, id: &str) -> std::io::Result<()> {
    remove(data_changes, &pending_name(id))
}

/// Removes incomplete changes of sandboxes that are gone; `lives` returns whether one still exists.
pub(crate) fn forget_orphans(data_changes: BorrowedFd<'_>, lives: impl Fn(&str) -> bool) {
    let Ok(entries) = Dir::read_from(data_changes) else { return };
    let names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned)).collect();
    for id in names.iter().filter_map(|name| name.strip_prefix('.')?.strip_suffix(".new")) {
        if SandboxId::parse(id).is_some() && !lives(id) {
            // Tried again at the next start.
            let _ = forget_pending(data_changes, id);
        }
    }
}

fn pending_name(id: &str) -> String {
    format!(".{id}.new")
}

/// One level deep: numbers and a manifest, all created by Saggar.
fn remove(top: BorrowedFd<'_>, name: &str) -> std::io::Result<()> {
    let directory = match openat(top, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            unlinkat(&directory, entry.file_name(), AtFlags::empty())?;
        }
    }
    unlinkat(top, name, AtFlags::REMOVEDIR).map_err(Into::into)
}

/// Atomic: written beside, then renamed.
fn write_manifest(directory: BorrowedFd<'_>, manifest: &Manifest) -> std::io::Result<()> {
    const BESIDE: &str = "manifest.new";
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(directory, BESIDE, flags, Mode::from_raw_mode(0o600))?;
    let mut writer = std::io::BufWriter::new(std::fs::File::from(file));
    serde_json::to_writer(&mut writer, manifest)?;
    std::io::Write::flush(&mut writer)?;
    renameat(directory, BESIDE, directory, MANIFEST).map_err(Into::into)
}

fn unreadable(why: &str) -> Problem {
    Problem::new(Code::DataDirectory, format!("the kept changes can't be read: {why}"), "check the data directory")
}
