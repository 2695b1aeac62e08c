//! A sandbox's life cycle over HTTP, and one command in a running sandbox, in turns with what they are compared with.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::bench::contender::{Contender, Field, PROGRAM};
use crate::bench::options::Options;
use crate::bench::rounds::{Round, take_turns, time_one};
use crate::bench::statistics::median;
use crate::bench::watchdog::Watchdog;
use crate::http::{Ask, Client};
use crate::serving::Serving;

pub const SANDBOXES: &str = "/api/v1/sandboxes";
/// A default sandbox that outlives the benchmark.
pub const CREATE: &str = r#"{"ttl":"1h"}"#;
/// Size of the pool: one sandbox is claimed while the other is being created, so that one is always ready.
const POOL: usize = 2;

/// The contenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The bare program, by `posix_spawn`.
    Spawn,
    /// `saggar run`.
    Run,
    Bubblewrap,
    /// Create, first command, kill, without a pool.
    Cold,
    /// The same with a pool.
    Warm,
    /// A command in a running sandbox.
    Exec,
}

impl Way {
    /// In the order of the tables.
    pub const ALL: [Self; 6] = [Self::Spawn, Self::Run, Self::Bubblewrap, Self::Cold, Self::Warm, Self::Exec];

    /// The column's heading.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spawn => "posix_spawn",
            Self::Run => "saggar run",
            Self::Bubblewrap => "bubblewrap",
            Self::Cold => "life, cold",
            Self::Warm => "life, warm",
            Self::Exec => "exec",
        }
    }

    fn contender(self) -> Option<Contender> {
        match self {
            Self::Spawn => Some(Contender::Bare),
            Self::Run => Some(Contender::Saggar),
            Self::Bubblewrap => Some(Contender::Bubblewrap),
            Self::Cold | Self::Warm | Self::Exec => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    /// One entry per round.
    pub rounds: Vec<Round<Way>>,
    /// Medians of create, first command and kill: without a pool, and from the pool.
    pub parts: [[f64; 3]; 2],
    /// Runs of each per round.
    pub runs: usize,
}

pub fn measure(saggar: &Path, options: &Options, field: &Field, workplace: &Path) -> Result<Life> {
    let quiet = ["--log", "warn"];
    let cold = Serving::start(saggar, &workplace.join("cold"), &[&quiet[..], &["--pool-max", "0"]].concat())?;
    let pool = POOL.to_string();
    let pooled = [&quiet[..], &["--pool-min", &pool, "--pool-max", &pool]].concat();
    let warm = Serving::start(saggar, &workplace.join("warm"), &pooled)?;
    let (mut cold_client, mut warm_client) = (cold.client(), warm.client());
    let running = create(&mut cold_client, CREATE)?;
    let watchdog = Watchdog::start()?;
    let launcher = |way: Way| {
        let contender = way.contender()?;
        field.launchers.iter().find(|launcher| launcher.contender == contender)
    };
    let ways: Vec<(Way, usize)> = Way::ALL
        .into_iter()
        .filter(|way| way.contender().is_none() || launcher(*way).is_some())
        .map(|way| (way, options.runs))
        .collect();
    let mut parts: [Vec<[f64; 3]>; 2] = Default::default();
    let rounds = take_turns(&ways, options.rounds, |turn, serial| {
        // The refill of the pool must not disturb other measurements, so it is awaited here.
        warm.wait_for_sockets(POOL)?;
        match ways[turn].0 {
            way @ (Way::Spawn | Way::Run | Way::Bubblewrap) => {
                time_one(launcher(way).context("it was there a moment ago")?, serial, &watchdog)
            }
            Way::Cold => live_once(&mut cold_client, &mut parts[0]),
            Way::Warm => live_once(&mut warm_client, &mut parts[1]),
            Way::Exec => timed(|| exec(&mut cold_client, &running, &[PROGRAM])).map(|((), time)| time),
        }
    })
    .with_context(|| format!("the servers said:\n{}\n{}", cold.last_words(), warm.last_words()))?;
    kill(&mut cold_client, &running)?;
    let middle =
        |parts: &[[f64; 3]]| [0, 1, 2].map(|part| median(&parts.iter().map(|times| times[part]).collect::<Vec<_>>()));
    Ok(Life { rounds, parts: [middle(&parts[0]), middle(&parts[1])], runs: options.runs })
}

/// One life cycle, in ms. Its parts are appended to `parts`.
fn live_once(client: &mut Client, parts: &mut Vec<[f64; 3]>) -> Result<f64> {
    let start = Instant::now();
    let (id, create_ms) = timed(|| create(client, CREATE))?;
    let ((), exec_ms) = timed(|| exec(client, &id, &[PROGRAM]))?;
    let ((), kill_ms) = timed(|| kill(client, &id))?;
    let all = milliseconds(start);
    parts.push([create_ms, exec_ms, kill_ms]);
    Ok(all)
}

/// Creates a sandbox and returns its id.
pub fn create(client: &mut Client, wishes: &str) -> Result<String> {
    let answer = client.ask(Ask::post(SANDBOXES, wishes)).context("asking for a sandbox")?.expect(201)?;
    // Found by hand, because parsing the whole response would be part of the measured time.
    let text = String::from_utf8_lossy(&answer.body);
    let id = text.split_once(r#""id":""#).and_then(|(_, rest)| Some(rest.split_once('"')?.0.to_owned()));
    id.filter(|id| id.starts_with("sbx_")).with_context(|| format!("a sandbox without an id: {text}"))
}

/// Runs a program in it and waits for its end.
pub fn exec(client: &mut Client, id: &str, command: &[&str]) -> Result<()> {
    let path = format!("{SANDBOXES}/{id}/execs");
    let command = format!(r#"{{"command":["{}"]}}"#, command.join(r#"",""#));
    let answer = client.ask(Ask::post(&path, &command)).context("running the program")?.expect(200)?;
    let text = String::from_utf8_lossy(&answer.body);
    ensure!(text.contains(r#""status":"exited","#) && text.contains(r#""exit_code":0,"#), "the program failed: {text}");
    Ok(())
}

pub fn kill(client: &mut Client, id: &str) -> Result<()> {
    client.ask(Ask::new("DELETE", &format!("{SANDBOXES}/{id}"))).context("ending a sandbox")?.expect(200)?;
    Ok(())
}

/// The result, and the time in ms.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let outcome = work()?;
    Ok((outcome, milliseconds(start)))
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1000.0
}
