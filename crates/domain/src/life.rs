//! The life of a sandbox and of a run: the states they go through.
//!
//! ```text
//!   creating ──▶ running ◀──▶ paused
//!      │            │           │
//!      └────────────┴───────────┴──▶ ending ──▶ ended   (by an EndReason; nothing comes after)
//! ```
//! A row is never `ending`: until a sandbox has ended, its row says what it was before. A supervisor is never asked while its sandbox is
//! `creating`, and is gone when it has `ended`.

use serde::{Deserialize, Serialize};

use crate::mode::choice;

choice!(
    /// Where in its life a sandbox is.
    SandboxState {
        /// Asked for and acknowledged; not yet usable.
        Creating = "creating",
        Running = "running",
        /// Frozen: it has its memory and no CPU, and no deadline counts.
        Paused = "paused",
        /// It is being ended.
        Ending = "ending",
        /// Over, with everything it had removed.
        Ended = "ended",
    }
);

impl SandboxState {
    /// Whether something of it exists on a host, or may.
    pub fn is_live(self) -> bool {
        match self {
            Self::Creating | Self::Running | Self::Paused | Self::Ending => true,
            Self::Ended => false,
        }
    }
}

choice!(
    /// What happens to a sandbox when its time is up.
    DeadlineAction {
        Kill = "kill",
        /// It is frozen until somebody resumes or ends it.
        Pause = "pause",
    }
);

impl Default for DeadlineAction {
    fn default() -> Self {
        Self::Kill
    }
}

choice!(
    /// What a run does.
    RunState {
        /// Nobody has held it yet.
        Queued = "queued",
        /// An effect is under way.
        Running = "running",
        /// It waits for a time, or for a run that it started.
        Waiting = "waiting",
        /// It waits for a person's answer.
        Asking = "asking",
        /// It waits for a person's decision about a step that nobody knows of.
        Parked = "parked",
        /// It was paused.
        Paused = "paused",
        /// It is over.
        Finished = "finished",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_the_same_in_json_and_in_text() {
        for state in SandboxState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
            assert_eq!(SandboxState::parse(state.as_str()), Some(*state));
        }
    }
}
