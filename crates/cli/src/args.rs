//! The command line, from raw text to typed values. What can be refused by looking at one argument is refused here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use saggar_domain::{
    ByteSize, Count, Cpus, FsMode, GuestPath, HostPath, Mount, NetworkMode, ProtectedPath, Tier, Timeout, User,
};

use crate::check::CheckArguments;
use crate::fixture::TestArguments;
use crate::manual::{CompletionArguments, ManArguments};
use crate::outcome::OUR_FAILURE;
use crate::remote::{KeyArguments, RunsArguments, SandboxArguments};
use crate::serve::{CopyArguments, ServeArguments};
use crate::settings::ConfigArguments;

/// The runtime layer for AI agents: a boundary that it can prove, limits that it enforces, a record of what happened.
#[derive(Parser, Debug)]
#[command(name = "saggar", version, max_term_width = 110)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run one program in a fresh sandbox, and remove it
    Run(Box<RunArguments>),
    /// Say what this host can really guarantee, by trying it
    Doctor(Later<DoctorArguments>),
    /// Attack sandboxes made here, and say which attempts held
    Probe(Later<ProbeArguments>),
    /// Show, apply or drop what a scratch sandbox changed
    Changes(Later<ChangesArguments>),
    /// Give sandboxes to many, over the network
    Serve(Later<ServeArguments>),
    /// Show the server's settings
    Config(Later<ConfigArguments>),
    /// Copy a server's store to a file, while it runs or not
    Backup(Later<CopyArguments>),
    /// Make a backup the store of a data directory that has none
    Restore(Later<CopyArguments>),
    /// Verify a server's data directory, while it runs or not
    Check(Later<CheckArguments>),
    /// Make, use and end sandboxes of a server
    Sandbox(Later<SandboxArguments>),
    /// Begin, follow, steer and fork runs of agents on a server
    Runs(Later<RunsArguments>),
    /// Derive fixtures of runs again, and say which have changed
    Test(Later<TestArguments>),
    /// Drive runs beside a server, as another process
    Worker(Later<ServeArguments>),
    /// Make, list and revoke API keys of a server
    Key(Later<KeyArguments>),
    /// Print completions for a shell
    Completions(Later<CompletionArguments>),
    /// Write manual pages to a directory
    Man(Later<ManArguments>),
}

