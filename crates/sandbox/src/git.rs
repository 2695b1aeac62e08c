//! Finds what the host's git would act on in a workspace, besides the fixed names: worktrees, submodules, a git
//! directory elsewhere, hooks and programs elsewhere, and anything that would turn the workspace's own top into a
//! repository.
//!
//! Write access to any of these lets a program choose what the host's git runs. The names depend on the repository, so
//! they are read from it at the start, the way git reads them. A link inside the workspace on the way to one is
//! reported too: a link can't be protected, so the workspace is refused. If something can't be read the workspace is
//! refused as well, because it might be hiding something. Files outside the workspace (the user's own settings, a
//! repository around the workspace) are read for what they say about the inside, as far as they are readable. This
//! covers existing repositories: one that a program creates later, somewhere below, is not covered.

mod checkouts;
pub(crate) mod config;
pub(crate) mod index;
mod links;
mod personal;
mod reading;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;
use saggar_domain::{Code, Problem, ProtectedPath};
use saggar_jail::Rule;

use crate::changes::Name;
use crate::host_tree::HostTree;
use crate::trail::Trail;
use config::Setting;
use personal::Personal;
use reading::Reading;

pub(crate) use links::remove_new_links;
pub(crate) use reading::{line_of, path_of};

/// Maximum number of paths; each costs a mount or two.
const FOUND_MAX: usize = 4096;
/// Maximum nesting of submodules.
const DEPTH_MAX: usize = 8;
/// Maximum nesting of included files; git's own limit.
const INCLUDES_MAX: usize = 10;
/// Maximum length of a configuration file.
const CONFIG_LEN_MAX: usize = 1 << 20;
/// Maximum length of an index, which has about a hundred bytes for each file of the repository.
const INDEX_LEN_MAX: usize = 256 << 20;
/// Signs of a git directory, even without its `HEAD`.
const SIGNS: [&str; 5] = ["HEAD", "config", "objects", "refs", "hooks"];
/// Subdirectories of a git directory that contain no submodule's.
const OWN: &[&[u8]] = &[b"hooks", b"info", b"logs", b"modules", b"objects", b"refs", b"worktrees"];

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) paths: Vec<ProtectedPath>,
    /// Names at the top that must be a kind of file that git doesn't accept as part of a repository.
    pub(crate) stops: Vec<ProtectedPath>,
    /// The git directories of the workspace, relative to it; empty for the workspace itself.
    pub(crate) directories: Vec<String>,
    /// Whether the workspace is a repository, or inside one.
    pub(crate) has_repository: bool,
    /// Hook directories from the user's own settings, relative to each checkout.
    pub(crate) hooks: Vec<Name>,
    /// Existing links in a workspace that is a git directory itself, which the sandbox didn't create.
    pub(crate) links: Vec<Name>,
    /// Files of the workspace that are marked in an index so that git shows no edits of them.
    pub(crate) hidden: BTreeSet<Vec<u8>>,
}

pub(crate) fn examine(workspace: &HostTree) -> Result<Found, Problem> {
    if !Rule::FoundPaths.is_on() {
        return Ok(Found::default());
    }
    let mut finder = Finder {
        reading: Reading { workspace },
        personal: Personal::of(workspace.uid),
        settings: Vec::new(),
        seen: BTreeSet::new(),
        found: Found::default(),
    };
    match finder.start() {
        Ok(()) => Ok(finder.found),
        Err((path, errno)) => {
            let path = path.strip_prefix(&workspace.path).unwrap_or(&path).display().to_string();
            Err(Problem::new(
                Code::InvalidProtect,
                format!("{path:?} of the workspace's repository can't be examined, so it can't be protected: {errno}"),
                "repair it or its permissions, prune unused worktrees, or use --fs read-only or --fs scratch",
            ))
        }
    }
}

struct Finder<'a> {
    reading: Reading<'a>,
    personal: Personal,
    /// The user's own settings, which apply to every repository.
    settings: Vec<Setting>,
    /// Git directories examined so far.
    seen: BTreeSet<PathBuf>,
    found: Found,
}

type GitResult<T = ()> = Result<T, (PathBuf, Errno)>;

/// A checkout, and the settings for it alone.
struct Checkout {
    top: PathBuf,
    settings: Vec<Setting>,
}

