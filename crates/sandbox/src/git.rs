//! What the host's git would act on in a workspace, besides the fixed names: worktrees, submodules, a git directory elsewhere, hooks elsewhere.
//!
//! Whoever can write one of these makes the host's git run programs of their choice. The names depend on the repository, so they are
//! read from it, at the start, without following a link. What can't be read refuses the workspace: it might be hiding something.
//! It goes by what is there: a repository that a program makes later, somewhere below, is not covered.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use rustix::io::Errno;
use saggar_domain::{Code, Problem, ProtectedPath};
use saggar_jail::Rule;

use crate::host_tree::HostTree;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Most paths; each costs a mount or two.
const FOUND_MAX: usize = 256;
/// Deepest nesting of submodules.
const DEPTH_MAX: usize = 8;
/// Configurations are short.
const CONFIG_LEN_MAX: usize = 256 * 1024;

/// The paths to protect.
pub(crate) fn protected_paths(workspace: &HostTree) -> Result<Vec<ProtectedPath>, Problem> {
    if !Rule::FoundPaths.is_on() {
        return Ok(Vec::new());
    }
    let mut finder = Finder { workspace, found: Vec::new() };
    let outcome = match finder.kind(".git") {
        Ok(Some(FileType::Directory)) => finder.git_directory(".git", "", 0),
        // A file that says where the git directory is.
        Ok(Some(FileType::RegularFile)) => finder.linked(".git", "", 0),
        // A link is refused elsewhere, where every protected path is looked at.
        Ok(_) => Ok(()),
        Err(errno) => Err((".git".to_owned(), errno)),
    };
    outcome.map_err(|(path, errno)| {
        Problem::new(
            Code::InvalidProtect,
            format!("{path:?} of the workspace's repository can't be looked at, so it can't be protected: {errno}"),
            "mend its permissions, prune what is no longer used, or use --fs read-only or --fs scratch",
        )
    })?;
    Ok(finder.found)
}

struct Finder<'a> {
    workspace: &'a HostTree,
    found: Vec<ProtectedPath>,
}

type Outcome = Result<(), (String, Errno)>;

impl Finder<'_> {
    /// A git directory, and the top of the checkout it belongs to.
    fn git_directory(&mut self, directory: &str, checkout: &str, depth: usize) -> Outcome {
        if depth > DEPTH_MAX {
            return Err((directory.to_owned(), Errno::LOOP));
        }
        for name in ["config", "config.worktree", "commondir", "hooks/"] {
            self.hold(&format!("{directory}/{name}"))?;
        }
        let config = self.read(&format!("{directory}/config"))?.unwrap_or_default();
        let settings = settings(&config);
        let value = |name: &str| settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let checkout = match value("core.worktree").and_then(|path| self.within(directory, path)) {
            Some(elsewhere) => elsewhere,
            None => checkout.to_owned(),
        };
        if let Some(hooks) =
            value("core.hookspath").and_then(|path| self.within(&checkout, path)).filter(|path| !path.is_empty())
        {
            self.hold(&format!("{hooks}/"))?;
        }
        let included = settings.iter().filter(|(key, _)| key.starts_with("include") && key.ends_with(".path"));
        for path in included
            .filter_map(|(_, path)| self.within(directory, path))
            .filter(|path| !path.is_empty())
            .collect::<Vec<_>>()
        {
            self.hold(&path)?;
        }
        self.checkout_of(&checkout)?;
        self.worktrees(directory)?;
        self.modules(&format!("{directory}/modules"), depth + 1)
    }

    /// A file that leads to a git directory.
    fn linked(&mut self, file: &str, checkout: &str, depth: usize) -> Outcome {
        let text = self.read(file)?.unwrap_or_default();
        let Some(target) = text.trim().strip_prefix("gitdir:").and_then(|path| self.within(checkout, path.trim()))
        else {
            return Ok(());
        };
        match self.kind(&target).map_err(|errno| (target.clone(), errno))? {
            Some(FileType::Directory) => self.git_directory(&target, checkout, depth + 1),
            _ => Ok(()),
        }
    }

    /// The file `.git` of a checkout whose git directory is elsewhere. Another in its place would lead git astray.
    fn checkout_of(&mut self, checkout: &str) -> Outcome {
        if checkout.is_empty() {
            return Ok(());
        }
        let file = format!("{checkout}/.git");
        match self.kind(&file).map_err(|errno| (file.clone(), errno))? {
            Some(FileType::RegularFile) => self.hold(&file),
            _ => Ok(()),
        }
    }

    fn worktrees(&mut self, directory: &str) -> Outcome {
        let worktrees = format!("{directory}/worktrees");
        for name in self.directories(&worktrees)? {
            for file in ["commondir", "config.worktree", "gitdir"] {
                self.hold(&format!("{worktrees}/{name}/{file}"))?;
            }
            let leads = self.read(&format!("{worktrees}/{name}/gitdir"))?.unwrap_or_default();
            if let Some(file) = self.within(&format!("{worktrees}/{name}"), leads.trim()) {
                self.checkout_of(file.trim_end_matches("/.git"))?;
            }
        }
        Ok(())
    }

    /// Submodules are named for their paths, so their git directories may be some levels down.
    fn modules(&mut self, directory: &str, depth: usize) -> Outcome {
        if depth > DEPTH_MAX {
            return Err((directory.to_owned(), Errno::LOOP));
        }
        for name in self.directories(directory)? {
            let path = format!("{directory}/{name}");
            match self.kind(&format!("{path}/HEAD")).map_err(|errno| (path.clone(), errno))? {
                Some(_) => self.git_directory(&path, "", depth)?,
                None => self.modules(&path, depth + 1)?,
            }
        }
        Ok(())
    }

    fn hold(&mut self, path: &str) -> Outcome {
        if self.found.len() >= FOUND_MAX {
            return Err((path.to_owned(), Errno::TOOBIG));
        }
        let path = ProtectedPath::parse(path).map_err(|_| (path.to_owned(), Errno::NAMETOOLONG))?;
        if !self.found.contains(&path) {
            self.found.push(path);
        }
        Ok(())
    }

    /// A path that git reads relative to `base`, as one relative to the workspace; none when it leads out of it.
    fn within(&self, base: &str, path: &str) -> Option<String> {
        let top = self.workspace.path.to_str()?;
        let whole = if path.starts_with('/') { path.strip_prefix(top)?.to_owned() } else { format!("{base}/{path}") };
        let mut parts: Vec<&str> = Vec::new();
        for part in whole.split('/').filter(|part| !matches!(*part, "" | ".")) {
            if part == ".." {
                parts.pop()?;
            } else {
                parts.push(part);
            }
        }
        Some(parts.join("/"))
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        openat2(self.workspace.fd.as_fd(), path, flags | OFlags::CLOEXEC, Mode::empty(), RESOLVE)
    }

    fn kind(&self, path: &str) -> Result<Option<FileType>, Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        let looked = self
            .open(parent, OFlags::PATH | OFlags::DIRECTORY)
            .and_then(|parent| statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW));
        match looked {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn read(&self, path: &str) -> Result<Option<String>, (String, Errno)> {
        let fail = |errno: Errno| (path.to_owned(), errno);
        if self.kind(path).map_err(fail)? != Some(FileType::RegularFile) {
            return Ok(None);
        }
        let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(fail)?;
        let mut bytes = vec![0; CONFIG_LEN_MAX];
        let mut length = 0;
        loop {
            match rustix::io::read(&file, &mut bytes[length..]).map_err(fail)? {
                0 => break,
                more => length += more,
            }
        }
        if length == CONFIG_LEN_MAX {
            return Err(fail(Errno::FBIG));
        }
        Ok(Some(String::from_utf8_lossy(&bytes[..length]).into_owned()))
    }

    fn directories(&self, path: &str) -> Result<Vec<String>, (String, Errno)> {
        let fail = |errno: Errno| (path.to_owned(), errno);
        let directory = match self.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            other => other.map_err(fail)?,
        };
        let mut names = Vec::new();
        for entry in Dir::new(directory).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || entry.file_type() != FileType::Directory {
                continue;
            }
            names.push(String::from_utf8(name.to_vec()).map_err(|_| fail(Errno::ILSEQ))?);
            if names.len() > FOUND_MAX {
                return Err(fail(Errno::TOOBIG));
            }
        }
        names.sort();
        Ok(names)
    }
}

