//! What an attempt left in the workspace.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use saggar_domain::{FsMode, ProtectedPath};

use super::Scene;
use crate::enact::exists;
use crate::expect::Observation;
use crate::fixture::manifest;
use crate::removal::remove_tree;

fn seen(member: &str, is_kept: bool) -> Observation {
    Observation::examined(member, is_kept, "")
}

pub(super) fn as_written(scene: &Scene<'_>) -> Vec<Observation> {
    let file = scene.workspace.join("a");
    let metadata = file.metadata().ok();
    let owner = scene.workspace.metadata().map(|metadata| (metadata.uid(), metadata.gid())).ok();
    vec![
        seen("on the host: content", fs::read_to_string(&file).is_ok_and(|text| text == "written inside\n")),
        seen("on the host: mode", metadata.as_ref().is_some_and(|metadata| metadata.mode() & 0o7777 == 0o640)),
        seen("on the host: time", metadata.as_ref().is_some_and(|metadata| metadata.mtime() == 1_000_000_000)),
        seen("on the host: owner", metadata.map(|metadata| (metadata.uid(), metadata.gid())) == owner),
        seen("on the host: renamed", exists(&scene.workspace.join("made/c")) && !exists(&scene.workspace.join("b"))),
        seen("on the host: removed", !exists(&scene.workspace.join("d"))),
        seen(
            "on the host: link",
            fs::read_link(scene.workspace.join("e")).is_ok_and(|target| target == Path::new("a")),
        ),
    ]
}

pub(super) fn unchanged(scene: &Scene<'_>) -> Vec<Observation> {
    let after = manifest(&scene.workspace);
    let changed: Vec<String> = scene
        .before
        .iter()
        .filter(|(name, line)| after.get(*name) != Some(line))
        .map(|(name, _)| name.display().to_string())
        .collect();
    let added: Vec<String> =
        after.keys().filter(|name| !scene.before.contains_key(*name)).map(|name| name.display().to_string()).collect();
    vec![
        Observation::examined("on the host: nothing changed", changed.is_empty(), changed.join(" ")),
        Observation::examined("on the host: nothing added", added.is_empty(), added.join(" ")),
    ]
}

pub(super) fn protected_unchanged(scene: &Scene<'_>) -> Vec<Observation> {
    let after = manifest(&scene.workspace);
    let is_under = |name: &Path, top: &str| name.starts_with(top.trim_end_matches('/'));
    let checked = scene.case.args.iter().map(|top| {
        let of = |all: &std::collections::BTreeMap<std::path::PathBuf, String>| -> Vec<(String, String)> {
            all.iter()
                .filter(|(name, _)| is_under(name, top))
                .map(|(name, line)| (name.display().to_string(), line.clone()))
                .collect()
        };
        Observation::examined(format!("on the host: {top} is as it was"), of(&scene.before) == of(&after), "")
    });
    checked.collect()
}

pub(super) fn no_setid_files(scene: &Scene<'_>) -> Vec<Observation> {
    let all = manifest(&scene.workspace);
    let found: Vec<String> = all
        .keys()
        .filter(|name| {
            scene.workspace.join(name).symlink_metadata().is_ok_and(|metadata| metadata.mode() & 0o6000 != 0)
        })
        .map(|name| name.display().to_string())
        .collect();
    vec![Observation::examined("on the host: no set-id file", found.is_empty(), found.join(" "))]
}

pub(super) fn names_preserved(scene: &Scene<'_>) -> Vec<Observation> {
    let found: Vec<Vec<u8>> = fs::read_dir(&scene.workspace)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().as_bytes().to_vec())
        .collect();
    let wanted: &[&[u8]] =
        &[b"new\nline", b"\x1b]0;owned\x07", "\u{202e}txt.exe".as_bytes(), b"\xff\xfe\xfa", b"-rf", b"   "];
    let mut observations =
        vec![seen("on the host: the same bytes", wanted.iter().all(|name| found.iter().any(|found| found == name)))];
    let ran = scene.bench.run(scene.bench.draft(&scene.workspace), vec![b"/workspace/\x1b]0;owned\x07\n".to_vec()]);
    let said = ran.report.error.as_ref().map(|error| format!("{}{}", error.message, error.help)).unwrap_or_default();
    observations.push(Observation::examined(
        "told without control characters",
        !said.is_empty() && !said.chars().any(char::is_control),
        ran.ending(),
    ));
    observations
}

