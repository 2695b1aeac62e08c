//! The flags of the commands that the front carries out itself, from raw text to typed values. What can be refused by looking at one argument
//! is refused here. The full program shows the same flags in its help, completions and manual pages.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use saggar_domain::{FsMode, GuestPath, HostPath, Mount, ProtectedPath, TemplateName, Tier, Timeout};

use crate::spec_flags::{SpecFlags, choice};

#[derive(Parser, Debug)]
#[command(name = "saggar")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Run(Box<RunArguments>),
    Doctor(Box<DoctorArguments>),
}

/// Reads the command line; `None` when it is not for the front.
pub(crate) fn parse() -> Option<Command> {
    CommandLine::try_parse().ok().map(|line| line.command)
}

/// `saggar run`. Limits accept values that begin with a hyphen, so that `--memory -1` is reported as an invalid size,
/// not as an unknown flag.
#[derive(Args, Debug)]
#[command(
    override_usage = "saggar run [OPTIONS] [--] PROGRAM [ARGUMENT]...\n       saggar run [OPTIONS] --template NAME[:TAG] [[--] PROGRAM [ARGUMENT]...]",
    after_help = "Options come before PROGRAM: everything after it is passed to the program. The program sees none of your files unless you add --workspace or --mount. Sizes are 64M or 2G, times 90s, 5m or 1h; a bare number is bytes or seconds.\n\nA pipe or a file on stdin is passed to the program. On a terminal the program gets its own terminal; sequences that touch the clipboard or the title, or request reports, are filtered out. A loop that reads its own stdin needs `--stdin none` or `</dev/null`.\n\nExit status: the program's own; 124 timed out; 125 saggar failed; 126 refused; 127 no such program; 128+N signal N; 137 out of memory; 130 cancelled."
)]
pub struct RunArguments {
    /// Template that the filesystem starts from: base (the host's programs), or one that was imported; its own
    /// command runs if no PROGRAM is given [default: base]
    #[arg(long, value_name = "NAME[:TAG]", value_parser = template_name)]
    pub template: Option<TemplateName>,
    /// Directory mounted at /workspace, the working directory
    #[arg(short = 'w', long, value_name = "DIR", value_parser = HostPath::parse)]
    pub workspace: Option<HostPath>,
    /// Write access to the workspace: read-only, workspace-write, scratch (copy-on-write), or worktree (of a git repository)
    #[arg(long, value_name = "MODE", value_parser = fs_mode)]
    pub fs: Option<FsMode>,
    /// Keep this workspace path unchanged, whether it exists or not (repeatable; a trailing / marks a directory)
    #[arg(long, value_name = "PATH", value_parser = ProtectedPath::parse)]
    pub protect: Vec<ProtectedPath>,
    /// Mount a host file or directory, read-only unless :rw (repeatable)
    #[arg(short = 'v', long = "mount", value_name = "HOST:GUEST[:rw]", value_parser = Mount::parse)]
    pub mounts: Vec<Mount>,
    #[command(flatten)]
    pub spec_flags: SpecFlags,
    /// Working directory inside the sandbox
    #[arg(long, value_name = "DIR", value_parser = GuestPath::parse)]
    pub cwd: Option<GuestPath>,
    /// Isolation tier
    #[arg(long, value_name = "TIER", value_parser = tier)]
    pub tier: Option<Tier>,
    /// Wall-clock time limit [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse, allow_hyphen_values = true)]
    pub timeout: Option<Timeout>,
    /// Refuse to start if a default limit can't be enforced on this host
    #[arg(long)]
    pub strict: bool,
    /// Read the spec from a TOML or JSON file; flags may add to it but not contradict it
    #[arg(long, value_name = "FILE")]
    pub spec: Option<PathBuf>,
    /// Read secrets from this TOML file, which only you may read [default: ~/.config/saggar/secrets.toml, and the
    /// keys saggar:NAME of your keyring]
    #[arg(long, value_name = "FILE")]
    pub secrets: Option<PathBuf>,
    /// Where stdin comes from: none, a file, or - for our stdin without a terminal [default: our stdin; on a
    /// terminal, a terminal of the program's own]
    #[arg(long, value_name = "none|FILE|-")]
    pub stdin: Option<OsString>,
    /// With --net proxied: ask on the terminal about hosts that no rule allows
    #[arg(long)]
    pub ask: bool,
    /// With --net proxied: write every request and its answer to a new file, without credentials; hosts are inspected
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub record: Option<PathBuf>,
    /// With --net proxied: answer requests from such a file alone, without any network
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Give the program its own terminal and pass all escape sequences through, including clipboard, title and
    /// reports
    #[arg(short, long, conflicts_with = "json")]
    pub tty: bool,
    /// Print one JSON object at the end instead of passing streams through
    #[arg(long)]
    pub json: bool,
    /// Write events as they happen, one JSON object per line; - is stdout and requires --json
    #[arg(long, value_name = "FILE|-")]
    pub events: Option<OsString>,
    /// Data directory: where records of live sandboxes are kept
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The program and its arguments, after all options; write -- before a program whose name begins with a hyphen
    #[arg(trailing_var_arg = true, required_unless_present_any = ["template", "spec"], value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 if the default tier is ready, 1 if not.")]
pub struct DoctorArguments {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Data directory: where records of live sandboxes are kept
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

pub fn template_name(text: &str) -> Result<TemplateName, String> {
    TemplateName::parse(text).ok_or_else(|| {
        "not a template's name: use at most 64 of a-z, 0-9, dot, dash and underscore, a letter or digit first, with or without a :tag".to_owned()
    })
}

fn fs_mode(text: &str) -> Result<FsMode, String> {
    choice(text, FsMode::parse, FsMode::ALL.iter().map(|choice| choice.as_str()))
}

pub fn tier(text: &str) -> Result<Tier, String> {
    choice(text, Tier::parse, Tier::ALL.iter().map(|choice| choice.as_str()))
}
