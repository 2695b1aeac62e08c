//! Problems: what went wrong, with which object, and what to do next, with a stable code for programs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An error as users and programs see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Problem {
    /// Stable; never reused with another meaning.
    pub code: Code,
    /// What happened, to which object. Contains no host path of Saggar and no secret.
    pub message: String,
    /// What to do next.
    pub help: String,
}

impl Problem {
    pub fn new(code: Code, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code, message: message.into(), help: help.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A value that can't be parsed or is out of range.
    InvalidValue,
    /// Two values that contradict each other.
    Contradiction,
    /// The same setting given twice with different values.
    AmbiguousMerge,
    /// The spec file can't be read or is malformed.
    InvalidSpec,
    /// The workspace is missing, a link, the root directory, or not a directory.
    InvalidWorkspace,
    /// A mount's source or target can't be used.
    InvalidMount,
    /// A protected path can't be protected.
    InvalidProtect,
    /// The stdin file can't be used.
    InvalidStdin,
    /// The host, or this version, doesn't support what was requested.
    UnsupportedCapability,
    /// A limit that was requested, or that `--strict` requires, can't be enforced here.
    UnenforcedLimit,
    /// The kernel refused a step of creating the sandbox.
    SetupFailed,
    /// The program doesn't exist.
    ProgramNotFound,
    /// The program exists and can't be run.
    ProgramNotExecutable,
    /// The working directory doesn't exist or can't be entered.
    InvalidCwd,
    /// The agent inside the sandbox died or broke the protocol.
    GuestLost,
    /// An image to import is malformed, hostile, too large or not what was promised.
    InvalidImage,
    /// A step of a build failed.
    BuildFailed,
    /// The data directory can't be used.
    DataDirectory,
    /// The changes of a scratch workspace could not be kept.
    ChangesLost,
    /// Reading or writing one of the streams failed.
    Stream,
    /// The sandbox has no such exec.
    NoSuchExec,
    /// The sandbox is paused, and the operation needs it to run.
    SandboxPaused,
    /// The sandbox is ending or has ended.
    SandboxEnded,
    /// The maximum number already exists.
    TooMany,
    /// The project has no such volume.
    NoSuchVolume,
    /// The volume is used by a sandbox, and can't be used by another or removed.
    VolumeInUse,
    /// The project has a volume of this name.
    VolumeExists,
    /// The other side of a protocol is too old for the request.
    UnsupportedProtocol,
    /// An internal error. Unknown codes of newer versions also become this one.
    #[serde(other)]
    Internal,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidValue => "invalid_value",
            Self::Contradiction => "contradiction",
            Self::AmbiguousMerge => "ambiguous_merge",
            Self::InvalidSpec => "invalid_spec",
            Self::InvalidWorkspace => "invalid_workspace",
            Self::InvalidMount => "invalid_mount",
            Self::InvalidProtect => "invalid_protect",
            Self::InvalidStdin => "invalid_stdin",
            Self::UnsupportedCapability => "unsupported_capability",
            Self::UnenforcedLimit => "unenforced_limit",
            Self::SetupFailed => "setup_failed",
            Self::ProgramNotFound => "program_not_found",
            Self::ProgramNotExecutable => "program_not_executable",
            Self::InvalidCwd => "invalid_cwd",
            Self::GuestLost => "guest_lost",
            Self::InvalidImage => "invalid_image",
            Self::BuildFailed => "build_failed",
            Self::DataDirectory => "data_directory",
            Self::ChangesLost => "changes_lost",
            Self::Stream => "stream",
            Self::NoSuchExec => "no_such_exec",
            Self::SandboxPaused => "sandbox_paused",
            Self::SandboxEnded => "sandbox_ended",
            Self::TooMany => "too_many",
            Self::NoSuchVolume => "no_such_volume",
            Self::VolumeInUse => "volume_in_use",
            Self::VolumeExists => "volume_exists",
            Self::UnsupportedProtocol => "unsupported_protocol",
            Self::Internal => "internal",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_reads_the_same_in_json_and_in_text() {
        for code in [Code::InvalidValue, Code::UnenforcedLimit, Code::GuestLost, Code::ProgramNotFound] {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
