//! Decides which settings of a repository that was created inside stay in it.
//!
//! git has hundreds of settings, and new versions add more that name a program. So this is an allowlist of harmless
//! settings, and everything else is held back.

use std::path::{Path, PathBuf};

use crate::git::config::{self, Setting};
use crate::host_tree::HostTree;
use crate::trail::Trail;

/// Keys that can't name a program or a location, whatever their value.
const HARMLESS: &[&str] = &[
    "core.abbrev",
    "core.autocrlf",
    "core.bare",
    "core.bigfilethreshold",
    "core.compression",
    "core.eol",
    "core.filemode",
    "core.ignorecase",
    "core.logallrefupdates",
    "core.longpaths",
    "core.precomposeunicode",
    "core.preloadindex",
    "core.quotepath",
    "core.repositoryformatversion",
    "core.safecrlf",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "core.symlinks",
    "core.untrackedcache",
    "extensions.compatobjectformat",
    "extensions.noop",
    "extensions.objectformat",
    "extensions.partialclone",
    "extensions.preciousobjects",
    "extensions.refstorage",
    "extensions.relativeworktrees",
    "extensions.worktreeconfig",
    "fetch.prune",
    "gc.auto",
    "index.version",
    "init.defaultbranch",
    "lfs.repositoryformatversion",
    "merge.ff",
    "pull.ff",
    "pull.rebase",
    "push.autosetupremote",
    "push.default",
    "rebase.autostash",
    "submodule.active",
    "user.email",
    "user.name",
];
/// The same for keys with a sub-section of any name.
const HARMLESS_IN_SECTIONS: &[(&str, &[&str])] = &[
    ("branch", &["description", "merge", "rebase", "vscode-merge-base"]),
    ("remote", &["fetch", "partialclonefilter", "promisor", "prune", "tagopt"]),
    ("submodule", &["active", "branch", "path", "shallow"]),
];
/// URL schemes that run only git's own programs.
const SCHEMES: &[&[u8]] = &[b"ftp", b"ftps", b"git", b"git+ssh", b"http", b"https", b"ssh", b"ssh+git"];

/// The verdict on a settings file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It stays as it is.
    Harmless,
    /// Only this part of it stays.
    Without(Vec<u8>),
    /// git can't parse it, or it can't be written again.
    Unclear,
}

/// Judges the settings of a git directory.
pub(super) fn judge(bytes: &[u8], workspace: &HostTree, git_directory: &Path) -> Verdict {
    let Ok(settings) = config::parse(bytes) else { return Verdict::Unclear };
    let judge = Judge { workspace, git_directory, settings: &settings };
    let kept: Vec<Setting> = settings.iter().filter(|setting| judge.is_harmless(setting)).cloned().collect();
    if kept.len() == settings.len() {
        return Verdict::Harmless;
    }
    let text = write_down(&kept);
    // Whatever a value contains, the written text must parse to what was judged.
    if config::parse(&text).as_ref() == Ok(&kept) { Verdict::Without(text) } else { Verdict::Unclear }
}

struct Judge<'a> {
    workspace: &'a HostTree,
    git_directory: &'a Path,
    settings: &'a [Setting],
}

