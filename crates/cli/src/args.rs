//! The command line, parsed into typed values. An argument that is invalid by itself is rejected here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use saggar_domain::{TemplateName, Tier};
use saggar_front::{DoctorArguments, RunArguments, template_name, tier};

use crate::check::CheckArguments;
use crate::fixture::TestArguments;
use crate::hints::improve;
use crate::manual::{CompletionArguments, ManArguments};
use crate::net::NetArguments;
use crate::outcome::OUR_FAILURE;
use crate::remote::{
    AgentArguments, CodeArguments, KeyArguments, ModelArguments, RunsArguments, SandboxArguments, SecretArguments,
    ServerArguments, SnapshotArguments,
};
use crate::serve::{CopyArguments, ServeArguments};
use crate::settings::ConfigArguments;
use crate::template::TemplateArguments;
use crate::volume::VolumeArguments;

/// The runtime layer for AI agents: sandboxes with tested isolation, enforced limits, and durable runs.
#[derive(Parser, Debug)]
#[command(name = "saggar", version, max_term_width = 110)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run one program in a fresh sandbox, and remove it
    Run(Box<RunArguments>),
    /// Test which guarantees this host can provide
    Doctor(Later<DoctorArguments>),
    /// Attack sandboxes on this host and report which attempts were blocked
    Probe(Later<ProbeArguments>),
    /// Explain network rules, and show the named sets of rules
    Net(Later<NetArguments>),
    /// Show, apply or drop the changes of a scratch sandbox
    Changes(Later<ChangesArguments>),
    /// Import and build templates, which sandboxes start from
    Template(Later<TemplateArguments>),
    /// Make, list and remove volumes, which keep files between sandboxes
    Volume(Later<VolumeArguments>),
    /// Run the server: sandboxes and runs over HTTP
    Serve(Later<ServeArguments>),
    /// Show the server's settings
    Config(Later<ConfigArguments>),
    /// Back up a server's store to a file; the server may keep running
    Backup(Later<CopyArguments>),
    /// Restore a backup into a data directory that has no store
    Restore(Later<CopyArguments>),
    /// Verify a server's data directory; the server may keep running
    Check(Later<CheckArguments>),
    /// Create, use and end sandboxes on a server
    Sandbox(Later<SandboxArguments>),
    /// Write, check and run agents
    Agent(Later<AgentArguments>),
    /// Keep the files of sandboxes as snapshots, and start and fork others from them
    Snapshot(Later<SnapshotArguments>),
    /// Run code in a server's sandboxes, in contexts that keep what it defines
    Code(Later<CodeArguments>),
    /// Start, follow, steer and fork agent runs on a server
    Runs(Later<RunsArguments>),
    /// Replay run fixtures and report which have changed
    Test(Later<TestArguments>),
    /// Run a worker process that executes runs beside a server
    Worker(Later<ServeArguments>),
    /// Create, list and revoke a server's API keys
    Key(Later<KeyArguments>),
    /// Store, list and remove secrets, which programs in a sandbox use and never see
    Secret(Later<SecretArguments>),
    /// List and try the models of a server
    Models(Later<ModelArguments>),
    /// Print shell completions
    Completions(Later<CompletionArguments>),
    /// Write manual pages to a directory
    Man(Later<ManArguments>),
}

