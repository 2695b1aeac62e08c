//! The report on E2B's client: targets and results.

use super::{AT_ONCE, Measured, Way};
use crate::bench::report::{NOTHING, circumstances, summary_text};
use crate::bench::statistics::Spread;
use crate::bench::table::Table;
use crate::bench::target::{self, Bound, Target};
use crate::machine::{Load, Machine};

/// Maximum ratio of our share of the time through the client to the time of our own API.
const SHARE_MAX: f64 = 1.5;
/// Maximum ratio of the p99 of creates to their median.
const STRETCH_MAX: f64 = 20.0;

#[derive(Debug)]
pub struct Report {
    pub targets: Vec<Target>,
    machine: Machine,
    version: String,
    measured: Measured,
    loads: [Load; 2],
}

impl Report {
    /// `loads` are the load averages before and after.
    pub(super) fn new(machine: Machine, version: String, measured: Measured, loads: [Load; 2]) -> Self {
        let target =
            |name, most, unit, measured| Target { name, bound: Bound::AtMost(most), unit, measured: Ok(measured) };
        let targets = vec![
            target(
                "our share of create + run + kill, over our own API",
                SHARE_MAX,
                "×",
                Spread::of(&measured.shares()),
            ),
            target("p99 of creates at once, over their median", STRETCH_MAX, "×", Spread::of(&measured.stretches())),
            target("creates at once that fail", 0.0, "", measured.failures()),
        ];
        Self { targets, machine, version, measured, loads }
    }

    pub fn text(&self) -> String {
        let circumstances = circumstances(&self.machine, self.loads);
        let sections = [
            format!("{circumstances}\n- through Python's e2b {}\n", self.version),
            target::table(&self.targets).to_string(),
            life_section(&self.measured),
            burst_section(&self.measured),
        ];
        sections.join("\n")
    }
}

fn life_section(measured: &Measured) -> String {
    let names = Way::ALL.map(Way::name);
    let mut table = Table::new([&["round"], &names[..], &["our share / our own API"]].concat());
    for (number, (round, share)) in measured.rounds.iter().zip(measured.shares()).enumerate() {
        let times = Way::ALL.map(|way| round.of(way).map_or(NOTHING.into(), summary_text));
        table.add([&[(number + 1).to_string()], &times[..], &[format!("{share:.2}×")]].concat());
    }
    let runs = measured.runs;
    format!("Create, run and kill, in ms: median (p10..p90). Runs of each in a round: {runs}.\n\n{table}")
}

fn burst_section(measured: &Measured) -> String {
    let mut table = Table::new(["round", "median", "p99", "p99 / median", "failed"]);
    for (number, (burst, stretch)) in measured.bursts.iter().zip(measured.stretches()).enumerate() {
        let [median, p99] = [burst.median, burst.p99].map(|time| format!("{time:.1}"));
        table.add([(number + 1).to_string(), median, p99, format!("{stretch:.2}×"), burst.failed.to_string()]);
    }
    format!("{AT_ONCE} creates at once through the asynchronous client, in ms.\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::super::Burst;
    use super::*;
    use crate::bench::rounds::Round;
    use crate::bench::statistics::Summary;

    #[test]
    fn our_share_is_what_the_stub_leaves() {
        let summary = |median| Summary { p10: median, median, p90: median };
        let round =
            |client, stub, native| Round::new(Way::ALL.into_iter().zip([client, stub, native].map(summary)).collect());
        let burst = |failed| Burst { median: 10.0, p99: 50.0, failed };
        let measured = Measured {
            rounds: vec![round(30.0, 20.0, 10.0), round(40.0, 20.0, 10.0), round(32.0, 20.0, 10.0)],
            bursts: vec![burst(0), burst(0), burst(1)],
            runs: 1,
        };
        let machine = Machine {
            date: "2026-01-02".into(),
            kernel: "6.12.1".into(),
            cpus: 2,
            cpu_model: "A CPU".into(),
            is_virtual: false,
            memory_mib: 4096,
            cgroups: "cgroups v2",
            is_root: true,
        };
        let report = Report::new(machine, "1.0".into(), measured, [Load([0.1; 3]), Load([0.2; 3])]);
        // Without the padding of the columns.
        let text = report.text().split_whitespace().collect::<Vec<_>>().join(" ");
        for line in [
            "| our share of create + run + kill, over our own API | ≤ 1.5× | 1.20× | 1.00..2.00 | met, not in every round |",
            "| p99 of creates at once, over their median | ≤ 20× | 5.00× | 5.00..5.00 | met |",
            "| creates at once that fail | ≤ 0 | 1.00 | 0.00..1.00 | MISSED, not in every round |",
            "| 2 | 40.00 (40.00..40.00) | 20.00 (20.00..20.00) | 10.00 (10.00..10.00) | 2.00× |",
            "| 3 | 10.0 | 50.0 | 5.00× | 1 |",
        ] {
            assert!(text.contains(line), "no line {line:?} in:\n{text}");
        }
    }
}
