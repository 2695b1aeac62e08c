//! Execs: a process tree to start in a sandbox, and its description.

use saggar_domain::{ByteSize, Count, Cpus, Denial, ExecId, ExecStatus, GuestPath, SandboxId, Timeout, Usage, User};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::{IntoParams, ToSchema};

use crate::environment::Environment;
use crate::object::only_from_an_object;
use crate::problem::Problem;
use crate::schema;
use crate::signal::Signal;
use crate::time::Timestamp;

/// Maximum number of words of a command line.
const WORDS_MAX: usize = 4096;

/// A program to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct StartExec {
    /// The program and its arguments, or one line for `/bin/sh -c`.
    #[schema(value_type = schema::CommandWords)]
    pub command: CommandLine,
    /// Environment variables, in addition to the sandbox's own; these take precedence.
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub env: Environment,
    /// Working directory; by default the user's home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxPath>)]
    pub cwd: Option<GuestPath>,
    /// The user it runs as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
    /// Whether its stdin stays open for input that is sent later; otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// Gives it its own terminal of this size; stdout and stderr are then one stream, stdout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TerminalSize>,
    /// Wall-clock time limit; by default the sandbox's lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub timeout: Option<Timeout>,
    /// Limits of this process tree, within the sandbox's limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ExecLimits>,
    /// Maximum output kept, both streams together; the oldest is dropped first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub output_bytes: Option<ByteSize>,
    /// Whether to respond only after it has ended. It keeps running if the client disconnects.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub wait: bool,
}

impl StartExec {
    /// A command with defaults for everything else.
    pub fn new(command: CommandLine) -> Self {
        Self {
            command,
            env: Environment::default(),
            cwd: None,
            user: None,
            stdin: false,
            tty: None,
            timeout: None,
            limits: None,
            output_bytes: None,
            wait: true,
        }
    }
}

fn yes() -> bool {
    true
}

/// The program and its arguments, or one line for a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    /// The program, then its arguments; no shell.
    Words(Vec<String>),
    /// For `/bin/sh -c`.
    Shell(String),
}

