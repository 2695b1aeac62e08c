//! How a sandbox ends, and what it leaves behind.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use saggar_domain::{Draft, DraftLimits, EventBody, ExecStatus, FsMode, Timeout, User};

use super::Scene;
use crate::enact::members;
use crate::expect::{AttemptOutcome, Observation};

fn mounts() -> BTreeSet<String> {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines().map(str::to_owned).collect()
}

/// In every filesystem mode. The case runs alone, so that every change is its own.
pub(super) fn mount_table_clean(scene: &Scene<'_>) -> Vec<Observation> {
    let devices = || {
        fs::read_dir("/sys/block")
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                fs::read_to_string(entry.path().join("loop/backing_file")).is_ok_and(|file| file.contains("saggar"))
            })
            .count()
    };
    let (before, loops) = (mounts(), devices());
    let mut observations = Vec::new();
    for mode in FsMode::ALL {
        if *mode == FsMode::Worktree {
            let planted = saggar_sandbox::plant_repository(&scene.workspace, b"").is_ok();
            observations.push(Observation::examined("the workspace is a repository", planted, ""));
        }
        let ran = scene
            .bench
            .run(Draft { fs: Some(*mode), ..scene.bench.draft(&scene.workspace) }, vec![b"/bin/true".to_vec()]);
        observations.push(Observation::examined(format!("a run in mode {mode}"), ran.succeeded(), ran.ending()));
    }
    let added: Vec<String> = mounts().difference(&before).cloned().collect();
    observations.push(Observation::examined("the mount table is what it was", added.is_empty(), added.join("; ")));
    observations.push(Observation::examined("no loop device is ours", devices() == loops, ""));
    observations
}

/// Looks for the name in every directory that was tried, and for the mark in the files that were.
pub(super) fn writes_stay_inside(scene: &Scene<'_>) -> Vec<Observation> {
    const MARK: &str = "saggar-probe";
    let directories = [
        "",
        "/etc",
        "/etc/alternatives",
        "/etc/ssl/certs",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/opt",
        "/srv",
        "/var",
        "/run",
        "/dev",
        "/home",
        "/mnt",
        "/root",
    ];
    let files = ["/etc/passwd", "/etc/hosts", "/etc/ld.so.cache"];
    let is_marked = |file: &&str| {
        fs::read(file).is_ok_and(|bytes| bytes.windows(MARK.len()).any(|window| window == MARK.as_bytes()))
    };
    let made = directories.iter().map(|directory| format!("{directory}/{MARK}"));
    let on_host: Vec<String> = made
        .clone()
        .filter(|path| fs::symlink_metadata(path).is_ok())
        .chain(files.iter().filter(|file| is_marked(file)).map(|file| (*file).to_owned()))
        .collect();
    let script = format!(
        "for path in {}; do test -e $path && echo $path; done; grep -l {MARK} {}; echo looked",
        made.collect::<Vec<_>>().join(" "),
        files.join(" ")
    );
    let next = scene.bench.run(
        Draft { user: Some(User::Root), ..Draft::default() },
        [&b"/bin/sh"[..], b"-c", script.as_bytes()].map(<[u8]>::to_vec).to_vec(),
    );
    let seen = String::from_utf8_lossy(&next.report.output.stdout).trim().replace('\n', " ");
    vec![
        Observation::examined("nothing of it is on the host", on_host.is_empty(), on_host.join(" ")),
        Observation::examined("nothing of it is in the next sandbox", seen == "looked", seen),
    ]
}

/// The first attempt found no marks because none had been left. Now some are left, and it runs again.
pub(super) fn second_run_is_fresh(scene: &Scene<'_>) -> Vec<Observation> {
    let bench = scene.bench;
    let left =
        members(&bench.run(bench.draft(&scene.workspace), bench.attempt("leave-marks", &[])).report.output.stdout);
    let found =
        members(&bench.run(bench.draft(&scene.workspace), bench.attempt("find-marks", &[])).report.output.stdout);
    let is_left = left.iter().filter(|member| member.outcome == AttemptOutcome::Allowed).count();
    let is_found: Vec<String> = found
        .iter()
        .filter(|member| matches!(member.outcome, AttemptOutcome::Allowed | AttemptOutcome::Broken))
        .map(|member| member.member.clone())
        .collect();
    vec![
        Observation::examined("marks were left", is_left == left.len() && is_left > 0, is_left.to_string()),
        Observation::examined(
            "the next sandbox finds none",
            is_found.is_empty() && !found.is_empty(),
            is_found.join(" "),
        ),
    ]
}

