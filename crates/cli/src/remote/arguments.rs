//! The command lines of `saggar sandbox` and `saggar key`, as typed values.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use saggar_api::{CommandLine, DeadlineAction, FilePath, KeyName, Label, SandboxState, TemplateName};
use saggar_domain::model::RouteName;
use saggar_domain::{
    ByteSize, Count, Cpus, ExecId, FsMode, GuestPath, HostPath, KeyId, ProjectName, SandboxId, SnapshotId, Timeout,
    User, WorkspaceName,
};

use super::place::Place;
use saggar_front::{SpecFlags, env_entry, template_name, user};

/// Exit statuses of commands that run no program.
pub(crate) const STATUS: &str = "Exit status: 0 done; 1 the server refused; 125 saggar failed, or no server answered.\n\
    The server is SAGGAR_URL [default: http://127.0.0.1:7420], the key SAGGAR_API_KEY; both may be in ~/.config/saggar/config.toml.";
/// Exit statuses of commands that run a program.
const EXEC_STATUS: &str = "Exit status: the program's own; 124 timed out; 125 saggar failed, or no server answered; 126 refused; 127 no such program; \
    128+N signal N; 137 out of memory; 130 cancelled.";

/// Create, use and end sandboxes on a server
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct SandboxArguments {
    #[command(subcommand)]
    pub(crate) command: SandboxCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

/// Create, list and revoke a server's API keys
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct KeyArguments {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

/// The server and the credentials to use.
#[derive(Args, Debug, Default)]
pub(crate) struct ServerArguments {
    /// The server's address, such as http://127.0.0.1:7420 or unix:/run/saggar.sock
    #[arg(long, value_name = "URL", global = true, help_heading = "Server")]
    pub(crate) url: Option<String>,
    /// API key; prefer SAGGAR_API_KEY, because other users of this machine can see command lines
    #[arg(long, value_name = "KEY", global = true, help_heading = "Server")]
    pub(crate) api_key: Option<String>,
    /// PEM file with certificates to trust in addition to the host's
    #[arg(long, value_name = "FILE", global = true, help_heading = "Server")]
    pub(crate) ca: Option<PathBuf>,
    /// Print JSON: one object, or one per line for streams
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SandboxCommand {
    /// Create a sandbox and print its id
    #[command(
        after_help = "Examples:\n  id=$(saggar sandbox create --ttl 1h --memory 512M --label team=red)\n  saggar sandbox create --net proxied --allow @pypi --allow api.example.com\n  saggar sandbox create --network host --idle-timeout 10m --on-timeout pause --auto-resume"
    )]
    Create(Box<CreateArguments>),
    /// List sandboxes, newest first
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  saggar sandbox list\n  saggar sandbox list --state ended --label team=red --limit 20"
    )]
    List(ListArguments),
    /// Show one sandbox, live or ended
    Show {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
    },
    /// Run a program in a sandbox, connected to our streams
    #[command(
        after_help = format!("{EXEC_STATUS}\nCtrl-C interrupts the program and all its children; a second Ctrl-C kills them. A lost connection is re-established.\n\nExamples:\n  saggar sandbox exec $id -- python3 -c 'print(6*7)'\n  saggar sandbox exec $id --cwd /tmp --timeout 1m -- make test\n  saggar sandbox exec $id --shell 'ls | wc -l'\n  saggar sandbox exec $id --background -- python3 server.py")
    )]
    Exec(Box<ExecArguments>),
    /// Open a terminal in a sandbox
    #[command(
        after_help = format!("{EXEC_STATUS}\n\nExamples:\n  saggar sandbox shell $id\n  saggar sandbox shell $id --user root -- python3")
    )]
    Shell(ShellArguments),
    /// Copy a file or a directory into or out of a sandbox
    #[command(
        after_help = "Directories are copied recursively. Copying out of a sandbox copies files, directories and links that stay inside the tree; set-id bits, devices and links that lead elsewhere are left out.\n\nExamples:\n  saggar sandbox cp app.py $id:/home/user/\n  saggar sandbox cp ./project $id:project\n  saggar sandbox cp $id:/tmp/out.csv ."
    )]
    Cp {
        /// A local path, or SANDBOX:PATH
        #[arg(value_name = "FROM", value_parser = OsStringValueParser::new().try_map(Place::parse))]
        from: Place,
        /// A local path, or SANDBOX:PATH
        #[arg(value_name = "TO", value_parser = OsStringValueParser::new().try_map(Place::parse))]
        to: Place,
        /// User inside the sandbox: user or root
        #[arg(short, long, value_name = "USER", value_parser = user)]
        user: Option<User>,
    },
    /// Show a sandbox's events, or the output of one of its programs
    #[command(
        after_help = "Examples:\n  saggar sandbox logs $id\n  saggar sandbox logs $id -f\n  saggar sandbox logs $id exec_b5xp67dqheak6zygmmwjfuhq5f -f"
    )]
    Logs {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// Show the output of this exec
        #[arg(value_name = "EXEC", value_parser = exec_id)]
        exec: Option<ExecId>,
        /// Keep following until the end
        #[arg(short, long)]
        follow: bool,
    },
    /// Watch a path for file changes, or without a path the sandbox's events
    #[command(
        after_help = "Examples:\n  saggar sandbox watch $id\n  saggar sandbox watch $id /home/user --recursive --json"
    )]
    Watch {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// File or directory in the sandbox
        #[arg(value_name = "PATH", value_parser = FilePath::parse)]
        path: Option<FilePath>,
        /// Watch everything below it too
        #[arg(short, long, requires = "path")]
        recursive: bool,
    },
    /// Freeze sandboxes
    Pause {
        /// End their processes, and keep only their files
        #[arg(long)]
        without_memory: bool,
        /// Sandbox ids
        #[arg(value_name = "SANDBOX", required = true, value_parser = sandbox_id)]
        sandboxes: Vec<SandboxId>,
    },
    /// Resume frozen sandboxes
    Resume {
        /// Sandbox ids
        #[arg(value_name = "SANDBOX", required = true, value_parser = sandbox_id)]
        sandboxes: Vec<SandboxId>,
        /// New lifetime from now on [default: the remaining time]
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        ttl: Option<Timeout>,
    },
    /// End sandboxes and everything in them
    #[command(
        visible_alias = "rm",
        after_help = "Examples:\n  saggar sandbox kill $id\n  saggar sandbox kill --all --label team=red"
    )]
    Kill {
        /// Sandbox ids
        #[arg(value_name = "SANDBOX", required_unless_present = "all", value_parser = sandbox_id)]
        sandboxes: Vec<SandboxId>,
        /// All of the project's sandboxes that have not ended
        #[arg(long, conflicts_with = "sandboxes")]
        all: bool,
        /// With --all: only those with this label (repeatable)
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse, conflicts_with = "sandboxes")]
        labels: Vec<Label>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct CreateArguments {
    /// Template the filesystem starts from [default: base]
    #[arg(long, value_name = "NAME", value_parser = template_name)]
    pub(crate) template: Option<TemplateName>,
    /// Snapshot that it starts from, instead of a template
    #[arg(long, value_name = "SNAPSHOT", value_parser = super::snapshot_arguments::snapshot_id, conflicts_with = "template")]
    pub(crate) snapshot: Option<SnapshotId>,
    /// Directory of the server's host, mounted copy-on-write at /workspace: a name that its operator gave, or through the server's
    /// Unix socket (--url unix:PATH) a path such as ./project
    #[arg(long, value_name = "NAME|DIR", value_parser = host_directory)]
    pub(crate) workspace: Option<HostDirectory>,
    /// How that directory is mounted: scratch (copy-on-write), or worktree (of a git repository) [default: scratch]
    #[arg(long, value_name = "MODE", requires = "workspace", value_parser = workspace_mode)]
    pub(crate) fs: Option<FsMode>,
    /// Label for finding the sandbox again (repeatable)
    #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
    pub(crate) labels: Vec<Label>,
    /// Lifetime [default: the server's, 5m unless configured]
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
    pub(crate) ttl: Option<Timeout>,
    /// End it after this long without activity [default: never]
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
    pub(crate) idle_timeout: Option<Timeout>,
    /// Action when its time is up: kill, pause, or rest, which is a pause without its memory [default: kill]
    #[arg(long, value_name = "ACTION", value_parser = on_timeout)]
    pub(crate) on_timeout: Option<DeadlineAction>,
    /// Resume it when a request arrives while it is paused
    #[arg(long)]
    pub(crate) auto_resume: bool,
    /// Port that is reachable without a key or token by any client of the server (repeatable)
    #[arg(long = "public-port", value_name = "PORT")]
    pub(crate) public_ports: Vec<u16>,
    /// Port that can be reached from outside at all, with a key or token unless it is public (repeatable) [default: every port]
    #[arg(long = "allow-port", value_name = "PORT")]
    pub(crate) allowed_ports: Vec<u16>,
    /// What programs inside get as the Host header of requests to their ports; ${PORT} stands for the port
    #[arg(long = "port-host", value_name = "HOST")]
    pub(crate) port_host: Option<String>,
    #[command(flatten)]
    pub(crate) spec_flags: SpecFlags,
    /// Model of the server that programs may call at http://model.internal, with --net proxied; 'all' for every one (repeatable)
    #[arg(long = "model", value_name = "NAME")]
    pub(crate) models: Vec<RouteName>,
    /// Idempotency key: repeating the request with the same key creates no second sandbox
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ListArguments {
    /// Only sandboxes in this state (repeatable) [default: all that have not ended]
    #[arg(long = "state", value_name = "STATE", value_parser = state)]
    pub(crate) states: Vec<SandboxState>,
    /// Sandboxes in any state, including ended
    #[arg(short, long, conflicts_with = "states")]
    pub(crate) all: bool,
    /// Only sandboxes with this label (repeatable)
    #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
    pub(crate) labels: Vec<Label>,
    /// Print only ids
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Maximum number to list
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: u32,
}

#[derive(Args, Debug)]
pub(crate) struct ExecArguments {
    /// The sandbox's id
    #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
    pub(crate) sandbox: SandboxId,
    /// Environment variable for the program (repeatable)
    #[arg(short, long, value_name = "K=V", value_parser = env_entry)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory inside the sandbox [default: the user's home]
    #[arg(long, value_name = "DIR", value_parser = GuestPath::parse)]
    pub(crate) cwd: Option<GuestPath>,
    /// User the program runs as: user or root (of the sandbox only)
    #[arg(short, long, value_name = "USER", value_parser = user)]
    pub(crate) user: Option<User>,
    /// Wall-clock time limit
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
    pub(crate) timeout: Option<Timeout>,
    /// Memory limit of this program and its children
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    pub(crate) memory: Option<ByteSize>,
    /// CPU limit of this program and its children, in CPUs
    #[arg(long, value_name = "N", value_parser = Cpus::parse)]
    pub(crate) cpus: Option<Cpus>,
    /// Maximum number of processes and threads of this program and its children
    #[arg(long, value_name = "N", value_parser = Count::parse)]
    pub(crate) pids: Option<Count>,
    /// Where stdin comes from: none, a file, or - for our stdin without a terminal [default: our stdin; on a
    /// terminal, a terminal of the program's own]
    #[arg(long, value_name = "none|FILE|-")]
    pub(crate) stdin: Option<OsString>,
    /// Give the program its own terminal and pass all escape sequences through, including clipboard, title and
    /// reports
    #[arg(long, conflicts_with_all = ["background", "stdin"])]
    pub(crate) tty: bool,
    /// Start the program in the background and print its id
    #[arg(short = 'd', long, conflicts_with = "stdin")]
    pub(crate) background: bool,
    /// Run this line with /bin/sh -c instead of a program
    #[arg(long, value_name = "LINE", conflicts_with = "program")]
    pub(crate) shell: Option<String>,
    /// The program and its arguments; write -- before a program whose name begins with a hyphen
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

#[derive(Args, Debug)]
pub(crate) struct ShellArguments {
    /// The sandbox's id
    #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
    pub(crate) sandbox: SandboxId,
    /// Environment variable (repeatable)
    #[arg(short, long, value_name = "K=V", value_parser = env_entry)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory inside the sandbox [default: the user's home]
    #[arg(long, value_name = "DIR", value_parser = GuestPath::parse)]
    pub(crate) cwd: Option<GuestPath>,
    /// User: user or root (of the sandbox only)
    #[arg(short, long, value_name = "USER", value_parser = user)]
    pub(crate) user: Option<User>,
    /// Program to run instead of a shell, after --
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Create a key and print its secret, which is shown only once
    #[command(
        after_help = "Examples:\n  saggar key create ci --expires 30d\n  saggar key create mine --data-dir /var/lib/saggar\n  saggar key create theirs --data-dir /var/lib/saggar --project other"
    )]
    Create {
        /// Name of the key
        #[arg(value_name = "NAME", value_parser = KeyName::parse)]
        name: KeyName,
        /// How long it is valid [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        expires: Option<Timeout>,
        /// Create it directly in this data directory, without an existing key; no server may be running there
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
        /// Project it belongs to, created if missing [default: the server's first]
        #[arg(long, value_name = "NAME", value_parser = project_name, requires = "data_dir")]
        project: Option<ProjectName>,
    },
    /// List keys, without their secrets
    #[command(visible_alias = "ls")]
    List,
    /// Revoke a key, effective immediately
    Revoke {
        /// The key's id
        #[arg(value_name = "KEY", value_parser = key_id)]
        key: KeyId,
    },
}

