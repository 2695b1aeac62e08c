//! `saggar test`: replays run fixtures. Nothing is executed, and no server is contacted.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::outcome::OUR_FAILURE;

/// Maximum size of a fixture in bytes. It holds a run's journal with every body.
const FIXTURE_LEN_MAX: u64 = 1 << 30;

#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0 if nothing has changed; 1 if behaviour has changed; 125 if a file can't be read."
)]
pub(crate) struct TestArguments {
    /// Fixture files, as printed by `saggar runs export`
    #[arg(value_name = "FIXTURE", required = true)]
    fixtures: Vec<PathBuf>,
}

pub(crate) fn main(arguments: &TestArguments) -> ExitCode {
    let mut worst = 0;
    for path in &arguments.fixtures {
        let shown = path.display();
        match saggar_given::read_given_text(path, FIXTURE_LEN_MAX) {
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