/// The settings of a git configuration, as `section.key` in lower case. Sub-sections are left out of the name.
fn settings(text: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut settings = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.split([']', ' ', '"']).next().unwrap_or_default().to_lowercase();
        } else if let Some((key, value)) = line.split_once('=') {
            settings
                .push((format!("{section}.{}", key.trim().to_lowercase()), value.trim().trim_matches('"').to_owned()));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use saggar_domain::HostPath;

    fn found(name: &str, files: &[(&str, &str)]) -> Result<Vec<String>, Problem> {
        let root = std::env::temp_dir().join(format!("saggar-git-{}-{name}", std::process::id()));
        for (path, content) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let tree =
            HostTree::open(&HostPath::parse(root.to_str().unwrap()).unwrap(), Code::InvalidWorkspace, "workspace")
                .unwrap();
        let found = protected_paths(&tree);
        std::fs::remove_dir_all(root).unwrap();
        Ok(found?.iter().map(|path| path.as_str().to_owned()).collect())
    }

    #[test]
    fn submodules_are_found_at_any_depth_with_their_checkouts() {
        let found = found(
            "modules",
            &[
                (".git/config", "[core]\n\thooksPath = .githooks\n[include]\n\tpath = ../shared.cfg\n"),
                (".git/modules/vendor/foo/HEAD", ""),
                (".git/modules/vendor/foo/config", "[core]\n\tworktree = ../../../../vendor/foo\n"),
                (".git/modules/vendor/foo/modules/in/HEAD", ""),
                ("vendor/foo/.git", "gitdir: ../../.git/modules/vendor/foo\n"),
            ],
        )
        .unwrap();
        for path in [
            ".githooks/",
            "shared.cfg",
            ".git/modules/vendor/foo/config",
            ".git/modules/vendor/foo/hooks/",
            "vendor/foo/.git",
            ".git/modules/vendor/foo/modules/in/config",
        ] {
            assert!(found.iter().any(|found| found == path), "{path} in {found:?}");
        }
    }

    #[test]
    fn a_git_directory_elsewhere_is_followed_while_it_stays_inside() {
        let inside = found(
            "bare",
            &[
                (".git", "gitdir: ./.bare\n"),
                (".bare/HEAD", ""),
                (".bare/worktrees/w/gitdir", "../../../w/.git\n"),
                ("w/.git", "gitdir: ../.bare/worktrees/w\n"),
            ],
        )
        .unwrap();
        for path in [".bare/config", ".bare/hooks/", ".bare/worktrees/w/commondir", "w/.git"] {
            assert!(inside.iter().any(|found| found == path), "{path} in {inside:?}");
        }
        assert_eq!(found("out", &[(".git", "gitdir: ../../elsewhere\n")]).unwrap(), Vec::<String>::new());
    }
}
