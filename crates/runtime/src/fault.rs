//! Faults: why an operation failed, for the layer that answers the client.
//!
//! A fault says what happened to which object and what to do next. It contains no host path and no secret.

use std::time::Duration;

use saggar_domain::secret::SecretName;
use saggar_domain::{Code, EndReason, ExecId, Problem, RunId, SandboxId};

use crate::supervisor::ControlError;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It doesn't exist, or belongs to another project: callers can't tell which.
    #[error("no {what} {id:?} exists")]
    NotFound {
        /// The kind of object.
        what: &'static str,
        /// The requested id.
        id: String,
    },
    #[error("sandbox {id} has ended")]
    Ended {
        id: SandboxId,
        /// The reason, if already known.
        reason: Option<EndReason>,
    },
    /// The sandbox is paused and has no auto-resume.
    #[error("sandbox {id} is paused")]
    Paused { id: SandboxId },
    /// The idempotency key was used for a different request.
    #[error("the idempotency key was used for a different request")]
    IdempotencyMismatch,
    /// The request with this idempotency key is still in progress.
    #[error("the request with this idempotency key is still in progress")]
    InProgress,
    /// A capacity limit is reached.
    #[error("{what}")]
    Capacity { what: String, retry_after: Duration },
    /// A shared resource is temporarily unavailable: nothing was done.
    #[error("{what}")]
    Busy { what: String, retry_after: Duration },
    /// The request names a secret that doesn't exist in the project.
    #[error("{0}")]
    NoSuchSecret(Problem),
    /// The request names a template that the project can't use.
    #[error("{0}")]
    NoSuchTemplate(Problem),
    /// The request is invalid or not allowed.
    #[error("{0}")]
    Refused(Problem),
    /// The caller isn't the user of the host that this is for.
    #[error("{what}")]
    Forbidden { what: String, help: String },
    #[error("{}", .0.message())]
    File(FileFault),
    /// No program listens on the port.
    #[error("no program listens on port {port} of sandbox {id}")]
    PortClosed { id: SandboxId, port: u16 },
    /// The sandbox's ingress doesn't allow the port, whoever asks.
    #[error("port {port} of sandbox {id} can't be reached from outside")]
    PortNotAllowed { id: SandboxId, port: u16 },
    /// The object's state doesn't allow this.
    #[error("{what}")]
    Conflict {
        /// The state.
        what: String,
        help: String,
    },
    /// The run's stored data was altered.
    #[error("run {run} is damaged: {what}")]
    RunDamaged { run: RunId, what: String },
    /// The permit is for another action: a bug of ours.
    #[error("the permit is for another action")]
    WrongPermit,
    /// The sealing keys of secrets can't be used.
    #[error("{what}")]
    SealingKey {
        what: String,
        help: &'static str,
        /// Whether the keys are where others can get them; otherwise some are missing.
        is_unsafe: bool,
    },
    /// The disk of the store is full or read-only: nothing was done.
    #[error("{what}")]
    StoreUnwritable {
        /// Which of the two.
        what: String,
        help: &'static str,
    },
    /// An internal failure.
    #[error("{what}")]
    Internal {
        what: String,
        /// The cause, for the log.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl Fault {
    /// An internal failure.
    pub(crate) fn internal(what: &str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Internal { what: what.to_owned(), source: Some(Box::new(source)) }
    }

    pub fn no_sandbox(id: impl ToString) -> Self {
        Self::NotFound { what: "sandbox", id: id.to_string() }
    }

    pub fn no_run(id: impl ToString) -> Self {
        Self::NotFound { what: "run", id: id.to_string() }
    }

    pub(crate) fn no_secret(name: &SecretName) -> Self {
        Self::NotFound { what: "secret", id: name.to_string() }
    }

    /// A store error met while reading a run: corruption is the run's damage.
    pub(crate) fn of_run(run: &RunId, error: saggar_store::Error) -> Self {
        match error {
            saggar_store::Error::Corrupt { what } => Self::RunDamaged { run: run.clone(), what },
            other => other.into(),
        }
    }

    pub(crate) fn no_exec(id: &ExecId) -> Self {
        Self::NotFound { what: "exec", id: id.to_string() }
    }

    /// What is wrong about a volume.
    pub(crate) fn of_volume(problem: Problem) -> Self {
        match problem.code {
            // Its message names the other volumes of the project.
            Code::NoSuchVolume | Code::VolumeExists => Self::Refused(problem),
            Code::VolumeInUse | Code::TooMany => Self::Conflict { what: problem.message, help: problem.help },
            _ => Self::Refused(problem),
        }
    }

    /// Translates a supervisor's error.
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

/// An error about a file in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    /// The path in the sandbox's own view.
    pub path: String,
    pub kind: FileFaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFaultKind {
    /// It doesn't exist.
    NotFound,
    /// It already exists.
    Exists,
    IsDirectory,
    /// A component of the path is not a directory.
    NotDirectory,
    NotEmpty,
    /// It is neither a file, nor a directory, nor a link.
    NotRegular,
    /// The user has no permission.
    PermissionDenied,
    /// It is read-only for every user.
    ReadOnly,
    StorageFull,
    /// The path or one of its names is too long, or it has too many links.
    PathTooLong,
    /// The path is invalid.
    InvalidPath,
    /// There are more entries than requested or allowed.
    TooMany,
    /// The sandbox can't start another process.
    NoProcess,
    /// It changed while it was read.
    Changed,
    /// The upload is invalid; the path has the details.
    InvalidArchive,
    /// The worker in the sandbox is gone: it was killed inside, or ran out of memory.
    Broken,
    /// The kernel's errno.
    Other(i32),
}

impl FileFault {
    /// What happened, to which file.
    pub fn message(&self) -> String {
        let Self { path, kind } = self;
        match kind {
            FileFaultKind::NotFound => format!("{path:?} does not exist in the sandbox"),
            FileFaultKind::Exists => format!("{path:?} already exists"),
            FileFaultKind::IsDirectory => format!("{path:?} is a directory"),
            FileFaultKind::NotDirectory => format!("{path:?} is not a directory, or a component of it is not"),
            FileFaultKind::NotEmpty => format!("the directory {path:?} is not empty"),
            FileFaultKind::NotRegular => format!("{path:?} is neither a file nor a directory"),
            FileFaultKind::PermissionDenied => format!("the sandbox's user has no permission for {path:?}"),
            FileFaultKind::ReadOnly => format!("{path:?} is in a read-only part of the sandbox"),
            FileFaultKind::StorageFull => format!("the sandbox's storage is full: {path:?} can't be written"),
            FileFaultKind::PathTooLong => format!("the path {path:?} is too long, or has too many links"),
            FileFaultKind::InvalidPath => format!("{path:?} is not a valid path"),
            FileFaultKind::TooMany => format!("{path:?} has more entries than are allowed at once"),
            FileFaultKind::NoProcess => format!("the sandbox can't start a process to access {path:?}"),
            FileFaultKind::Changed => format!("{path:?} changed while it was read"),
            FileFaultKind::InvalidArchive => path.clone(),
            FileFaultKind::Broken => format!("the operation on {path:?} was interrupted inside the sandbox"),
            FileFaultKind::Other(errno) => {
                format!("{path:?} can't be used: {}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}
