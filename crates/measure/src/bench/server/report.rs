//! The report on a server: targets, results, and where time and memory go.

use super::life::{Life, Way};
use super::many::{FEW, Many};
use super::transfer::Transfer;
use crate::bench::contender::{Absence, Contender, Field};
use crate::bench::report::{NOTHING, circumstances, summary_text};
use crate::bench::statistics::Spread;
use crate::bench::table::Table;
use crate::bench::target::{self, Bound, Target};
use crate::machine::{Load, Machine};

/// Maximum ratio of a life cycle to `saggar run`.
const COLD_OVER_RUN_MAX: f64 = 2.0;
/// Maximum ratio of a life cycle from the pool to bubblewrap's one-shot.
const WARM_OVER_BUBBLEWRAP_MAX: f64 = 0.7;
/// Maximum ratio of a command to `posix_spawn`.
const EXEC_OVER_SPAWN_MAX: f64 = 1.7;
/// Maximum cost of one sandbox among a thousand, in MiB.
const EACH_MIB_MAX: f64 = 0.8;
/// Maximum ratio of a create with a thousand alive to one with few.
const SLOWDOWN_MAX: f64 = 1.5;
/// Minimum speed of a transfer relative to `cp`.
const SPEED_MIN: f64 = 0.3;

/// The ratios that have a target and a column.
const RATIOS: [(Way, Way, &str, f64); 3] = [
    (Way::Cold, Way::Run, "create + true + kill, cold, over saggar run", COLD_OVER_RUN_MAX),
    (Way::Warm, Way::Bubblewrap, "the same from the pool, over bubblewrap", WARM_OVER_BUBBLEWRAP_MAX),
    (Way::Exec, Way::Spawn, "exec of true over posix_spawn", EXEC_OVER_SPAWN_MAX),
];

#[derive(Debug)]
pub struct Report {
    pub targets: Vec<Target>,
    machine: Machine,
    versions: Vec<String>,
    life: Life,
    many: Option<Many>,
    transfer: Result<Transfer, String>,
    loads: [Load; 2],
}

impl Report {
    /// `loads` are the load averages before and after.
    pub fn new(
        machine: Machine,
        field: Field,
        life: Life,
        many: Option<Many>,
        transfer: Result<Transfer, String>,
        loads: [Load; 2],
    ) -> Self {
        let Field { absences, versions, .. } = field;
        let targets = targets(&life, many.as_ref(), &transfer, &absences);
        let versions = versions.into_iter().filter(|version| version.starts_with("bubblewrap")).collect();
        Self { targets, machine, versions, life, many, transfer, loads }
    }

    pub fn text(&self) -> String {
        let mut lines = vec![circumstances(&self.machine, self.loads)];
        lines.extend(self.versions.iter().map(|version| format!("- against {version}")));
        let mut sections = vec![lines.join("\n") + "\n", target::table(&self.targets).to_string()];
        sections.extend([time_section(&self.life), parts_section(&self.life)]);
        sections.extend(self.many.as_ref().map(many_section));
        sections.extend(self.transfer.as_ref().ok().map(transfer_section));
        sections.join("\n")
    }
}

fn targets(life: &Life, many: Option<&Many>, transfer: &Result<Transfer, String>, absences: &[Absence]) -> Vec<Target> {
    let absent = || {
        let absence = absences.iter().find(|absence| absence.contender == Contender::Bubblewrap);
        absence.map_or_else(|| "it took no part".to_owned(), |absence| absence.reason.clone())
    };
    let mut targets: Vec<Target> = RATIOS
        .iter()
        .map(|(of, to, name, most)| {
            let ratios: Option<Vec<f64>> = life.rounds.iter().map(|round| round.ratio(*of, *to)).collect();
            let measured = ratios.filter(|ratios| !ratios.is_empty()).map(|ratios| Spread::of(&ratios));
            Target { name, bound: Bound::AtMost(*most), unit: "×", measured: measured.ok_or_else(absent) }
        })
        .collect();
    let of_many = |measured: fn(&Many) -> Spread| many.map(measured).ok_or("left out by --many 0".to_owned());
    let of_transfer = |measured: fn(&Transfer) -> Spread| transfer.as_ref().map(measured).map_err(Clone::clone);
    targets.extend([
        Target {
            name: "one of a thousand idle sandboxes",
            bound: Bound::AtMost(EACH_MIB_MAX),
            unit: " MiB",
            measured: of_many(Many::cost_mib),
        },
        Target {
            name: "p99 of create with a thousand, over with ten",
            bound: Bound::AtMost(SLOWDOWN_MAX),
            unit: "×",
            measured: of_many(Many::slowdown),
        },
        Target {
            name: "upload's speed over cp's",
            bound: Bound::AtLeast(SPEED_MIN),
            unit: "×",
            measured: of_transfer(Transfer::up),
        },
        Target {
            name: "download's speed over cp's",
            bound: Bound::AtLeast(SPEED_MIN),
            unit: "×",
            measured: of_transfer(Transfer::down),
        },
    ]);
    targets
}