pub(super) fn heartbeat_stops(scene: &Scene<'_>) -> Vec<Observation> {
    let file = scene.workspace.join("heartbeat");
    let first = fs::read(&file);
    // This waits to see that nothing happens: the daemon wrote every 20 ms.
    let nothing = rustix::event::poll(&mut [], Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 120_000_000 }));
    let second = fs::read(&file);
    let is_still = first.is_ok() && nothing.is_ok() && first.ok() == second.ok();
    vec![Observation::examined("on the host: it writes no more", is_still, "")]
}

pub(super) fn held_by_pidfd(scene: &Scene<'_>) -> Vec<Observation> {
    let mut is_held = false;
    let ran =
        scene.bench.run_watched(scene.bench.draft(&scene.workspace), vec![b"/bin/true".to_vec()], &mut |_, event| {
            if matches!(event, EventBody::Start { .. }) {
                let links = fs::read_dir("/proc/self/fd")
                    .into_iter()
                    .flatten()
                    .flatten()
                    .filter_map(|entry| fs::read_link(entry.path()).ok());
                is_held |= links.into_iter().any(|link| link.to_string_lossy().contains("pidfd"));
            }
        });
    vec![Observation::examined("the first process is held by a pidfd", ran.succeeded() && is_held, ran.ending())]
}

pub(super) fn distinguishable(scene: &Scene<'_>) -> Vec<Observation> {
    let bench = scene.bench;
    let end = |how: &[&str]| {
        bench
            .run(Draft::default(), bench.attempt("end", &how.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>()))
    };
    let mut observations = Vec::new();
    for code in [0u8, 1, 2, 124, 125, 126, 127, 128, 137, 254, 255] {
        let ran = end(&["code", &code.to_string()]);
        observations.push(Observation::examined(
            format!("code {code}"),
            ran.report.status == ExecStatus::Exited && ran.report.exit_code == Some(code),
            ran.ending(),
        ));
    }
    for signal in [1u8, 2, 6, 9, 11, 15, 31] {
        let ran = end(&["signal", &signal.to_string()]);
        observations.push(Observation::examined(
            format!("signal {signal}"),
            ran.report.status == ExecStatus::Signaled && ran.report.signal == Some(signal),
            ran.ending(),
        ));
    }
    let ran = end(&["filter"]);
    observations.push(Observation::examined(
        "killed by the filter",
        ran.report.status == ExecStatus::Signaled && ran.report.signal == Some(31),
        ran.ending(),
    ));
    observations
}

pub(super) fn output_bounded(scene: &Scene<'_>) -> Vec<Observation> {
    let Some(ran) = &scene.ran else { return Vec::new() };
    let limit = scene.case.sandbox.draft.limits.output.map_or(0, |limit| limit.bytes());
    let output = &ran.report.output;
    vec![
        Observation::examined(
            "exactly the limit is kept",
            output.stderr.len() as u64 == limit,
            output.stderr.len().to_string(),
        ),
        Observation::examined(
            "the rest is counted",
            output.stderr_dropped > 0 && (output.stderr_dropped + limit).is_multiple_of(1 << 20),
            output.stderr_dropped.to_string(),
        ),
        Observation::examined("the other stream is whole", output.stdout_dropped == 0, ""),
    ]
}

pub(super) fn hangs_end(scene: &Scene<'_>) -> Vec<Observation> {
    let bench = scene.bench;
    let tried = ["busy", "sleep", "read", "stop", "stopped-child", "vfork"].map(|kind| {
        let limits = DraftLimits { timeout: Some(Timeout::millis(300)), ..DraftLimits::default() };
        let ran =
            bench.run(Draft { limits, ..bench.draft(&scene.workspace) }, bench.attempt("hang", &[kind.to_owned()]));
        let is_in_time = ran.report.status == ExecStatus::TimedOut && ran.elapsed < Duration::from_millis(4000);
        Observation::examined(kind, is_in_time && ran.denied_by().contains(&"limit/timeout"), ran.ending())
    });
    tried.into()
}

/// Creating a sandbox and answering takes little CPU time. The program sleeps much longer.
pub(super) fn supervisor_rests(scene: &Scene<'_>) -> Vec<Observation> {
    const ENOUGH: Duration = Duration::from_millis(200);
    let Some(ran) = &scene.ran else { return Vec::new() };
    let told = format!("{} ms of {} ms", ran.cpu.as_millis(), ran.elapsed.as_millis());
    vec![Observation::examined("the runtime sleeps too", ran.cpu < ENOUGH, told)]
}
