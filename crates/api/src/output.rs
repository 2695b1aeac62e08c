//! The kept output of an exec, in the format of `saggar run --json`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::bytes::{decode, encode};
use crate::exec::Exec;

/// An exec with its kept output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecResult {
    /// The exec.
    #[serde(flatten)]
    pub exec: Exec,
    /// Its output.
    #[serde(flatten)]
    #[schema(value_type = Written)]
    pub output: Output,
}

/// Kept output of both streams: the last bytes of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct Output {
    /// The last bytes of stdout.
    pub stdout: Vec<u8>,
    /// The last bytes of stderr.
    pub stderr: Vec<u8>,
    /// Number of earlier bytes of stdout that were dropped.
    pub stdout_dropped: u64,
    /// Number of earlier bytes of stderr that were dropped.
    pub stderr_dropped: u64,
}

/// Each stream has either its text or its base64 form.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Output)]
struct Written {
    /// Kept stdout, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stdout: Option<String>,
    /// Kept stdout in base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "byte")]
    stdout_base64: Option<String>,
    /// Kept stderr, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stderr: Option<String>,
    /// Kept stderr in base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "byte")]
    stderr_base64: Option<String>,
    /// Whether the beginning of stdout was dropped.
    #[serde(default)]
    stdout_truncated: bool,
    /// Whether the beginning of stderr was dropped.
    #[serde(default)]
    stderr_truncated: bool,
    /// Number of dropped bytes of stdout.
    #[serde(default)]
    stdout_dropped_bytes: u64,
    /// Number of dropped bytes of stderr.
    #[serde(default)]
    stderr_dropped_bytes: u64,
}

impl From<Output> for Written {
    fn from(output: Output) -> Self {
        let split = |bytes: Vec<u8>| match String::from_utf8(bytes) {
            Ok(text) => (Some(text), None),
            Err(error) => (None, Some(encode(error.as_bytes()))),
        };
        let (stdout, stdout_base64) = split(output.stdout);
        let (stderr, stderr_base64) = split(output.stderr);
        Self {
            stdout,
            stdout_base64,
            stderr,
            stderr_base64,
            stdout_truncated: output.stdout_dropped > 0,
            stderr_truncated: output.stderr_dropped > 0,
            stdout_dropped_bytes: output.stdout_dropped,
            stderr_dropped_bytes: output.stderr_dropped,
        }
    }
}

impl TryFrom<Written> for Output {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let join = |text: Option<String>, base64: Option<String>| match (text, base64) {
            (Some(text), _) => Ok(text.into_bytes()),
            (None, Some(base64)) => decode(&base64),
            (None, None) => Ok(Vec::new()),
        };
        Ok(Self {
            stdout: join(written.stdout, written.stdout_base64)?,
            stderr: join(written.stderr, written.stderr_base64)?,
            stdout_dropped: written.stdout_dropped_bytes,
            stderr_dropped: written.stderr_dropped_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn output_is_text_or_base64_and_reads_back() {
        let output = Output { stdout: vec![0xff], stderr: b"ok".to_vec(), stdout_dropped: 3, stderr_dropped: 0 };
        let value = serde_json::to_value(&output).unwrap();
        assert_eq!(
            value,
            json!({"stdout_base64": "/w==", "stderr": "ok", "stdout_truncated": true, "stderr_truncated": false, "stdout_dropped_bytes": 3, "stderr_dropped_bytes": 0})
        );
        assert_eq!(serde_json::from_value::<Output>(value).unwrap(), output);
    }
}
