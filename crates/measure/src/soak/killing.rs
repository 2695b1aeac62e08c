//! Kills workers and the server at thousands of random moments while runs are in progress; an outside ledger records
//! which effects were done.
//!
//! One thread kills and restarts. Another starts runs, answers their questions, decides about parked steps, and
//! compares each finished run with the ledger. No process is stopped cleanly.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::options::Options;
use super::random::Random;
use crate::ledger::Ledger;
use crate::machine::{Load, Machine};
use crate::patience::pause;
use crate::serving::Serving;
use crate::workplace::Workplace;
use minder::{Minded, Minder};
use report::Report;

mod judge;
mod minder;
mod report;

/// Workers beside the server, which has one of its own.
const WORKERS: u64 = 3;
/// Minimum and maximum time between two kills, in ms.
const BETWEEN_MS: [u64; 2] = [60, 460];
/// One in this many kills hits the server.
const SERVERS_PART: u64 = 8;
/// Maximum response time of the tool, so that kills hit the middle of calls.
const SLOWNESS: Duration = Duration::from_millis(15);

#[derive(Debug)]
pub struct Killing {
    /// Kills of workers, and of the server.
    pub kills: [u64; 2],
    /// The slowest start of the server, in ms.
    pub start_max: f64,
    pub time: Duration,
    /// The results of the runs.
    pub minded: Minded,
}

/// Kills as often as requested, and waits until every run has ended.
pub fn soak(options: &Options, saggar: &Path) -> Result<Report> {
    let workplace = Workplace::make("soak-runs").context("making a directory for the soak")?;
    let machine = Machine::look().context("looking at the machine")?;
    let load_before = Load::now()?;
    let ledger = Ledger::start(SLOWNESS)?;
    let flags = ["--log", "error", "--pool-max", "0", "--http-allowed", ledger.address()];
    let mut server = Serving::start(saggar, &workplace.path().join("server"), &flags)?;
    eprintln!("soak: seed {}, {} kills of workers and servers", options.seed, options.run_kills);
    let outcome = kill_all(options, &mut server, &ledger);
    let killing = outcome.with_context(|| format!("the server said:\n{}", server.last_words()))?;
    Ok(Report::new(machine, options.seed, killing, [load_before, Load::now()?]))
}

fn kill_all(options: &Options, server: &mut Serving, ledger: &Ledger) -> Result<Killing> {
    let mut random = Random::new(options.seed);
    let begun = Instant::now();
    let is_over = AtomicBool::new(false);
    let minder = Minder::new(server.client(), ledger.clone());
    let mut kills = [0, 0];
    let mut start_max: f64 = 0.0;
    let minded = std::thread::scope(|scope| -> Result<Minded> {
        let is_over = &is_over;
        let minding = scope.spawn(move || minder.mind(is_over));
        let killed = kill(options, server, ledger, &mut random, &mut kills, &mut start_max, || minding.is_finished());
        is_over.store(true, SeqCst);
        let minded = minding.join().expect("the minder does not panic");
        // If the minder gave up, it knows why.
        minded.and_then(|minded| killed.map(|()| minded))
    })?;
    let mut minded = minded;
    // A run's sandbox must end with it.
    if let Err(error) = server.wait_for_sockets(0) {
        minded.faults.push(format!("sandboxes of runs that have ended are left: {error:#}"));
    }
    Ok(Killing { kills, start_max, time: begun.elapsed(), minded })
}

fn kill(
    options: &Options,
    server: &mut Serving,
    ledger: &Ledger,
    random: &mut Random,
    kills: &mut [u64; 2],
    start_max: &mut f64,
    is_pointless: impl Fn() -> bool,
) -> Result<()> {
    let flags = ["--log", "error", "--http-allowed", ledger.address()];
    let mut workers = (0..WORKERS).map(|_| server.worker(&flags)).collect::<Result<Vec<_>>>()?;
    for number in 1..=options.run_kills {
        pause(Duration::from_millis(BETWEEN_MS[0] + random.below(BETWEEN_MS[1] - BETWEEN_MS[0])));
        if is_pointless() {
            return Ok(());
        }
        if random.below(SERVERS_PART) == 0 {
            server.crash()?;
            *start_max = start_max.max(server.start_again()?.as_secs_f64() * 1000.0);
            kills[1] += 1;
        } else {
            let victim = &mut workers[random.below(WORKERS) as usize];
            victim.crash()?;
            *victim = server.worker(&flags)?;
            kills[0] += 1;
        }
        if number % 100 == 0 {
            eprintln!("soak: {number} of {} kills", options.run_kills);
        }
    }
    // The remaining runs are executed by the server's own worker.
    Ok(())
}
