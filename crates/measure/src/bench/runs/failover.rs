//! The time from a kill to the next effect: of a worker, whose runs another takes over; and of the server, restarted
//! at once with many parked runs.
//!
//! An effect counts if it reaches the tool on a connection that was made after the kill: requests of the dead process
//! came on older ones.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;

use super::flags;
use crate::bench::options::Options;
use crate::bench::statistics::Spread;
use crate::http::Client;
use crate::ledger::Ledger;
use crate::patience::wait_until;
use crate::runs;
use crate::serving::Serving;

/// Runs in progress during a kill.
const UNDER_WAY: usize = 10;
/// Calls of each run: more than can be made in the measured time.
const CALLS: usize = 2_000;
/// Maximum response time of the tool, so that a kill hits the middle of calls.
const SLOWNESS: Duration = Duration::from_millis(10);
/// Time limit for the next effect.
const PATIENCE: Duration = Duration::from_secs(30);

/// In seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Failover {
    /// Kills of each kind.
    pub kills: usize,
    /// Parked runs beside those in progress.
    pub parked: usize,
    /// After a kill of a worker.
    pub worker: Spread,
    /// After a kill of the server.
    pub server: Spread,
}

pub fn measure(options: &Options, saggar: &Path, place: &Path) -> Result<Failover> {
    let kills = options.failovers;
    eprintln!("bench: killing workers and servers, {kills} times each");
    let worker = Spread::of(&kill_workers(kills, saggar, &place.join("workers"))?);
    let server = Spread::of(&kill_servers(kills, options.parked, saggar, &place.join("parked"))?);
    Ok(Failover { kills, parked: options.parked, worker, server })
}

fn kill_workers(kills: usize, saggar: &Path, place: &Path) -> Result<Vec<f64>> {
    let ledger = Ledger::start(SLOWNESS)?;
    let quiet = flags(ledger.address());
    // The server's own worker takes no runs, so that the kill hits the worker that executes them.
    let server = Serving::start(saggar, place, &[&quiet[..], &["--runs-max", "0"]].concat())?;
    let mut client = server.client();
    let worker_flags = ["--log", "warn", "--http-allowed", ledger.address()];
    let mut at_work = server.worker(&worker_flags)?;
    let mut times = Vec::new();
    for _ in 0..kills {
        let ids = begin(&mut client, &ledger)?;
        let mut next = server.worker(&worker_flags)?;
        // The next worker is ready when it would claim a run.
        wait_until("a second worker", PATIENCE, || Ok(workers_in(server.data())? == 2))?;
        let killed_at = Instant::now();
        at_work.crash()?;
        times.push(next_effect(&ledger, killed_at)?);
        std::mem::swap(&mut at_work, &mut next);
        cancel(&mut client, &ids)?;
    }
    Ok(times)
}

fn kill_servers(kills: usize, parked: usize, saggar: &Path, place: &Path) -> Result<Vec<f64>> {
    let ledger = Ledger::start(SLOWNESS)?;
    let mut server = Serving::start(saggar, place, &flags(ledger.address()))?;
    let mut client = server.client();
    park(&mut client, &ledger, parked)?;
    let mut times = Vec::new();
    for _ in 0..kills {
        let ids = begin(&mut client, &ledger)?;
        let killed_at = Instant::now();
        server.crash()?;
        server.start_again()?;
        times.push(next_effect(&ledger, killed_at)?);
        client = server.client();
        cancel(&mut client, &ids)?;
    }
    Ok(times)
}

/// Starts runs and waits until each has called the tool.
fn begin(client: &mut Client, ledger: &Ledger) -> Result<Vec<String>> {
    ledger.forget();
    let calls: Vec<_> = (0..CALLS).map(|index| runs::http_call(&ledger.url(), index)).collect();
    let request = runs::request("killed", &json!({ "http": {} }), vec![calls]);
    let ids = (0..UNDER_WAY).map(|_| runs::start(client, &request)).collect::<Result<Vec<_>>>()?;
    for id in &ids {
        wait_until("a run's first call", PATIENCE, || Ok(has_called(ledger, id)))?;
    }
    Ok(ids)
}

fn has_called(ledger: &Ledger, id: &str) -> bool {
    ledger.find(|arrival| arrival.key.starts_with(id).then_some(())).is_some()
}

/// Seconds from a kill to the next effect.
fn next_effect(ledger: &Ledger, killed_at: Instant) -> Result<f64> {
    let mut found = None;
    wait_until("the next effect", PATIENCE, || {
        found = ledger.find(|arrival| (arrival.connected_at > killed_at).then_some(arrival.at));
        Ok(found.is_some())
    })?;
    Ok((found.context("it was found above")? - killed_at).as_secs_f64())
}

fn cancel(client: &mut Client, ids: &[String]) -> Result<()> {
    for id in ids {
        client.ask(crate::http::Ask::post(&format!("{}/{id}/cancel", runs::RUNS), "{}"))?.expect(202)?;
    }
    for id in ids {
        runs::wait_for(client, id, "finished")?;
    }
    Ok(())
}

/// Runs that wait for a human: each called a tool whose outcome is unknown.
fn park(client: &mut Client, ledger: &Ledger, count: usize) -> Result<()> {
    let call = runs::http_call(&ledger.failing_url(), 1);
    let request = runs::request("parked", &json!({ "http": { "class": "once" } }), vec![vec![call]]);
    let ids = (0..count).map(|_| runs::start(client, &request)).collect::<Result<Vec<_>>>()?;
    ids.iter().try_for_each(|id| runs::wait_for(client, id, "parked"))
}

/// Live workers, without the server's own.
fn workers_in(data: &Path) -> Result<usize> {
    let entries = std::fs::read_dir(data.join("workers")).context("reading the workers")?;
    let is_up = |name: &str| !name.starts_with('.');
    let count = entries.filter_map(Result::ok).filter(|entry| is_up(&entry.file_name().to_string_lossy())).count();
    Ok(count.saturating_sub(1))
}
