//! Problems on the wire: RFC 9457 `application/problem+json`, with a stable code and a remedy.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::code::Code;

/// The media type of a problem.
pub const PROBLEM_MEDIA_TYPE: &str = "application/problem+json";
/// The prefix of every problem's `type`.
const TYPE_BASE: &str = "https://saggar.dev/problems/";

/// Why a request failed. Rarely used fields are boxed, so that results stay small.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
pub struct Problem {
    /// A URI for this code.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "https://saggar.dev/problems/not_found", format = "uri")]
    pub kind: Box<str>,
    /// The code's meaning.
    #[schema(value_type = String)]
    pub title: Box<str>,
    /// The HTTP status of the response.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// Stable code for programs.
    #[schema(value_type = crate::schema::ProblemCode)]
    pub code: Code,
    /// What happened, and to which object.
    pub detail: String,
    /// What to do next; empty if there is nothing to do.
    #[serde(default)]
    pub help: String,
    /// Id of the request, as in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub instance: Option<Box<str>>,
    /// When to retry, the same as the `Retry-After` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub retry_after_seconds: Option<u32>,
}

impl Problem {
    /// A problem with its remedy.
    pub fn new(code: Code, detail: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            kind: format!("{TYPE_BASE}{code}").into(),
            title: code.title().into(),
            status: code.status(),
            code,
            detail: detail.into(),
            help: help.into(),
            instance: None,
            retry_after_seconds: None,
        }
    }

    /// A malformed request.
    pub fn invalid(detail: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, detail, help)
    }

    /// Sets when to retry.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Sets the id of the request.
    pub fn of_request(mut self, instance: impl Into<Box<str>>) -> Self {
        self.instance = Some(instance.into());
        self
    }

    /// The code's name, even of one that this version doesn't know.
    pub fn code_name(&self) -> &str {
        match self.code {
            Code::Other => self.kind.rsplit('/').next().unwrap_or("other"),
            code => code.as_str(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl From<saggar_domain::Problem> for Problem {
    fn from(problem: saggar_domain::Problem) -> Self {
        Self::new(problem.code.into(), problem.message, problem.help)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_problem_on_the_wire() {
        let problem = Problem::new(Code::Capacity, "all 100 sandboxes are in use", "end one").retry_after(2);
        assert_eq!(
            serde_json::to_value(&problem).unwrap(),
            json!({
                "type": "https://saggar.dev/problems/capacity",
                "title": "The server is full",
                "status": 429,
                "code": "capacity",
                "detail": "all 100 sandboxes are in use",
                "help": "end one",
                "retry_after_seconds": 2
            })
        );
    }

    #[test]
    fn a_code_from_a_newer_server_keeps_its_name() {
        let text = r#"{"type":"https://saggar.dev/problems/too_hot","title":"t","status":418,"code":"too_hot","detail":"d","new":1}"#;
        let problem: Problem = serde_json::from_str(text).unwrap();
        assert_eq!((problem.code, problem.code_name(), problem.status), (Code::Other, "too_hot", 418));
    }
}
