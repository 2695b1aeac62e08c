//! What a durable step costs: many runs at once beside the peers, one alone beside the disk, a long one, and one whose worker is killed.
//!
//! Everything goes through the front door: a real server, runs begun over its API, a tool that is called by HTTP. The peers do the same
//! work as their documentation would have it done, on the same disk, with their defaults.

use std::path::Path;

use anyhow::{Context, Result};

use super::options::Options;
use crate::machine::{Load, Machine};
use crate::workplace::Workplace;
use report::Report;

mod alone;
mod crowd;
mod dbos;
mod failover;
mod long;
mod report;
mod restate;

/// On the disk: a directory for what is temporary may be in memory, where durable means nothing.
const DISK: &str = "/var/tmp";

/// Measures all of it. `peers` is where `scripts/setup.sh bench` puts them.
pub fn measure(options: &Options, saggar: &Path, peers: &Path) -> Result<Report> {
    let workplace =
        Workplace::make_in(Path::new(DISK), "bench-runs").context("making a directory for the benchmark")?;
    let machine = Machine::look().context("looking at the machine")?;
    let load_before = Load::now()?;
    let crowd = crowd::measure(options, saggar, peers, workplace.path()).context("timing many runs at once")?;
    let alone = alone::measure(options, saggar, workplace.path()).context("timing one run alone")?;
    let long = match options.long {
        0 => None,
        _ => Some(long::measure(options, saggar, workplace.path()).context("timing a long run")?),
    };
    let failover = failover::measure(options, saggar, workplace.path()).context("timing what follows a kill")?;
    let load_after = Load::now()?;
    Ok(Report::new(machine, crowd, alone, long, failover, [load_before, load_after]))
}

/// How a server is started here: quiet, without sandboxes kept ready, and with a tool that it may call.
fn flags(tool: &str) -> [&str; 6] {
    ["--log", "warn", "--pool-max", "0", "--http-allowed", tool]
}
