//! The report on models: targets and results, round by round.

use super::calls::{Calls, Time, Way};
use super::parallel::{CALLS, Parallel};
use super::rate::{CLIENTS, Rate};
use super::streams::{PER_SECOND, STREAMS, Streams, TOKENS};
use crate::bench::report::{NOTHING, circumstances};
use crate::bench::statistics::Spread;
use crate::bench::table::Table;
use crate::bench::target::{self, Bound, Target};
use crate::machine::{Load, Machine};

/// Maximum that the gateway adds to a median, in ms.
const ADDED_P50_MAX: f64 = 0.5;
/// The same of a 99th percentile.
const ADDED_P99_MAX: f64 = 2.0;
/// Minimum ratio of our calls a second to LiteLLM's.
const OVER_LITELLM_MIN: f64 = 20.0;
/// Minimum tokens a second of the slowest stream: it may be late by one part in a hundred.
const SLOWEST_MIN: f64 = PER_SECOND as f64 * 0.99;
/// Maximum memory of the gateway with all streams, in MiB.
const STREAMS_MIB_MAX: f64 = 200.0;
/// Maximum time of tools at once over the longest of them.
const PARALLEL_MAX: f64 = 1.3;

#[derive(Debug)]
pub struct Report {
    pub targets: Vec<Target>,
    machine: Machine,
    calls: Calls,
    rate: Rate,
    streams: Streams,
    parallel: Parallel,
    loads: [Load; 2],
}

impl Report {
    pub fn new(
        machine: Machine,
        calls: Calls,
        rate: Rate,
        streams: Streams,
        parallel: Parallel,
        loads: [Load; 2],
    ) -> Self {
        let targets = targets(&calls, &rate, &streams, &parallel);
        Self { targets, machine, calls, rate, streams, parallel, loads }
    }

    pub fn text(&self) -> String {
        let against = match &self.rate.litellm {
            Ok(version) => format!("- against {version}\n"),
            Err(reason) => format!("- NOT measured: {reason}\n"),
        };
        let sections = [
            format!("{}\n{against}", circumstances(&self.machine, self.loads)),
            target::table(&self.targets).to_string(),
            calls_section(&self.calls),
            rate_section(&self.rate),
            streams_section(&self.streams),
            parallel_section(&self.parallel),
        ];
        sections.join("\n")
    }
}

fn targets(calls: &Calls, rate: &Rate, streams: &Streams, parallel: &Parallel) -> Vec<Target> {
    let target = |name, bound, unit, measured| Target { name, bound, unit, measured };
    let peak = Spread::of(&[streams.peak_mib]);
    vec![
        target("added to a call, p50", Bound::AtMost(ADDED_P50_MAX), " ms", Ok(calls.added(|time| time.p50))),
        target("added to a call, p99", Bound::AtMost(ADDED_P99_MAX), " ms", Ok(calls.added(|time| time.p99))),
        target("calls/s over LiteLLM's", Bound::AtLeast(OVER_LITELLM_MIN), "×", rate.over_litellm()),
        target("tokens/s of the slowest of 200 streams", Bound::AtLeast(SLOWEST_MIN), "", Ok(streams.slowest())),
        target("memory with 200 streams, at its peak", Bound::AtMost(STREAMS_MIB_MAX), " MiB", Ok(peak)),
        target("8 tools at once over the longest", Bound::AtMost(PARALLEL_MAX), "×", Ok(parallel.over_the_longest())),
    ]
}

fn calls_section(calls: &Calls) -> String {
    let mut table = Table::new([&["round"], &Way::ALL.map(Way::name)[..]].concat());
    let text = |Time { p50, p99 }: Time| format!("{p50:.3} ({p99:.3})");
    for (number, round) in calls.rounds.iter().enumerate() {
        table.add([&[(number + 1).to_string()], &round.map(text)[..]].concat());
    }
    format!(
        "One call after the other, {} of each in a round: median (p99) in ms, of a whole answer and up to the first byte of a stream. What is \
         added is the worse of both. A call waits for no sync: its reservation and its bill survive the death of any process, but the last ones \
         before a power cut may be lost.\n\n{table}",
        calls.calls
    )
}

fn rate_section(rate: &Rate) -> String {
    let mut table = Table::new(["round", "direct", "gateway", "LiteLLM", "gateway/LiteLLM"]);
    for (number, round) in rate.rounds.iter().enumerate() {
        let speeds = round.map(|speed| speed.map_or(NOTHING.into(), |speed| format!("{speed:.0}")));
        let ratio = match round {
            [_, Some(ours), Some(theirs)] => format!("{:.1}×", ours / theirs),
            _ => NOTHING.to_owned(),
        };
        table.add([&[(number + 1).to_string()], &speeds[..], &[ratio]].concat());
    }
    format!(
        "{CLIENTS} clients at once, which share the machine's CPUs with everything else here: calls a second.\n\n{table}"
    )
}

fn streams_section(streams: &Streams) -> String {
    let mut table = Table::new(["round", "direct", "gateway"]);
    for (number, round) in streams.rounds.iter().enumerate() {
        table.add([&[(number + 1).to_string()], &round.map(|speed| format!("{speed:.2}"))[..]].concat());
    }
    format!(
        "{STREAMS} streams at once of {TOKENS} tokens at {PER_SECOND} a second: tokens a second of the slowest.\n\n{table}"
    )
}

fn parallel_section(parallel: &Parallel) -> String {
    let mut table = Table::new(["round", "all", "the longest", "all/longest"]);
    for (number, [all, longest]) in parallel.rounds.iter().enumerate() {
        let texts = [format!("{all:.0}"), format!("{longest:.0}"), format!("{:.2}×", all / longest)];
        table.add([&[(number + 1).to_string()], &texts[..]].concat());
    }
    format!("A durable run that calls {CALLS} slow services at once, in ms.\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_is_judged_and_what_is_missing_says_why() {
        let time = |p50, p99| Time { p50, p99 };
        let calls = Calls {
            calls: 1,
            // Whole answers are within both bounds; first bytes exceed that of the 99th percentile.
            rounds: vec![[time(0.1, 0.2), time(0.5, 1.0), time(0.1, 0.2), time(0.4, 2.3)]],
        };
        let rate = Rate { rounds: vec![[Some(9.0), Some(5.0), None]], litellm: Err("LiteLLM: not there".to_owned()) };
        let streams = Streams { rounds: vec![[100.0, 98.9]], peak_mib: 199.0 };
        let parallel = Parallel { rounds: vec![[130.0, 100.0]] };
        let verdicts: Vec<String> =
            targets(&calls, &rate, &streams, &parallel).iter().map(Target::verdict_text).collect();
        assert_eq!(verdicts, ["met", "MISSED", "NOT MEASURED: LiteLLM: not there", "MISSED", "met", "met"]);
    }
}
