//! Many concurrent runs with many trivial steps each, from the start of the first to the end of the last.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::json;

use super::dbos::Dbos;
use super::flags;
use super::restate::Restate;
use crate::bench::options::Options;
use crate::bench::statistics::Spread;
use crate::ledger::Alone;
use crate::runs;
use crate::serving::Serving;

/// Steps of each run during the warm-up, which has the full number of runs.
const WARM_UP_STEPS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Ours: the intent and the outcome of each step are durable.
    Saggar,
    /// `ctx.run` for each step: its outcome is durable.
    Restate,
    /// A step of a workflow on PostgreSQL: its outcome is durable.
    Dbos,
}

impl Engine {
    /// In the order of the tables.
    pub const ALL: [Self; 3] = [Self::Saggar, Self::Restate, Self::Dbos];

    /// The column's heading.
    pub fn name(self) -> &'static str {
        match self {
            Self::Saggar => "saggar",
            Self::Restate => "Restate",
            Self::Dbos => "DBOS",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Crowd {
    /// Concurrent runs, and steps of each.
    pub size: [usize; 2],
    /// Steps per second of each engine, in the order of [`Engine::ALL`], round by round. `None` for one that took no
    /// part.
    pub rounds: Vec<[Option<f64>; 3]>,
    /// Engines that took no part, with the reason.
    pub absences: Vec<(Engine, String)>,
    /// Versions of the peers.
    pub versions: Vec<String>,
}

impl Crowd {
    /// Our speed relative to a peer's, or why it is unknown.
    pub fn ratio(&self, peer: Engine) -> Result<Spread, String> {
        let at = |round: &[Option<f64>; 3], engine: Engine| round[Engine::ALL.iter().position(|one| *one == engine)?];
        let ratio = |round: &[Option<f64>; 3]| Some(at(round, Engine::Saggar)? / at(round, peer)?);
        let ratios: Option<Vec<f64>> = self.rounds.iter().map(ratio).collect();
        ratios.filter(|ratios| !ratios.is_empty()).map(|ratios| Spread::of(&ratios)).ok_or_else(|| {
            let absence = self.absences.iter().find(|(engine, _)| *engine == peer);
            absence.map_or_else(|| "it took no part".to_owned(), |(_, reason)| reason.clone())
        })
    }
}

enum Contender {
    Saggar(Ours),
    Restate(Restate),
    Dbos(Dbos),
}

impl Contender {
    fn up(engine: Engine, saggar: &Path, peers: &Path, place: &Path, tool: &Alone) -> Result<Self> {
        Ok(match engine {
            Engine::Saggar => Self::Saggar(Ours::start(saggar, &place.join("crowd"), tool)?),
            Engine::Restate => Self::Restate(Restate::start(peers, &place.join("restate"), &tool.url())?),
            Engine::Dbos => Self::Dbos(Dbos::start(peers, &place.join("dbos"), &tool.url())?),
        })
    }

    fn version(&self) -> Option<String> {
        match self {
            Self::Saggar(_) => None,
            Self::Restate(restate) => Some(restate.version()),
            Self::Dbos(dbos) => Some(dbos.version()),
        }
    }

    /// Steps per second.
    fn drive(&mut self, [runs, steps]: [usize; 2]) -> Result<f64> {
        let seconds = match self {
            Self::Saggar(ours) => ours.drive(runs, steps)?,
            Self::Restate(restate) => restate.drive(runs, steps)?,
            Self::Dbos(dbos) => dbos.drive(runs, steps)?,
        };
        Ok((runs * steps) as f64 / seconds)
    }
}

/// Each engine runs once per round, in rotating order.
pub fn measure(options: &Options, saggar: &Path, peers: &Path, place: &Path) -> Result<Crowd> {
    let size = [options.at_once, options.steps];
    let tool = Alone::start()?;
    let mut crowd = Crowd { size, rounds: Vec::new(), absences: Vec::new(), versions: Vec::new() };
    let mut contenders = Vec::new();
    for engine in Engine::ALL {
        let up = Contender::up(engine, saggar, peers, place, &tool).and_then(|mut contender| {
            contender.drive([options.at_once, WARM_UP_STEPS])?;
            Ok(contender)
        });
        match up {
            Ok(contender) => {
                crowd.versions.extend(contender.version());
                contenders.push(Some(contender));
            }
            Err(error) if engine == Engine::Saggar => return Err(error.context("our own server")),
            Err(error) => {
                let reason = format!("{error:#}");
                eprintln!("bench: {} is NOT measured: {reason}", engine.name());
                crowd.absences.push((engine, reason));
                contenders.push(None);
            }
        }
    }
    for round in 0..options.rounds {
        let mut speeds = [None; 3];
        for turn in 0..contenders.len() {
            let turn = (turn + round) % contenders.len();
            let Some(contender) = &mut contenders[turn] else { continue };
            let speed = contender.drive(size).with_context(|| format!("driving {}", Engine::ALL[turn].name()))?;
            speeds[turn] = Some(speed);
        }
        let shown: Vec<String> = speeds.iter().flatten().map(|speed| format!("{speed:.0}")).collect();
        eprintln!("bench: round {} of {}: {} steps/s", round + 1, options.rounds, shown.join(", "));
        crowd.rounds.push(speeds);
    }
    Ok(crowd)
}

struct Ours {
    server: Serving,
    url: String,
}

impl Ours {
    fn start(saggar: &Path, place: &Path, tool: &Alone) -> Result<Self> {
        let server = Serving::start(saggar, place, &flags(tool.address()))?;
        Ok(Self { server, url: tool.url() })
    }

    fn drive(&self, runs: usize, steps: usize) -> Result<f64> {
        let calls = (0..steps).map(|index| runs::http_call(&self.url, index)).collect();
        let request = runs::request("crowd", &json!({ "http": {} }), vec![calls]);
        // A new connection: an idle one is closed while the others have their turn.
        let mut client = self.server.client();
        let begun = Instant::now();
        let ids = (0..runs).map(|_| runs::start(&mut client, &request)).collect::<Result<Vec<_>>>()?;
        runs::wait_for_all(&mut client, &ids)?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_needs_both_in_every_round_and_an_absence_says_why() {
        let crowd = Crowd {
            size: [50, 100],
            rounds: vec![[Some(4000.0), Some(1000.0), None], [Some(3000.0), Some(1000.0), None]],
            absences: vec![(Engine::Dbos, "no PostgreSQL".to_owned())],
            versions: Vec::new(),
        };
        assert_eq!(crowd.ratio(Engine::Restate), Ok(Spread { median: 3.5, min: 3.0, max: 4.0 }));
        assert_eq!(crowd.ratio(Engine::Dbos), Err("no PostgreSQL".to_owned()));
    }
}
