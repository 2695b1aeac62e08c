//! Runs that keep their files: steps a second with a snapshot after each, compared with none, and whether the thousandth
//! snapshot costs more than the first.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::flags;
use crate::bench::options::Options;
use crate::bench::statistics::Spread;
use crate::http::Client;
use crate::runs;
use crate::serving::Serving;

/// Calls of a run in a round, each of which changes a file.
const STEPS: usize = 100;
/// Snapshots of the long run.
const MANY: usize = 1000;
/// Calls in one turn of the model.
const TURN: usize = 100;
/// Steps that represent the beginning and the end of the long run.
const FIRST: std::ops::Range<usize> = 100..300;
const LAST: std::ops::Range<usize> = MANY - 201..MANY - 1;
/// No run here calls a tool over HTTP.
const NO_TOOL: &str = "http://127.0.0.1:9";

#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub steps: usize,
    /// Steps a second without snapshots and with one after each, one entry per round.
    pub rounds: Vec<[f64; 2]>,
    /// Of a run with many snapshots: the time of its last steps over that of its first, one entry per round; empty if
    /// left out.
    pub growth: Vec<f64>,
}

impl Kept {
    /// The part of its speed that a run keeps.
    pub fn ratio(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(|[without, with]| with / without).collect::<Vec<_>>())
    }
}

pub fn measure(options: &Options, saggar: &Path, place: &Path) -> Result<Kept> {
    let server = Serving::start(saggar, &place.join("kept"), &flags(NO_TOOL))?;
    let mut client = server.client();
    let mut rounds = Vec::new();
    for round in 0..=options.rounds {
        eprintln!("bench: runs with and without snapshots, round {round}");
        // They take turns at being first.
        let (mut without, mut with) = (0.0, 0.0);
        for is_kept in [round % 2 == 0, round % 2 == 1] {
            let speed = time_run(&mut client, is_kept)?;
            *(if is_kept { &mut with } else { &mut without }) = speed;
        }
        // The first round warms the caches.
        if round > 0 {
            rounds.push([without, with]);
        }
    }
    let mut growth = Vec::new();
    if options.long > 0 {
        for _ in 0..options.rounds {
            growth.push(grown(&mut client)?);
        }
    }
    Ok(Kept { steps: STEPS, rounds, growth })
}

/// The request for a run of so many calls.
fn request(calls: usize, is_kept: bool) -> Result<String> {
    let write = |index: usize| json!({ "tool": "shell", "arguments": { "command": format!("echo {index} > file") } });
    let calls: Vec<Value> = (0..calls).map(write).collect();
    let turns = calls.chunks(TURN).map(<[_]>::to_vec).collect();
    let request = runs::request("kept", &json!({ "shell": {} }), turns);
    let mut request: Value = serde_json::from_str(&request).context("reading our own request")?;
    if is_kept {
        request["agent"]["snapshots"] = json!({ "every": 1 });
    }
    Ok(request.to_string())
}

/// Steps a second.
fn time_run(client: &mut Client, is_kept: bool) -> Result<f64> {
    let request = request(STEPS, is_kept)?;
    let begun = Instant::now();
    let id = runs::start(client, &request)?;
    runs::wait_for_all(client, std::slice::from_ref(&id))?;
    let seconds = begun.elapsed().as_secs_f64();
    let taken = kept(client, &id)?.len();
    ensure!(taken == if is_kept { STEPS } else { 0 }, "{taken} snapshots were taken");
    Ok(STEPS as f64 / seconds)
}

/// The time of the last steps of a run with many snapshots over that of its first.
fn grown(client: &mut Client) -> Result<f64> {
    eprintln!("bench: a run of {MANY} snapshots");
    let id = runs::start(client, &request(MANY, true)?)?;
    runs::wait_for_all(client, std::slice::from_ref(&id))?;
    let at = kept(client, &id)?;
    ensure!(at.len() == MANY, "{} snapshots were taken", at.len());
    let took = |steps: std::ops::Range<usize>| (at[steps.end] - at[steps.start]) / (steps.end - steps.start) as f64;
    Ok(took(LAST) / took(FIRST))
}

/// When each snapshot of a run was committed, in ms.
fn kept(client: &mut Client, id: &str) -> Result<Vec<f64>> {
    let entries = runs::journal(client, id)?;
    let taken = entries.iter().filter(|entry| entry["result"] == "kept" && !entry["snapshot"].is_null());
    taken.map(|entry| entry["at"].as_f64().context("an entry without a time")).collect()
}
