//! One run alone: the time between successive tool calls, compared with one durable write to the disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::flags;
use crate::bench::options::Options;
use crate::bench::statistics::{Spread, median};
use crate::ledger::Ledger;
use crate::runs;
use crate::serving::Serving;

/// Timed writes of one page before a run, and again after it.
const WRITES: u64 = 100;
const PAGE: usize = 4096;

/// Medians in ms, round by round.
#[derive(Clone, Debug, PartialEq)]
pub struct Alone {
    /// Steps of each run.
    pub steps: usize,
    /// One entry per round.
    pub rounds: Vec<AloneRound>,
}

/// Medians, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AloneRound {
    /// Of writing a page of a file with `fdatasync`, before and after the run together.
    pub sync: f64,
    /// Of a step.
    pub step: f64,
}

impl AloneRound {
    /// The time of a step beyond two syncs.
    pub fn beyond(&self) -> f64 {
        self.step - 2.0 * self.sync
    }
}

impl Alone {
    /// The time of a step beyond two syncs, in ms.
    pub fn beyond(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(AloneRound::beyond).collect::<Vec<_>>())
    }
}

pub fn measure(options: &Options, saggar: &Path, place: &Path) -> Result<Alone> {
    let ledger = Ledger::start(Duration::ZERO)?;
    let server = Serving::start(saggar, &place.join("alone"), &flags(ledger.address()))?;
    let mut client = server.client();
    let calls = (0..options.steps).map(|index| runs::http_call(&ledger.url(), index)).collect();
    let request = runs::request("alone", &json!({ "http": {} }), vec![calls]);
    let mut rounds = Vec::new();
    for round in 0..=options.rounds {
        let mut syncs = sync_times(place)?;
        ledger.forget();
        let id = runs::start(&mut client, &request)?;
        runs::wait_for_all(&mut client, &[id])?;
        let steps = gaps(&ledger, options.steps)?;
        syncs.extend(sync_times(place)?);
        // The first round warms the caches.
        if round > 0 {
            rounds.push(AloneRound { sync: median(&syncs), step: median(&steps) });
        }
    }
    Ok(Alone { steps: options.steps, rounds })
}

/// The times between calls, in ms.
pub fn gaps(ledger: &Ledger, calls: usize) -> Result<Vec<f64>> {
    let times: Vec<Instant> = ledger.arrivals().iter().map(|arrival| arrival.at).collect();
    ensure!(times.len() == calls, "{} calls arrived instead of {calls}", times.len());
    ensure!(calls > 1, "at least two calls are needed");
    Ok(times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1000.0).collect())
}

/// Writes to a file of constant length, like the store's log: a growing file takes longer.
fn sync_times(place: &Path) -> Result<Vec<f64>> {
    let path = place.join("sync");
    let file = File::create(&path).context("creating a file to sync")?;
    file.write_all_at(&vec![7; PAGE * WRITES as usize], 0).and_then(|()| file.sync_all()).context("filling a file")?;
    let mut times = Vec::new();
    for index in 0..WRITES {
        let begun = Instant::now();
        file.write_all_at(&[8; PAGE], index * PAGE as u64).and_then(|()| file.sync_data()).context("syncing a file")?;
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    std::fs::remove_file(&path).context("removing the file that was synced")?;
    Ok(times)
}
