//! What an agent's definition says about the sandbox of its runs: its template, files, network, secrets, volumes and limits.
//!
//! The parts have the types of a sandbox's spec and mean the same there. It has no environment, because a definition is stored and
//! an environment may hold secrets; and nothing of the host but a name that its operator gave.

use serde::{Deserialize, Serialize};

use crate::limit::{DraftLimits, Limits};
use crate::mode::{Access, FsMode, NetworkMode, Storage, User};
use crate::model::ModelAccess;
use crate::name::{TemplateName, WorkspaceName};
use crate::net::EgressDraft;
use crate::problem::{Code, Problem};
use crate::reuse::Reuse;
use crate::secret::SecretUse;
use crate::spec::{Draft, Spec};
use crate::table::{joined, only_from_a_table};
use crate::volume::VolumeMount;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct AgentSandbox {
    /// The template that its filesystem starts from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateName>,
    /// A directory of the operator's, copy-on-write at /workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceName>,
    /// How the directory at /workspace is mounted: `scratch`, the default, or `worktree`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<FsMode>,
    /// Where the files are that its programs make.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// The user that programs run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// `none` or `proxied`; `none` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkMode>,
    /// Rules for network mode `proxied`.
    #[serde(skip_serializing_if = "EgressDraft::is_empty")]
    pub egress: EgressDraft,
    /// Secrets that requests get on their way out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// Models of the server that its programs may call, in network mode `proxied`.
    #[serde(skip_serializing_if = "ModelAccess::is_none")]
    pub models: ModelAccess,
    /// Volumes of the project.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// Every limit but `timeout`, which each tool has.
    #[serde(skip_serializing_if = "DraftLimits::is_empty")]
    pub limits: DraftLimits,
    /// Whether runs of the agent go on with the files of earlier ones.
    #[serde(skip_serializing_if = "Reuse::is_never")]
    pub reuse: Reuse,
}

only_from_a_table!(AgentSandbox);

impl AgentSandbox {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The spec of the sandbox, but for its workspace, which only the server can name.
    pub fn draft(&self) -> Draft {
        let Self {
            template,
            workspace: _,
            fs: _,
            storage,
            user,
            network,
            egress,
            secrets,
            models,
            volumes,
            limits,
            reuse: _,
        } = self.clone();
        Draft { template, storage, user, network, egress, secrets, models, volumes, limits, ..Draft::default() }
    }

    /// Refuses what could only fail when the sandbox is made.
    pub fn check(&self) -> Result<(), Problem> {
        self.reuse.check()?;
        if let (Reuse::For(_), Some(name)) = (self.reuse, &self.workspace) {
            return Err(reuse_with_a_directory(&format!("the workspace {name}")));
        }
        if self.limits.timeout.is_some() {
            return Err(Problem::new(
                Code::InvalidValue,
                "sandbox.limits.timeout has no meaning for an agent, whose sandbox lives as long as its run",
                "set `timeout` for a tool, such as tools.shell.timeout, or budget.time for the whole run",
            ));
        }
        if let Some(mode @ (FsMode::ReadOnly | FsMode::WorkspaceWrite)) = self.fs {
            return Err(Problem::new(
                Code::UnsupportedCapability,
                format!("the sandbox of a run can't have its workspace in mode {mode}"),
                "use scratch, or worktree for the top of a git repository",
            ));
        }
        match self.network {
            None | Some(NetworkMode::None | NetworkMode::Proxied) => Spec::resolve(self.draft()).map(drop),
            Some(NetworkMode::Host) => Err(Problem::new(
                Code::UnsupportedCapability,
                "the sandbox of a run can't have the network mode host",
                "use `proxied` with rules for what its programs may reach, or `none`",
            )),
        }
    }

    /// The first thing that this one may use and the other may not, in words. Rules are compared as they are written: one that is
    /// narrower than another must still be written there.
    pub fn beyond(&self, other: &Self) -> Option<String> {
        if self.is_proxied() && !other.is_proxied() {
            return Some("the network mode proxied".to_owned());
        }
        if let Some(rule) = self.egress.allow.iter().find(|rule| !other.egress.allow.contains(rule)) {
            return Some(format!("the rule {:?}", rule.to_string()));
        }
        if let Some(used) = self.secrets.iter().find(|used| !other.uses(used)) {
            return Some(format!("the secret {}", used.name));
        }
        if self.models.clone().within(&other.models) != self.models {
            return Some("a model".to_owned());
        }
        if let Some(volume) = self.volumes.iter().find(|volume| !other.mounts(volume)) {
            return Some(format!("the volume {} ({})", volume.name, volume.mode.as_str()));
        }
        if let Some(name) = self.workspace.as_ref().filter(|name| other.workspace.as_ref() != Some(name)) {
            return Some(format!("the workspace {name}"));
        }
        let limits = self.limits_within(other, Absent::Stays);
        (limits != self.limits).then(|| "a higher limit".to_owned())
    }

