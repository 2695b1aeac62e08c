//! The command lines of `saggar sandbox` and `saggar key`, as typed values.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use saggar_api::{CommandLine, DeadlineAction, FilePath, KeyName, Label, SandboxState, TemplateName};
use saggar_domain::{
    ByteSize, Count, Cpus, ExecId, GuestPath, KeyId, NetworkMode, ProjectName, SandboxId, Timeout, User,
};

use super::place::Place;
use crate::args::{env_entry, network_mode, user};

/// What every command of these says about its exit status.
pub(super) const STATUS: &str = "Exit status: 0 done; 1 the server refused; 125 our failure, or no server.\n\
    The server is SAGGAR_URL [default: http://127.0.0.1:7420], the key SAGGAR_API_KEY; both may be in ~/.config/saggar/config.toml.";
/// And those that run a program.
const EXEC_STATUS: &str = "Exit status: the program's own; 124 timed out; 125 our failure, or no server; 126 refused; 127 no such program; \
    128+N signal N; 137 out of memory; 130 cancelled.";

/// Make, use and end sandboxes of a server
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct SandboxArguments {
    #[command(subcommand)]
    pub(crate) command: SandboxCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

/// Make, list and revoke API keys of a server
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct KeyArguments {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

/// Which server, and as whom.
#[derive(Args, Debug, Default)]
pub(crate) struct ServerArguments {
    /// The server's address, such as http://127.0.0.1:7420
    #[arg(long, value_name = "URL", global = true, help_heading = "Server")]
    pub(crate) url: Option<String>,
    /// The API key; better in SAGGAR_API_KEY, where other users of this machine can't see it
    #[arg(long, value_name = "KEY", global = true, help_heading = "Server")]
    pub(crate) api_key: Option<String>,
    /// Certificates to trust besides the host's, in a PEM file
    #[arg(long, value_name = "FILE", global = true, help_heading = "Server")]
    pub(crate) ca: Option<PathBuf>,
    /// Print JSON: one object, or one a line where there is no end
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What to do with sandboxes.
#[derive(Subcommand, Debug)]
pub(crate) enum SandboxCommand {
    /// Make a sandbox, and print its id
    #[command(
        after_help = "Examples:\n  id=$(saggar sandbox create --ttl 1h --memory 512M --label team=red)\n  saggar sandbox create --network host --idle-timeout 10m --on-timeout pause --auto-resume"
    )]
    Create(Box<CreateArguments>),
    /// List sandboxes, newest first
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  saggar sandbox list\n  saggar sandbox list --state ended --label team=red --limit 20"
    )]
    List(ListArguments),
    /// Show one sandbox, alive or ended
    Show {
        /// Its id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
    },
    /// Run a program in a sandbox, its streams joined to ours
    #[command(
        after_help = format!("{EXEC_STATUS}\nCtrl-C interrupts the program and all it started; a second one kills them. A lost connection is made again.\n\nExamples:\n  saggar sandbox exec $id -- python3 -c 'print(6*7)'\n  saggar sandbox exec $id --cwd /tmp --timeout 1m -- make test\n  saggar sandbox exec $id --shell 'ls | wc -l'\n  saggar sandbox exec $id --background -- python3 server.py")
    )]
    Exec(Box<ExecArguments>),
    /// Open a terminal in a sandbox
    #[command(
        after_help = format!("{EXEC_STATUS}\n\nExamples:\n  saggar sandbox shell $id\n  saggar sandbox shell $id --user root -- python3")
    )]
    Shell(ShellArguments),
    /// Copy a file or a directory into or out of a sandbox
    #[command(
        after_help = "Directories are copied with everything in them. Out of a sandbox come files, directories and links that stay in the tree; no set-id bits, no devices, no links that lead elsewhere.\n\nExamples:\n  saggar sandbox cp app.py $id:/home/user/\n  saggar sandbox cp ./project $id:project\n  saggar sandbox cp $id:/tmp/out.csv ."
    )]
    Cp {
        /// A path here, or SANDBOX:PATH
        #[arg(value_name = "FROM", value_parser = OsStringValueParser::new().try_map(Place::parse))]
        from: Place,
        /// A path here, or SANDBOX:PATH
        #[arg(value_name = "TO", value_parser = OsStringValueParser::new().try_map(Place::parse))]
        to: Place,
        /// As whom inside: user or root
        #[arg(short, long, value_name = "USER", value_parser = user)]
        user: Option<User>,
    },
    /// Show what happened in a sandbox, or what one of its programs printed
    #[command(
        after_help = "Examples:\n  saggar sandbox logs $id\n  saggar sandbox logs $id -f\n  saggar sandbox logs $id exec_b5xp67dqheak6zygmmwjfuhq5f -f"
    )]
    Logs {
        /// Its id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// One of its execs: what that printed
        #[arg(value_name = "EXEC", value_parser = exec_id)]
        exec: Option<ExecId>,
        /// Go on with what comes, until the end
        #[arg(short, long)]
        follow: bool,
    },
    /// Tell of changes to files, or without a path of events, as they happen
    #[command(
        after_help = "Examples:\n  saggar sandbox watch $id\n  saggar sandbox watch $id /home/user --recursive --json"
    )]
    Watch {
        /// Its id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// A file or directory in it
        #[arg(value_name = "PATH", value_parser = FilePath::parse)]
        path: Option<FilePath>,
        /// Everything below it too
        #[arg(short, long, requires = "path")]
        recursive: bool,
    },
    /// Freeze sandboxes
    Pause {
        /// Their ids
        #[arg(value_name = "SANDBOX", required = true, value_parser = sandbox_id)]
        sandboxes: Vec<SandboxId>,
    },
    /// Let frozen sandboxes go on
    Resume {
        /// Their ids
        #[arg(value_name = "SANDBOX", required = true, value_parser = sandbox_id)]
        sandboxes: Vec<SandboxId>,
        /// Live so long from now [default: as long as was left]
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        ttl: Option<Timeout>,
    },
    /// End sandboxes, with everything in them
    #[command(
        visible_alias = "rm",
        after_help = "Examples:\n  saggar sandbox kill $id\n  saggar sandbox kill --all --label team=red"
    )]
    Kill {
        /// Their ids
        #[arg(value_name = "SANDBOX", required_unless_present = "all", value_parser = sandbox_id)]
        sandboxes: Vec<SandboxId>,
        /// All of the project that have not ended
        #[arg(long, conflicts_with = "sandboxes")]
        all: bool,
        /// With --all: only those with this label (repeatable)
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse, conflicts_with = "sandboxes")]
        labels: Vec<Label>,
    },
}

