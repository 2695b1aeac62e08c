//! How a command fails: what is said, and the exit status.

use std::error::Error as _;
use std::io;

use saggar_api::client::Error;
use saggar_api::{Code, Problem};
use serde_json::json;

use crate::outcome::{OUR_FAILURE, visible};

/// The server refused.
const REFUSED_BY_SERVER: u8 = 1;

/// How the server says when to ask again.
const RETRY: &str = "try again after Retry-After";

/// Why a command was not done.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Stable, for programs.
    code: String,
    message: String,
    help: String,
    status: u8,
}

impl Failure {
    /// Our own: a file here that can't be read, a setting that can't be.
    pub(crate) fn ours(code: &str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), help: help.into(), status: OUR_FAILURE }
    }

    /// Something about a file here.
    pub(crate) fn file(path: &std::path::Path, doing: &str, error: &io::Error) -> Self {
        Self::ours("file", format!("{path:?} can't be {doing}: {error}"), "")
    }

    /// A file that was named can't be used.
    pub(crate) fn given(path: &std::path::Path, error: &saggar_server::GivenFileError) -> Self {
        Self::ours("file", format!("{path:?} {error}"), error.help())
    }

    /// The same with another exit status, for commands whose status means something else.
    pub(crate) fn with_status(self, status: u8) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn status(&self) -> u8 {
        self.status
    }

    /// As people read it.
    pub(crate) fn text(&self) -> String {
        let help = if self.help.is_empty() { String::new() } else { format!("  help: {}\n", self.help) };
        visible(&format!("error: {} ({})\n{help}", self.message, self.code))
    }

    /// As programs read it.
    pub(crate) fn json(&self) -> String {
        format!("{}\n", json!({"error": {"code": self.code, "detail": self.message, "help": self.help}}))
    }

    fn of_problem(problem: &Problem) -> Self {
        let help = match problem.code {
            Code::Unauthorized => {
                "put a key into SAGGAR_API_KEY; `saggar serve` prints one at its first start, and `saggar key create` makes more"
                    .to_owned()
            }
            _ => problem.help.clone(),
        };
        let help = match problem.retry_after_seconds {
            Some(seconds) if help.is_empty() => format!("try again in {seconds} s"),
            // The header's name says nothing to who reads this; what is in it does.
            Some(seconds) if help.contains(RETRY) => help.replace(RETRY, &format!("try again in {seconds} s")),
            Some(seconds) => format!("{help}; or try again in {seconds} s"),
            None => help,
        };
        Self { code: problem.code_name().to_owned(), message: problem.detail.clone(), help, status: REFUSED_BY_SERVER }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // The causes below, which the text of an error leaves to the chain.
        let mut message = error.to_string();
        let mut below = error.source();
        while let Some(cause) = below {
            message.push_str(&format!(": {cause}"));
            below = cause.source();
        }
        match &error {
            Error::Problem(problem) => Self::of_problem(problem),
            Error::Address(_) => {
                Self::ours("invalid_address", message, "write it as http://HOST:PORT, in --url or SAGGAR_URL")
            }
            Error::Connect { source, .. } if source.kind() == io::ErrorKind::InvalidData => Self::ours(
                "no_trust",
                message,
                "name the server's certificate, or who vouches for it, with --ca or SAGGAR_CA",
            ),
            Error::Connect { .. } => Self::ours(
                "no_connection",
                message,
                "start a server with `saggar serve`, or name another one with --url or SAGGAR_URL",
            ),
            Error::PlainHttp { .. } => Self::ours(
                "plain_http",
                message,
                "use http:// in --url or SAGGAR_URL, or start the server with tls = true",
            ),
            Error::Certificates(_) => Self::ours("certificates", message, "name a PEM file with --ca"),
            Error::Broken { .. } => {
                Self::ours("connection_lost", message, "look whether it was done before you try again")
            }
            Error::Timeout(_) => Self::ours("timeout", message, "look whether it was done before you try again"),
            Error::Answer(_) => Self::ours(
                "not_saggar",
                message,
                "check that the address is that of `saggar serve`, of about this version",
            ),
        }
    }
}

impl From<saggar_domain::Problem> for Failure {
    fn from(problem: saggar_domain::Problem) -> Self {
        Self::ours(problem.code.as_str(), problem.message, problem.help)
    }
}

/// Writing what a command has to say failed: the reader went away.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::ours("stream", format!("one of our own streams failed: {error}"), "")
    }
}