    /// What of this one the other may use, too. What the other denies stays denied, and its limits hold.
    pub fn within(self, other: &Self) -> Self {
        let limits = self.limits_within(other, Absent::AtMostTheOther);
        let Self {
            template,
            workspace,
            fs,
            storage,
            user,
            network,
            egress,
            mut secrets,
            mut models,
            mut volumes,
            limits: _,
            reuse,
        } = self.clone();
        let workspace = workspace.filter(|name| other.workspace.as_ref() == Some(name));
        volumes.retain(|volume| other.mounts(volume));
        let (network, egress) = if self.is_proxied() && other.is_proxied() {
            secrets.retain(|used| other.uses(used));
            models = models.within(&other.models);
            let EgressDraft { mut allow, deny, limits } = egress;
            allow.retain(|rule| other.egress.allow.contains(rule));
            let (deny, limits) = (joined(deny, other.egress.deny.clone()), limits.within(&other.egress.limits));
            (network, EgressDraft { allow, deny, limits })
        } else {
            secrets.clear();
            models = ModelAccess::None;
            (None, EgressDraft::default())
        };
        Self { template, workspace, fs, storage, user, network, egress, secrets, models, volumes, limits, reuse }
    }

    /// Its limits, none of them higher than the other's, which may be a default.
    fn limits_within(&self, other: &Self, absent: Absent) -> DraftLimits {
        let default = || Limits::resolve(&DraftLimits::default());
        // Limits that are out of range are refused elsewhere, and then the other allows nothing more than the default.
        let (Ok(most), Ok(default)) = (Limits::resolve(&other.limits).or_else(|_| default()), default()) else {
            return DraftLimits::default();
        };
        let DraftLimits { timeout, memory, cpus, pids, disk, files, output } = self.limits.clone();
        DraftLimits {
            timeout,
            memory: absent.lesser(memory, default.memory.value, most.memory.value),
            cpus: absent.lesser(cpus, default.cpus.value, most.cpus.value),
            pids: absent.lesser(pids, default.pids.value, most.pids.value),
            disk: absent.lesser(disk, default.disk.value, most.disk.value),
            files: absent.lesser(files, default.files.value, most.files.value),
            output: absent.lesser(output, default.output.value, most.output.value),
        }
    }

    fn is_proxied(&self) -> bool {
        self.network == Some(NetworkMode::Proxied)
    }

    /// Whether it uses the same secret. The variable is the program's business.
    fn uses(&self, used: &SecretUse) -> bool {
        self.secrets.iter().any(|own| own.name == used.name)
    }

    /// Whether it has the same volume, and may write it if the other wants to.
    fn mounts(&self, volume: &VolumeMount) -> bool {
        let is_read = volume.mode == Access::ReadOnly;
        self.volumes.iter().any(|own| own.name == volume.name && (is_read || own.mode == volume.mode))
    }
}

/// Refuses files of earlier runs together with a directory of the host.
pub fn reuse_with_a_directory(directory: &str) -> Problem {
    Problem::new(
        Code::Contradiction,
        format!(
            "sandbox.reuse: later runs can't go on with what this one changes in {directory}, because those changes are \
             kept for review, and are in no snapshot"
        ),
        "leave `reuse` out when a directory is mounted, or keep files between runs in a volume (sandbox.volumes)",
    )
}

/// What becomes of a limit that isn't named.
#[derive(Clone, Copy)]
enum Absent {
    Stays,
    /// The default is no way around a lower limit of the other.
    AtMostTheOther,
}

