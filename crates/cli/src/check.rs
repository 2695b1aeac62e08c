//! `saggar check`: verifies that everything in a data directory is intact.

use std::process::ExitCode;

use clap::Args;
use saggar_domain::{Code, Problem};
use saggar_server::{Checked, Config};
use serde::Serialize;

use crate::outcome::{OUR_FAILURE, problem_text};
use crate::settings::{VaultFlags, naming, refused};

/// Schema name in the `--json` output.
const SCHEMA: &str = "saggar.check/v1";

#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0 if no problems were found, 1 if there are findings, 125 if the data directory could not be read."
)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    data: VaultFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Continue without the writes that a damaged log has lost; open runs then pause for a human
    #[arg(long, conflicts_with = "json")]
    accept_loss: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    is_sound: bool,
    store_version: u32,
    runs: u64,
    entries: u64,
    blobs: u64,
    secrets: u64,
    findings: Vec<Found<'a>>,
}

#[derive(Serialize)]
struct Found<'a> {
    about: &'a str,
    what: &'a str,
}

pub(crate) fn main(arguments: &CheckArguments) -> ExitCode {
    let config = match arguments.data.load() {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    if arguments.accept_loss {
        return accept_loss(&config);
    }
    match saggar_server::check_data_directory(config.data_directory(), &config.key_file()) {
        Ok(checked) => {
            show(&checked, arguments.json);
            ExitCode::from(u8::from(!checked.findings.is_empty()))
        }
        Err(error) => failed(&config, &error.to_string(), error.help()),
    }
}

fn show(checked: &Checked, is_json: bool) {
    let Checked { schema, runs, entries, blobs, secrets, findings } = checked;
    if is_json {
        let findings = findings.iter().map(|found| Found { about: &found.about, what: &found.what }).collect();
        let is_sound = checked.findings.is_empty();
        let (store_version, runs, entries, blobs, secrets) = (*schema, *runs, *entries, *blobs, *secrets);
        let report = Report { schema: SCHEMA, is_sound, store_version, runs, entries, blobs, secrets, findings };
        println!("{}", serde_json::to_string(&report).expect("our own types have only text keys"));
        return;
    }
    for found in findings {
        println!("{}: {}", found.about, found.what);
    }
    println!("checked {runs} runs, {entries} entries, {blobs} blobs, {secrets} secrets: {} findings", findings.len());
}

fn accept_loss(config: &Config) -> ExitCode {
    match saggar_server::accept_loss(config.data_directory()) {
        Ok(true) => {
            println!(
                "accepted the loss of the damaged writes; open runs stay paused until they are resumed or cancelled"
            );
            ExitCode::SUCCESS
        }
        Ok(false) => {
            println!("no writes were lost; nothing was changed");
            ExitCode::SUCCESS
        }
        Err(error) => failed(config, &error.to_string(), error.help()),
    }
}

fn failed(config: &Config, what: &str, help: String) -> ExitCode {
    let what = naming(config.data_directory(), what);
    eprint!("{}", problem_text(&Problem::new(Code::DataDirectory, what, help)));
    ExitCode::from(OUR_FAILURE)
}
