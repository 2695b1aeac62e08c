//! `saggar test`: fixtures of runs, derived again. Nothing is executed, and no server is asked.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::outcome::OUR_FAILURE;

/// No fixture is longer: a run's journal with every body in it.
const FIXTURE_LEN_MAX: u64 = 1 << 30;

/// `saggar test`.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 when nothing has changed; 1 when behaviour has; 125 when a file can't be read.")]
pub(crate) struct TestArguments {
    /// Fixtures, as `saggar runs export` prints them
    #[arg(value_name = "FIXTURE", required = true)]
    fixtures: Vec<PathBuf>,
}

/// Checks each, and says which have changed.
pub(crate) fn main(arguments: &TestArguments) -> ExitCode {
    let mut worst = 0;
    for path in &arguments.fixtures {
        let shown = path.display();
        match saggar_server::read_given_text(path, FIXTURE_LEN_MAX) {
            Err(error) => {
                eprintln!("error: the fixture {shown} {error}\n  help: {}", error.help());
                worst = OUR_FAILURE;
            }
            Ok(text) => match saggar_server::check_fixture(&text) {
                Ok(entries) => println!("ok {shown} ({entries} entries)"),
                Err(what) => {
                    println!("changed {shown}: {what}");
                    worst = worst.max(1);
                }
            },
        }
    }
    ExitCode::from(worst)
}
