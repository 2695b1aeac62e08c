//! The report as Markdown that is also readable on a terminal.

use std::fmt::Write;

use super::contender::{Absence, Contender, Field, Launcher};
use super::idle::Idle;
use super::rounds::Round;
use super::statistics::{Spread, Summary};
use super::table::Table;
use super::target::{self, Target};
use crate::machine::{Load, Machine};

/// Stands for a missing number.
pub const NOTHING: &str = "—";

#[derive(Debug)]
pub struct Report {
    pub targets: Vec<Target>,
    machine: Machine,
    versions: Vec<String>,
    absences: Vec<Absence>,
    /// Runs of each contender per round.
    runs: Vec<(Contender, usize)>,
    rounds: Vec<Round>,
    idle: Option<Idle>,
    loads: [Load; 2],
}

impl Report {
    /// `loads` are the load averages before and after.
    pub fn new(machine: Machine, field: Field, rounds: Vec<Round>, idle: Option<Idle>, loads: [Load; 2]) -> Self {
        let Field { launchers, absences, versions } = field;
        let reason = |contender: Contender| {
            let absence = absences.iter().find(|absence| absence.contender == contender);
            absence.map_or_else(|| "it took no part".to_owned(), |absence| absence.reason.clone())
        };
        let targets = Target::all(&rounds, idle.as_ref(), reason);
        let runs = launchers.iter().map(|Launcher { contender, runs, .. }| (*contender, *runs)).collect();
        Self { targets, machine, versions, absences, runs, rounds, idle, loads }
    }

    pub fn text(&self) -> String {
        let mut sections = vec![self.circumstances(), target::table(&self.targets).to_string(), self.time_section()];
        sections.extend(self.idle.as_ref().map(idle_section));
        sections.join("\n")
    }

    fn circumstances(&self) -> String {
        let mut lines = vec![circumstances(&self.machine, self.loads)];
        if !self.versions.is_empty() {
            lines.push(format!("- against {}", self.versions.join(", ")));
        }
        for Absence { contender, reason } in &self.absences {
            lines.push(format!("- NOT measured: {}: {reason}", contender.name()));
        }
        lines.join("\n") + "\n"
    }

    fn time_section(&self) -> String {
        let runs: Vec<String> =
            self.runs.iter().map(|(contender, runs)| format!("{} {runs}", contender.name())).collect();
        let mut text = String::from("Time from spawn to exit, in ms: median (p10..p90). Runs in a round: ");
        // Writing to a String can't fail.
        let _ = writeln!(text, "{}.\n", runs.join(", "));
        let names = Contender::ALL.map(Contender::name);
        let mut table =
            Table::new([&["round"], &names[..], &["saggar/bubblewrap", "runc/saggar", "--version/bare"]].concat());
        for (number, round) in self.rounds.iter().enumerate() {
            let times = Contender::ALL.map(|contender| round.of(contender).map_or(NOTHING.into(), summary_text));
            let ratios =
                RATIOS.map(|(of, to)| round.ratio(of, to).map_or(NOTHING.into(), |ratio| format!("{ratio:.2}×")));
            table.add([&[(number + 1).to_string()], &times[..], &ratios[..]].concat());
        }
        let over = |values: Option<Vec<f64>>| {
            values.filter(|values| !values.is_empty()).map(|values| Spread::of(&values).median)
        };
        let times = Contender::ALL.map(|contender| {
            let medians = self.rounds.iter().map(|round| round.of(contender).map(|summary| summary.median)).collect();
            over(medians).map_or(NOTHING.into(), |median| format!("{median:.2}"))
        });
        let ratios = RATIOS.map(|(of, to)| {
            let ratios = self.rounds.iter().map(|round| round.ratio(of, to)).collect();
            over(ratios).map_or(NOTHING.into(), |ratio| format!("{ratio:.2}×"))
        });
        table.add([&["median".to_owned()], &times[..], &ratios[..]].concat());
        text + &table.to_string()
    }
}

/// Date, machine and load, as lines of a list.
pub fn circumstances(machine: &Machine, [before, after]: [Load; 2]) -> String {
    let lines = [
        format!("- measured on {}, with `make bench`", machine.date),
        format!("- {}", machine.text()),
        format!("- load average before: {before}; after: {after}"),
    ];
    lines.join("\n")
}

/// The ratios that have a column, in this order.
const RATIOS: [(Contender, Contender); 3] = [
    (Contender::Saggar, Contender::Bubblewrap),
    (Contender::Runc, Contender::Saggar),
    (Contender::Version, Contender::Bare),
];

/// The median with p10 and p90.
pub fn summary_text(Summary { p10, median, p90 }: Summary) -> String {
    format!("{median:.2} ({p10:.2}..{p90:.2})")
}