impl Judge<'_> {
    fn is_harmless(&self, setting: &Setting) -> bool {
        if HARMLESS.iter().any(|key| setting.is(key)) {
            return true;
        }
        let value = setting.value.as_deref().unwrap_or_default();
        let (section, name) = (setting.section(), setting.name());
        if setting.is("core.worktree") {
            return self.is_apart(value);
        }
        if section == b"advice" || section == b"color" {
            return true;
        }
        if setting.sub_section().is_none() {
            return false;
        }
        let is_listed = |(known, names): &(&str, &[&str])| {
            known.as_bytes() == section && names.iter().any(|known| known.as_bytes() == name)
        };
        match (section, name) {
            _ if HARMLESS_IN_SECTIONS.iter().any(is_listed) => true,
            (b"remote", b"url" | b"pushurl") | (b"submodule", b"url") => self.is_elsewhere(value),
            (b"branch", b"remote" | b"pushremote") => value == b"." || self.is_remote(value),
            (b"submodule", b"update") => matches!(value, b"checkout" | b"rebase" | b"merge" | b"none"),
            _ => false,
        }
    }

    /// Whether a remote of this name is configured, and stays. Any other word would be the path of a repository.
    fn is_remote(&self, name: &[u8]) -> bool {
        let url = |setting: &&Setting| setting.is_in(b"remote", name) && setting.name() == b"url";
        self.settings.iter().filter(url).any(|url| self.is_elsewhere(url.value.as_deref().unwrap_or_default()))
    }

    /// Whether a checkout is in the workspace and doesn't contain its own git directory: otherwise a file of the
    /// checkout called `hooks/pre-commit` would be a hook.
    fn is_apart(&self, value: &[u8]) -> bool {
        let Some(end) = self.end_of(self.git_directory, value) else { return false };
        end.starts_with(&self.workspace.path) && !self.git_directory.starts_with(&end)
    }

    /// Whether a remote is not a repository in the workspace: a push runs the hooks of its target repository.
    fn is_elsewhere(&self, url: &[u8]) -> bool {
        let until = |stop: &[u8]| url.windows(stop.len()).position(|window| window == stop).map(|at| &url[..at]);
        let is_word = |word: &[u8]| word.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
        // A program of that name would be run, whatever it is.
        if until(b"::").is_some_and(is_word) || url.is_empty() || url.starts_with(b"-") {
            return false;
        }
        let path = match until(b"://").filter(|scheme| is_word(scheme)) {
            Some(b"file") => &url[b"file://".len()..],
            Some(scheme) => return SCHEMES.contains(&scheme),
            None => url,
        };
        let slash = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
        if path.len() == url.len() && path[..slash].contains(&b':') {
            // host:path
            return true;
        }
        // A relative path leads to different places from different directories.
        path.starts_with(b"/")
            && self.end_of(Path::new("/"), path).is_some_and(|end| !end.starts_with(&self.workspace.path))
    }

    /// Resolves a path, unless it goes through a link of the workspace.
    fn end_of(&self, base: &Path, value: &[u8]) -> Option<PathBuf> {
        if value.is_empty() || value.starts_with(b"~") {
            return None;
        }
        let trail = Trail::follow(&self.workspace.path, &base.join(crate::git::path_of(value)));
        trail.links.is_empty().then_some(trail.end)
    }
}

/// Settings as a file that git can parse.
fn write_down(settings: &[Setting]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut section: Option<(&[u8], Option<&[u8]>)> = None;
    for setting in settings {
        let own = (setting.section(), setting.sub_section());
        if section != Some(own) {
            section = Some(own);
            text.push(b'[');
            text.extend_from_slice(own.0);
            if let Some(sub_section) = own.1 {
                text.extend_from_slice(b" \"");
                for byte in sub_section {
                    if matches!(byte, b'"' | b'\\') {
                        text.push(b'\\');
                    }
                    text.push(*byte);
                }
                text.push(b'"');
            }
            text.extend_from_slice(b"]\n");
        }
        text.push(b'\t');
        text.extend_from_slice(setting.name());
        if let Some(value) = &setting.value {
            text.extend_from_slice(b" = ");
            write_value(&mut text, value);
        }
        text.push(b'\n');
    }
    text
}

