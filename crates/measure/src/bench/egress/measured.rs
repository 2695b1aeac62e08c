//! What is measured in a round, and the ratios that the targets are about.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::client::{Client, Way};
use super::{AT_ONCE, HELD, STARTS};
use crate::bench::statistics::median;

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub rounds: Vec<Round>,
}

/// Each pair is the direct way, or the peer's, and ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// A request on a kept connection, in ms.
    pub http_ms: [f64; 2],
    pub tls_ms: [f64; 2],
    /// A new connection with one request, in ms.
    pub connection_ms: [f64; 2],
    /// One stream, in MB/s: direct TLS, passed through, inspected; then direct HTTP and ours.
    pub streams_mbs: [f64; 5],
    /// Requests per second over inspected TLS: ours, haproxy, mitmproxy.
    pub rates: [f64; 3],
    /// Memory of the egress process for one inspected connection, in KiB.
    pub connection_kib: f64,
    /// A start of `saggar run`, in ms: without a network, proxied.
    pub start_ms: [f64; 2],
}

impl Round {
    /// `is_reversed` turns the order of each pair around.
    pub fn measure(client: &Client, is_reversed: bool) -> Result<Self> {
        let [http_ms, tls_ms] = [[Way::DirectHttp, Way::PlainHttp], [Way::DirectTls, Way::Inspected]]
            .map(|ways| in_turn(ways, is_reversed, |way| client.latency_ms(way)));
        let connection_ms = in_turn([Way::DirectTls, Way::Inspected], is_reversed, |way| client.connection_ms(way))?;
        let streams = [Way::DirectTls, Way::PassThrough, Way::Inspected, Way::DirectHttp, Way::PlainHttp];
        let streams_mbs = in_turn(streams, is_reversed, |way| client.stream_mbs(way))?;
        let rates =
            in_turn([Way::Inspected, Way::Haproxy, Way::Mitmproxy], is_reversed, |way| client.rate(way, AT_ONCE))?;
        let mut starts = [Vec::new(), Vec::new()];
        for _ in 0..STARTS {
            for (times, is_proxied) in starts.iter_mut().zip([false, true]) {
                times.push(client.start_ms(is_proxied)?);
            }
        }
        Ok(Self {
            http_ms: http_ms?,
            tls_ms: tls_ms?,
            connection_ms,
            streams_mbs,
            rates,
            connection_kib: client.connection_kib(HELD)?,
            start_ms: starts.map(|times| median(&times)),
        })
    }

    pub fn added_http_ms(&self) -> f64 {
        self.http_ms[1] - self.http_ms[0]
    }

    pub fn added_tls_ms(&self) -> f64 {
        self.tls_ms[1] - self.tls_ms[0]
    }

    pub fn connection_ratio(&self) -> f64 {
        self.connection_ms[1] / self.connection_ms[0]
    }

    pub fn passed_through(&self) -> f64 {
        self.streams_mbs[1] / self.streams_mbs[0]
    }

    pub fn inspected(&self) -> f64 {
        self.streams_mbs[2] / self.streams_mbs[0]
    }

    pub fn over_haproxy(&self) -> f64 {
        self.rates[0] / self.rates[1]
    }

    pub fn over_mitmproxy(&self) -> f64 {
        self.rates[0] / self.rates[2]
    }

    pub fn added_start_ms(&self) -> f64 {
        self.start_ms[1] - self.start_ms[0]
    }
}

/// Measures each way, from the first to the last or back; the results are in the order of the ways.
fn in_turn<const N: usize>(
    ways: [Way; N],
    is_reversed: bool,
    mut measure: impl FnMut(Way) -> Result<f64>,
) -> Result<[f64; N]> {
    let mut results = [0.0; N];
    for turn in 0..N {
        let index = if is_reversed { N - 1 - turn } else { turn };
        results[index] = measure(ways[index])?;
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stay_with_their_ways_in_either_order() {
        let ways = [Way::DirectHttp, Way::DirectTls, Way::Inspected];
        for is_reversed in [false, true] {
            let mut seen = Vec::new();
            let results = in_turn(ways, is_reversed, |way| {
                seen.push(way);
                Ok(if way == Way::Inspected { 2.0 } else { 1.0 })
            });
            assert_eq!(results.unwrap(), [1.0, 1.0, 2.0]);
            assert_eq!(seen.first(), Some(if is_reversed { &Way::Inspected } else { &Way::DirectHttp }));
        }
    }
}
