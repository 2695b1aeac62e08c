//! Bench: measures sandboxes and durable runs against their peers, in one interleaved run.
//!
//! Absolute times drift with the machine's load, so targets are ratios: of medians, per round, of contenders that
//! took turns run by run. Only the table in `target` decides what is fast enough, and a missed target is a failure
//! only with `--check`. The table also lists what could not be measured, with the reason.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::document;
use crate::machine::{self, Load, Machine};
use crate::workplace::Workplace;
use contender::Field;
use options::{Asked, Options, Part};
use report::Report;
use target::{Target, Verdict};

mod bundle;
mod code;
mod contender;
mod e2b;
pub mod egress;
mod idle;
mod models;
mod options;
pub mod report;
mod rounds;
mod runs;
mod server;
mod snapshots;
mod statistics;
pub mod table;
mod target;
mod templates;
mod watchdog;

/// The page with the latest published numbers.
const DOCUMENT: &str = "docs/benchmarks.md";
/// The same for durable runs.
const DURABILITY: &str = "docs/durability.md";

/// Measures, prints, and writes the numbers into the page if requested.
pub fn run(arguments: &[&str]) -> Result<ExitCode> {
    let options = match Options::parse(arguments)? {
        Asked::Help => {
            print!("{}", options::USAGE);
            return Ok(ExitCode::SUCCESS);
        }
        Asked::Run(options) => options,
    };
    let root = crate::repository()?;
    if options.drops_caches {
        machine::drop_caches().context("dropping the kernel's caches, which needs root")?;
    }
    let saggar = match &options.saggar {
        Some(path) => path.clone(),
        None => build(root).context("building the release binary")?,
    };
    let mut targets = Vec::new();
    if options.wants(Part::Run) {
        let report = measure(&options, &saggar)?;
        publish(&options, root, (DOCUMENT, "bench"), &report.text())?;
        targets.extend(report.targets);
    }
    if options.wants(Part::Server) {
        let report = server::measure(&options, &saggar).context("measuring a server")?;
        publish(&options, root, (DOCUMENT, "bench --only server"), &report.text())?;
        targets.extend(report.targets);
    }
    if options.wants(Part::Runs) {
        let peers = target_directory(root).join("peers");
        let report = runs::measure(&options, &saggar, &peers).context("measuring durable runs")?;
        publish(&options, root, (DURABILITY, "bench --only runs"), &report.text())?;
        targets.extend(report.targets);
    }
    if options.wants(Part::E2b) {
        let report = e2b::measure(&options, &saggar, root).context("measuring E2B's client")?;
        publish(&options, root, (DOCUMENT, "bench --only e2b"), &report.text())?;
        targets.extend(report.targets);
    }
    if options.wants(Part::Egress) {
        let peers = target_directory(root).join("peers");
        let report = egress::measure(&options, &saggar, root, &peers).context("measuring the network boundary")?;
        publish(&options, root, (DOCUMENT, "bench --only egress"), &report.text())?;
        targets.extend(report.targets);
    }
    if options.wants(Part::Templates) {
        let report = templates::measure(&options, &saggar).context("measuring templates")?;
        publish(&options, root, (DOCUMENT, "bench --only templates"), &report.text())?;
        targets.extend(report.targets);
    }
    if options.wants(Part::Snapshots) {
        let report = snapshots::measure(&options, &saggar).context("measuring snapshots")?;
        publish(&options, root, (DOCUMENT, "bench --only snapshots"), &report.text())?;
        targets.extend(report.targets);
    }
    if options.wants(Part::Code) {
        let report = code::measure(&options, &saggar).context("measuring code contexts")?;
        publish(&options, root, (DOCUMENT, "bench --only code"), &report.text())?;
        targets.extend(report.targets);
    }
    if options.wants(Part::Models) {
        let peers = target_directory(root).join("peers");
        let report = models::measure(&options, &saggar, &peers).context("measuring the model gateway")?;
        publish(&options, root, (DOCUMENT, "bench --only models"), &report.text())?;
        targets.extend(report.targets);
    }
    let is_short = targets.iter().any(|target: &Target| target.verdict() != Verdict::Met);
    if options.checks && is_short {
        bail!("a target was missed or could not be measured; the table above says which");
    }
    Ok(ExitCode::SUCCESS)
}

fn publish(options: &Options, root: &Path, (document, chore): (&str, &str), text: &str) -> Result<()> {
    print!("{text}");
    if options.writes {
        document::write(&root.join(document), chore, text)?;
        eprintln!("bench: wrote {document}");
    }
    Ok(())
}

fn measure(options: &Options, saggar: &Path) -> Result<Report> {
    let workplace = Workplace::make("bench").context("making a directory for the benchmark")?;
    let field = Field::gather(saggar, options, workplace.path()).context("gathering what to compare")?;
    let machine = Machine::look().context("looking at the machine")?;
    let load_before = Load::now()?;
    let rounds = rounds::measure(&field.launchers, options.rounds).context("timing")?;
    let idle = match options.idle_sandboxes {
        0 => None,
        _ => Some(idle::measure(saggar, options, workplace.path()).context("measuring idle sandboxes")?),
    };
    let load_after = Load::now()?;
    Ok(Report::new(machine, field, rounds, idle, [load_before, load_after]))
}

/// Builds the release binary and returns its path.
pub fn build(root: &Path) -> Result<PathBuf> {
    let programs = target_directory(root).join("x86_64-unknown-linux-musl");
    let (front, built) = (programs.join("front/saggar-front"), programs.join("release/saggar"));
    cargo(root, &["build", "--quiet", "--locked", "--profile", "front", "--package", "saggar-front"])?;
    cargo(root, &["build", "--quiet", "--locked", "--release", "--package", "saggar", "--bin", "saggar-full"])?;
    let [from, to] = [&front, &built].map(|path| path.display().to_string());
    cargo(root, &["--locked", "xtask", "pack", &from, &format!("{to}-full"), &to])?;
    Ok(built)
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let status = Command::new("cargo").current_dir(root).args(arguments).status().context("running cargo")?;
    ensure!(status.success(), "cargo {} failed", arguments.join(" "));
    Ok(())
}

/// The cargo target directory.
fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path))
}
