//! Limits: the most a sandbox may use. Each has a default, and records whether it was requested.
//!
//! The difference matters: a requested limit that can't be enforced is refused, while a default that can't be enforced
//! is reported.

use serde::{Deserialize, Serialize};

use crate::problem::{Code, Problem};
use crate::quantity::{ByteSize, Count, Cpus, Timeout};
use crate::table::{one_of, only_from_a_table};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit<T> {
    pub value: T,
    /// Whether a user set it; otherwise it is the default.
    pub is_asked: bool,
}

/// The policy contains only the value: the same boundary has the same hash, wherever its limits came from.
impl<T: Serialize> Serialize for Limit<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Wall-clock time of an exec.
    pub timeout: Limit<Timeout>,
    /// Memory of the whole process tree, private storage included.
    pub memory: Limit<ByteSize>,
    /// Number of CPUs: CPU time per wall-clock time.
    pub cpus: Limit<Cpus>,
    /// Maximum number of processes and threads at once.
    pub pids: Limit<Count>,
    /// Storage that belongs to the sandbox; a bind-mounted workspace is not covered.
    pub disk: Limit<ByteSize>,
    /// Open files per process.
    pub files: Limit<Count>,
    /// Bytes captured of each of stdout and stderr.
    pub output: Limit<ByteSize>,
}

/// Limits with holes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct DraftLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,
    /// Memory of the tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<ByteSize>,
}

only_from_a_table!(DraftLimits);

impl DraftLimits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn merge(self, other: Self) -> Result<Self, Problem> {
        Ok(Self {
            timeout: one_of("timeout", self.timeout, other.timeout)?,
            memory: one_of("memory", self.memory, other.memory)?,
            cpus: one_of("cpus", self.cpus, other.cpus)?,
            pids: one_of("pids", self.pids, other.pids)?,
            disk: one_of("disk", self.disk, other.disk)?,
            files: one_of("files", self.files, other.files)?,
            output: one_of("output", self.output, other.output)?,
        })
    }
}

/// The name of a limit, as in flags, results and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    Timeout,
    Memory,
    Cpus,
    Pids,
    Disk,
    Files,
    Output,
}

impl LimitName {
    /// In display order.
    pub const ALL: &[Self] =
        &[Self::Timeout, Self::Memory, Self::Cpus, Self::Pids, Self::Disk, Self::Files, Self::Output];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Memory => "memory",
            Self::Cpus => "cpus",
            Self::Pids => "pids",
            Self::Disk => "disk",
            Self::Files => "files",
            Self::Output => "output",
        }
    }
}

impl Limits {
    /// Fills in defaults. Refuses values too small for any program to run, or too large for any host.
    pub fn resolve(draft: &DraftLimits) -> Result<Self, Problem> {
        Ok(Self {
            timeout: pick(
                LimitName::Timeout,
                draft.timeout,
                Timeout::millis(3_600_000),
                Timeout::millis(1),
                Timeout::millis(30 * 86_400_000),
            )?,
            memory: pick(
                LimitName::Memory,
                draft.memory,
                ByteSize::mebibytes(2048),
                ByteSize::mebibytes(8),
                ByteSize::mebibytes(64 << 20),
            )?,
            cpus: pick(LimitName::Cpus, draft.cpus, Cpus::millis(2000), Cpus::millis(10), Cpus::millis(1_024_000))?,
            pids: pick(LimitName::Pids, draft.pids, Count::new(512), Count::new(4), Count::new(4_194_304))?,
            disk: pick(
                LimitName::Disk,
                draft.disk,
                ByteSize::mebibytes(1024),
                ByteSize::mebibytes(1),
                ByteSize::mebibytes(64 << 20),
            )?,
            files: pick(LimitName::Files, draft.files, Count::new(4096), Count::new(16), Count::new(1_048_576))?,
            output: pick(
                LimitName::Output,
                draft.output,
                ByteSize::mebibytes(8),
                ByteSize::mebibytes(0),
                ByteSize::mebibytes(1024),
            )?,
        })
    }
}

fn pick<T: Copy + Ord + std::fmt::Display>(
    name: LimitName,
    asked: Option<T>,
    default: T,
    least: T,
    most: T,
) -> Result<Limit<T>, Problem> {
    let value = asked.unwrap_or(default);
    if value < least || value > most {
        let (mut shown, mut help) = (value.to_string(), format!("choose a value from {least} to {most}"));
        // A size without a unit is a number of bytes, which is rarely meant.
        if matches!(name, LimitName::Memory | LimitName::Disk) && shown.bytes().all(|byte| byte.is_ascii_digit()) {
            help = format!("{help}; did you mean {shown}M?");
            shown.push_str(" bytes");
        }
        let message = format!("limit {} of {shown} is out of range", name.as_str());
        return Err(Problem::new(Code::InvalidValue, message, help));
    }
    Ok(Limit { value, is_asked: asked.is_some() })
}
