//! Execs: a process tree to be started in a sandbox, and what there is to say of one.

use saggar_domain::{ByteSize, Count, Cpus, Denial, ExecId, ExecStatus, GuestPath, SandboxId, Timeout, Usage, User};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::{IntoParams, ToSchema};

use crate::environment::Environment;
use crate::object::only_from_an_object;
use crate::problem::Problem;
use crate::schema;
use crate::signal::Signal;
use crate::time::Timestamp;

/// Most words of a command line.
const WORDS_MAX: usize = 4096;

/// A process tree to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct StartExec {
    /// The program and its arguments, or one line for `/bin/sh -c`.
    #[schema(value_type = schema::CommandWords)]
    pub command: CommandLine,
    /// Environment, over the sandbox's own.
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub env: Environment,
    /// Working directory; without it, the home of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxPath>)]
    pub cwd: Option<GuestPath>,
    /// Who it runs as; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
    /// Whether its stdin stays open for what is sent later; otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// A terminal of its own, of this size; both streams are then one, stdout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TerminalSize>,
    /// Wall-clock time it may take; without it, as long as the sandbox lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub timeout: Option<Timeout>,
    /// What this tree alone may use, within the sandbox's limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ExecLimits>,
    /// Output kept at most, both streams together; the oldest goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub output_bytes: Option<ByteSize>,
    /// Whether to answer when it has ended. A client that goes away meanwhile doesn't end it.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub wait: bool,
}

impl StartExec {
    /// A command with everything else as it is by default.
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
    /// What is started.
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

/// What one exec may use, within the sandbox's limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct ExecLimits {
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    pub memory: Option<ByteSize>,
    /// Processes and threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>)]
    pub pids: Option<Count>,
    /// CPU time per wall-clock time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::CpuShare>)]
    pub cpus: Option<Cpus>,
}

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct TerminalSize {
    /// Lines.
    #[schema(minimum = 1)]
    pub rows: u16,
    /// Columns.
    #[schema(minimum = 1)]
    pub cols: u16,
}

/// An exec, running or ended, without its output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Exec {
    /// Its id.
    #[schema(value_type = schema::ExecId)]
    pub id: ExecId,
    /// Where it runs.
    #[schema(value_type = schema::SandboxId)]
    pub sandbox_id: SandboxId,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Who it runs as; null where that is no longer known.
    #[serde(default)]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// What it does now, or how it ended.
    pub status: ExecState,
    /// The program's process id inside the sandbox, while it runs.
    pub pid: Option<u32>,
    /// The program's exit code, when it exited.
    pub exit_code: Option<u8>,
    /// The signal's number, when one ended it.
    pub signal: Option<u8>,
    /// When it was started.
    #[schema(value_type = schema::Instant)]
    pub started_at: Timestamp,
    /// When the program ended.
    #[schema(value_type = Option<schema::Instant>)]
    pub ended_at: Option<Timestamp>,
    /// How long it ran.
    pub elapsed_ms: Option<u64>,
    /// What it used; null while it runs, and where nobody counted.
    #[serde(default)]
    #[schema(value_type = Option<schema::UsageShape>)]
    pub usage: Option<Usage>,
    /// What the runtime refused or cut off, each kind once and at most eight. Where it can't be told which exec's process it was, all that ran
    /// have it.
    #[serde(default)]
    #[schema(value_type = Vec<schema::DenialShape>)]
    pub denials: Vec<Denial>,
    /// Why it isn't an ordinary end.
    #[serde(default)]
    pub error: Option<Problem>,
}

/// What an exec does now, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecState {
    /// It runs.
    Running,
    /// It ended by itself, with an exit code.
    Exited,
    /// It ended by a signal.
    Signaled,
    /// It was ended when its time was up.
    TimedOut,
    /// It was ended because a client asked, or its sandbox ended.
    Cancelled,
    /// The kernel ended it when its memory was used up.
    OutOfMemory,
    /// It was not started: it asks for what can't or may not be.
    Refused,
    /// It was not started: no such program, or the like.
    SetupFailed,
    /// It was lost with its sandbox, and how it ended is not known.
    Lost,
}

impl ExecState {
    /// Whether there is nothing more to come.
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

    /// The name.
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

/// All execs of a sandbox that are remembered, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecList {
    /// The execs.
    pub items: Vec<Exec>,
}

/// A signal to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SignalExec {
    /// Which.
    #[schema(value_type = schema::SignalName)]
    pub signal: Signal,
    /// To whom.
    #[serde(default)]
    pub scope: SignalScope,
}

/// Who gets a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SignalScope {
    /// Every process that descends from the exec, daemonised ones too.
    #[default]
    Tree,
    /// The program's own process group.
    Group,
}

/// How what is sent to stdin ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    /// Whether stdin is closed after these bytes.
    pub end: bool,
}

only_from_an_object!(StartExec, ExecLimits, TerminalSize, SignalExec);