fn write_value(text: &mut Vec<u8>, value: &[u8]) {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\;#".contains(byte);
    if !value.is_empty() && value.iter().all(is_plain) {
        text.extend_from_slice(value);
        return;
    }
    text.push(b'"');
    for byte in value {
        match byte {
            b'"' => text.extend_from_slice(b"\\\""),
            b'\\' => text.extend_from_slice(b"\\\\"),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\t' => text.extend_from_slice(b"\\t"),
            8 => text.extend_from_slice(b"\\b"),
            other => text.push(*other),
        }
    }
    text.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use saggar_domain::{Code, HostPath};

    /// What stays of the settings of `.git`; `None` if all of them do.
    fn left(settings: &str) -> Option<String> {
        let top = std::env::temp_dir().canonicalize().unwrap();
        let tree =
            HostTree::open(&HostPath::parse(top.to_str().unwrap()).unwrap(), Code::InvalidWorkspace, "workspace")
                .unwrap();
        match judge(settings.replace("{top}", top.to_str().unwrap()).as_bytes(), &tree, &top.join("made/.git")) {
            Verdict::Harmless => None,
            Verdict::Without(text) => Some(String::from_utf8(text).unwrap()),
            Verdict::Unclear => Some("unclear".to_owned()),
        }
    }

    #[test]
    fn what_git_init_and_git_clone_write_stays_as_it_is() {
        for settings in [
            "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n",
            "[remote \"origin\"]\n\turl = https://example.org/a.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n\
             [branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n",
            "[remote \"o\"]\n\turl = git@example.org:a/b.git\n[submodule \"s\"]\n\tactive = true\n\turl = file:///srv/s\n",
            "[core]\n\tworktree = ../../sub\n[user]\n\tname = An Agent\n[remote \"l\"]\n\turl = /srv/a.git\n",
            "",
        ] {
            assert_eq!(left(settings), None, "{settings}");
        }
    }

    #[test]
    fn what_could_name_a_program_or_a_place_goes_and_nothing_else() {
        for gone in [
            "[core]\n\tfsmonitor = x",
            "[core]\n\thooksPath = .gh",
            "[core]\n\tsshCommand = x",
            "[core]\n\tworktree = /",
            "[core]\n\tworktree = ..",
            "[core]\n\tworktree = ../../..",
            "[alias]\n\tst = !x",
            "[include]\n\tpath = ../x",
            "[includeIf \"gitdir:**\"]\n\tpath = ../x",
            "[filter \"lfs\"]\n\tclean = x",
            "[diff \"x\"]\n\ttextconv = x",
            "[merge \"x\"]\n\tdriver = x",
            "[credential]\n\thelper = x",
            "[credential \"https://example.org\"]\n\thelper = x",
            "[gpg]\n\tprogram = x",
            "[pager]\n\tlog = x",
            "[hook \"x\"]\n\tcommand = x",
            "[submodule \"s\"]\n\tupdate = !x",
            "[url \"/x\"]\n\tinsteadOf = https://example.org/",
            "[remote \"o\"]\n\tuploadpack = x",
            "[remote \"o\"]\n\tvcs = x",
            "[remote \"o\"]\n\turl = ext::sh -c x",
            "[remote \"o\"]\n\turl = foo://x",
            "[remote \"o\"]\n\turl = ./evil.git",
            "[remote \"o\"]\n\turl = evil.git",
            "[remote \"o\"]\n\turl = {top}/evil.git",
            "[remote \"o\"]\n\turl = file://{top}/evil.git",
            "[remote \"o\"]\n\turl = -oProxyCommand=x",
            "[branch \"main\"]\n\tremote = evil",
            "[remote \"evil\"]\n\turl = ext::x\n[branch \"main\"]\n\tremote = evil",
            "[protocol \"ext\"]\n\tallow = always",
            "[safe]\n\tdirectory = *",
            "[of-the-future]\n\tprogram = x",
        ] {
            let whole = format!("[user]\n\tname = a # comment\n{gone}\n[core]\n\tbare = false\n");
            assert_eq!(left(&whole).as_deref(), Some("[user]\n\tname = a\n[core]\n\tbare = false\n"), "{gone}");
        }
        assert_eq!(left("[core\n").as_deref(), Some("unclear"));
    }

    #[test]
    fn any_value_that_stays_is_written_so_that_git_reads_the_same() {
        let values = "[user]\n\tname = \" a;b#\\\"\\\\ \\n\\t\\b\\303 \"\n\temail =\n\tname\n[branch \"a\\\"b\\\\c].d\"]\n\tmerge = x\n";
        let values = values.replace("\\303", "\u{c3}");
        let kept = config::parse(values.as_bytes()).unwrap();
        assert_eq!(config::parse(&write_down(&kept)), Ok(kept));
    }
}
