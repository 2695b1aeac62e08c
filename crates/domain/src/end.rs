//! Why a sandbox ended.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// A user ended it.
    Killed,
    /// It reached its deadline.
    TimedOut,
    /// It was unused for its whole idle time.
    Idle,
    /// Memory ran out and the kernel killed its PID 1.
    OutOfMemory,
    /// The agent inside died or broke the protocol.
    AgentLost,
    /// Its supervisor died, which ends the sandbox too.
    SupervisorLost,
    /// The host was restarted; sandboxes don't survive that.
    HostRebooted,
    /// It could not be created.
    StartFailed,
    /// It was created ahead for the pool and never used.
    Unclaimed,
    /// A reason that this version doesn't know.
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

    /// Unknown names become [`EndReason::Unknown`].
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
