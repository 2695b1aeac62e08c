//! How a command fails: the message and the exit status.

use std::error::Error as _;
use std::io;

use saggar_api::client::Error;
use saggar_api::{Code, Problem, Secret};
use serde_json::json;

use super::settings::Access;
use crate::outcome::{OUR_FAILURE, visible};

/// The server refused.
const REFUSED_BY_SERVER: u8 = 1;

/// The server's wording for a later retry.
const RETRY: &str = "try again after Retry-After";

/// How a key begins: ours, and the same in the form for E2B's clients.
const FORMS: [&str; 2] = ["sgr_", "e2b_"];
/// Characters of a key that are shown, as `saggar key list` does.
const KEY_SHOWN: usize = 8;

#[derive(Debug)]
pub(crate) struct CommandFailure {
    /// Stable, for programs.
    code: String,
    message: String,
    help: String,
    status: u8,
}

impl CommandFailure {
    /// A failure on our side, such as an unreadable local file or an invalid setting.
    pub(crate) fn ours(code: &str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), help: help.into(), status: OUR_FAILURE }
    }

    /// A failure that concerns a local file.
    pub(crate) fn file(path: &std::path::Path, doing: &str, error: &io::Error) -> Self {
        Self::ours("file", format!("{path:?} can't be {doing}: {error}"), "")
    }

    /// A file named on the command line can't be used.
    pub(crate) fn given(path: &std::path::Path, error: &saggar_given::GivenFileError) -> Self {
        Self::ours("file", format!("{path:?} {error}"), error.help())
    }

    /// Sets another exit status, for commands in which 1 means something else.
    pub(crate) fn with_status(self, status: u8) -> Self {
        Self { status, ..self }
    }

    /// Names the file that an invalid value came from.
    pub(crate) fn in_file(self, path: &std::path::Path) -> Self {
        match self.code.as_str() {
            "invalid_value" => Self { message: format!("{}: {}", path.display(), self.message), ..self },
            _ => self,
        }
    }

    /// Says what is wrong with the key, if the server refused it. The server doesn't tell, because that would help to
    /// guess one.
    pub(crate) fn with_access(self, access: &Access) -> Self {
        if self.code != Code::Unauthorized.as_str() {
            return self;
        }
        let url = &access.url;
        let message = match access.key.as_ref().map(Secret::reveal) {
            None => format!("{url} requires an API key, and SAGGAR_API_KEY is not set"),
            Some(key) if !FORMS.iter().any(|form| key.starts_with(form)) => {
                "the API key is not of the form sgr_…".to_owned()
            }
            Some(key) => {
                let begins: String = key.chars().take(KEY_SHOWN).collect();
                format!("{url} doesn't accept the key {begins}…: it is unknown, revoked or expired")
            }
        };
        Self { message, ..self }
    }

    pub(crate) fn status(&self) -> u8 {
        self.status
    }

    /// The text for people.
    pub(crate) fn text(&self) -> String {
        let help = if self.help.is_empty() { String::new() } else { format!("  help: {}\n", self.help) };
        visible(&format!("error: {} ({})\n{help}", self.message, self.code))
    }

    /// The JSON for programs.
    pub(crate) fn json(&self) -> String {
        format!("{}\n", json!({"error": {"code": self.code, "detail": self.message, "help": self.help}}))
    }

    fn of_problem(problem: &Problem) -> Self {
        let help = match problem.code {
            Code::Unauthorized => {
                "put a key into SAGGAR_API_KEY; `saggar serve` prints one at its first start, and `saggar key create` makes more"
                    .to_owned()
            }
            Code::NotFound => listing(problem),
            _ => problem.help.clone(),
        };
        let help = match problem.retry_after_seconds {
            Some(seconds) if help.is_empty() => format!("try again in {seconds} s"),
            // The user doesn't see the header, so its value replaces its name.
            Some(seconds) if help.contains(RETRY) => help.replace(RETRY, &format!("try again in {seconds} s")),
            Some(seconds) => format!("{help}; or try again in {seconds} s"),
            None => help,
        };
        Self { code: problem.code_name().to_owned(), message: problem.detail.clone(), help, status: REFUSED_BY_SERVER }
    }
}

/// The server's help for an unknown id, with our command that lists the known ones.
fn listing(problem: &Problem) -> String {
    const LIST: &str = "list the existing ones";
    let commands = [("no run ", "runs"), ("no sandbox ", "sandbox"), ("no key ", "key"), ("no secret ", "secret")];
    match commands.into_iter().find(|(begins, _)| problem.detail.starts_with(begins)) {
        Some((_, command)) => {
            problem.help.replace(LIST, &format!("list the existing ones with: saggar {command} list"))
        }
        None => problem.help.clone(),
    }
}

impl From<Error> for CommandFailure {
    fn from(error: Error) -> Self {
        // Appends the causes, because an error's own text leaves them to the chain.
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
            Error::Untrusted { fault, .. } => Self::ours("no_trust", message, fault.help()),
            Error::Connect { .. } => Self::ours(
                "no_connection",
                message,
                "start a server with `saggar serve`, or name another one with --url or SAGGAR_URL",
            ),
            Error::PlainHttp { .. } => {
                Self::ours("plain_http", message, "use http:// in --url or SAGGAR_URL, or start the server with --tls")
            }
            Error::Certificates(_) => Self::ours("certificates", message, "name a PEM file with --ca"),
            Error::Broken { .. } => Self::ours(
                "connection_lost",
                message,
                "the request may have been carried out; check before you repeat it",
            ),
            Error::Timeout(_) => {
                Self::ours("timeout", message, "the request may have been carried out; check before you repeat it")
            }
            Error::Model { .. } => Self::ours("model", message, "`saggar models check` tries every model"),
            Error::Answer(_) => Self::ours(
                "not_saggar",
                message,
                "check that the address belongs to a `saggar serve` of a compatible version",
            ),
        }
    }
}

impl From<saggar_domain::Problem> for CommandFailure {
    fn from(problem: saggar_domain::Problem) -> Self {
        Self::ours(problem.code.as_str(), problem.message, problem.help)
    }
}

/// Output could not be written: the reader went away.
impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> Self {
        Self::ours("stream", format!("writing output failed: {error}"), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_id_is_told_with_the_command_that_lists_the_known_ones() {
        for (detail, command) in
            [("no run \"run_x\" exists", "saggar runs list"), ("no sandbox \"sbx_x\" exists", "saggar sandbox list")]
        {
            let problem = Problem::new(Code::NotFound, detail, "check the id, or list the existing ones");
            let text = CommandFailure::of_problem(&problem).text();
            assert!(text.contains(command), "{text}");
        }
    }
}
