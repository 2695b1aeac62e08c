//! The cost of E2B's own client: a life cycle through it, compared with our own API, and many concurrent creates.
//!
//! Most of the time of a call is spent in the client itself. So the same calls also go to a stub that answers at
//! once, and only the difference is compared with our own API.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::options::Options;
use super::rounds::{Round, take_turns};
use super::server::life;
use super::statistics::{Spread, median, p99};
use crate::machine::{Load, Machine};
use crate::serving::Serving;
use crate::workplace::Workplace;
use python::Python;
use report::Report;
use stub::Stub;

mod python;
mod report;
mod stub;

/// What the client runs for `commands.run("true")`.
const COMMAND: [&str; 4] = ["/bin/bash", "-l", "-c", "true"];
/// Number of concurrent creates.
const AT_ONCE: usize = 100;

/// The contenders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Create, run and kill through E2B's client.
    Client,
    /// The same against the stub.
    Stub,
    /// The same through our own API.
    Native,
}

impl Way {
    const ALL: [Self; 3] = [Self::Client, Self::Stub, Self::Native];

    fn name(self) -> &'static str {
        match self {
            Self::Client => "E2B's client",
            Self::Stub => "to the stub",
            Self::Native => "our own API",
        }
    }
}

/// Concurrent creates, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Burst {
    median: f64,
    p99: f64,
    failed: usize,
}

#[derive(Debug)]
struct Measured {
    rounds: Vec<Round<Way>>,
    bursts: Vec<Burst>,
    /// Runs of each contender per round.
    runs: usize,
}

impl Measured {
    /// Our share of the time through the client, relative to the time of our own API; one value per round.
    fn shares(&self) -> Vec<f64> {
        let share =
            |round: &Round<Way>| Some(round.ratio(Way::Client, Way::Native)? - round.ratio(Way::Stub, Way::Native)?);
        self.rounds.iter().filter_map(share).collect()
    }

    fn stretches(&self) -> Vec<f64> {
        self.bursts.iter().map(|burst| burst.p99 / burst.median).collect()
    }

    /// None may fail, so the worst round counts.
    fn failures(&self) -> Spread {
        let failed = Spread::of(&self.bursts.iter().map(|burst| burst.failed as f64).collect::<Vec<_>>());
        Spread { median: failed.max, ..failed }
    }
}

/// `root` is the repository, which has the client's tests.
pub fn measure(options: &Options, saggar: &Path, root: &Path) -> Result<Report> {
    let workplace = Workplace::make("bench-e2b").context("making a directory for the benchmark")?;
    let mut python = Python::start(saggar, root).context("starting E2B's client")?;
    let machine = Machine::look().context("looking at the machine")?;
    let load_before = Load::now()?;
    let server = Serving::start(saggar, &workplace.path().join("server"), &["--log", "warn"])?;
    let stub = Stub::start().context("starting the stub")?;
    let (mut client, url) = (server.client(), format!("http://{}", server.address()));
    let mut live = |way: Way| match way {
        Way::Client => python.live(&url, server.key()),
        Way::Stub => python.live(&stub.url(), server.key()),
        Way::Native => life::timed(|| {
            let id = life::create(&mut client, life::CREATE)?;
            life::exec(&mut client, &id, &COMMAND)?;
            life::kill(&mut client, &id)
        })
        .map(|((), time)| time),
    };
    let rounds = take_turns(&Way::ALL.map(|way| (way, options.runs)), options.rounds, |turn, _| live(Way::ALL[turn]))
        .with_context(|| format!("the server said:\n{}", server.last_words()))?;
    let mut bursts = Vec::new();
    for round in 0..options.rounds {
        eprintln!("bench: {AT_ONCE} creates at once, round {} of {}", round + 1, options.rounds);
        let (times, failed) = python.create_at_once(&url, server.key(), AT_ONCE)?;
        ensure!(!times.is_empty(), "no create succeeded; the server said:\n{}", server.last_words());
        bursts.push(Burst { median: median(&times), p99: p99(&times), failed });
    }
    let load_after = Load::now()?;
    let version = python.version().to_owned();
    Ok(Report::new(machine, version, Measured { rounds, bursts, runs: options.runs }, [load_before, load_after]))
}
