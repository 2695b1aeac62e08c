//! Permits: the proof that an action is authorised.
//!
//! A permit is created in one place, from a subject and an action, and every operation that acts takes one. So
//! nothing acts without authorisation, and the decision (today: a key of the right project) can be replaced here
//! without changes elsewhere. A permit covers one action on one object of one project.
//!
//! INVARIANT: only this module creates permits.

use saggar_domain::{KeyId, ProjectId, RunId, SandboxId};

use crate::fault::Fault;

/// An action that needs a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    CreateSandbox,
    ListSandboxes,
    /// Read one, its metrics and its events.
    ReadSandbox(SandboxId),
    /// Change its lifetime, pause and resume it.
    ChangeSandbox(SandboxId),
    KillSandbox(SandboxId),
    /// Run programs in it, feed and signal them.
    Exec(SandboxId),
    ReadFiles(SandboxId),
    WriteFiles(SandboxId),
    UsePort(SandboxId, u16),
    /// Create, list and remove the project's objects of a kind.
    Manage(Kind),
    StartRun,
    ListRuns,
    /// Read one, its journal and what is derived from it.
    ReadRun(RunId),
    /// Send it a message; pause, resume, cancel, decide.
    TellRun(RunId),
    /// Start a new run from its history.
    ForkRun(RunId),
    /// Remove it; it must be over.
    RemoveRun(RunId),
}

/// A kind of object that a project has and manages as a whole, such as its keys. Runs may not manage them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(&'static str);

impl Kind {
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }
}

impl Action {
    pub fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::CreateSandbox
            | Self::ListSandboxes
            | Self::Manage(_)
            | Self::StartRun
            | Self::ListRuns
            | Self::ReadRun(_)
            | Self::TellRun(_)
            | Self::ForkRun(_)
            | Self::RemoveRun(_) => None,
            Self::ReadSandbox(id)
            | Self::ChangeSandbox(id)
            | Self::KillSandbox(id)
            | Self::Exec(id)
            | Self::ReadFiles(id)
            | Self::WriteFiles(id)
            | Self::UsePort(id, _) => Some(id),
        }
    }

    pub fn run(&self) -> Option<&RunId> {
        match self {
            Self::ReadRun(id) | Self::TellRun(id) | Self::ForkRun(id) | Self::RemoveRun(id) => Some(id),
            Self::CreateSandbox
            | Self::ListSandboxes
            | Self::ReadSandbox(_)
            | Self::ChangeSandbox(_)
            | Self::KillSandbox(_)
            | Self::Exec(_)
            | Self::ReadFiles(_)
            | Self::WriteFiles(_)
            | Self::UsePort(_, _)
            | Self::Manage(_)
            | Self::StartRun
            | Self::ListRuns => None,
        }
    }

    /// Whether a run may do it on its own behalf: everything with sandboxes, nothing with runs or keys.
    fn is_for_runs(&self) -> bool {
        match self {
            Self::CreateSandbox
            | Self::ReadSandbox(_)
            | Self::ChangeSandbox(_)
            | Self::KillSandbox(_)
            | Self::Exec(_)
            | Self::ReadFiles(_)
            | Self::WriteFiles(_) => true,
            Self::ListSandboxes
            | Self::UsePort(_, _)
            | Self::Manage(_)
            | Self::StartRun
            | Self::ListRuns
            | Self::ReadRun(_)
            | Self::TellRun(_)
            | Self::ForkRun(_)
            | Self::RemoveRun(_) => false,
        }
    }
}

/// The authenticated subject of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The holder of a key.
    Key { key: KeyId, project: ProjectId },
    /// Any client, if the operator has disabled keys.
    Anybody {
        /// The project they act on.
        project: ProjectId,
    },
    /// A run, represented by its worker: for the run's sandbox.
    Run { run: RunId, project: ProjectId },
    /// The holder of a sandbox's access token, or of a signed URL: allowed exactly this action.
    Bearer {
        /// The sandbox's project.
        project: ProjectId,
        /// The allowed action.
        action: Action,
    },
}

/// The proof that an action is authorised.
#[derive(Clone, Debug)]
pub struct Permit {
    project: ProjectId,
    action: Action,
}

impl Permit {
    /// Decides. A key may do everything in its project and nothing elsewhere. Whether a sandbox belongs to the
    /// project is checked by the lookup, so that another project's sandbox and a missing one give the same response.
    pub fn decide(subject: &Subject, action: Action) -> Result<Self, Fault> {
        match subject {
            Subject::Key { project, .. } | Subject::Anybody { project } => {
                Ok(Self { project: project.clone(), action })
            }
            Subject::Bearer { project, action: granted } if *granted == action => {
                Ok(Self { project: project.clone(), action })
            }
            Subject::Run { project, .. } if action.is_for_runs() => Ok(Self { project: project.clone(), action }),
            Subject::Run { .. } | Subject::Bearer { .. } => Err(Fault::WrongPermit),
        }
    }

    pub fn project(&self) -> &ProjectId {
        &self.project
    }

    pub fn action(&self) -> &Action {
        &self.action
    }

    /// Fails unless the permit is for this action.
    pub(crate) fn check(&self, is_right: impl FnOnce(&Action) -> bool) -> Result<(), Fault> {
        if is_right(&self.action) { Ok(()) } else { Err(Fault::WrongPermit) }
    }

    pub(crate) fn run(&self) -> Result<&RunId, Fault> {
        self.action.run().ok_or(Fault::WrongPermit)
    }

    pub(crate) fn sandbox(&self) -> Result<&SandboxId, Fault> {
        self.action.sandbox().ok_or(Fault::WrongPermit)
    }
}
