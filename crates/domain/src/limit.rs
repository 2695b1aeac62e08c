//! Limits: what a sandbox may use at most, each with a default, each knowing whether it was asked for.
//!
//! The difference matters: a limit that was asked for and can't be enforced is refused, a default that can't be is reported.

use serde::Serialize;

use crate::draft::DraftLimits;
use crate::problem::{Code, Problem};
use crate::quantity::{ByteSize, Count, Cpus, Timeout};

/// One limit's value and where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit<T> {
    pub value: T,
    /// Whether a user named it, rather than the default standing in.
    pub is_asked: bool,
}

/// In the policy only the value counts: the same boundary has the same hash, however it was come by.
impl<T: Serialize> Serialize for Limit<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

/// All limits of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Wall-clock time of an exec.
    pub timeout: Limit<Timeout>,
    /// Memory of the whole tree, its private storage included.
    pub memory: Limit<ByteSize>,
    /// CPU time per wall-clock time.
    pub cpus: Limit<Cpus>,
    /// Processes and threads at once.
    pub pids: Limit<Count>,
    /// Storage the sandbox owns; a bind-mounted workspace is not covered.
    pub disk: Limit<ByteSize>,
    /// Open files per process.
    pub files: Limit<Count>,
    /// Bytes kept of each of stdout and stderr.
    pub output: Limit<ByteSize>,
}

/// The name of a limit, as in flags, results and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitName {
    Timeout,
    Memory,
    Cpus,
    /// Processes and threads.
    Pids,
    Disk,
    Files,
    Output,
}

impl LimitName {
    /// Every limit, in the order people are shown them.
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
    /// Fills what was not asked for with the defaults, and refuses what no program could run under or no host could give.
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
        return Err(Problem::new(
            Code::InvalidValue,
            format!("limit {} of {value} is out of range", name.as_str()),
            format!("choose a value from {least} to {most}"),
        ));
    }
    Ok(Limit { value, is_asked: asked.is_some() })
}
