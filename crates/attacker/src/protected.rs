//! Attempts on protected paths of a workspace, whether they exist or not. The paths are arguments; a trailing slash
//! marks a directory.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::Attempt;
use crate::out::{Out, until_told};
use crate::sys::{CWD, at, call, path, unheeded};

pub const ATTEMPTS: &[Attempt] = &[
    ("change-protected", change_protected),
    ("change-when-told", change_when_told),
    ("exchange-protected", exchange_protected),
    ("configure-git", configure_git),
    ("configure-nested-git", configure_nested_git),
];

const TOP: &str = "/workspace";

fn change_protected(out: &Out, arguments: &[String]) {
    out.tried("unprotected", fs::write(format!("{TOP}/unprotected"), "x"));
    for asked in arguments {
        let is_directory = asked.ends_with('/');
        let name = asked.trim_end_matches('/');
        let full = format!("{TOP}/{name}");
        let spare = format!("{TOP}/spare");
        if is_directory {
            out.tried(&format!("create in {name}"), fs::write(format!("{full}/probe"), "x"));
            out.tried(&format!("make a directory in {name}"), fs::create_dir(format!("{full}/probe.d")));
        } else {
            out.tried(
                &format!("write {name}"),
                fs::OpenOptions::new().write(true).create(true).truncate(false).open(&full),
            );
            out.tried(&format!("truncate {name}"), fs::File::create(&full));
            out.tried(&format!("link to {name} and write"), write_through_link(&full));
        }
        out.tried(
            &format!("remove {name}"),
            if is_directory { fs::remove_dir_all(&full) } else { fs::remove_file(&full) },
        );
        out.tried(&format!("rename {name}"), moved_and_back(&full, &format!("{TOP}/moved")));
        out.tried(&format!("replace {name}"), replaced(&full, &spare, is_directory));
        out.tried(&format!("symbolic link at {name}"), symlink("/tmp", &full));
        out.tried(&format!("hard link at {name}"), fs::write(&spare, "x").and_then(|()| fs::hard_link(&spare, &full)));
        out.tried(&format!("chmod {name}"), fs::set_permissions(&full, fs::Permissions::from_mode(0o777)));
        for above in above(name) {
            out.tried(
                &format!("rename {above} above {name}"),
                moved_and_back(&format!("{TOP}/{above}"), &format!("{TOP}/moved")),
            );
        }
        // The spare may be gone already.
        unheeded(fs::remove_file(&spare));
        unheeded(fs::remove_dir(&spare));
    }
}

/// The same, once the parent closes our input: by then another sandbox's end may have released the protection.
fn change_when_told(out: &Out, arguments: &[String]) {
    until_told(out);
    change_protected(out, arguments);
}

/// The directories between the top and a path, nearest first.
fn above(name: &str) -> Vec<String> {
    let parents = Path::new(name).ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
    parents.map(|parent| parent.display().to_string()).collect()
}

fn moved_and_back(from: &str, to: &str) -> io::Result<()> {
    fs::rename(from, to)?;
    fs::rename(to, from)
}

fn replaced(target: &str, spare: &str, is_directory: bool) -> io::Result<()> {
    if is_directory {
        fs::create_dir(spare)?
    } else {
        fs::write(spare, "replaced")?
    }
    fs::rename(spare, target)
}

fn write_through_link(target: &str) -> io::Result<()> {
    let alias = format!("{TOP}/alias");
    fs::hard_link(target, &alias)?;
    let written =
        fs::OpenOptions::new().append(true).open(&alias).and_then(|mut file| file.write_all(b"\n# written\n"));
    fs::remove_file(&alias)?;
    written
}

fn exchange_protected(out: &Out, arguments: &[String]) {
    for asked in arguments {
        let name = asked.trim_end_matches('/');
        let (spare, full) = (path(&format!("{TOP}/spare")), path(&format!("{TOP}/{name}")));
        // It exists afterwards, whether or not it was left by the previous one.
        unheeded(if asked.ends_with('/') {
            fs::create_dir(format!("{TOP}/spare"))
        } else {
            fs::write(format!("{TOP}/spare"), "x")
        });
        let exchange = || call(libc::SYS_renameat2, &[CWD, at(&spare), CWD, at(&full), libc::RENAME_EXCHANGE as usize]);
        if out.tried(&format!("exchange {name}"), exchange()).is_some() {
            // Swap back; if that fails, it is only a temporary workspace.
            unheeded(exchange());
        }
        unheeded(fs::remove_file(format!("{TOP}/spare")));
        unheeded(fs::remove_dir(format!("{TOP}/spare")));
    }
}

/// The places where git looks for programs to run.
fn configure_git(out: &Out, _: &[String]) {
    let append = |file: &str, text: &str| {
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(format!("{TOP}/{file}"))
            .and_then(|mut file| file.write_all(text.as_bytes()))
    };
    let run = "touch /tmp/saggar-probe-ran";
    out.tried("core.fsmonitor", append(".git/config", &format!("[core]\n\tfsmonitor = {run}\n")));
    out.tried("core.hooksPath", append(".git/config", "[core]\n\thooksPath = ../evil\n"));
    out.tried("alias", append(".git/config", &format!("[alias]\n\tst = !{run}\n")));
    out.tried("config.worktree", append(".git/config.worktree", &format!("[core]\n\tfsmonitor = {run}\n")));
    out.tried("commondir", append(".git/commondir", "../evil\n"));
    out.tried("hook", append(".git/hooks/post-checkout", &format!("#!/bin/sh\n{run}\n")));
    out.tried(".gitattributes", append(".gitattributes", "* filter=evil diff=evil\n"));
    out.tried(
        "lock and rename",
        append(".git/config.lock", "[core]\n")
            .and_then(|()| fs::rename(format!("{TOP}/.git/config.lock"), format!("{TOP}/.git/config"))),
    );
    // Reported above; what is left of it is not one of git's files.
    unheeded(fs::remove_file(format!("{TOP}/.git/config.lock")));
}

fn configure_nested_git(out: &Out, _: &[String]) {
    let directory = format!("{TOP}/nested/.git/hooks");
    out.tried(
        "nested hook",
        fs::create_dir_all(&directory).and_then(|()| fs::write(format!("{directory}/post-checkout"), "#!/bin/sh\n")),
    );
    out.tried("nested config", fs::write(format!("{TOP}/nested/.git/config"), "[core]\n\tfsmonitor = touch evil\n"));
}
