//! Finds what has to be held back from the repositories in a workspace.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Stat, StatxFlags, statat, statx};
use rustix::io::Errno;

use super::search::{Before, Closed, Known, after, list, open};
use super::settings::{Verdict, judge};
use crate::changes::{Kind, Name, open_file};
use crate::git::{line_of, path_of};
use crate::host_tree::HostTree;
use crate::trail::Trail;

/// Tolerance for filesystem clocks that lag.
const SLACK_NS: i128 = 1_000_000_000;
/// Maximum length of settings, and of files that point elsewhere. A longer one is held back unread.
const TEXT_LEN_MAX: u64 = 1 << 20;
/// Maximum number of findings; a sandbox that creates more repositories needs a manual review.
const FINDINGS_MAX: usize = 100_000;
/// Mount point of the workspace inside a sandbox.
const INSIDE: &str = "/workspace";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) path: Name,
    pub(super) what: What,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum What {
    TakenOut(Kind),
    Replaced(Vec<u8>),
}

#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Parents come before their contents.
    pub(super) all: Vec<Finding>,
    /// Git directories that the sandbox created; no link in them belongs to the host.
    pub(super) made: Vec<Name>,
    pub(super) is_complete: bool,
}

/// Examines a workspace whose sandbox is dead.
pub(super) fn examine(workspace: &HostTree, before: &Before, since_ns: i128) -> Findings {
    let found = after(workspace);
    let mut examiner = Examiner {
        workspace,
        before,
        since_ns: since_ns - SLACK_NS,
        waiting: found.directories,
        seen: BTreeSet::new(),
        findings: Findings { is_complete: found.is_complete, ..Findings::default() },
    };
    for name in &before.absent {
        let name = Name(name.clone().into_bytes());
        examiner.attempt(&name, Examiner::whole);
    }
    for file in found.files {
        examiner.attempt(&file, Examiner::git_file);
    }
    while let Some(directory) = examiner.waiting.pop() {
        if examiner.seen.insert(directory.clone()) {
            examiner.attempt(&directory, Examiner::git_directory);
        }
    }
    let mut findings = examiner.findings;
    findings.all.sort_by(|a, b| a.path.cmp(&b.path));
    findings.all.dedup_by(|a, b| a.path == b.path);
    findings
}

struct Examiner<'a> {
    workspace: &'a HostTree,
    before: &'a Before,
    since_ns: i128,
    waiting: Vec<Name>,
    seen: BTreeSet<Name>,
    findings: Findings,
}

type Examined<T = ()> = Result<T, Errno>;

