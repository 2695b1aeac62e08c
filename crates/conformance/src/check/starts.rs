//! How a start treats its input: links, races, directories, and features the host lacks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use saggar_domain::{
    ByteSize, Code, Count, Cpus, Draft, DraftLimits, EventBody, ExecStatus, FsMode, GuestPath, NetworkMode,
    ProtectedPath, Spec, Tier,
};
use saggar_sandbox::DataDirectory;

use super::Scene;
use crate::bench::host_path;
use crate::enact::{exists, members};
use crate::expect::{AttemptOutcome, Observation};
use crate::worker::{RACE_MODE, WORKER_MODE};

fn shell(script: &str) -> Vec<Vec<u8>> {
    ["/bin/sh", "-c", script].map(|part| part.as_bytes().to_vec()).to_vec()
}

/// Creates a link. If that fails, the check fails: nothing is refused then.
fn plant(target: impl AsRef<Path>, link: &Path) {
    // See above.
    let _ = symlink(target, link);
}

/// Removes a link.
fn clear(link: &Path) {
    // A link that stays makes the next start fail, which shows there.
    let _ = fs::remove_file(link);
}

pub(super) fn cwd_does_not_widen(scene: &Scene<'_>) -> Vec<Observation> {
    let bench = scene.bench;
    let mut observations = Vec::new();
    for directory in ["/", "/usr", "/etc", "/proc", "/probe"] {
        let draft = Draft { cwd: GuestPath::parse(directory).ok(), ..bench.draft(&scene.workspace) };
        let ran = bench.run(draft, bench.attempt("write-here", &[]));
        let said = members(&ran.report.output.stdout);
        let is_refused = said.len() == 2 && said.iter().all(|member| member.outcome != AttemptOutcome::Allowed);
        observations.push(Observation::examined(format!("cwd {directory}"), is_refused, ran.ending()));
    }
    let own = scene.directory.display().to_string();
    for (member, directory) in [
        ("cwd of the host", own.as_str()),
        ("cwd of the operator", "/root/project"),
        ("cwd that is absent", "/nonexistent"),
    ] {
        let ran = bench.run(
            Draft { cwd: GuestPath::parse(directory).ok(), ..bench.draft(&scene.workspace) },
            bench.attempt("write-here", &[]),
        );
        observations.push(Observation::examined(member, ran.is_refused_as(Code::InvalidCwd), ran.ending()));
    }
    observations
}

pub(super) fn linked_workspaces(scene: &Scene<'_>) -> Vec<Observation> {
    let bench = scene.bench;
    let (outside, link) = (scene.directory.join("outside"), scene.directory.join("link"));
    // Failures show below, because the expected files are missing then.
    let _ = fs::create_dir_all(outside.join("inner")).and_then(|()| symlink(&outside, &link));
    let mut observations = Vec::new();
    for (member, path) in [
        ("the workspace is a link", link.clone()),
        ("the same with a slash", link.join("")),
        ("a link to the root", scene.directory.join("root")),
    ] {
        if member == "a link to the root" {
            plant("/", &path);
        }
        let ran = bench.run(bench.draft(&path), shell("true"));
        observations.push(Observation::examined(member, ran.is_refused_as(Code::InvalidWorkspace), ran.ending()));
    }
    // If a parent is a link, the directory that is mounted must be the one that was checked, under its real path.
    let ran = bench.run(
        Draft { fs: Some(FsMode::WorkspaceWrite), ..bench.draft(&link.join("inner")) },
        shell("echo x > /workspace/through"),
    );
    let is_there = ran.succeeded() && exists(&outside.join("inner/through"));
    observations.push(Observation::examined("a parent is a link", is_there, ran.ending()));
    for (member, name, target) in
        [("a protected path is a link", ".saggar", "/etc"), ("a protected parent is a link", ".git", "../outside")]
    {
        let place = scene.workspace.join(name);
        plant(target, &place);
        let ran = bench.run(Draft { fs: Some(FsMode::WorkspaceWrite), ..bench.draft(&scene.workspace) }, shell("true"));
        observations.push(Observation::examined(member, ran.is_refused_as(Code::InvalidProtect), ran.ending()));
        clear(&place);
    }
    let mount = Draft {
        mounts: host_path(&link)
            .into_iter()
            .filter_map(|host| {
                Some(saggar_domain::Mount {
                    host,
                    guest: GuestPath::parse("/mnt/x").ok()?,
                    access: saggar_domain::Access::ReadWrite,
                })
            })
            .collect(),
        ..Draft::default()
    };
    let ran = bench.run(mount, shell("true"));
    observations.push(Observation::examined(
        "a mount's source is a link",
        ran.is_refused_as(Code::InvalidMount),
        ran.ending(),
    ));
    observations
}

/// Minimum number of starts to race against, and how many must have hit each side of an exchange.
const STARTS: usize = 40;
const EACH: usize = 3;
/// Maximum duration of a race.
const RACE: Duration = Duration::from_secs(8);

