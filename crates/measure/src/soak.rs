//! Soak: creates and ends thousands of sandboxes on one server, then kills the server repeatedly under load. In the
//! end nothing may be left over, and nothing acknowledged may be lost. Then it kills the workers and the server of
//! runs: nothing may be lost or done twice.
//!
//! It checks everything that belongs to this server: its processes and those of its sandboxes, their cgroups, mounts
//! and namespaces, its descriptors, its memory and its data directory. Other work on the machine doesn't count, so
//! this can run beside it.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::bench;
use crate::document;
use crate::machine::{Load, Machine};
use crate::serving::Serving;
use crate::workplace::Workplace;
use options::{Asked, Options, Part};
use random::Random;
use report::Report;

mod census;
mod cycles;
mod killing;
mod options;
mod random;
mod report;
mod storm;

/// The page with the latest result.
const DOCUMENT: &str = "docs/soak.md";
/// Size of the pool, so that sandboxes from the pool are covered too. Constant, so that samples are comparable.
const POOL: usize = 2;
/// Retention of ended sandboxes: short, so that the store deletes rows during the soak.
const RETENTION: &str = "10s";

/// Runs the soak, prints, and writes the result into the page if requested. Fails if anything is left or lost.
pub fn run(arguments: &[&str]) -> Result<ExitCode> {
    let options = match Options::parse(arguments)? {
        Asked::Help => {
            print!("{}", options::USAGE);
            return Ok(ExitCode::SUCCESS);
        }
        Asked::Run(options) => options,
    };
    let root = crate::repository()?;
    let saggar = match &options.saggar {
        Some(path) => path.clone(),
        None => bench::build(root).context("building the release binary")?,
    };
    let mut is_faultless = true;
    if options.wants(Part::Sandboxes) {
        let report = soak(&options, &saggar)?;
        publish(&options, root, "soak", &report.text())?;
        is_faultless &= report.faults.is_empty();
    }
    if options.wants(Part::Runs) {
        let report = killing::soak(&options, &saggar).context("killing workers and servers")?;
        publish(&options, root, "soak --only runs", &report.text())?;
        is_faultless &= report.faults().is_empty();
    }
    Ok(if is_faultless { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn publish(options: &Options, root: &Path, chore: &str, text: &str) -> Result<()> {
    print!("{text}");
    if options.writes {
        document::write(&root.join(DOCUMENT), chore, text)?;
        eprintln!("soak: wrote {DOCUMENT}");
    }
    Ok(())
}

fn soak(options: &Options, saggar: &Path) -> Result<Report> {
    let workplace = Workplace::make("soak").context("making a directory for the soak")?;
    let machine = Machine::look().context("looking at the machine")?;
    let load_before = Load::now()?;
    let pool = POOL.to_string();
    let flags = ["--log", "warn", "--pool-min", &pool, "--pool-max", &pool, "--retention", RETENTION];
    let mut server = Serving::start(saggar, &workplace.path().join("server"), &flags)?;
    eprintln!("soak: seed {}", options.seed);
    let mut random = Random::new(options.seed);
    let start = Instant::now();
    let deadline = start + Duration::from_secs(60 * options.minutes);
    let cycles = cycles::run(&mut server, options, &mut random, deadline)
        .with_context(|| format!("the server said:\n{}", server.last_words()))?;
    let storm = match options.kills {
        0 => None,
        _ => Some(
            storm::run(&mut server, options, &mut random, &cycles)
                .with_context(|| format!("the server said:\n{}", server.last_words()))?,
        ),
    };
    let loads = [load_before, Load::now()?];
    Ok(Report::new(machine, options.seed, start.elapsed(), cycles, storm, loads))
}
