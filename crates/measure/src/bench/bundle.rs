//! The bundle that runc runs: its own template, with the host's programs and Saggar's default boundary.
//!
//! The template is the output of `runc spec`, so runc is measured as its makers intend. The namespaces and limits of
//! a Saggar sandbox are added. The template has no seccomp filter and none is added, which is in runc's favour.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::contender::PROGRAM;

/// Directories with programs and libraries; on a merged-/usr system all but the first are links into it.
const TREES: &[&str] = &["usr", "bin", "lib", "lib64"];

#[derive(Debug)]
pub struct Bundle(PathBuf);

impl Bundle {
    /// Creates one in a new directory.
    pub fn make(runc: &Path, directory: &Path) -> Result<Self> {
        let rootfs = directory.join("rootfs");
        std::fs::create_dir_all(&rootfs).context("creating the bundle")?;
        let output = Command::new(runc).arg("spec").current_dir(directory).stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "runc spec ended with {}", output.status);
        let path = directory.join("config.json");
        let template = std::fs::read(&path).context("reading runc's template")?;
        let mut config = serde_json::from_slice(&template).context("parsing runc's template")?;
        adapt(&mut config, &fill(&rootfs)?)?;
        std::fs::write(&path, serde_json::to_vec_pretty(&config)?).context("writing the bundle's config.json")?;
        Ok(Self(directory.to_owned()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Puts the links of the host's top directory, and a mount point for each real tree, into the root. Returns the mount
/// points.
fn fill(rootfs: &Path) -> Result<Vec<String>> {
    let mut bound = Vec::new();
    for name in TREES {
        let of_host = Path::new("/").join(name);
        let inside = rootfs.join(name);
        if let Ok(destination) = of_host.read_link() {
            std::os::unix::fs::symlink(&destination, &inside).with_context(|| format!("linking {name}"))?;
        } else if of_host.is_dir() {
            std::fs::create_dir(&inside).with_context(|| format!("creating {name}"))?;
            bound.push(format!("/{name}"));
        }
    }
    Ok(bound)
}

/// Turns the template of an interactive shell into a run of the program.
fn adapt(config: &mut Value, bound: &[String]) -> Result<()> {
    let process = object(config, "/process")?;
    process.insert("terminal".into(), json!(false));
    process.insert("args".into(), json!([PROGRAM]));

    let mounts = list(config, "/mounts")?;
    mounts.extend(bound.iter().map(|path| {
        json!({ "destination": path, "source": path, "type": "bind", "options": ["rbind", "ro", "nosuid", "nodev"] })
    }));

    let namespaces = list(config, "/linux/namespaces")?;
    for kind in ["user", "cgroup"] {
        if namespaces.iter().all(|namespace| namespace["type"] != kind) {
            namespaces.push(json!({ "type": kind }));
        }
    }
    let linux = object(config, "/linux")?;
    // The simplest map: runc may then own its root directory without a change of owner.
    let identity = json!([{ "containerID": 0, "hostID": 0, "size": 65536 }]);
    linux.insert("uidMappings".into(), identity.clone());
    linux.insert("gidMappings".into(), identity);

    let resources = object(config, "/linux/resources")?;
    resources.insert("memory".into(), json!({ "limit": 2u64 << 30 }));
    resources.insert("pids".into(), json!({ "limit": 512 }));
    resources.insert("cpu".into(), json!({ "quota": 200_000, "period": 100_000 }));
    Ok(())
}

fn object<'a>(config: &'a mut Value, pointer: &str) -> Result<&'a mut serde_json::Map<String, Value>> {
    let found = config.pointer_mut(pointer).and_then(Value::as_object_mut);
    found.with_context(|| format!("runc's template has no object {pointer}"))
}

fn list<'a>(config: &'a mut Value, pointer: &str) -> Result<&'a mut Vec<Value>> {
    let found = config.pointer_mut(pointer).and_then(Value::as_array_mut);
    found.with_context(|| format!("runc's template has no list {pointer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Value {
        json!({
            "process": { "terminal": true, "args": ["sh"], "noNewPrivileges": true },
            "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }],
            "linux": { "namespaces": [{ "type": "pid" }, { "type": "cgroup" }], "resources": { "devices": [] } },
        })
    }

    #[test]
    fn the_template_keeps_what_is_not_ours_to_change() {
        let mut config = template();
        adapt(&mut config, &["/usr".to_owned()]).unwrap();
        assert_eq!(config["process"], json!({ "terminal": false, "args": [PROGRAM], "noNewPrivileges": true }));
        assert_eq!(config["linux"]["namespaces"], json!([{ "type": "pid" }, { "type": "cgroup" }, { "type": "user" }]));
        assert_eq!(config["linux"]["resources"]["devices"], json!([]));
        assert_eq!(config["mounts"][0], template()["mounts"][0]);
        assert_eq!(config["mounts"][1]["source"], "/usr");
    }

    #[test]
    fn a_template_of_another_shape_is_told() {
        let error = adapt(&mut json!({ "process": {} }), &[]).unwrap_err().to_string();
        assert_eq!(error, "runc's template has no list /mounts");
    }
}