impl Examiner<'_> {
    fn attempt(&mut self, path: &Name, examine: fn(&mut Self, &Name) -> Examined) {
        self.findings.is_complete &= examine(self, path).is_ok() && self.findings.all.len() <= FINDINGS_MAX;
    }

    /// A directory that git accepts as a repository, as a worktree's part of one, or as a submodule's.
    fn git_directory(&mut self, directory: &Name) -> Examined {
        if !matches!(self.kind(directory)?, Some(FileType::Directory)) {
            return Ok(());
        }
        let is_made = self.is_made(directory)?;
        if is_made {
            self.findings.made.push(directory.clone());
        }
        self.hooks(&directory.join(b"hooks"), is_made)?;
        for name in [&b"config"[..], b"config.worktree"] {
            self.settings(directory, &directory.join(name), is_made)?;
        }
        for name in [&b"remotes"[..], b"branches"] {
            self.all_in(&directory.join(name), is_made)?;
        }
        for name in [&b"objects/info/alternates"[..], b"objects/info/http-alternates"] {
            self.take_out(&directory.join(name), is_made)?;
        }
        let common =
            directory.parent().filter(|above| above.split().1 == b"worktrees").and_then(|above| above.parent());
        let leads = directory.join(b"commondir");
        let is_as_expected = common.is_some()
            && self.leads_to(directory, &leads, b"")?.as_ref() == common.as_ref().map(Some).unwrap_or(None);
        if !is_as_expected {
            self.take_out(&leads, is_made)?;
        }
        let leads = directory.join(b"gitdir");
        if common.is_some() && self.leads_to(directory, &leads, b"")?.is_none() {
            self.take_out(&leads, is_made)?;
        }
        let is_checkout = directory.split().1.eq_ignore_ascii_case(b".git");
        match directory.parent().filter(|_| is_checkout && is_made) {
            Some(checkout) => self.hooks_of(&checkout),
            None => Ok(()),
        }
    }

    /// A file or link called `.git`, which points git to another directory.
    fn git_file(&mut self, file: &Name) -> Examined {
        let is_made = match &self.before.known {
            Known::All(known) => !self.is_among(known, file)?,
            Known::Unknown => false,
        };
        if self.is_held(file) || !self.is_changed(file, is_made)? {
            return Ok(());
        }
        if self.kind(file)? == Some(FileType::Symlink) {
            return self.take_out(file, true);
        }
        let above = file.parent().unwrap_or(Name(Vec::new()));
        match self.leads_to(&above, file, b"gitdir: ")? {
            Some(directory) => {
                self.waiting.push(directory);
                self.hooks_of(&above)
            }
            None => self.take_out(file, true),
        }
    }

    /// The directory of the workspace that a file points to, by a path relative to `base`. Paths as a sandbox sees them
    /// point nowhere on a host without such a directory; inside they point back into the workspace.
    fn leads_to(&self, base: &Name, file: &Name, prefix: &[u8]) -> Examined<Option<Name>> {
        let Some(text) = self.read(file)? else { return Ok(None) };
        let Some(path) = text.strip_prefix(prefix).map(line_of).filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let top = &self.workspace.path;
        let path = match path_of(path).strip_prefix(INSIDE) {
            Ok(inside) if std::fs::symlink_metadata(INSIDE).is_err() => top.join(inside),
            _ => top.join(path_of(base.as_bytes())).join(path_of(path)),
        };
        let trail = Trail::follow(top, &path);
        let inside = trail.end.strip_prefix(top).ok().filter(|_| trail.links.is_empty());
        Ok(inside.map(|inside| Name(inside.as_os_str().as_bytes().to_vec())))
    }

    fn settings(&mut self, directory: &Name, file: &Name, is_made: bool) -> Examined {
        if self.kind(file)? != Some(FileType::RegularFile) {
            return self.take_out(file, is_made);
        }
        if self.is_held(file) || !self.is_changed(file, is_made)? {
            return Ok(());
        }
        let whole = self.workspace.path.join(path_of(directory.as_bytes()));
        let verdict = self.read(file)?.map_or(Verdict::Unclear, |bytes| judge(&bytes, self.workspace, &whole));
        match verdict {
            Verdict::Harmless => {}
            Verdict::Without(bytes) => self.add(file, What::Replaced(bytes)),
            Verdict::Unclear => self.add(file, What::TakenOut(Kind::File)),
        }
        Ok(())
    }

    /// Hooks at the places that the user's own settings name in every checkout.
    fn hooks_of(&mut self, checkout: &Name) -> Examined {
        for hooks in self.before.hooks.clone() {
            self.hooks(&checkout.join(hooks.as_bytes()), true)?;
        }
        Ok(())
    }

    /// git runs no hook whose name ends in `.sample`.
    fn hooks(&mut self, directory: &Name, is_made: bool) -> Examined {
        self.each_in(directory, is_made, |name| !name.ends_with(b".sample"))
    }

    fn all_in(&mut self, directory: &Name, is_made: bool) -> Examined {
        self.each_in(directory, is_made, |_| true)
    }

    /// Files and links directly in a directory, or the directory itself if it is a link.
    fn each_in(&mut self, directory: &Name, is_made: bool, counts: fn(&[u8]) -> bool) -> Examined {
        match self.kind(directory)? {
            Some(FileType::Directory) => {}
            _ => return self.take_out(directory, is_made),
        }
        // Older files may have been moved into it, or it may have been moved here with them.
        let is_made = is_made || (!self.is_held(directory) && self.is_changed(directory, false)?);
        let opened = open(self.workspace, directory.as_bytes(), Closed::Opened)?;
        for (name, kind) in list(&opened)? {
            if kind != FileType::Directory && counts(&name) {
                self.take_out(&directory.join(&name), is_made)?;
            }
        }
        Ok(())
    }

    /// A whole new tree.
    fn whole(&mut self, top: &Name) -> Examined {
        let mut waiting = vec![top.clone()];
        while let Some(path) = waiting.pop() {
            if self.kind(&path)? != Some(FileType::Directory) {
                self.take_out(&path, true)?;
                continue;
            }
            self.add(&path, What::TakenOut(Kind::Directory));
            if self.findings.all.len() > FINDINGS_MAX {
                return Err(Errno::TOOBIG);
            }
            let opened = open(self.workspace, path.as_bytes(), Closed::Opened)?;
            waiting.extend(list(&opened)?.into_iter().map(|(name, _)| path.join(&name)));
        }
        Ok(())
    }

    /// Anything but a directory, if the sandbox created or changed it.
    fn take_out(&mut self, path: &Name, is_made: bool) -> Examined {
        let kind = match self.kind(path)? {
            None | Some(FileType::Directory) => return Ok(()),
            Some(FileType::Symlink) => Kind::Link,
            Some(_) => Kind::File,
        };
        if !self.is_held(path) && self.is_changed(path, is_made)? {
            self.add(path, What::TakenOut(kind));
        }
        Ok(())
    }

    fn add(&mut self, path: &Name, what: What) {
        self.findings.all.push(Finding { path: path.clone(), what });
    }

    /// Whether a mount protects it, so that the sandbox could not change it.
    fn is_held(&self, path: &Name) -> bool {
        self.before.held.iter().any(|held| path.is_within(held.as_bytes()))
    }

    /// Whether the sandbox created a git directory. If the workspace was not examined at the start, any that is newer
    /// than the sandbox.
    fn is_made(&self, directory: &Name) -> Examined<bool> {
        if self.is_held(&directory.join(b"config")) {
            return Ok(false);
        }
        match &self.before.known {
            Known::All(known) => Ok(!self.is_among(known, directory)?),
            Known::Unknown => {
                let opened = open(self.workspace, directory.as_bytes(), Closed::Opened)?;
                let made = statx(&opened, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
                let has_time = StatxFlags::from_bits_retain(made.stx_mask).contains(StatxFlags::BTIME);
                let made_ns = i128::from(made.stx_btime.tv_sec) * 1_000_000_000 + i128::from(made.stx_btime.tv_nsec);
                Ok(has_time && made_ns >= self.since_ns)
            }
        }
    }

    /// Whether it existed before.
    fn is_among(&self, known: &[(Name, u64)], path: &Name) -> Examined<bool> {
        let Some(stat) = self.stat(path)? else { return Ok(false) };
        Ok(known.iter().any(|(name, inode)| name == path && *inode == stat.st_ino))
    }

    fn is_changed(&self, path: &Name, is_made: bool) -> Examined<bool> {
        let changed = |stat: Stat| i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec as i64);
        Ok(is_made || self.stat(path)?.is_some_and(|stat| changed(stat) >= self.since_ns))
    }

    fn kind(&self, path: &Name) -> Examined<Option<FileType>> {
        Ok(self.stat(path)?.map(|stat| FileType::from_raw_mode(stat.st_mode)))
    }

    fn stat(&self, path: &Name) -> Examined<Option<Stat>> {
        if path.as_bytes().is_empty() {
            return rustix::fs::fstat(&self.workspace.fd).map(Some);
        }
        let (above, name) = path.split();
        let above = if above == b"." { b"" } else { above };
        match open(self.workspace, above, Closed::Opened)
            .and_then(|above| statat(&above, name, AtFlags::SYMLINK_NOFOLLOW))
        {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// A file's content, if it is a regular file and not too long.
    fn read(&self, path: &Name) -> Examined<Option<Vec<u8>>> {
        let is_short = |stat: Stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size as u64 <= TEXT_LEN_MAX
        };
        if !self.stat(path)?.is_some_and(is_short) {
            return Ok(None);
        }
        // A file that its owner can't read can't be read by git either, until its permissions change.
        let Ok(file) = open_file(self.workspace.fd.as_fd(), path.as_bytes()) else { return Ok(None) };
        let mut bytes = Vec::new();
        let mut bounded = std::io::Read::take(std::fs::File::from(file), TEXT_LEN_MAX);
        std::io::Read::read_to_end(&mut bounded, &mut bytes).map_err(|_| Errno::IO)?;
        Ok(Some(bytes))
    }
}

/// Paths of a user's settings that are the same in every checkout, and stay in it.
pub(crate) fn stays_in_checkout(path: &Path) -> bool {
    path.components().all(|part| matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir))
}
