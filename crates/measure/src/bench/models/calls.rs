//! Calls one by one, directly and through the gateway: whole answers, and streams up to their first byte.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{PATH, request};
use crate::bench::options::Options;
use crate::bench::rounds::schedule;
use crate::bench::statistics::{Spread, median, p99};
use crate::http::{Ask, Client};
use crate::provider::{Provider, QUICK};
use crate::serving::Serving;

const WARM_UP: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Direct,
    Gateway,
    DirectStream,
    GatewayStream,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Direct, Self::Gateway, Self::DirectStream, Self::GatewayStream];

    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Gateway => "gateway",
            Self::DirectStream => "direct, first byte",
            Self::GatewayStream => "gateway, first byte",
        }
    }

    fn is_stream(self) -> bool {
        matches!(self, Self::DirectStream | Self::GatewayStream)
    }
}

/// Of one round, in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Time {
    pub p50: f64,
    pub p99: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    pub calls: usize,
    /// Each way in the order of [`Way::ALL`], round by round.
    pub rounds: Vec<[Time; 4]>,
}

impl Calls {
    /// What the gateway adds to a median, or to a 99th percentile: the worse of whole answers and first bytes.
    pub fn added(&self, of: fn(Time) -> f64) -> Spread {
        let added = self.rounds.iter().map(|[direct, gateway, direct_stream, gateway_stream]| {
            (of(*gateway) - of(*direct)).max(of(*gateway_stream) - of(*direct_stream))
        });
        Spread::of(&added.collect::<Vec<_>>())
    }
}

pub fn measure(options: &Options, provider: &Provider, server: &Serving) -> Result<Calls> {
    let mut clients = [
        Client::new(provider.address(), "none"),
        server.client(),
        Client::new(provider.address(), "none"),
        server.client(),
    ];
    let calls = options.calls;
    let mut rounds = Vec::new();
    for round in 0..=options.rounds {
        eprintln!("bench: calls of models, round {round} of {}", options.rounds);
        let mut times: [Vec<f64>; 4] = Default::default();
        let count = if round == 0 { WARM_UP } else { calls };
        for turn in schedule(round, &[count; 4]) {
            times[turn].push(time(&mut clients[turn], Way::ALL[turn])?);
        }
        // The first round warms up.
        if round > 0 {
            rounds.push(times.map(|times| Time { p50: median(&times), p99: p99(&times) }));
        }
    }
    Ok(Calls { calls, rounds })
}

fn time(client: &mut Client, way: Way) -> Result<f64> {
    let body = request(QUICK, way.is_stream());
    let begun = Instant::now();
    if !way.is_stream() {
        client.ask(Ask::post(PATH, &body)).context("calling a model")?.expect(200)?;
        return Ok(begun.elapsed().as_secs_f64() * 1000.0);
    }
    let mut first = None;
    let status = client.follow(Ask::post(PATH, &body), |_| {
        first.get_or_insert_with(|| begun.elapsed());
    });
    ensure!(status.context("following a model")? == 200, "the stream was refused");
    Ok(first.context("an empty stream")?.as_secs_f64() * 1000.0)
}
