//! The command line of `saggar agent`, as typed values.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use saggar_api::Label;
use saggar_domain::FsMode;

use super::arguments::{HostDirectory, ServerArguments, host_directory, workspace_mode};

/// Exit statuses of `saggar agent`.
const STATUS: &str = "Exit status: 0 done; 1 the agent is invalid, the server refused, or the run did not complete; 125 saggar failed; 130 interrupted.\n\
    The server is SAGGAR_URL, the key SAGGAR_API_KEY; both may be in ~/.config/saggar/config.toml. Without any of them `agent run` starts a server as this user, and stops it when nothing needs it.";

#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct AgentArguments {
    #[command(subcommand)]
    pub(crate) command: AgentCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Subcommand, Debug)]
pub(crate) enum AgentCommand {
    /// Write an agent file to start from
    #[command(after_help = "Example:\n  saggar agent init && saggar agent run 'Say hello'")]
    Init {
        /// File to write; an existing one is left alone
        #[arg(value_name = "FILE", default_value = "agent.toml")]
        file: PathBuf,
        /// Name of the agent [default: the name of the directory]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// Check agent files without starting anything, and print their hashes
    #[command(after_help = "Whether secrets, templates and volumes exist is checked by the server that starts a run.")]
    Check {
        /// Agent files
        #[arg(value_name = "FILE", default_value = "agent.toml")]
        files: Vec<PathBuf>,
    },
    /// Start a run of an agent and follow it
    #[command(
        after_help = "Ctrl-C asks whether to pause the run, to cancel it, or to leave it running.\n\nExamples:\n  saggar agent run 'Mend the test' --workspace .\n  saggar agent run --agent agents/mender.toml --detach 'Mend the test'"
    )]
    Run {
        /// What the agent is asked to do [default: the task in its file]
        #[arg(value_name = "TASK")]
        task: Option<String>,
        /// Agent file in TOML or JSON
        #[arg(short, long, value_name = "FILE", default_value = "agent.toml")]
        agent: PathBuf,
        /// Directory at /workspace, copy-on-write: a path such as `.`, through the server's Unix socket, or a name that the
        /// server's operator gave. It stays as it is until you apply the changes
        #[arg(short, long, value_name = "NAME|DIR", value_parser = host_directory)]
        workspace: Option<HostDirectory>,
        /// How that directory is mounted: scratch (copy-on-write), or worktree (of a git repository) [default: scratch]
        #[arg(long, value_name = "MODE", value_parser = workspace_mode)]
        fs: Option<FsMode>,
        /// Label for finding the run again (repeatable)
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
        labels: Vec<Label>,
        /// Idempotency key: repeating the command with the same key follows the same run
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// Start the run, print its id and don't follow it
        #[arg(short, long)]
        detach: bool,
    },
    /// List the agent files of a directory, and below agents/ in it
    #[command(visible_alias = "ls")]
    List {
        /// The directory
        #[arg(value_name = "DIR", default_value = ".")]
        directory: PathBuf,
    },
    /// Show an agent with all its defaults: of a file, or of a run
    #[command(after_help = "Examples:\n  saggar agent show\n  saggar agent show run_72hhrl2pfylqse7tbxge6jle3a")]
    Show {
        /// Agent file, or the id of a run
        #[arg(value_name = "FILE|RUN", default_value = "agent.toml")]
        agent: PathBuf,
    },
}
