//! Execs: a process tree to be started in a sandbox, and what there is to say of one.

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
    #[serde(default, skip_serializing_if = "Option::is_none", with = "terminal_size")]
    #[schema(value_type = Option<TerminalSizeShape>)]
    pub tty: Option<TerminalSize>,
    /// Wall-clock time it may take; without it, as long as the sandbox lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub timeout: Option<Timeout>,
    /// What this tree alone may use, within the sandbox's limits.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "exec_limits")]
    #[schema(value_type = Option<ExecLimitsShape>)]
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

/// What one exec may use, within the sandbox's limits.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "ExecLimits")]
#[schema(as = ExecLimits)]
pub struct ExecLimitsShape {
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Size>)]
    memory: Option<ByteSize>,
    /// Processes and threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Quantity>)]
    pids: Option<Count>,
    /// CPU time per wall-clock time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::CpuShare>)]
    cpus: Option<Cpus>,
}

/// A terminal's size in characters.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "TerminalSize")]
#[schema(as = TerminalSize)]
pub struct TerminalSizeShape {
    /// Lines.
    #[schema(minimum = 1)]
    rows: u16,
    /// Columns.
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
    #[schema(value_type = schema::ExecState)]
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
    #[schema(value_type = schema::SignalScope)]
    pub scope: SignalScope,
}

/// How what is sent to stdin ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    /// Whether stdin is closed after these bytes.
    pub end: bool,
}

only_from_an_object!(StartExec, SignalExec);
