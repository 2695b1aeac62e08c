//! The network boundary: requests, connections and streams through the egress process, compared with direct ones and with proxies of the
//! same kind.
//!
//! Every client runs in a sandbox: with the host's network for the direct way and for the other proxies, and with `proxied` for ours. So
//! only the way of the bytes differs. Servers, proxies and sandboxes share a network namespace that nothing else uses (bench/egress/world.sh).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use super::options::Options;
use crate::machine::{Load, Machine};
use crate::workplace::Workplace;
use client::Client;
use measured::{Measured, Round};
use report::Report;

mod client;
mod measured;
mod report;

/// The hidden chore that measures inside the network namespace.
pub const CHORE: &str = "__egress-inside";
/// Connections at once where requests per second are counted.
const AT_ONCE: usize = 32;
/// Held connections, for the memory of one.
const HELD: usize = 400;
/// Starts of `saggar run` in a round, without a network and proxied.
const STARTS: usize = 40;

/// `peers` holds mitmproxy's environment.
pub fn measure(options: &Options, saggar: &Path, root: &Path, peers: &Path) -> Result<Report> {
    let workplace = Workplace::make("bench-egress").context("making a directory for the benchmark")?;
    let mitmdump = peers.join("mitmproxy/bin/mitmdump");
    ensure!(mitmdump.exists(), "mitmproxy is not installed; `make bench` installs it");
    let machine = Machine::look().context("looking at the machine")?;
    let load_before = Load::now()?;
    let results = workplace.path().join("results.json");
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private"])
        .arg(root.join("bench/egress/world.sh"))
        .args([workplace.path(), &mitmdump])
        .arg(std::env::current_exe().context("finding this program")?)
        .arg(CHORE)
        .args([saggar, workplace.path(), &results])
        .arg(options.rounds.to_string())
        .stdin(Stdio::null())
        .status()
        .context("running unshare, which needs root")?;
    ensure!(status.success(), "the measurement ended with {status}");
    let text = std::fs::read(&results).context("reading the results")?;
    let measured: Measured = serde_json::from_slice(&text).context("parsing the results")?;
    let versions = versions(&mitmdump);
    Ok(Report::new(machine, versions, measured, [load_before, Load::now()?]))
}

/// The chore: measures, and writes the results as JSON.
pub fn inside(arguments: &[&str]) -> Result<ExitCode> {
    let [saggar, place, results, rounds] = *<&[&str; 4]>::try_from(arguments).context("four arguments")?;
    let rounds: usize = rounds.parse().context("a number of rounds")?;
    let client = Client::new(PathBuf::from(saggar), Path::new(place));
    client.warm_up()?;
    let mut measured = Measured::default();
    for round in 0..rounds {
        eprintln!("bench: egress, round {} of {rounds}", round + 1);
        // Every other round goes the other way around.
        measured.rounds.push(Round::measure(&client, round % 2 == 1)?);
    }
    std::fs::write(results, serde_json::to_vec(&measured)?).context("writing the results")?;
    Ok(ExitCode::SUCCESS)
}

/// The first line that each says of itself.
fn versions(mitmdump: &Path) -> Vec<String> {
    let asked: [(&str, &Path, &str); 3] = [
        ("nginx", Path::new("nginx"), "-v"),
        ("haproxy", Path::new("haproxy"), "-v"),
        ("mitmproxy", mitmdump, "--version"),
    ];
    let version = |(name, program, flag): (&str, &Path, &str)| {
        let output = Command::new(program).arg(flag).stdin(Stdio::null()).output().ok()?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let number =
            said.lines().next()?.split([' ', '/']).find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        Some(format!("{name} {number}"))
    };
    asked.into_iter().filter_map(version).collect()
}
