//! What must hold after every run: events are in order, nothing confidential was printed, and nothing is left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};
use saggar_domain::{EventBody, SandboxId};

use crate::bench::{Bench, Ran};

/// The state of the process that runs sandboxes, before one runs.
#[derive(Debug)]
pub(crate) struct Before {
    descriptors: BTreeMap<i32, String>,
    mounts: BTreeSet<String>,
}

impl Before {
    pub(crate) fn look() -> Self {
        Self { descriptors: descriptors(), mounts: mounts() }
    }

    /// Lists what is new since then. `sandboxes` are the names of those that ran in the meantime.
    pub(crate) fn leftovers(&self, bench: &Bench, sandboxes: &[String]) -> Vec<String> {
        let mut found = Vec::new();
        for (fd, kind) in descriptors() {
            if self.descriptors.get(&fd) != Some(&kind) {
                found.push(format!("a descriptor was left open: {fd} ({kind})"));
            }
        }
        let token = bench.private.display().to_string();
        let is_ours = |line: &&String| {
            line.contains(&token)
                || line.contains("saggar-probe-mount")
                || sandboxes.iter().any(|name| line.contains(name.as_str()))
        };
        for line in mounts().difference(&self.mounts).filter(is_ours) {
            found.push(format!("a mount was left: {line}"));
        }
        if !matches!(wait(WaitOptions::NOHANG), Err(Errno::CHILD)) {
            found.push("a child process was left".to_owned());
        }
        if let Some(pid) = attacker_alive(&bench.attacker()) {
            found.push(format!("the attacker is still alive as process {pid}"));
        }
        let changes = fs::read_dir(bench.data_path.join("changes")).into_iter().flatten().flatten();
        for entry in changes.filter(|entry| entry.file_name().to_string_lossy().starts_with('.')) {
            found.push(format!("half-kept changes were left: {}", entry.file_name().display()));
        }
        for name in sandboxes {
            let records = bench.data_path.join("sandboxes");
            if fs::read_dir(&records).is_ok_and(|entries| {
                entries.flatten().any(|entry| entry.file_name().to_string_lossy().contains(name.as_str()))
            }) {
                found.push(format!("the record of {name} was left"));
            }
            if cgroup_exists(name) {
                found.push(format!("a cgroup of {name} was left"));
            }
        }
        found
    }
}

fn descriptors() -> BTreeMap<i32, String> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?.display().to_string()))
    });
    // The descriptor used for listing shows the directory itself.
    found.filter(|(_, target)| !(target.starts_with("/proc/") && target.ends_with("/fd"))).collect()
}

fn mounts() -> BTreeSet<String> {
    fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Whether any process of the host runs this worker's copy of the attacker.
fn attacker_alive(directory: &Path) -> Option<u32> {
    let ours: Vec<(u64, u64)> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| (metadata.dev(), metadata.ino()))
        .collect();
    let pids = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().find(|pid| {
        fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|metadata| ours.contains(&(metadata.dev(), metadata.ino())))
    })
}

/// Looks for a cgroup of this sandbox's name below our own, in every hierarchy.
fn cgroup_exists(sandbox: &str) -> bool {
    let Some(alias) = SandboxId::parse(sandbox).map(|id| id.alias()) else { return false };
    let own: Vec<String> = fs::read_to_string("/proc/self/cgroup")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2).map(str::to_owned))
        .collect();
    let places = mounts().into_iter().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup").then(|| left.split(' ').nth(4).map(str::to_owned)).flatten()
    });
    places.into_iter().any(|place| {
        own.iter().any(|path| Path::new(&format!("{place}{}/saggar-{alias}", path.trim_end_matches('/'))).exists())
    })
}

/// Checks that events are in order and have one policy hash.
pub(crate) fn events_in_order(ran: &Ran) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut names: Vec<&str> = ran.events.iter().map(name).collect();
    // Two processes report: what the program is refused may be heard before the agent says that it has started.
    if names.contains(&"decision") {
        names.retain(|name| !matches!(*name, "decision" | "denial"));
    }
    if !names.starts_with(&["setup", "network", "start"]) {
        complaints
            .push(format!("events begin with {:?}, not with setup, network, start", &names[..names.len().min(3)]));
    }
    if names.iter().skip(3).any(|name| !matches!(*name, "denial" | "limit")) {
        complaints.push("an event is duplicated or out of order".to_owned());
    }
    match &ran.hashes {
        Some((one, other)) if one == other => {}
        _ => complaints.push("the policy has no hash, or more than one".to_owned()),
    }
    complaints
}

fn name(event: &EventBody) -> &'static str {
    match event {
        EventBody::Setup { .. } => "setup",
        EventBody::Network(_) => "network",
        EventBody::Start { .. } => "start",
        EventBody::Decision(_) => "decision",
        EventBody::Denial(_) => "denial",
        EventBody::Limit(_) => "limit",
        EventBody::Finish { .. } => "finish",
    }
}

/// Lists outputs that contain a path of the runtime or the secret.
pub(crate) fn indiscretions(bench: &Bench, ran: &Ran) -> Vec<String> {
    let needles = [
        ("the data directory", bench.data_path.display().to_string()),
        ("the probe's directory", bench.private.display().to_string()),
        ("the canary secret", bench.canary.clone()),
    ];
    let mut said = vec![("stdout", ran.report.output.stdout.clone()), ("stderr", ran.report.output.stderr.clone())];
    if let Some(error) = &ran.report.error {
        said.push(("the error", format!("{} {}", error.message, error.help).into_bytes()));
    }
    for (what, text) in
        [("a denial", serde_json::to_vec(&ran.report.denials)), ("an event", serde_json::to_vec(&ran.events))]
    {
        said.push((what, text.unwrap_or_default()));
    }
    let mut found = Vec::new();
    for (what, needle) in &needles {
        for (place, bytes) in &said {
            if bytes.windows(needle.len()).any(|window| window == needle.as_bytes()) {
                found.push(format!("{place} contains {what}"));
            }
        }
    }
    found
}
