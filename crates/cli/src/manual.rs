//! Shell completions and manual pages, both generated from the command line's own description, so that they can't
//! disagree with it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use saggar_domain::{Code, Problem};

use crate::args::described;
use crate::outcome::{OUR_FAILURE, problem_text};

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  saggar completions bash > /etc/bash_completion.d/saggar\n  saggar completions zsh > ~/.zfunc/_saggar\n  saggar completions fish > ~/.config/fish/completions/saggar.fish"
)]
pub(crate) struct CompletionArguments {
    /// Shell to generate for
    #[arg(value_name = "SHELL")]
    shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  saggar man /usr/local/share/man/man1")]
pub(crate) struct ManArguments {
    /// Existing directory; one page per command is written to it
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn completions(arguments: &CompletionArguments) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut described(), "saggar", &mut script);
    match io::stdout().write_all(&script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(format!("the completions can't be printed: {error}"), "print them to a file"),
    }
}

pub(crate) fn pages(arguments: &ManArguments) -> ExitCode {
    let directory = &arguments.directory;
    if !directory.is_dir() {
        return failed(format!("{} is not a directory", directory.display()), "create it, or name another one");
    }
    match clap_mangen::generate_to(described(), directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(
            format!("manual pages can't be written to {}: {error}", directory.display()),
            "name a directory that you may write to",
        ),
    }
}

fn failed(what: String, help: &str) -> ExitCode {
    eprint!("{}", problem_text(&Problem::new(Code::SetupFailed, what, help)));
    ExitCode::from(OUR_FAILURE)
}
