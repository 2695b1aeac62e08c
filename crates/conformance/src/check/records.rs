//! Records of live sandboxes: which ones the reaper trusts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use saggar_domain::SandboxId;
use saggar_sandbox::{DataDirectory, reap};

use super::Scene;
use crate::expect::Observation;

/// Has the form of a sandbox id, but is never generated.
const NAME: &str = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const SOMEONE: u32 = 64_321;

/// A process that a record names as its sandbox's PID 1; killed when dropped.
struct Victim(Child);

impl Victim {
    fn start() -> std::io::Result<Self> {
        Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().map(Self)
    }

    /// The line that identifies the process in a record: pid and start time.
    fn line(&self) -> String {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        let started = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(19)).unwrap_or("0");
        format!("{{\"pid\":{},\"started\":{started}}}\n", self.0.id())
    }

    fn lives(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may be dead already: that is what a check is about.
        let _ = self.0.kill();
        // Either signal has ended it.
        let _ = self.0.wait();
    }
}

pub(super) fn forged_records(scene: &Scene<'_>) -> Vec<Observation> {
    examine(scene).unwrap_or_else(|error| vec![Observation::examined("records", false, error.to_string())])
}

fn examine(scene: &Scene<'_>) -> std::io::Result<Vec<Observation>> {
    let path = scene.directory.join("data");
    let data = DataDirectory::open(Some(&path)).map_err(|problem| std::io::Error::other(problem.message))?;
    let record = path.join("sandboxes").join(NAME);
    let id = SandboxId::parse(NAME).ok_or(std::io::ErrorKind::InvalidInput)?;
    // The directory is named like the sandbox's cgroup, so that the name alone is no reason to leave it.
    let directory = scene.directory.join(format!("saggar-{}", id.alias()));
    fs::create_dir(&directory)?;
    let mut observations = Vec::new();

    let mut victim = Victim::start()?;
    write(&record, &format!("{}{}", holdings(None), victim.line()), 0o600, None)?;
    reap(&data);
    observations.push(Observation::examined("one of ours is acted on", !victim.lives() && !record.exists(), ""));

    let mut victim = Victim::start()?;
    let forged = [("others can write it", 0o666, None), ("it belongs to someone else", 0o600, Some(SOMEONE))];
    for (member, mode, owner) in forged.into_iter().filter(|(_, _, owner)| owner.is_none() || scene.bench.is_root) {
        write(&record, &format!("{}{}", holdings(Some(&directory)), victim.line()), mode, owner)?;
        reap(&data);
        let is_left = victim.lives() && directory.exists();
        observations.push(Observation::examined(format!("not acted on: {member}"), is_left, ""));
        if record.exists() {
            fs::remove_file(&record)?;
        }
        if !victim.lives() {
            victim = Victim::start()?;
        }
    }
    write(&record, &holdings(Some(&directory)), 0o600, None)?;
    reap(&data);
    observations.push(Observation::examined("what is no cgroup is not removed as one", directory.exists(), ""));
    Ok(observations)
}

/// A complete record of a dead owner that names this directory as its cgroup.
fn holdings(cgroup: Option<&Path>) -> String {
    let cgroups: Vec<String> = cgroup.map(|path| path.display().to_string()).into_iter().collect();
    let holdings = serde_json::json!({
        "schema": "saggar.record/v1", "cgroups": cgroups, "workspace": null, "placeholders": []
    });
    format!("{holdings}\n")
}

fn write(record: &Path, text: &str, mode: u32, owner: Option<u32>) -> std::io::Result<()> {
    fs::write(record, text)?;
    fs::set_permissions(record, fs::Permissions::from_mode(mode))?;
    owner.map_or(Ok(()), |owner| lchown(record, Some(owner), None))
}
