//! The cost of a sandbox over HTTP: its life cycle, a command in a running one, a thousand at once, and file
//! transfers.
//!
//! Servers run on loopback with keys, as by default, and the client keeps one connection alive. The targets are
//! ratios to the same machine without a server, measured in turns, as in the rest of the benchmark.

use std::path::Path;

use anyhow::{Context, Result};

use super::contender::Field;
use super::options::Options;
use crate::machine::{Load, Machine};
use crate::workplace::Workplace;
use report::Report;

pub mod life;
mod many;
mod report;
mod transfer;

pub fn measure(options: &Options, saggar: &Path) -> Result<Report> {
    let workplace = Workplace::make("bench-server").context("making a directory for the benchmark")?;
    let field = Field::gather(saggar, options, workplace.path()).context("gathering what to compare")?;
    let machine = Machine::look().context("looking at the machine")?;
    let load_before = Load::now()?;
    let life = life::measure(saggar, options, &field, workplace.path()).context("timing lives and commands")?;
    let many = match options.many {
        0 => None,
        _ => Some(many::measure(saggar, options, workplace.path()).context("measuring many sandboxes")?),
    };
    let transfer = match options.transfer_mib {
        0 => Err("left out by --transfer 0".to_owned()),
        _ => transfer::measure(saggar, options, workplace.path()).context("timing transfers")?,
    };
    let load_after = Load::now()?;
    Ok(Report::new(machine, field, life, many, transfer, [load_before, load_after]))
}
