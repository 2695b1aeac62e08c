//! Many streams at once, each as fast as a quick model writes: whether any falls behind, and the gateway's memory.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{PATH, request, serve};
use crate::bench::options::Options;
use crate::bench::statistics::Spread;
use crate::http::{Ask, Client};
use crate::processes::peak_kib;
use crate::provider::{Provider, paced};

/// Streams at once.
pub const STREAMS: usize = 200;
/// Tokens a second of each.
pub const PER_SECOND: u64 = 100;
/// Tokens of each.
pub const TOKENS: u64 = 300;

#[derive(Clone, Debug, PartialEq)]
pub struct Streams {
    /// Tokens a second of the slowest stream, directly and through the gateway, round by round.
    pub rounds: Vec<[f64; 2]>,
    /// The gateway's peak of memory, in MiB.
    pub peak_mib: f64,
}

impl Streams {
    pub fn slowest(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(|[_, gateway]| *gateway).collect::<Vec<_>>())
    }
}

pub fn measure(options: &Options, saggar: &Path, provider: &Provider, place: &Path) -> Result<Streams> {
    let server = serve(saggar, provider, place, "streams")?;
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        eprintln!("bench: {STREAMS} streams, round {} of {}", round + 1, options.rounds);
        let direct = || slowest(provider.address(), "none");
        let gateway = || slowest(server.address(), server.key());
        // Every other round goes the other way around.
        rounds.push(if round % 2 == 0 {
            let direct = direct()?;
            [direct, gateway()?]
        } else {
            let gateway = gateway()?;
            [direct()?, gateway]
        });
    }
    let peak = peak_kib(server.pid()).context("the gateway's peak of memory")?;
    Ok(Streams { rounds, peak_mib: peak / 1024.0 })
}

/// Follows all streams to their ends; tokens a second of the slowest, from its first byte to its last.
fn slowest(address: SocketAddr, key: &str) -> Result<f64> {
    let body = request(&paced(TOKENS, PER_SECOND), true);
    let times: Vec<Duration> = std::thread::scope(|scope| {
        let one = || -> Result<Duration> {
            let (mut first, mut tokens) = (None, 0);
            let mut last = Instant::now();
            let status = Client::new(address, key).follow(Ask::post(PATH, &body), |piece| {
                last = Instant::now();
                first.get_or_insert(last);
                tokens += piece.windows(5).filter(|window| window == b" word").count() as u64;
            });
            ensure!(status.context("following a model")? == 200 && tokens == TOKENS, "{tokens} tokens of a stream");
            Ok(last - first.context("an empty stream")?)
        };
        let streams: Vec<_> = (0..STREAMS).map(|_| scope.spawn(one)).collect();
        streams.into_iter().map(|stream| stream.join().expect("a client does not panic")).collect::<Result<_>>()
    })?;
    let longest = times.into_iter().max().unwrap_or_default();
    Ok(TOKENS as f64 / longest.as_secs_f64())
}