fn idle_section(idle: &Idle) -> String {
    let caches = if idle.caches_were_dropped { "dropped" } else { "left alone" };
    let mut table = Table::new(["round", "in a sandbox", "bare", "the sandbox's cost"]);
    for (number, round) in idle.rounds.iter().enumerate() {
        let kib = [round.sandboxed_kib, round.bare_kib, round.cost_kib()].map(|kib| format!("{kib:.0}"));
        table.add([&[(number + 1).to_string()], &kib[..]].concat());
    }
    let count = idle.sandboxes;
    format!(
        "Fall of MemAvailable for each of {count} idle programs, in KiB; the kernel's caches were {caches} before each reading.\n\n{table}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::idle::IdleRound;

    const EXPECTED: &str = "\
- measured on 2026-01-02, with `make bench`
- Linux 6.12.1, 2 CPUs (A CPU, a virtual machine), 4096 MiB of memory, cgroups v2, run as root
- load average before: 0.10 0.20 0.30; after: 1.00 0.50 0.30
- against bubblewrap 0.8.0
- NOT measured: runc: runc is not installed

| target                             | promised | measured | min..max over rounds |                             verdict |
| ---------------------------------- | -------: | -------: | -------------------: | ----------------------------------: |
| saggar's time over bubblewrap's    |  ≤ 0.85× |    0.75× |           0.50..1.25 |             met, not in every round |
| runc's time over saggar's          |   ≥ 6.5× |        — |                    — | NOT MEASURED: runc is not installed |
| saggar --version over /bin/true    |     ≤ 1× |    0.75× |           0.75..0.75 |                                 met |
| an idle sandbox, above its program |  ≤ 2 MiB | 1.00 MiB |           1.00..1.00 |                                 met |

Time from spawn to exit, in ms: median (p10..p90). Runs in a round: bare 100, saggar --version 100, saggar 100, bubblewrap 100.

| round  |              bare |  saggar --version |            saggar |        bubblewrap | runc | saggar/bubblewrap | runc/saggar | --version/bare |
| ------ | ----------------: | ----------------: | ----------------: | ----------------: | ---: | ----------------: | ----------: | -------------: |
| 1      | 1.00 (0.50..1.50) | 0.75 (0.25..1.25) | 2.00 (1.50..2.50) | 4.00 (3.50..4.50) |    — |             0.50× |           — |          0.75× |
| 2      | 1.00 (0.50..1.50) | 0.75 (0.25..1.25) | 5.00 (4.50..5.50) | 4.00 (3.50..4.50) |    — |             1.25× |           — |          0.75× |
| 3      | 1.00 (0.50..1.50) | 0.75 (0.25..1.25) | 3.00 (2.50..3.50) | 4.00 (3.50..4.50) |    — |             0.75× |           — |          0.75× |
| median |              1.00 |              0.75 |              3.00 |              4.00 |    — |             0.75× |           — |          0.75× |

Fall of MemAvailable for each of 50 idle programs, in KiB; the kernel's caches were left alone before each reading.

| round | in a sandbox | bare | the sandbox's cost |
| ----- | -----------: | ---: | -----------------: |
| 1     |         1124 |  100 |               1024 |
";

    fn machine() -> Machine {
        Machine {
            date: "2026-01-02".into(),
            kernel: "6.12.1".into(),
            cpus: 2,
            cpu_model: "A CPU".into(),
            is_virtual: true,
            memory_mib: 4096,
            cgroups: "cgroups v2",
            is_root: true,
        }
    }

    fn round(medians: &[(Contender, f64)]) -> Round {
        let summary = |median: f64| Summary { p10: median - 0.5, median, p90: median + 0.5 };
        Round::new(medians.iter().map(|(contender, median)| (*contender, summary(*median))).collect())
    }

    #[test]
    fn a_report_tells_everything_and_what_is_missing() {
        let absences = vec![Absence { contender: Contender::Runc, reason: "runc is not installed".into() }];
        let present = [Contender::Bare, Contender::Version, Contender::Saggar, Contender::Bubblewrap];
        let launchers = present.map(|contender| Launcher::new(contender, 100, Vec::new())).into();
        let field = Field { launchers, absences, versions: vec!["bubblewrap 0.8.0".into()] };
        let rounds = [(2.0, 4.0), (5.0, 4.0), (3.0, 4.0)].map(|(saggar, peer)| {
            round(&[
                (Contender::Bare, 1.0),
                (Contender::Version, 0.75),
                (Contender::Saggar, saggar),
                (Contender::Bubblewrap, peer),
            ])
        });
        let idle_rounds = vec![IdleRound { sandboxed_kib: 1124.0, bare_kib: 100.0 }];
        let idle = Idle { sandboxes: 50, caches_were_dropped: false, rounds: idle_rounds };
        let loads = [Load([0.1, 0.2, 0.3]), Load([1.0, 0.5, 0.3])];
        let report = Report::new(machine(), field, rounds.to_vec(), Some(idle), loads);
        assert_eq!(report.text(), EXPECTED);
    }
}
