//! The kept changes of a scratch sandbox, and what applying them does.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use saggar_domain::{ByteSize, Draft, DraftLimits, FsMode, ProtectedPath};
use saggar_sandbox::{ApplyOutcome, Changes, Wanted};

use super::Scene;
use crate::bench::Ran;
use crate::expect::Observation;

/// Storage limit of these sandboxes.
const DISK_MIB: u64 = 16;
/// Bytes that a short list of changes may take in addition.
const LIST_LEN_MAX: u64 = 1 << 20;

fn keep(scene: &Scene<'_>, workspace: &Path, protect: &[&str], script: &str) -> Ran {
    let draft = Draft {
        fs: Some(FsMode::Scratch),
        protect: protect.iter().filter_map(|path| ProtectedPath::parse(path).ok()).collect(),
        limits: DraftLimits { disk: Some(ByteSize::mebibytes(DISK_MIB)), ..DraftLimits::default() },
        ..scene.bench.draft(workspace)
    };
    scene.bench.run_keeping(draft, ["/bin/sh", "-c", script].map(|part| part.as_bytes().to_vec()).to_vec())
}

fn changes(scene: &Scene<'_>, ran: &Ran) -> Option<Changes> {
    Changes::open(&scene.bench.data, ran.sandbox.as_ref()?.as_str()).ok()
}

/// Applies everything and returns what was refused; `None` if nothing could be applied.
fn apply(scene: &Scene<'_>, changes: Changes) -> Option<Vec<String>> {
    let workspace = changes.workspace().ok()?;
    let guard = changes.guard(&workspace).ok()?;
    let applied = changes.apply(&scene.bench.data, &workspace, &guard, |_| Wanted::Together).ok()?;
    let refused = applied.into_iter().filter(|result| matches!(result.outcome, ApplyOutcome::Refused(_)));
    Some(refused.map(|result| result.path.to_string()).collect())
}

/// Drops the kept changes, so that the next case finds none.
fn forget(scene: &Scene<'_>, ran: &Ran) {
    if let Some(changes) = changes(scene, ran) {
        // If this fails, the rest is in the probe's own directory and is removed with it.
        let _ = changes.drop_all(&scene.bench.data);
    }
}

pub(super) fn protected_not_applied(scene: &Scene<'_>) -> Vec<Observation> {
    let script = "for f in AGENTS.md .git/config .git/hooks/pre-commit shared.cfg more.cfg scripts/pre-push sub/.git/config; do echo >> $f; done; \
                  mkdir -p .included .git/logs bare/objects bare/refs objects refs; echo x > .included/pre-commit; ln -s /etc .git/logs/HEAD; \
                  rm .git/HEAD; for d in . bare; do echo 'ref: refs/heads/main' > $d/HEAD; echo x > $d/config; done; echo fine > fine";
    let ran = keep(scene, &scene.workspace, &["AGENTS.md"], script);
    let refused = changes(scene, &ran).and_then(|changes| apply(scene, changes)).unwrap_or_default();
    let mut observations =
        vec![Observation::examined("the rest is applied", scene.workspace.join("fine").exists(), ran.ending())];
    for path in [
        "AGENTS.md",
        ".git/config",
        ".git/hooks/pre-commit",
        "shared.cfg",
        "more.cfg",
        "scripts/pre-push",
        "sub/.git/config",
        ".included/pre-commit",
        ".git/logs/HEAD",
        ".git/HEAD",
        "HEAD",
        "config",
        "bare/HEAD",
        "bare/config",
    ] {
        observations.push(Observation::examined(
            format!("{path} is refused"),
            refused.iter().any(|name| name == path),
            "",
        ));
    }
    forget(scene, &ran);
    observations
}

pub(super) fn within_bounds(scene: &Scene<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    // The file already exists, so that it has to be compared.
    let sparse = fs::File::create(scene.workspace.join("sparse")).and_then(|file| file.set_len(1 << 40));
    for (member, script) in [
        ("hard links", "head -c 8000000 /dev/zero | tr '\\0' x > a; for i in $(seq 60); do ln a l$i; done"),
        ("a file that is too long", "truncate -s 7E big; echo small > a"),
        ("a long sparse file", "chmod 600 sparse"),
    ] {
        let start = Instant::now();
        let before = room(&scene.bench.data_path);
        let ran = keep(scene, &scene.workspace, &[], script);
        let grown = room(&scene.bench.data_path).saturating_sub(before);
        let is_kept = changes(scene, &ran).is_some_and(|changes| !changes.entries().is_empty());
        let is_bounded = grown <= (DISK_MIB << 20) + LIST_LEN_MAX;
        observations.push(Observation::examined(
            format!("{member}: no more than could be stored"),
            is_bounded,
            format!("{grown} bytes"),
        ));
        observations.push(Observation::examined(
            format!("{member}: kept or reported"),
            ran.succeeded() && is_kept,
            ran.ending(),
        ));
        let is_in_time = start.elapsed() < Duration::from_secs(20);
        observations.push(Observation::examined(format!("{member}: in time"), is_in_time, ""));
        forget(scene, &ran);
    }
    observations.push(Observation::examined("the sparse file was there", sparse.is_ok(), ""));
    observations
}

/// Bytes that a tree takes on disk.
fn room(top: &Path) -> u64 {
    let mut total = 0;
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.path().symlink_metadata() else { continue };
            total += metadata.blocks() * 512;
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
    }
    total
}

pub(super) fn applied_nowhere_else(scene: &Scene<'_>) -> Vec<Observation> {
    let (inner, victim) = (scene.workspace.join("a/sub"), scene.directory.join("victim/sub"));
    let made = fs::create_dir_all(&inner).and_then(|()| fs::create_dir_all(&victim));
    let ran = keep(scene, &inner, &[], "echo x > file");
    let swapped = fs::rename(scene.workspace.join("a"), scene.workspace.join("a.old"))
        .and_then(|()| symlink(scene.directory.join("victim"), scene.workspace.join("a")));
    let by_link = changes(scene, &ran).and_then(|changes| apply(scene, changes));
    let replaced = fs::remove_file(scene.workspace.join("a")).and_then(|()| fs::create_dir_all(&inner));
    let by_other = changes(scene, &ran).and_then(|changes| apply(scene, changes));
    let back = fs::remove_dir_all(scene.workspace.join("a"))
        .and_then(|()| fs::rename(scene.workspace.join("a.old"), scene.workspace.join("a")));
    let itself = changes(scene, &ran).and_then(|changes| apply(scene, changes));
    let is_set_up = made.and(swapped).and(replaced).and(back).is_ok();
    vec![
        Observation::examined("through a link above it: refused", is_set_up && by_link.is_none(), ran.ending()),
        Observation::examined("the other tree is as it was", !victim.join("file").exists(), ""),
        Observation::examined("another directory in its place: refused", by_other.is_none(), ""),
        Observation::examined(
            "the workspace itself: applied",
            itself == Some(Vec::new()) && inner.join("file").exists(),
            "",
        ),
    ]
}
