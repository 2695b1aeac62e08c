//! Permits: the proof that somebody may do something.
//!
//! A permit is made in one place, from who asks and what is asked, and everything that acts takes one. So there is no
//! acting without asking, and whoever decides (today: a key of the right project) can be replaced here without a change
//! anywhere else. A permit is for one action on one object of one project.
//!
//! INVARIANT: only this module makes permits.

use saggar_domain::{KeyId, ProjectId, RunId, SandboxId};

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
    KillSandbox(SandboxId),
    /// Run programs in it, feed and signal them.
    Exec(SandboxId),
    /// See its files.
    ReadFiles(SandboxId),
    /// Change its files.
    WriteFiles(SandboxId),
    /// Reach a port of it.
    UsePort(SandboxId, u16),
    /// Make, list and remove the project's objects of a kind.
    Manage(Kind),
    /// Begin a run.
    StartRun,
    /// See which runs there are.
    ListRuns,
    /// See one, its journal and what follows from it.
    ReadRun(RunId),
    /// Tell it something: say, pause, resume, cancel, decide.
    TellRun(RunId),
    /// Begin another from its past.
    ForkRun(RunId),
    /// Remove it, once it is over.
    RemoveRun(RunId),
}

/// A kind of object that a project has and manages as a whole, such as its keys. Runs may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(&'static str);

impl Kind {
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }
}

impl Action {
    /// The sandbox it is about.
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

    /// The run it is about.
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

/// Who asks, as far as has been shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The holder of a key.
    Key {
        key: KeyId,
        /// Of which project.
        project: ProjectId,
    },
    /// Whoever asks, where the operator wants no keys.
    Anybody {
        /// Whose objects they act on.
        project: ProjectId,
    },
    /// A run, by the worker that holds it: for the sandbox it works in.
    Run {
        run: RunId,
        /// Whose it is.
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
            Subject::Run { project, .. } if action.is_for_runs() => Ok(Self { project: project.clone(), action }),
            Subject::Run { .. } | Subject::Bearer { .. } => Err(Fault::WrongPermit),
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

    /// The run it is for.
    pub(crate) fn run(&self) -> Result<&RunId, Fault> {
        self.action.run().ok_or(Fault::WrongPermit)
    }

    /// The sandbox it is for.
    pub(crate) fn sandbox(&self) -> Result<&SandboxId, Fault> {
        self.action.sandbox().ok_or(Fault::WrongPermit)
    }
}
