//! `saggar check`: is everything in a data directory what was once written?

use std::process::ExitCode;

use clap::Args;
use saggar_domain::{Code, Problem};
use saggar_server::{Checked, Config};
use serde::Serialize;

use crate::outcome::{OUR_FAILURE, problem_text};
use crate::settings::{DataFlags, refused};

/// What is printed with `--json`.
const SCHEMA: &str = "saggar.check/v1";

/// `saggar check`.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0 when nothing is wrong, 1 when something is, 125 when the data directory could not be looked at."
)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    data: DataFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Go on without the writes that a damaged log has lost; open runs then wait for a person
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
    match saggar_server::check_data_directory(&config.data_directory) {
        Ok(checked) => {
            show(&checked, arguments.json);
            ExitCode::from(u8::from(!checked.findings.is_empty()))
        }
        Err(error) => failed(error.to_string(), error.help()),
    }
}

fn show(checked: &Checked, is_json: bool) {
    let Checked { schema, runs, entries, blobs, findings } = checked;
    if is_json {
        let findings = findings.iter().map(|found| Found { about: &found.about, what: &found.what }).collect();
        let is_sound = checked.findings.is_empty();
        let (store_version, runs, entries, blobs) = (*schema, *runs, *entries, *blobs);
        let report = Report { schema: SCHEMA, is_sound, store_version, runs, entries, blobs, findings };
        println!("{}", serde_json::to_string(&report).expect("our own types have only text keys"));
        return;
    }
    for found in findings {
        println!("{}: {}", found.about, found.what);
    }
    println!("checked {runs} runs, {entries} entries, {blobs} blobs: {} findings", findings.len());
}

fn accept_loss(config: &Config) -> ExitCode {
    match saggar_server::accept_loss(&config.data_directory) {
        Ok(true) => {
            println!("the lost writes are given up; open runs wait until somebody resumes or cancels them");
            ExitCode::SUCCESS
        }
        Ok(false) => {
            println!("no writes are lost; nothing was changed");
            ExitCode::SUCCESS
        }
        Err(error) => failed(error.to_string(), error.help()),
    }
}

fn failed(what: String, help: String) -> ExitCode {
    eprint!("{}", problem_text(&Problem::new(Code::DataDirectory, what, help)));
    ExitCode::from(OUR_FAILURE)
}
