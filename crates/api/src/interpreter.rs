//! The code interpreter: contexts of a sandbox, code to run in them, and what it shows.

use std::collections::BTreeMap;

use saggar_domain::{CodeLanguage, CodeStatus, ContextId, ExecId, GuestPath, SandboxId, Timeout};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::environment::Environment;
use crate::object::only_from_an_object;
use crate::problem::Problem;
use crate::schema;
use crate::time::Timestamp;

/// A code context to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct CreateCodeContext {
    /// Its language; `python` by default.
    #[serde(default = "python")]
    #[schema(value_type = schema::CodeLanguage)]
    pub language: CodeLanguage,
    /// Its working directory; by default the user's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxPath>)]
    pub cwd: Option<GuestPath>,
    /// Environment variables, in addition to the sandbox's own.
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub env: Environment,
}

fn python() -> CodeLanguage {
    CodeLanguage::Python
}

/// A process in which pieces of code run one after another, and keep what they define.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeContext {
    /// The context's id.
    #[schema(value_type = schema::ContextId)]
    pub id: ContextId,
    /// The sandbox it is in.
    #[schema(value_type = schema::SandboxId)]
    pub sandbox_id: SandboxId,
    /// Its language.
    #[schema(value_type = schema::CodeLanguage)]
    pub language: CodeLanguage,
    /// Where it was started.
    pub cwd: String,
    /// Whether code of its language runs in it if no context is named.
    pub default: bool,
    /// The exec that is its process now.
    #[schema(value_type = schema::ExecId)]
    pub exec_id: ExecId,
    /// When its process was started.
    #[schema(value_type = schema::Instant)]
    pub started_at: Timestamp,
}

/// The contexts of a sandbox, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeContextList {
    /// The contexts.
    pub items: Vec<CodeContext>,
}

/// Code to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct RunCode {
    /// The code.
    pub code: String,
    /// The context; by default that of the language, which is started when it is first used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::ContextId>)]
    pub context: Option<ContextId>,
    /// Its language, if no context is named; `python` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::CodeLanguage>)]
    pub language: Option<CodeLanguage>,
    /// Environment variables for this execution only.
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub env: Environment,
    /// When it is interrupted; by default it may take as long as its sandbox lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub timeout: Option<Timeout>,
}

/// The formats of a result by media type: text as it is, other data in base64, JSON as JSON.
#[derive(Clone, Debug, Default)]
pub struct CodeFormats(pub BTreeMap<String, Box<RawValue>>);

impl CodeFormats {
    /// The text of a format.
    pub fn text(&self, kind: &str) -> Option<String> {
        serde_json::from_str(self.0.get(kind)?.get()).ok()
    }
}

impl Serialize for CodeFormats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CodeFormats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not raw at once: within a tagged event that can't be read.
        let values = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let raw = |value: Value| serde_json::value::to_raw_value(&value).map_err(de::Error::custom);
        Ok(Self(values.into_iter().map(|(kind, value)| Ok((kind, raw(value)?))).collect::<Result<_, _>>()?))
    }
}

/// A value that code showed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ShownResult {
    /// Whether it is the value of the last expression; otherwise the code displayed it.
    pub main: bool,
    /// By media type: text as it is, other data in base64, JSON as JSON. Data of a table is `e2b/data`, and of a chart
    /// `e2b/chart`.
    #[schema(value_type = Object)]
    pub formats: CodeFormats,
}

/// An error that code raised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RaisedError {
    /// Its type.
    pub name: String,
    /// Its message.
    pub value: String,
    /// Where it was raised.
    pub traceback: String,
}

/// An execution that has ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CodeExecution {
    /// The context it ran in.
    #[schema(value_type = schema::ContextId)]
    pub context_id: ContextId,
    /// The code's language.
    #[schema(value_type = schema::CodeLanguage)]
    pub language: CodeLanguage,
    /// How it ended.
    #[schema(value_type = schema::CodeStatus)]
    pub status: CodeStatus,
    /// How many executions the context has had; null if its process died.
    pub execution_count: Option<u64>,
    /// The end of what it printed.
    pub stdout: String,
    /// The end of what it printed as errors.
    pub stderr: String,
    /// Number of earlier bytes of stdout that were dropped.
    pub stdout_dropped_bytes: u64,
    /// Number of earlier bytes of stderr that were dropped.
    pub stderr_dropped_bytes: u64,
    /// What it showed, in order.
    pub results: Vec<ShownResult>,
    /// Number of later results that were dropped because there were too many.
    pub results_dropped: u64,
    /// The error that ended it.
    pub error: Option<RaisedError>,
}

/// An event of an execution.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeEvent {
    /// The code is about to run; always the first event.
    Started {
        /// The context.
        #[schema(value_type = schema::ContextId)]
        context_id: ContextId,
        /// Its language.
        #[schema(value_type = schema::CodeLanguage)]
        language: CodeLanguage,
    },
    /// Output on stdout.
    Stdout {
        /// The text.
        text: String,
    },
    /// Output on stderr.
    Stderr {
        /// The text.
        text: String,
    },
    /// A value that the code showed.
    Result {
        /// The value.
        #[serde(flatten)]
        result: ShownResult,
    },
    /// An error that the code raised.
    Error {
        /// The error.
        #[serde(flatten)]
        error: RaisedError,
    },
    /// The execution ended; always the last event.
    Ended {
        /// How it ended.
        #[schema(value_type = schema::CodeStatus)]
        status: CodeStatus,
        /// How many executions the context has had; null if its process died.
        execution_count: Option<u64>,
    },
    /// The sandbox is gone, or can't be reached; this is the last event.
    Failed {
        /// The reason.
        problem: Problem,
    },
    /// An event that this version doesn't know. Never sent, only read.
    #[serde(other)]
    Other,
}

impl CodeEvent {
    /// The event's type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Stdout { .. } => "stdout",
            Self::Stderr { .. } => "stderr",
            Self::Result { .. } => "result",
            Self::Error { .. } => "error",
            Self::Ended { .. } => "ended",
            Self::Failed { .. } => "failed",
            Self::Other => "other",
        }
    }
}

only_from_an_object!(CreateCodeContext, RunCode);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_reads_back_with_its_formats() {
        let json = r#"{"type":"result","main":true,"formats":{"e2b/data":{"a":[1,null]},"text/plain":"é"}}"#;
        let event: CodeEvent = serde_json::from_str(json).unwrap();
        let CodeEvent::Result { result } = &event else { panic!("{event:?}") };
        assert_eq!(result.formats.text("text/plain").as_deref(), Some("é"));
        assert_eq!(result.formats.text("e2b/data"), None);
        assert_eq!(serde_json::to_string(&event).unwrap(), json);
        assert!(matches!(serde_json::from_str(r#"{"type":"news"}"#), Ok(CodeEvent::Other)));
    }
}
