//! The cost of a durable step: many concurrent runs compared with peers, one run compared with the disk, a long run,
//! runs that keep their files, and recovery after kills.
//!
//! Everything goes through the public interface: a real server, runs started over its API, a tool called over HTTP.
//! The peers do the same work as their documentation recommends, on the same disk, with their defaults.

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
mod kept;
mod long;
mod report;
mod restate;

/// On a disk: a temporary directory may be in memory, where durability costs nothing.
const DISK: &str = "/var/tmp";

/// `peers` is the directory into which `scripts/setup.sh bench` installs them.
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
    let kept = kept::measure(options, saggar, workplace.path()).context("timing runs that keep their files")?;
    let failover = failover::measure(options, saggar, workplace.path()).context("timing what follows a kill")?;
    let load_after = Load::now()?;
    Ok(Report::new(machine, crowd, alone, long, kept, failover, [load_before, load_after]))
}

/// Flags of a server here: quiet, without a pool, and with a tool that it may call.
fn flags(tool: &str) -> [&str; 6] {
    ["--log", "warn", "--pool-max", "0", "--http-allowed", tool]
}
