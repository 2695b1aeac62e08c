//! How a call can fail: the server refused it, or the outcome is unknown.

use std::io;

use super::certificate::CertificateFault;
use crate::problem::Problem;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with a problem.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// The URL is invalid.
    #[error("{0:?} is not a valid server URL")]
    Address(String),
    /// No connection could be made: nothing was done.
    #[error("no connection to {url}")]
    Connect {
        /// The URL.
        url: String,
        /// The cause.
        source: io::Error,
    },
    /// The server doesn't use TLS: nothing was done.
    #[error("{url} speaks plain HTTP, not HTTPS")]
    PlainHttp {
        /// The URL.
        url: String,
    },
    /// The server's certificate is refused: nothing was done.
    #[error("the certificate of {url} {fault}")]
    Untrusted {
        /// The URL.
        url: String,
        /// The reason.
        fault: CertificateFault,
    },
    /// The trusted certificates can't be read.
    #[error("the certificates can't be used: {0}")]
    Certificates(String),
    /// The connection broke; the request may or may not have been carried out.
    #[error("the connection was lost while {doing}")]
    Broken {
        /// What was in progress.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The time limit was exceeded; the request may or may not have been carried out.
    #[error("no response within {0} seconds")]
    Timeout(u64),
    /// The model, or the way to it, failed: the message is on the wire of models.
    #[error("{message} (status {status})")]
    Model {
        /// The status that the wire of models answered with.
        status: u16,
        /// What went wrong, in the provider's words or ours.
        message: String,
    },
    /// The response doesn't belong to this API.
    #[error("the response is not from this API: {0}")]
    Answer(String),
}

impl Error {
    /// The problem, if the server sent one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Address(_)
            | Self::Connect { .. }
            | Self::PlainHttp { .. }
            | Self::Untrusted { .. }
            | Self::Certificates(_)
            | Self::Broken { .. }
            | Self::Timeout(_)
            | Self::Model { .. }
            | Self::Answer(_) => None,
        }
    }

    /// Whether the connection was lost, so that a stream may be resumed.
    pub(crate) fn is_lost_connection(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Broken { .. } | Self::Timeout(_) => true,
            // A restarting server answers with this status before it accepts requests.
            Self::Problem(problem) => problem.status == 503,
            Self::Address(_)
            | Self::PlainHttp { .. }
            | Self::Untrusted { .. }
            | Self::Certificates(_)
            | Self::Model { .. }
            | Self::Answer(_) => false,
        }
    }

    pub(crate) fn broken(doing: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Broken { doing, source: io::Error::other(source) }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}
