//! Calls a second of many clients at once: directly, through the gateway, and through LiteLLM's proxy.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::litellm::LiteLlm;
use super::{PATH, request};
use crate::bench::options::Options;
use crate::bench::statistics::Spread;
use crate::http::{Ask, Client};
use crate::patience::pause;
use crate::provider::{Provider, QUICK};
use crate::serving::Serving;

/// Clients at once.
pub const CLIENTS: usize = 32;
/// How long each is counted in a round.
const WINDOW: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// Calls a second: direct, gateway and LiteLLM if it is there, round by round.
    pub rounds: Vec<[Option<f64>; 3]>,
    /// LiteLLM's version, or why it took no part.
    pub litellm: Result<String, String>,
}

impl Rate {
    /// How many times as many as LiteLLM.
    pub fn over_litellm(&self) -> Result<Spread, String> {
        let ratio = |round: &[Option<f64>; 3]| Some(round[1]? / round[2]?);
        let ratios: Option<Vec<f64>> = self.rounds.iter().map(ratio).collect();
        match (ratios.filter(|ratios| !ratios.is_empty()), &self.litellm) {
            (Some(ratios), _) => Ok(Spread::of(&ratios)),
            (None, Err(reason)) => Err(reason.clone()),
            (None, Ok(_)) => Err("it took no part".to_owned()),
        }
    }
}

pub fn measure(options: &Options, provider: &Provider, server: &Serving, peers: &Path, place: &Path) -> Result<Rate> {
    let litellm = LiteLlm::start(peers, place, provider).map_err(|error| format!("LiteLLM: {error:#}"));
    let contenders = [
        Some((provider.address(), "none".to_owned())),
        Some((server.address(), server.key().to_owned())),
        litellm.as_ref().ok().map(|litellm| (litellm.address(), litellm.key().to_owned())),
    ];
    for (address, key) in contenders.iter().flatten() {
        count(*address, key, WARM_UP)?;
    }
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        eprintln!("bench: calls a second, round {} of {}", round + 1, options.rounds);
        let mut speeds = [None; 3];
        for turn in 0..contenders.len() {
            let turn = (turn + round) % contenders.len();
            if let Some((address, key)) = &contenders[turn] {
                speeds[turn] = Some(count(*address, key, WINDOW)?);
            }
        }
        rounds.push(speeds);
    }
    Ok(Rate { rounds, litellm: litellm.map(|litellm| litellm.version()) })
}

/// Calls a second within a window.
fn count(address: SocketAddr, key: &str, window: Duration) -> Result<f64> {
    let (done, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let body = request(QUICK, false);
    let begun = Instant::now();
    let seconds = std::thread::scope(|scope| {
        let one = || -> Result<()> {
            let mut client = Client::new(address, key);
            while !is_over.load(Ordering::Relaxed) {
                client.ask(Ask::post(PATH, &body)).context("calling a model")?.expect(200)?;
                if !is_over.load(Ordering::Relaxed) {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(one)).collect();
        pause(window);
        is_over.store(true, Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f64();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))?;
        anyhow::Ok(seconds)
    })?;
    Ok(done.load(Ordering::Relaxed) as f64 / seconds)
}