/// `saggar run`. Limits take values that begin with a hyphen, so that `--memory -1` is told of as a size and not as an unknown flag.
#[derive(Args, Debug)]
#[command(
    after_help = "A pipe or a file on stdin is passed to the program. On a terminal the program gets one of its own, which shows everything but clipboard, title and report sequences. A loop that reads its own stdin needs `--stdin none` or `</dev/null`.\n\nExit status: the program's own; 124 timed out; 125 our failure; 126 refused; 127 no such program; 128+N signal N; 137 out of memory; 130 cancelled."
)]
pub(crate) struct RunArguments {
    /// Directory mounted at /workspace, the working directory
    #[arg(short = 'w', long, value_name = "DIR", value_parser = HostPath::parse)]
    pub(crate) workspace: Option<HostPath>,
    /// What may be written of the workspace: read-only, workspace-write, scratch (copy-on-write)
    #[arg(long, value_name = "MODE", value_parser = fs_mode)]
    pub(crate) fs: Option<FsMode>,
    /// A path in the workspace that stays as it is, present or absent (repeatable; a trailing / says directory)
    #[arg(long, value_name = "PATH", value_parser = ProtectedPath::parse)]
    pub(crate) protect: Vec<ProtectedPath>,
    /// A file or directory of the host, read-only unless :rw (repeatable)
    #[arg(short = 'v', long = "mount", value_name = "HOST:GUEST[:rw]", value_parser = Mount::parse)]
    pub(crate) mounts: Vec<Mount>,
    /// A variable of the program's environment (repeatable); nothing is inherited
    #[arg(short = 'e', long, value_name = "K=V", value_parser = env_entry)]
    pub(crate) env: Vec<(String, String)>,
    /// Working directory inside
    #[arg(long, value_name = "DIR", value_parser = GuestPath::parse)]
    pub(crate) cwd: Option<GuestPath>,
    /// Who the program runs as: user (uid 1000, no capabilities) or root (of the sandbox only)
    #[arg(short = 'u', long, value_name = "USER", value_parser = user)]
    pub(crate) user: Option<User>,
    /// Network: none, or host (unmanaged: the host's own, its loopback included)
    #[arg(long, value_name = "MODE", value_parser = network_mode)]
    pub(crate) net: Option<NetworkMode>,
    /// Isolation primitive
    #[arg(long, value_name = "TIER", value_parser = tier)]
    pub(crate) tier: Option<Tier>,
    /// Wall-clock time [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Timeout>,
    /// Memory of the whole tree, private storage included [default: 2G]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    pub(crate) memory: Option<ByteSize>,
    /// CPUs [default: 2]
    #[arg(long, value_name = "N", value_parser = Cpus::parse, allow_hyphen_values = true)]
    pub(crate) cpus: Option<Cpus>,
    /// Processes and threads at once [default: 512]
    #[arg(long, value_name = "N", value_parser = Count::parse, allow_hyphen_values = true)]
    pub(crate) pids: Option<Count>,
    /// Storage the sandbox owns (/tmp, home, scratch layer); a workspace-write workspace is not covered [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    pub(crate) disk: Option<ByteSize>,
    /// Open files of a process [default: 4096]
    #[arg(long, value_name = "N", value_parser = Count::parse, allow_hyphen_values = true)]
    pub(crate) files: Option<Count>,
    /// Bytes kept of stdout and of stderr [default: 8M with --json; everything when live]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    pub(crate) output: Option<ByteSize>,
    /// Refuse to start when a default limit can't be enforced here
    #[arg(long)]
    pub(crate) strict: bool,
    /// Read the spec from a TOML or JSON file; flags may add to it, not contradict it
    #[arg(long, value_name = "FILE")]
    pub(crate) spec: Option<PathBuf>,
    /// Where stdin comes from: none, a file, or - for ours without a terminal [default: ours; on a terminal, a terminal of its own]
    #[arg(long, value_name = "none|FILE|-")]
    pub(crate) stdin: Option<OsString>,
    /// Give the program a terminal of its own that may do anything to ours: clipboard, title and reports too
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) tty: bool,
    /// Print one JSON object at the end instead of passing streams through
    #[arg(long)]
    pub(crate) json: bool,
    /// Write events as they happen, one JSON object a line; - is stdout and goes with --json
    #[arg(long, value_name = "FILE|-")]
    pub(crate) events: Option<OsString>,
    /// Where records of live sandboxes are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// The program, and everything after it is its arguments; write -- before one whose name begins with a hyphen
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// `saggar doctor`.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 when the default tier is ready, 1 when it isn't.")]
pub(crate) struct DoctorArguments {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Where records of live sandboxes are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// `saggar changes`.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 done; 1 some paths were refused, and are still kept; 125 our failure.")]
pub(crate) struct ChangesArguments {
    #[command(subcommand)]
    pub(crate) command: ChangesCommand,
    /// Print one JSON object
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Where records and changes are kept
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
}

/// What to do with them.
#[derive(Subcommand, Debug)]
pub(crate) enum ChangesCommand {
    /// What changed in one sandbox, or which sandboxes have changes
    List {
        /// The sandbox's id
        sandbox: Option<String>,
    },
    /// Text differences
    Diff {
        /// The sandbox's id
        sandbox: String,
        /// Only these paths, and what is in them
        paths: Vec<OsString>,
    },
    /// Bring them into the workspace; a path that the host changed meanwhile is refused
    Apply {
        /// The sandbox's id
        sandbox: String,
        /// Only these paths, and what is in them; what was held back has to be named itself
        paths: Vec<OsString>,
    },
    /// Forget them
    Drop {
        /// The sandbox's id
        sandbox: String,
    },
}

/// `saggar probe`.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 when nothing failed, 1 when a case did, 125 our failure.")]
pub(crate) struct ProbeArguments {
    /// Isolation primitive to probe [default: namespace]
    #[arg(long, value_name = "TIER", value_parser = tier)]
    pub(crate) tier: Option<Tier>,
    /// Only this case (repeatable); F12 means F12 and its variants F12b …
    #[arg(long = "case", value_name = "ID")]
    pub(crate) cases: Vec<String>,
    /// Print one JSON object a line for each case, as it ends
    #[arg(long)]
    pub(crate) json: bool,
    /// Write everything to a file, by its name Markdown (.md) or JSON (.json)
    #[arg(long, value_name = "FILE", conflicts_with = "via")]
    pub(crate) report: Option<PathBuf>,
    /// Make the attempts through another runtime: words with {} for the attempt, {workspace} and {probe} for directories
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["tier", "data_dir"])]
    pub(crate) via: Option<String>,
    /// Make them as root even so: what the other runtime doesn't hold back is done to this host
    #[arg(long, requires = "via")]
    pub(crate) as_root: bool,
    /// Where records of live sandboxes are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Arguments that are described to clap only when their command is the one: there are many, and `saggar run` would pay for them at every start.
#[derive(Debug)]
pub(crate) struct Later<T>(pub(crate) Box<T>);

impl<T: Args> Args for Later<T> {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.defer(|command| titled(command, T::augment_args))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command.defer(|command| titled(command, T::augment_args_for_update))
    }
}