#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0 done; 1 some paths were refused (their changes are still kept), or the server refused; 125 saggar failed."
)]
pub(crate) struct ChangesArguments {
    #[command(subcommand)]
    pub(crate) command: ChangesCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
    /// Use the sandboxes of a server instead of this host's; --url implies it
    #[arg(long = "server", id = "on_server", global = true, help_heading = "Server", conflicts_with = "data_dir")]
    pub(crate) on_server: bool,
    /// Data directory: where records and changes are kept
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ChangesCommand {
    /// List the changes of one sandbox, or the sandboxes that have changes
    List {
        /// The sandbox's id
        sandbox: Option<String>,
        /// Also git's new objects one by one, which are otherwise counted
        #[arg(long)]
        all: bool,
    },
    /// Show changes as a text diff
    Diff {
        /// The sandbox's id
        sandbox: String,
        /// Only these paths and everything under them
        paths: Vec<OsString>,
        /// Also git's new objects, which are otherwise counted
        #[arg(long)]
        all: bool,
    },
    /// Apply changes to the workspace; paths that also changed on the host are refused
    Apply {
        /// The sandbox's id
        sandbox: String,
        /// Only these paths and everything under them; held-back paths must be named explicitly
        paths: Vec<OsString>,
    },
    /// Discard changes
    Drop {
        /// The sandbox's id
        sandbox: String,
    },
}

#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 if no case failed, 1 if a case failed, 125 saggar failed.")]
pub(crate) struct ProbeArguments {
    /// Isolation tier to probe [default: namespace]
    #[arg(long, value_name = "TIER", value_parser = tier)]
    pub(crate) tier: Option<Tier>,
    /// Template that the sandboxes start from [default: base]
    #[arg(long, value_name = "NAME[:TAG]", value_parser = template_name, conflicts_with = "via")]
    pub(crate) template: Option<TemplateName>,
    /// Run only this case (repeatable); F12 includes its variants F12b …
    #[arg(long = "case", value_name = "ID")]
    pub(crate) cases: Vec<String>,
    /// Print one JSON object per line for each case as it ends
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the full report to a file: Markdown (.md) or JSON (.json)
    #[arg(long, value_name = "FILE", conflicts_with = "via")]
    pub(crate) report: Option<PathBuf>,
    /// Run the attempts through another runtime: a command line in which {} is the attempt, and {workspace} and
    /// {probe} are directories
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["tier", "data_dir"])]
    pub(crate) via: Option<String>,
    /// Run the attempts as root with --via: attempts that the other runtime doesn't block will affect this host
    #[arg(long, requires = "via")]
    pub(crate) as_root: bool,
    /// Data directory: where records of live sandboxes are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

/// Arguments that are described to clap only when their command is used. There are many, and `saggar run` would pay
/// for them at every start.
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

/// Adds arguments but keeps the command's own title, because several commands share one set of arguments.
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

/// Parses the command line. An invalid one exits with saggar's own failure status, never with one that a program
/// could have returned.
pub(crate) fn parse() -> Result<Command, ExitCode> {
    match CommandLine::try_parse() {
        Ok(line) => Ok(line.command),
        Err(mut error) => {
            let words: Vec<String> =
                std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            improve(&mut error, &words);
            let complaint = match error.kind() {
                ErrorKind::InvalidUtf8 => not_text(),
                _ => error.to_string(),
            };
            if error.use_stderr() && wants_json() {
                return Err(saggar_front::misused(&complaint));
            }
            if error.kind() == ErrorKind::InvalidUtf8 {
                eprintln!("{complaint}\n\nFor more information, try '--help'.");
                return Err(ExitCode::from(OUR_FAILURE));
            }
            // If even the message can't be printed, there is nothing left to do.
            let _ = error.print();
            Err(if error.use_stderr() { ExitCode::from(OUR_FAILURE) } else { ExitCode::SUCCESS })
        }
    }
}

/// Names the argument that is not UTF-8, with the invalid bytes escaped. Clap doesn't name it.
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

/// Whether the output is meant for a program, as far as an invalid command line shows.
fn wants_json() -> bool {
    let ours: Vec<OsString> = std::env::args_os().take_while(|argument| argument != "--").collect();
    ours.iter().any(|argument| argument == "run") && ours.iter().any(|argument| argument == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn likely_mistakes_are_answered_with_what_was_meant() {
        for (line, expected) in [
            ("exec true", "did you mean `saggar run` or `saggar sandbox exec`?"),
            ("rnu true", "did you mean `saggar run` or `saggar runs`?"),
            ("run -m 64M true", "did you mean --memory?"),
            ("serve -p 7512", "did you mean --port?"),
            ("sandbox create --timeout 5m", "did you mean --ttl?"),
            ("sandbox kill", "name a sandbox, or use --all"),
            ("sandbox exec python3 -c print", "\"python3\" is not a sandbox's id, sbx_…"),
            ("key list --data-dir d", "leave out --data-dir"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let mut error = CommandLine::try_parse_from(["saggar"].into_iter().chain(line.split(' '))).unwrap_err();
            improve(&mut error, &words);
            let told = error.to_string();
            let tips: Vec<&str> = told.lines().filter(|line| line.contains("tip: ")).collect();
            assert!(matches!(tips[..], [tip] if tip.contains(expected)), "{line}: {told}");
            assert!(!told.contains("--on-timeout"), "{told}");
        }
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

    /// Each command's title is a sentence that describes it, not its name.
    fn check_titles(command: &clap::Command) {
        let (name, about) = title(command);
        assert!(about.contains(' ') && !about.starts_with('`'), "{name}: {about:?}");
        command.get_subcommands().for_each(check_titles);
    }

    #[test]
    fn a_network_mode_that_does_not_exist_names_those_that_do() {
        let refusal = saggar_front::network_mode("bridge").unwrap_err();
        assert_eq!(refusal, "choose one of: none, proxied, host");
    }
}
