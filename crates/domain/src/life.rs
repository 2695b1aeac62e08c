//! The states of sandboxes and runs.
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
    SandboxState {
        /// Requested and acknowledged; not yet usable.
        Creating = "creating",
        Running = "running",
        /// Frozen: it keeps its memory and gets no CPU, and no deadline runs.
        Paused = "paused",
        /// It is being ended.
        Ending = "ending",
        /// Ended, with all its resources removed.
        Ended = "ended",
    }
);

impl SandboxState {
    /// Whether it has, or may have, resources on a host.
    pub fn is_live(self) -> bool {
        match self {
            Self::Creating | Self::Running | Self::Paused | Self::Ending => true,
            Self::Ended => false,
        }
    }
}

choice!(
    /// What happens to a sandbox at its deadline.
    #[derive(Default)]
    DeadlineAction {
        #[default]
        Kill = "kill",
        /// It is frozen until a user resumes or ends it.
        Pause = "pause",
        /// The same without its memory: its files are kept, and its processes ended.
        Rest = "rest",
    }
);

impl DeadlineAction {
    /// What its supervisor does: keeping files is for whoever has a store, once it is frozen.
    pub fn of_supervisor(self) -> Self {
        match self {
            Self::Kill => Self::Kill,
            Self::Pause | Self::Rest => Self::Pause,
        }
    }
}

choice!(
    RunState {
        /// No worker has claimed it yet.
        Queued = "queued",
        /// An effect is in progress.
        Running = "running",
        /// It waits for a timer, or for a child run.
        Waiting = "waiting",
        /// It waits for a person's answer.
        Asking = "asking",
        /// It waits for a person's decision about a step with an unknown outcome.
        Parked = "parked",
        Paused = "paused",
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
