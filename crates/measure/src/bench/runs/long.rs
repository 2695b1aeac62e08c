//! A long run: whether its last steps cost as much as its first, the speed of its replay, and the cost of a fork.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::alone::gaps;
use super::flags;
use crate::bench::options::Options;
use crate::bench::statistics::{Spread, median};
use crate::http::{Ask, Client};
use crate::ledger::Ledger;
use crate::runs::{self, RUNS};
use crate::serving::Serving;

/// Calls in one turn of the model.
const TURN: usize = 100;
/// Steps whose median represents the beginning, after the caches are warm.
const FIRST: std::ops::Range<usize> = 100..600;
/// Number of steps that represent the end.
const LAST: usize = 500;
/// Number of timed forks.
const FORKS: usize = 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Long {
    /// Number of tool calls.
    pub steps: usize,
    /// Median of a step near the beginning, in ms.
    pub first: f64,
    /// Median at the end, in ms.
    pub last: f64,
    /// Entries of its journal.
    pub entries: usize,
    /// Replayed entries per second.
    pub replayed: Spread,
    /// Time of a fork, in ms.
    pub forks: Spread,
}

/// Runs one, replays it once per round, and forks it at steps all over it.
pub fn measure(options: &Options, saggar: &Path, place: &Path) -> Result<Long> {
    let steps = options.long;
    ensure!(steps > FIRST.end + LAST, "--long takes 0, or more than {}", FIRST.end + LAST);
    let ledger = Ledger::start(Duration::ZERO)?;
    let server = Serving::start(saggar, &place.join("long"), &flags(ledger.address()))?;
    let mut client = server.client();
    eprintln!("bench: a run of {steps} steps");
    let calls: Vec<_> = (0..steps).map(|index| runs::http_call(&ledger.url(), index)).collect();
    let turns = calls.chunks(TURN).map(<[_]>::to_vec).collect();
    let id = runs::start(&mut client, &runs::request("long", &json!({ "http": {} }), turns))?;
    runs::wait_for_all(&mut client, std::slice::from_ref(&id))?;
    let times = gaps(&ledger, steps)?;
    let (first, last) = (median(&times[FIRST]), median(&times[times.len() - LAST..]));
    let (mut entries, mut speeds) = (0, Vec::new());
    for _ in 0..options.rounds {
        let begun = Instant::now();
        let report = runs::replay(&mut client, &id)?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(report["divergence"].is_null(), "the replay differs: {report}");
        entries = report["entries"].as_u64().context("a replay without entries")? as usize;
        speeds.push(entries as f64 / seconds);
    }
    let mut forks = Vec::new();
    for fork in 1..=FORKS {
        forks.push(time_fork(&mut client, &id, steps * fork / FORKS)?);
    }
    Ok(Long { steps, first, last, entries, replayed: Spread::of(&speeds), forks: Spread::of(&forks) })
}

/// Milliseconds for a fork at a step. The fork is cancelled and removed before the next.
fn time_fork(client: &mut Client, id: &str, step: usize) -> Result<f64> {
    let (path, wish) = (format!("{RUNS}/{id}/fork"), format!(r#"{{"at_step":{step}}}"#));
    let begun = Instant::now();
    let answer = client.ask(Ask::post(&path, &wish)).context("forking a run")?.expect(201)?;
    let time = begun.elapsed().as_secs_f64() * 1000.0;
    let fork = answer.json()["id"].as_str().context("a fork without an id")?.to_owned();
    // A fork at the last step may have ended by now.
    client.ask(Ask::post(&format!("{RUNS}/{fork}/cancel"), "{}")).context("stopping a fork")?;
    runs::wait_for(client, &fork, "finished")?;
    Ok(time)
}