fn time_section(life: &Life) -> String {
    let ratio_names = RATIOS.map(|(of, to, ..)| format!("{} / {}", of.name(), to.name()));
    let head = Way::ALL.map(|way| way.name().to_owned());
    let mut table = Table::new([&["round".to_owned()], &head[..], &ratio_names[..]].concat());
    for (number, round) in life.rounds.iter().enumerate() {
        let times = Way::ALL.map(|way| round.of(way).map_or(NOTHING.into(), summary_text));
        let ratios =
            RATIOS.map(|(of, to, ..)| round.ratio(of, to).map_or(NOTHING.into(), |ratio| format!("{ratio:.2}×")));
        table.add([&[(number + 1).to_string()], &times[..], &ratios[..]].concat());
    }
    format!("Times in ms: median (p10..p90). Runs of each in a round: {}.\n\n{table}", life.runs)
}

fn parts_section(life: &Life) -> String {
    let mut table = Table::new(["a life", "create", "first command", "kill"]);
    for (name, parts) in ["cold", "from the pool"].into_iter().zip(life.parts) {
        table.add([&[name.to_owned()], &parts.map(|part| format!("{part:.2}"))[..]].concat());
    }
    format!("Medians of its parts over all rounds, in ms.\n\n{table}")
}

fn many_section(many: &Many) -> String {
    let Many { count, creates, rounds } = many;
    let few = format!("create with {FEW}");
    let head =
        ["round", &few, &format!("with {count}"), "p99 ratio", "each", "supervisor", "inside", "server", "kernel"];
    let mut table = Table::new(head.map(str::to_owned));
    for (number, round) in rounds.iter().enumerate() {
        let times = [round.few, round.many].map(|[median, p99]| format!("{median:.2} ({p99:.2})"));
        let ratio = format!("{:.2}×", round.many[1] / round.few[1]);
        let kib = [&[round.fall], &round.parts[..]].concat().into_iter().map(|kib| format!("{kib:.0}"));
        table.add([(number + 1).to_string()].into_iter().chain(times).chain([ratio]).chain(kib));
    }
    format!(
        "Create with few and with many alive: median (p99) of {creates} in ms. Memory for each idle sandbox in KiB: the fall of \
MemAvailable, and beside it what processes (PSS) and the kernel (slab, stacks, page tables, per-CPU, shared) grew by.\n\n{table}"
    )
}

fn transfer_section(transfer: &Transfer) -> String {
    let mut table = Table::new(["round", "cp", "upload", "cp", "download", "upload / cp", "download / cp"]);
    for (number, round) in transfer.rounds.iter().enumerate() {
        let speeds = [round.up, round.down].concat().into_iter().map(|time| format!("{:.0}", transfer.speed(time)));
        let ratios = [round.up, round.down].map(|[cp, ours]| format!("{:.2}×", cp / ours));
        table.add([(number + 1).to_string()].into_iter().chain(speeds).chain(ratios));
    }
    format!("A file of {} MiB, tmpfs to tmpfs, in MiB a second.\n\n{table}", transfer.mib)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rounds::Round;
    use crate::bench::server::many::ManyRound;
    use crate::bench::server::transfer::TransferRound;
    use crate::bench::statistics::Summary;

    fn life(ways: &[(Way, f64)]) -> Life {
        let summary = |median: f64| Summary { p10: median, median, p90: median };
        let round = Round::new(ways.iter().map(|(way, median)| (*way, summary(*median))).collect());
        Life { rounds: vec![round.clone(), round], parts: [[1.0, 2.0, 3.0], [0.5, 1.0, 1.5]], runs: 100 }
    }

    fn verdicts(targets: &[Target]) -> Vec<String> {
        targets.iter().map(Target::verdict_text).collect()
    }

    #[test]
    fn every_promise_is_judged() {
        let times = [
            (Way::Spawn, 1.0),
            (Way::Run, 4.0),
            (Way::Bubblewrap, 4.0),
            (Way::Cold, 8.0),
            (Way::Warm, 5.0),
            (Way::Exec, 3.5),
        ];
        let round = ManyRound { few: [1.0, 4.0], many: [1.0, 6.0], fall: 768.0, parts: [0.0; 4] };
        let many = Many { count: 1000, creates: 200, rounds: vec![round] };
        let transfer =
            Transfer { mib: 1024, rounds: vec![TransferRound { up: [300.0, 1000.0], down: [290.0, 1000.0] }] };
        let judged = targets(&life(&times), Some(&many), &Ok(transfer), &[]);
        assert_eq!(verdicts(&judged), ["met", "MISSED", "MISSED", "met", "met", "met", "MISSED"]);
    }

    #[test]
    fn what_is_missing_says_why() {
        let absence = Absence { contender: Contender::Bubblewrap, reason: "not installed".to_owned() };
        let times = [(Way::Spawn, 1.0), (Way::Run, 4.0), (Way::Cold, 8.0), (Way::Warm, 5.0), (Way::Exec, 1.5)];
        let judged = targets(&life(&times), None, &Err("no tmpfs".to_owned()), &[absence]);
        let expected = ["met", "NOT MEASURED: not installed", "met", "NOT MEASURED: left out by --many 0"];
        assert_eq!(verdicts(&judged)[..4], expected);
        assert_eq!(verdicts(&judged)[5], "NOT MEASURED: no tmpfs");
    }
}
