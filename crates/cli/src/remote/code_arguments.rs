//! The command line of `saggar code`, as typed values.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use saggar_api::{CodeLanguage, TemplateName};
use saggar_domain::{ContextId, GuestPath, SandboxId, Timeout};
use saggar_front::{env_entry, template_name};

use super::arguments::{STATUS, ServerArguments, sandbox_id};

/// Exit statuses of `saggar code run`.
const RUN_STATUS: &str = "Exit status: 0 the code ran; 1 it raised an error, or the server refused; 124 timed out; 125 saggar failed; 130 cancelled.";

#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct CodeArguments {
    #[command(subcommand)]
    pub(crate) command: CodeCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Subcommand, Debug)]
pub(crate) enum CodeCommand {
    /// Run code in a sandbox, or in a new one that is removed afterwards
    #[command(
        after_help = format!("{RUN_STATUS}\nCtrl-C interrupts the code.\n\nExamples:\n  saggar code run -c 'import math; math.pi'\n  saggar code run --sandbox $id analysis.py --save plots\n  saggar code run --lang bash --sandbox $id -c 'cd /tmp; pwd'")
    )]
    Run(Box<RunCodeArguments>),
    /// Start a context and print its id
    Create {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// Its language: python, javascript, typescript or bash [default: python]
        #[arg(long = "lang", value_name = "LANG", value_parser = language)]
        language: Option<CodeLanguage>,
        /// Its working directory [default: the user's home]
        #[arg(long, value_name = "DIR", value_parser = GuestPath::parse)]
        cwd: Option<GuestPath>,
        /// Environment variable (repeatable)
        #[arg(short, long, value_name = "K=V", value_parser = env_entry)]
        env: Vec<(String, String)>,
    },
    /// List the contexts of a sandbox
    #[command(visible_alias = "ls")]
    List {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
    },
    /// Start a context anew, without what its code defined
    Restart {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// The context's id
        #[arg(value_name = "CONTEXT", value_parser = context_id)]
        context: ContextId,
    },
    /// End a context
    #[command(visible_alias = "rm")]
    Remove {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// The context's id
        #[arg(value_name = "CONTEXT", value_parser = context_id)]
        context: ContextId,
    },
}

#[derive(Args, Debug)]
pub(crate) struct RunCodeArguments {
    /// The sandbox to run it in [default: a new one, which is removed afterwards]
    #[arg(long, value_name = "SANDBOX", value_parser = sandbox_id)]
    pub(crate) sandbox: Option<SandboxId>,
    /// The context to run it in [default: that of the language]
    #[arg(long, value_name = "CONTEXT", value_parser = context_id, requires = "sandbox", conflicts_with = "language")]
    pub(crate) context: Option<ContextId>,
    /// Language: python, javascript, typescript or bash [default: by the file's name, else python]
    #[arg(long = "lang", value_name = "LANG", value_parser = language)]
    pub(crate) language: Option<CodeLanguage>,
    /// Template of a new sandbox [default: base]
    #[arg(long, value_name = "NAME", value_parser = template_name, conflicts_with = "sandbox")]
    pub(crate) template: Option<TemplateName>,
    /// Environment variable for this execution (repeatable)
    #[arg(short, long, value_name = "K=V", value_parser = env_entry)]
    pub(crate) env: Vec<(String, String)>,
    /// Wall-clock time limit
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
    pub(crate) timeout: Option<Timeout>,
    /// Directory for results that aren't text, such as images; it is made if missing
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
    /// The code itself
    #[arg(short, long = "code", value_name = "CODE", conflicts_with = "file")]
    pub(crate) code: Option<String>,
    /// File with the code; - or nothing for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

fn language(text: &str) -> Result<CodeLanguage, String> {
    let names: Vec<&str> = CodeLanguage::ALL.iter().map(|language| language.as_str()).collect();
    CodeLanguage::parse(text).ok_or_else(|| format!("choose one of: {}", names.join(", ")))
}

fn context_id(text: &str) -> Result<ContextId, String> {
    ContextId::parse(text)
        .ok_or_else(|| "not an id of the form ctx_…; `saggar code list SANDBOX` shows them".to_owned())
}