impl Finder<'_> {
    fn start(&mut self) -> GitResult {
        let top = self.reading.workspace.path.clone();
        let repositories: Vec<&Path> = top
            .ancestors()
            .filter(|place| matches!(self.reading.kind(&place.join(".git")), Ok(Some(_)) | Err(_)))
            .collect();
        let is_bare = ["HEAD", "objects", "refs"].iter().all(|name| self.counts(&top.join(name)));
        self.settings = Personal::from_environment();
        for file in self.personal.files() {
            // Often a link into a directory of dotfiles, which may be in the workspace itself.
            let file = self.lead(Path::new("/"), &file)?;
            self.hold(&file)?;
            let mut settings = Vec::new();
            self.read_settings(&file, 0, &mut BTreeSet::new(), &mut settings)?;
            self.settings.extend(settings);
        }
        self.found.has_repository = is_bare || !repositories.is_empty();
        self.found.hooks = self.hooks_in_checkouts();
        if !self.found.has_repository {
            // An absolute path into the workspace applies to every repository of the host.
            let mut settings = self.settings.clone();
            settings.retain(|setting| self.personal.is_whole_path(setting));
            self.acted_on(&top, settings.iter())?;
        }
        for place in repositories {
            self.repository(place, 0)?;
        }
        if !is_bare {
            return self.stop_bare(&top);
        }
        self.found.links = links::of_bare(self.reading.workspace).map_err(|errno| (top.clone(), errno))?;
        self.git_directory(&top, None, 0)
    }

    /// Hook paths from the user's own settings that differ in each checkout.
    fn hooks_in_checkouts(&self) -> Vec<Name> {
        let set = values(&self.settings, "core.hookspath").filter_map(|value| {
            let paths = self.personal.expand(value.as_os_str().as_encoded_bytes()).unwrap_or_default();
            paths.into_iter().find(|path| crate::holdback::stays_in_checkout(path))
        });
        set.map(|path| Name(path.into_os_string().into_encoded_bytes())).collect()
    }

    /// git accepts a directory with `HEAD`, `objects` and `refs` as a repository if `.git` isn't one (any more);
    /// `commondir` may point to the other two. The missing name gets a placeholder that git doesn't accept.
    fn stop_bare(&mut self, top: &Path) -> GitResult {
        let name = ["refs", "objects", "HEAD"].into_iter().find(|name| !self.counts(&top.join(name)));
        for name in [name.unwrap_or("HEAD"), "commondir"] {
            let path = ProtectedPath::parse(name).map_err(|_| (top.join(name), Errno::INVAL))?;
            self.found.stops.push(path);
        }
        Ok(())
    }

    /// Whether git could accept it as part of a repository. A socket is a placeholder of another sandbox that prevents
    /// this.
    fn counts(&self, path: &Path) -> bool {
        !matches!(self.reading.kind(path), Ok(None | Some(FileType::Socket)))
    }

    /// A directory that contains a `.git`.
    fn repository(&mut self, checkout: &Path, depth: usize) -> GitResult {
        let git = checkout.join(".git");
        match self.reading.kind(&git).map_err(|errno| (git.clone(), errno))? {
            Some(FileType::Directory) => self.git_directory(&git, Some(checkout), depth),
            // A file that names the git directory.
            Some(FileType::RegularFile) => {
                self.hold(&git)?;
                self.linked(&git, checkout, depth)
            }
            Some(FileType::Symlink) => {
                let end = self.lead(checkout, Path::new(".git"))?;
                match self.reading.kind(&end).map_err(|errno| (end.clone(), errno))? {
                    Some(FileType::Directory) => self.git_directory(&end, Some(checkout), depth),
                    _ => Ok(()),
                }
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A git directory, and the top of its checkout.
    fn git_directory(&mut self, directory: &Path, checkout: Option<&Path>, depth: usize) -> GitResult {
        if depth > DEPTH_MAX {
            return Err((directory.to_owned(), Errno::LOOP));
        }
        if !self.seen.insert(directory.to_owned()) {
            return Ok(());
        }
        if let Ok(inside) = directory.strip_prefix(&self.reading.workspace.path) {
            let name = inside.to_str().ok_or_else(|| (directory.to_owned(), Errno::ILSEQ))?.to_owned();
            self.found.directories.push(name);
        }
        for name in ["config", "config.worktree", "commondir", "objects/info/alternates"] {
            self.hold(&directory.join(name))?;
        }
        // The older formats for remotes: a `git push` to a repository of the sandbox would run that one's hooks.
        for name in ["remotes", "branches"] {
            self.hold_directory(&directory.join(name))?;
        }
        self.hooks(&directory.join("hooks"))?;
        let mut settings = self.settings.clone();
        let mut files = BTreeSet::new();
        for name in ["config", "config.worktree"] {
            self.read_settings(&directory.join(name), 0, &mut files, &mut settings)?;
        }
        let mut checkouts = Vec::new();
        if let Some(top) = checkout {
            checkouts.push(Checkout { top: top.to_owned(), settings: Vec::new() });
        }
        for path in values(&settings, "core.worktree") {
            let top = self.lead(directory, path)?;
            self.checkout_of(&top)?;
            checkouts.push(Checkout { top, settings: Vec::new() });
        }
        self.worktrees(directory, &mut checkouts)?;
        // The directory in which hooks run when someone pushes to this repository.
        checkouts.push(Checkout { top: directory.to_owned(), settings: Vec::new() });
        for checkout in &checkouts {
            self.acted_on(&checkout.top, settings.iter().chain(&checkout.settings))?;
        }
        let is_long = values(&settings, "extensions.objectformat").any(|format| format == Path::new("sha256"));
        let hash_len = if is_long { 32 } else { 20 };
        if let Some(top) = checkouts.first().filter(|checkout| checkout.top != directory) {
            self.submodules(directory, &top.top, hash_len, depth)?;
        }
        for worktree in self.reading.directories(&directory.join("worktrees"))? {
            let own = directory.join("worktrees").join(worktree);
            if let Some(top) = self.checkout_at(&own)? {
                self.submodules(&own, &top, hash_len, depth)?;
            }
        }
        self.modules(&directory.join("modules"), depth + 1)
    }

    /// Hooks, and programs given by path, that settings name for one checkout.
    fn acted_on<'s>(&mut self, checkout: &Path, settings: impl Iterator<Item = &'s Setting>) -> GitResult {
        for setting in settings {
            let Some(value) = setting.value.as_deref() else { continue };
            if setting.is("core.hookspath") {
                for path in self.personal.expand(value).map_err(|errno| (checkout.to_owned(), errno))? {
                    let hooks = self.lead(checkout, &path)?;
                    self.hooks(&hooks)?;
                }
            } else if setting.is("init.templatedir") {
                // `git init` and `git clone` copy hooks from there.
                for path in self.personal.expand(value).map_err(|errno| (checkout.to_owned(), errno))? {
                    let template = self.lead(checkout, &path)?;
                    self.hold_directory(&template)?;
                    self.hooks(&template.join("hooks"))?;
                }
            } else if runs_a_program(setting) {
                self.programs(checkout, value)?;
            }
        }
        Ok(())
    }

    /// A directory of hooks, with the targets of links in it.
    fn hooks(&mut self, directory: &Path) -> GitResult {
        self.hold_directory(directory)?;
        // The hooks that husky creates in `.husky/_` run those of the same name in `.husky`.
        if let Some(above) = directory.parent().filter(|_| directory.ends_with("_")) {
            self.hold_directory(above)?;
        }
        for (name, kind) in self.reading.list(directory)? {
            if kind == FileType::Symlink {
                let target = self.reading.read_link(directory, &name)?;
                let end = self.lead(directory, &target)?;
                self.hold(&end)?;
            }
        }
        Ok(())
    }

    /// Files of the workspace that a command line names. They may be scripts for an interpreter, so every word counts.
    fn programs(&mut self, checkout: &Path, command: &[u8]) -> GitResult {
        let is_between = |byte: &u8| byte.is_ascii_whitespace() || b"\"'`$;|&()<>=!".contains(byte);
        for word in command.split(is_between).filter(|word| !word.is_empty()) {
            // If a name can't be expanded, it finds no program.
            for path in self.personal.expand(word).unwrap_or_default() {
                let Trail { links, end } = Trail::follow(&self.reading.workspace.path, &checkout.join(&path));
                let is_inside = links.iter().chain([&end]).any(|place| self.reading.is_inside(place));
                if is_inside && end.is_file() {
                    links.iter().chain([&end]).try_for_each(|place| self.hold(place))?;
                }
            }
        }
        Ok(())
    }

    /// All settings of a file and of those it includes, whatever the conditions.
    fn read_settings(
        &mut self,
        file: &Path,
        depth: usize,
        seen: &mut BTreeSet<PathBuf>,
        into: &mut Vec<Setting>,
    ) -> GitResult {
        if depth > INCLUDES_MAX {
            return Err((file.to_owned(), Errno::LOOP));
        }
        if !seen.insert(file.to_owned()) {
            return Ok(());
        }
        let Some(bytes) = self.reading.read(file, CONFIG_LEN_MAX)? else { return Ok(()) };
        let settings = match config::parse(&bytes) {
            Ok(settings) => settings,
            // If git can't parse its settings, it does nothing at all.
            Err(config::Malformed) if !self.reading.is_inside(file) => return Ok(()),
            Err(config::Malformed) => return Err((file.to_owned(), Errno::BADMSG)),
        };
        for setting in settings {
            let Some(value) = setting.value.as_deref().filter(|_| setting.is_include()) else {
                into.push(setting);
                continue;
            };
            for path in self.personal.expand(value).map_err(|errno| (file.to_owned(), errno))? {
                let included = self.lead(file.parent().unwrap_or(file), &path)?;
                self.hold(&included)?;
                self.read_settings(&included, depth + 1, seen, into)?;
            }
        }
        Ok(())
    }

    /// Resolves a path that git reads relative to `base`. Links of the workspace on the way must be protected too.
    fn lead(&mut self, base: &Path, path: &Path) -> GitResult<PathBuf> {
        let Trail { links, end } = Trail::follow(&self.reading.workspace.path, &base.join(path));
        links.iter().try_for_each(|link| self.hold(link))?;
        Ok(end)
    }

    fn hold(&mut self, path: &Path) -> GitResult {
        self.hold_as(path, "")
    }

    fn hold_directory(&mut self, path: &Path) -> GitResult {
        self.hold_as(path, "/")
    }

    fn hold_as(&mut self, path: &Path, tail: &str) -> GitResult {
        let fail = |errno: Errno| (path.to_owned(), errno);
        // A sandbox can't reach anything outside.
        let Ok(inside) = path.strip_prefix(&self.reading.workspace.path) else { return Ok(()) };
        if self.found.paths.len() >= FOUND_MAX {
            return Err(fail(Errno::TOOBIG));
        }
        let text = inside.to_str().ok_or_else(|| fail(Errno::ILSEQ))?;
        // The workspace itself can't be both protected and writable.
        let path = ProtectedPath::parse(&format!("{text}{tail}")).map_err(|_| fail(Errno::INVAL))?;
        if !self.found.paths.contains(&path) {
            self.found.paths.push(path);
        }
        Ok(())
    }
}

/// All values of a key: which one applies depends on the reader.
fn values<'s>(settings: &'s [Setting], key: &str) -> impl Iterator<Item = &'s Path> {
    let named = settings.iter().filter(move |setting| setting.is(key));
    named.filter_map(|setting| setting.value.as_deref()).map(path_of)
}

