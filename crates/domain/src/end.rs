//! What ended a sandbox.

use serde::{Deserialize, Serialize};

/// Why a sandbox is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Somebody asked for it.
    Killed,
    /// Its time was up.
    TimedOut,
    /// Nobody had used it for as long as it may be idle.
    Idle,
    /// Memory was used up and the kernel chose its first process.
    OutOfMemory,
    /// The agent inside went away or broke the protocol.
    AgentLost,
    /// The process that held it died, and it with that.
    SupervisorLost,
    /// The host was restarted, and nothing of a sandbox outlives that.
    HostRebooted,
    /// It could not be made.
    StartFailed,
    /// It was made ahead for somebody who never came.
    Unclaimed,
    /// A reason that is newer than its reader.
    #[serde(other)]
    Unknown,
}

impl EndReason {
    pub const ALL: &[Self] = &[
        Self::Killed,
        Self::TimedOut,
        Self::Idle,
        Self::OutOfMemory,
        Self::AgentLost,
        Self::SupervisorLost,
        Self::HostRebooted,
        Self::StartFailed,
        Self::Unclaimed,
        Self::Unknown,
    ];

    /// The name, as programs see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::TimedOut => "timed_out",
            Self::Idle => "idle",
            Self::OutOfMemory => "out_of_memory",
            Self::AgentLost => "agent_lost",
            Self::SupervisorLost => "supervisor_lost",
            Self::HostRebooted => "host_rebooted",
            Self::StartFailed => "start_failed",
            Self::Unclaimed => "unclaimed",
            Self::Unknown => "unknown",
        }
    }

    /// Reads a name back; one that is not known is [`EndReason::Unknown`].
    pub fn parse(text: &str) -> Self {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == text).unwrap_or(Self::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_the_same_in_json_and_in_text() {
        for reason in EndReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
            assert_eq!(EndReason::parse(reason.as_str()), *reason);
        }
        assert_eq!(serde_json::from_str::<EndReason>("\"from_the_future\"").unwrap(), EndReason::Unknown);
    }
}
