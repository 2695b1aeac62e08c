//! The states of an exec, and its result in its machine-readable form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeMap};

use crate::canonical::PolicyHash;
use crate::denial::Denial;
use crate::id::{ExecId, SandboxId};
use crate::mode::{FsMode, NetworkMode, Tier, choice};
use crate::net::HostTraffic;
use crate::problem::Problem;

pub const EXEC_SCHEMA: &str = "saggar.exec/v1";

#[derive(Clone, Debug, Serialize)]
pub struct ExecResult {
    pub schema: &'static str,
    pub exec_id: ExecId,
    pub sandbox_id: SandboxId,
    pub status: ExecStatus,
    /// Set if the program exited.
    pub exit_code: Option<u8>,
    /// The signal's number, if a signal ended the program.
    pub signal: Option<u8>,
    #[serde(flatten)]
    pub output: Output,
    /// Wall-clock time from the start of set-up until the last process was gone.
    pub elapsed_ms: u64,
    pub usage: Usage,
    pub tier: Tier,
    pub fs: FsMode,
    /// The network mode, and whether anything managed it.
    #[serde(flatten)]
    pub network: NetworkReport,
    /// Default limits that this host can't enforce.
    pub unenforced: Vec<String>,
    /// Hash of the policy it ran under; absent if the spec was refused before there was one.
    pub policy_hash: Option<PolicyHash>,
    /// Actions that the runtime refused or cut off.
    pub denials: Vec<Denial>,
    /// Number of changes of a scratch workspace kept under the sandbox's id; `null` without such a workspace.
    pub changes_kept: Option<u64>,
    /// What it exchanged through a proxied network, by host and port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<HostTraffic>,
    /// Set unless the end was an ordinary one.
    pub error: Option<Problem>,
}

choice!(
    /// How an exec ended.
    ExecStatus {
        /// It exited by itself, with an exit code.
        Exited = "exited",
        /// A signal ended it.
        Signaled = "signaled",
        /// Saggar ended it at its deadline.
        TimedOut = "timed_out",
        /// Saggar ended it because the user cancelled it.
        Cancelled = "cancelled",
        /// The kernel ended it when its memory ran out.
        OutOfMemory = "out_of_memory",
        /// Not started: the spec asks for something unsupported or forbidden.
        Refused = "refused",
        /// Not started: creating the sandbox failed.
        SetupFailed = "setup_failed",
    }
);

/// The state of an exec. As text it is one word: `running`, `lost`, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecState {
    Running,
    Ended(ExecStatus),
    /// It was lost with its sandbox, and how it ended is not known.
    Lost,
}

impl ExecState {
    /// Every state, in the order people are shown them.
    pub fn all() -> impl Iterator<Item = Self> {
        let ended = ExecStatus::ALL.iter().copied().map(Self::Ended);
        std::iter::once(Self::Running).chain(ended).chain(std::iter::once(Self::Lost))
    }

    /// Whether there is nothing more to come.
    pub fn is_ended(self) -> bool {
        match self {
            Self::Running => false,
            Self::Ended(_) | Self::Lost => true,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ended(status) => status.as_str(),
            Self::Lost => "lost",
        }
    }

    /// Reads a name back.
    pub fn parse(text: &str) -> Option<Self> {
        Self::all().find(|state| state.as_str() == text)
    }
}

/// `None` is what a supervisor says of an exec that has not ended.
impl From<Option<ExecStatus>> for ExecState {
    fn from(status: Option<ExecStatus>) -> Self {
        status.map_or(Self::Running, Self::Ended)
    }
}

impl Serialize for ExecState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ExecState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom(format!("{text:?} is not a state of an exec")))
    }
}

/// Captured output of both streams.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// At most as many bytes as the output limit.
    pub stdout: Vec<u8>,
    /// At most as many bytes as the output limit.
    pub stderr: Vec<u8>,
    /// Number of bytes past the limit.
    pub stdout_dropped: u64,
    /// Number of bytes past the limit.
    pub stderr_dropped: u64,
}

/// Text if it is valid UTF-8, otherwise base64: never a lossy conversion.
impl Serialize for Output {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, name_base64, bytes) in
            [("stdout", "stdout_base64", &self.stdout), ("stderr", "stderr_base64", &self.stderr)]
        {
            match std::str::from_utf8(bytes) {
                Ok(text) => map.serialize_entry(name, text)?,
                Err(_) => map.serialize_entry(name_base64, &STANDARD.encode(bytes))?,
            }
        }
        map.serialize_entry("stdout_truncated", &(self.stdout_dropped > 0))?;
        map.serialize_entry("stderr_truncated", &(self.stderr_dropped > 0))?;
        map.serialize_entry("stdout_dropped_bytes", &self.stdout_dropped)?;
        map.serialize_entry("stderr_dropped_bytes", &self.stderr_dropped)?;
        map.end()
    }
}

/// Resources an exec used; `null` where this host can't measure one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of the whole process tree.
    pub cpu_ms: Option<u64>,
    /// Peak memory of the whole process tree.
    pub memory_peak_bytes: Option<u64>,
    /// Peak number of processes and threads, including the agent (PID 1).
    pub processes_peak: Option<u64>,
}

/// The network mode as results and events report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkReport {
    #[serde(rename = "network")]
    pub mode: NetworkMode,
    /// False for `host`, where nothing controls the program's network access.
    #[serde(rename = "network_managed")]
    pub managed: bool,
}

impl From<NetworkMode> for NetworkReport {
    fn from(mode: NetworkMode) -> Self {
        let managed = match mode {
            NetworkMode::None | NetworkMode::Proxied => true,
            NetworkMode::Host => false,
        };
        Self { mode, managed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_is_not_text_is_base64() {
        let output = Output { stdout: vec![0xff], stderr: b"ok".to_vec(), stdout_dropped: 3, stderr_dropped: 0 };
        let json = serde_json::to_value(&output).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"stdout_base64": "/w==", "stderr": "ok", "stdout_truncated": true, "stderr_truncated": false, "stdout_dropped_bytes": 3, "stderr_dropped_bytes": 0})
        );
    }
}