/// Adds arguments and keeps the command's own title: several commands can share one set of arguments.
fn titled(command: clap::Command, augment: fn(clap::Command) -> clap::Command) -> clap::Command {
    let title = command.get_about().cloned().unwrap_or_default();
    augment(command).about(title)
}

impl<T: FromArgMatches> FromArgMatches for Later<T> {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(|arguments| Self(Box::new(arguments)))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// The whole command line as clap describes it, deferred arguments included.
pub(crate) fn described() -> clap::Command {
    let mut command = CommandLine::command();
    command.build();
    command
}

/// Reads the command line. A mistake in it exits with our own failure status, never with one a program could have.
pub(crate) fn parse() -> Result<Command, ExitCode> {
    match CommandLine::try_parse() {
        Ok(line) => Ok(line.command),
        Err(error) => {
            let complaint = match error.kind() {
                ErrorKind::InvalidUtf8 => not_text(),
                _ => error.to_string(),
            };
            if error.use_stderr() && wants_json() {
                return Err(crate::run::misused(&complaint));
            }
            if error.kind() == ErrorKind::InvalidUtf8 {
                eprintln!("{complaint}\n\nFor more information, try '--help'.");
                return Err(ExitCode::from(OUR_FAILURE));
            }
            // Nothing is left to do if even the message can't be printed.
            let _ = error.print();
            Err(if error.use_stderr() { ExitCode::from(OUR_FAILURE) } else { ExitCode::SUCCESS })
        }
    }
}

/// Names the argument that is not UTF-8, which clap doesn't, with what is strange in it made visible.
fn not_text() -> String {
    let mut flag = OsString::new();
    for argument in std::env::args_os().take_while(|argument| argument != "--") {
        if argument.to_str().is_none() {
            return format!(
                "error: {argument:?} after {flag:?} is not valid UTF-8: rename it, or name a directory above it"
            );
        }
        flag = argument;
    }
    "error: an argument is not valid UTF-8".to_owned()
}

/// Whether a program reads what we print, as far as a broken command line tells.
fn wants_json() -> bool {
    let ours: Vec<OsString> = std::env::args_os().take_while(|argument| argument != "--").collect();
    ours.iter().any(|argument| argument == "run") && ours.iter().any(|argument| argument == "--json")
}

fn choice<T>(
    text: &str,
    parse: impl Fn(&str) -> Option<T>,
    names: impl Iterator<Item = &'static str>,
) -> Result<T, String> {
    parse(text).ok_or_else(|| format!("choose one of: {}", names.collect::<Vec<_>>().join(", ")))
}

fn fs_mode(text: &str) -> Result<FsMode, String> {
    choice(text, FsMode::parse, FsMode::ALL.iter().map(|choice| choice.as_str()))
}

pub(crate) fn network_mode(text: &str) -> Result<NetworkMode, String> {
    // `proxied` is understood, so that it is refused as not built instead of as unknown; it is not offered.
    let offered = NetworkMode::ALL.iter().filter(|mode| **mode != NetworkMode::Proxied);
    choice(text, NetworkMode::parse, offered.map(|mode| mode.as_str()))
}

pub(crate) fn user(text: &str) -> Result<User, String> {
    choice(text, User::parse, User::ALL.iter().map(|choice| choice.as_str()))
}

fn tier(text: &str) -> Result<Tier, String> {
    choice(text, Tier::parse, Tier::ALL.iter().map(|choice| choice.as_str()))
}

pub(crate) fn env_entry(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    if name.is_empty() {
        return Err(format!("{text:?} has no name before the ="));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_command_has_the_title_that_the_list_of_commands_shows() {
        let listed: Vec<(String, String)> = CommandLine::command().get_subcommands().map(title).collect();
        let built: Vec<(String, String)> =
            described().get_subcommands().filter(|command| command.get_name() != "help").map(title).collect();
        assert_eq!(listed, built);
        check_titles(&described());
    }

    fn title(command: &clap::Command) -> (String, String) {
        (command.get_name().to_owned(), command.get_about().map(ToString::to_string).unwrap_or_default())
    }

    /// A title is a sentence about what the command does, not its name.
    fn check_titles(command: &clap::Command) {
        let (name, about) = title(command);
        assert!(about.contains(' ') && !about.starts_with('`'), "{name}: {about:?}");
        command.get_subcommands().for_each(check_titles);
    }

    #[test]
    fn help_offers_no_network_mode_that_is_not_built() {
        let refusal = network_mode("bridge").unwrap_err();
        assert_eq!(refusal, "choose one of: none, host");
        for command in described().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(!help.contains("proxied"), "{help}");
        }
    }
}
