//! Denials: what the runtime itself refused or cut off. An ordinary `EACCES` from the kernel is not one.

use serde::{Deserialize, Serialize};

use crate::limit::LimitName;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    pub code: DenialCode,
    /// The rule that refused, such as `seccomp/mounts` or `limit/memory`.
    pub rule: String,
    /// What was attempted, and what to do if it should have been allowed.
    pub message: String,
}

/// The kinds of denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenialCode {
    /// The spec was refused before anything started.
    Refused,
    /// A program hit a limit.
    LimitReached,
    /// A program tried a syscall from the named list of telling ones.
    SyscallRefused,
    /// A symbolic link that was made in a git directory was removed.
    LinkRemoved,
    /// What the host's git would act on was taken out of a workspace and kept.
    HeldBack,
    /// Files were marked in git's index so that git shows no edits of them. Nothing was refused.
    EditsHidden,
    /// A program tried to reach a network, and its sandbox has none.
    NetworkRefused,
    /// More syscalls were refused than are kept.
    DenialsDropped,
}

impl Denial {
    /// A limit was hit.
    pub fn limit(name: LimitName, message: impl Into<String>) -> Self {
        Self { code: DenialCode::LimitReached, rule: format!("limit/{}", name.as_str()), message: message.into() }
    }
}
