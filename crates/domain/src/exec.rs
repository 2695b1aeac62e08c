//! The life of an exec and its result, as programs read it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeMap};

use crate::canonical::PolicyHash;
use crate::denial::Denial;
use crate::id::{ExecId, SandboxId};
use crate::mode::{FsMode, NetworkMode, Tier, choice};
use crate::problem::Problem;

/// The schema of [`ExecResult`].
pub const EXEC_SCHEMA: &str = "saggar.exec/v1";

/// Everything there is to say of one exec.
#[derive(Clone, Debug, Serialize)]
pub struct ExecResult {
    /// [`EXEC_SCHEMA`].
    pub schema: &'static str,
    pub exec_id: ExecId,
    /// The sandbox it ran in.
    pub sandbox_id: SandboxId,
    /// How it ended.
    pub status: ExecStatus,
    /// The program's exit code, when it exited.
    pub exit_code: Option<u8>,
    /// The signal's number, when one ended it.
    pub signal: Option<u8>,
    /// What it printed.
    #[serde(flatten)]
    pub output: Output,
    /// Wall-clock time from start of set-up to the last process gone.
    pub elapsed_ms: u64,
    /// What it used.
    pub usage: Usage,
    /// The isolation primitive.
    pub tier: Tier,
    /// The filesystem mode.
    pub fs: FsMode,
    /// The network mode, and whether anything managed it.
    #[serde(flatten)]
    pub network: NetworkReport,
    /// Limits that stand in the spec by default and are not enforced on this host.
    pub unenforced: Vec<String>,
    /// The boundary it ran under; absent when the spec was refused before there was one.
    pub policy_hash: Option<PolicyHash>,
    /// What the runtime refused or cut off.
    pub denials: Vec<Denial>,
    /// How many changes of a scratch workspace are kept under the sandbox's id; `null` where there was no such workspace.
    pub changes_kept: Option<u64>,
    /// Why it isn't an ordinary end.
    pub error: Option<Problem>,
}

choice!(
    /// How an exec ended.
    ExecStatus {
        /// By itself, with an exit code.
        Exited = "exited",
        /// By a signal.
        Signaled = "signaled",
        /// By us, when its time was up.
        TimedOut = "timed_out",
        /// By us, when the user asked.
        Cancelled = "cancelled",
        /// By the kernel, when its memory was used up.
        OutOfMemory = "out_of_memory",
        /// Not started: the spec asks for what can't or may not be.
        Refused = "refused",
        /// Not started: making the sandbox failed.
        SetupFailed = "setup_failed",
    }
);

/// Where in its life an exec is. As text it is one word: `running`, `lost`, or how it ended.
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

/// Kept output of both streams.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Bytes of stdout, up to the limit.
    pub stdout: Vec<u8>,
    /// Bytes of stderr, up to the limit.
    pub stderr: Vec<u8>,
    /// Bytes of stdout past the limit.
    pub stdout_dropped: u64,
    /// Bytes of stderr past the limit.
    pub stderr_dropped: u64,
}

/// Text where it is UTF-8, base64 where it isn't: never a lossy conversion.
impl Serialize for Output {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, name_base64, bytes) in
            [("stdout", "stdout_base64", &self.stdout), ("stderr", "stderr_base64", &self.stderr)]
        {
            match std::str::from_utf8(bytes) {
                Ok(text) => map.serialize_entry(name, text)?,
                Err(_) => map.serialize_entry(name_base64, &base64(bytes))?,
            }
        }
        map.serialize_entry("stdout_truncated", &(self.stdout_dropped > 0))?;
        map.serialize_entry("stderr_truncated", &(self.stderr_dropped > 0))?;
        map.serialize_entry("stdout_dropped_bytes", &self.stdout_dropped)?;
        map.serialize_entry("stderr_dropped_bytes", &self.stderr_dropped)?;
        map.end()
    }
}

/// What an exec used; `null` where this host can't tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of the whole tree.
    pub cpu_ms: Option<u64>,
    /// Most memory at once, of the whole tree.
    pub memory_peak_bytes: Option<u64>,
    /// Most processes and threads at once, the agent that is PID 1 included.
    pub processes_peak: Option<u64>,
}

/// The network mode as results and events tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkReport {
    #[serde(rename = "network")]
    pub mode: NetworkMode,
    /// False for `host`: nothing stands between the program and the network.
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

/// RFC 4648, with padding.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let sextet = (word >> (18 - 6 * position)) & 63;
            text.push(if position <= chunk.len() { ALPHABET[sextet as usize] as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_the_standard_says() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe\xfd\xfc", "//79/A==")]
        {
            assert_eq!(base64(bytes), text);
        }
    }

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
