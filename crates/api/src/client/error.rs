//! How a call can fail: the server said no, or there was no telling.

use std::io;

use crate::problem::Problem;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered with a problem.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// The address can't be one of a server.
    #[error("{0:?} is not the address of a server")]
    Address(String),
    /// No connection could be made: nothing was done.
    #[error("no connection to {url}")]
    Connect {
        /// To where.
        url: String,
        /// Why.
        source: io::Error,
    },
    /// What listens there doesn't speak TLS: nothing was done.
    #[error("{url} speaks plain HTTP, not HTTPS")]
    PlainHttp {
        /// Where.
        url: String,
    },
    /// The certificates that a connection would be checked against can't be read.
    #[error("the certificates can't be used: {0}")]
    Certificates(String),
    /// The connection broke off; whether the server had done it isn't known.
    #[error("the connection broke off while {doing}")]
    Broken {
        /// What was being done.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The server took longer than allowed; whether it did it isn't known.
    #[error("no answer within {0} seconds")]
    Timeout(u64),
    /// Something answered that doesn't speak this API.
    #[error("the answer is not one of this API: {0}")]
    Answer(String),
}

impl Error {
    /// The problem, if the server told one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Address(_)
            | Self::Connect { .. }
            | Self::PlainHttp { .. }
            | Self::Certificates(_)
            | Self::Broken { .. }
            | Self::Timeout(_)
            | Self::Answer(_) => None,
        }
    }

    /// Whether the connection was lost, so that a stream may be taken up again.
    pub(crate) fn is_lost_connection(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Broken { .. } | Self::Timeout(_) => true,
            // A server that is starting again says so before it takes requests.
            Self::Problem(problem) => problem.status == 503,
            Self::Address(_) | Self::PlainHttp { .. } | Self::Certificates(_) | Self::Answer(_) => false,
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
