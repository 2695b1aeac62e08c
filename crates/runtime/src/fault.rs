//! Faults: why something was not done, for whoever answers for us.
//!
//! A fault says what happened to which object and what to do next. It holds no path of the host and no secret.

use std::time::Duration;

use saggar_domain::{Code, EndReason, ExecId, Problem, RunId, SandboxId};

use crate::supervisor::ControlError;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// There is none, or it is another's: the two can't be told apart.
    #[error("there is no {what} {id:?}")]
    NotFound {
        /// What kind of thing.
        what: &'static str,
        /// Its name, as asked for.
        id: String,
    },
    /// The sandbox has ended.
    #[error("sandbox {id} has ended")]
    Ended {
        id: SandboxId,
        /// Why, where it is known already.
        reason: Option<EndReason>,
    },
    /// The sandbox is paused, and doesn't resume by itself.
    #[error("sandbox {id} is paused")]
    Paused { id: SandboxId },
    /// The same key came with another request.
    #[error("the idempotency key was used for another request")]
    IdempotencyMismatch,
    /// What the key was used for is still being done.
    #[error("the request with this idempotency key is still being carried out")]
    InProgress,
    /// There is room for no more.
    #[error("{what}")]
    Capacity {
        what: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Something that everybody needs is taken for the moment: nothing was done.
    #[error("{what}")]
    Busy {
        what: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// What was asked for can't or may not be.
    #[error("{0}")]
    Refused(Problem),
    /// Something about a file.
    #[error("{}", .0.message())]
    File(FileFault),
    /// Nothing listens there.
    #[error("nothing listens on port {port} of sandbox {id}")]
    PortClosed { id: SandboxId, port: u16 },
    /// It isn't in a state for that.
    #[error("{what}")]
    Conflict {
        /// What is the case.
        what: String,
        /// What to do next.
        help: String,
    },
    /// The run's stored data was altered.
    #[error("run {run} is damaged: {what}")]
    RunDamaged { run: RunId, what: String },
    /// The permit is for something else: a mistake of ours.
    #[error("a permit for something else was shown")]
    WrongPermit,
    /// The store has no room, or takes no writes: nothing was done.
    #[error("{what}")]
    StoreUnwritable {
        /// Which of the two.
        what: String,
        /// What to do next.
        help: &'static str,
    },
    /// Something broke on our side.
    #[error("{what}")]
    Internal {
        what: String,
        /// Why, for the log.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl Fault {
    /// Something broke on our side.
    pub(crate) fn internal(what: &str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Internal { what: what.to_owned(), source: Some(Box::new(source)) }
    }

    /// There is no such sandbox.
    pub fn no_sandbox(id: impl ToString) -> Self {
        Self::NotFound { what: "sandbox", id: id.to_string() }
    }

    /// There is no such run.
    pub fn no_run(id: impl ToString) -> Self {
        Self::NotFound { what: "run", id: id.to_string() }
    }

    /// A store error met while reading a run: corruption is the run's damage.
    pub(crate) fn of_run(run: &RunId, error: saggar_store::Error) -> Self {
        match error {
            saggar_store::Error::Corrupt { what } => Self::RunDamaged { run: run.clone(), what },
            other => other.into(),
        }
    }

    /// There is no such exec.
    pub(crate) fn no_exec(id: &ExecId) -> Self {
        Self::NotFound { what: "exec", id: id.to_string() }
    }

    /// What a supervisor's unwillingness means for whoever asked.
    pub(crate) fn from_control(error: ControlError, id: &SandboxId) -> Self {
        match error {
            ControlError::Gone(_) => Self::Ended { id: id.clone(), reason: None },
            ControlError::Refused(problem) => match problem.code {
                Code::SandboxEnded => Self::Ended { id: id.clone(), reason: None },
                Code::SandboxPaused => Self::Paused { id: id.clone() },
                Code::NoSuchExec => Self::NotFound { what: "exec", id: problem.message },
                Code::TooMany => Self::Capacity { what: problem.message, retry_after: Duration::from_secs(1) },
                _ => Self::Refused(problem),
            },
            ControlError::Timeout | ControlError::Protocol(_) => {
                Self::internal("talking to the sandbox's supervisor", error)
            }
        }
    }
}

impl From<saggar_store::Error> for Fault {
    fn from(error: saggar_store::Error) -> Self {
        match error {
            error @ (saggar_store::Error::Full | saggar_store::Error::ReadOnly) => {
                Self::StoreUnwritable { what: error.to_string(), help: error.help() }
            }
            error @ saggar_store::Error::Busy => {
                Self::Busy { what: error.to_string(), retry_after: Duration::from_secs(1) }
            }
            other => Self::internal("the store", other),
        }
    }
}

/// Something about a file in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// Which, in the sandbox's own view.
    pub path: String,
    /// What kind of fault.
    pub kind: FileFaultKind,
}

/// What can be wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFaultKind {
    /// It isn't there.
    NotFound,
    /// It is there already.
    Exists,
    /// It is a directory.
    IsDirectory,
    /// Something on the way is no directory.
    NotDirectory,
    /// The directory isn't empty.
    NotEmpty,
    /// It is neither a file, nor a directory, nor a link.
    NotRegular,
    /// The user may not.
    PermissionDenied,
    /// It can't be written, whoever asks.
    ReadOnly,
    /// The sandbox's storage is full.
    StorageFull,
    /// The path or one of its names is too long, or there are too many links on the way.
    PathTooLong,
    /// A path that can't be one.
    InvalidPath,
    /// There are more entries than were asked for or are allowed.
    TooMany,
    /// The sandbox has no process left for it.
    NoProcess,
    /// It changed while it was read.
    Changed,
    /// What is being uploaded can't be taken: what, and why, is in the path.
    InvalidArchive,
    /// The worker in the sandbox went away: it was killed in there, or is out of memory.
    Broken,
    /// The kernel's own number.
    Other(i32),
}

impl FileFault {
    /// What happened, to which file.
    pub fn message(&self) -> String {
        let Self { path, kind } = self;
        match kind {
            FileFaultKind::NotFound => format!("there is no {path:?} in the sandbox"),
            FileFaultKind::Exists => format!("{path:?} is there already"),
            FileFaultKind::IsDirectory => format!("{path:?} is a directory"),
            FileFaultKind::NotDirectory => format!("{path:?} is not a directory, or goes through something that isn't"),
            FileFaultKind::NotEmpty => format!("the directory {path:?} is not empty"),
            FileFaultKind::NotRegular => format!("{path:?} is neither a file nor a directory"),
            FileFaultKind::PermissionDenied => format!("the sandbox's user has no permission for {path:?}"),
            FileFaultKind::ReadOnly => format!("{path:?} is on a read-only part of the sandbox"),
            FileFaultKind::StorageFull => format!("the sandbox's storage has no room for {path:?}"),
            FileFaultKind::PathTooLong => format!("the path {path:?} is too long, or has too many links"),
            FileFaultKind::InvalidPath => format!("{path:?} can't be a path"),
            FileFaultKind::TooMany => format!("{path:?} has more entries than are allowed at once"),
            FileFaultKind::NoProcess => format!("the sandbox can start no process to work on {path:?}"),
            FileFaultKind::Changed => format!("{path:?} changed while it was read"),
            FileFaultKind::InvalidArchive => path.clone(),
            FileFaultKind::Broken => format!("the work on {path:?} was broken off inside the sandbox"),
            FileFaultKind::Other(errno) => {
                format!("{path:?} can't be used: {}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}