/// Whether git runs the value as a program. An alias does if it begins with `!`.
fn runs_a_program(setting: &Setting) -> bool {
    let value = setting.value.as_deref().unwrap_or_default();
    match (setting.section(), setting.name()) {
        (b"alias" | b"submodule", _) => value.starts_with(b"!"),
        (
            b"core",
            b"fsmonitor" | b"sshcommand" | b"editor" | b"pager" | b"askpass" | b"gitproxy" | b"alternaterefscommand",
        )
        | (b"sequence", b"editor")
        | (b"diff", b"external" | b"command" | b"textconv")
        | (b"filter", b"clean" | b"smudge" | b"process")
        | (b"merge", b"driver")
        | (b"interactive", b"difffilter")
        | (b"credential", b"helper")
        | (b"gpg", b"program" | b"defaultkeycommand")
        | (b"trailer", b"command" | b"cmd")
        | (b"hook", b"command")
        | (b"remote", b"uploadpack" | b"receivepack")
        | (b"difftool" | b"mergetool" | b"browser" | b"man", b"cmd" | b"path")
        | (b"sendemail", b"smtpserver" | b"sendmailcmd" | b"tocmd" | b"cccmd" | b"headercmd")
        | (b"uploadpack", b"packobjectshook")
        | (b"tar", b"command")
        | (b"pager", _) => true,
        _ => false,
    }
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
        let found = examine(&tree);
        std::fs::remove_dir_all(root).unwrap();
        Ok(found?.paths.iter().map(|path| path.as_str().to_owned()).collect())
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
        assert_eq!(found("out", &[(".git", "gitdir: ../../elsewhere\n")]).unwrap(), [".git"]);
    }
}