/// `saggar sandbox create`.
#[derive(Args, Debug)]
pub(crate) struct CreateArguments {
    /// What its filesystem starts from [default: base]
    #[arg(long, value_name = "NAME", value_parser = template_name)]
    pub(crate) template: Option<TemplateName>,
    /// For finding it again (repeatable)
    #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
    pub(crate) labels: Vec<Label>,
    /// A variable of every program's environment (repeatable)
    #[arg(short, long, value_name = "K=V", value_parser = env_entry)]
    pub(crate) env: Vec<(String, String)>,
    /// How long it lives [default: the server's, 5m unless configured]
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
    pub(crate) ttl: Option<Timeout>,
    /// How long it may be left alone [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
    pub(crate) idle_timeout: Option<Timeout>,
    /// What happens when its time is up: kill or pause [default: kill]
    #[arg(long, value_name = "ACTION", value_parser = on_timeout)]
    pub(crate) on_timeout: Option<DeadlineAction>,
    /// A request to it while it is paused resumes it
    #[arg(long)]
    pub(crate) auto_resume: bool,
    /// Network: none, or host (unmanaged: the server host's own, its loopback included) [default: none]
    #[arg(long, visible_alias = "net", value_name = "MODE", value_parser = network_mode)]
    pub(crate) network: Option<NetworkMode>,
    /// Who programs run as: user or root (of the sandbox only) [default: user]
    #[arg(short, long, value_name = "USER", value_parser = user)]
    pub(crate) user: Option<User>,
    /// A port that anyone who reaches the server may use, without key or token (repeatable)
    #[arg(long = "public-port", value_name = "PORT")]
    pub(crate) public_ports: Vec<u16>,
    /// Memory of the whole tree, private storage included
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    pub(crate) memory: Option<ByteSize>,
    /// CPUs
    #[arg(long, value_name = "N", value_parser = Cpus::parse)]
    pub(crate) cpus: Option<Cpus>,
    /// Processes and threads at once
    #[arg(long, value_name = "N", value_parser = Count::parse)]
    pub(crate) pids: Option<Count>,
    /// Storage the sandbox owns
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    pub(crate) disk: Option<ByteSize>,
    /// Open files of a process
    #[arg(long, value_name = "N", value_parser = Count::parse)]
    pub(crate) files: Option<Count>,
    /// Output kept of a program
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    pub(crate) output: Option<ByteSize>,
    /// Asked for twice with the same key, there is one sandbox
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
}

/// `saggar sandbox list`.
#[derive(Args, Debug)]
pub(crate) struct ListArguments {
    /// Only those in this state (repeatable) [default: all that have not ended]
    #[arg(long = "state", value_name = "STATE", value_parser = state)]
    pub(crate) states: Vec<SandboxState>,
    /// Those in any state, ended ones too
    #[arg(short, long, conflicts_with = "states")]
    pub(crate) all: bool,
    /// Only those with this label (repeatable)
    #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
    pub(crate) labels: Vec<Label>,
    /// Print only ids
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: u32,
}

