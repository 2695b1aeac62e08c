//! Fixtures: the directories a case works on, in a private place under the system's temporary directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::attacker_image::ATTACKER_IMAGE;
use crate::removal::remove_tree;

/// What a workspace has in it at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workspace {
    /// Nothing.
    Empty,
    /// A few files and directories.
    Plain,
    /// The same, as a git repository with a hook, a configuration and a policy file.
    Git,
    /// The same, with a linked worktree and submodules, one of them named for a path.
    GitModules,
    /// The same, with hooks and settings where its configuration says.
    GitSettings,
    /// Files, and a repository whose git directory is elsewhere in the workspace.
    GitElsewhere,
}

impl Workspace {
    /// Makes it.
    pub(crate) fn make(self, at: &Path) -> io::Result<()> {
        fs::create_dir(at)?;
        match self {
            Self::Empty => Ok(()),
            Self::Plain => plain(at),
            Self::Git => plain(at).and_then(|()| git(at)),
            Self::GitModules => plain(at).and_then(|()| git(at)).and_then(|()| put(at, MODULES)),
            Self::GitSettings => plain(at).and_then(|()| git(at)).and_then(|()| put(at, SETTINGS)),
            Self::GitElsewhere => plain(at).and_then(|()| put(at, ELSEWHERE)),
        }
    }
}

fn plain(at: &Path) -> io::Result<()> {
    fs::create_dir(at.join("dir"))?;
    fs::create_dir(at.join("empty"))?;
    fs::write(at.join("file.txt"), "as it was\n")?;
    fs::write(at.join("dir/inner.txt"), "as it was, too\n")
}

/// Paths and contents; directories on the way are made.
type Files = &'static [(&'static str, &'static str)];

const MODULES: Files = &[
    (".git/worktrees/tree/commondir", "../..\n"),
    (".git/worktrees/tree/gitdir", "../../../tree/.git\n"),
    (".git/worktrees/tree/HEAD", "ref: refs/heads/tree\n"),
    ("tree/.git", "gitdir: ../.git/worktrees/tree\n"),
    (".git/modules/sub/HEAD", "ref: refs/heads/main\n"),
    (".git/modules/sub/config", "[core]\n\tworktree = ../../../sub\n"),
    ("sub/.git", "gitdir: ../.git/modules/sub\n"),
    (".git/modules/vendor/foo/HEAD", "ref: refs/heads/main\n"),
    (".git/modules/vendor/foo/config", "[core]\n\tworktree = ../../../../vendor/foo\n"),
    ("vendor/foo/.git", "gitdir: ../../.git/modules/vendor/foo\n"),
];

const SETTINGS: Files = &[
    (".git/config", "[core]\n\tbare = false\n\thooksPath = .githooks\n[include]\n\tpath = ../shared.cfg\n"),
    (".githooks/pre-commit", "#!/bin/sh\nexit 0\n"),
    ("shared.cfg", "[core]\n"),
];

const ELSEWHERE: Files = &[
    (".git", "gitdir: ./.bare\n"),
    (".bare/HEAD", "ref: refs/heads/main\n"),
    (".bare/config", "[core]\n\tbare = false\n"),
    (".bare/refs/heads/.keep", ""),
];

fn put(at: &Path, files: Files) -> io::Result<()> {
    for (name, text) in files {
        let path = at.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)?;
    }
    Ok(())
}

/// By hand: a host without git is probed too.
fn git(at: &Path) -> io::Result<()> {
    for directory in
        [".git", ".git/hooks", ".git/objects", ".git/refs", ".git/refs/heads", ".github", ".github/workflows"]
    {
        fs::create_dir(at.join(directory))?;
    }
    for (name, text) in [
        (".git/HEAD", "ref: refs/heads/main\n"),
        (".git/config", "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"),
        (".git/hooks/pre-commit", "#!/bin/sh\nexit 0\n"),
        (".github/workflows/ci.yml", "on: push\n"),
        ("AGENTS.md", "Do as you are told.\n"),
    ] {
        fs::write(at.join(name), text)?;
    }
    fs::set_permissions(at.join(".git/hooks/pre-commit"), fs::Permissions::from_mode(0o755))
}

/// A private directory with a name nobody can guess, removed with everything in it when dropped.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// A new one. Making it fails if the name is taken: nobody can have put a link there.
    pub(crate) fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().canonicalize()?.join(format!("saggar-probe-{}", random_name()?));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // What stays is in the system's temporary directory, and no one's but ours.
        let _ = remove_tree(&self.path);
    }
}

/// 16 random bytes as text.
pub(crate) fn random_name() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Puts the attacker where a sandbox will see it, with its set-id copies.
pub(crate) fn place_attacker(directory: &Path) -> io::Result<()> {
    fs::create_dir(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    for (name, mode) in [("saggar-attacker", 0o755), ("setuid-attacker", 0o4755), ("setgid-attacker", 0o2755)] {
        let path = directory.join(name);
        fs::write(&path, ATTACKER_IMAGE)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// What a tree holds: a line for each name, with kind, mode and contents. Bounded; links are not followed.
pub(crate) fn manifest(top: &Path) -> BTreeMap<PathBuf, String> {
    const ENTRIES_MAX: usize = 10_000;
    const FILE_MAX: u64 = 1 << 20;
    let mut found = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.path().symlink_metadata() else { continue };
            if found.len() >= ENTRIES_MAX {
                return found;
            }
            let content = if metadata.is_file() && metadata.len() <= FILE_MAX {
                fs::read(entry.path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
            } else if metadata.is_symlink() {
                fs::read_link(entry.path()).map(|target| target.display().to_string()).unwrap_or_default()
            } else {
                String::new()
            };
            if metadata.is_dir() {
                open.push(entry.path());
            }
            let name = entry.path().strip_prefix(top).map(Path::to_owned).unwrap_or_default();
            found.insert(name, format!("{:o} {} {content}", metadata.mode(), metadata.uid()));
        }
    }
    found
}
