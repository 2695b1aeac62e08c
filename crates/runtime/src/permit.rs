//! Permits: the proof that somebody may do something.
//!
//! A permit is made in one place, from who asks and what is asked, and everything that acts takes one. So there is no
//! acting without asking, and whoever decides (today: a key of the right project) can be replaced here without a change
//! anywhere else. A permit is for one action on one object of one project.
//!
//! INVARIANT: only this module makes permits.

use saggar_domain::{KeyId, ProjectId, SandboxId};

use crate::fault::Fault;

/// What somebody wants to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a sandbox.
    CreateSandbox,
    /// See which sandboxes there are.
    ListSandboxes,
    /// See one, its metrics and its events.
    ReadSandbox(SandboxId),
    /// Change how long it lives, pause and resume it.
    ChangeSandbox(SandboxId),
    /// End it.
    KillSandbox(SandboxId),
    /// Run programs in it, feed and signal them.
    Exec(SandboxId),
    /// See its files.
    ReadFiles(SandboxId),
    /// Change its files.
    WriteFiles(SandboxId),
    /// Reach a port of it.
    UsePort(SandboxId, u16),
    /// Make, list and revoke keys.
    ManageKeys,
}

impl Action {
    /// The sandbox it is about.
    pub fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::CreateSandbox | Self::ListSandboxes | Self::ManageKeys => None,
            Self::ReadSandbox(id)
            | Self::ChangeSandbox(id)
            | Self::KillSandbox(id)
            | Self::Exec(id)
            | Self::ReadFiles(id)
            | Self::WriteFiles(id)
            | Self::UsePort(id, _) => Some(id),
        }
    }
}

/// Who asks, as far as has been shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The holder of a key.
    Key {
        /// Which.
        key: KeyId,
        /// Of which project.
        project: ProjectId,
    },
    /// Whoever asks, where the operator wants no keys.
    Anybody {
        /// Whose objects they act on.
        project: ProjectId,
    },
    /// The holder of a sandbox's access token, or of a signed address: may do just what that says.
    Bearer {
        /// The project the sandbox belongs to.
        project: ProjectId,
        /// What the token is for.
        action: Action,
    },
}

/// The proof that somebody may do something.
#[derive(Clone, Debug)]
pub struct Permit {
    project: ProjectId,
    action: Action,
}

impl Permit {
    /// Decides. Every key may do everything in its project and nothing elsewhere; whether a sandbox is the project's is seen when it is
    /// looked up, so that one that is another's and one that doesn't exist give the same answer.
    pub fn decide(subject: &Subject, action: Action) -> Result<Self, Fault> {
        match subject {
            Subject::Key { project, .. } | Subject::Anybody { project } => {
                Ok(Self { project: project.clone(), action })
            }
            Subject::Bearer { project, action: granted } if *granted == action => {
                Ok(Self { project: project.clone(), action })
            }
            Subject::Bearer { .. } => Err(Fault::WrongPermit),
        }
    }

    /// Whose objects it is for.
    pub fn project(&self) -> &ProjectId {
        &self.project
    }

    /// What it is for.
    pub fn action(&self) -> &Action {
        &self.action
    }

    /// Refuses unless it is for this.
    pub(crate) fn check(&self, is_right: impl FnOnce(&Action) -> bool) -> Result<(), Fault> {
        if is_right(&self.action) { Ok(()) } else { Err(Fault::WrongPermit) }
    }

    /// The sandbox it is for.
    pub(crate) fn sandbox(&self) -> Result<&SandboxId, Fault> {
        self.action.sandbox().ok_or(Fault::WrongPermit)
    }
}