impl CommandLine {
    /// The words that are executed.
    pub fn into_words(self) -> Vec<String> {
        match self {
            Self::Words(words) => words,
            Self::Shell(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        }
    }
}

impl Serialize for CommandLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Words(words) => words.serialize(serializer),
            Self::Shell(line) => line.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for CommandLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> de::Visitor<'de> for Either {
            type Value = CommandLine;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of words or one line for a shell")
            }

            fn visit_str<E: de::Error>(self, line: &str) -> Result<CommandLine, E> {
                check_word(line)?;
                Ok(CommandLine::Shell(line.to_owned()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<CommandLine, A::Error> {
                let mut words: Vec<String> = Vec::new();
                while let Some(word) = list.next_element::<String>()? {
                    if words.is_empty() {
                        check_word(&word)?;
                    }
                    if word.contains('\0') {
                        return Err(de::Error::custom("a word of the command has a NUL byte"));
                    }
                    if words.len() >= WORDS_MAX {
                        return Err(de::Error::custom(format!("the command has more than {WORDS_MAX} words")));
                    }
                    words.push(word);
                }
                if words.is_empty() {
                    return Err(de::Error::custom("the command is empty: name a program"));
                }
                Ok(CommandLine::Words(words))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

fn check_word<E: de::Error>(word: &str) -> Result<(), E> {
    if word.is_empty() {
        return Err(E::custom("the command is empty: name a program"));
    }
    if word.contains('\0') {
        return Err(E::custom("the command has a NUL byte"));
    }
    Ok(())
}

/// Limits of one exec, within the sandbox's limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct ExecLimits {
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub memory: Option<ByteSize>,
    /// Maximum number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>)]
    pub pids: Option<Count>,
    /// CPU limit, in CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::CpuShare>)]
    pub cpus: Option<Cpus>,
}

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct TerminalSize {
    /// Number of rows.
    #[schema(minimum = 1)]
    pub rows: u16,
    /// Number of columns.
    #[schema(minimum = 1)]
    pub cols: u16,
}

/// An exec, running or ended, without its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exec {
    /// The exec's id.
    #[schema(value_type = schema::ExecId)]
    pub id: ExecId,
    /// The sandbox it runs in.
    #[schema(value_type = schema::SandboxId)]
    pub sandbox_id: SandboxId,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The user it runs as; null if that is no longer known.
    #[serde(default)]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Whether it runs, or how it ended.
    pub status: ExecState,
    /// The program's process id inside the sandbox, while it runs.
    pub pid: Option<u32>,
    /// The program's exit code, if it exited.
    pub exit_code: Option<u8>,
    /// The number of the signal that ended it.
    pub signal: Option<u8>,
    /// When it was started.
    #[schema(value_type = schema::Instant)]
    pub started_at: Timestamp,
    /// When the program ended.
    #[schema(value_type = Option<schema::Instant>)]
    pub ended_at: Option<Timestamp>,
    /// How long it ran, in milliseconds.
    pub elapsed_ms: Option<u64>,
    /// Its resource usage; null while it runs, and if it wasn't measured.
    #[serde(default)]
    #[schema(value_type = Option<schema::UsageShape>)]
    pub usage: Option<Usage>,
    /// What the runtime refused or cut off: each kind once, at most eight. If a denial can't be attributed to one
    /// exec, all execs that were running have it.
    #[serde(default)]
    #[schema(value_type = Vec<schema::DenialShape>)]
    pub denials: Vec<Denial>,
    /// Why it did not end normally.
    #[serde(default)]
    pub error: Option<Problem>,
}

/// Whether an exec runs, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecState {
    /// It is running.
    Running,
    /// It exited with an exit code.
    Exited,
    /// A signal ended it.
    Signaled,
    /// It was killed when its time limit expired.
    TimedOut,
    /// It was killed on request, or because its sandbox ended.
    Cancelled,
    /// The kernel killed it because it ran out of memory.
    OutOfMemory,
    /// It was not started: the request is not allowed.
    Refused,
    /// It was not started: the program doesn't exist, or the like.
    SetupFailed,
    /// It was lost with its sandbox, and how it ended is unknown.
    Lost,
}

impl ExecState {
    /// Whether it has ended.
    pub fn is_ended(self) -> bool {
        match self {
            Self::Running => false,
            Self::Exited
            | Self::Signaled
            | Self::TimedOut
            | Self::Cancelled
            | Self::OutOfMemory
            | Self::Refused
            | Self::SetupFailed
            | Self::Lost => true,
        }
    }

    /// The state's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Signaled => "signaled",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::OutOfMemory => "out_of_memory",
            Self::Refused => "refused",
            Self::SetupFailed => "setup_failed",
            Self::Lost => "lost",
        }
    }
}

impl From<ExecStatus> for ExecState {
    fn from(status: ExecStatus) -> Self {
        match status {
            ExecStatus::Exited => Self::Exited,
            ExecStatus::Signaled => Self::Signaled,
            ExecStatus::TimedOut => Self::TimedOut,
            ExecStatus::Cancelled => Self::Cancelled,
            ExecStatus::OutOfMemory => Self::OutOfMemory,
            ExecStatus::Refused => Self::Refused,
            ExecStatus::SetupFailed => Self::SetupFailed,
        }
    }
}

/// All remembered execs of a sandbox, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecList {
    /// The execs.
    pub items: Vec<Exec>,
}

/// A signal to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SignalExec {
    /// The signal.
    #[schema(value_type = schema::SignalName)]
    pub signal: Signal,
    /// The processes that get it.
    #[serde(default)]
    pub scope: SignalScope,
}

/// The processes that get a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SignalScope {
    /// All descendants of the exec, including daemons.
    #[default]
    Tree,
    /// The program's own process group.
    Group,
}

/// Options for sending stdin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    /// Whether to close stdin after these bytes.
    pub end: bool,
}

only_from_an_object!(StartExec, ExecLimits, TerminalSize, SignalExec);
