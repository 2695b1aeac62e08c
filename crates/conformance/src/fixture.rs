//! Fixtures: the directories that a case works on, in a private directory under the system's temporary directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::attacker_image::ATTACKER_IMAGE;
use crate::removal::remove_tree;

/// Initial contents of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workspace {
    Empty,
    /// A few files and directories.
    Plain,
    /// The same, as a git repository with a hook, a configuration and a policy file.
    Git,
    /// The same, with a linked worktree and submodules, one of them named like a path.
    GitModules,
    /// The same, with hooks and settings at places that its configuration names.
    GitSettings,
    /// The same, with hooks, settings, submodules and worktrees in every place where git looks for them.
    GitEverywhere,
    /// Files, and a repository whose git directory is elsewhere in the workspace.
    GitElsewhere,
}

impl Workspace {
    pub(crate) fn make(self, at: &Path) -> io::Result<()> {
        fs::create_dir(at)?;
        match self {
            Self::Empty => Ok(()),
            Self::Plain => plain(at),
            Self::Git => plain(at).and_then(|()| git(at)),
            Self::GitEverywhere => plain(at).and_then(|()| git(at)).and_then(|()| git_everywhere(at)),
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

/// Paths and contents; missing directories are created.
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

/// Written by hand, because hosts without git are probed too.
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

/// Settings in syntax that git understands and that is easily missed.
fn git_everywhere(at: &Path) -> io::Result<()> {
    let alias = at.with_file_name("alias");
    symlink(at, &alias)?;
    let config = format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\thooksPath = .first ; the last one counts\n\
         [core] hooksPath = \".comm\"ented # ours\n[core]\n\thooksPath = .contin\\\nued\n\thooksPath = {}/.aliased\n\
         \tfsmonitor = sh tools/monitor\n\
         [include]\n\tpath = ../shared.cfg\n[includeIf \"gitdir:/nowhere/\"]\n\tpath = ../unlikely.cfg\n",
        alias.display()
    );
    for (name, text) in [
        (".git/config", config.as_str()),
        (".git/config.worktree", "[core]\n\thooksPath = .of-worktree\n"),
        ("shared.cfg", "[include]\n\tpath = more.cfg\n"),
        ("more.cfg", "[core]\n\thooksPath = .included\n"),
        ("unlikely.cfg", "[core]\n"),
        ("tools/monitor", "#!/bin/sh\nexit 1\n"),
        ("scripts/pre-push", "#!/bin/sh\nexit 0\n"),
        (".git/modules/lost/config", "[core]\n"),
        (".git/worktrees/tree/HEAD", "ref: refs/heads/tree\n"),
        (".git/worktrees/tree/commondir", "../..\n"),
        (".git/worktrees/tree/gitdir", &format!("{}/tree/.git\n", alias.display())),
        ("tree/.git", &format!("gitdir: {}/.git/worktrees/tree\n", at.display())),
        ("sub/.git/HEAD", "ref: refs/heads/main\n"),
        ("sub/.git/config", "[core]\n"),
    ] {
        let path = at.join(name);
        fs::create_dir_all(path.parent().unwrap_or(at))?;
        fs::write(path, text)?;
    }
    for name in ["sub/.git/objects", "sub/.git/refs", "sub/.git/hooks"] {
        fs::create_dir(at.join(name))?;
    }
    symlink("../../scripts/pre-push", at.join(".git/hooks/pre-push"))?;
    fs::write(at.join(".git/index"), index_of(&["later", "sub"]))
}

/// A version 2 index that contains only submodules. The checksum at its end is zero, which git accepts.
fn index_of(submodules: &[&str]) -> Vec<u8> {
    let mut bytes = b"DIRC\0\0\0\x02".to_vec();
    bytes.extend((submodules.len() as u32).to_be_bytes());
    for name in submodules {
        let start = bytes.len();
        bytes.extend([0; 24]);
        bytes.extend(0o160_000u32.to_be_bytes());
        bytes.extend([0; 12]);
        bytes.extend([1; 20]);
        bytes.extend((name.len() as u16).to_be_bytes());
        bytes.extend(name.as_bytes());
        let length = bytes.len() - start;
        bytes.extend(vec![0; 8 - length % 8]);
    }
    bytes.extend([0; 20]);
    bytes
}

/// A private directory with an unguessable name, removed with its contents when dropped.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Fails if the name is taken, so it can't be a link planted by another user.
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
        // A failure leaves it in the system's temporary directory, accessible only to this user.
        let _ = remove_tree(&self.path);
    }
}

pub(crate) fn random_name() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes the attacker, with its set-id copies, to the directory that a sandbox will see.
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

/// The contents of a tree: a line for each name, with kind, mode and contents. Bounded; links are not followed.
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