pub(super) fn names_distinct(scene: &Scene<'_>) -> Vec<Observation> {
    let names = ["Name", "name", "NAME", "\u{e9}", "e\u{301}", "\u{212b}", "\u{c5}"];
    let is_own = |(index, name): (usize, &&str)| {
        fs::read_to_string(scene.workspace.join(name)).is_ok_and(|text| text == index.to_string())
    };
    vec![seen("on the host: each has its own content", names.iter().enumerate().all(is_own))]
}

pub(super) fn deep_tree_goes(scene: &Scene<'_>) -> Vec<Observation> {
    let again = scene.bench.run(scene.bench.draft(&scene.workspace), vec![b"/bin/true".to_vec()]);
    let removed = remove_tree(&scene.workspace);
    // The fixture's own removal expects the directory.
    let made = fs::create_dir(&scene.workspace);
    vec![
        Observation::examined("the same workspace again", again.succeeded(), again.ending()),
        seen("on the host: the tree is removed", removed.is_ok() && made.is_ok()),
    ]
}

pub(super) fn stays_sparse(scene: &Scene<'_>) -> Vec<Observation> {
    let metadata = scene.workspace.join("sparse").metadata();
    vec![seen(
        "on the host: it takes less than 1 MiB",
        metadata.is_ok_and(|metadata| metadata.blocks() * 512 < 1 << 20),
    )]
}

/// Opening a pipe waits for its other end. No start may do that, whatever kind of file a path is.
pub(super) fn special_files_dont_block(scene: &Scene<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    let is_fifo = scene.workspace.join("fifo").symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_fifo());
    observations.push(seen("on the host: the pipe is a pipe", is_fifo));
    for name in ["fifo", "socket"] {
        let mut draft = scene.bench.draft(&scene.workspace);
        draft.fs = Some(FsMode::WorkspaceWrite);
        draft.protect = ProtectedPath::parse(name).into_iter().collect();
        let ran = scene.bench.run(draft, vec![b"/bin/true".to_vec()]);
        observations.push(Observation::examined(
            format!("a start that protects the {name}"),
            ran.elapsed < Duration::from_secs(5),
            ran.ending(),
        ));
    }
    observations
}

pub(super) fn git_runs_nothing(scene: &Scene<'_>) -> Vec<Observation> {
    let mark = scene.directory.join("ran");
    // The planted program writes to /tmp and would follow a link there, so the host's git gets a /tmp it can't reach.
    let status = Command::new("git")
        .arg("-C")
        .arg(&scene.workspace)
        .args(["status", "--porcelain"])
        .env_clear()
        .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("GIT_CONFIG_NOSYSTEM", "1")])
        .env("HOME", &scene.directory)
        .stdin(Stdio::null())
        .output();
    let planted = ["evil", "saggar-probe-ran", "fsmonitor", "hooksPath"];
    let config = fs::read_to_string(scene.workspace.join(".git/config")).unwrap_or_default();
    let is_clean = !planted.iter().any(|word| config.contains(word))
        && !exists(&scene.workspace.join(".git/config.worktree"))
        && !exists(&scene.workspace.join(".git/commondir"));
    let mut observations = vec![seen("on the host: nothing is planted", is_clean)];
    // A host without git can't be misled.
    if let Ok(output) = status {
        let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
        observations.push(Observation::examined("on the host: git status works", output.status.success(), said));
        observations
            .push(seen("on the host: nothing was run", !exists(&mark) && !exists(Path::new("/tmp/saggar-probe-ran"))));
    }
    observations
}
