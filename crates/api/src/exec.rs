//! Execs: a process tree to start in a sandbox, and its description.

use saggar_domain::{
    ByteSize, CommandLine, Count, Cpus, Denial, ExecId, ExecLimits, ExecSpec, ExecState, GuestPath, SandboxId, Signal,
    SignalScope, TerminalSize, Timeout, Usage, User,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::environment::Environment;
use crate::object::{only_from_an_object, shape_of};
use crate::problem::Problem;
use crate::schema;
use crate::time::Timestamp;

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
    #[serde(default, skip_serializing_if = "Option::is_none", with = "terminal_size")]
    #[schema(value_type = Option<TerminalSizeShape>)]
    pub tty: Option<TerminalSize>,
    /// Wall-clock time limit; by default the sandbox's lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub timeout: Option<Timeout>,
    /// Limits of this process tree, within the sandbox's limits.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "exec_limits")]
    #[schema(value_type = Option<ExecLimitsShape>)]
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

/// What is to be started, for the runtime. Whether to wait is the server's affair.
impl From<StartExec> for ExecSpec {
    fn from(start: StartExec) -> Self {
        let StartExec { command, env, cwd, user, stdin, tty, timeout, limits, output_bytes, wait: _ } = start;
        Self {
            argv: command.into_words(),
            env: env.into_map(),
            cwd: cwd.map(|cwd| cwd.as_str().to_owned()),
            user,
            stdin,
            tty,
            timeout,
            limits,
            output_bytes,
            tag: None,
        }
    }
}

/// Limits of one exec, within the sandbox's limits.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "ExecLimits")]
#[schema(as = ExecLimits)]
pub struct ExecLimitsShape {
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    memory: Option<ByteSize>,
    /// Maximum number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>)]
    pids: Option<Count>,
    /// CPU limit, in CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::CpuShare>)]
    cpus: Option<Cpus>,
}

/// A terminal's size in characters.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "TerminalSize")]
#[schema(as = TerminalSize)]
pub struct TerminalSizeShape {
    /// Number of rows.
    #[schema(minimum = 1)]
    rows: u16,
    /// Number of columns.
    #[schema(minimum = 1)]
    cols: u16,
}

shape_of!(terminal_size, TerminalSize as TerminalSizeShape);
shape_of!(exec_limits, ExecLimits as ExecLimitsShape);

/// The new size of an exec's terminal; on the wire, the size itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResizeExec(#[serde(with = "terminal_size::whole")] pub TerminalSize);

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
    #[schema(value_type = schema::ExecState)]
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
    #[schema(value_type = schema::SignalScope)]
    pub scope: SignalScope,
}

/// Options for sending stdin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    /// Whether to close stdin after these bytes.
    pub end: bool,
}

only_from_an_object!(StartExec, SignalExec);
