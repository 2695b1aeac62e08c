//! Errors of the data plane, in its three formats.
//!
//! A unary call fails with a status and an error code of Connect; a stream with a last envelope; plain HTTP with a
//! number. A missing sandbox or a closed port is reported with the words of E2B's proxy: clients look for "was not
//! found" and "port is not open".

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use saggar_api::Code as ApiCode;
use saggar_http::Refusal;
use saggar_runtime::{Fault, FileFault, FileFaultKind};
use serde_json::{Value, json};

use super::connect;
use super::id;

/// Connect's error codes, as far as they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    AlreadyExists,
    ResourceExhausted,
    DeadlineExceeded,
    Unimplemented,
    UnsupportedMediaType,
    TooLarge,
    OutOfSpace,
    DataLoss,
    Internal,
    Unavailable,
}

impl Code {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument | Self::UnsupportedMediaType | Self::TooLarge => "invalid_argument",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission_denied",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::ResourceExhausted => "resource_exhausted",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Unimplemented => "unimplemented",
            Self::DataLoss => "data_loss",
            // Clients take `resource_exhausted` for too many requests.
            Self::OutOfSpace | Self::Internal => "internal",
            Self::Unavailable => "unavailable",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::OutOfSpace => StatusCode::INSUFFICIENT_STORAGE,
            Self::DataLoss | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Maximum length of a message: some quote the request.
const MESSAGE_CHARS_MAX: usize = 1000;

/// Why something was not done.
#[derive(Clone, Debug)]
pub(super) enum CallFailure {
    /// The sandbox doesn't exist, has ended or is paused: clients don't distinguish.
    Gone {
        /// The client's form of the id.
        id: String,
        /// More about the reason, if any.
        why: &'static str,
    },
    /// No program listens there.
    PortClosed {
        id: String,
        port: u16,
    },
    Said {
        code: Code,
        message: String,
    },
}

impl CallFailure {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        let message: String = message.into();
        Self::Said { code, message: message.chars().take(MESSAGE_CHARS_MAX).collect() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(super) fn gone(id: &str) -> Self {
        Self::Gone { id: id.chars().take(64).collect(), why: "" }
    }

    /// The response to a unary call.
    pub(super) fn unary(&self) -> Response {
        match self {
            Self::Said { code, message } => {
                (code.status(), Json(json!({ "code": code.as_str(), "message": message }))).into_response()
            }
            Self::Gone { .. } | Self::PortClosed { .. } => self.plain(),
        }
    }

    /// The response to anything that isn't Connect.
    pub(super) fn plain(&self) -> Response {
        let (status, body) = self.numbered();
        (status, Json(body)).into_response()
    }

    fn numbered(&self) -> (StatusCode, Value) {
        let message = self.message();
        match self {
            Self::Gone { id, .. } => {
                (StatusCode::BAD_GATEWAY, json!({ "sandboxId": id, "message": message, "code": 502 }))
            }
            Self::PortClosed { id, port } => {
                (StatusCode::BAD_GATEWAY, json!({ "sandboxId": id, "message": message, "port": port, "code": 502 }))
            }
            Self::Said { code, .. } => (code.status(), json!({ "code": code.status().as_u16(), "message": message })),
        }
    }

    /// The last envelope of a stream.
    pub(super) fn end(&self) -> Bytes {
        let code = match self {
            Self::Said { code, .. } => *code,
            Self::Gone { .. } | Self::PortClosed { .. } => Code::Unavailable,
        };
        connect::end(Some((code, &self.message())))
    }

    fn message(&self) -> String {
        match self {
            Self::Gone { why, .. } => format!("The sandbox was not found{why}"),
            Self::PortClosed { .. } => "The sandbox is running but port is not open".to_owned(),
            Self::Said { message, .. } => message.clone(),
        }
    }
}

impl From<Fault> for CallFailure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::NotFound { what: "sandbox", id } => Self::gone(id.strip_prefix("sbx_").unwrap_or(&id)),
            Fault::Ended { id, .. } => Self::gone(id::short(&id)),
            Fault::Paused { id } => {
                Self::Gone { id: id::short(&id).to_owned(), why: ": it is paused; connecting to it resumes it" }
            }
            Fault::PortClosed { id, port } => Self::PortClosed { id: id::short(&id).to_owned(), port },
            Fault::File(file) => Self::from(file),
            other => Self::from(Refusal::from(other)),
        }
    }
}

impl From<FileFault> for CallFailure {
    fn from(fault: FileFault) -> Self {
        let code = match fault.kind {
            FileFaultKind::NotFound => return Self::new(Code::NotFound, format!("path not found: {}", fault.path)),
            FileFaultKind::IsDirectory => {
                return Self::invalid(format!("path is a directory: {}", fault.path));
            }
            FileFaultKind::NotDirectory => {
                return Self::invalid(format!("path is not a directory: {}", fault.path));
            }
            FileFaultKind::Exists => Code::AlreadyExists,
            FileFaultKind::PermissionDenied => Code::PermissionDenied,
            FileFaultKind::StorageFull => Code::OutOfSpace,
            FileFaultKind::NoProcess => Code::ResourceExhausted,
            FileFaultKind::NotEmpty
            | FileFaultKind::NotRegular
            | FileFaultKind::ReadOnly
            | FileFaultKind::PathTooLong
            | FileFaultKind::InvalidPath
            | FileFaultKind::TooMany
            | FileFaultKind::InvalidArchive => Code::InvalidArgument,
            FileFaultKind::Changed | FileFaultKind::Broken | FileFaultKind::Other(_) => Code::Internal,
        };
        Self::new(code, fault.message())
    }
}

impl From<Refusal> for CallFailure {
    fn from(Refusal(problem): Refusal) -> Self {
        let code = match problem.code {
            ApiCode::Unauthorized => Code::Unauthenticated,
            ApiCode::Capacity => Code::ResourceExhausted,
            ApiCode::UnsupportedCapability | ApiCode::UnenforcedLimit => Code::Unimplemented,
            ApiCode::TooLarge => Code::TooLarge,
            ApiCode::UnsupportedMediaType => Code::UnsupportedMediaType,
            ApiCode::ProgramNotFound | ApiCode::ProgramNotExecutable | ApiCode::InvalidCwd => Code::InvalidArgument,
            _ => match problem.status {
                403 => Code::PermissionDenied,
                404 => Code::NotFound,
                408 => Code::DeadlineExceeded,
                400..=499 => Code::InvalidArgument,
                503 => Code::Unavailable,
                507 => Code::OutOfSpace,
                _ => Code::Internal,
            },
        };
        let help = if problem.help.is_empty() { String::new() } else { format!(" ({})", problem.help) };
        Self::new(code, format!("{}{help}", problem.detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_look_for_is_said() {
        let (status, body) = CallFailure::gone("abc").numbered();
        assert_eq!((status.as_u16(), &body["code"], &body["sandboxId"]), (502, &json!(502), &json!("abc")));
        assert!(body["message"].as_str().unwrap().contains("was not found"));
        let (status, body) = CallFailure::PortClosed { id: "abc".to_owned(), port: 80 }.numbered();
        assert_eq!(status, 502);
        assert!(body["message"].as_str().unwrap().contains("port is not open"));
        let full = FileFault { path: "/x".to_owned(), kind: FileFaultKind::StorageFull };
        assert_eq!(CallFailure::from(full).numbered().0, 507);
    }
}