/// `saggar sandbox exec`.
#[derive(Args, Debug)]
pub(crate) struct ExecArguments {
    /// The sandbox's id
    #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
    pub(crate) sandbox: SandboxId,
    /// A variable of the program's environment (repeatable)
    #[arg(short, long, value_name = "K=V", value_parser = env_entry)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory inside [default: the user's home]
    #[arg(long, value_name = "DIR", value_parser = GuestPath::parse)]
    pub(crate) cwd: Option<GuestPath>,
    /// Who the program runs as: user or root (of the sandbox only)
    #[arg(short, long, value_name = "USER", value_parser = user)]
    pub(crate) user: Option<User>,
    /// Wall-clock time
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
    pub(crate) timeout: Option<Timeout>,
    /// Memory of this program and all it starts
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    pub(crate) memory: Option<ByteSize>,
    /// CPUs of this program and all it starts
    #[arg(long, value_name = "N", value_parser = Cpus::parse)]
    pub(crate) cpus: Option<Cpus>,
    /// Processes and threads of this program and all it starts
    #[arg(long, value_name = "N", value_parser = Count::parse)]
    pub(crate) pids: Option<Count>,
    /// Where stdin comes from: none, a file, or - for ours without a terminal [default: ours; on a terminal, a terminal of its own]
    #[arg(long, value_name = "none|FILE|-")]
    pub(crate) stdin: Option<OsString>,
    /// Give the program a terminal of its own that may do anything to ours: clipboard, title and reports too
    #[arg(long, conflicts_with_all = ["background", "stdin"])]
    pub(crate) tty: bool,
    /// Start it, print its id, and leave it to itself
    #[arg(short = 'd', long, conflicts_with = "stdin")]
    pub(crate) background: bool,
    /// One line for /bin/sh -c instead of a program
    #[arg(long, value_name = "LINE", conflicts_with = "program")]
    pub(crate) shell: Option<String>,
    /// The program, and everything after it is its arguments; write -- before one whose name begins with a hyphen
    #[arg(trailing_var_arg = true, required_unless_present = "shell", value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}

impl ExecArguments {
    pub(crate) fn command(&self) -> CommandLine {
        match &self.shell {
            Some(line) => CommandLine::Shell(line.clone()),
            None => CommandLine::Words(self.program.clone()),
        }
    }
}

/// `saggar sandbox shell`.
#[derive(Args, Debug)]
pub(crate) struct ShellArguments {
    /// The sandbox's id
    #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
    pub(crate) sandbox: SandboxId,
    /// A variable of the environment (repeatable)
    #[arg(short, long, value_name = "K=V", value_parser = env_entry)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory inside [default: the user's home]
    #[arg(long, value_name = "DIR", value_parser = GuestPath::parse)]
    pub(crate) cwd: Option<GuestPath>,
    /// As whom: user or root (of the sandbox only)
    #[arg(short, long, value_name = "USER", value_parser = user)]
    pub(crate) user: Option<User>,
    /// Another program than a shell, after --
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}

/// What to do with keys.
#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Make a key, and print its secret: it is shown this once
    #[command(
        after_help = "Examples:\n  saggar key create ci --expires 30d\n  saggar key create mine --data-dir /var/lib/saggar\n  saggar key create theirs --data-dir /var/lib/saggar --project other"
    )]
    Create {
        /// What it is called
        #[arg(value_name = "NAME", value_parser = KeyName::parse)]
        name: KeyName,
        /// How long it works [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        expires: Option<Timeout>,
        /// Make it in this data directory, without a key, while no server runs there
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
        /// The project it belongs to, which is made if it isn't there [default: the server's first]
        #[arg(long, value_name = "NAME", value_parser = project_name, requires = "data_dir")]
        project: Option<ProjectName>,
    },
    /// List keys, without their secrets
    #[command(visible_alias = "ls")]
    List,
    /// Make a key stop working, at once
    Revoke {
        /// Its id
        #[arg(value_name = "KEY", value_parser = key_id)]
        key: KeyId,
    },
}

fn sandbox_id(text: &str) -> Result<SandboxId, String> {
    SandboxId::parse(text).ok_or_else(|| "not an id of the form sbx_…; `saggar sandbox list` shows them".to_owned())
}

fn exec_id(text: &str) -> Result<ExecId, String> {
    ExecId::parse(text)
        .ok_or_else(|| "not an id of the form exec_…; `saggar sandbox logs SANDBOX` shows them".to_owned())
}

fn key_id(text: &str) -> Result<KeyId, String> {
    KeyId::parse(text).ok_or_else(|| "not an id of the form key_…; `saggar key list` shows them".to_owned())
}

fn project_name(text: &str) -> Result<ProjectName, String> {
    ProjectName::parse(text).ok_or_else(|| "not a project's name: use lower-case letters, digits and dashes".to_owned())
}

fn state(text: &str) -> Result<SandboxState, String> {
    let names: Vec<&str> = SandboxState::ALL.iter().map(|state| state.as_str()).collect();
    SandboxState::parse(text).ok_or_else(|| format!("choose one of: {}", names.join(", ")))
}

fn on_timeout(text: &str) -> Result<DeadlineAction, String> {
    DeadlineAction::parse(text).ok_or_else(|| "choose one of: kill, pause".to_owned())
}

fn template_name(text: &str) -> Result<TemplateName, String> {
    TemplateName::parse(text).ok_or_else(|| {
        "not a template's name: use at most 64 of a-z, 0-9, dot, dash and underscore, a letter or digit first"
            .to_owned()
    })
}