pub(super) fn racing_workspace(scene: &Scene<'_>) -> Vec<Observation> {
    let (real, decoy) = (scene.directory.join("race"), scene.directory.join("decoy"));
    let prepared = fs::create_dir_all(real.join("workspace"))
        .and_then(|()| fs::create_dir(&decoy))
        .and_then(|()| fs::write(decoy.join("decoy"), "x"))
        .and_then(|()| symlink(&decoy, real.join("other")));
    let racer = std::env::current_exe().and_then(|program| {
        Command::new(program).arg(WORKER_MODE).arg(RACE_MODE).arg(&real).stdin(Stdio::null()).spawn()
    });
    let (Ok(()), Ok(mut racer)) = (prepared, racer) else {
        return vec![Observation::examined("racing", false, "the race can't be set up")];
    };
    // The race is on once the link has been seen in place of the workspace.
    let deadline = Instant::now() + Duration::from_secs(5);
    let is_on = || real.join("workspace").symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    let mut has_begun = false;
    while !has_begun && Instant::now() < deadline {
        has_begun = is_on();
    }
    let (mut won, mut refused, mut odd) = (0, 0, Vec::new());
    // A race that only ever shows one side proves nothing. It goes on until both were seen, or its time is up.
    let end = Instant::now() + RACE;
    let is_enough = |won: usize, refused: usize| won + refused >= STARTS && won >= EACH && refused >= EACH;
    while odd.is_empty() && !is_enough(won, refused) && Instant::now() < end {
        let ran = scene.bench.run(
            Draft { fs: Some(FsMode::WorkspaceWrite), ..scene.bench.draft(&real.join("workspace")) },
            shell("test ! -e /workspace/decoy && echo x > /workspace/made"),
        );
        match ran.report.status {
            ExecStatus::Exited if ran.succeeded() => won += 1,
            ExecStatus::Refused | ExecStatus::SetupFailed => refused += 1,
            _ => odd.push(ran.ending()),
        }
    }
    // Our own child, which may have ended by itself.
    let _ = racer.kill();
    // It has ended, by the signal or before it.
    let _ = racer.wait();
    let is_clean =
        fs::read_dir(&decoy).is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == "decoy"));
    vec![
        Observation::examined("every start saw the workspace or was refused", odd.is_empty(), odd.join(", ")),
        Observation::examined("the decoy was never written", is_clean, ""),
        Observation::examined(
            "the race was on",
            has_begun && is_enough(won, refused),
            format!("{won} started, {refused} refused"),
        ),
    ]
}

/// How long the workspace, or the link in its place, stays: from shorter than one check to longer than a start.
const HOLDS_US: &[i64] = &[0, 0, 50, 200, 0, 1000, 3000, 0, 5000];

/// Swaps a workspace with a link, again and again.
pub(crate) fn race(directory: &Path) -> Result<(), String> {
    let end = Instant::now() + RACE;
    for hold in HOLDS_US.iter().cycle().take_while(|_| Instant::now() < end) {
        renameat_with(CWD, directory.join("workspace"), CWD, directory.join("other"), RenameFlags::EXCHANGE)
            .map_err(|errno| errno.to_string())?;
        // Only time has to pass; how much exactly doesn't matter.
        let _ = rustix::event::poll(&mut [], Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: hold * 1000 }));
    }
    Ok(())
}

pub(super) fn planted_links(scene: &Scene<'_>) -> Vec<Observation> {
    let target = scene.directory.join("target");
    let mut observations = Vec::new();
    let link = scene.directory.join("data");
    plant(&target, &link);
    observations.push(Observation::examined(
        "the data directory is a link",
        DataDirectory::open(Some(&link)).is_err() && !exists(&target),
        "",
    ));
    let data = scene.directory.join("data2");
    // If the link can't be created, the start isn't refused, which shows.
    let _ = fs::create_dir(&data).and_then(|()| symlink(&target, data.join("sandboxes")));
    observations.push(Observation::examined(
        "its directory of records is a link",
        DataDirectory::open(Some(&data)).is_err() && !exists(&target),
        "",
    ));
    for (member, name) in
        [("an absent protected path is a dangling link", ".saggar"), ("an asked-for one is", "policy.toml")]
    {
        let place = scene.workspace.join(name);
        plant(&target, &place);
        let draft = Draft {
            fs: Some(FsMode::WorkspaceWrite),
            protect: ProtectedPath::parse("policy.toml").into_iter().collect(),
            ..scene.bench.draft(&scene.workspace)
        };
        let ran = scene.bench.run(draft, shell("true"));
        observations.push(Observation::examined(
            member,
            ran.is_refused_as(Code::InvalidProtect) && !exists(&target),
            ran.ending(),
        ));
        clear(&place);
    }
    observations
}

pub(super) fn no_predictable_names(scene: &Scene<'_>) -> Vec<Observation> {
    let places = ["/tmp", "/var/tmp", "/run", "/dev/shm"];
    let mut found = Vec::new();
    let ran = scene.bench.run_watched(scene.bench.draft(&scene.workspace), shell("true"), &mut |sandbox, event| {
        if matches!(event, EventBody::Start { .. }) {
            for place in places {
                let names = fs::read_dir(place)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|entry| entry.file_name().to_string_lossy().into_owned());
                found
                    .extend(names.filter(|name| name.contains(sandbox.as_str())).map(|name| format!("{place}/{name}")));
            }
        }
    });
    vec![Observation::examined(
        "no file of a live sandbox in a shared directory",
        ran.succeeded() && found.is_empty(),
        found.join(" "),
    )]
}

