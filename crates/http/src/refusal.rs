//! Refusals: the errors of handlers.
//!
//! A refusal is attached to an empty response, and becomes `application/problem+json` in one place (`attend`), which
//! knows the request's id. So no handler writes an error body, and none can forget its type.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use saggar_api::{Code, Problem};
use saggar_runtime::{Fault, FileFault, FileFaultKind};

/// Maximum length of a quoted id.
const ECHO_MAX: usize = 64;

/// Why a request failed.
#[derive(Clone, Debug)]
pub struct Refusal(pub Box<Problem>);

impl Refusal {
    pub fn new(code: Code, detail: impl Into<String>, help: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(code, detail, help)))
    }

    /// A malformed request.
    pub fn invalid(detail: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, detail, help)
    }

    /// A missing object, another project's, or an invalid id: one response for all three.
    pub fn not_found(what: &str, id: &str) -> Self {
        let id: String = id.chars().take(ECHO_MAX).collect();
        Self::new(
            Code::NotFound,
            format!("no {what} {id:?} exists"),
            format!("check the {what}'s id, or list the existing ones"),
        )
    }

    /// A missing, unknown, revoked or expired key: one response for all.
    pub fn unauthorized() -> Self {
        Self::new(
            Code::Unauthorized,
            "the request has no valid API key",
            "send `Authorization: Bearer sgr_…`; create a key with: saggar key create",
        )
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        let what = fault.to_string();
        match fault {
            Fault::NotFound { what, id } => Self::not_found(what, &id),
            Fault::Ended { id, reason } => {
                let why = reason.map(|reason| format!(" ({})", reason.as_str())).unwrap_or_default();
                Self::new(Code::SandboxEnded, format!("sandbox {id} has ended{why}"), "create another")
            }
            Fault::Paused { .. } => {
                Self::new(Code::SandboxPaused, what, "resume it, or create sandboxes with \"auto_resume\": true")
            }
            Fault::IdempotencyMismatch => {
                Self::new(Code::IdempotencyMismatch, what, "use a new Idempotency-Key for a different request")
            }
            Fault::InProgress => Self::new(Code::Conflict, what, "retry in a moment"),
            Fault::Capacity { retry_after, .. } => {
                let problem =
                    Problem::new(Code::Capacity, what, "end unneeded sandboxes, or try again after Retry-After");
                Self(Box::new(problem.retry_after(u32::try_from(retry_after.as_secs().max(1)).unwrap_or(u32::MAX))))
            }
            Fault::Busy { retry_after, .. } => {
                let problem = Problem::new(Code::Unavailable, what, "nothing was done; try again after Retry-After");
                Self(Box::new(problem.retry_after(u32::try_from(retry_after.as_secs().max(1)).unwrap_or(u32::MAX))))
            }
            Fault::NoSuchSecret(problem) | Fault::NoSuchTemplate(problem) => {
                Self::new(Code::NotFound, problem.message, problem.help)
            }
            Fault::Refused(problem) => Self(Box::new(problem.into())),
            Fault::Forbidden { help, .. } => Self::new(Code::Forbidden, what, help),
            Fault::File(file) => Self::from(file),
            Fault::PortClosed { .. } => Self::new(
                Code::PortRefused,
                what,
                "start a program that listens on it, on 127.0.0.1 or 0.0.0.0, and try again",
            ),
            Fault::SealingKey { help, .. } => {
                tracing::error!(what, help, "the sealing keys of secrets can't be used");
                Self::new(Code::SealingKey, what, format!("tell the operator: {help}"))
            }
            Fault::PortNotAllowed { .. } => {
                Self::new(Code::Forbidden, what, "add the port to `ports.allow` of the sandbox, or leave that list out")
            }
            Fault::StoreUnwritable { help, .. } => {
                Self::new(Code::DataDirectory, what, format!("tell the operator: {help}"))
            }
            Fault::Conflict { help, .. } => Self::new(Code::Conflict, what, help),
            Fault::RunDamaged { run, .. } => Self::new(
                Code::RunDamaged,
                what,
                format!(
                    "end it with: saggar runs cancel {run}; look for more damage with: saggar check; an earlier backup may have it whole"
                ),
            ),
            Fault::WrongPermit => {
                tracing::error!("a permit for another action was used");
                Self::internal()
            }
            Fault::Internal { what, source } => {
                tracing::error!(what, error = source.as_deref().map(chain), "something broke");
                Self::internal()
            }
        }
    }
}

impl Refusal {
    /// An internal error: the details are in the log and not in the response.
    pub fn internal() -> Self {
        Self::new(Code::Internal, "internal server error", "search the server's log for the request's id")
    }
}

impl From<FileFault> for Refusal {
    fn from(fault: FileFault) -> Self {
        let (code, help) = match fault.kind {
            FileFaultKind::NotFound => (Code::FileNotFound, "check the path; \"parents\" creates missing directories"),
            FileFaultKind::Exists => (Code::AlreadyExists, "remove it first, or choose another name"),
            FileFaultKind::IsDirectory => (Code::IsADirectory, "name a file; use files/tree for whole directories"),
            FileFaultKind::NotDirectory => (Code::NotADirectory, "name a directory"),
            FileFaultKind::NotEmpty => (Code::DirectoryNotEmpty, "remove it with recursive=true"),
            FileFaultKind::NotRegular => {
                (Code::NotARegularFile, "devices, sockets and pipes can only be used by programs inside")
            }
            FileFaultKind::PermissionDenied => {
                (Code::PermissionDenied, "act as another user with user=root, or change its mode inside")
            }
            FileFaultKind::ReadOnly => (Code::ReadOnly, "write below the user's home or in /tmp"),
            FileFaultKind::StorageFull => {
                (Code::DiskFull, "remove files, or create the sandbox with a larger limit `disk`")
            }
            FileFaultKind::PathTooLong | FileFaultKind::InvalidPath => (Code::InvalidRequest, "use another path"),
            FileFaultKind::TooMany => (Code::TooLarge, "name a smaller directory, or a smaller depth"),
            FileFaultKind::NoProcess => {
                (Code::Conflict, "end some processes in the sandbox, or create it with a larger limit `pids`")
            }
            FileFaultKind::Changed => (Code::Conflict, "try again when no program writes there"),
            FileFaultKind::InvalidArchive => (
                Code::InvalidArchive,
                "create the archive again, with only files, directories and links below one directory",
            ),
            FileFaultKind::Broken => (Code::GuestLost, "try again; if it persists, check the sandbox's memory limit"),
            FileFaultKind::Other(_) => (Code::Conflict, "examine the file from inside the sandbox"),
        };
        Self::new(code, fault.message(), help)
    }
}

/// An error with its causes, for the log.
fn chain(error: &(dyn std::error::Error + Send + Sync)) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        below = cause.source();
    }
    text
}
