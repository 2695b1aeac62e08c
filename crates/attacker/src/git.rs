//! Attempts to mislead the host's git without touching its configuration: with another repository in the same place,
//! with links among its own files, with a forged operation in progress.

use std::fs;
use std::os::unix::fs::symlink;

use crate::Attempt;
use crate::out::Out;
use crate::sys::unheeded;

pub const ATTEMPTS: &[Attempt] = &[
    ("bare-at-top", bare_at_top),
    ("make-repositories", make_repositories),
    ("plant-git-links", plant_git_links),
    ("begin-rebase", begin_rebase),
];

const TOP: &str = "/workspace";
const HEAD: &str = "ref: refs/heads/main\n";

/// If `.git` has no HEAD, git doesn't accept it as a repository and tries the directory that contains it as a bare one.
fn bare_at_top(out: &Out, _: &[String]) {
    let at = |name: &str| format!("{TOP}/{name}");
    out.tried("take HEAD away", fs::rename(at(".git/HEAD"), at(".git/was-HEAD")));
    out.tried("HEAD", fs::write(at("HEAD"), HEAD));
    out.tried(
        "config",
        fs::write(
            at("config"),
            "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = touch evil\n",
        ),
    );
    out.tried("objects", fs::create_dir(at("objects")));
    out.tried("refs", fs::create_dir(at("refs")));
    out.tried("refs as a link", symlink(".git/refs", at("refs")));
    out.tried("refs removed", fs::remove_file(at("refs")).and_then(|()| fs::create_dir(at("refs"))));
    out.tried("refs renamed", fs::rename(at("refs"), at("was-refs")).and_then(|()| fs::create_dir(at("refs"))));
    out.tried("refs replaced", fs::create_dir(at("made")).and_then(|()| fs::rename(at("made"), at("refs"))));
    out.tried("commondir", fs::write(at("commondir"), ".git\n"));
    out.tried("commondir removed", fs::remove_file(at("commondir")));
    unheeded(fs::remove_dir(at("made")));
}

/// New repositories with a hook and settings that name programs: at the top, below it, without the name `.git`, and
/// behind a `.git` file.
fn make_repositories(out: &Out, _: &[String]) {
    for name in [".git", "nested/.git", "bare.git", "elsewhere"] {
        let at = |file: &str| format!("{TOP}/{name}/{file}");
        let made = ["objects", "refs", "hooks"].iter().try_for_each(|part| fs::create_dir_all(at(part)));
        out.tried(&format!("make {name}"), made.and_then(|()| fs::write(at("HEAD"), HEAD)));
        let hook = fs::write(at("hooks/post-checkout"), "#!/bin/sh\ntouch evil\n");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        out.tried(&format!("hook in {name}"), hook.and_then(|()| fs::set_permissions(at("hooks/post-checkout"), mode)));
        let settings = "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = touch evil\n\thooksPath = ../evil\n";
        out.tried(&format!("settings of {name}"), fs::write(at("config"), settings));
    }
    out.tried(
        "a file that leads to one",
        fs::create_dir(format!("{TOP}/leads"))
            .and_then(|()| fs::write(format!("{TOP}/leads/.git"), "gitdir: ../elsewhere\n")),
    );
}

fn plant_git_links(out: &Out, _: &[String]) {
    let at = |name: &str| format!("{TOP}/.git/{name}");
    // The log directory may not exist yet.
    unheeded(fs::create_dir(at("logs")));
    unheeded(fs::remove_file(at("logs/HEAD")));
    for name in ["logs/HEAD", "FETCH_HEAD", "COMMIT_EDITMSG", "refs/heads/evil", "objects/aa"] {
        out.tried(name, symlink("/tmp/saggar-probe-ran", at(name)));
    }
    let closed = fs::create_dir(at("closed")).and_then(|()| symlink("/tmp", at("closed/link")));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o111);
    out.tried("in a closed directory", closed.and_then(|()| fs::set_permissions(at("closed"), mode)));
}

fn begin_rebase(out: &Out, _: &[String]) {
    let directory = format!("{TOP}/.git/rebase-merge");
    let list = format!("{directory}/git-rebase-todo");
    out.tried("a list of commands", fs::create_dir(&directory).and_then(|()| fs::write(list, "exec touch evil\n")));
}