pub(super) fn odd_working_directories(scene: &Scene<'_>) -> Vec<Observation> {
    let directories = (0..12).map(|fd| format!("/proc/self/fd/{fd}")).chain([
        "/proc/1/cwd".to_owned(),
        "/proc/1/root".to_owned(),
        "/proc/self/fd/8/../../..".to_owned(),
    ]);
    let tried = directories.map(|directory| {
        let ran = scene.bench.run(
            Draft { cwd: GuestPath::parse(&directory).ok(), ..scene.bench.draft(&scene.workspace) },
            shell("test -e /etc/passwd && pwd -P"),
        );
        let place = String::from_utf8_lossy(&ran.report.output.stdout).trim().to_owned();
        // Either it was refused, or a path that could not be read fell back to the default directory.
        let is_inside = ran.is_refused_as(Code::InvalidCwd) || (ran.succeeded() && place == "/workspace");
        Observation::examined(format!("cwd {directory}"), is_inside, ran.ending())
    });
    tried.collect()
}

fn is_unsupported(draft: Draft) -> bool {
    Spec::resolve(draft).is_err_and(|problem| problem.code == Code::UnsupportedCapability && !problem.help.is_empty())
}

/// A proxied sandbox starts only if its self-test found everything closed that its rules close. Where the host can't do
/// that, nothing starts.
pub(super) fn proxied_or_nothing(scene: &Scene<'_>) -> Vec<Observation> {
    let (status, _) = scene.bench.capability("proxied").unwrap_or(("untold", ""));
    let ran = scene.bench.run(Draft { network: Some(NetworkMode::Proxied), ..Draft::default() }, shell("true"));
    let has_started = ran.events.iter().any(|event| matches!(event, EventBody::Start { .. }));
    let is_as_told = if status == "unsupported" { !has_started } else { ran.succeeded() };
    vec![Observation::examined("proxied is as doctor says, or nothing starts", is_as_told, ran.ending())]
}

pub(super) fn unsupported_refused(scene: &Scene<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    for tier in [Tier::Wasm, Tier::Oci, Tier::Vm] {
        let (status, _) = scene.bench.capability(tier.as_str()).unwrap_or(("untold", ""));
        let is_as_told = (status == "unsupported") == is_unsupported(Draft { tier: Some(tier), ..Draft::default() });
        observations.push(Observation::examined(format!("tier {tier} is as doctor says"), is_as_told, status));
    }
    for (name, limits) in limits() {
        let (status, _) = scene.bench.capability(name).unwrap_or(("untold", ""));
        let ran = scene.bench.run(Draft { limits, ..Draft::default() }, shell("true"));
        let is_as_told = if status == "unsupported" {
            ran.is_refused_as(Code::UnenforcedLimit) && ran.events.is_empty()
        } else {
            ran.succeeded()
        };
        observations.push(Observation::examined(
            format!("limit {name} is as doctor says"),
            is_as_told,
            format!("{status}: {}", ran.ending()),
        ));
    }
    observations
}

fn limits() -> [(&'static str, DraftLimits); 4] {
    let none = DraftLimits::default;
    [
        ("memory", DraftLimits { memory: Some(ByteSize::mebibytes(256)), ..none() }),
        ("cpus", DraftLimits { cpus: Some(Cpus::millis(500)), ..none() }),
        ("pids", DraftLimits { pids: Some(Count::new(64)), ..none() }),
        ("disk", DraftLimits { disk: Some(ByteSize::mebibytes(16)), ..none() }),
    ]
}

pub(super) fn nothing_downgraded(scene: &Scene<'_>) -> Vec<Observation> {
    let ran = scene.bench.run(Draft::default(), shell("true"));
    let told: Vec<&str> = ran.report.unenforced.iter().map(|text| text.split(':').next().unwrap_or(text)).collect();
    let mut observations = Vec::new();
    let mut is_lacking = false;
    for (name, _) in limits() {
        let is_unsupported = scene.bench.capability(name).is_some_and(|(status, _)| status == "unsupported");
        is_lacking |= is_unsupported;
        observations.push(Observation::examined(
            format!("default {name} is reported if it is not enforced"),
            told.contains(&name) == is_unsupported,
            told.join(" "),
        ));
    }
    let in_event = ran
        .events
        .iter()
        .any(|event| matches!(event, EventBody::Setup { unenforced, .. } if *unenforced == ran.report.unenforced));
    observations.push(Observation::examined("the set-up event says the same", in_event, ""));
    let strict = scene.bench.run(Draft { strict: Some(true), ..Draft::default() }, shell("true"));
    let is_right = if is_lacking { strict.is_refused_as(Code::UnenforcedLimit) } else { strict.succeeded() };
    observations.push(Observation::examined("strict refuses unenforceable limits", is_right, strict.ending()));
    observations
}