impl Absent {
    fn lesser<T: Ord>(self, named: Option<T>, default: T, most: T) -> Option<T> {
        match (named, self) {
            (Some(named), _) => Some(named.min(most)),
            (None, Self::AtMostTheOther) if default > most => Some(most),
            (None, Self::Stays | Self::AtMostTheOther) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(json: &str) -> AgentSandbox {
        serde_json::from_str(json).unwrap()
    }

    const PARENT: &str = r#"{"network": "proxied", "egress": {"allow": ["a.example", "@pypi"], "deny": ["c.example"]},
        "secrets": [{"name": "api", "env": "KEY"}], "models": ["cheap"],
        "volumes": [{"name": "data", "at": "/data", "mode": "ro"}], "limits": {"pids": 100}}"#;

    #[test]
    fn a_sandbox_may_use_at_most_what_the_other_may() {
        for (json, beyond) in [
            ("{}", None),
            (PARENT, None),
            (r#"{"network": "proxied"}"#, None),
            (r#"{"network": "proxied", "egress": {"allow": ["@pypi"], "deny": ["d.example"]}}"#, None),
            (r#"{"network": "proxied", "secrets": [{"name": "api"}]}"#, None),
            (r#"{"network": "proxied", "egress": {"allow": ["b.example"]}}"#, Some(r#"the rule "b.example""#)),
            (r#"{"template": "own", "user": "root", "limits": {"memory": "512M"}}"#, None),
            (r#"{"volumes": [{"name": "data", "at": "/d", "mode": "ro"}], "limits": {"pids": 99}}"#, None),
            (r#"{"volumes": [{"name": "data", "at": "/d"}]}"#, Some("the volume data (rw)")),
            (r#"{"volumes": [{"name": "more", "at": "/d", "mode": "ro"}]}"#, Some("the volume more (ro)")),
            (r#"{"workspace": "site"}"#, Some("the workspace site")),
            (r#"{"limits": {"pids": 101}}"#, Some("a higher limit")),
            // Higher than the default, which the other has.
            (r#"{"limits": {"memory": "8G"}}"#, Some("a higher limit")),
            // Narrower, and not written there.
            (r#"{"network": "proxied", "egress": {"allow": ["GET a.example"]}}"#, Some(r#"the rule "GET a.example""#)),
            (r#"{"network": "proxied", "secrets": [{"name": "other"}]}"#, Some("the secret other")),
            (r#"{"network": "proxied", "models": ["cheap"]}"#, None),
            (r#"{"network": "proxied", "models": ["cheap", "dear"]}"#, Some("a model")),
            (r#"{"network": "proxied", "models": true}"#, Some("a model")),
        ] {
            assert_eq!(sandbox(json).beyond(&sandbox(PARENT)).as_deref(), beyond, "{json}");
            let within = sandbox(json).within(&sandbox(PARENT));
            assert_eq!(within.beyond(&sandbox(PARENT)), None, "{json}");
        }
        assert_eq!(sandbox(PARENT).beyond(&sandbox("{}")).as_deref(), Some("the network mode proxied"));
        assert_eq!(sandbox(PARENT).within(&sandbox("{}")), sandbox(r#"{"limits": {"pids": 100}}"#));
    }

    #[test]
    fn what_the_other_denies_stays_denied() {
        let child = sandbox(r#"{"network": "proxied", "egress": {"allow": ["a.example"], "deny": ["d.example"]}}"#);
        let within = child.within(&sandbox(PARENT));
        assert_eq!(
            within,
            sandbox(
                r#"{"network": "proxied", "egress": {"allow": ["a.example"], "deny": ["d.example", "c.example"]},
                    "limits": {"pids": 100}}"#
            )
        );
    }

    #[test]
    fn a_limit_that_is_not_named_is_no_way_around_a_lower_one() {
        assert_eq!(sandbox("{}").within(&sandbox(PARENT)), sandbox(r#"{"limits": {"pids": 100}}"#));
        // The default is lower than the other's.
        assert_eq!(sandbox("{}").within(&sandbox(r#"{"limits": {"pids": 100000}}"#)), sandbox("{}"));
    }

    #[test]
    fn contradictions_and_the_network_of_the_host_are_refused() {
        for (json, code) in [
            (r#"{"network": "host"}"#, Code::UnsupportedCapability),
            (r#"{"reuse": true, "workspace": "site"}"#, Code::Contradiction),
            (r#"{"reuse": "0s"}"#, Code::InvalidValue),
            (r#"{"limits": {"timeout": "5m"}}"#, Code::InvalidValue),
            (r#"{"limits": {"memory": "1K"}}"#, Code::InvalidValue),
            (r#"{"egress": {"allow": ["a.example"]}}"#, Code::Contradiction),
            (r#"{"secrets": [{"name": "api"}]}"#, Code::Contradiction),
            (r#"{"network": "proxied", "egress": {"allow": ["@nothing"]}}"#, Code::InvalidValue),
        ] {
            assert_eq!(sandbox(json).check().unwrap_err().code, code, "{json}");
        }
        assert_eq!(sandbox(PARENT).check(), Ok(()));
        assert!(serde_json::from_str::<AgentSandbox>(r#"{"env": {"A": "1"}}"#).is_err());
    }
}
