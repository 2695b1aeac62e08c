//! Messages of the process service, as JSON. What they may also say, and isn't here, is ignored, as the protocol demands.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::object::Object;

/// A message that says nothing.
#[derive(Debug, Deserialize)]
pub(super) struct Nothing {}

/// Starts a process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StartRequest {
    pub(super) process: Object<ProcessConfig>,
    pub(super) pty: Option<Object<Pty>>,
    pub(super) tag: Option<String>,
    /// Absent from old clients, which mean yes.
    pub(super) stdin: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ProcessConfig {
    pub(super) cmd: String,
    pub(super) args: Vec<String>,
    pub(super) envs: BTreeMap<String, String>,
    pub(super) cwd: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pty {
    pub(super) size: Option<Object<Size>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Size {
    pub(super) cols: u32,
    pub(super) rows: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Selector {
    pub(super) pid: Option<u32>,
    pub(super) tag: Option<String>,
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.tag) {
            (Some(pid), _) => write!(f, "pid {pid}"),
            (None, Some(tag)) => write!(f, "tag {}", tag.chars().take(64).collect::<String>()),
            (None, None) => f.write_str("no pid and no tag"),
        }
    }
}

/// A request that says nothing but which process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Selected {
    pub(super) process: Object<Selector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UpdateRequest {
    pub(super) process: Object<Selector>,
    pub(super) pty: Option<Object<Pty>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SignalRequest {
    pub(super) process: Object<Selector>,
    pub(super) signal: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct InputRequest {
    pub(super) process: Object<Selector>,
    pub(super) input: Object<Input>,
}

/// Bytes for a process, in base64; what has a terminal gets them there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Input {
    pub(super) stdin: Option<String>,
    pub(super) pty: Option<String>,
}

/// One message of a stream of input.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamedInput {
    pub(super) start: Option<Object<Selected>>,
    pub(super) data: Option<Object<StreamedData>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamedData {
    pub(super) input: Object<Input>,
}
