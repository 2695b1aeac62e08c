//! The report on the network boundary: targets and results.

use super::measured::{Measured, Round};
use super::{AT_ONCE, HELD, STARTS};
use crate::bench::report::circumstances;
use crate::bench::statistics::Spread;
use crate::bench::table::Table;
use crate::bench::target::{self, Bound, Target};
use crate::machine::{Load, Machine};

#[derive(Debug)]
pub struct Report {
    pub targets: Vec<Target>,
    machine: Machine,
    versions: Vec<String>,
    measured: Measured,
    loads: [Load; 2],
}

impl Report {
    /// `loads` are the load averages before and after.
    pub fn new(machine: Machine, versions: Vec<String>, measured: Measured, loads: [Load; 2]) -> Self {
        Self { targets: targets(&measured), machine, versions, measured, loads }
    }

    pub fn text(&self) -> String {
        let circumstances = circumstances(&self.machine, self.loads);
        let sections = [
            format!("{circumstances}\n- with and against {}\n", self.versions.join(", ")),
            target::table(&self.targets).to_string(),
            requests(&self.measured),
            streams(&self.measured),
        ];
        sections.join("\n")
    }
}

fn targets(measured: &Measured) -> Vec<Target> {
    let target = |name, bound, unit, value: fn(&Round) -> f64| {
        let values: Vec<f64> = measured.rounds.iter().map(value).collect();
        let measured = if values.is_empty() { Err("there was no round".to_owned()) } else { Ok(Spread::of(&values)) };
        Target { name, bound, unit, measured }
    };
    vec![
        target("plain HTTP, added p50", Bound::AtMost(0.15), " ms", Round::added_http_ms),
        target("inspected TLS, added p50", Bound::AtMost(0.2), " ms", Round::added_tls_ms),
        target("a new inspected connection, over direct", Bound::AtMost(3.0), "×", Round::connection_ratio),
        target("a stream passed through, of direct TLS", Bound::AtLeast(0.6), "×", Round::passed_through),
        target("an inspected stream, of direct TLS", Bound::AtLeast(0.45), "×", Round::inspected),
        target("inspected requests/s, over mitmproxy's", Bound::AtLeast(20.0), "×", Round::over_mitmproxy),
        target("inspected requests/s, over haproxy's", Bound::AtLeast(0.6), "×", Round::over_haproxy),
        target("an inspected connection", Bound::AtMost(100.0), " KiB", |round| round.connection_kib),
        target("`saggar run --net proxied`, added", Bound::AtMost(2.0), " ms", Round::added_start_ms),
    ]
}

fn requests(measured: &Measured) -> String {
    let mut table = Table::new([
        "round",
        "HTTP, direct",
        "ours",
        "TLS, direct",
        "inspected",
        "new, direct",
        "inspected",
        "start, none",
        "proxied",
    ]);
    for (number, round) in measured.rounds.iter().enumerate() {
        let times = [round.http_ms, round.tls_ms, round.connection_ms, round.start_ms].concat();
        let cells = times.iter().map(|time| format!("{time:.3}"));
        table.add(std::iter::once((number + 1).to_string()).chain(cells));
    }
    format!(
        "Times in ms: the median of requests on one kept connection, a new connection with one request, and the median of {STARTS} starts \
         of `saggar run -- /bin/true`.\n\n{table}"
    )
}

fn streams(measured: &Measured) -> String {
    let mut table = Table::new([
        "round",
        "TLS, direct",
        "passed through",
        "inspected",
        "HTTP, direct",
        "ours",
        "req/s",
        "haproxy",
        "mitmproxy",
        "KiB",
    ]);
    for (number, round) in measured.rounds.iter().enumerate() {
        let numbers = [&round.streams_mbs[..], &round.rates, &[round.connection_kib]].concat();
        let cells = numbers.iter().map(|number| format!("{number:.0}"));
        table.add(std::iter::once((number + 1).to_string()).chain(cells));
    }
    format!(
        "One stream of 512 MiB in MB/s, inspected requests per second on {AT_ONCE} connections, and the memory of the egress process for one \
         of {HELD} inspected connections.\n\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_about_what_is_added_and_about_ratios() {
        let round = Round {
            http_ms: [0.05, 0.15],
            tls_ms: [0.1, 0.2],
            connection_ms: [1.0, 2.0],
            streams_mbs: [1000.0, 700.0, 500.0, 2000.0, 1000.0],
            rates: [30_000.0, 30_000.0, 1000.0],
            connection_kib: 80.0,
            start_ms: [4.0, 5.5],
        };
        let targets = targets(&Measured { rounds: vec![round] });
        let medians: Vec<String> = targets
            .iter()
            .map(|target| target.measured.as_ref().map_or_else(Clone::clone, |spread| format!("{:.2}", spread.median)))
            .collect();
        assert_eq!(medians, ["0.10", "0.10", "2.00", "0.70", "0.50", "30.00", "1.00", "80.00", "1.50"]);
        assert!(targets.iter().all(|target| target.verdict() == target::Verdict::Met), "{targets:?}");
    }
}
