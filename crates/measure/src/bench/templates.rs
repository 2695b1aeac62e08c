//! Sandboxes that start from an image, compared with those that start from the host's own programs; imports, compared with `tar`; and files
//! that are written inside, compared with the same files on the bare filesystem.
//!
//! The program is the same everywhere: the host's static busybox, which the image has too.

use std::path::Path;

use anyhow::{Context, Result};

use super::options::Options;
use crate::machine::{Load, Machine};
use crate::workplace::Workplace;
use measured::{Bench, Measured, Round};
use report::Report;

mod image;
mod measured;
mod pooled;
mod report;

/// Starts of each kind in a round.
const STARTS: usize = 40;
/// The same from a server's pools.
const POOLED: usize = 15;
/// Size of the imported image, uncompressed.
const IMPORT_BYTES: u64 = 500_000_000;
/// Cached builds in a round.
const BUILDS: usize = 20;
/// Files of a few kilobytes.
const SMALL_FILES: usize = 1000;
/// How often they are written, read and removed in one run.
const SMALL_TIMES: usize = 20;
/// The large file, in MiB.
const LARGE_MIB: usize = 256;
const LARGE_TIMES: usize = 4;

pub fn measure(options: &Options, saggar: &Path) -> Result<Report> {
    let workplace = Workplace::make("bench-templates").context("making a directory for the benchmark")?;
    let machine = Machine::look().context("looking at the machine")?;
    let mut bench = Bench::prepare(saggar, workplace.path(), options)?;
    let load_before = Load::now()?;
    let mut measured = Measured::default();
    for round in 0..options.rounds {
        eprintln!("bench: templates, round {} of {}", round + 1, options.rounds);
        // Every other round goes the other way around.
        measured.rounds.push(Round::measure(&mut bench, round, round % 2 == 1)?);
    }
    Ok(Report::new(machine, options.many, measured, [load_before, Load::now()?]))
}