pub(crate) fn sandbox_id(text: &str) -> Result<SandboxId, String> {
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
    ProjectName::parse(text)
        .ok_or_else(|| "not a valid project name: use lower-case letters, digits and dashes".to_owned())
}

fn state(text: &str) -> Result<SandboxState, String> {
    let names: Vec<&str> = SandboxState::ALL.iter().map(|state| state.as_str()).collect();
    SandboxState::parse(text).ok_or_else(|| format!("choose one of: {}", names.join(", ")))
}

/// A directory of the server's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostDirectory {
    /// By the operator's name.
    Named(WorkspaceName),
    /// By its path, from the root directory.
    Path(HostPath),
}

pub(super) fn host_directory(text: &str) -> Result<HostDirectory, String> {
    if text.contains('/') || [".", ".."].contains(&text) {
        let path = std::path::absolute(text).map_err(|error| format!("the current directory: {}", error.kind()))?;
        let path = path.to_str().ok_or("its path is not UTF-8")?;
        return HostPath::parse(path).map(HostDirectory::Path);
    }
    WorkspaceName::parse(text).map(HostDirectory::Named).ok_or_else(|| {
        "neither a workspace's name, which the server's operator gave, nor a path such as ./project".to_owned()
    })
}

pub(super) fn workspace_mode(text: &str) -> Result<FsMode, String> {
    let mode = FsMode::parse(text).filter(|mode| matches!(mode, FsMode::Scratch | FsMode::Worktree));
    mode.ok_or_else(|| "choose one of: scratch, worktree".to_owned())
}

fn on_timeout(text: &str) -> Result<DeadlineAction, String> {
    DeadlineAction::parse(text).ok_or_else(|| "choose one of: kill, pause, rest".to_owned())
}
