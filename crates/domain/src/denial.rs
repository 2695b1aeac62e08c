//! Denials: actions that the runtime itself refused or cut off. An ordinary `EACCES` from the kernel is not one.

use serde::{Deserialize, Serialize};

use crate::limit::LimitName;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    pub code: DenialCode,
    /// The rule that refused, such as `seccomp/mounts` or `limit/memory`.
    pub rule: String,
    /// The attempt, and what to do if it should have been allowed.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenialCode {
    /// The spec was refused before anything started.
    Refused,
    /// A program hit a limit.
    LimitReached,
    /// A program tried a system call from the list of suspicious ones.
    SyscallRefused,
    /// A symbolic link created in a git directory was removed.
    LinkRemoved,
    /// Files that the host's git would act on were taken out of a workspace and kept.
    HeldBack,
    /// Files were marked in git's index so that git hides their edits. Nothing was refused.
    EditsHidden,
    /// A program tried to use the network in a sandbox without one.
    NetworkRefused,
    /// More denials occurred than are kept.
    DenialsDropped,
}

impl Denial {
    pub fn limit(name: LimitName, message: impl Into<String>) -> Self {
        Self { code: DenialCode::LimitReached, rule: format!("limit/{}", name.as_str()), message: message.into() }
    }
}
