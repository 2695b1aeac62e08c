//! What the host's git finds after an attempt.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use saggar_domain::{Code, Draft, FsMode, ProtectedPath};

use super::Scene;
use crate::enact::exists;
use crate::expect::Observation;

pub(super) fn no_repository_at_top(scene: &Scene<'_>) -> Vec<Observation> {
    let has = |name: &str| exists(&scene.workspace.join(name));
    let is_one = has("HEAD") && (has("commondir") || (has("objects") && has("refs")));
    let mut observations = vec![Observation::examined("on the host: the top is no git directory", !is_one, "")];
    // A host without git can't be misled.
    let asked = Command::new("git")
        .arg("-C")
        .arg(&scene.workspace)
        .args(["rev-parse", "--git-dir"])
        .env_clear()
        .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("GIT_CONFIG_NOSYSTEM", "1")])
        .env("HOME", &scene.directory)
        .env("GIT_CEILING_DIRECTORIES", &scene.directory)
        .stdin(Stdio::null())
        .output();
    if let Ok(output) = asked {
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        observations.push(Observation::examined(
            "on the host: git finds no other repository",
            said.is_empty() || said == ".git",
            said,
        ));
    }
    observations
}

/// Repositories that an attempt creates, each with the directory in which git is then used.
const MADE: &[(&str, &str)] =
    &[(".git", ""), ("nested/.git", "nested"), ("bare.git", "bare.git"), ("elsewhere", "leads"), ("", "")];

pub(super) fn made_is_held_back(scene: &Scene<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    for (name, used) in MADE {
        let at = scene.workspace.join(name);
        let settings = fs::read_to_string(at.join("config")).unwrap_or_default();
        let words = ["fsmonitor", "hooksPath"].into_iter().filter(|word| settings.contains(word));
        let files = ["hooks/post-checkout", "commondir"].into_iter().filter(|file| exists(&at.join(file)));
        let live: Vec<&str> = words.chain(files).collect();
        let title = if name.is_empty() { "the top" } else { name };
        observations.push(Observation::examined(
            format!("on the host: nothing of {title} acts on git"),
            live.is_empty(),
            live.join(" "),
        ));
        // The result doesn't matter, and a host without git can't be misled.
        let _ = Command::new("git")
            .arg("-C")
            .arg(scene.workspace.join(used))
            .args(["-c", "safe.directory=*", "status"])
            .env_clear()
            .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("GIT_CONFIG_NOSYSTEM", "1")])
            .env("HOME", &scene.directory)
            .env("GIT_CEILING_DIRECTORIES", &scene.directory)
            .stdin(Stdio::null())
            .output();
    }
    // A planted program leaves a file in the directory where git was used.
    let has_run = MADE.iter().any(|(_, used)| exists(&scene.workspace.join(used).join("evil")));
    observations.push(Observation::examined("on the host: nothing was run", !has_run, ""));
    let has_own = exists(&scene.workspace.join(".saggar"));
    observations.push(Observation::examined("on the host: no .saggar", !has_own, ""));
    observations
}

pub(super) fn no_links_in_git(scene: &Scene<'_>) -> Vec<Observation> {
    let links = links_in(&scene.workspace.join(".git"));
    let names: Vec<String> = links.iter().map(|link| link.display().to_string()).collect();
    vec![Observation::examined("on the host: no link in the git directory", links.is_empty(), names.join(" "))]
}

/// Links below a directory, as far as it can be read.
fn links_in(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind) if kind.is_symlink() => {
                    found.push(entry.path().strip_prefix(top).map(Path::to_owned).unwrap_or_default())
                }
                _ => {}
            }
        }
    }
    found
}

pub(super) fn second_names_refused(scene: &Scene<'_>) -> Vec<Observation> {
    let start = |protect: &str| {
        let draft = Draft {
            fs: Some(FsMode::WorkspaceWrite),
            protect: ProtectedPath::parse(protect).into_iter().collect(),
            ..scene.bench.draft(&scene.workspace)
        };
        scene.bench.run(draft, vec![b"/bin/true".to_vec()])
    };
    let before = start("dir/inner.txt");
    let linked = fs::hard_link(scene.workspace.join("dir/inner.txt"), scene.workspace.join("alias"));
    let mut observations =
        vec![Observation::examined("with one name it is held", before.succeeded() && linked.is_ok(), before.ending())];
    for (member, protect) in [("with two it is refused", "dir/inner.txt"), ("in a protected directory too", "dir/")] {
        let ran = start(protect);
        observations.push(Observation::examined(member, ran.is_refused_as(Code::InvalidProtect), ran.ending()));
    }
    observations
}
